"""How a rule drafts and decides in the eager step: by its law, by shared noise, or by a law that is not exact.

Which of these it is follows from the kind of rule, once, when a stepper is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from draftproof import verify
from draftproof.draft import Draft, Tree
from draftproof.draws import Draw
from draftproof.engine.eager.decide import Decision, Race, decide, decide_chain
from draftproof.engine.eager.propose import Proposal, by_draw, point_proposal, propose
from draftproof.engine.eager.reduced_vocabulary import Rest, merge
from draftproof.engine.eager.rows import Row, beside, together
from draftproof.law import Array
from draftproof.models.base import OpenSession
from draftproof.rule import Coupling, Lossy, Rule, Verifier
from draftproof.verify._pointmass import POINT_MASS


class Verdict(NamedTuple):
    """The decisions of a step, and the draft they were made on."""

    decisions: list[Decision]
    draft: Draft  # q is empty where draft tokens were not drawn
    draft_tokens: np.ndarray | None = None  # token ids of q's columns, if q covers a reduced vocabulary


class Method(Protocol):
    """The two halves of a step that depend on the rule."""

    def propose(self, rows: Sequence[Row], drafters: Sequence[OpenSession], tree: Tree) -> Proposal:
        """Draft tokens, and the laws they were drawn from."""
        ...

    def decide(self, rows: Sequence[Row], drafters: Sequence[OpenSession], proposal: Proposal, p: Array) -> Verdict:
        """Where each sample stops, and what it emits there, from the target's laws p [B, N, V]."""
        ...


def method_of(rule: Rule, draw: Draw, vocabulary: int) -> Method:
    """The method of a rule, for draft tokens that are drawn in this way."""
    if isinstance(rule, Coupling):
        return BySharedNoise(rule, vocabulary)
    return ByLossyLaw(rule, draw, vocabulary) if isinstance(rule, Lossy) else ByLaw(rule, draw, vocabulary)


class ByLaw:
    """An exact verifier: draft tokens are drawn from q, and its laws `stop` and `next` decide."""

    def __init__(self, rule: Verifier, draw: Draw, vocabulary: int) -> None:
        self.rule, self.draw, self.vocabulary = rule, draw, vocabulary

    def propose(self, rows: Sequence[Row], drafters: Sequence[OpenSession], tree: Tree) -> Proposal:
        if drafts_points(rows, drafters, tree):
            return point_proposal(rows, drafters, tree, self.vocabulary)
        return propose(rows, drafters, tree, by_draw(rows, tree, self.draw), self.vocabulary)

    def decide(self, rows: Sequence[Row], drafters: Sequence[OpenSession], proposal: Proposal, p: Array) -> Verdict:
        if proposal.is_certain or proposal.tree.size == 1:
            draft = point_draft(proposal, p)
            return Verdict(decide(rows, draft, range(len(rows)), POINT_MASS), draft)
        some = proposal.draft_tokens[0] if len(drafters) == 1 else None
        if some is None or not proposal.laws:
            draft = full_draft(proposal, drafters, p)
            return Verdict(by_law(rows, draft, self.rule), draft)
        tree, tokens, q = proposal.tree, proposal.tokens, proposal.laws[0]
        decisions = decide_chain(rows, proposal, p, self.rule.name)
        if decisions is not None:
            return Verdict(decisions, Draft(tree, tokens, q, p), some)
        draft, rest = merge(tree, tokens, q, p, some)
        return Verdict(by_law(rows, draft, self.rule, rest), draft)


class BySharedNoise:
    """A coupling: draft tokens and emitted tokens come from the same noise; equal ones are accepted."""

    def __init__(self, rule: Coupling, vocabulary: int) -> None:
        self.rule, self.vocabulary = rule, vocabulary
        self._race = Race(rule, vocabulary)

    def propose(self, rows: Sequence[Row], drafters: Sequence[OpenSession], tree: Tree) -> Proposal:
        self._race = Race(self.rule, self.vocabulary)  # one for each step
        if drafts_points(rows, drafters, tree):
            return point_proposal(rows, drafters, tree, self.vocabulary)
        return propose(rows, drafters, tree, self._race.guesser(rows), self.vocabulary)

    def decide(self, rows: Sequence[Row], drafters: Sequence[OpenSession], proposal: Proposal, p: Array) -> Verdict:
        certain = proposal.is_certain or proposal.tree.size == 1
        draft = point_draft(proposal, p) if certain else full_draft(proposal, drafters, p)
        return Verdict(self._race.decide(rows, draft), draft)


class ByLossyLaw:
    """A lossy rule: its laws decide, and the cost is recorded for every token."""

    def __init__(self, rule: Lossy, draw: Draw, vocabulary: int) -> None:
        self.rule, self.draw, self.vocabulary = rule, draw, vocabulary

    def propose(self, rows: Sequence[Row], drafters: Sequence[OpenSession], tree: Tree) -> Proposal:
        if tree.size == 1 and all(row.state is None for row in rows):
            return point_proposal(rows, drafters, tree, self.vocabulary)
        return propose(rows, drafters, tree, by_draw(rows, tree, self.draw), self.vocabulary)

    def decide(self, rows: Sequence[Row], drafters: Sequence[OpenSession], proposal: Proposal, p: Array) -> Verdict:
        draft = full_draft(proposal, drafters, p)
        return Verdict(by_law(rows, draft, self.rule), draft)


def by_law(rows: Sequence[Row], draft: Draft, rule: Verifier | Lossy, rest: Rest | None = None) -> list[Decision]:
    """Decide by the rule, or by the match rule in rows that several samples share.

    Samples that share a row share its draft tokens. With a rule that uses q they would become dependent; the match
    rule draws each sample's tokens from p with its own noise, so they stay independent, and exact.
    """
    alone = [b for b, row in enumerate(rows) if len(row.members) == 1]
    shared = [b for b, row in enumerate(rows) if len(row.members) > 1]
    return decide(rows, draft, alone, rule, rest) + decide(rows, draft, shared, verify.get("match"), rest)


def drafts_points(rows: Sequence[Row], drafters: Sequence[OpenSession], tree: Tree) -> bool:
    """Whether nothing has to be drawn: a chain of a drafter whose guesses are point masses, or no draft at all but for
    what a grammar makes sure of."""
    if len(drafters) == 1 and drafters[0].point is not None:
        return tree.is_chain
    return tree.size == 1


def point_draft(proposal: Proposal, p: Array) -> Draft:
    """The draft without q, for draft tokens that were not drawn."""
    return Draft(proposal.tree, beside(proposal.tokens, p), p[..., :0], p)


def full_draft(proposal: Proposal, drafters: Sequence[OpenSession], p: Array) -> Draft:
    """The draft with laws of all tokens."""
    p, q = together(p, proposal.wide(drafters) or [p * 0])
    own = proposal.own_laws(q) if len(q) > 1 else None
    return Draft(proposal.tree, beside(proposal.tokens, p), q[0], p, own)
