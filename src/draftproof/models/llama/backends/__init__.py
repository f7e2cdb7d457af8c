"""Ways to run the layers of a Llama network; for every call the first one that fits does it.

| backend       | where                                     | how                                               |
|---------------|-------------------------------------------|---------------------------------------------------|
| native_stack  | CPU, weights laid out for C               | all layers in one C call                          |
| ordered_ops   | 8-bit integers without a compiler         | torch, in the order of the C functions            |
| megakernel    | GPU, small network, few tokens            | all layers in one launch                          |
| triton_ops    | GPU                                       | a kernel for each operation, products by cuBLAS   |
| native_ops    | CPU, few tokens                           | norm, attention and gate in C, products by torch  |
| torch_ops     | anywhere                                  | torch                                             |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from draftproof.models.llama.backends import megakernel, native_ops, native_stack, ordered_ops, torch_ops, triton_ops
from draftproof.models.llama.call import LayerCall


class Backend(Protocol):
    """What a module of this package provides; `blocks` are models.llama.block.Blocks."""

    def fits(self, blocks: Any, x: torch.Tensor, call: LayerCall, first: int, keep: Sequence[int]) -> bool:
        """Whether it can do this call; see `run`."""
        ...

    def run(
        self, blocks: Any, x: torch.Tensor, call: LayerCall, first: int, keep: Sequence[int]
    ) -> tuple[torch.Tensor, Any]:
        """x [B, T, width] through the layers from `first` on, and by number what the layers in `keep` were given."""
        ...


BACKENDS: tuple[Backend, ...] = (native_stack, ordered_ops, megakernel, triton_ops, native_ops, torch_ops)


def choose(blocks: Any, x: torch.Tensor, call: LayerCall, first: int, keep: Sequence[int]) -> Backend:
    """The first backend that fits."""
    return next(backend for backend in BACKENDS if backend.fits(blocks, x, call, first, keep))
