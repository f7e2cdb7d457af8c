"""How many draft tokens are accepted on average: the law of the accepted length, without its noise."""

from __future__ import annotations

import torch
from torch import Tensor

from draftproof.draft import Tree
from draftproof.kernels import reference
from draftproof.kernels.types import ChainRule, Controls, Summary
from draftproof.verify import VERIFIERS


def acceptance(
    target: Tensor,  # [B, N, V] raw logits after each node
    draft: Tensor | None,  # [B, M, V] the drafter's, after the nodes with children; None where nothing was drafted
    tokens: Tensor,  # [B, N - 1] the draft tokens, -1 where none was drawn
    tree: Tree,
    controls: Controls,
    rule: Tensor,  # [B], of a chain
    drafted: Summary | None = None,  # of the draft rows
) -> Tensor:
    """[B, D]: given the draft tokens, the probability that at least 1, 2, ... of them are accepted."""
    if tree.size == 1 or draft is None:
        return target.new_zeros(len(target), 0, dtype=torch.float32)
    if tree.is_chain:
        chain, _, _ = reference.drafted(target, draft, tokens, controls, rule)
        stop = torch.zeros_like(chain.p[..., 0])
        for member in ChainRule:
            stop = torch.where((rule == member)[:, None], VERIFIERS[member.name.lower()].stop(chain), stop)
    else:
        nodes = torch.nn.functional.pad(tokens, (1, 0))
        drafts, _ = reference.branched(target, draft, nodes, tree, controls)
        stop = VERIFIERS["traversal"].stop(drafts)
    depth = torch.tensor(tree.depth, device=stop.device)
    levels = torch.arange(1, tree.depth[-1] + 1, device=stop.device)
    return (stop[:, None] * (depth >= levels[:, None])).sum(-1).float()
