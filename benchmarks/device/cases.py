"""The cases: not every combination, but every pair of values that can interact, in as few cases as a search finds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from benchmarks.device.models import FAMILIES, WIDE
from draftproof.couple import COUPLINGS
from draftproof.verify import VERIFIERS

TUNED = "tuned"  # no rule, no tree and no seed: as a command is run where nothing is set
TREES = {"chain": "chain:3", "star": "star:3", "paths": "paths:2x3", "any": "best:8x3"}
QUICK = {1: 1, 500: 40, 8000: 150}  # tokens of a prompt where time is short

Values = Mapping[str, Sequence[str | int]]
Goals = Sequence[tuple[str, ...]]  # names of values that should occur in all combinations
Pair = tuple[tuple[str, ...], tuple[str | int, ...]]  # names, and a value of each


class Case(NamedTuple):
    """A text, or several, with one value of everything."""

    family: str
    dtype: str
    draft: str
    rule: str
    control: str
    door: str
    batch: int
    prompt: int  # tokens

    @property
    def name(self) -> str:
        return ", ".join([*self[:6], f"batch {self.batch}", f"prompt {self.prompt}"])

    @property
    def tree(self) -> str | None:
        """A tree that the rule takes; None where it is tuned."""
        if self.rule == TUNED:
            return None
        return TREES[VERIFIERS[self.rule].trees] if self.rule in VERIFIERS else TREES["paths"]


VALUES: dict[str, tuple[str | int, ...]] = {
    "family": tuple(family for family in FAMILIES if family != WIDE),
    "dtype": ("float32", "bfloat16", "float16"),
    "draft": ("none", "head", "model", "ngram", "cache", "ngram|head", "text:", "other tokenizer"),
    "rule": (*VERIFIERS, *COUPLINGS, TUNED),
    "control": (
        *("temperature", "greedy", "top_k", "top_p", "min_p", "typical_p"),
        *("penalties", "bias", "masks", "schedule", "processor"),
    ),
    "door": ("generate", "stream", "engine", "custom_generate", "samples"),
    "batch": (1, 4, 32),
    "prompt": (1, 500, 8000),
}
# What can go wrong together: layers by their precision and shapes, kernels by controls, batches by how they are asked.
INTERACT = (
    *("family dtype", "family draft", "family prompt", "dtype draft", "dtype control", "dtype door"),
    *("draft door", "draft batch", "draft prompt", "draft control", "rule dtype", "rule door"),
    *("control door", "control batch", "door batch", "door prompt", "batch prompt"),
)
# What the graph stepper serves on a GPU: its kernels are compiled for combinations, so these get pairs of their own.
BY_GRAPH: dict[str, tuple[str | int, ...]] = {
    **VALUES,
    "draft": ("none", "head", "model"),
    "rule": ("token", "block", "traversal", TUNED),
    "control": ("temperature", "greedy", "top_k", "top_p", "min_p", "penalties", "bias", "masks"),
}
# The shapes of the default target with its head, which no small model has.
WIDE_CASES = tuple(
    Case(WIDE, dtype, draft, rule, control, door, batch, 500)
    for dtype, draft, rule, control, door, batch in (
        ("float32", "head", TUNED, "temperature", "generate", 1),
        ("bfloat16", "head", TUNED, "temperature", "generate", 1),
        ("bfloat16", "head", "block", "temperature", "stream", 1),
        ("bfloat16", "head", "traversal", "top_k", "generate", 1),
        ("bfloat16", "none", TUNED, "top_p", "engine", 4),
        ("float16", "head", "block", "penalties", "engine", 4),
        ("bfloat16", "head", "block", "greedy", "samples", 4),
    )
)


def is_possible(case: Case) -> bool:
    """Whether the parts go together: a stream has one text, and transformers' generate takes what it knows."""
    if case.draft == "none" and case.rule not in ("block", "gumbel", TUNED):
        return False
    if case.door == "stream" and case.batch > 1:
        return False
    if case.prompt > 500 and case.batch > 4:  # the reference would take minutes
        return False
    if case.door == "custom_generate":
        return case.draft in ("none", "model", "ngram", "cache") and case.control != "schedule"
    return True


def cover(values: Values, goals: Goals, begun: Sequence[Case] = (), seed: int = 0) -> list[Case]:
    """Cases in which every possible combination of these goals occurs, if it does not in those that are there."""
    chance = random.Random(seed)
    missing = {(names, found) for names in goals for found in itertools.product(*(values[name] for name in names))}
    missing -= {pair for case in begun for pair in _pairs(case, goals)}
    cases: list[Case] = []
    while missing:
        wanted = min(missing, key=repr)
        tries = list(itertools.islice(_with(wanted, values, chance), 60))
        best = max(tries, key=lambda case: len(missing & _pairs(case, goals)), default=None)
        missing -= {wanted} if best is None else _pairs(best, goals)  # None: it is not possible
        cases += [] if best is None else [best]
    return cases


def _pairs(case: Case, goals: Goals) -> set[Pair]:
    asked = case._asdict()
    return {(names, tuple(asked[name] for name in names)) for names in goals}


def _with(wanted: Pair, values: Values, chance: random.Random) -> Iterator[Case]:
    """Random possible cases with these values; none if many tries find none."""
    fixed = dict(zip(*wanted, strict=True))
    for _ in range(2000):
        drawn = {name: fixed.get(name, chance.choice(some)) for name, some in values.items()}
        case = Case(**drawn)  # type: ignore[arg-type]
        if is_possible(case):
            yield case


def matrix(quick: bool = False) -> list[Case]:
    """All cases; the quick ones have every value once, fewer texts and shorter prompts."""
    if quick:
        cases = cover(VALUES, [(name,) for name in VALUES])
        return [case._replace(prompt=QUICK[case.prompt], batch=min(case.batch, 6)) for case in cases]
    goals = [tuple(pair.split()) for pair in INTERACT]
    graph = cover(BY_GRAPH, [*goals, ("rule", "control"), ("rule", "draft")])
    return [*graph, *cover(VALUES, goals, graph), *WIDE_CASES]
