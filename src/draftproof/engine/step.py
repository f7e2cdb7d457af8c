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

from draftproof import verify
from draftproof.draft import Draft, Tree, Verifier
from draftproof.draws import Draw
from draftproof.engine.trace import Step, by_depth
from draftproof.errors import DraftproofError
from draftproof.law import Array, sample
from draftproof.models.session import Session
from draftproof.noise import Lane, uniforms
from draftproof.sampling import Context, Sampling, law


class Member(NamedTuple):
    """One sample: the name of its random numbers."""

    seed: int
    request: int


class Row(NamedTuple):
    """One context, shared by all samples whose texts are the same so far."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    sampling: Sampling
    draft_sampling: Sampling
    members: tuple[Member, ...]
    step: int
    depth: int  # how far guesses may go: what lies beyond the wanted length or the context would be thrown away

    @property
    def last(self) -> int:
        return (self.output or self.prompt)[-1]


class Branch(NamedTuple):
    """What became of some members of a row; branch i lives in session row i from now on."""

    row: int
    members: tuple[int, ...]  # places in Row.members
    step: Step


class Outcome(NamedTuple):
    """The branches of every row, and why the drafter failed if it did."""

    branches: list[Branch]
    failure: str | None


class Decision(NamedTuple):
    """What verification decided for one member of one row."""

    row: int
    member: int
    node: int  # last accepted node of the tree
    token: int  # emitted after it
    reached: tuple[float, ...]  # probability of at least 1, 2, ... accepted guesses


def step(
    rows: Sequence[Row], target: Session, drafter: Session | None, verifier: Verifier, tree: Tree, draw: Draw
) -> Outcome:
    """Advance every sample of every row by one target call."""
    clock = [time.perf_counter()]
    tokens, q, failure = propose(rows, drafter, tree, draw)
    clock.append(time.perf_counter())

    logits = target.extend(tree, tokens, range(tree.size))
    clock.append(time.perf_counter())

    p = laws(logits, rows, tree, tokens, range(tree.size), [row.sampling for row in rows])
    draft = Draft(tree, _beside(tokens, p), _beside(q, p), p)
    # Samples that share a row share its guesses. With a rule that uses q they would become dependent; the match rule
    # draws each sample's tokens from p with its own noise, so they stay independent (and exact).
    alone = [b for b, row in enumerate(rows) if len(row.members) == 1]
    shared = [b for b, row in enumerate(rows) if len(row.members) > 1]
    decisions = decide(rows, draft, alone, verifier) + decide(rows, draft, shared, verify.get("match"))
    clock.append(time.perf_counter())

    seconds = dict(zip(("draft", "target", "verify"), np.diff(clock).tolist(), strict=True))
    branches, nodes, emitted = _branch(decisions, tokens, tree, seconds)
    tokens = tokens[[branch.row for branch in branches]]
    for session in (target, drafter if failure is None else None):
        if session is not None:
            for i, branch in enumerate(branches[len(rows) :], start=len(rows)):
                session.copy(branch.row, i)
            session.commit(tree, tokens, nodes, emitted)
    return Outcome(branches, failure)


def propose(
    rows: Sequence[Row], drafter: Session | None, tree: Tree, draw: Draw
) -> tuple[np.ndarray, Array, str | None]:
    """Guesses [B, N] and the laws [B, N, V] they were drawn from, level by level.

    When the drafter fails, what was drawn before stays in the draft and nothing more is drawn. Throwing drawn guesses
    away would bias the text, because whether a drafter fails may depend on what was drawn.
    """
    tokens = np.full((len(rows), tree.size), -1, dtype=np.int64)
    tokens[:, 0] = [row.last for row in rows]
    u = noise([(row.members[0], row.step) for row in rows], Lane.DRAFT, tree.size)
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
    return tokens, _stack(levels, tree), failure


def decide(rows: Sequence[Row], draft: Draft, chosen: Sequence[int], verifier: Verifier) -> list[Decision]:
    """Where each member of the chosen rows stops, and what it emits there: two uniforms each."""
    places = [(b, m) for b in chosen for m in range(len(rows[b].members))]
    if not places:
        return []
    names = [(rows[b].members[m], rows[b].step) for b, m in places]
    index = [b for b, _ in places]
    chain = Draft(draft.tree, draft.tokens[index], draft.q[index], draft.p[index])
    path = None
    if verifier.select is not None:
        u = noise(names, Lane.SELECT, verifier.uniforms(draft.tree))
        path, chain = verifier.select(chain, _beside(u, chain.p))
    stop = verifier.stop(chain)
    node = sample(stop, _beside(noise(names, Lane.STOP, 1)[:, 0], chain.p))
    token = _numbers(sample(verifier.next(chain, node), _beside(noise(names, Lane.NEXT, 1)[:, 0], chain.p)))
    last = _numbers(node)
    if path is not None:
        last = [nodes[n] for nodes, n in zip(_numbers(path), last, strict=True)]
    reached = [by_depth(s, chain.tree.depth) for s in _numbers(stop)]
    return [Decision(b, m, *rest) for (b, m), *rest in zip(places, last, token, reached, strict=True)]


def laws(
    logits: Array, rows: Sequence[Row], tree: Tree, tokens: np.ndarray, nodes: range, samplings: Sequence[Sampling]
) -> Array:
    """[B, len(nodes), V]: each node's logits made a law with the node's own path as history."""
    xp = array_namespace(logits)
    alike: dict[int, list[int]] = {}  # rows that are sampled the same way go through in one call
    for b, sampling in enumerate(samplings):
        alike.setdefault(id(sampling), []).append(b)
    made = []
    for group in alike.values():
        sampling = samplings[group[0]]
        contexts = None
        if sampling.reads_history:
            contexts = [_history(rows[b], tokens[b], tree.path(node)) for b in group for node in nodes]
        scores = logits if len(alike) == 1 else logits[group]
        flat = xp.reshape(scores, (-1, scores.shape[-1]))
        made.append(xp.reshape(law(flat, sampling, contexts), scores.shape))
    if len(made) == 1:
        return made[0]
    place = np.argsort([b for group in alike.values() for b in group])
    return xp.concat(made, axis=0)[place.tolist()]


def _history(row: Row, tokens: np.ndarray, path: Sequence[int]) -> Context:
    """What a node looks back on; a guess that was not drawn is no token (and its row is never used)."""
    return Context(row.prompt, row.output + tuple(int(tokens[n]) for n in path if tokens[n] >= 0))


def noise(names: Sequence[tuple[Member, int]], lane: Lane, count: int) -> np.ndarray:
    """[B, count] uniforms named by each sample's seed and request and by its step."""
    seed = np.array([member.seed for member, _ in names], dtype=np.int64)
    request = np.array([member.request for member, _ in names], dtype=np.int64)
    return np.asarray(uniforms(seed, request, np.array([step for _, step in names], dtype=np.int64), lane, count))


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
    return xp.where(_beside((drawn & deeper)[..., None], q), q, q * 0)


def _branch(
    decisions: Sequence[Decision], tokens: np.ndarray, tree: Tree, seconds: dict[str, float]
) -> tuple[list[Branch], list[int], list[int]]:
    """Members of a row that went the same way stay together; the first way keeps the row, others follow at the end."""
    ways: dict[tuple[int, int, int], list[Decision]] = {}
    for decision in decisions:
        ways.setdefault((decision.row, decision.node, decision.token), []).append(decision)
    first = {row: way for way in reversed(ways) for row in [way[0]]}  # the earliest way of each row
    order = [first[row] for row in sorted(first)] + [way for way in ways if first[way[0]] != way]
    branches = []
    for row, node, token in order:
        path = tuple(int(tokens[row, n]) for n in tree.path(node))
        drawn = [n for n in range(1, tree.size) if tokens[row, n] >= 0]
        deepest = max((tree.depth[n] for n in drawn), default=0)
        reached = ways[row, node, token][0].reached[:deepest]
        made = Step((*path, token), len(drawn), deepest, len(path), sum(reached), reached, seconds)
        branches.append(Branch(row, tuple(d.member for d in ways[row, node, token]), made))
    return branches, [node for _, node, _ in order], [token for _, _, token in order]


def _stack(levels: list[Array], tree: Tree) -> Array:
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
