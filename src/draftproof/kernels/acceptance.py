"""The law of the node at which a chain stops: how many draft tokens are accepted on average, without noise."""

from __future__ import annotations

import torch
from torch import Tensor

from draftproof.kernels import reference
from draftproof.kernels.types import ChainRule, Controls, Summary
from draftproof.verify import VERIFIERS


def stop_law(
    target: Tensor,  # [B, K + 1, V] raw logits after each node
    draft: Tensor,  # [B, K, V] the drafter's raw logits
    tokens: Tensor,  # [B, K] int64, the draft tokens; -1 for none
    controls: Controls,
    rule: Tensor,  # [B] int32, a ChainRule each
    *,
    laws: Summary | None = None,  # of the target's rows, such as those of a workspace that `verify` was given, ...
    drafted: Summary | None = None,  # ... and of the draft rows; with both, kernels do it
) -> Tensor:
    """[B, K + 1] float32: the probability that verification stops at each node, given the draft tokens."""
    if laws is not None and drafted is not None:
        from draftproof.kernels.chain import expected

        return expected.stop_law(target, draft, tokens, controls, rule, laws, drafted)
    chain, _, _ = reference.drafted(target, draft, tokens, controls, rule)
    stop = torch.zeros_like(chain.p[..., 0])
    for member in ChainRule:
        stop = torch.where((rule == member)[:, None], VERIFIERS[member.name.lower()].stop(chain), stop)
    return stop.float()
