"""How the kernels are compared with the laws: token for token, near-ties counted.

A step's outcome is near a tie when the uniform lies within EPSILON of the outcome's own interval of the cumulated law,
computed in float64: float32 rounding may then fall on either side. Anything farther off is wrong.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from draftproof.kernels import reference
from draftproof.kernels.types import Controls, Emitted, Names, Rule
from draftproof.noise import Lane, uniforms
from draftproof.verify import VERIFIERS

EPSILON = 3e-6


class Agreement(NamedTuple):
    """How many sequences came out otherwise than by the laws."""

    near_ties: int
    wrong: int


def near(law: Tensor, outcome: Tensor, u: Tensor) -> Tensor:
    """[B]: whether u lies within EPSILON of the outcome's interval of the cumulated law [B, M]."""
    total = law.sum(-1)
    above = law.cumsum(-1).gather(-1, outcome[:, None])[:, 0] / total
    below = above - law.gather(-1, outcome[:, None])[:, 0] / total
    return (u > below - EPSILON) & (u < above + EPSILON)


def compare(
    out: Emitted,
    target: Tensor,
    draft: Tensor | None,
    tokens: Tensor,
    controls: Controls,
    rule: Tensor,
    names: Names,
    draft_controls: Controls | None = None,
) -> Agreement:
    """The kernels' outcome beside that of the float64 laws."""
    draft = None if draft is None else draft.double()
    right = reference.verify(target.double(), draft, tokens, controls, rule, names, draft_controls)
    differ = (out.tokens != right.tokens).any(1)
    chain = reference.drafted(target.double(), draft, tokens, controls, draft_controls)
    stop = out.accepted.long()
    token = out.tokens.gather(1, stop[:, None])[:, 0]
    excused = torch.zeros_like(differ)
    for member in Rule:
        verifier = VERIFIERS[member.name.lower()]
        fine = near(verifier.stop(chain), stop, uniforms(*names, Lane.STOP, 1)[:, 0])
        fine &= near(verifier.next(chain, stop), token, uniforms(*names, Lane.NEXT, 1)[:, 0])
        excused |= (rule == member) & fine
    return Agreement(int((differ & excused).sum()), int((differ & ~excused).sum()))
