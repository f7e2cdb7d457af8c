"""Without a GPU the kernels run in Triton's interpreter; the switch must be set before they are imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
