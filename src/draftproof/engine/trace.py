"""Statistics of generation: a Step per target call, and a Trace that sums them up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from draftproof.draft import Tree


class TokenLogprob(NamedTuple):
    """The log-probability of one token of a text, in the target's law after all sampling controls."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # the likeliest tokens there, the likeliest first, with their logprobs
    draft_logprob: float | None = None  # in the drafter's law; None where the token could not be drafted

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity: null stands for log 0, of a token that only a lossy rule emits."""
        return {**self._asdict(), "logprob": self.logprob if self.logprob > -math.inf else None}


class Step(NamedTuple):
    """One target call for one text."""

    tokens: tuple[int, ...]  # emitted: the accepted path and the token after it
    drafted: int  # draft tokens submitted
    depth: int  # longest path among them
    accepted: int  # how many of `tokens` were draft tokens
    reached: tuple[float, ...]  # given the draft, probability that at least 1, 2, ... of them are accepted
    cost: tuple[float, ...]  # empty for exact rules; else each token's total variation from the target's law
    seconds: dict[str, float]  # prompt, draft, target, verify, and overhead: the host's work around them
    logprobs: tuple[TokenLogprob, ...] = ()  # of `tokens`, where they were asked for
    limit: tuple[float, ...] = ()  # its mean bounds that of `reached`, by any exact rule; of chains, with logprobs

    @property
    def expected(self) -> float:
        """Draft tokens accepted on average over the verifier's noise; the actual number where the rule has no law."""
        return sum(self.reached) if self.reached else float(self.accepted)

    def cut(self, length: int) -> Step:
        """The step of a text that has room for `length` more tokens, as if nothing had been drafted beyond them.

        Of a tree it is not known how many draft tokens that would have been, so all of them count.
        """
        if len(self.tokens) <= length and self.depth < length:
            return self
        depth = min(self.depth, length - 1)
        return self._replace(
            tokens=self.tokens[:length],
            drafted=depth if self.drafted == self.depth else self.drafted,
            depth=depth,
            accepted=min(self.accepted, length - 1),
            reached=self.reached[: length - 1],
            cost=self.cost[:length],
            logprobs=self.logprobs[:length],
            limit=self.limit[: length - 1],
        )

    def as_dict(self) -> dict[str, Any]:
        """The step as a dictionary for JSON; `logprobs` and `limit` are left out where they were not asked for."""
        fields = {**self._asdict(), "expected": self.expected}
        logprobs, limit = [one.as_dict() for one in fields.pop("logprobs")], fields.pop("limit")
        return {**fields, "logprobs": logprobs, "limit": limit} if logprobs else fields


@dataclass
class Trace:
    """All steps of one text."""

    verifier: str = ""
    drafter: str = ""
    notice: str = ""  # of a lossy rule: that the text is not exact
    shapes: Counter[str] = field(default_factory=Counter)  # that tree="auto" chose -> steps
    steps: list[Step] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)  # reasons why drafting was stopped
    reused: int = 0  # tokens of the prompt that were in the KV cache already
    prefill: float = 0.0  # seconds in calls that read parts of the prompt and made no step
    start_seconds: float = 0.0  # before the first step: loading, laying weights out, compiling
    chosen_for: str = ""  # the shape for which this verifier was chosen, where none was named and it is not the default

    @property
    def tree(self) -> str:
        """The shape that tree="auto" chose most often; empty where the shape was given."""
        return self.shapes.most_common(1)[0][0] if self.shapes else ""

    @property
    def tokens(self) -> int:
        return sum(len(step.tokens) for step in self.steps)

    @property
    def drafted(self) -> int:
        return sum(step.drafted for step in self.steps)

    @property
    def accepted(self) -> int:
        return sum(step.accepted for step in self.steps)

    @property
    def tokens_per_call(self) -> float:
        """Emitted tokens per target call; 1 without speculation."""
        return self.tokens / max(len(self.steps), 1)

    @property
    def expected_per_call(self) -> float:
        """The same, averaged over the verifier's noise."""
        return 1 + sum(step.expected for step in self.steps) / max(len(self.steps), 1)

    @property
    def histogram(self) -> dict[int, int]:
        """Accepted length -> number of steps."""
        return dict(sorted(Counter(step.accepted for step in self.steps).items()))

    @property
    def acceptance(self) -> list[float]:
        """Acceptance by position: of the steps that drafted that deep, the share that accepted so many draft tokens."""
        longest = max((step.depth for step in self.steps), default=0)
        shares = []
        for i in range(1, longest + 1):
            tried = [step for step in self.steps if step.depth >= i]
            shares.append(sum(step.accepted >= i for step in tried) / len(tried))
        return shares

    @property
    def cost(self) -> float:
        """Total variation of all tokens added up: zero for exact rules."""
        return sum(sum(step.cost) for step in self.steps)

    @property
    def seconds(self) -> dict[str, float]:
        """Time by phase."""
        total: Counter[str] = Counter()
        for step in self.steps:
            total.update(step.seconds)
        if self.prefill:
            total.update({"prompt": self.prefill})
        return dict(total)

    def summary(self) -> str:
        """The statistics as a few lines of text."""
        spent = self.seconds
        whole = sum(spent.values())
        lines = [
            f"{self.tokens} tokens in {len(self.steps)} target calls: {self.tokens_per_call:.2f} tokens a call"
            + (f", {self.tokens / whole:.1f} tokens/s" if whole else "")
        ]
        if self.drafted:
            share = self.accepted / self.drafted
            chosen = f", chosen for {self.chosen_for}" if self.chosen_for else ""
            lines.append(
                f"draft {self.drafter}, verifier {self.verifier}{chosen}: "
                f"{self.accepted} of {self.drafted} draft tokens accepted ({share:.0%}); "
                f"expected {self.expected_per_call:.2f} tokens a call"
            )
            lines.append("accepted up to position " + _pairs(enumerate(self.acceptance, start=1), "{:.2f}"))
            lines.append("accepted length          " + _pairs(self.histogram.items(), "{} x"))
        elif self.drafter == "none":
            lines.append("no drafter: plain sampling, a target call for every token")
        elif self.drafter:
            lines.append(f"draft {self.drafter}, verifier {self.verifier}: no draft token proposed")
        if self.tree:
            often = ", ".join(f"{shape} x {count}" for shape, count in self.shapes.most_common(4))
            more = f", {len(self.shapes) - 4} more" if len(self.shapes) > 4 else ""
            lines.append(f"shapes chosen step by step: {often}{more}")
        if self.start_seconds:
            lines.append(f"start {self.start_seconds:.1f} s, before the first target call")
        if whole:
            lines.append("time " + ", ".join(f"{phase} {s / whole:.0%}" for phase, s in spent.items()))
        if self.notice:
            lines.append(f"{self.notice}: {self.cost:.3f} in sum, {self.cost / max(self.tokens, 1):.4f} a token")
        lines += [f"drafting given up: {reason} (went on by plain sampling)" for reason in self.failures]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The statistics as a dictionary for JSON."""
        return {
            "verifier": self.verifier,
            "chosen_for": self.chosen_for,
            "drafter": self.drafter,
            "tree": self.tree,
            "shapes": dict(self.shapes),
            "exact": not self.notice,
            "notice": self.notice,
            "total_variation": self.cost,
            "tokens": self.tokens,
            "target_calls": len(self.steps),
            "tokens_per_call": self.tokens_per_call,
            "expected_tokens_per_call": self.expected_per_call,
            "reused_prompt_tokens": self.reused,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_by_position": self.acceptance,
            "accepted_lengths": self.histogram,
            "start_seconds": self.start_seconds,
            "seconds": self.seconds,
            "draft_failures": dict(self.failures),
            "steps": [step.as_dict() for step in self.steps],
        }


@lru_cache(maxsize=64)
def shape_name(tree: Tree) -> str:
    """The name of a shape for `Tree.parse`, else its Python expression."""
    width, depth = len(tree.children(0)), tree.depth[-1]
    if tree.is_chain:
        return f"chain:{depth}"
    if tree == Tree.paths(width, depth):
        return f"paths:{width}x{depth}"
    return f"best:{tree.size - 1}x{depth}" if tree == Tree.best(tree.size - 1, depth) else repr(tree)


def reached_by_depth(stop: Sequence[float], tree: Tree) -> tuple[float, ...]:
    """Probability of accepting at least 1, 2, ... draft tokens, from the law of the last accepted node."""
    depth = tree.depth[: len(stop)]
    return tuple(sum(s for s, d in zip(stop, depth, strict=True) if d >= i) for i in range(1, depth[-1] + 1))


def _pairs(pairs: Any, pattern: str) -> str:
    return "  ".join(f"{key}: {pattern.format(value)}" for key, value in pairs)
