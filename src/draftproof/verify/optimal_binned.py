"""Optimal pick over bins of the ratio p/q (bound: arXiv 2502.18779): for full vocabularies, without sorting one.

Tokens of nearly equal p/q share a bin, hull and peel plans over the bins' masses, and inside a bin the pick's law is in
proportion to q. Any binning is exact; bins of width w in log(p/q) lose at most about w / 8 of the acceptance. The
vocabulary is read twice, once to fill the bins and once to write the law.
"""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace

from draftproof.law import Array, divide
from draftproof.verify import optimal, register
from draftproof.verify._pick import beside
from draftproof.verify._topdown import judge, top_down

BINS = 1024
WIDTH = 0.01  # of a bin, in log(p/q); ratios beyond e^5 either way share the outermost bins
TINY = 1e-30  # stands in for 0, which has no logarithm
# Ratios of small integers, among them 1, stay away from the bins' edges, where rounding would decide.
OFFSET = BINS / 2 + 0.37


def rule(p: Array, laws: list[Array], tokens: Array) -> tuple[Array, Array]:
    """The optimal pick with bins in place of tokens, then the token rule."""
    a, chosen = choose(p, laws[0], tokens)
    return judge(p, a, chosen, tokens)


def choose(p: Array, q: Array, tokens: Array) -> tuple[Array, Array]:
    """The law [B, V] of the picked token, and the probability [B, K] that each guess is it; zero without guesses."""
    xp = array_namespace(p)
    bins = _bins(p, q)
    p_bins, q_bins = _masses(bins, p), _masses(bins, q)  # [B, BINS]
    token_bins = xp.take_along_axis(bins, xp.where(tokens < 0, tokens * 0, tokens), axis=1)
    a_bins, chosen = optimal.choose(p_bins, q_bins, xp.where(tokens < 0, tokens, token_bins))
    share = beside(divide(a_bins, q_bins), like=q)
    return q * xp.take_along_axis(share, bins, axis=1), beside(chosen, like=p)


def _bins(p: Array, q: Array) -> Array:
    """[B, V] bin of each token, by p/q. Where q is 0 any will do, because there is nothing to pick."""
    xp = array_namespace(p)
    if p.dtype == object:
        p, q = p.astype(np.float64), q.astype(np.float64)
    ratio = xp.clip(p, TINY, None) / xp.clip(q, TINY, None)
    return xp.astype(xp.clip(xp.log(ratio) / WIDTH + OFFSET, 0, BINS - 0.5), xp.int64)


def _masses(bins: Array, law: Array) -> Array:
    """[B, BINS] mass of each bin, in float64: a bin may hold the whole vocabulary."""
    xp = array_namespace(bins)
    if law.dtype == object:
        masses = np.zeros((len(law), BINS), dtype=object)
        np.add.at(masses, (np.arange(len(law))[:, None], bins), law)
        return masses
    offset = xp.arange(bins.shape[0], device=bins.device)[:, None] * BINS
    weights = xp.astype(law, xp.float64).reshape(-1)
    return xp.bincount((bins + offset).reshape(-1), weights=weights, minlength=len(law) * BINS).reshape(-1, BINS)


stop, next = top_down(rule)

register(
    "optimal_binned",
    summary="the optimal pick over bins of p/q: for full vocabularies, on any device, nearly the same acceptance",
    paper="2502.18779",
    draws={"iid"},
    trees="any",
    stop=stop,
    next=next,
)
