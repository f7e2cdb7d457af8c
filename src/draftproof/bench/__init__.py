"""Benchmarks: our sampling beside that of transformers, on the same models, in the same run, in turns."""
