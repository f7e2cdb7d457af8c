"""Attention among whole texts side by side, against torch's with the same rule written out."""

from __future__ import annotations

import copy
from typing import NamedTuple

import pytest
import torch

from draftproof.models.kv_cache import SlotCache
from draftproof.models.llama.block import Block, Rotation, Shape, frequencies
from draftproof.models.static.packing import Texts

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
    block = Block(Shape(48, case.heads, case.shared, case.size, 80, bias=True)).to(DEVICE, case.dtype)
    block.requires_grad_(False)
    places = [(row, t) for row, length in enumerate(reversed(case.lengths)) for t in range(length)]
    rows, positions = torch.tensor(places, device=DEVICE).T
    texts = Texts(positions[None] + case.first, rows, case.window)
    x = torch.randn(1, len(rows), 48, dtype=case.dtype, device=DEVICE)
    rotation = Rotation.of(positions[None], frequencies(case.size).to(DEVICE)).to(case.dtype)
    theirs = SlotCache(1, len(case.lengths), max(case.lengths) + 3)
    entry = torch.zeros(1, case.shared, 1, case.size, dtype=case.dtype, device=DEVICE)
    theirs.layers[0].lazy_initialization(entry, entry)
    for buffer in theirs.buffers:
        buffer.normal_()
    ours, said = copy.deepcopy(theirs), []
    for cache, mask in ((theirs, texts.among()[:, None]), (ours, texts)):
        cache.place_texts(rows, texts.own[0])
        said.append((block(x, rotation, mask, cache.layers[0]), *cache.buffers))
    error = 1e-5 if case.dtype == torch.float32 else 4 * torch.finfo(case.dtype).eps
    for other, mine in zip(*said, strict=True):
        torch.testing.assert_close(mine, other, atol=4 * error, rtol=error)


def test_what_a_token_sees():
    texts = Texts(torch.tensor([[1, 2, 3, 1, 2]]), torch.tensor([7, 7, 7, 4, 4]))
    seen = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]
    assert texts.among().int().tolist() == [seen]
    seen[2][0] = 0
    assert texts._replace(window=2).among().int().tolist() == [seen]
    assert texts._replace(own=texts.own - 1).among()[0].sum(1).tolist() == [1, 1, 2, 1, 1]
