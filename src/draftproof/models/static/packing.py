"""Packed prompts: whole texts side by side in one call, so that calls of few different shapes read any number of them.

No token is computed only because a neighbour's text is longer, as it would be with a row for each text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

STEP = 128  # tokens: widths are multiples of it; so many take hardly longer than one, as the weights are read once
WIDEST = 1024  # tokens of a call, unless a single text has more: then it has its own width


def packs(texts: Iterable[tuple[int, Sequence[int]]]) -> list[torch.Tensor]:
    """Rows and their texts, in as few calls as will do: tokens, rows and positions, [3, T] each.

    The last token of a call is repeated until the call is full. That does no harm: the step that follows reads the last
    token of every text again.

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
