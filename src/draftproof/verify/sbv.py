"""Selected block verification: at every context the best pick of its guesses, then block verification of that path.

Hull and peel (the coupling that meets the bound of Hu et al., arXiv 2502.18779) picks one of a context's guesses; the
pick's law `a` is known, so block verification (2403.10444) of the picked path is exact with a in place of q. The picks'
uniforms are summed in closed form: a node is passed with the product of the shares on its way, and what happens below
it is a mean over its children. Accepts at least as much as the same picks level by level.
"""

from __future__ import annotations

from typing import NamedTuple

from array_api_compat import array_namespace

from draftproof.draft import Draft
from draftproof.law import Array, at, divide, one_hot, positive, residual, row
from draftproof.verify import register
from draftproof.verify._merge import Contexts, contexts
from draftproof.verify._pick import beside, pick, winner


class Picks(NamedTuple):
    """The picks at all contexts of a draft."""

    merged: Contexts
    p: Array  # [B, N, V] target's law
    a: Array  # [B, N, V] law of the pick among the guesses made there; zero where there are none
    share: Array  # [B, N] probability that the node is the pick of its context
    weight: Array  # [B, N] block verification's w along the path to the node


def picks(draft: Draft) -> Picks:
    """Plans are made only where a context has two guesses or more; a lone guess is its own pick and a = q."""
    xp = array_namespace(draft.tokens)
    merged = contexts(draft)
    p = xp.take_along_axis(draft.p, merged.rows[..., None], axis=1)
    a = xp.take_along_axis(draft.q, merged.rows[..., None], axis=1)
    share = p[:, :, 0] * 0
    for b, (homes, tokens) in enumerate(zip(merged.home.tolist(), draft.tokens.tolist(), strict=True)):
        drawn = [node for node in range(1, draft.tree.size) if tokens[node] >= 0]
        for home in {homes[node] for node in drawn}:
            nodes = [node for node in drawn if homes[node] == home]
            if len(nodes) == 1:
                share[b, nodes[0]] = 1
                continue
            plan = pick(p[b, home], a[b, home], len(nodes))
            for node, chance in zip(nodes, winner(plan, [tokens[node] for node in nodes]), strict=True):
                share[b, node] = chance
            a[b, home] = beside(plan.law, like=a)
    weight = one_hot(merged.first[:, 0], like=share)
    for node in range(1, draft.tree.size):
        home, x = merged.home[:, node], draft.tokens[:, node]
        grown = row(weight, home) * divide(at(row(p, home), x), at(row(a, home), x))
        grown = xp.where(grown < 1, grown, grown * 0 + 1)
        grown = xp.where((x >= 0) & (merged.first[:, node] == node), grown, grown * 0)
        weight = weight + one_hot(x * 0 + node, like=share) * grown[:, None]
    return Picks(merged, p, a, share, weight)


def stop(draft: Draft) -> Array:
    """[B, N]: passed by the picked path, refused below, taken with h as in block verification."""
    xp = array_namespace(draft.tokens)
    size = draft.tree.size
    merged, p, a, share, w = picks(draft)
    excess = xp.stack([xp.sum(positive(w[:, n, None] * p[:, n] - a[:, n]), axis=-1) for n in range(size)], axis=1)
    h = divide(excess, excess + (1 - w), otherwise=1)
    fails = share * 0 + 1  # probability that the scan takes nothing below a node that the picked path passes
    for node in reversed(range(1, size)):
        taken = share[:, node] * (1 - (1 - h[:, node]) * fails[:, node])
        fails = positive(fails - one_hot(merged.home[:, node], like=share) * taken[:, None])
    passed = [share[:, 0] * 0 + 1]
    for node in range(1, size):
        passed.append(share[:, node] * row(xp.stack(passed, axis=1), merged.home[:, node]))
    return xp.stack(passed, axis=1) * fails * h


def next(draft: Draft, node: Array) -> Array:
    """[B, V]: proportional to (w p - a)+."""
    found = picks(draft)
    return residual(row(found.weight, node)[:, None] * row(found.p, node), row(found.a, node))


register(
    "sbv",
    summary="the best pick of the guesses at every context, then block verification of the picked path",
    paper="2403.10444, 2502.18779",
    draws={"iid"},
    trees="any",
    stop=stop,
    next=next,
)
