"""The average of two heads lies between them, and drafts the later one's tokens."""

from __future__ import annotations

import copy

import torch

from scripts.average_heads import average
from tests.support import heads


def test_each_weight_is_the_weighted_mean():
    before, after = heads.network(layers=2), heads.network(layers=2)
    with torch.no_grad():
        for weight in after.parameters():
            weight += torch.randn_like(weight)
        after.tokens += 1
    for share in (0.0, 0.25, 1.0):
        made = average(before, copy.deepcopy(after), share)
        for mine, one, other in zip(made.parameters(), before.parameters(), after.parameters(), strict=True):
            torch.testing.assert_close(mine, (1 - share) * one + share * other)
        assert torch.equal(made.tokens, after.tokens)
