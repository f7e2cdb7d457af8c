"""The drafter's half of a step: guesses, level by level, and the laws they were drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from draftproof.draft import Tree
from draftproof.draws import Draw
from draftproof.engine.laws import Row, beside, laws, noise, numbers
from draftproof.errors import DraftproofError
from draftproof.law import Array
from draftproof.models.session import Session
from draftproof.noise import Lane

# (law [B, V] after a node, the node's children, its depth) -> their tokens [B, K]
Guesser = Callable[[Array, list[int], int], Array]


def by_draw(rows: Sequence[Row], tree: Tree, draw: Draw) -> Guesser:
    """Guesses drawn with the first member's own uniforms, one for each node."""
    u = noise([(row.members[0], row.step) for row in rows], Lane.DRAFT, tree.size)
    return lambda q, children, depth: draw.sample(q, beside(u[:, children], q))


class Proposal(NamedTuple):
    """Guesses and the laws they were drawn from."""

    tree: Tree  # as far down as anything was drawn
    tokens: np.ndarray  # [B, N]
    laws: list[Array]  # [B, N, V] of each drafter; sibling k was drawn from drafter k, counted round and round
    failure: str | None  # why drafting broke off, if it did


def propose(rows: Sequence[Row], drafters: Sequence[Session], tree: Tree, guess: Guesser) -> Proposal:
    """Guess level by level, as far as there is something to guess.

    When a drafter fails, what was drawn before stays in the draft and nothing more is drawn. Throwing drawn guesses
    away would bias the text, because whether a drafter fails may depend on what was drawn.
    """
    tokens = _roots(rows, tree)
    levels: list[list[Array]] = []
    failure = None
    for depth, level in enumerate(tree.levels[:-1] if drafters else ()):
        if not (tokens[:, level.start : level.stop] >= 0).any():
            break
        try:
            laws = [_draft_laws(rows, drafter, tree, tokens, level) for drafter in drafters]
        except Exception as error:  # a drafter is a guest: whatever it raises, the text goes on
            failure = _reason(error)
            break
        for i, parent in enumerate(level):
            children = list(tree.children(parent))
            for k, q in enumerate(laws):
                mine = children[k :: len(laws)]
                if mine:
                    tokens[:, mine] = numbers(guess(q[:, i], mine, depth))
                else:
                    q[:, i] = 0
        levels.append(laws)
    tree = tree.cut(max(tree.depth[node] for node in range(tree.size) if (tokens[:, node] >= 0).any()))
    return Proposal(tree, tokens[:, : tree.size], [_stack(one, tree) for one in zip(*levels, strict=True)], failure)


def certain(drafters: Sequence[Session], tree: Tree) -> bool:
    """Whether there is nothing to draw: no guess at all, or a chain of a drafter that names one token and no other."""
    return tree.size == 1 or (tree.is_chain and len(drafters) == 1 and hasattr(drafters[0], "guess"))


def follow(rows: Sequence[Row], drafters: Sequence[Any], tree: Tree) -> Proposal:
    """The same for guesses that are certain: no law is written out."""
    tokens = _roots(rows, tree)
    room = np.array([row.depth for row in rows])
    depth, failure = 0, None
    while depth < tree.size - 1:
        try:
            said = drafters[0].guess(tree, tokens, range(depth, depth + 1))[:, 0]
        except Exception as error:
            failure = _reason(error)
            break
        said = np.where((tokens[:, depth] >= 0) & (depth < room), said, -1)
        if not (said >= 0).any():
            break
        depth += 1
        tokens[:, depth] = said
    return Proposal(tree.cut(depth), tokens[:, : depth + 1], [], failure)


def _roots(rows: Sequence[Row], tree: Tree) -> np.ndarray:
    """[B, N]: node 0 known, nothing guessed."""
    tokens = np.full((len(rows), tree.size), -1, dtype=np.int64)
    tokens[:, 0] = [row.last for row in rows]
    return tokens


def _reason(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def own_laws(tree: Tree, laws: Sequence[Array]) -> Array:
    """[B, N, V]: the law that each node itself was drawn from, where siblings come from several drafters."""
    xp = array_namespace(laws[0])
    rank = [tree.children(parent).index(node) if node else 0 for node, parent in enumerate(tree.parent)]
    parents = [max(parent, 0) for parent in tree.parent]
    return xp.stack([laws[rank[n] % len(laws)][:, parents[n]] for n in range(tree.size)], axis=1)


def _draft_laws(rows: Sequence[Row], drafter: Any, tree: Tree, tokens: np.ndarray, level: range) -> Array:
    """Laws of the drafter after each node of a level, checked; zero where nothing is to be drawn."""
    samplings = [row.draft_sampling for row in rows]
    narrow = hasattr(drafter, "narrow") and not any(sampling.names_tokens for sampling in samplings)
    said = drafter.narrow(tree, tokens, level) if narrow else drafter.extend(tree, tokens, level)
    xp = array_namespace(said)
    q = said
    if drafter.speaks == "logits":
        silent = xp.max(said, axis=-1, keepdims=True) == -float("inf")  # nothing to guess here
        quiet = bool(xp.any(silent))
        q = laws(xp.where(silent, 0.0, said) if quiet else said, rows, tree, tokens, level, samplings)
        q = xp.where(silent, q * 0, q) if quiet else q
    total = xp.sum(q, axis=-1)
    sound = (abs(total - 1) < 1e-3) | (total == 0)
    if not bool(xp.all(sound)) or not (drafter.speaks == "logits" or bool(xp.all(q >= 0))):
        raise DraftproofError("the drafter's law does not sum to one")
    drawn = np.stack([(tokens[:, list(tree.path(node))] >= 0).all(axis=1) for node in level], axis=1)
    wanted = drawn & np.array([[tree.depth[node] < row.depth for node in level] for row in rows])
    if not wanted.all():
        q = xp.where(beside(wanted[..., None], q), q, q * 0)
    return drafter.widen(q) if narrow else q


def _stack(levels: Sequence[Array], tree: Tree) -> Array:
    """[B, N, V] from the rows of the inner levels, zero rows for the rest."""
    xp = array_namespace(levels[0])
    drafted = xp.concat(levels, axis=1)[:, : tree.size]
    missing = tree.size - drafted.shape[1]
    return xp.concat([drafted, *[drafted[:, :1] * 0] * missing], axis=1)
