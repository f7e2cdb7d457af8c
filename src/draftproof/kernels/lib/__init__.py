"""Pieces that several kernels share: loading rows, drawing from a distribution, timing."""
