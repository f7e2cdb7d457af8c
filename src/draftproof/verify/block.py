"""Block verification (Sun et al., arXiv 2403.10444): couples the whole block; no single-path rule accepts more.

With w_i = min(1, w_{i-1} p(x_i) / q(x_i)), P(accepted length >= i | x_1..x_i) = w_i. The scan runs from the back:
node i is taken with h_i = Z_i / (Z_i + 1 - w_i), Z_i = sum (w_i p - q)+, else the scan goes on to node i - 1. At the
last node q is zero, so Z = w and h = w: the end of the block needs no case of its own.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.draft import Draft
from draftproof.law import Array, at, capped_ratio, divide, positive, residual, row
from draftproof.verify import register


def weights(draft: Draft) -> Array:
    """[B, N]: w_i, the probability that at least the first i tokens are accepted, given them."""
    p, q, tokens = draft.p, draft.q, draft.tokens
    xp = array_namespace(tokens)
    p_x, q_x = at(p[:, :-1], tokens[:, 1:]), at(q[:, :-1], tokens[:, 1:])
    w = [p[:, 0, 0] * 0 + 1]
    for i in range(p_x.shape[1]):
        w.append(capped_ratio(w[-1] * p_x[:, i], q_x[:, i]))
    return xp.stack(w, axis=1)


def stop(draft: Draft) -> Array:
    """[B, N]: scan from the back, node i with h_i; node 0 takes what is left."""
    xp = array_namespace(draft.tokens)
    w = weights(draft)
    inner = w[:, 1:-1]  # only there a sum is needed: node 0 is not asked, and at the last one Z = w
    left = inner[..., None] * draft.p[:, 1:-1]
    left -= draft.q[:, 1:-1]
    excess = xp.sum(positive(left), axis=-1)  # [B, N - 2] Z_i
    h = divide(excess, excess + (1 - inner), otherwise=1)  # 1 - w first: a small excess would drown in excess + 1
    reach, laws = w[:, 0], []
    for i in reversed(range(1, w.shape[1])):
        taken = reach * (h[:, i - 1] if i <= h.shape[1] else w[:, i])
        laws.append(taken)
        reach = reach - taken
    return xp.stack([reach, *reversed(laws)], axis=1)


def next(draft: Draft, node: Array) -> Array:
    """[B, V]: proportional to (w p - q)+ with the weight of the node itself."""
    w = row(weights(draft), node)
    return residual(w[:, None] * row(draft.p, node), row(draft.q, node))


register(
    "block",
    summary="the whole block at once, scanned from its end; optimal for one path",
    paper="2403.10444",
    draws={"iid"},
    trees="chain",
    stop=stop,
    next=next,
    dominates={"token"},
)
