"""Layers of the Llama family in few launches."""
