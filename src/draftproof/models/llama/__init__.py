"""Llama-family networks rebuilt from fused layers: blocks, the trained head, 8-bit integers."""
