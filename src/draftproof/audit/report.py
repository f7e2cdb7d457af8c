"""The report of an audit: the verdict in one sentence, its evidence, its power, and the worst tokens."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import numpy as np

from draftproof.audit.notes import Notes, Spot
from draftproof.audit.power import Power, PowerSums, powers
from draftproof.audit.wealth import Bet, Wealth

TOO_FEW = "too few tokens: no kind of fault would have been detected nine times out of ten"


class Pairs(NamedTuple):
    """What a paired test compared the texts with."""

    groups: int  # a text of one kind and one or more of the other
    plain_tokens: int
    alone: int  # texts that were left out, because their prompt is only in one of the files


class Report(NamedTuple):
    """Everything a reader needs; `text`, `as_dict` and `draftproof.audit.page.html` show it."""

    target: str
    alpha: float
    tolerance: float
    tokens: int
    transcripts: int
    evidence: float  # largest log of the evidence at any time: alarm at log(1 / alpha)
    final: float  # log of the evidence after the last token
    lead: str  # the alternative that won most
    rate: float  # its nats per token
    interval: tuple[float, float]  # 95% interval of the rate
    power: tuple[Power, ...]
    worst: tuple[Spot, ...]
    words: tuple[tuple[str, str], ...]  # of the worst: the text before, the token
    impossible: int  # tokens of probability zero under the settings
    void: int  # tokens at a truncation's edge, on which nothing was bet
    retokenised: int
    perplexity: float
    families: tuple[str, ...]
    curve: tuple[tuple[int, float, list[float]], ...]  # tokens, log evidence, that of each family
    paired: Pairs | None = None  # of a paired test

    @property
    def exact(self) -> bool:
        """Whether there was no alarm at any time."""
        return self.evidence < math.log(1 / self.alpha)

    @property
    def verdict(self) -> str:
        """The verdict in one sentence."""
        return f"{self.headline}{self._details}"

    @property
    def headline(self) -> str:
        """The first words of the verdict."""
        if not self.exact:
            return "not exact"
        return "exact so far" if self.paired is None else "no difference so far"

    @property
    def _details(self) -> str:
        """The rest of the verdict."""
        if not self.exact:
            beside = "" if self.paired is None else "beside plain texts of the engine "
            return f": {beside}the outputs look as if {self.lead}, evidence {power_of_ten(self.evidence)}"
        pairs = "" if self.paired is None else f" in {self.paired.groups} pairs"
        return (
            f" at level {self.alpha:g} after {self.tokens} tokens{pairs} "
            f"(evidence {power_of_ten(self.evidence)}, alarm at {1 / self.alpha:g})"
        )

    @property
    def detectable(self) -> list[tuple[float, float, str]]:
        """Share, total variation and description of the smallest fault of each family that would have been detected."""
        return [
            (p.share, p.total_variation, p.says)
            for p in self.power
            if p.share is not None and p.total_variation is not None
        ]

    @property
    def measure(self) -> str:
        """What the texts were compared with, and how closely."""
        if self.paired is None:
            return f"allowance for rounding: {self.tolerance:g} in total variation at each token"
        return (
            f"compared with {self.paired.plain_tokens} tokens of plain sampling, so there is no allowance for rounding"
        )

    def text(self) -> str:
        """The report as a few lines of text."""
        low, high = self.interval
        lines = [
            self.verdict,
            f"target {self.target}, {self.transcripts} transcripts, perplexity {self.perplexity:.3g}",
            f"strongest alternative: as if {self.lead}",
            f"  {self.rate:+.2e} nats per token (95% interval {low:+.2e} to {high:+.2e})",
            self.measure,
        ]
        if self.paired is not None and self.paired.alone:
            lines.append(f"{self.paired.alone} texts were left out: their prompt is only in one of the files")
        if self.impossible:
            lines.append(f"{self.impossible} tokens have probability zero under the stated settings")
        if self.void:
            lines.append(
                f"{self.void} tokens are at a truncation's edge, where rounding may cut them: nothing was bet on them"
            )
        if self.retokenised:
            lines.append(
                f"{self.retokenised} outputs were tokenised again from their text: ids that differ from the sampled "
                "ones count as evidence, so an alarm may come from the tokenizer"
            )
        faults = [f"  {share:9.2%} {distance:9.4f}  {words}" for share, distance, words in self.detectable]
        words = "smallest faults detected nine times out of ten (share of tokens; total variation), as if ..."
        lines += [words, *faults] if faults else [TOO_FEW]
        if (
            not self.exact and self.worst
        ):  # without an alarm they are the largest of many small numbers and mean nothing
            lines.append("tokens that added most to the evidence:")
            for spot, (before, token) in zip(self.worst, self.words, strict=True):
                place = f"line {spot.line}, token {spot.position}"
                lines.append(f"  {spot.gain:+7.2f} nats, {place}: {before} >> {token} (p = {spot.chance:.2g})")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON; infinite numbers become null."""
        fields: dict[str, Any] = {"exact": self.exact, "verdict": self.verdict, **self._asdict()}
        fields["paired"] = None if self.paired is None else self.paired._asdict()
        fields["power"] = [p._asdict() for p in self.power]
        fields["worst"] = [
            {**spot._asdict(), "text_before": before, "text": token}
            for spot, (before, token) in zip(self.worst, self.words, strict=True)
        ]
        del fields["words"]
        return {name: _finite(value) for name, value in fields.items()}

    def json(self) -> str:
        return json.dumps(self.as_dict(), indent=1, allow_nan=False)


def report(evidence: Wealth, notes: Notes, power: PowerSums, alpha: float, tokenizer: Any = None) -> Report:
    """Make the report of an audit from its state."""
    lead = evidence.bets[evidence.lead]
    n = max(evidence.count, 1)
    won, squares = evidence.sums[:, evidence.lead]
    mean, spread = won / n, math.sqrt(max(squares - won**2 / max(evidence.rounds, 1), 0)) / n
    rate = mean if np.isfinite(evidence.wealth[evidence.lead]) else math.inf
    return Report(
        notes.target,
        alpha,
        notes.tolerance,
        evidence.count,
        notes.transcripts,
        evidence.peak,
        evidence.evidence,
        says(lead, notes.temperatures, endless=math.isinf(rate)),
        rate,
        (mean - 1.96 * spread, rate + 1.96 * spread),
        powers(evidence, power, alpha),
        tuple(notes.worst),
        tuple(_words(spot, tokenizer) for spot in notes.worst),
        notes.impossible,
        notes.void,
        notes.retokenised,
        math.exp(min(notes.surprise[0] / max(notes.tokens, 1), 700.0)),
        evidence.families,
        evidence.path,
    )


def says(bet: Bet, temperatures: set[float], endless: bool) -> str:
    """Describe the alternative, with the temperature itself where all transcripts state the same one."""
    if bet.factor != 1 and len(temperatures) == 1 and 0 not in temperatures:
        (stated,) = temperatures
        return f"the temperature were {bet.factor * stated:.3g} instead of {stated:g}"
    # impossible tokens are counted one by one, and once they occur, the bets on all shares are infinite
    whole = bet.share > 0.9 or bet.family == "impossible tokens" or endless
    return bet.says if whole else f"{bet.says} on {bet.share:.1%} of the tokens"


def power_of_ten(log: float) -> str:
    """Format a likelihood ratio as a readable number."""
    if math.isinf(log):
        return "without bound"
    ten = log / math.log(10)
    return f"10^{ten:.0f}" if ten >= 3 else f"{math.exp(log):.3g}"


def _words(spot: Spot, tokenizer: Any) -> tuple[str, str]:
    """The text before the token, and the token, readable."""
    if tokenizer is None:
        return " ".join(map(str, spot.before)), str(spot.token)
    return repr(tokenizer.decode(list(spot.before)))[1:-1], repr(tokenizer.decode([spot.token]))


def _finite(value: Any) -> Any:
    """Replace infinite numbers by None, because JSON has no infinity."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
