"""Triton kernels for layers of the Llama family."""
