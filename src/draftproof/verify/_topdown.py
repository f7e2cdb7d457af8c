"""From one node's children to any tree: apply a one-step rule at the root, then at the child it accepts, and so on.

A rule says how the guesses after one node are judged. It may rest on how they were drawn, because what was drawn below
them has not been looked at yet when it is applied.
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
Rule = Callable[[Array, list[Array], Array], tuple[Array, Array]]


class TopDown(NamedTuple):
    """A one-step rule made a verifier."""

    stop: Callable[[Draft], Array]
    next: Callable[[Draft, Array], Array]


def top_down(rule: Rule, several_laws: bool = False, merge: Callable[[Draft], Contexts] = contexts) -> TopDown:
    """The rule at every context of a tree, from the root down.

    `several_laws` says that the rule allows siblings from different laws; without it such a draft is refused. `merge`
    says which nodes are one context: those with equal paths, whose children are then siblings, unless the rule needs to
    know which of them were drawn together.
    """

    def judged(draft: Draft, met: Guesses) -> tuple[Array, Array]:
        laws = [row(draft.q, met.rows)] * met.tokens.shape[1]
        if draft.own is not None:
            laws = [row(draft.own, met.nodes[:, k]) for k in range(met.tokens.shape[1])]
        return rule(row(draft.p, met.rows), laws, met.tokens)

    def stop(draft: Draft) -> Array:
        """[B, N]: a guess is reached when its context is and the rule accepts it; what no guess takes stops there."""
        _check(draft, several_laws)
        xp = array_namespace(draft.tokens)
        found = merge(draft)
        law = one_hot(found.first[:, 0], like=draft.p[:, :, 0])
        for node in range(draft.tree.size):
            here = draft.tokens[:, 0] * 0 + node
            met = guesses(draft, found, here)
            if not met.tokens.shape[1]:
                continue
            accept = with_hits(met.tokens, *judged(draft, met))
            share = one_hot(here, like=law) * positive(1 - xp.sum(accept, axis=1))[:, None]
            for k in range(accept.shape[1]):
                share = share + one_hot(row(found.first, met.nodes[:, k]), like=law) * accept[:, k : k + 1]
            law = law * (1 - one_hot(here, like=law)) + law[:, node : node + 1] * share
        return law

    def next(draft: Draft, node: Array) -> Array:
        """[B, V]: the rule's law for the case that no guess is emitted; p after a node without guesses."""
        _check(draft, several_laws)
        xp = array_namespace(draft.tokens)
        found = merge(draft)
        met = guesses(draft, found, row(found.first, node))
        p = row(draft.p, met.rows)
        if not met.tokens.shape[1]:
            return p
        _, left = judged(draft, met)
        for k in range(met.tokens.shape[1]):
            left = left * (1 - one_hot(met.tokens[:, k], like=left))
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
        raise DraftproofError("siblings come from several laws, this rule needs one: use recursive or importance")
