"""Seeded faults are found, each within its number of tokens, and the words name what was done."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks import reused_noise
from draftproof.audit.report import Report
from draftproof.audit.transcripts import Transcript
from draftproof.sampling import Sampling
from tests.support.faults import PENALTIES, Rule, World, auditor, blocks, chain, feed, penalised, plain, softmax, world

ALARM = np.log(100)


def audited(here: World, texts: Iterator[Transcript], limit: int, *, draft: bool = True, steps: bool = False) -> Report:
    """The report at the alarm, or after `limit` tokens; texts come in portions of some ten."""
    book = auditor(here, draft, steps)
    while book.evidence.count < limit and book.evidence.peak < ALARM:
        portion = [next(texts) for _ in range(10)]
        if not steps:
            portion = [text._replace(accepted=None) for text in portion]
        feed(book, here, *portion, draft=draft)
    return book.report(0.01)


def forever(make) -> Iterator[Transcript]:
    seed = 0
    while True:
        yield make(seed)
        seed += 1


FAULTS = {
    # fault: (vocabulary, tokens it may take, engine, words of the verdict)
    "residual drawn from p": (
        30,
        5_000,
        lambda here, seed: chain(here, 100, seed, Rule(replace=lambda p, q: p)),
        "drawn after a rejection",
    ),
    "accepted 2% too often": (
        60,
        100_000,
        lambda here, seed: chain(here, 400, seed, Rule(accept=lambda p, q: 1.02 * p / q)),
        "accepted 1.02 times as often",
    ),
    "temperature 3% too high": (
        30,
        100_000,
        lambda here, seed: plain(here, 200, seed, heat=1.03),
        "temperature were 1.0[234] instead of 1",
    ),
    "temperature 3% too low": (
        30,
        100_000,
        lambda here, seed: plain(here, 200, seed, heat=0.97),
        "temperature were 0.9[678] instead of 1",
    ),
    "top-p 0.9 not applied": (
        30,
        5_000,
        lambda here, seed: plain(here, 50, seed)._replace(sampling=Sampling(top_p=0.9)),
        "truncation were ignored",
    ),
    "penalties ignored on draft positions": (
        30,
        50_000,
        lambda here, seed: chain(here, 100, seed, Rule(target=penalised), PENALTIES),
        "penalties were ignored",
    ),
    "best guess verified with softmax q": (
        30,
        5_000,
        lambda here, seed: chain(here, 50, seed, Rule(guess=lambda q, u: int(q.argmax()))),
        "top token were verified as a draw from q",
    ),
}
DRAFT = {60: 0.5, 30: 0.7}  # how far the draft's scores are from the target's


@pytest.mark.parametrize("name", FAULTS)
def test_a_seeded_fault_is_found_in_time_and_named(name):
    size, limit, engine, words = FAULTS[name]
    here = world(2 if size == 60 else 1, size, DRAFT[size])
    found = audited(here, forever(lambda seed: engine(here, seed)), limit)
    assert not found.exact, found.text()
    assert found.tokens <= limit
    assert found.verdict.startswith("not exact: the outputs look as if ")
    assert re.search(words, found.verdict), found.verdict


@pytest.mark.parametrize("steps", [True, False])
def test_noise_that_is_used_again_in_the_next_step_is_found(steps):
    """Block verification with a guess's noise named by its position alone: right at every step, wrong across steps."""
    here = world(1, 4)
    found = audited(here, iter(blocks(here, 500, 100, 1, by_position=True)), 50_000, draft=False, steps=steps)
    assert not found.exact
    assert found.tokens < 50_000  # of the 200,000 that it may take
    fresh = audited(here, iter(blocks(here, 150, 100, 1, by_position=False)), 15_000, draft=False, steps=steps)
    assert fresh.exact


def test_noise_that_is_used_again_is_found_in_a_large_vocabulary():
    """Block verification with the noise of its tests named by position: bets on the step before show it soonest."""
    laws = reused_noise.zipf(24, 2048, 1.0)
    found = reused_noise.step_bets(laws, reused_noise.written(laws, 500, 100, 2, seed=1, again=True))
    assert found.evidence.count == 50_000
    assert found.evidence.evidence > ALARM
    wealth = found.won
    by_step_before = "how often the draft's favourites come depends on the step before"
    again = "where a position is drafted again, draft tokens were accepted too rarely"
    others = max(log for says, log in wealth.items() if says not in (by_step_before, again))
    assert min(wealth[by_step_before], wealth[again]) > others + 3
    fresh = reused_noise.step_bets(laws, reused_noise.written(laws, 200, 100, 2, seed=1, again=False))
    assert fresh.evidence.peak < ALARM


def test_samples_that_share_their_noise_are_found():
    here = world(3, 6)

    def texts():
        for seed in range(1000):
            for _ in range(2):
                text = plain(here, 40, seed)  # twice the same
                yield text._replace(prompt=(seed % 5, seed // 5 % 5, seed // 25 % 5, 0))

    found = audited(here, texts(), 4_000, draft=False)
    assert not found.exact
    assert "samples of one prompt are dependent" in found.verdict


def test_samples_that_share_one_draft_are_found():
    """Every sample has the right law, but two of them tested the same guesses."""
    here = world(3, 6, 0.5)

    def texts():
        for seed in range(2000):
            shared = np.random.default_rng(seed).random(9)
            for k in range(2):
                noise = np.random.default_rng([seed, k])
                text = [0]
                for t in range(4):
                    p, q = softmax(here.p[text[-1]]), softmax(here.q[text[-1]])
                    x = int(np.searchsorted(np.cumsum(q), shared[t] * 0.999999))
                    rest = np.maximum(p - q, 0)
                    accepted = noise.random() < p[x] / q[x]
                    text.append(x if accepted else int(noise.choice(6, p=rest / rest.sum())))
                yield Transcript((seed % 50 % 6, seed // 6 % 6, seed // 36 % 6, 0), tuple(text[1:]), Sampling())

    found = audited(here, texts(), 10_000)
    assert not found.exact
    assert "samples of one prompt are dependent" in found.verdict


def test_the_power_that_is_stated_is_the_power_there_is():
    """Faults of just the size that the report says it would have shown, nine times out of ten, are shown mostly."""
    here = world(1, 30, 0.7)
    exact = audited(here, forever(lambda seed: plain(here, 300, seed)), 6_000, draft=False)
    (off,) = [p for p in exact.power if p.family == "temperature"]
    size = float(off.says.split()[-1].rstrip("%")) / 100
    assert 0.02 < size < 0.15
    shown = []
    for trial in range(15):
        texts = forever(lambda seed, trial=trial: plain(here, 300, 1000 * trial + seed, heat=1 + size))
        shown.append(not audited(here, texts, 6_000, draft=False).exact)
    assert sum(shown) >= 9
