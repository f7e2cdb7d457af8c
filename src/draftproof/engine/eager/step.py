"""The speculative step: guess, look, decide, commit.

The engine draws every guess from the law that it hands to the verifier, so "the q we report is the q we sampled from"
holds by construction.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from draftproof import verify
from draftproof.couple import Coupling
from draftproof.draft import Draft, Tree, Verifier
from draftproof.draws import Draw
from draftproof.engine.eager.decide import Decision, Race, decide, decide_chain
from draftproof.engine.eager.propose import Proposal, by_draw, certain, follow, own_laws, propose, reason
from draftproof.engine.eager.reduced_vocabulary import Rest, merge
from draftproof.engine.eager.rows import Row, beside, laws, together
from draftproof.engine.trace import Step
from draftproof.law import Array
from draftproof.lossy import Lossy
from draftproof.models.base import Session, forget
from draftproof.verify._pointmass import CERTAIN

Rule = Verifier | Coupling | Lossy


class RowsError(Exception):
    """Rows that cannot go on, each with its error. Nothing is committed: without them the others make the same step."""

    def __init__(self, errors: dict[int, Exception]) -> None:
        super().__init__(*errors.values())
        self.errors = errors


class Branch(NamedTuple):
    """What became of some members of a row; branch i lives in session row i from now on."""

    row: int
    members: tuple[int, ...]  # places in Row.members
    step: Step


class Outcome(NamedTuple):
    """The branches of every row, and why the drafter failed if it did."""

    branches: list[Branch]
    failure: str | None
    draft: Draft  # what was submitted to the rule; q is empty where guesses were not drawn
    p: Array  # [B, N, V] the target's laws
    names: np.ndarray | None  # tokens that q is about, if those are not all that p is about


def step(
    rows: Sequence[Row], target: Session, drafters: Sequence[Session], rule: Rule, tree: Tree, draw: Draw, size: int
) -> Outcome:
    """Advance every sample of every row by one target call; `size` is the vocabulary's. May raise RowsError."""
    race = Race(rule, size) if isinstance(rule, Coupling) else None
    clock = [time.perf_counter()]
    for drafter in drafters:
        forget(drafter)  # of the last step, if it raised: in this one it may not be asked
    asked, sure = tree.size > 1, certain(drafters, tree) and not isinstance(rule, Lossy)
    if sure:
        proposal = follow(rows, drafters, tree, size)
    else:
        guess = race.guesser(rows) if race else by_draw(rows, tree, draw)
        proposal = propose(rows, drafters, tree, guess, size)
    tree, tokens, failure = proposal.tree, proposal.tokens, proposal.failure
    clock.append(time.perf_counter())

    logits = target.extend(tree, tokens, range(tree.size))
    clock.append(time.perf_counter())
    for drafter in drafters:
        if asked and hasattr(drafter, "learn"):  # a drafter that remembers what the target says
            try:
                drafter.learn(tree, tokens, logits)
            except Exception as error:  # still a guest
                failure = reason(error)

    p = _target_laws(logits, rows, tree, tokens)
    sure = sure or (tree.size == 1 and not isinstance(rule, Lossy))  # nothing was guessed
    narrow = proposal.names[0] if len(drafters) == 1 and isinstance(rule, Verifier) and not sure else None
    if narrow is not None and proposal.laws:
        draft = Draft(tree, tokens, proposal.laws[0], p)
        made = decide_chain(rows, proposal, p, rule.name)
        if made is None:
            draft, rest = merge(tree, tokens, proposal.laws[0], p, narrow)
            made = _by_law(rows, draft, rule, rest)
        decisions = made
    else:
        draft = _whole(proposal, drafters, p, sure)
        if race is not None:
            decisions = race.decide(rows, draft)
        else:
            decisions = decide(rows, draft, range(len(rows)), CERTAIN) if sure else _by_law(rows, draft, rule)
    clock.append(time.perf_counter())

    seconds = dict(zip(("draft", "target", "verify"), np.diff(clock).tolist(), strict=True))
    branches, nodes, emitted = _branch(decisions, tokens, tree, seconds)
    tokens = tokens[[branch.row for branch in branches]]
    _keep(target, branches[len(rows) :], tree, tokens, nodes, emitted)
    for drafter in drafters if failure is None else ():
        try:
            _keep(drafter, branches[len(rows) :], tree, tokens, nodes, emitted)
        except Exception as error:
            failure = reason(error)
    return Outcome(branches, failure, draft, p, narrow if narrow is not None and draft.p is p else None)


def _target_laws(logits: Array, rows: Sequence[Row], tree: Tree, tokens: np.ndarray) -> Array:
    """Laws after all nodes. If that raises, each row is tried alone, to know whose fault it is."""
    nodes, errors = range(tree.size), {}
    try:
        return laws(logits, rows, tree, tokens, nodes, [row.sampling for row in rows])
    except Exception as error:
        whole = error
    for b, row in enumerate(rows):
        try:
            laws(logits[b : b + 1], [row], tree, tokens[b : b + 1], nodes, [row.sampling])
        except Exception as error:
            errors[b] = error
    raise RowsError(errors) if errors else whole  # which was nobody's fault, or is over


def _keep(
    session: Session, new: Sequence[Branch], tree: Tree, tokens: np.ndarray, nodes: list[int], emitted: list[int]
) -> None:
    """What was decided in every row; new branches go behind the rows that there are."""
    for i, branch in enumerate(new, start=len(nodes) - len(new)):
        session.copy(branch.row, i)
    session.commit(tree, tokens, nodes, emitted)


def _whole(proposal: Proposal, drafters: Sequence[Any], p: Array, sure: bool) -> Draft:
    """The draft with laws of all tokens; without q where guesses were not drawn."""
    p, q = together(p, [p[..., :0]] if sure else proposal.wide(drafters) or [p * 0])
    tree, tokens = proposal.tree, proposal.tokens
    return Draft(tree, beside(tokens, p), q[0], p, own_laws(tree, q) if len(q) > 1 else None)


def _by_law(rows: Sequence[Row], draft: Draft, rule: Any, rest: Rest | None = None) -> list[Decision]:
    """Samples that share a row share its guesses. With a rule that uses q they would become dependent; the match rule
    draws each sample's tokens from p with its own noise, so they stay independent, and exact."""
    alone = [b for b, row in enumerate(rows) if len(row.members) == 1]
    shared = [b for b, row in enumerate(rows) if len(row.members) > 1]
    return decide(rows, draft, alone, rule, rest) + decide(rows, draft, shared, verify.get("match"), rest)


def _branch(
    decisions: Sequence[Decision], tokens: np.ndarray, tree: Tree, seconds: dict[str, float]
) -> tuple[list[Branch], list[int], list[int]]:
    """Members of a row that went the same way stay together; the first way keeps the row, others follow at the end."""
    ways: dict[tuple[int, int, int], list[Decision]] = {}
    for decision in decisions:
        ways.setdefault((decision.row, decision.node, decision.token), []).append(decision)
    first: dict[int, tuple[int, int, int]] = {}
    for way in ways:
        first.setdefault(way[0], way)
    order = [first[row] for row in sorted(first)] + [way for way in ways if first[way[0]] != way]
    branches = []
    for way in order:
        row, node, token = way
        path = tuple(int(tokens[row, n]) for n in tree.path(node))
        drawn = [n for n in range(1, tree.size) if tokens[row, n] >= 0]
        deepest = max((tree.depth[n] for n in drawn), default=0)
        made = Step(
            tokens=(*path, token),
            drafted=len(drawn),
            depth=deepest,
            accepted=len(path),
            reached=ways[way][0].reached[:deepest],
            cost=ways[way][0].cost,
            seconds=seconds,
        )
        branches.append(Branch(row, tuple(decision.member for decision in ways[way]), made))
    return branches, [node for _, node, _ in order], [token for _, _, token in order]
