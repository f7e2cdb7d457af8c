"""The drafter's half of a step: guesses, level by level, and the laws they were drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def propose(
    rows: Sequence[Row], drafter: Session | None, tree: Tree, guess: Guesser
) -> tuple[np.ndarray, Array, str | None]:
    """Guesses [B, N], the laws [B, N, V] they were drawn from (None if there are none), and why the drafter failed.

    When it fails, what was drawn before stays in the draft and nothing more is drawn. Throwing drawn guesses away
    would bias the text, because whether a drafter fails may depend on what was drawn.
    """
    tokens = np.full((len(rows), tree.size), -1, dtype=np.int64)
    tokens[:, 0] = [row.last for row in rows]
    levels: list[Array] = []
    failure = None
    for depth, level in enumerate(tree.levels[:-1]):
        if drafter is None:
            break
        try:
            q = _draft_laws(rows, drafter, tree, tokens, level)
        except Exception as error:  # a drafter is a guest: whatever it raises, the text goes on
            failure = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            break
        for i, parent in enumerate(level):
            children = list(tree.children(parent))
            if children:
                tokens[:, children] = numbers(guess(q[:, i], children, depth))
            else:
                q[:, i] = 0
        levels.append(q)
    return tokens, _stack(levels, tree), failure


def _draft_laws(rows: Sequence[Row], drafter: Session, tree: Tree, tokens: np.ndarray, level: range) -> Array:
    """Laws of the drafter after each node of a level, checked; zero where nothing is to be drawn."""
    said = drafter.extend(tree, tokens, level)
    q = said
    if drafter.speaks == "logits":
        q = laws(said, rows, tree, tokens, level, [row.draft_sampling for row in rows])
    xp = array_namespace(q)
    total = xp.sum(q, axis=-1)
    sound = (abs(total - 1) < 1e-3) | (total == 0)
    if not bool(xp.all(sound)) or not bool(xp.all(q >= 0)):
        raise DraftproofError("the drafter's law does not sum to one")
    drawn = np.stack([(tokens[:, list(tree.path(node))] >= 0).all(axis=1) for node in level], axis=1)
    deeper = np.array([[tree.depth[node] < row.depth for node in level] for row in rows])
    return xp.where(beside((drawn & deeper)[..., None], q), q, q * 0)


def _stack(levels: list[Array], tree: Tree) -> Array:
    """[B, N, V] from the rows of the inner levels, zero rows for the rest; None where nothing was drafted."""
    if not levels:
        return None
    xp = array_namespace(levels[0])
    drafted = xp.concat(levels, axis=1)
    missing = tree.size - drafted.shape[1]
    return xp.concat([drafted, *[drafted[:, :1] * 0] * missing], axis=1)
