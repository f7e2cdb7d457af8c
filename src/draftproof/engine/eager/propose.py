"""The drafter's half of a step: draft tokens, level by level, and the laws they were drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from draftproof.draft import Tree
from draftproof.draws import Draw
from draftproof.engine.eager import follow
from draftproof.engine.eager.columns import Columns
from draftproof.engine.eager.constraints import Constraints
from draftproof.engine.eager.goals import Goals, roomy
from draftproof.engine.eager.rows import (
    Masks,
    Row,
    as_numpy,
    beside,
    dense,
    is_plain,
    laws,
    noise,
    numbers,
    unless_silent,
)
from draftproof.errors import DraftproofError, first_line
from draftproof.law import Array, normalise
from draftproof.models.base import OpenSession, PointDrafter, ReducedVocabulary
from draftproof.native import step as native
from draftproof.noise import Lane
from draftproof.sampling import Sampling


class Guesser(NamedTuple):
    """How draft tokens are drawn from laws."""

    pick: Callable[[Array, list[int], int], Array]  # law [B, V] after a node, its children, its depth -> tokens [B, K]
    by_name: bool  # whether it depends on token ids; else a law over a reduced vocabulary will do
    uniforms: np.ndarray | None = None  # [B, N] if an only child is drawn by `law.sample` with the node's own uniform


def by_draw(rows: Sequence[Row], tree: Tree, draw: Draw) -> Guesser:
    """Draw with the first member's own uniforms, one for each node."""
    names = [(row.members[0], row.step) for row in rows]
    u = noise(names, Lane.DRAFT, roomy(rows, tree).size)
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
    constraints: Constraints  # where each node is in the grammar of its row
    is_certain: bool = False  # draft tokens are point masses: no law is written out
    is_drawn: bool = True  # an only child is drawn from its law; else it is the law's most probable token

    def wide(self, drafters: Sequence[OpenSession]) -> list[Array]:
        """The laws of the drafters over the whole vocabulary, [B, N, V]; none if the first call failed."""
        parts = zip(drafters, self.laws, self.draft_tokens, strict=False)
        return [q if ids is None else _widened(_reduced(drafter), q, ids) for drafter, q, ids in parts]

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

    Where the grammar of a row makes sure of the next token, that token has all the mass and no drafter is asked.
    """
    some = [None if guess.by_name else _draft_tokens(drafter, rows) for drafter in drafters]
    at_once = _chain(rows, drafters, tree, guess, some) or _followed(rows, drafters, tree, guess, some)
    if at_once is not None:
        return at_once
    constraints, goals = Constraints.of(rows), Goals(rows, tree)
    tree = roomy(rows, tree)
    tokens, columns = _roots(rows, tree), [Columns(ids, size) for ids in some]
    levels, drafted = tree.levels, list[list[Array]]()
    failure, read = None, 0  # how many nodes the drafters have read
    for depth, level in enumerate(levels[:-1] if drafters else ()):
        drawn = tokens[:, level.start : level.stop] >= 0  # nothing is drawn below an undrawn token
        sure = constraints.expected(len(rows), level)
        wanted = goals.wanted(depth, drawn & constraints.goes_on(len(rows), level), sure >= 0)
        if not wanted.any():
            break
        if not (wanted & (sure < 0)).any():
            level_laws = [np.zeros((len(rows), len(level), own.size), dtype=np.float32) for own in columns]
        else:
            try:
                level_laws = [
                    _draft_laws(rows, drafter, tree, tokens, range(read, level.stop), own, constraints)
                    for drafter, own in zip(drafters, columns, strict=True)
                ]
            except Exception as error:  # whatever a drafter raises, the text goes on
                failure = first_line(error)
                break
            level_laws, read = [q[:, -len(level) :] for q in level_laws], level.stop
        for k, own in enumerate(columns):
            level_laws[k] = own.certain(_only(wanted, level_laws[k]), np.where(wanted, sure, -1))
        below = [[child for child in levels[depth + 1] if tree.parent[child] == parent] for parent in level]
        for i, children in enumerate(below):
            for k, q in enumerate(level_laws):
                mine = children[k :: len(level_laws)]
                if mine:
                    places = np.asarray(numbers(guess.pick(q[:, i], mine, depth)))
                    tokens[:, mine] = columns[k].tokens(places)
                    if goals.watches:
                        guessed = np.nonzero((wanted & (sure < 0))[:, 0] & (places[:, 0] >= 0))[0]
                        found = [numbers(q[b, i, places[b, 0]]) for b in guessed]
                        goals.drew(guessed, np.array(found, dtype=np.float64))
                else:
                    q[:, i] = 0
        drafted.append(level_laws)
        constraints.advance(tree, tokens, levels[depth + 1])
    depths = (depth for depth, guesses in zip(tree.depth, tokens.T, strict=True) if (guesses >= 0).any())
    tree = tree.cut(max(depths))
    laws, ids = [], some
    if drafted:  # else the first call failed
        by_drafter = zip(columns, zip(*drafted, strict=True), strict=True)
        laws, ids = map(
            list, zip(*(own.ascending(_stack(own.filled_up(qs), tree)) for own, qs in by_drafter), strict=True)
        )
    is_drawn = guess.by_name or guess.uniforms is not None
    return Proposal(tree, tokens[:, : tree.size], laws, ids, failure, constraints, is_drawn=is_drawn)


def _chain(
    rows: Sequence[Row], drafters: Sequence[OpenSession], tree: Tree, guess: Guesser, some: Sequence[np.ndarray | None]
) -> Proposal | None:
    """The same for one text and a drafter that drafts a whole chain in one call; None where that is not possible."""
    length, ids = min(tree.size - 1, rows[0].depth), some[0] if len(some) == 1 else None
    if len(rows) > 1 or ids is None or not tree.is_chain or length < 1 or rows[0].state is not None:
        return None
    drafter, sampling = drafters[0].chain, rows[0].draft_sampling
    if drafter is None or guess.uniforms is None or not sampling.is_whole or callable(sampling.temperature):
        return None
    try:
        drafted = drafter.chain(sampling.temperature, guess.uniforms[0, 1 : length + 1], rows[0].least)
    except Exception as error:  # nothing was drawn yet: the draws are one call of C, which never raises
        return Proposal(tree.cut(0), _roots(rows, tree)[:, :1], [], list(some), first_line(error), Constraints.of(rows))
    if drafted is None:
        return None
    places, laws = drafted
    tokens = np.concatenate([[rows[0].last], ids[places]])
    return Proposal(tree.cut(len(places)), tokens[None], [laws[None]], list(some), None, Constraints.of(rows))


def _followed(
    rows: Sequence[Row], drafters: Sequence[OpenSession], tree: Tree, guess: Guesser, some: Sequence[np.ndarray | None]
) -> Proposal | None:
    """The same for one text under a grammar, by a drafter that follows its chain."""
    path = drafters[0].path if len(drafters) == 1 and some[0] is not None else None
    if path is None or guess.uniforms is None or not follow.fits(rows, tree):
        return None
    room = min(rows[0].room, roomy(rows, tree).size - 1)
    made = follow.follow(rows[0], path, min(rows[0].depth, tree.size - 1), room, guess.uniforms[0])
    if made is None:
        return None
    laws, ids = made.dense(Columns(some[0], 0))
    tokens = np.array([[rows[0].last, *made.tokens]])
    return Proposal(Tree.chain(len(made.tokens)), tokens, [laws], [ids], made.failure, made.constraints)


def point_proposal(rows: Sequence[Row], drafters: Sequence[OpenSession], tree: Tree, size: int) -> Proposal:
    """The same for a chain of point-mass guesses: no law is written out."""
    constraints, goals = Constraints.of(rows), Goals(rows, tree)
    tree = roomy(rows, tree) if drafters else tree
    tokens = _roots(rows, tree)
    depth, failure, read = 0, None, 0
    while depth < tree.size - 1:
        here = range(depth, depth + 1)
        sure = constraints.expected(len(rows), here)
        possible = (tokens[:, depth:][:, :1] >= 0) & constraints.goes_on(len(rows), here)
        wanted = goals.wanted(depth, possible, sure >= 0)
        drafted = sure
        if (wanted & (sure < 0)).any():
            try:
                answer = _points(drafters[0]).guess(tree, tokens, range(read, depth + 1))
                _check_shape(answer, (len(rows), depth + 1 - read))
                if (answer >= size).any():
                    raise DraftproofError(f"the drafter guessed token {answer.max()} of a vocabulary of {size}")
            except Exception as error:
                failure = first_line(error)
                break
            drafted, read = np.where(sure < 0, constraints.allows(here, answer[:, -1:]), sure), depth + 1
        drafted = np.where(wanted, drafted, -1)
        if not (drafted >= 0).any():
            break
        depth += 1
        tokens[:, depth] = drafted[:, 0]
        constraints.advance(tree, tokens, range(depth, depth + 1))
    tree, tokens = tree.cut(depth), tokens[:, : depth + 1]
    return Proposal(tree, tokens, [], [], failure, constraints, is_certain=True)


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


def _widened(drafter: ReducedVocabulary, q: Array, ids: np.ndarray) -> Array:
    """Laws over the tokens `ids`, the drafter's own and perhaps others, as laws over all tokens."""
    own = np.isin(ids, drafter.draft_tokens)
    if own.all():
        return drafter.widen(q)
    whole = drafter.widen(q[..., np.nonzero(own)[0].tolist()])
    others = np.nonzero(~own)[0].tolist()
    whole[..., ids[others].tolist()] = beside(q[..., others], whole)
    return whole


def _points(drafter: OpenSession) -> PointDrafter:
    assert drafter.point is not None  # else its laws are used
    return drafter.point


def _draft_laws(
    rows: Sequence[Row],
    drafter: OpenSession,
    tree: Tree,
    tokens: np.ndarray,
    nodes: range,
    columns: Columns,
    constraints: Constraints,
) -> Array:
    """Laws of the drafter after each of these nodes, checked."""
    samplings, ids = [row.draft_sampling for row in rows], columns.own
    if ids is None:
        answer = drafter.session.extend(tree, tokens, nodes)
    elif len(ids) and not 0 <= ids[0] <= ids[-1] < columns.vocabulary:
        raise DraftproofError(f"the drafter names token {ids[-1]} of a vocabulary of {columns.vocabulary}")
    else:
        answer = _reduced(drafter).extend_reduced(tree, tokens, nodes)
    _check_shape(answer, (len(rows), len(nodes), columns.vocabulary if ids is None else len(ids)))
    masks = constraints.masks(nodes, ids)
    answer = as_numpy(answer, samplings, masks)
    if drafter.session.speaks == "law":
        return _checked_law(answer, masks)
    at_once = _masked_softmax(answer, samplings, masks) if masks else None
    if at_once is not None:
        return at_once
    return unless_silent(
        answer, lambda scores, *open_: laws(scores, rows, tree, tokens, nodes, samplings, *open_), masks
    )


def _masked_softmax(scores: Array, samplings: Sequence[Sampling], masks: Masks) -> np.ndarray | None:
    """The laws of a drafter's scores in C, where they are a plain softmax of what is allowed, and something is."""
    first = samplings[0]
    plain = is_plain(first) and all(is_plain(other) and other.temperature == first.temperature for other in samplings)
    if not plain or not isinstance(scores, np.ndarray):
        return None
    allowed = [mask for b in range(len(samplings)) for mask in masks.get(b, [None] * scores.shape[1])]
    return native.whole_laws(scores, float(first.temperature), allowed)  # type: ignore[arg-type]


def _only(wanted: np.ndarray, q: Array) -> Array:
    """The laws [B, n, V] where they are wanted [B, n], and zero elsewhere."""
    return q if wanted.all() else array_namespace(q).where(beside(wanted[..., None], q), q, q * 0)


def _checked_law(q: Array, masks: Masks) -> Array:
    """Check a drafter's law and normalise it in at least float32: half-precision rounding would bias the text."""
    xp = array_namespace(q)
    q = q if q.dtype == xp.float64 else xp.astype(q, xp.float32, copy=False)
    total = xp.sum(q, axis=-1)
    if not bool(xp.all((abs(total - 1) < 1e-3) | (total == 0))) or not bool(xp.all(q >= 0)):
        raise DraftproofError("the drafter's law does not sum to one")
    return normalise(xp.where(beside(dense(masks, q.shape), q), q, q * 0) if masks else q)


def _check_shape(answer: Any, shape: tuple[int, ...]) -> None:
    """Raise if a drafter's answer has a wrong shape: its rows would be used for other nodes or tokens."""
    if tuple(answer.shape) != shape:
        raise DraftproofError(f"the drafter's answer has shape {tuple(answer.shape)}, not {shape}")


def _stack(levels: Sequence[Array], tree: Tree) -> Array:
    """Stack the laws of the inner levels to [B, N, V], with zero rows for the leaves."""
    like = next((level for level in levels if not isinstance(level, np.ndarray)), levels[0])  # a drafter's own array
    xp = array_namespace(like)
    levels = [beside(level, like) for level in levels]
    missing = tree.size - sum(level.shape[1] for level in levels)
    return xp.concat([*levels, *[levels[0][:, :1] * 0] * missing], axis=1)[:, : tree.size]
