"""Extend a one-step rule to any tree: apply it at the root, then at the child it accepts, and so on.

A rule says how the guesses after one node are judged. It may depend on how they were drawn, because what was drawn
below them has not been looked at yet when it is applied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from array_api_compat import array_namespace

from draftproof.draft import Draft
from draftproof.errors import DraftproofError
from draftproof.law import Array, at, capped_ratio, normalise, one_hot, positive, residual, row
from draftproof.verify._merge import Contexts, Guesses, contexts, guesses

# (p [B, V], the law [B, V] of each of K siblings, their tokens [B, K]) -> (accept [B, K], left [B, V]): the law of the
# accepted sibling, and that of the token if none is. A token -1 was not drawn; if a row drew none, left is p.
NodeRule = Callable[[Array, list[Array], Array], tuple[Array, Array]]


class TopDown(NamedTuple):
    """The two functions of a verifier built from a one-step rule."""

    stop: Callable[[Draft], Array]
    next: Callable[[Draft, Array], Array]


def top_down(rule: NodeRule, several_laws: bool = False, merge: Callable[[Draft], Contexts] = contexts) -> TopDown:
    """The rule at every context of a tree, from the root down.

    `several_laws` says that the rule allows siblings from different laws; without it such a draft is refused. `merge`
    says which nodes are one context: those with equal paths, whose children are then siblings, unless the rule needs to
    know which of them were drawn together.
    """

    def judged(draft: Draft, after: Guesses) -> tuple[Array, Array]:
        laws = [row(draft.q, after.rows)] * after.tokens.shape[1]
        if draft.own is not None:
            laws = [row(draft.own, after.nodes[:, k]) for k in range(after.tokens.shape[1])]
        return rule(row(draft.p, after.rows), laws, after.tokens)

    def stop(draft: Draft) -> Array:
        """[B, N]: a guess is reached when its context is and the rule accepts it; what no guess takes stops there."""
        _check(draft, several_laws)
        xp = array_namespace(draft.tokens)
        merged = merge(draft)
        law = one_hot(merged.first[:, 0], like=draft.p[:, :, 0])
        for node in range(draft.tree.size):
            here = draft.tokens[:, 0] * 0 + node
            after = guesses(draft, merged, here)
            if not after.tokens.shape[1]:
                continue
            accept = with_hits(after.tokens, *judged(draft, after))
            share = one_hot(here, like=law) * positive(1 - xp.sum(accept, axis=1))[:, None]
            for k in range(accept.shape[1]):
                share = share + one_hot(row(merged.first, after.nodes[:, k]), like=law) * accept[:, k : k + 1]
            law = law * (1 - one_hot(here, like=law)) + law[:, node : node + 1] * share
        return law

    def next(draft: Draft, node: Array) -> Array:
        """[B, V]: the rule's law for the case that no guess is emitted; p after a node without guesses."""
        _check(draft, several_laws)
        xp = array_namespace(draft.tokens)
        merged = merge(draft)
        after = guesses(draft, merged, row(merged.first, node))
        p = row(draft.p, after.rows)
        if not after.tokens.shape[1]:
            return p
        _, left = judged(draft, after)
        for k in range(after.tokens.shape[1]):
            left = left * (1 - one_hot(after.tokens[:, k], like=left))
        return normalise(xp.where(xp.sum(left, axis=-1, keepdims=True) > 0, left, p))

    return TopDown(stop, next)


def with_hits(tokens: Array, accept: Array, left: Array) -> Array:
    """[B, K]: a token left over that happens to have been guessed is a guess accepted too; of equals the first.

    Going on below it is right because nothing drawn there was used yet.
    """
    xp = array_namespace(tokens)
    none = positive(1 - xp.sum(accept, axis=1))
    taken = []
    for k in range(tokens.shape[1]):
        fresh = tokens[:, k] >= 0
        for elder in range(k):
            fresh = fresh & (tokens[:, elder] != tokens[:, k])
        taken.append(accept[:, k] + xp.where(fresh, none * at(left, tokens[:, k]), none * 0))
    return xp.stack(taken, axis=1)


def judge(p: Array, a: Array, chosen: Array, tokens: Array) -> tuple[Array, Array]:
    """The token rule for one guess picked out of several (Khisti et al., arXiv 2410.18234): `a` takes the place of q.

    chosen [B, K] is the probability that each guess is the pick, a [B, V] the law of the picked token. Keep it with
    min(1, p/a), else emit from (p - a)+.
    """
    xp = array_namespace(tokens)
    accept = []
    for k in range(tokens.shape[1]):
        ratio = capped_ratio(at(p, tokens[:, k]), at(a, tokens[:, k]))
        accept.append(chosen[:, k] * ratio)
    return xp.stack(accept, axis=1), residual(p, a)


def siblings(tokens: Array) -> Array:
    """[B]: how many guesses were drawn. It was fixed before drawing, or else the draft law ran out of tokens."""
    xp = array_namespace(tokens)
    return xp.sum(xp.astype(tokens >= 0, xp.int64), axis=1)


def _check(draft: Draft, several_laws: bool) -> None:
    if draft.own is not None and not several_laws:
        raise DraftproofError("siblings come from several laws, but this rule needs one: use recursive or importance")
