"""The drafter's half of a step: draft tokens, level by level, and the laws they were drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from draftproof.draft import Tree
from draftproof.draws import Draw
from draftproof.engine.eager.rows import Row, as_numpy, beside, laws, noise, numbers, unless_silent
from draftproof.errors import DraftproofError, first_line
from draftproof.law import Array, normalise
from draftproof.models.base import OpenSession, PointDrafter, ReducedVocabulary
from draftproof.native import step as native
from draftproof.noise import Lane


class Guesser(NamedTuple):
    """How draft tokens are drawn from laws."""

    pick: Callable[[Array, list[int], int], Array]  # law [B, V] after a node, its children, its depth -> tokens [B, K]
    by_name: bool  # whether it depends on token ids; else a law over a reduced vocabulary will do
    uniforms: np.ndarray | None = None  # [B, N] if an only child is drawn by `law.sample` with the node's own uniform


def by_draw(rows: Sequence[Row], tree: Tree, draw: Draw) -> Guesser:
    """Draw with the first member's own uniforms, one for each node."""
    u = noise([(row.members[0], row.step) for row in rows], Lane.DRAFT, tree.size)
    plain = draw.name != "fixed"  # all others draw an only child in the same way

    def pick(q: Array, children: list[int], depth: int) -> Array:
        mine = beside(u[:, children], q)
        if len(children) == 1 and plain and isinstance(q, np.ndarray):
            tokens = native.draws(np.ascontiguousarray(q), mine)
            if tokens is not None:
                return tokens[:, None]
        return draw.sample(q, mine)

    return Guesser(pick, by_name=False, uniforms=u if plain else None)


class Proposal(NamedTuple):
    """Draft tokens and the laws they were drawn from."""

    tree: Tree  # as far down as anything was drawn
    tokens: np.ndarray  # [B, N]
    laws: list[Array]  # [B, N, V] of each drafter; sibling k is from drafter k modulo their number
    draft_tokens: list[np.ndarray | None]  # [D] ids of a drafter's laws [B, N, D], where the vocabulary is reduced
    failure: str | None  # why drafting stopped early, if it did
    is_certain: bool = False  # draft tokens are point masses: no law is written out

    def wide(self, drafters: Sequence[OpenSession]) -> list[Array]:
        """The laws of the drafters over the whole vocabulary, [B, N, V]; none if the first call failed."""
        parts = zip(drafters, self.laws, self.draft_tokens, strict=False)
        return [q if some is None else _reduced(drafter).widen(q) for drafter, q, some in parts]

    def own_laws(self, laws: Sequence[Array]) -> Array:
        """The law [B, N, V] that each node itself was drawn from, where siblings come from several drafters."""
        xp, tree = array_namespace(laws[0]), self.tree
        rank = [tree.children(parent).index(node) if node else 0 for node, parent in enumerate(tree.parent)]
        parents = [max(parent, 0) for parent in tree.parent]
        return xp.stack([laws[rank[n] % len(laws)][:, parents[n]] for n in range(tree.size)], axis=1)


def propose(rows: Sequence[Row], drafters: Sequence[OpenSession], tree: Tree, guess: Guesser, size: int) -> Proposal:
    """Draft level by level, until no row has a guess; `size` is that of the vocabulary.

    When a drafter fails, what was drawn before stays in the draft and nothing more is drawn. Discarding drawn tokens
    would bias the text, because whether a drafter fails may depend on what was drawn.
    """
    some = [None if guess.by_name else _draft_tokens(drafter, rows) for drafter in drafters]
    at_once = _chain(rows, drafters, tree, guess, some)
    if at_once is not None:
        return at_once
    tokens = _roots(rows, tree)
    levels: list[list[Array]] = []
    failure = None
    for depth, level in enumerate(tree.levels[:-1] if drafters else ()):
        if not (tokens[:, level.start : level.stop] >= 0).any():
            break
        try:
            level_laws = [
                _draft_laws(rows, drafter, tree, tokens, level, ids, size)
                for drafter, ids in zip(drafters, some, strict=True)
            ]
        except Exception as error:  # whatever a drafter raises, the text goes on
            failure = first_line(error)
            break
        for i, parent in enumerate(level):
            children = list(tree.children(parent))
            for k, q in enumerate(level_laws):
                mine = children[k :: len(level_laws)]
                if mine:
                    drawn = np.asarray(numbers(guess.pick(q[:, i], mine, depth)))
                    ids = some[k]
                    tokens[:, mine] = drawn if ids is None else np.where(drawn < 0, -1, ids[drawn])
                else:
                    q[:, i] = 0
        levels.append(level_laws)
    depths = (depth for depth, guesses in zip(tree.depth, tokens.T, strict=True) if (guesses >= 0).any())
    tree = tree.cut(max(depths))
    laws = [_stack(own_levels, tree) for own_levels in zip(*levels, strict=True)]  # none if the first call failed
    return Proposal(tree, tokens[:, : tree.size], laws, some, failure)


def _chain(
    rows: Sequence[Row], drafters: Sequence[OpenSession], tree: Tree, guess: Guesser, some: Sequence[np.ndarray | None]
) -> Proposal | None:
    """The same for one text and a drafter that drafts a whole chain in one call; None where that is not possible."""
    length, ids = min(tree.size - 1, rows[0].depth), some[0] if len(some) == 1 else None
    if len(rows) > 1 or ids is None or not tree.is_chain or length < 1:
        return None
    drafter, sampling = drafters[0].chain, rows[0].draft_sampling
    if drafter is None or guess.uniforms is None or not sampling.is_whole or callable(sampling.temperature):
        return None
    try:
        drafted = drafter.chain(sampling.temperature, guess.uniforms[0, 1 : length + 1])
    except Exception as error:  # nothing was drawn yet: the draws are one call of C, which never raises
        return Proposal(tree.cut(0), _roots(rows, tree)[:, :1], [], list(some), first_line(error))
    if drafted is None:
        return None
    places, laws = drafted
    tokens = np.concatenate([[rows[0].last], ids[places]])
    return Proposal(tree.cut(length), tokens[None], [laws[None]], list(some), None)


def point_proposal(rows: Sequence[Row], drafters: Sequence[OpenSession], tree: Tree, size: int) -> Proposal:
    """The same for a chain of point-mass guesses: no law is written out."""
    tokens = _roots(rows, tree)
    room = np.array([row.depth for row in rows])
    depth, failure = 0, None
    while depth < tree.size - 1:
        try:
            drafted = _points(drafters[0]).guess(tree, tokens, range(depth, depth + 1))
            _check_shape(drafted, (len(rows), 1))
            if (drafted >= size).any():
                raise DraftproofError(f"the drafter guessed token {drafted.max()} of a vocabulary of {size}")
        except Exception as error:
            failure = first_line(error)
            break
        drafted = np.where((tokens[:, depth] >= 0) & (depth < room), drafted[:, 0], -1)
        if not (drafted >= 0).any():
            break
        depth += 1
        tokens[:, depth] = drafted
    return Proposal(tree.cut(depth), tokens[:, : depth + 1], [], [], failure, is_certain=True)


def _roots(rows: Sequence[Row], tree: Tree) -> np.ndarray:
    """Tokens [B, N] of an empty draft: node 0, then -1."""
    tokens = np.full((len(rows), tree.size), -1, dtype=np.int64)
    tokens[:, 0] = [row.last for row in rows]
    return tokens


def _draft_tokens(drafter: OpenSession, rows: Sequence[Row]) -> np.ndarray | None:
    """The ids [D] of the drafter's reduced vocabulary, ascending, if laws over it are enough; else None."""
    if drafter.reduced is None or any(row.draft_sampling.names_tokens for row in rows):
        return None
    return np.asarray(drafter.reduced.draft_tokens)


def _reduced(drafter: OpenSession) -> ReducedVocabulary:
    assert drafter.reduced is not None  # else its laws cover all tokens
    return drafter.reduced


def _points(drafter: OpenSession) -> PointDrafter:
    assert drafter.point is not None  # else its laws are used
    return drafter.point


def _draft_laws(
    rows: Sequence[Row],
    drafter: OpenSession,
    tree: Tree,
    tokens: np.ndarray,
    level: range,
    ids: np.ndarray | None,
    size: int,
) -> Array:
    """Laws of the drafter after each node of a level, checked; zero where nothing is to be drawn.

    ids       the tokens of a reduced vocabulary, or None for all `size` tokens
    """
    samplings = [row.draft_sampling for row in rows]
    if ids is None:
        answer = drafter.session.extend(tree, tokens, level)
    elif len(ids) and not 0 <= ids[0] <= ids[-1] < size:
        raise DraftproofError(f"the drafter names token {ids[-1]} of a vocabulary of {size}")
    else:
        answer = _reduced(drafter).extend_reduced(tree, tokens, level)
    _check_shape(answer, (len(rows), len(level), size if ids is None else len(ids)))
    answer = as_numpy(answer, samplings)
    if drafter.session.speaks == "logits":  # converted here, so it is a valid law
        q = unless_silent(answer, lambda scores: laws(scores, rows, tree, tokens, level, samplings))
    else:
        q = _checked_law(answer)
    depth, room = tree.depth[level.start], np.array([[row.depth] for row in rows])
    wanted = (tokens[:, level.start : level.stop] >= 0) & (depth < room)  # nothing is drawn below an undrawn token
    return q if wanted.all() else array_namespace(q).where(beside(wanted[..., None], q), q, q * 0)


def _checked_law(q: Array) -> Array:
    """Check a drafter's law and normalise it in at least float32: half-precision rounding would bias the text."""
    xp = array_namespace(q)
    q = q if q.dtype == xp.float64 else xp.astype(q, xp.float32, copy=False)
    total = xp.sum(q, axis=-1)
    if not bool(xp.all((abs(total - 1) < 1e-3) | (total == 0))) or not bool(xp.all(q >= 0)):
        raise DraftproofError("the drafter's law does not sum to one")
    return normalise(q)


def _check_shape(answer: Any, shape: tuple[int, ...]) -> None:
    """Raise if a drafter's answer has a wrong shape: its rows would be used for other nodes or tokens."""
    if tuple(answer.shape) != shape:
        raise DraftproofError(f"the drafter's answer has shape {tuple(answer.shape)}, not {shape}")


def _stack(levels: Sequence[Array], tree: Tree) -> Array:
    """Stack the laws of the inner levels to [B, N, V], with zero rows for the leaves."""
    xp = array_namespace(levels[0])
    missing = tree.size - sum(level.shape[1] for level in levels)
    return xp.concat([*levels, *[levels[0][:, :1] * 0] * missing], axis=1)[:, : tree.size]
