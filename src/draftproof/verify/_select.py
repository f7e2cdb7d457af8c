"""From one context's pick to any tree: pick a candidate at every context, then block-verify the path (2403.10444).

A pick's law `a` is known, so block verification of the path is exact with a in place of q. The picks' uniforms are
summed in closed form: a node is passed with the product of the shares on its way, and what happens below it is a mean
over its children.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from array_api_compat import array_namespace

from draftproof.draft import Draft
from draftproof.law import Array, at, capped_ratio, divide, one_hot, positive, residual, row
from draftproof.verify._merge import Contexts, contexts

# (p [V], q [V], the tokens of two or more siblings in draw order) -> (probability that each is the pick, law [V] of the
# pick); for one context of one draft.
Chooser = Callable[[Array, Array, list[int]], tuple[list[Any], Array]]


class Picks(NamedTuple):
    """The picks at all contexts of a draft."""

    home: Array  # [B, N] context in which each node was guessed
    laws: list[Array]  # N of [B, V]: law of the pick among the guesses after a node; q where there is one guess
    share: Array  # [B, N] probability that the node is the pick of its context
    weight: Array  # [B, N] block verification's w along the path to the node; 0 where an earlier node has that path


class Selected(NamedTuple):
    """The two functions of a verifier built from a way of picking."""

    stop: Callable[[Draft], Array]
    next: Callable[[Draft, Array], Array]


def selected(choose: Chooser, merge: Callable[[Draft], Contexts] = contexts) -> Selected:
    """Pick a guess at every context of a tree, then block-verify the path. `merge` says which nodes are one context."""

    def stop(draft: Draft) -> Array:
        """[B, N]: passed by the picked path, refused below, taken with h as in block verification."""
        xp = array_namespace(draft.tokens)
        home, laws, share, w = picks(draft, merge(draft), choose)
        excess = [xp.sum(positive(w[:, n, None] * draft.p[:, n] - law), axis=-1) for n, law in enumerate(laws)]
        z = xp.stack(excess, axis=1)
        h = divide(z, z + (1 - w), otherwise=1)
        fails = share * 0 + 1  # probability that the scan takes nothing below a node that the picked path passes
        for node in reversed(range(1, len(laws))):
            taken = share[:, node] * (1 - (1 - h[:, node]) * fails[:, node])
            fails = positive(fails - one_hot(home[:, node], like=share) * taken[:, None])
        passed = [share[:, 0] * 0 + 1]
        for node in range(1, len(laws)):
            passed.append(share[:, node] * row(xp.stack(passed, axis=1), home[:, node]))
        return xp.stack(passed, axis=1) * fails * h

    def next(draft: Draft, node: Array) -> Array:
        """[B, V]: proportional to (w p - a)+."""
        picked = picks(draft, merge(draft), choose)
        law = [picked.laws[n][b] for b, n in enumerate(node.tolist())]
        weighted = row(picked.weight, node)[:, None] * row(draft.p, node)
        return residual(weighted, array_namespace(node).stack(law, axis=0))

    return Selected(stop, next)


def picks(draft: Draft, merged: Contexts, choose: Chooser) -> Picks:
    """The pick of every context, and the weights that follow from the picks' laws."""
    xp = array_namespace(draft.tokens)
    tree = draft.tree
    share, laws = _shares(draft, merged.home, choose)
    weight = one_hot(merged.first[:, 0], like=share)
    for node in range(1, tree.size):
        parent, x = tree.parent[node], draft.tokens[:, node]
        w = capped_ratio(row(weight, merged.home[:, node]) * at(draft.p[:, parent], x), at(laws[parent], x))
        w = xp.where((x >= 0) & (merged.first[:, node] == node), w, w * 0)
        weight = weight + one_hot(x * 0 + node, like=share) * w[:, None]
    return Picks(merged.home, laws, share, weight)


def _shares(draft: Draft, home: Array, choose: Chooser) -> tuple[Array, list[Array]]:
    """Shares and laws of the picks. There is a choice only where a context has two guesses; a lone one is the pick."""
    xp = array_namespace(draft.tokens)
    tree = draft.tree
    share = draft.p[:, :, 0] * 0
    planned: dict[int, dict[int, Array]] = {}  # node -> draft -> law
    for b, (homes, tokens) in enumerate(zip(home.tolist(), draft.tokens.tolist(), strict=True)):
        drawn = [node for node in range(1, tree.size) if tokens[node] >= 0]
        for context in {homes[node] for node in drawn}:
            nodes = [node for node in drawn if homes[node] == context]
            parents = {tree.parent[node] for node in nodes}
            p, q = draft.p[b, min(parents)], draft.q[b, min(parents)]
            if len(nodes) == 1:
                share[b, nodes[0]], law, news = 1, q, {context} - parents
            else:
                chances, law = choose(p, q, [tokens[node] for node in nodes])
                for node, chance in zip(nodes, chances, strict=True):
                    share[b, node] = chance
                news = {context} | parents
            for node in news:
                planned.setdefault(node, {})[b] = law
    laws = [draft.q[:, node] for node in range(tree.size)]
    for node, rows in planned.items():
        laws[node] = xp.stack([rows.get(b, laws[node][b]) for b in range(share.shape[0])], axis=0)
    return share, laws
