"""Check texts: the tokens of the eager stepper on the CPU where the seed fixes them, else the law of every token.

The law is tested by the place of each token among the tokens in order of their probability: under the reference's law
that place, spread evenly over the token's own probability, is uniform. A law that is too sharp, too flat, cut
elsewhere, or of another context is not.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from benchmarks.device.cases import TUNED, Case
from benchmarks.device.models import WIDE, transformers_network
from benchmarks.device.running import LENGTH, Written, sampling_of, write
from draftproof.sampling import Context, Sampling, law

CHANCE = 1e-8  # of failing a correct program, for each test of a law
TOKENS = 160  # at least so many for a test of a law
BINS = 10
SEEDS = 3  # where texts differ by rounding, so many are looked at in all
NEAR = {True: 1e-3, False: 0.6}  # how far below the largest logit a greedy token's may be: in float32, in 16 bits


def check(case: Case, device: str, seed: int) -> str:
    """Write the texts of a case and check them; how they were checked, or AssertionError."""
    if case.dtype != "float32" or case.rule == TUNED or case.family == WIDE:
        return _by_law(case, device)
    pairs = [(write(case, "float32", device, seed), write(case, "float32", "cpu", seed))]
    if all(map(_same, *pairs[0])):
        return "same tokens"
    for other in range(seed + 1, seed + SEEDS):
        pairs.append((write(case, "float32", device, other), write(case, "float32", "cpu", other)))
    every = [_same(one, other) for ours, theirs in pairs for one, other in zip(ours, theirs, strict=True)]
    differing = every.count(False)
    if differing > 1 + len(every) // 10:  # more than rounding where a uniform falls between two tokens
        raise AssertionError(f"{differing} of {len(every)} texts differ from those on the CPU")
    return f"same tokens but {differing} of {len(every)} texts; {_by_law(case, device)}"


def _same(text: Written, reference: Written) -> bool:
    """A text that was cancelled need not be as long."""
    if text.is_whole and reference.is_whole:
        return text.tokens == reference.tokens
    shorter = min(len(text.tokens), len(reference.tokens))
    return text.tokens[:shorter] == reference.tokens[:shorter]


def _by_law(case: Case, device: str) -> str:
    """Test the law of all tokens, of several batches if one has too few."""
    wanted, texts = 1 if case.control == "greedy" else TOKENS, list[Written]()
    while sum(len(text.tokens) for text in texts) < wanted:
        texts += write(case, case.dtype, device, None)
    for text in texts:
        if text.is_whole and len(text.tokens) != LENGTH:
            raise AssertionError(f"a text has {len(text.tokens)} tokens instead of {LENGTH}")
    return judge(reference(case), sampling_of(case), texts, exact=case.dtype == "float32")


@cache
def _network(family: str, dtype: str) -> Any:
    """The weights as the device has them, in float32 on the CPU."""
    return copy.deepcopy(transformers_network(family, dtype, "cpu")).float()


def reference(case: Case) -> Any:
    """A function from a text to the logits [T, V] that the reference has before each of its tokens."""
    network = _network(case.family, case.dtype)

    @torch.no_grad()
    def logits(text: Written) -> np.ndarray:
        ids = torch.tensor([[*text.prompt, *text.tokens]])
        scores = network(ids, logits_to_keep=len(text.tokens) + 1).logits[0, :-1]
        return np.asarray(scores.double())

    return logits


def judge(logits: Any, sampling: Sampling, texts: Sequence[Written], exact: bool) -> str:
    """How the tokens compare with the law of these logits under the sampling; or AssertionError."""
    places: list[float] = []
    below = 0.0  # how far a token's logit was below the largest
    chance = np.random.default_rng(0)
    for text in texts:
        history = None
        if sampling.reads_history:
            history = [Context(text.prompt, tuple(text.tokens[:t])) for t in range(len(text.tokens))]
        scores, index = logits(text), np.arange(len(text.tokens))
        p = np.asarray(law(scores, sampling, history))
        own = p[index, text.tokens]
        below = max(below, float((scores.max(-1) - scores[index, text.tokens]).max()))
        above = np.where(p > own[:, None], p, 0).sum(-1)
        places += (above + own * chance.random(len(own))).tolist()
    banned = set(sampling.banned) & {token for text in texts for token in text.tokens}
    if banned:
        raise AssertionError(f"tokens that are banned were written: {sorted(banned)[:5]}")
    if sampling.temperature == 0:
        if below > NEAR[exact]:
            raise AssertionError(f"a greedy token is {below:.2g} below the largest logit")
        return f"law, at most {below:.2g} below the largest logit"
    found = probability(places)
    if found < CHANCE:
        raise AssertionError(f"the law of {len(places)} tokens is another: chance {found:.1e}")
    return f"law, {found:.2g}"


def probability(places: Sequence[float]) -> float:
    """The chance that uniform numbers are spread as unevenly as these: Pearson's chi-square."""
    counts, _ = np.histogram(np.clip(places, 0, 1), bins=BINS, range=(0, 1))
    mean = len(places) / BINS
    statistic = float(((counts - mean) ** 2 / mean).sum())
    degrees = torch.tensor((BINS - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, torch.tensor(statistic / 2, dtype=torch.float64)))
