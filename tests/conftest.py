"""Settings for all tests: deterministic, and one thread, because the arrays are small."""

from __future__ import annotations

import os

import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton looks once, when it is imported, by whomever

torch.set_num_threads(1)
settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("fixed")
