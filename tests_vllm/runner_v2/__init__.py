"""Tests of model runner V2, in a process of their own: Triton must know that it interprets before it is imported."""
