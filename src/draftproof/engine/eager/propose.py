"""The drafter's half of a step: guesses, level by level, and the laws they were drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from draftproof import native
from draftproof.draft import Tree
from draftproof.draws import Draw
from draftproof.engine.eager.rows import Row, beside, laws, light, noise, numbers, unless_silent
from draftproof.errors import DraftproofError
from draftproof.law import Array, normalise
from draftproof.models.base import Session
from draftproof.noise import Lane


class Guesser(NamedTuple):
    """How guesses come from laws."""

    pick: Callable[[Array, list[int], int], Array]  # law [B, V] after a node, its children, its depth -> tokens [B, K]
    by_name: bool  # whether it must know which tokens these are; else a law over some of them, in order, will do
    uniforms: np.ndarray | None = None  # [B, N] if it draws an only child as `law.sample` does, with the child's own


def by_draw(rows: Sequence[Row], tree: Tree, draw: Draw) -> Guesser:
    """Guesses drawn with the first member's own uniforms, one for each node."""
    u = noise([(row.members[0], row.step) for row in rows], Lane.DRAFT, tree.size)
    plain = draw.name != "fixed"  # all others draw an only child alike

    def pick(q: Array, children: list[int], depth: int) -> Array:
        mine = beside(u[:, children], q)
        if len(children) == 1 and plain and isinstance(q, np.ndarray):
            one = native.draws(np.ascontiguousarray(q), mine)
            if one is not None:
                return one[:, None]
        return draw.sample(q, mine)

    return Guesser(pick, by_name=False, uniforms=u if plain else None)


class Proposal(NamedTuple):
    """Guesses and the laws they were drawn from."""

    tree: Tree  # as far down as anything was drawn
    tokens: np.ndarray  # [B, N]
    laws: list[Array]  # [B, N, V] of each drafter; sibling k was drawn from drafter k, counted round and round
    names: list[np.ndarray | None]  # tokens [D] that a drafter's laws are about, [B, N, D] then, where not all
    failure: str | None  # why drafting broke off, if it did

    def wide(self, drafters: Sequence[Any]) -> list[Array]:
        """The laws of the drafters as laws of all tokens, [B, N, V]; none if the first call failed."""
        made = zip(drafters, self.laws, self.names, strict=False)
        return [q if names is None else drafter.widen(q) for drafter, q, names in made]


def propose(rows: Sequence[Row], drafters: Sequence[Session], tree: Tree, guess: Guesser, size: int) -> Proposal:
    """Guess level by level, as far as there is something to guess; `size` is the vocabulary's.

    When a drafter fails, what was drawn before stays in the draft and nothing more is drawn. Throwing drawn guesses
    away would bias the text, because whether a drafter fails may depend on what was drawn.
    """
    tokens = _roots(rows, tree)
    levels: list[list[Array]] = []
    failure = None
    some = [None if guess.by_name else _names(drafter, rows) for drafter in drafters]
    made = _chain(rows, drafters, tree, guess, some)
    if made is not None:
        return made
    for depth, level in enumerate(tree.levels[:-1] if drafters else ()):
        if not (tokens[:, level.start : level.stop] >= 0).any():
            break
        try:
            said = [
                _draft_laws(rows, drafter, tree, tokens, level, names, size)
                for drafter, names in zip(drafters, some, strict=True)
            ]
        except Exception as error:  # a drafter is a guest: whatever it raises, the text goes on
            failure = reason(error)
            break
        for i, parent in enumerate(level):
            children = list(tree.children(parent))
            for k, q in enumerate(said):
                mine = children[k :: len(said)]
                if mine:
                    drawn = np.asarray(numbers(guess.pick(q[:, i], mine, depth)))
                    names = some[k]
                    tokens[:, mine] = drawn if names is None else np.where(drawn < 0, -1, names[drawn])
                else:
                    q[:, i] = 0
        levels.append(said)
    depths = (depth for depth, guesses in zip(tree.depth, tokens.T, strict=True) if (guesses >= 0).any())
    tree = tree.cut(max(depths))
    laws = [_stack(one, tree) for one in zip(*levels, strict=True)]  # none if the first call failed
    return Proposal(tree, tokens[:, : tree.size], laws, some, failure)


def _chain(
    rows: Sequence[Row], drafters: Sequence[Any], tree: Tree, guess: Guesser, some: Sequence[np.ndarray | None]
) -> Proposal | None:
    """The same for one text and a drafter that draws a whole chain itself, in one go; None where it is not so."""
    length, names = min(tree.size - 1, rows[0].depth), some[0] if len(some) == 1 else None
    alone = len(rows) == 1 and names is not None and hasattr(drafters[0], "chain") and tree.is_chain
    sampling = rows[0].draft_sampling
    if not alone or guess.uniforms is None or not sampling.is_whole or length < 1:
        return None
    try:
        made = drafters[0].chain(sampling.temperature, guess.uniforms[0, 1 : length + 1])
    except Exception as error:  # before anything was drawn: the draws are one call of C, which raises nothing
        return Proposal(tree.cut(0), _roots(rows, tree)[:, :1], [], list(some), reason(error))
    if made is None or names is None:
        return None
    tokens = np.concatenate([[rows[0].last], names[made[0]]])
    return Proposal(tree.cut(length), tokens[None], [made[1][None]], list(some), None)


def certain(drafters: Sequence[Session], tree: Tree) -> bool:
    """Whether there is nothing to draw: no guess at all, or a chain of a drafter that names one token and no other."""
    return tree.size == 1 or (tree.is_chain and len(drafters) == 1 and hasattr(drafters[0], "guess"))


def follow(rows: Sequence[Row], drafters: Sequence[Any], tree: Tree, size: int) -> Proposal:
    """The same for guesses that are certain: no law is written out."""
    tokens = _roots(rows, tree)
    room = np.array([row.depth for row in rows])
    depth, failure = 0, None
    while depth < tree.size - 1:
        try:
            said = drafters[0].guess(tree, tokens, range(depth, depth + 1))
            _check_shape(said, (len(rows), 1))
            if (said >= size).any():
                raise DraftproofError(f"the drafter guessed token {said.max()} of a vocabulary of {size}")
        except Exception as error:
            failure = reason(error)
            break
        said = np.where((tokens[:, depth] >= 0) & (depth < room), said[:, 0], -1)
        if not (said >= 0).any():
            break
        depth += 1
        tokens[:, depth] = said
    return Proposal(tree.cut(depth), tokens[:, : depth + 1], [], [], failure)


def _roots(rows: Sequence[Row], tree: Tree) -> np.ndarray:
    """[B, N]: node 0 known, nothing guessed."""
    tokens = np.full((len(rows), tree.size), -1, dtype=np.int64)
    tokens[:, 0] = [row.last for row in rows]
    return tokens


def reason(error: Exception) -> str:
    """Why a drafter failed, in a line."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def own_laws(tree: Tree, laws: Sequence[Array]) -> Array:
    """[B, N, V]: the law that each node itself was drawn from, where siblings come from several drafters."""
    xp = array_namespace(laws[0])
    rank = [tree.children(parent).index(node) if node else 0 for node, parent in enumerate(tree.parent)]
    parents = [max(parent, 0) for parent in tree.parent]
    return xp.stack([laws[rank[n] % len(laws)][:, parents[n]] for n in range(tree.size)], axis=1)


def _names(drafter: Any, rows: Sequence[Row]) -> np.ndarray | None:
    """[D] the tokens that the drafter can guess, ascending, where laws over them alone are enough; else None."""
    if not hasattr(drafter, "names") or any(row.draft_sampling.names_tokens for row in rows):
        return None
    return np.asarray(drafter.names)


def _draft_laws(
    rows: Sequence[Row],
    drafter: Any,
    tree: Tree,
    tokens: np.ndarray,
    level: range,
    names: np.ndarray | None,
    size: int,
) -> Array:
    """Laws of the drafter after each node of a level, checked; zero where nothing is to be drawn."""
    samplings = [row.draft_sampling for row in rows]
    if names is not None and len(names) and not 0 <= names[0] <= names[-1] < size:
        raise DraftproofError(f"the drafter names token {names[-1]} of a vocabulary of {size}")
    said = drafter.extend(tree, tokens, level) if names is None else drafter.narrow(tree, tokens, level)
    _check_shape(said, (len(rows), len(level), size if names is None else len(names)))
    q = said = light(said, samplings)
    xp = array_namespace(said)
    if drafter.speaks == "logits":  # made a law here, so it is one
        q = unless_silent(said, lambda scores: laws(scores, rows, tree, tokens, level, samplings))
    else:
        q = q if q.dtype == xp.float64 else xp.astype(q, xp.float32, copy=False)
        total = xp.sum(q, axis=-1)
        if not bool(xp.all((abs(total - 1) < 1e-3) | (total == 0))) or not bool(xp.all(q >= 0)):
            raise DraftproofError("the drafter's law does not sum to one")
        q = normalise(q)  # as it is drawn from: rounding in half precision would be seen in the text
    depth, room = tree.depth[level.start], np.array([[row.depth] for row in rows])
    wanted = (tokens[:, level.start : level.stop] >= 0) & (depth < room)  # below an undrawn guess none is drawn
    return q if wanted.all() else xp.where(beside(wanted[..., None], q), q, q * 0)


def _check_shape(said: Any, shape: tuple[int, ...]) -> None:
    """Rows for other nodes, or of other tokens, than were asked about would be taken for what they are not."""
    if tuple(said.shape) != shape:
        raise DraftproofError(f"the drafter's answer has shape {tuple(said.shape)}, not {shape}")


def _stack(levels: Sequence[Array], tree: Tree) -> Array:
    """[B, N, V] from the rows of the inner levels, zero rows for the rest."""
    xp = array_namespace(levels[0])
    missing = tree.size - sum(level.shape[1] for level in levels)
    return xp.concat([*levels, *[levels[0][:, :1] * 0] * missing], axis=1)[:, : tree.size]
