"""The target's half of a step: where each sample stops, and what it emits there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from draftproof.draft import Draft
from draftproof.engine.eager.propose import Guesser, Proposal
from draftproof.engine.eager.reduced_vocabulary import Rest
from draftproof.engine.eager.rows import Row, beside, drawn, noise, numbers
from draftproof.engine.request import SampleKey
from draftproof.engine.trace import reached_by_depth
from draftproof.law import Array, sample
from draftproof.native import step as native
from draftproof.noise import Lane, races
from draftproof.rule import Coupling, Lossy, Verifier


class Decision(NamedTuple):
    """Where one sample of one row stopped, and the token it emitted."""

    row: int
    member: int
    node: int  # last accepted node of the tree
    token: int  # emitted after it
    reached: tuple[float, ...]  # probability of at least 1, 2, ... accepted guesses, where the rule has it
    cost: tuple[float, ...] = ()  # of a lossy rule: total variation of each emitted token's law from the target's


def decide(
    rows: Sequence[Row], draft: Draft, chosen: Sequence[int], rule: Verifier | Lossy, rest: Rest | None = None
) -> list[Decision]:
    """Draw stop and next token of each member of the chosen rows from the rule's laws, with two uniforms.

    In a merged draft the last token stands for the `rest` of the vocabulary.
    """
    places = [(b, m) for b in chosen for m in range(len(rows[b].members))]
    if not places:
        return []
    names = [(rows[b].members[m], rows[b].step) for b, m in places]
    index = [b for b, _ in places]
    chain, path = draft, None
    if index != list(range(len(rows))):
        own = None if draft.own is None else draft.own[index]
        chain = Draft(draft.tree, draft.tokens[index], draft.q[index], draft.p[index], own)
    if isinstance(rule, Verifier) and rule.select is not None:
        u = noise(names, Lane.SELECT, rule.uniforms(draft.tree))
        path, chain = rule.select(chain, beside(u, chain.p))
    stop = rule.stop(chain)
    if chain.tree.size > 1:
        node = sample(stop, beside(noise(names, Lane.STOP, 1)[:, 0], chain.p))
    else:
        node = chain.tokens[:, 0] * 0
    emitted = rule.next(chain, node)
    reached = [reached_by_depth(law, chain.tree) for law in numbers(stop)]
    last = numbers(node)
    cost: list[tuple[float, ...]] = [()] * len(places)
    if isinstance(rule, Lossy):
        account = numbers(rule.account(chain))
        cost = [tuple(a[: n + 1]) for a, n in zip(account, last, strict=True)]  # a chain: node n follows n tokens
    if path is not None:
        last = [nodes[n] for nodes, n in zip(numbers(path), last, strict=True)]
    if rest is not None:
        emitted = rest.spread(emitted, index, last)
    token = numbers(drawn(emitted, beside(noise(names, Lane.NEXT, 1)[:, 0], emitted)))
    return [Decision(b, m, *outcome) for (b, m), *outcome in zip(places, last, token, reached, cost, strict=True)]


def decide_chain(rows: Sequence[Row], proposal: Proposal, p: Array, rule: str) -> list[Decision] | None:
    """The same in C, for one text and a chain drafted from a reduced vocabulary; None where that is not possible."""
    ids = proposal.draft_tokens[0]
    if len(rows) > 1 or len(rows[0].members) > 1 or not isinstance(p, np.ndarray) or not proposal.tree.is_chain:
        return None
    if ids is None or (proposal.tokens < 0).any():
        return None
    key = [(rows[0].members[0], rows[0].step)]
    u = float(noise(key, Lane.STOP, 1)[0, 0]), float(noise(key, Lane.NEXT, 1)[0, 0])
    verdict = native.verify(rule, p[0], np.asarray(proposal.laws[0])[0], ids, proposal.tokens[0], u)
    if verdict is None:
        return None
    return [Decision(0, 0, verdict.node, verdict.token, reached_by_depth(verdict.stop, proposal.tree))]


class Race:
    """The shared noise of a coupling: exponentials of every position, drawn once for drafter and target."""

    def __init__(self, coupling: Coupling, size: int) -> None:
        self.coupling = coupling
        self.size = size
        self._drawn: dict[tuple[SampleKey, int], np.ndarray] = {}

    def guesser(self, rows: Sequence[Row]) -> Guesser:
        """Draft tokens from the first member's races."""

        def guess(q: Array, children: list[int], depth: int) -> Array:
            names = [(row.members[0], len(row.output) + depth) for row in rows]
            self._make(names)
            entries = np.stack([self._drawn[name] for name in names])
            return self.coupling.draft(q, beside(entries, q[:, None]), len(children))

        return Guesser(guess, by_name=True)

    def decide(self, rows: Sequence[Row], draft: Draft) -> list[Decision]:
        """Walk the tree for each member: emit a token, and continue at the child that equals it."""
        decisions = []
        guesses = numbers(draft.tokens)
        self._make([(member, len(row.output)) for row in rows for member in row.members])
        for b, row in enumerate(rows):
            for m, member in enumerate(row.members):
                node, going = 0, True
                while going:
                    entries = self._at(member, len(row.output) + draft.tree.depth[node])[None]
                    p = draft.p[b, node][None]
                    token = numbers(self.coupling.emit(p, beside(entries, p)))[0]
                    equal = [child for child in draft.tree.children(node) if guesses[b][child] == token]
                    going = bool(equal)
                    node = equal[0] if equal else node
                decisions.append(Decision(b, m, node, token, ()))
        return decisions

    def _at(self, member: SampleKey, position: int) -> np.ndarray:
        """The exponentials [streams, V] of one sample at one position."""
        self._make([(member, position)])
        return self._drawn[member, position]

    def _make(self, names: Sequence[tuple[SampleKey, int]]) -> None:
        """Draw the exponentials that are still missing, in one call."""
        missing = [name for name in dict.fromkeys(names) if name not in self._drawn]
        if missing:
            seed, request, place = np.array([(*member, position) for member, position in missing]).T
            self._drawn |= zip(missing, races(seed, request, place, self.size, self.coupling.streams), strict=True)
