"""Compare the kernels' outcomes with the laws, token for token, and count near-ties.

A step's outcome is near a tie when the uniform lies within EPSILON of the outcome's own interval of the cumulated law,
computed in float64: float32 rounding may then fall on either side. Anything farther off is wrong.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from draftproof.draft import Tree
from draftproof.draws import DRAWS, without
from draftproof.kernels import reference
from draftproof.kernels.types import ChainRule, Controls, Emitted, NoiseKeys, Walked
from draftproof.noise import Lane, uniforms
from draftproof.verify import VERIFIERS

EPSILON = 3e-6


class Agreement(NamedTuple):
    """How many sequences have another outcome than by the laws."""

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
    noise: NoiseKeys,
    draft_controls: Controls | None = None,
) -> Agreement:
    """Compare the kernels' outcome with that of the float64 laws."""
    draft = None if draft is None else draft.double()
    right = reference.verify(target.double(), draft, tokens, controls, rule, noise, draft_controls)
    differ = (out.tokens != right.tokens).any(1)
    chain, _, _ = reference.drafted(target.double(), draft, tokens, controls, rule, draft_controls)
    stop = out.accepted.long()
    token = out.tokens.gather(1, stop[:, None])[:, 0]
    excused = torch.zeros_like(differ)
    for member in ChainRule:
        verifier = VERIFIERS[member.name.lower()]
        fine = near(verifier.stop(chain), stop, uniforms(*noise, Lane.STOP, 1)[:, 0])
        fine &= near(verifier.next(chain, stop), token, uniforms(*noise, Lane.NEXT, 1)[:, 0])
        excused |= (rule == member) & fine
    return Agreement(int((differ & excused).sum()), int((differ & ~excused).sum()))


def compare_tree(
    out: Walked,
    target: Tensor,
    draft: Tensor,
    tokens: Tensor,
    tree: Tree,
    controls: Controls,
    noise: NoiseKeys,
    draft_controls: Controls | None = None,
) -> Agreement:
    """Compare the outcome of `traverse` with that of the float64 laws."""
    target, draft = target.double(), draft.double()
    right = reference.traverse(target, draft, tokens, tree, controls, noise, draft_controls)
    differ = (out.tokens != right.tokens).any(1) | (out.path != right.path).any(1)
    drafts, _ = reference.branched(target, draft, tokens, tree, controls, draft_controls)
    taken = out.accepted.long()
    node = torch.nn.functional.pad(out.path, (1, 0)).gather(1, taken[:, None])[:, 0]
    token = out.tokens.gather(1, taken[:, None])[:, 0]
    verifier = VERIFIERS["traversal"]
    excused = near(verifier.stop(drafts), node, uniforms(*noise, Lane.STOP, 1)[:, 0])
    excused &= near(verifier.next(drafts, node), token, uniforms(*noise, Lane.NEXT, 1)[:, 0])
    return Agreement(int((differ & excused).sum()), int((differ & ~excused).sum()))


def compare_guesses(tokens: Tensor, draft: Tensor, tree: Tree, controls: Controls, noise: NoiseKeys) -> Agreement:
    """Compare draft tokens [B, N] with what the float64 laws draw after the same elder siblings."""
    laws = reference.law(draft.double(), controls.at(tree.inner), tokens[:, :0])
    u = uniforms(*noise, Lane.DRAFT, tree.size)
    ties = wrong = 0
    for row, parent in enumerate(tree.inner):
        q = laws[:, row] * ((tokens[:, parent] >= 0) | (parent == 0))[:, None]
        for child in tree.children(parent):
            drawn, right = tokens[:, child], DRAWS["distinct"].sample(q, u[:, child, None])[:, 0]
            differ = drawn != right
            excused = (drawn >= 0) & (right >= 0) & near(q, drawn.clamp_min(0), u[:, child])
            ties, wrong = ties + int((differ & excused).sum()), wrong + int((differ & ~excused).sum())
            q = without(q, drawn)
    return Agreement(ties, wrong)
