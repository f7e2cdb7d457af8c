"""Sessions with fixed shapes, whose calls a CUDA graph can record."""
