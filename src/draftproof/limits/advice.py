"""Recommend a configuration: the command to use on this machine, and the drafter's temperature."""

from __future__ import annotations

import math
import shlex

from draftproof.limits import FACTORS, LimitReport, Measured, TemperatureResult
from draftproof.theory.plan import Plan

LEAST = 1e-3  # of acceptance: a smaller gain is not worth an option
NOISY = "?"  # in place of a range


def best(result: TemperatureResult) -> Measured:
    """The fastest rule that accepts something; one that accepts nothing may look fast through timing noise."""
    return max(result.rules, key=lambda rule: (rule.plan.tokens > 1, rule.plan.speedup))


def shape(rule: Measured) -> str:
    """The planned tree as the command line takes it."""
    length = rule.plan.tree.depth[-1]
    return f"chain:{length}" if rule.case.siblings == 1 else f"paths:{rule.case.siblings}x{length}"


def speed(plan: Plan) -> str:
    """The predicted speed-up with the range of one standard error; without one after a single position."""
    low, high = plan.interval
    if math.isnan(low):
        return f"{plan.speedup:.2f}"
    return f"{plan.speedup:.2f} ({NOISY if math.isinf(high) else f'{low:.2f}-{high:.2f}'})"


def advice(report: LimitReport, result: TemperatureResult) -> str:
    """Recommend a command in one sentence; a gain within its own error counts as none."""
    rule = best(result)
    start = f"At temperature {result.temperature:g} on this machine use"
    plain = f"{start} `{command(report, result, None)}`"
    gain = f"predicted {speed(rule.plan)} times the speed of plain sampling"
    if rule.plan.tokens == 1:
        return f"{plain}: no rule accepted anything."
    if not rule.plan.interval[0] > 1:
        return f"{plain}: the best rule, {rule.case.rule} with {shape(rule)}, is {gain}."
    return f"{start} `{command(report, result, rule)}`: {rule.plan.tokens:.2f} tokens a call, {gain}."


def command(report: LimitReport, result: TemperatureResult, rule: Measured | None) -> str:
    """The command that generates text with a rule as it was measured, or without a drafter."""
    words = ["--target", report.names.target]
    if rule is None:
        words += ["--draft", "none"]
    else:
        words += ["--draft", report.names.draft, "--verify", rule.case.rule, "--tree", shape(rule)]
    words += ["--temperature", f"{result.temperature:g}"]
    if rule is not None and rule.case.draw == "iid" and (factor := draft_factor(result, rule.case.siblings)) != 1:
        words += ["--draft-temperature", f"{factor * result.temperature:.3g}"]
    if rule is not None and report.draft_top_k:
        words += ["--draft-top-k", str(report.draft_top_k)]
    return shlex.join(["draftproof", "generate", "PROMPT", *words, *report.names.options])


def draft_factor(result: TemperatureResult, siblings: int) -> float:
    """The factor on the drafter's temperature that raises the limit of iid draws most; 1 if none does for sure."""
    if siblings not in result.draft:
        return 1.0
    place, gain, error = _warmest(result, siblings)
    return FACTORS[place] if gain > max(error, LEAST) else 1.0


def draft_temperature(result: TemperatureResult) -> str:
    """The drafter's best temperature in one sentence; empty for a drafter that has none."""
    parts = []
    for siblings in result.draft:
        place, gain, error = _warmest(result, siblings)
        if draft_factor(result, siblings) == 1:
            parts.append(f"the target's own for K = {siblings}")
        else:
            parts.append(f"{FACTORS[place]:g} times the target's for K = {siblings} (+{gain:.3f} ± {error:.3f})")
    return f"Draft temperature with the highest limit of iid draws: {'; '.join(parts)}." if parts else ""


def _warmest(result: TemperatureResult, siblings: int) -> tuple[int, float, float]:
    """Index of the best factor, and what it adds to the limit at factor 1, with the error of that difference."""
    estimate, own = result.draft[siblings], FACTORS.index(1.0)
    place = int(estimate.mean.argmax())
    spread = estimate.covariance[[place, own]][:, [place, own]]
    variance = float(spread[0, 0] + spread[1, 1] - 2 * spread[0, 1])
    return place, float(estimate.mean[place] - estimate.mean[own]), math.sqrt(max(variance, 0.0))
