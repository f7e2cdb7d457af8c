"""The speculative step: guess, look, decide, commit.

The engine draws every guess from the law that it hands to the verifier, so "the q we report is the q we sampled from"
holds by construction.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from draftproof.draft import Draft, Tree, Verifier
from draftproof.draws import Draw
from draftproof.engine.trace import Step, by_depth
from draftproof.errors import DraftproofError
from draftproof.law import Array, sample
from draftproof.models.session import Session
from draftproof.noise import Lane, uniforms
from draftproof.sampling import Context, Sampling, law


class Row(NamedTuple):
    """One text being written: what it looks back on, how it is sampled, and the names of its random numbers."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    sampling: Sampling
    draft_sampling: Sampling
    seed: int
    request: int
    step: int

    @property
    def last(self) -> int:
        return (self.output or self.prompt)[-1]


class Outcome(NamedTuple):
    """A step of every row, and why the drafter failed if it did."""

    steps: list[Step]
    failure: str | None


def step(
    rows: Sequence[Row], target: Session, drafter: Session | None, verifier: Verifier, tree: Tree, draw: Draw
) -> Outcome:
    """Advance every row by one target call."""
    clock = [time.perf_counter()]
    tokens, q, failure = propose(rows, drafter, tree, draw)
    clock.append(time.perf_counter())

    logits = target.extend(tree, tokens, range(tree.size))
    clock.append(time.perf_counter())

    p = laws(logits, rows, tree, tokens, range(tree.size), [row.sampling for row in rows])
    draft = Draft(tree, _beside(tokens, p), _beside(q, p), p)
    chain = draft
    if verifier.select is not None:
        selection = verifier.select(draft, _beside(noise(rows, Lane.SELECT, verifier.uniforms(tree)), p))
        chain = selection.chain
    stop = verifier.stop(chain)
    node = sample(stop, _beside(noise(rows, Lane.STOP, 1)[:, 0], p))
    token = sample(verifier.next(chain, node), _beside(noise(rows, Lane.NEXT, 1)[:, 0], p))
    stop_laws, nodes, emitted = _numbers(stop), _numbers(node), _numbers(token)
    if verifier.select is not None:
        nodes = [int(path[n]) for path, n in zip(_numbers(selection.nodes), nodes, strict=True)]
    clock.append(time.perf_counter())

    target.commit(tree, tokens, nodes, emitted)
    if drafter is not None and failure is None:
        drafter.commit(tree, tokens, nodes, emitted)

    seconds = dict(zip(("draft", "target", "verify"), np.diff(clock).tolist(), strict=True))
    steps = []
    for b in range(len(rows)):
        path = tuple(int(tokens[b, n]) for n in tree.path(nodes[b]))
        drawn = [n for n in range(1, tree.size) if tokens[b, n] >= 0]
        reached = by_depth(stop_laws[b], chain.tree.depth)
        deepest = max((tree.depth[n] for n in drawn), default=0)
        steps.append(
            Step((*path, emitted[b]), len(drawn), deepest, len(path), sum(reached), reached[:deepest], seconds)
        )
    return Outcome(steps, failure)


def propose(
    rows: Sequence[Row], drafter: Session | None, tree: Tree, draw: Draw
) -> tuple[np.ndarray, Array, str | None]:
    """Guesses [B, N] and the laws [B, N, V] they were drawn from, level by level.

    When the drafter fails, what was drawn before stays in the draft and nothing more is drawn. Throwing drawn guesses
    away would bias the text, because whether a drafter fails may depend on what was drawn.
    """
    tokens = np.full((len(rows), tree.size), -1, dtype=np.int64)
    tokens[:, 0] = [row.last for row in rows]
    u = noise(rows, Lane.DRAFT, tree.size)
    levels: list[Array] = []
    failure = None
    for level in tree.levels[:-1]:
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
                tokens[:, children] = _numbers(draw.sample(q[:, i], _beside(u[:, children], q)))
            else:
                q[:, i] = 0
        levels.append(q)
    return tokens, _stack(levels, tree, len(rows)), failure


def laws(
    logits: Array, rows: Sequence[Row], tree: Tree, tokens: np.ndarray, nodes: range, samplings: Sequence[Sampling]
) -> Array:
    """[B, len(nodes), V]: each node's logits made a law with the node's own path as history."""
    made = []
    for b, (row, sampling) in enumerate(zip(rows, samplings, strict=True)):
        contexts = None
        if sampling.reads_history:
            paths = [tuple(int(tokens[b, n]) for n in tree.path(node)) for node in nodes]
            contexts = [Context(row.prompt, row.output + path) for path in paths]
        made.append(law(logits[b], sampling, contexts))
    return array_namespace(logits).stack(made, axis=0)


def noise(rows: Sequence[Row], lane: Lane, count: int) -> np.ndarray:
    """[B, count] uniforms named by each row's seed, request and step."""
    seed = np.array([row.seed for row in rows], dtype=np.int64)
    request = np.array([row.request for row in rows], dtype=np.int64)
    steps = np.array([row.step for row in rows], dtype=np.int64)
    return np.asarray(uniforms(seed, request, steps, lane, count))


def _draft_laws(rows: Sequence[Row], drafter: Session, tree: Tree, tokens: np.ndarray, level: range) -> Array:
    """Laws of the drafter after each node of a level, checked; zero below a guess that was not drawn."""
    said = drafter.extend(tree, tokens, level)
    q = said
    if drafter.speaks == "logits":
        q = laws(said, rows, tree, tokens, level, [row.draft_sampling for row in rows])
    xp = array_namespace(q)
    total = xp.sum(q, axis=-1)
    sound = (abs(total - 1) < 1e-3) | (total == 0)
    if not bool(xp.all(sound)) or not bool(xp.all(q >= 0)):
        raise DraftproofError("the drafter's law does not sum to one")
    drawn = np.array([[all(tokens[b, n] >= 0 for n in tree.path(k)) for k in level] for b in range(len(rows))])
    return xp.where(_beside(drawn[..., None], q), q, q * 0)


def _stack(levels: list[Array], tree: Tree, rows: int) -> Array:
    """[B, N, V] from the rows of the inner levels, zero rows for the rest; None where nothing was drafted."""
    if not levels:
        return None
    xp = array_namespace(levels[0])
    drafted = xp.concat(levels, axis=1)
    missing = tree.size - drafted.shape[1]
    return xp.concat([drafted, *[drafted[:, :1] * 0] * missing], axis=1)


def _beside(array: Array, like: Array) -> Array:
    """An array of any kind in the namespace, device and (for laws) precision of `like`; None becomes zeros."""
    xp = array_namespace(like)
    if array is None:
        return like * 0
    array = xp.asarray(array, device=like.device)
    return xp.astype(array, like.dtype) if array.ndim == 3 and xp.isdtype(array.dtype, "real floating") else array


def _numbers(array: Array) -> Any:
    """Python numbers of an array on any device."""
    return array.tolist()
