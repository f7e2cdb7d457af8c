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

# (p [B, V], the law [B, V] of each of K siblings, their tokens [B, K]) -> (accept [B, K], left [B, V]): the law of the
# accepted sibling, and that of the token if none is. A token -1 was not drawn; if a row drew none, left is p.
Rule = Callable[[Array, list[Array], Array], tuple[Array, Array]]


class TopDown(NamedTuple):
    """A one-step rule made a verifier."""

    stop: Callable[[Draft], Array]
    next: Callable[[Draft, Array], Array]


def top_down(rule: Rule, several_laws: bool = False) -> TopDown:
    """The rule at every node of a tree, from the root down.

    `several_laws` says that the rule allows siblings from different laws; without it such a draft is refused.
    """

    def stop(draft: Draft) -> Array:
        """[B, N]: a child is reached when its parent is and the rule accepts it; what no child takes stops there."""
        _check(draft, several_laws)
        xp = array_namespace(draft.tokens)
        law = [draft.p[:, 0, 0] * 0 + 1] * draft.tree.size
        for node in range(draft.tree.size):
            children = draft.tree.children(node)
            if not children:
                continue
            tokens = xp.stack([draft.tokens[:, child] for child in children], axis=1)
            laws = [draft.q[:, node] if draft.own is None else draft.own[:, child] for child in children]
            accept = with_hits(tokens, *rule(draft.p[:, node], laws, tokens))
            for k, child in enumerate(children):
                law[child] = law[node] * accept[:, k]
            law[node] = law[node] * positive(1 - xp.sum(accept, axis=1))
        return xp.stack(law, axis=1)

    def next(draft: Draft, node: Array) -> Array:
        """[B, V]: the rule's law for the case that no guess is emitted; p after a node without guesses."""
        _check(draft, several_laws)
        xp = array_namespace(draft.tokens)
        p, q = row(draft.p, node), row(draft.q, node)
        children = [xp.where(child < 0, child * 0, child) for child in draft.children(node)]
        if not children:
            return p
        tokens = xp.stack(draft.guesses(node), axis=1)
        laws = [q if draft.own is None else row(draft.own, child) for child in children]
        _, left = rule(p, laws, tokens)
        for k in range(tokens.shape[1]):
            left = left * (1 - one_hot(tokens[:, k], like=left))
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
