"""The paired test: fair whatever the engine's law is, as long as both files have the same; and faults are found."""

from __future__ import annotations

import copy
import json
import math
import re
from itertools import permutations

import numpy as np
import pytest

from draftproof.audit import Transcript, compare
from draftproof.audit.cells import Entries
from draftproof.audit.evidence import Observed
from draftproof.audit.page import html
from draftproof.audit.paired import PairedAuditor, PairedEvidence, Shape, _batches, odd_one_out
from draftproof.audit.pairing import grouped
from draftproof.audit.power import powers
from draftproof.audit.rows import FEWEST
from draftproof.audit.transcripts import InputError
from draftproof.audit.wealth import Moments
from draftproof.law import sample
from draftproof.models.table import TableModel
from draftproof.sampling import Sampling, law
from tests.support.faults import PENALTIES, Rule, World, chain, penalised, plain, rows_of, softmax, world

ALARM = np.log(100)


def comparison(here: World, draft: bool = True) -> PairedAuditor:
    return PairedAuditor(TableModel(lambda context: np.full(here.size, 1 / here.size)), draft)


def feed(book: PairedAuditor, here: World, *groups: tuple[list[Transcript], list[Transcript]]) -> None:
    """Add groups of plain and speculative texts, with the rows of the world, which need not be the engine's."""
    read = [[rows_of(here, text) for text in (*without, *speculative)] for without, speculative in groups]
    book.add(read, [len(without) for without, _ in groups])


# Fairness


@pytest.mark.parametrize(("plains", "speculatives"), [(1, 1), (4, 1), (1, 3)])
def test_whatever_the_scores_a_bet_has_mean_one_over_the_texts_that_could_be_the_odd_one(plains, speculatives):
    size = plains + speculatives
    scores = np.random.default_rng(1).normal(size=(size, 50)) * 5
    odd = size - 1 if plains > 1 else 0
    others = [i for i in range(size) if i != odd]
    factors = []
    for chosen in range(size):
        order = np.empty(size, dtype=int)
        order[odd], order[others] = chosen, [i for i in range(size) if i != chosen]
        factors.append(np.exp(odd_one_out(scores[order], plains)))
    assert np.mean(factors, axis=0) == pytest.approx(np.ones(50))
    assert np.ptp(factors) > 1  # something was bet


@pytest.mark.parametrize(("plains", "speculatives"), [(1, 1), (2, 1), (1, 2)])
def test_all_bets_together_are_fair_given_the_past(plains, speculatives):
    """The whole book, after it has learned: its mean over the ways to call these texts plain and speculative is one."""
    here, chance = world(1, 5), np.random.default_rng(2)
    book = comparison(here)
    for seed in range(6):
        made = [plain(here, 30, 10 * seed + k, heat=0.5 if k > 1 else 1.0) for k in range(3)]
        feed(book, here, (made[:plains], made[plains:][:speculatives]))
    texts = [plain(here, 12 + k, 100 + k, heat=chance.uniform(0.5, 2)) for k in range(plains + speculatives)]
    factors = []
    for order in permutations(texts):
        after = copy.deepcopy(book)
        feed(after, here, (list(order[:plains]), list(order[plains:])))
        factors.append(math.exp(after.evidence.evidence - book.evidence.evidence))
    assert np.mean(factors) == pytest.approx(1, abs=1e-9)
    assert max(factors) > 1.01


class Pool:
    """Texts of one prompt, looked at once; audits draw groups from them by lot."""

    def __init__(self, here: World, texts: list[Transcript]) -> None:
        self.book = comparison(here, draft=False)
        self.length = len(texts[0].output)
        self.observed, _ = self.book.observe([[rows_of(here, text, draft=False)] for text in texts])

    def peak(self, texts: np.ndarray) -> float:
        """The largest evidence of an audit of pairs: indices [pairs, 2] of a plain and a speculative text."""
        at = (texts.ravel()[:, None] * self.length + np.arange(self.length)).ravel()
        entries = [Entries(*(array[at] for array in entry)) for entry in self.observed.entries]
        observed = Observed(self.observed.ratio[at], self.observed.spread[at], entries, self.observed.void[at])
        evidence = PairedEvidence(self.book.alternatives, self.book.tables)
        evidence.add(observed, [Shape((self.length,), (self.length,))] * len(texts))
        self.evidence = evidence
        return evidence.peak


@pytest.mark.parametrize("off", [0.0, 0.7], ids=["the engine's law is ours", "it is another one"])
def test_false_alarms_are_rarer_than_alpha_whatever_the_engines_law(off):
    """A thousand audits of an engine whose speculation changes nothing; looked at after every pair."""
    here, chance, texts, pairs = world(7, 5), np.random.default_rng(5), 1000, 10
    laws = softmax(here.p + off * chance.normal(size=here.p.shape))
    outputs = [np.zeros(texts, dtype=int)]
    for _ in range(20):
        outputs.append(sample(laws[outputs[-1]], chance.random(texts)))
    said = np.stack(outputs[1:], axis=1).tolist()
    pool = Pool(here, [Transcript((0,), tuple(output), Sampling()) for output in said])
    peaks = [pool.peak(chance.permutation(texts)[: 2 * pairs].reshape(pairs, 2)) for _ in range(1000)]
    for alpha in (0.01, 0.1):
        assert np.mean(np.array(peaks) >= np.log(1 / alpha)) <= 1.6 * alpha
    assert np.mean(np.array(peaks) > 0) > 0.5  # something was bet


# Power


def honestly_penalised(scores, counts, tested):
    return penalised(scores, counts, tested=False)


CUT = Sampling(top_p=0.9)
FAULTS = {
    # fault: (tokens it may take, faulty engine, the engine's plain sampling, words of the verdict)
    "residual drawn from p": (
        6_000,
        lambda here, seed: chain(here, 100, seed, Rule(replace=lambda p, q: p)),
        lambda here, seed: plain(here, 100, seed),
        "draft tokens",
    ),
    "accepted half as often again": (
        10_000,
        lambda here, seed: chain(here, 100, seed, Rule(accept=lambda p, q: 1.5 * p / q)),
        lambda here, seed: plain(here, 100, seed),
        "draft tokens",
    ),
    "temperature 10% too high": (
        10_000,
        lambda here, seed: plain(here, 100, seed, heat=1.1),
        lambda here, seed: plain(here, 100, seed),
        r"temperature were 1\.\d+ instead of 1",
    ),
    "top-p 0.9 not applied": (
        3_000,
        lambda here, seed: plain(here, 50, seed)._replace(sampling=CUT),
        lambda here, seed: plain(here, 50, seed, laws=law(here.p, CUT))._replace(sampling=CUT),
        "truncation were ignored|the settings forbid",
    ),
    "penalties ignored on draft positions": (
        9_000,
        lambda here, seed: chain(here, 100, seed, Rule(target=penalised), PENALTIES),
        lambda here, seed: chain(here, 100, seed, Rule(target=honestly_penalised), PENALTIES),
        "penalties were ignored|text so far",
    ),
    "best guess verified with softmax q": (
        3_000,
        lambda here, seed: chain(here, 50, seed, Rule(guess=lambda q, u: int(q.argmax()))),
        lambda here, seed: plain(here, 50, seed),
        "top token were verified as a draw from q",
    ),
}


def compared(here: World, speculative, without, limit: int, known: World | None = None):
    """The report at the alarm, or after `limit` tokens; `known` is what the audit takes for the engine's world."""
    book, seed = comparison(here), 0
    while book.evidence.count < limit and book.evidence.peak < ALARM:
        groups = []
        for _ in range(10):
            texts = speculative(here, seed), without(here, 10**6 + seed)
            groups.append(([texts[1]._replace(accepted=None)], [texts[0]._replace(accepted=None)]))
            seed += 1
        feed(book, known or here, *groups)
    return book.report(0.01)


@pytest.mark.parametrize("off", [0.0, 0.2], ids=["the engine's law is ours", "it is another one"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_seeded_fault_is_found_in_time_and_named(name, off):
    limit, faulty, honest, words = FAULTS[name]
    here = world(1, 30, 0.7)
    noise = np.random.default_rng(3).normal(size=here.p.shape) * off
    found = compared(World(here.p + noise, here.q), faulty, honest, limit * (1 if off == 0 else 2), known=here)
    assert not found.exact, found.text()
    assert found.verdict.startswith("not exact: beside plain texts of the engine the outputs look as if ")
    assert re.search(words, found.verdict) or off > 0, found.verdict


def test_samples_that_share_their_noise_are_found():
    """Speculative samples of a prompt come in twos that are the same; plain ones are independent."""
    here, groups = world(3, 6), []
    for seed in range(60):
        for k in range(2):
            prompt = (seed % 5, seed // 5 % 5, seed // 25 % 5, 0)
            texts = plain(here, 20, seed), plain(here, 20, 1000 + 2 * seed + k)
            groups.append(tuple([text._replace(prompt=prompt)] for text in reversed(texts)))
    book = comparison(here)
    feed(book, here, *groups)
    found = book.report(0.01)
    assert not found.exact
    assert "samples of one prompt are dependent" in found.verdict


def test_more_plain_texts_show_the_same_fault_with_fewer_speculative_ones():
    here, wealth = world(1, 30, 0.7), []
    for plains in (1, 4):
        book = comparison(here)
        for seed in range(10):
            speculative = plain(here, 100, seed, heat=1.2)
            feed(book, here, ([plain(here, 100, 10**6 + 10 * seed + k) for k in range(plains)], [speculative]))
        wealth.append(book.evidence.evidence)
        assert book.evidence.count == 1000
    assert wealth[1] > wealth[0] + 1


def test_the_power_that_is_stated_is_the_power_there_is():
    """Temperatures off by just as much as the report says it would have shown, nine times out of ten, show mostly."""
    here, chance, texts, pairs = world(1, 30, 0.7), np.random.default_rng(4), 150, 40

    def shown(heat: float) -> tuple[Pool, float]:
        made = [plain(here, 40, seed) for seed in range(texts)]
        made += [plain(here, 40, 1000 + seed, heat=heat) for seed in range(texts)]
        pool, peaks = Pool(here, made), []
        for _ in range(40):
            picked = [k * texts + chance.permutation(texts)[:pairs] for k in range(2)]
            peaks.append(pool.peak(np.stack(picked, axis=1)))
        return pool, np.mean(np.array(peaks) > ALARM)

    pool, alarms = shown(1.0)
    assert alarms == 0
    (off,) = [p for p in powers(pool.evidence, pool.book.power, 0.01) if p.family == "temperature"]
    size = float(off.says.split()[-1].rstrip("%")) / 100
    assert 0.1 < size < 0.3
    assert shown(1 + size)[1] > 0.7
    assert shown(1 + size / 3)[1] < 0.3


def test_what_a_bet_surely_reaches_is_reached_nine_times_out_of_ten():
    """By drawing the differences of two texts' scores, of which there are many tokens' worth: they are about normal."""
    book = comparison(world(1, 6, 0.7)).evidence
    book.pairs, book.texts, book.lengths = 60.0, 60, 60 * 40
    chance = np.random.default_rng(7)
    for drift, variance in ((0.002, 0.004), (0.02, 0.01), (0.1, 0.05)):
        faulty, exact = (Moments(np.array([mean]), np.array([variance])) for mean in (drift, -drift / 2))
        apart = 40 * 1.5 * drift + np.sqrt(40 * 2 * variance) * chance.normal(size=(4000, 60))
        won = (np.log(2) - np.logaddexp(0, -apart)).sum(axis=1)
        (stated,) = book.surely(faulty, exact, np.zeros(1))
        assert np.mean(won > stated) == pytest.approx(0.9, abs=0.02)


# Which texts are compared


def text(prompt: int, *output: int, line: int = 0, **settings) -> Transcript:
    return Transcript((prompt,), output, Sampling(end_tokens=(9,), **settings), line=line)


def test_texts_are_grouped_by_prompt_in_the_order_of_the_speculative_file():
    ours = [text(1, 5), text(2, 6), text(1, 7), text(4, 4)]
    others = [text(2, 1), text(1, 2), text(1, 3), text(2, 4), text(2, 5), text(3, 8)]
    made, alone = grouped(ours, others)
    said = [([t.output[0] for t in group.plain], [t.output[0] for t in group.speculative]) for group in made]
    assert said == [([2], [5]), ([1, 4, 5], [6]), ([3], [7])]
    assert alone == 2
    made, _ = grouped(others, ours)
    said = [([t.output[0] for t in group.plain], [t.output[0] for t in group.speculative]) for group in made]
    assert said == [([6], [1, 4, 5]), ([5], [2]), ([7], [3])]


def test_settings_of_one_prompt_are_kept_apart():
    ours = [text(1, 5, temperature=0.5), text(1, 6)]
    made, alone = grouped(ours, [text(1, 2), text(1, 3, temperature=0.5)])
    assert [(group.plain[0].output, group.speculative[0].output) for group in made] == [((3,), (5,)), ((2,), (6,))]
    assert alone == 0


def test_all_texts_are_cut_where_the_shortest_was_cut_off():
    """A limit of three tokens in one file and of five in the other; texts that ended by themselves do not tell it."""
    made, _ = grouped([text(1, 1, 2, 3), text(1, 4, 9)], [text(1, 1, 2, 3, 4, 5), text(1, 7, 7, 7, 9)])
    assert [[t.output for t in group.texts] for group in made] == [[(1, 2, 3), (1, 2, 3)], [(7, 7, 7), (4, 9)]]


def test_no_bet_depends_on_what_only_speculative_texts_have():
    ours = [text(1, 5, 6)._replace(accepted=(True, False))]
    made, _ = grouped(ours, [text(1, 5, 7)])
    assert made[0].speculative[0].accepted is None
    assert not any("position in the step" in table.says for table in comparison(world(1, 5)).tables)


@pytest.mark.parametrize(
    ("ours", "others", "message"),
    [
        ([text(1, 5)], [], "there are no plain transcripts"),
        ([], [text(1, 5)], "there are no speculative transcripts"),
        ([text(1, 5)], [text(2, 5)], "no prompt in common: collect both from the same prompts"),
        ([text(1, 5, line=3)], [text(1, 4, top_p=0.9)], r"line 3: top_p is 1.0, but 0.9 in the plain transcripts"),
        ([text(1, 5)], [text(1, 5)], "collect them with different seeds"),
        ([text(1, 5)._replace(engine="a 1")], [text(1, 4)._replace(engine="b 2")], "of a 1, the plain ones of b 2"),
        ([text(1, 5)._replace(retokenised=True)], [text(1, 4)], "only one of the files was tokenised again"),
    ],
)
def test_files_that_cannot_be_compared_are_an_error(ours, others, message):
    with pytest.raises(InputError, match=message):
        grouped(ours, others)


def test_greedy_texts_may_be_the_same():
    assert len(grouped([text(1, 5, temperature=0)], [text(1, 5, temperature=0)]).groups) == 1


# The report


def coins(heads: float, seed: int) -> list[Transcript]:
    flips = np.random.default_rng(seed).random((40, 30)) < heads
    return [Transcript((0,), tuple(map(int, row)), Sampling()) for row in flips]


def test_an_engine_is_compared_with_itself_and_not_with_our_law():
    """Its coin is biased: an audit would find that, a comparison only what speculation changes."""
    coin = TableModel(lambda context: [0.5, 0.5])
    same = compare(coins(0.6, 1), coins(0.6, 2), coin)
    assert re.fullmatch(
        r"no difference so far at level 0\.01 after 1200 tokens in 40 pairs \(evidence \S+, alarm at 100\)",
        same.verdict,
    )
    assert "compared with 1200 tokens of plain sampling, so there is no allowance for rounding" in same.text()
    other = compare(coins(0.7, 1), coins(0.5, 2), coin)
    assert not other.exact
    said = json.loads(other.json())
    assert said["paired"] == {"groups": 40, "plain_tokens": 1200, "alone": 0}
    assert (said["exact"], said["tokens"], said["transcripts"]) == (False, 1200, 80)
    for found, words in ((same, "<strong>No difference so far</strong>"), (other, "<strong>Not exact</strong>")):
        assert words in html(found)
        assert "pairs of texts" in html(found)
        assert "allowance for rounding" not in html(found)


def test_texts_are_read_together_as_far_as_there_is_room(monkeypatch):
    """In their order, every group once; a group that is too large for the room is read alone."""
    monkeypatch.setattr("draftproof.audit.paired.room", lambda target: (20 * FEWEST, 0))
    sizes = [3, 2, 5, 1, 12, 4, 4, 1]
    speculative, plains = ([text(i, *[k] * (size - 1), 9) for i, size in enumerate(sizes)] for k in range(2))
    made = grouped(speculative, plains)
    batches = list(_batches(made, TableModel(lambda context: np.full(5, 0.2))))
    assert [group for batch in batches for group in batch] == list(made.groups)
    for batch in batches:
        longest = max(len(one.output) for group in batch for one in group.texts)
        assert len(batch) == 1 or 2 * len(batch) * longest <= 20
    assert len(batches) < len(sizes)


def test_texts_without_a_partner_are_counted():
    extra = Transcript((1,), (0,) * 30, Sampling())
    found = compare([*coins(0.5, 1), extra], coins(0.5, 2), TableModel(lambda context: [0.5, 0.5]))
    assert "1 texts were left out" in found.text()
