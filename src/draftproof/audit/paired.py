"""The paired test: is an engine's speculative text like its own plain text? No tolerance, whatever its arithmetic.

If speculation changes nothing, the texts of a prompt are independent draws from one law, the engine's own. So in a
group of one odd text and k others each of the k + 1 could as well have been the odd one. Give each text a score f, from
the target's law, the earlier groups and nothing else. A bet multiplies its wealth by

    (k + 1) exp(f(odd)) / sum over the group of exp(f(text)),

with -f where the odd text is the plain one. Over the k + 1 texts that could have been odd, this has the mean one, for
any f. For a pair it is 2 / (1 + exp(f(plain) - f(speculative))).

The score is the logarithm of what an audit's bets win on the text, so a bet grows if the speculative texts differ from
the plain ones as its alternative differs from p. That p is not the engine's law costs nothing but power.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from draftproof.audit.alternatives import Alternative
from draftproof.audit.cells import Entries, Table
from draftproof.audit.evidence import BLOCK, Observed, learn, learned_logs, named_logs
from draftproof.audit.notes import Notes
from draftproof.audit.observe import Observer, room
from draftproof.audit.pairing import Group, Grouped, grouped
from draftproof.audit.report import Pairs, Report, report
from draftproof.audit.rows import FEWEST, ReadTranscript, read
from draftproof.audit.run import check, check_draft
from draftproof.audit.transcripts import Transcript, checked
from draftproof.audit.wealth import STRENGTHS, SURE, Moments, Wealth
from draftproof.models.base import Model

EDGE = 1e-4  # caps the scores, and leaves out tokens that rounding may cut; the test is fair whatever it is
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(21)  # for means over a normal variable


class Shape(NamedTuple):
    """How many tokens the texts of a group have, plain ones first."""

    plain: tuple[int, ...]
    speculative: tuple[int, ...]


class PairedEvidence(Wealth):
    """Bets on which text of a group is the odd one; `add` groups in order."""

    def __init__(self, alternatives: Sequence[Alternative], tables: Sequence[Table]) -> None:
        super().__init__(alternatives, tables)
        # of plain and of speculative tokens, observed and expected
        self.counts = [np.zeros((2, 2, table.keys, table.size)) for table in tables]
        self.pairs = 0.0  # that are worth as much as the groups: one odd text among many others is worth two
        self.lengths = 0  # of the speculative texts, summed
        self.texts = 0  # of them

    def add(self, observed: Observed, shapes: Sequence[Shape]) -> None:
        """Bet on groups of texts, whose tokens are one after another in `observed`."""
        start, waiting = 0, 0
        portion: list[Shape] = []
        for shape in shapes:
            portion.append(shape)
            waiting += sum(shape.plain) + sum(shape.speculative)
            if waiting >= BLOCK:
                self._block(observed.part(start, start + waiting), portion)
                start, waiting, portion = start + waiting, 0, []
        if portion:
            self._block(observed.part(start, start + waiting), portion)

    def _block(self, observed: Observed, shapes: Sequence[Shape]) -> None:
        lengths = np.array([n for shape in shapes for n in (*shape.plain, *shape.speculative)])
        starts = np.cumsum([0, *lengths[:-1]])
        scores = np.add.reduceat(self._logs(observed), starts, axis=0)  # [texts, bets]
        logs, first = [], 0
        for shape in shapes:
            plain, size = len(shape.plain), len(shape.plain) + len(shape.speculative)
            logs.append(odd_one_out(scores[first : first + size], plain))
            self.pairs += 2 * (size - 1) / size
            first += size
        kinds = [kind for shape in shapes for kind, some in enumerate(shape) for _ in some]
        self._learn(observed, np.repeat(kinds, lengths))
        self.lengths += sum(sum(shape.speculative) for shape in shapes)
        self.texts += sum(len(shape.speculative) for shape in shapes)
        self.advance(np.stack(logs), sum(sum(shape.speculative) for shape in shapes))

    def _logs(self, observed: Observed) -> np.ndarray:
        """[n, bets] what each bet of an audit would win at each token, in logarithms."""
        columns = [named_logs(self.alternatives, observed)]
        for entry, counts in zip(observed.entries, self.counts, strict=True):
            for strength in STRENGTHS:
                plain, speculative = (counts[:, 0] + strength) / (counts[:, 1] + strength)
                columns.append(learned_logs(speculative / plain, entry, observed.void)[:, None])
        return np.concatenate(columns, axis=1)

    def _learn(self, observed: Observed, kind: np.ndarray) -> None:
        for entry, counts in zip(observed.entries, self.counts, strict=True):
            for k in range(2):
                own = kind == k
                learn(counts[k], Entries(*(array[own] for array in entry)), observed.void[own])

    def surely(self, faulty: Moments, exact: Moments, charge: np.ndarray) -> np.ndarray:
        length = self.lengths / max(self.texts, 1)
        mean = length * (faulty.mean - exact.mean)  # of the difference of two scores, about normal
        spread = np.sqrt(length * (faulty.variance + exact.variance))
        won = -np.logaddexp(0, -(mean[..., None] + spread[..., None] * NODES)) + np.log(2)
        weights = WEIGHTS / WEIGHTS.sum()
        average, square = won @ weights, won**2 @ weights
        least: np.ndarray = self.pairs * average - SURE * np.sqrt(self.pairs * np.maximum(square - average**2, 0))
        return least


def odd_one_out(scores: np.ndarray, plain: int) -> np.ndarray:
    """Log factors [bets] of one group: scores [texts, bets], of which the first `plain` are those of plain texts."""
    odd, scores = (-1, scores) if len(scores) == plain + 1 else (0, -scores)
    top = scores.max(axis=0)
    log: np.ndarray = np.log(len(scores)) + scores[odd] - top - np.log(np.exp(scores - top).sum(axis=0))
    return log


class PairedAuditor(Observer):
    """The state of a paired test; takes groups in order."""

    def __init__(self, target: Model, draft: bool, alone: int = 0) -> None:
        super().__init__(target, draft, False, EDGE)
        self.evidence = PairedEvidence(self.alternatives, self.tables)
        self.notes = Notes(target.name, target.vocabulary, 0.0)
        self.alone = alone

    def add(self, groups: Sequence[Sequence[ReadTranscript]], plain: Sequence[int]) -> None:
        """Bet on groups of texts, the first `plain` of each without speculation."""
        observed, summary = self.observe(groups)
        shapes, start = [], 0
        for group, count in zip(groups, plain, strict=True):
            lengths = tuple(len(text.logits) for text in group)
            shapes.append(Shape(lengths[:count], lengths[count:]))
            for i, text in enumerate(group):
                part = slice(start, start + lengths[i])
                self.notes.take(text.transcript, summary.chance[part], summary.void[part], summary.surprise[part])
                start += lengths[i]
        self.evidence.add(observed, shapes)

    def report(self, alpha: float, tokenizer: Any = None) -> Report:
        """The report on what was added so far."""
        pairs = Pairs(self.evidence.rounds, self.notes.tokens - self.evidence.count, self.alone)
        return report(self.evidence, self.notes, self.power, alpha, tokenizer)._replace(paired=pairs)


def compare(
    speculative: Iterable[Transcript],
    plain: Iterable[Transcript],
    target: Model,
    *,
    draft: Model | None = None,
    alpha: float = 0.01,
) -> Report:
    """Test whether an engine's speculative texts are like its own plain ones, and return a report.

    speculative, plain   of the same prompts and settings, from independent runs (other seeds); neither the order of the
                         texts nor which of them there are may depend on what they say
    target               any model whose law is near the engine's: the nearer, the smaller the faults that show
    """
    check(alpha, EDGE)
    check_draft(draft, target)
    made = grouped((checked(text, target) for text in speculative), (checked(text, target) for text in plain))
    comparison = PairedAuditor(target, draft is not None, made.alone)
    for batch in _batches(made, target):
        texts = iter(read([text for group in batch for text in group.texts], target, draft))
        comparison.add([[next(texts) for _ in group.texts] for group in batch], [len(group.plain) for group in batch])
    return comparison.report(alpha, target.tokenizer)


def _batches(made: Grouped, target: Model) -> Iterator[list[Group]]:
    """Batch groups so that their padded logits fit into memory; at least one per batch."""
    batch: list[Group] = []
    limit = room(target)[0] // max(target.vocabulary, FEWEST)
    for group in made.groups:
        texts = [text for member in (*batch, group) for text in member.texts]
        if batch and len(texts) * max(len(text.output) for text in texts) > limit:
            yield batch
            batch = []
        batch.append(group)
    yield batch
