"""The speculative step: draft, call the target, decide, commit.

Every draft token is drawn from the law that is handed to the rule, so "the q we report is the q we sampled from" holds
by construction.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from draftproof.draft import Draft, Tree
from draftproof.engine.eager.constraints import Constraints
from draftproof.engine.eager.decide import Decision
from draftproof.engine.eager.logprobs import Place, chain_limits, token_logprobs
from draftproof.engine.eager.method import Method
from draftproof.engine.eager.propose import Proposal
from draftproof.engine.eager.rows import Row
from draftproof.engine.eager.target_laws import target_laws
from draftproof.engine.trace import Step
from draftproof.errors import first_line
from draftproof.law import Array
from draftproof.models.base import OpenSession, Session


class RowsError(Exception):
    """Rows that cannot go on, each with its error; nothing was committed, so the others can repeat the step."""

    def __init__(self, errors: dict[int, Exception]) -> None:
        super().__init__(*errors.values())
        self.errors = errors


class Branch(NamedTuple):
    """Members of a row that took the same path; branch i is in session row i from now on."""

    row: int
    members: tuple[int, ...]  # indices in Row.members
    node: int  # the last accepted one
    step: Step


class StepResult(NamedTuple):
    """The branches of every row, and why the drafter failed if it did."""

    branches: list[Branch]
    failure: str | None
    draft: Draft  # what was submitted to the rule; q is empty where draft tokens were not drawn
    p: Array  # [B, N, V] the target's laws
    draft_tokens: np.ndarray | None  # token ids of q's columns, if q covers a reduced vocabulary
    busy: dict[str, float]  # by phase, seconds in which this thread ran; others on the machine change that least
    constraints: Constraints  # where the draft's nodes are in their grammars: the texts go on from there


def step(
    rows: Sequence[Row], target: Session, drafters: Sequence[OpenSession], method: Method, tree: Tree
) -> StepResult:
    """Advance every sample of every row by one target call. May raise RowsError."""
    clock = [now()]
    for drafter in drafters:
        drafter.forget()  # what a step that raised has left in it
    proposal = method.propose(rows, drafters, tree)  # draft tokens, and the laws they were drawn from
    clock.append(now())

    logits = target.extend(proposal.tree, proposal.tokens, range(proposal.tree.size))
    clock.append(now())

    failure = _learn(drafters if tree.size > 1 else (), proposal, logits)
    p = _target_laws(logits, rows, proposal)
    verdict = method.decide(rows, drafters, proposal, p)
    clock.append(now())

    seconds, busy = (
        dict(zip(("prompt", "draft", "target", "verify"), [0.0, *spent], strict=True))
        for spent in np.diff(clock, axis=0).T.tolist()
    )
    branches = _with_logprobs(_branch(verdict.decisions, proposal, seconds), rows, proposal, p)
    _commit(target, branches, len(rows), proposal)
    for drafter in drafters if failure is None else ():
        try:
            _commit(drafter.session, branches, len(rows), proposal)
        except Exception as error:  # a drafter is a guest: the text goes on without it
            failure = first_line(error)
    return StepResult(branches, failure, verdict.draft, p, verdict.draft_tokens, busy, proposal.constraints)


def now() -> tuple[float, float]:
    """Seconds of the clock, and of this thread's own."""
    return time.perf_counter(), time.thread_time()


def _with_logprobs(branches: list[Branch], rows: Sequence[Row], proposal: Proposal, p: Array) -> list[Branch]:
    """Add the logprobs of emitted tokens, and the limits of acceptance, to the steps of rows that want them."""
    wanted = {row: wants for row, one in enumerate(rows) if (wants := one.top_logprobs) is not None}
    if not wanted:
        return branches
    places = [
        [Place(one.row, *pair) for pair in zip((0, *proposal.tree.path(one.node)), one.step.tokens, strict=True)]
        for one in branches
        if one.row in wanted
    ]
    found = iter(token_logprobs([place for path in places for place in path], max(wanted.values()), proposal, p))
    return [
        branch._replace(
            step=branch.step._replace(
                logprobs=tuple(islice(found, len(branch.step.tokens))),
                limit=chain_limits(branch.row, branch.step.depth, proposal, p) if proposal.tree.is_chain else (),
            )
        )
        if branch.row in wanted
        else branch
        for branch in branches
    ]


def _learn(drafters: Sequence[OpenSession], proposal: Proposal, logits: Array) -> str | None:
    """Pass the target's logits to drafters that learn from them; returns why drafting failed, if it did."""
    failure = proposal.failure
    for drafter in drafters:
        if drafter.learner is not None:
            try:
                drafter.learner.learn(proposal.tree, proposal.tokens, logits)
            except Exception as error:
                failure = first_line(error)
    return failure


def _target_laws(logits: Array, rows: Sequence[Row], proposal: Proposal) -> Array:
    """The target's laws after all nodes; on an error each row is tried alone, to find those that fail."""
    tree, tokens, errors = proposal.tree, proposal.tokens, proposal.constraints.errors
    if errors:
        raise RowsError(errors)
    masks = proposal.constraints.masks(range(tree.size))
    try:
        return target_laws(logits, rows, tree, tokens, masks)
    except Exception as error:
        whole = error
    for b, row in enumerate(rows):
        try:
            own = {0: masks[b]} if b in masks else {}
            target_laws(logits[b : b + 1], [row], tree, tokens[b : b + 1], own)
        except Exception as error:
            errors[b] = error
    raise RowsError(errors) if errors else whole  # no single row fails


def _commit(session: Session, branches: Sequence[Branch], rows: int, proposal: Proposal) -> None:
    """Commit the accepted path of every branch; new branches get the rows after the present ones."""
    for i, branch in enumerate(branches[rows:], start=rows):
        session.copy(branch.row, i)
    tokens = proposal.tokens[[branch.row for branch in branches]]
    emitted = [branch.step.tokens[-1] for branch in branches]
    session.commit(proposal.tree, tokens, [branch.node for branch in branches], emitted)


def _branch(decisions: Sequence[Decision], proposal: Proposal, seconds: dict[str, float]) -> list[Branch]:
    """Group members of a row by outcome: the first group keeps the row, the others get new rows at the end."""
    tree, tokens = proposal.tree, proposal.tokens
    groups: dict[tuple[int, int, int], list[Decision]] = {}
    for decision in decisions:
        groups.setdefault((decision.row, decision.node, decision.token), []).append(decision)
    first: dict[int, tuple[int, int, int]] = {}
    for outcome in groups:
        first.setdefault(outcome[0], outcome)
    order = [first[row] for row in sorted(first)] + [outcome for outcome in groups if first[outcome[0]] != outcome]
    branches = []
    for outcome in order:
        row, node, token = outcome
        path = tuple(int(tokens[row, n]) for n in tree.path(node))
        drawn = [n for n in range(1, tree.size) if tokens[row, n] >= 0]
        deepest = max((tree.depth[n] for n in drawn), default=0)
        one_step = Step(
            tokens=(*path, token),
            drafted=len(drawn),
            depth=deepest,
            accepted=len(path),
            reached=groups[outcome][0].reached[:deepest],
            cost=groups[outcome][0].cost,
            seconds=seconds,
        )
        branches.append(Branch(row, tuple(decision.member for decision in groups[outcome]), node, one_step))
    return branches
