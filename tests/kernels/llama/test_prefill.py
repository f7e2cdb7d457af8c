"""Attention among whole texts side by side, against torch's with the same rule written out."""

from __future__ import annotations

import copy
from typing import NamedTuple

import pytest
import torch

from draftproof.models.kv_cache import SlotCache
from draftproof.models.llama.backends import torch_ops, triton_ops
from draftproof.models.llama.backends.tables import KernelTables
from draftproof.models.llama.block import Block, Blocks, LayerShape
from draftproof.models.llama.call import LayerCall
from draftproof.models.llama.masks import FULL, Packed
from draftproof.models.llama.placement import PackedSlots
from draftproof.models.llama.rotary import Rotation, frequencies

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Case(NamedTuple):
    """Heads, and the lengths of the texts."""

    heads: int
    shared: int
    size: int
    lengths: tuple[int, ...]
    window: int | None = None
    first: int = 1  # slot of a text's first token: a head's is 0
    dtype: torch.dtype = torch.float32


CASES = {
    "several": Case(4, 2, 16, (5, 1, 40, 3)),
    "one token": Case(4, 2, 16, (1,)),
    "groups of three": Case(9, 3, 64, (20, 7)),
    "more queries than a program takes": Case(24, 1, 16, (3, 2)),
    "entries of a head": Case(4, 2, 32, (9, 1, 30), first=0),
    "window": Case(8, 1, 32, (40, 9), window=11),
    "window of one": Case(3, 3, 128, (33, 2), window=1),
    "half precision": Case(4, 2, 16, (5, 1, 70, 3), dtype=torch.float16),
}


@pytest.mark.parametrize("name", CASES)
def test_whole_texts_by_a_kernel_are_the_layers(name):
    """What the layer says, and the keys and values that it leaves; other slots stay as they were."""
    case = CASES[name]
    torch.manual_seed(0)
    block = Block(LayerShape(48, case.heads, case.shared, case.size, 80, bias=True)).to(DEVICE, case.dtype)
    blocks = Blocks([block.requires_grad_(False)])
    places = [(row, t) for row, length in enumerate(reversed(case.lengths)) for t in range(length)]
    rows, positions = torch.tensor(places, device=DEVICE).T
    placement = PackedSlots(rows, positions + case.first)
    x = torch.randn(1, len(rows), 48, dtype=case.dtype, device=DEVICE)
    rotation = Rotation.of(positions[None], frequencies(case.size).to(DEVICE)).to(case.dtype)
    theirs = SlotCache(1, len(case.lengths), max(case.lengths) + 3)
    theirs.allocate(case.shared, case.size, x)
    for buffer in theirs.buffers:
        buffer.normal_()
    ours, said = copy.deepcopy(theirs), []
    for cache, backend in ((theirs, torch_ops), (ours, triton_ops)):
        mask = Packed(case.window)
        call = LayerCall(rotation, {FULL: mask}, placement, cache.layers, KernelTables.of(blocks, cache))
        assert backend.fits(blocks, x, call, 0, ())
        said.append((backend.run(blocks, x, call, 0, ())[0], *cache.buffers))
    error = 1e-5 if case.dtype == torch.float32 else 4 * torch.finfo(case.dtype).eps
    for other, mine in zip(*said, strict=True):
        torch.testing.assert_close(mine, other, atol=4 * error, rtol=error)


def test_what_a_token_sees():
    placement = PackedSlots(torch.tensor([7, 7, 7, 4, 4]), torch.tensor([1, 2, 3, 1, 2]))
    seen = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]
    assert Packed().visible(placement).int().tolist() == [seen]
    seen[2][0] = 0
    assert Packed(2).visible(placement).int().tolist() == [seen]
    assert Packed().visible(placement._replace(slots=placement.slots - 1))[0].sum(1).tolist() == [1, 1, 2, 1, 1]
