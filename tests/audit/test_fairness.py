"""Every bet is fair if the engine is exact: its mean, given the past, is one. From that alone alarms are rare."""

from __future__ import annotations

import copy
import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch

from draftproof.audit import alternatives as faults
from draftproof.audit import cells
from draftproof.audit.alternatives import AuditRows, alternatives, condensed, derived
from draftproof.audit.evidence import Evidence, Observed, learn, learned_logs, named_logs
from draftproof.audit.keys import DraftLength
from draftproof.audit.payoffs import payoffs
from draftproof.audit.rows import ReadTranscript, rows
from draftproof.audit.transcripts import Transcript
from draftproof.audit.wealth import STRENGTHS
from draftproof.law import residual, sample
from draftproof.sampling import Sampling, law
from tests.support.faults import auditor, chain, feed, plain, rows_of, softmax, world

V = 7


def laws(seed: int, count: int = 30) -> AuditRows:
    """Rows with zeros in p, ties, and drafts without a guess; y runs through the vocabulary for each of them."""
    chance = np.random.default_rng(seed)

    def weights() -> np.ndarray:
        made = chance.choice([0.0, 1.0, 1.0, 2.0, 5.0, 9.5], size=(count, V))
        made[np.arange(count), chance.integers(V, size=count)] += 0.5
        return (made / made.sum(axis=1, keepdims=True)).repeat(V, axis=0)

    p, q = weights(), weights()
    q[: 3 * V] = 0
    y = np.tile(np.arange(V), count)
    seen = chance.random((count, V)).repeat(V, axis=0) < 0.4
    again = (chance.random(count) < 0.5).repeat(V)
    return derived(AuditRows(p, y, seen, q, weights(), weights(), again))


@pytest.mark.parametrize("alternative", alternatives(draft=True, steps=True), ids=lambda a: a.says)
def test_an_alternative_is_a_law_and_its_ratio_has_mean_one(alternative):
    made = laws(1)
    a = alternative.law(made)
    assert np.abs(a.sum(axis=1) - 1).max() < 1e-12
    assert a.min() >= 0
    if alternative.family in ("temperature", "truncation added", "repetition", "rejection"):
        assert (a[made.p == 0] == 0).all()  # else a mere tilt would be charged for the payoff of impossible tokens
    ratio = payoffs([alternative], made, 0.0)[0].ratio
    drawable = made.p[np.arange(len(made.y)), made.y] > 0
    here = made.p[np.arange(len(made.y)), made.y]
    mean = np.where(drawable, here * np.where(drawable, ratio, 0), 0).reshape(-1, V).sum(axis=1)
    outside = np.where(made.p == 0, a, 0).sum(axis=1)[::V]  # what the alternative puts where p is zero is never paid
    assert np.abs(mean + outside - 1).max() < 1e-12
    assert np.all(np.isinf(ratio[~drawable]) == (a[np.arange(len(made.y)), made.y] > 0)[~drawable])


@pytest.mark.parametrize("alternative", alternatives(draft=True, steps=True), ids=lambda a: a.says)
def test_with_a_tolerance_the_mean_is_one_and_no_law_within_it_gains(alternative):
    made, tolerance = laws(2), 0.01
    (pay,) = payoffs([alternative], made, tolerance)
    ratio, spread = pay.ratio.reshape(-1, V), pay.spread.reshape(-1, V)[:, 0]
    p = made.p[::V]
    assert np.isfinite(ratio).all()
    assert np.abs((p * ratio).sum(axis=1) - 1).max() < 1e-12
    worst = (p * ratio).sum(axis=1) + tolerance * (ratio.max(axis=1) - np.where(p > 0, ratio, np.inf).min(axis=1))
    assert (worst <= 1 + tolerance * spread + 1e-12).all()
    assert (spread >= 0).all()


@pytest.mark.parametrize("alternative", alternatives(draft=True, steps=True), ids=lambda a: a.says)
def test_where_p_has_no_mass_all_that_a_bet_may_win_is_charged_for(alternative):
    """Rounding may leave nothing of a law between its edges; there no token is sure to be paid anything."""
    made = laws(4, 3)
    made = derived(made._replace(p=made.p * 0))
    (pay,) = payoffs([alternative], made, 0.01)
    won = pay.ratio.reshape(-1, V).max(axis=1) - 1
    np.testing.assert_allclose(pay.spread.reshape(-1, V)[:, 0], won, rtol=1e-12)
    assert (won >= 0).all()


def test_the_cells_of_every_split_have_the_mass_of_the_law_also_of_few_rows_and_many_tokens():
    """A cell that lacked mass would make what falls into the others look too frequent."""
    chance = np.random.default_rng(5)
    p, q = (chance.dirichlet(np.full(900, 0.3), size=2) for _ in range(2))
    made = derived(AuditRows(p, np.array([3, 700]), chance.random((2, 900)) < 0.1, q))
    for split in (cells.by_rank(made), cells.by_quarter(made), cells.by_history(made, made.y), cells.by_draft(made)):
        np.testing.assert_allclose(split.mass.sum(axis=1), 1, rtol=1e-12)
        assert (split.mass[np.arange(2), split.cell] >= p[np.arange(2), made.y]).all()


def test_a_vocabulary_is_small_up_to_a_size():
    """Then each token is a cell, and pairs of tokens have a table."""
    small, large = ({table.says: table for table in cells.tables(size, False, True)} for size in (32, 33))
    assert {table.size for table in small.values() if table.cells == "token"} == {32}
    assert {table.size for table in large.values() if table.cells == "token"} == {2}
    assert small.keys() - large.keys() == {
        "pairs of tokens come in wrong shares",
        "tokens depend on the one before and on the position in the step",
    }


def test_nothing_is_won_or_lost_where_nothing_may_be_bet():
    named = alternatives(draft=True)
    ratio = np.random.default_rng(6).random((5, len(named))) * 2
    seen = Observed(ratio, ratio * 0, [], np.array([True, False, True, True, False]))
    logs = named_logs(named, seen)
    assert (logs[seen.void] == 0).all()
    assert (logs[~seen.void] != 0).all()


def test_ratios_of_fractions_have_mean_one_without_any_error():
    chance = np.random.default_rng(3)
    exact = [
        faults.leaked,
        faults.guessed,
        faults.careless,
        faults.best_as_drawn,
        faults.eager(Fraction(51, 50)),
        faults.eager(Fraction(9, 10)),
        faults.top_k(3),
        faults.min_p(Fraction(1, 10)),
    ]
    for _ in range(20):
        p, q = (np.array([[Fraction(int(w), 100) for w in chance.multinomial(100, [1 / V] * V)]]) for _ in range(2))
        ordered = np.array([sorted(p[0], reverse=True)])
        made = AuditRows(p, np.array([0]), p > 1, q, ordered=ordered, rejected=residual(p, q))
        for fault in exact:
            a = fault(made)[0]
            assert sum(a) == 1
            assert sum(p[0][y] * (a[y] / p[0][y]) for y in range(V) if p[0][y] > 0) == 1 - sum(a[p[0] == 0])


SETTINGS = [
    Sampling(),
    Sampling(temperature=0.7, top_p=0.9),
    Sampling(top_k=3, repetition_penalty=1.3),
    Sampling(frequency_penalty=0.2),
]


@pytest.mark.parametrize("wide", [4096, 2], ids=["each token", "two tokens and the rest"])
@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize("tolerance", [0.0, 1e-3])
def test_all_bets_together_are_fair_given_the_past(sampling, tolerance, wide, monkeypatch):
    """The whole book, after it has learned, on one more token: its mean over that token is one (or less, where noise is
    charged for or an alternative bets on impossible tokens)."""
    monkeypatch.setattr(faults, "WIDE", wide)
    monkeypatch.setattr(cells, "SMALL", min(wide, cells.SMALL))  # a vocabulary is large or small, not both
    here = world(1, 5)
    book = auditor(here, steps=True, tolerance=tolerance)
    for seed in range(4):
        feed(book, here, drawn(here, 30, seed, sampling))
    for seed in range(4, 6):
        start = drawn(here, 4, seed, sampling)
        law, gains = np.zeros(here.size), np.zeros(here.size)
        for y in range(here.size):
            text = start._replace(output=(*start.output, y), accepted=(*start.accepted, False))
            made, void = rows([(rows_of(here, text), range(4, 5))], tolerance)
            law[y] = made.p[0, y] if not void[0] else 0.0
            with np.errstate(over="ignore"):
                gains[y] = np.exp(feed(copy.deepcopy(book), here, text)[-1])
        mean = (law * np.where(law > 0, gains, 0)).sum()
        if tolerance == 0 and sampling.top_k == 0 and sampling.top_p == 1:
            assert abs(mean - 1) < 1e-12
        else:
            assert 0.8 < mean < 1 + 1e-12


@pytest.mark.parametrize("kind", [np.asarray, torch.asarray], ids=["numpy", "torch"])
def test_cells_are_what_their_tables_say_and_hold_the_mass_of_their_tokens(kind):
    """Every token's cell, computed anew for that token, and the mass of all tokens in it."""
    chance, made = np.random.default_rng(8), laws(4)
    rank = np.argsort(np.argsort(-made.p, axis=1, kind="stable"), axis=1)
    last, twin = (chance.integers(-1, V, size=len(made.p) // V).repeat(V) for _ in range(2))
    middle = np.cumsum(made.p, axis=1) - made.p / 2
    ratio = made.q[..., None] > np.array(cells.RATIOS) * made.p[..., None]
    drafted = made.q.sum(axis=1) > 0
    same = [np.arange(V) == word[:, None] for word in (last, twin)]
    ours = made._replace(**{name: kind(value.copy()) for name, value in made._asdict().items() if value is not None})
    splits = {
        "rank": (cells.by_rank(ours), np.log2(rank + 1).astype(int), drafted | True, cells.RANKS),
        "quarter": (cells.by_quarter(ours), (middle * cells.QUARTERS).astype(int), drafted | True, cells.QUARTERS),
        "seen": (cells.by_history(ours, kind(last)), made.seen + 1 * same[0], drafted | True, 3),
        "draft": (cells.by_draft(ours), ratio.sum(axis=2), drafted, len(cells.RATIOS) + 1),
        "token": (cells.by_token(ours, ()), np.arange(V) + 0 * rank, drafted | True, V),
        "twin": (cells.by_twin(ours, kind(twin)), 1 * same[1], twin >= 0, 2),
    }
    for name, (split, cell, bets, size) in splits.items():
        cell = np.minimum(cell, size - 1)
        assert (split.cell == cell[np.arange(len(made.y)), made.y]).all(), name
        mass = np.stack([(made.p * (cell == j)).sum(axis=1) for j in range(size)], axis=1) * bets[:, None]
        np.testing.assert_allclose(split.mass, mass, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("vocabulary", [5, 30, 5000])
def test_the_capital_of_all_bets_is_one(draft, steps, vocabulary):
    """More would be evidence before the first token."""
    evidence = Evidence(alternatives(draft), cells.tables(vocabulary, draft, steps))
    assert sum(bet.weight for bet in evidence.bets) == pytest.approx(1, abs=1e-12)
    assert min(bet.weight for bet in evidence.bets) > 0
    assert evidence.evidence == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("tolerance", [0.0, 1e-3, 0.05])
def test_no_law_within_the_tolerance_gains_from_a_table(tolerance):
    """A table that has learned, on one more token: the law nearest to its bet that the tolerance allows."""
    chance, mass, counts = np.random.default_rng(3), np.array([0.5, 0.3, 0.2]), np.zeros((2, 2, 3))

    def entries(key, cell):
        return cells.Entries(key, cell, np.tile(mass, (len(cell), 1)))

    seen = entries(chance.integers(2, size=400), chance.choice(3, size=400, p=[0.2, 0.3, 0.5]))
    learn(counts, seen, np.zeros(400, dtype=bool))
    for key, strength in itertools.product(range(2), STRENGTHS):
        one_each = entries(np.full(3, key), np.arange(3))
        tilt = (counts[0] + strength) / (counts[1] + strength)
        gains = np.exp(learned_logs(tilt, one_each, np.zeros(3, dtype=bool), tolerance))
        mean = mass @ gains + tolerance * (gains.max() - gains.min())
        assert mean < 1 + 1e-12
        assert mean > 1 - 1e-12 or tolerance
        assert gains.max() > 1.001  # something is bet


@pytest.mark.parametrize("kind", [np.asarray, torch.asarray], ids=["numpy", "torch"])
def test_the_rest_of_a_large_vocabulary_is_two_columns(kind, monkeypatch):
    """The heaviest tokens keep their columns, in order of ids; what is left can come or cannot."""
    monkeypatch.setattr(faults, "WIDE", 3)
    p = [[0.0, 0.3, 0.1, 0.05, 0.0, 0.5, 0.05], [0.0, 0.0, 0.0, 0.0, 0.4, 0.6, 0.0]]
    q = [[0.1, 0.0, 0.2, 0.0, 0.1, 0.6, 0.0], [0.0, 0.0, 0.3, 0.0, 0.7, 0.0, 0.0]]
    seen = [[False] * 7, [True] + [False] * 6]  # what was said before keeps its column, however unlikely it is
    for y, columns in (((5, 6), (2, 4)), ((3, 4), (3, 1)), ((0, 0), (4, 0)), ((4, 5), (4, 2))):
        made = condensed(AuditRows(kind(p), kind(y), kind(seen), kind(q)))
        assert made.y.tolist() == list(columns)
    assert made.ids.tolist() == [[1, 2, 5, -2, -3], [0, 4, 5, faults.EMPTY, -3]]
    assert np.asarray(made.p) == pytest.approx(np.array([[0.3, 0.1, 0.5, 0.1, 0.0], [0.0, 0.4, 0.6, 0.0, 0.0]]))
    assert np.asarray(made.q) == pytest.approx(np.array([[0.0, 0.2, 0.6, 0.0, 0.2], [0.0, 0.7, 0.0, 0.0, 0.3]]))
    assert np.asarray(made.p)[1, 3:].tolist() == [0.0, 0.0]  # to the last bit: nothing is left that can come
    assert made.seen.tolist() == [[False] * 5, [True] + [False] * 4]


def drawn(here, length, seed, sampling):
    """Tokens drawn by nobody in particular, with flags: fairness must not depend on how the past came about."""
    chance = np.random.default_rng(seed)
    outputs = []
    for _ in range(length):
        text = Transcript((0,), (*outputs, 0), sampling)
        made, _ = rows([(rows_of(here, text), range(len(outputs), len(outputs) + 1))], 0.0)
        outputs.append(int(chance.choice(here.size, p=made.p[0] / made.p[0].sum())))
    return Transcript((0,), tuple(outputs), sampling, tuple(bool(f) for f in chance.random(length) < 0.5))


def test_a_cut_that_noise_moves_is_no_evidence():
    """Two tokens share the edge of top-p: an engine that keeps the other one is within the allowance."""
    logits = np.log(np.array([[0.5, 0.2, 0.1 + 1e-9, 0.1, 0.06, 0.04]]))
    for kept, alarm in ((2, False), (3, False), (4, True)):
        text = Transcript((0,), (kept,), Sampling(top_p=0.8))
        made, void = rows([(ReadTranscript(text, logits, None), range(1))], 1e-4)
        assert bool(void[0]) == (not alarm)
        assert made.p[0].tolist() == pytest.approx([5 / 7, 2 / 7, 0, 0, 0, 0])
    greedy = Transcript((0,), (1,), Sampling(temperature=0))
    for gap, void in ((1e-6, True), (0.1, False)):
        scores = np.array([[1.0, 1.0 - gap, -3.0]])
        assert bool(rows([(ReadTranscript(greedy, scores, None), range(1))], 1e-4)[1][0]) == void
    strict = Transcript((0,), (0,), Sampling(min_p=0.98))  # near 1, where there is no room for the allowance
    assert rows([(ReadTranscript(strict, scores, None), range(1))], 0.03)[0].p[0].tolist() == [1, 0, 0]
    both = Transcript((0,), (3, 5), Sampling(top_p=0.9, typical_p=0.95))  # token 3 is at the edge, 5 far beyond it
    scores = np.log([[0.591, 0.201, 0.126, 0.041, 0.031, 0.010]] * 2)
    assert rows([(ReadTranscript(both, scores, None), range(2))], 0.03)[1].tolist() == [True, False]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(top_k=3),
        Sampling(top_p=0.8),
        Sampling(min_p=0.3),
        Sampling(typical_p=0.7),
        Sampling(epsilon_cutoff=0.05),
        Sampling(eta_cutoff=0.2),
        Sampling(temperature=0, typical_p=0.9),
        Sampling(top_k=5, top_p=0.8),  # where a cut leaves more, the next one sees smaller shares
        Sampling(top_k=4, epsilon_cutoff=0.15),
        Sampling(top_p=0.9, epsilon_cutoff=0.1),
        Sampling(min_p=0.2, epsilon_cutoff=0.15),
    ],
    ids=str,
)
def test_what_surely_stays_and_surely_goes_does_so_whatever_the_noise(sampling):
    """Rows with equals and without; the engine's logits are off by the tolerance, so where equals stood it cuts one."""
    chance, tolerance, size = np.random.default_rng(6), 0.03, 8
    text, parted = Transcript((0,), tuple(range(size)), sampling), 0
    for n in range(400):
        logits = chance.normal(size=size) if n % 2 else chance.integers(-3, 4, size=size) / 2
        made, void = rows([(ReadTranscript(text, np.stack([logits] * size), None), range(size))], tolerance)
        stays = made.p[0] > 0
        noise = chance.uniform(-tolerance, tolerance, size=(20, size))
        engine = law(logits + np.concatenate([noise, np.sign(noise) * tolerance]), sampling) > 0
        assert (engine | ~stays).all()
        assert (~engine | stays | void).all()
        parted += (engine != engine[0]).any()
    assert parted > 0, "no noise moved a cut: the test saw nothing"


@pytest.mark.parametrize(("sampling", "tolerance"), [(SETTINGS[0], 0.0), (SETTINGS[1], 1e-4)], ids=["plain", "top-p"])
def test_false_alarms_are_rarer_than_alpha_however_often_one_looks(sampling, tolerance):
    """A thousand exact engines, two samples of one prompt each; the book is looked at after every single token."""
    audits, length, here = 1000, 60, world(7, 5)
    book = auditor(here, tolerance=tolerance)
    prompts = [tuple((i // 5**k) % 5 for k in range(5)) for i in range(audits) for _ in range(2)]
    texts = [
        text._replace(prompt=prompt)
        for text, prompt in zip(many(here, prompts, length, sampling), prompts, strict=True)
    ]
    observed, _ = book.observe([[rows_of(here, text)] for text in texts])
    peaks = []
    for i in range(audits):
        evidence = Evidence(book.alternatives, book.tables, tolerance)
        evidence.add(observed.part(2 * i * length, 2 * (i + 1) * length))
        peaks.append(evidence.peak)
    for alpha in (0.01, 0.1):
        assert np.mean(np.array(peaks) >= np.log(1 / alpha)) <= 1.6 * alpha
    assert np.mean(np.array(peaks) > 0) > 0.5  # something was bet


def many(here, prompts, length, sampling):
    """Exact texts side by side, under settings that do not look back."""
    chance = np.random.default_rng(5)
    one = [rows([(rows_of(here, Transcript((v,), (0,), sampling)), range(1))], 0.0)[0].p[0] for v in range(here.size)]
    laws, texts = np.stack(one), [np.array([prompt[-1] for prompt in prompts])]
    for _ in range(length):
        texts.append(sample(laws[texts[-1]], chance.random(len(prompts))))
    return [Transcript((0,), tuple(text), sampling) for text in np.stack(texts[1:], axis=1).tolist()]


def test_exact_speculation_raises_no_alarm_with_its_steps_known():
    here = world(0, 8)
    book = auditor(here, steps=True)
    texts = [chain(here, 500, seed) for seed in range(30)]
    feed(book, here, *texts)
    assert book.evidence.peak < np.log(100)
    assert sum(sum(text.accepted) for text in texts) > 5000


def test_softmax_of_the_world_is_what_the_audit_reads():
    here = world(0, 8)
    text = plain(here, 20, 0)
    made, _ = rows([(rows_of(here, text), range(20))], 0.0)
    before = [0, *text.output[:-1]]
    assert np.abs(made.p - softmax(here.p[before])).max() < 1e-15


def test_a_position_is_drafted_again_if_the_step_before_stopped_well_before_its_end():
    """Steps of 2, 0, 3, 1 and 3 accepted guesses; how long a draft is shows only when one was accepted as far."""
    flags = [int(flag) for flag in "1100" + "1110" + "10" + "1110" + "0"]
    text = Transcript((0,), (0,) * len(flags), Sampling(), tuple(map(bool, flags)))
    lengths = DraftLength()
    first = [t for t, yes in enumerate(lengths.again(text)) if yes]
    assert first == [4, 10]  # after no guess, and after one, of three; after two of two it is too early to tell
    assert lengths.longest == 3
    assert [t for t, yes in enumerate(lengths.again(text)) if yes] == [4, 10]
    assert lengths.again(text._replace(accepted=None)) is None
