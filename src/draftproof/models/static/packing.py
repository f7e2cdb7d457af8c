"""Whole texts side by side in one call: prompts of any number and length are read by calls of few different shapes.

No token is computed in vain because a neighbour's text is longer, as it would be with a row for each text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

STEP = 128  # tokens: widths are multiples of it; so many take hardly longer than one, as the weights are read once
WIDEST = 1024  # tokens of a call, unless a single text has more: then it has its own width
QUERIES = 64  # of a program


def packs(texts: Iterable[tuple[int, Sequence[int]]]) -> list[torch.Tensor]:
    """Rows and their texts, in as few calls as will do: tokens, rows and positions, [3, T] each.

    The last token of a call is repeated until it is full. That does no harm: what a model knows of the last token of a
    text is made anew by the step that follows.

    >>> [pack.shape[1] for pack in packs(enumerate([[65] * length for length in (10, 900, 12, 120, 1500)]))]
    [1500, 1024, 128]
    """
    calls: list[list[tuple[int, int, int]]] = []
    for row, text in sorted(texts, key=lambda one: len(one[1]), reverse=True):
        call = next((call for call in calls if len(call) + len(text) <= WIDEST), None)
        if call is None:
            calls.append(call := [])
        call.extend((token, row, position) for position, token in enumerate(text))
    full = ([*call, *call[-1:] * (-len(call) % STEP if len(call) <= WIDEST else 0)] for call in calls)
    return [torch.tensor(list(zip(*call, strict=True)), dtype=torch.int64) for call in full]


class Texts(NamedTuple):
    """The mask of a pack by its rule: a token in slot s of its row sees itself and the s - 1 tokens before it."""

    own: torch.Tensor  # [1, T] int64 slots of the tokens
    rows: torch.Tensor  # [T] int64 where those are
    window: int | None = None  # tokens that one sees at most

    def among(self) -> torch.Tensor:
        """[1, T, T]: the same written out, which of the tokens each one sees."""
        place = torch.arange(len(self.rows), device=self.own.device)
        apart = place[:, None] - place
        return (apart >= 0) & (apart < self.own.clamp(1, self.window)[..., None])


def attend(joint: torch.Tensor, rotation: Any, texts: Texts, store: Any, heads: int, shared: int) -> torch.Tensor:
    """What models/llama/cuda.py's attend does for few tokens: queries, keys and values [1, T, ...] side by side ->
    [1, T, heads * size], where layers are done by kernels."""
    from draftproof.kernels.lib import launching  # imports Triton
    from draftproof.kernels.llama.prefill import read

    (_, count, width), group = joint.shape, heads // shared
    size, early = width // (heads + 2 * shared), launching.may_overlap(joint.device)
    if not store.is_initialized:
        new = joint.view(1, count, -1, size).transpose(1, 2)[:, -shared:]
        store.lazy_initialization(new, new)
    wide = joint.element_size() == 4  # the registers have no room for many queries
    tokens = 1 << max((QUERIES // 4 if wide else QUERIES) // group, 1).bit_length() - 1  # of a program
    out = joint.new_empty(1, count, heads * size)
    with launching.current(joint.device):
        read[(-(-count // tokens), shared)](
            joint, rotation.cos.contiguous(), rotation.sin.contiguous(), texts.own.contiguous(),
            texts.rows.contiguous(), store.keys, store.values, out,
            texts.window or 0, math.log2(math.e) / math.sqrt(size), count, group, heads, store.keys.shape[2],
            D=size, TOKENS=tokens, M=max(16, 1 << (tokens * group - 1).bit_length()),
            BLOCK=32 if wide or size > 64 else 64, WINDOW=texts.window is not None, EARLY=early,
            num_warps=4, num_stages=1, launch_pdl=early,
        )  # fmt: skip
    return out
