"""Draft tokens of requests in slots: the laws' own, from one reading of each row; and what is kept of them."""

from __future__ import annotations

import pytest
import torch

from draftproof.integrations.vllm.layout import SlotLaws
from draftproof.kernels.slots.draw import draw
from draftproof.law import sample
from draftproof.noise import Lane, uniforms
from tests.support.marks import INTERPRETED

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SLOTS, DEPTH = 9, 3
SLOT = torch.tensor([7, 0, -1, 3, 8, 1], device=DEVICE)  # one row belongs to nobody

pytestmark = INTERPRETED


def drawn(logits: torch.Tensor, depth: int = 1) -> tuple[torch.Tensor, torch.Tensor, SlotLaws, list[torch.Tensor]]:
    """The tokens, the rows and laws that are kept, and temperatures, seeds and positions."""
    torch.manual_seed(5)
    rows = torch.full((SLOTS, DEPTH, logits.shape[1]), 7.0, dtype=logits.dtype, device=DEVICE)
    laws = SlotLaws.of(rows)
    temperature = torch.rand(SLOTS, device=DEVICE) + 0.3
    temperature[3] = 0
    seed = torch.randint(-(2**63), 2**63 - 1, (SLOTS,), device=DEVICE)
    position = torch.arange(len(SLOT), device=DEVICE) * 11 + 2
    tokens = draw(logits, SLOT, temperature, seed, position, torch.tensor(depth, device=DEVICE), rows, laws)
    return tokens, rows, laws, [temperature, seed, position]


def logits_of(size: int, dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(size)
    wide = torch.randn(len(SLOT), size + 3, device=DEVICE) * 3
    return wide.to(dtype)[:, :size]  # of a padded vocabulary


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [37, 2048, 5001])
def test_tokens_are_drawn_from_the_laws_of_their_rows(size: int, dtype: torch.dtype) -> None:
    logits = logits_of(size, dtype)
    tokens, rows, laws, (temperature, seed, position) = drawn(logits)
    for b, slot in enumerate(SLOT.tolist()):
        if slot < 0:
            assert tokens[b] == 0
            continue
        t, row = temperature[slot], logits[b].float()
        law = torch.nn.functional.one_hot(row.argmax(), size).double()[None]
        if t > 0:
            law = (row.double() / t).softmax(-1)[None]
            kept = torch.exp2(row * (1.4426950408889634 / t) - laws.shift[slot, 1]) * laws.scale[slot, 1]
            torch.testing.assert_close(kept.double(), law[0], rtol=2e-5, atol=1e-9)
        else:
            assert laws.first[slot, 1] == row.argmax()
            assert laws.scale[slot, 1] > 0
        keys = (seed[slot : slot + 1], position[b : b + 1] * 0, position[b : b + 1])
        assert tokens[b] == sample(law, uniforms(*keys, Lane.DRAFT, 1)[:, 0])
        assert torch.equal(rows[slot, 1], logits[b])
        assert laws.position[slot, 1] == position[b]


def test_nothing_else_is_touched() -> None:
    _, rows, laws, _ = drawn(logits_of(301, torch.float32))
    others = [slot for slot in range(SLOTS) if slot not in SLOT.tolist()]
    assert (rows[:, [0, 2]] == 7).all()
    assert (rows[others] == 7).all()
    assert (laws.position[:, [0, 2]] == -1).all()
    assert (laws.position[others] == -1).all()


@pytest.mark.parametrize("size", [37, 2048, 70_001])
def test_the_crest_has_large_tokens_of_all_parts(size: int) -> None:
    logits = logits_of(size, torch.float32)
    logits[1, size // 2 :] = -torch.inf
    _, _, laws, _ = drawn(logits)
    for b, slot in enumerate(SLOT.tolist()):
        if slot >= 0:
            crest, height = laws.crest[slot, 1], laws.height[slot, 1]
            large = crest[crest >= 0].long()
            assert len(set(large.tolist())) == len(large)
            assert torch.equal(height[crest >= 0], logits[b, large])
            assert height.max() == logits[b].max()
            assert (height[crest >= 0] > -torch.inf).all()
            assert len(large) > 2 or size < 1000


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), None])
def test_a_row_without_a_law_gives_token_0_and_no_law(broken: float | None) -> None:
    logits = logits_of(301, torch.float32)
    if broken is None:
        logits[[0, 3]] = -torch.inf
    else:
        logits[[0, 3], 5] = broken
    tokens, _, laws, _ = drawn(logits)
    assert tokens[0] == 0
    assert not laws.scale[7, 1] > 0
    assert not laws.scale[3, 1] > 0  # a greedy row, too
