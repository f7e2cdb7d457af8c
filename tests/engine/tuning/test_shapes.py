"""tree="auto": what it learns, what it chooses, what it costs, and that the text stays the target's."""

from __future__ import annotations

import json
import random
from collections import Counter

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import draftproof as dp
from draftproof import couple, verify
from draftproof.commands import cli
from draftproof.draft import Tree
from draftproof.engine.choices import choose_rule, choose_tuner
from draftproof.engine.trace import Step, shape_name
from draftproof.engine.tuning.estimates import Clock, Nominal, Survival, Temper
from draftproof.engine.tuning.shapes import CROWD, MOST, PLAIN, Auto, Past, assumed, hope, tuned
from draftproof.engine.tuning.tuner import Fixed, StepReport
from draftproof.models.base import ModelFacts
from draftproof.models.drafters.ngram import NGram
from draftproof.models.table import TableModel
from draftproof.theory.enumerate import target_law
from draftproof.theory.plan import tempered
from tests.support import gof, tables, tiny
from tests.support.schedulers import PROMPT, ask, eager, table


def prompt_read(seconds):
    """The report of a call that has read a prompt, and drafted nothing."""
    return StepReport(PLAIN, PLAIN, [Step((0,), 0, 0, 0, (), (), {})], {"draft": 0.0, "target": seconds}, fresh=True)


def drive(auto, tokens, *, accept, call, level, guess=1.0, seed=0):
    """Speed against plain sampling on a synthetic clock, and the depths that were asked for.

    accept(t, width) is the chance of a first guess at token t of the text, guess that of there being one at all.
    """
    chance = random.Random(seed)
    took, made, asked = 0.0, 0, []
    auto.learn(prompt_read(50.0))
    while made < tokens:
        tree = auto.tree
        width, depth = len(tree.children(0)), tree.depth[-1]
        sent = tree if chance.random() < guess else PLAIN
        deep = sent.depth[-1]
        reached = tuple(accept(made, width) * accept(made, 1) ** i for i in range(deep))
        u = chance.random()
        accepted = sum(u < share for share in reached)
        seconds = {"draft": level * depth, "target": call(sent.size) * chance.lognormvariate(0, 0.05)}
        step = Step((0,) * (accepted + 1), sent.size - 1, deep, accepted, reached, (), seconds)
        auto.learn(StepReport(tree, sent, [step], seconds))
        took += sum(seconds.values())
        made += accepted + 1
        asked.append(depth)
    return made * call(1) / took, asked


def cpu(size):
    return 1 + 0.11 * (size - 1)


def gpu(size):
    return 1 + 0.005 * (size - 1)


def speeds(**world):
    return [drive(Auto("chain"), 600, seed=seed, **world)[0] for seed in range(4)]


def test_where_guesses_are_hopeless_hardly_anything_is_lost():
    assert min(speeds(accept=lambda t, w: 0.02, call=cpu, level=0.003)) > 0.97
    assert min(speeds(accept=lambda t, w: 0.02, call=cpu, level=0.003, guess=0.2)) > 0.97
    assert min(speeds(accept=lambda t, w: 0.05, call=cpu, level=0.3)) > 0.96  # asking it is dear in itself
    assert min(speeds(accept=lambda t, w: 0.7, call=cpu, level=2.0)) > 0.96


def test_where_guesses_are_good_they_are_used():
    assert min(speeds(accept=lambda t, w: 0.8, call=cpu, level=0.003)) > 1.8
    assert min(speeds(accept=lambda t, w: 0.8, call=gpu, level=0.05)) > 2.5
    assert min(speeds(accept=lambda t, w: 0.6, call=cpu, level=0.003, guess=0.3)) > 1.12


def test_lengths_follow_what_guesses_cost():
    def usual(**world):
        _, asked = drive(Auto("chain"), 600, **world)
        return Counter(asked).most_common(1)[0][0]

    assert usual(accept=lambda t, w: 0.8, call=gpu, level=0.01) >= 8
    assert 2 <= usual(accept=lambda t, w: 0.7, call=gpu, level=0.2) <= 4
    assert usual(accept=lambda t, w: 0.7, call=gpu, level=2.0) == 0
    assert usual(accept=lambda t, w: 0.9, call=float, level=0.0) == 0


def test_it_follows_a_text_that_changes():
    bad_then_good = {"accept": lambda t, w: 0.02 if t < 300 else 0.85, "call": cpu, "level": 0.003}
    speed, asked = drive(Auto("chain"), 1200, **bad_then_good)
    assert speed > 1.3
    assert asked[100:250].count(0) > 120  # pauses grow
    assert np.mean(asked[-50:]) > 3
    speed, asked = drive(Auto("chain"), 1200, accept=lambda t, w: 0.85 if t < 300 else 0.02, call=cpu, level=0.003)
    assert asked[-100:].count(0) > 90
    assert speed > 1.05


def test_without_a_guess_a_probe_is_free_and_goes_on_until_there_is_one():
    auto = Auto("chain")
    speed, asked = drive(auto, 200, accept=lambda t, w: 0.5, call=cpu, level=0.0, guess=0.0)
    assert speed == pytest.approx(1, abs=0.02)
    assert asked[3:] == [1] * 197


def test_a_trained_drafter_is_hoped_for_and_given_up_as_soon():
    def mean(hoped, tokens, chance):
        world = {"accept": lambda t, w: chance, "call": lambda size: 1 + 0.045 * (size - 1), "level": 0.14}
        return np.mean([drive(Auto("chain", hope=hoped), tokens, seed=seed, **world)[0] for seed in range(16)])

    trained = hope([tiny.model("llama", 1)])
    assert hope([NGram(tiny.VOCABULARY)]) == Survival.START < 0.5 < trained
    assert Auto("chain").tree == PLAIN
    for costs, least in ((None, 4), (Nominal(0.05, 0.13), 3)):  # as many as pay, were it as hoped
        auto = Auto("chain", costs, hope=trained)
        assert auto.tree == PLAIN  # the call that reads the prompt says a token for nothing
        auto.learn(prompt_read(50.0))
        assert auto.tree.depth[-1] >= least
    assert mean(trained, 64, 0.7) > mean(Survival.START, 64, 0.7) + 0.01  # a short text is not spent on learning
    assert mean(trained, 600, 0.02) > 0.985


def in_a_batch(auto, rows, steps, call, accept, level=lambda rows: 0.1):
    """Depths that are asked for in so many steps of `rows` texts, each of which accepts a draft token as likely."""
    asked = []
    for _ in range(steps):
        auto.expect(rows, False)
        tree = auto.tree
        depth = tree.depth[-1]
        reached = tuple(accept ** (i + 1) for i in range(depth))
        seconds = {"draft": level(rows) * depth, "target": call(rows * tree.size)}
        step = Step((0,), depth, depth, 0, reached, (), seconds)
        auto.learn(StepReport(tree, tree, [step] * rows, seconds))
        asked.append(depth)
    return asked


def test_drafting_stops_in_a_large_batch_and_goes_on_in_a_small_one():
    """In a batch a call is bound by arithmetic, so it begins without drafts; where that is not so, they come later."""
    auto = Auto("chain", hope=0.65)
    auto.learn(prompt_read(50.0))
    asked = in_a_batch(auto, 16, 60, lambda tokens: 4 + tokens, 0.6)
    assert not any(asked)
    other = Auto("chain", hope=0.65)
    assert np.mean(in_a_batch(other, 16, 600, lambda tokens: 40 + tokens / 10, 0.8)[-100:]) > 1
    alone = in_a_batch(auto, 2, 12, lambda tokens: 40 + tokens / 10, 0.6)
    assert np.mean(alone[3:]) > 1


def small_target(tokens):
    """Milliseconds of SmolLM2 on two cores."""
    return 14 + 1.4 * tokens


def small_head(rows):
    return 1.2 + 0.5 * rows


def test_what_one_batch_has_shown_decides_in_another_at_once():
    """Clients come and go in bursts: neither the first nor the last steps of one are spent on finding out again."""
    auto = Auto("chain", hope=0.65)
    auto.learn(prompt_read(50.0))

    def steps(rows, count):
        return in_a_batch(auto, rows, count, small_target, 0.6, small_head)

    assert np.mean(steps(1, 30)) > 1
    in_batches = [steps(16, 60) for _ in range(3)]
    assert sum(map(bool, in_batches[0])) <= 2
    for burst in in_batches:
        assert np.mean([depth > 0 for depth in burst]) < 0.05
        assert np.mean(steps(1, 4)) > 1  # at once
    assert np.mean(steps(2, 30)) > 1


def test_plain_sampling_is_hardly_slower_in_any_batch():
    for rows in (1, 2, 4, 8, 16, 32):
        auto = Auto("chain", hope=0.65)
        auto.learn(prompt_read(50.0))
        asked = in_a_batch(auto, rows, 300, small_target, 0.6, small_head)
        took = [small_target(rows * (1 + depth)) + small_head(rows) * depth for depth in asked]
        made = [sum(0.6**i for i in range(depth + 1)) for depth in asked]
        assert sum(made) * small_target(rows) / sum(took) > 0.985


def test_a_crowd_on_a_cpu_is_not_drafted_for():
    """However well drafts are accepted: the cores are busy with one token of each text."""
    auto = tuned("chain", [TrainedDrafter("cpu")], False)
    many = CROWD * torch.get_num_threads()
    auto.learn(prompt_read(50.0))
    assert not any(in_a_batch(auto, many, 60, lambda tokens: 40 + tokens / 10, 0.9))
    assert np.mean(in_a_batch(auto, 1, 30, lambda tokens: 40 + tokens / 10, 0.9)[3:]) > 1
    for other in (TrainedDrafter("cuda"), NGram(9)):
        assert np.mean(in_a_batch(tuned("chain", [other], False), many, 600, lambda t: 40 + t / 10, 0.8)[-100:]) > 1


class TrainedDrafter:
    """As far as the tuner looks at it."""

    def __init__(self, device):
        self.facts = ModelFacts(trained=True, device=device)


def test_a_step_that_reads_a_prompt_drafts_nothing_unless_the_text_must_be_repeatable():
    auto, own = Auto("chain", hope=0.65), Auto("chain", Nominal(0.05, 0.1), hope=0.65)
    for tuner in (auto, own):
        tuner.learn(prompt_read(50.0))
        in_a_batch(tuner, 1, 3, small_target, 0.6, small_head)
    before = own.tree
    assert before != PLAIN != auto.tree
    for tuner in (auto, own):
        tuner.expect(1, True)
    assert (auto.tree, own.tree) == (PLAIN, before)
    own.expect(30, True)
    assert own.tree == before


def test_of_lengths_that_are_about_as_good_a_trained_drafter_takes_the_longest():
    auto = Auto("chain", Nominal(0.05, 0.08), hope=0.65)
    auto.seen[1].longest = 12
    reached = auto.seen[1].reached
    gains = {length: (1 + sum(reached[:length])) / (1 + 0.13 * length) for length in range(1, 13)}
    best = max(gains, key=gains.__getitem__)
    longest = max(length for length, gain in gains.items() if gain >= 0.96 * gains[best])
    assert longest > best
    assert auto._best(1).tree == Tree.chain(longest)


def test_a_trained_drafter_remembers_the_texts_before():
    """Short texts: what is hoped for at the first is known at the second, of the machine as of the guesses."""
    world = {"accept": lambda t, w: 0.9, "call": lambda size: 1 + 0.045 * (size - 1), "level": 0.1}
    past = Past(0.65)
    anew = [drive(Auto("chain", hope=0.65), 40, seed=seed, **world)[0] for seed in range(12)]
    later = [drive(Auto("chain", hope=0.65, past=past), 40, seed=seed, **world)[0] for seed in range(12)]
    assert np.mean(later) > np.mean(anew) + 0.1
    draft = HeadLike()
    assert tuned("chain", [draft], False).costs is tuned("chain", [draft], False).costs
    assert tuned("chain", [NGram(9)], False).costs is not draft.kept["tuning"].clock


class HeadLike:
    """As far as the tuner looks at it."""

    taps = (1,)

    def __init__(self):
        self.kept = {}

    def beside(self, session):
        """A session that reads hidden states of the target's."""


def test_other_widths_are_tried_and_kept_where_they_pay():
    def siblings(t, width):
        return {0: 0.0, 1: 0.5, 2: 0.75, 4: 0.93, 8: 0.98}.get(width, 0.93)

    for trees in ("paths", "any"):
        auto = Auto(trees)
        speed, _ = drive(auto, 800, accept=siblings, call=gpu, level=0.3)
        assert speed > drive(Auto("chain"), 800, accept=siblings, call=gpu, level=0.3)[0]
        assert len(auto._chosen().tree.children(0)) > 1
        assert auto._chosen().tree.size <= MOST


def test_a_call_that_reads_a_prompt_teaches_nothing_about_time():
    auto = Auto("chain")
    auto.learn(prompt_read(1e6))
    assert not auto.costs.known


def test_times_are_medians_and_lines_between_them():
    clock = Clock()
    for seconds in (1.0, 1.0, 1.0, 50.0):
        clock.add(1, 0, {"draft": 0.0, "target": seconds})
    assert clock.call(1) == 1.0
    assert clock.call(3) == pytest.approx(1.1)  # a first guess
    clock.add(5, 2, {"draft": 0.4, "target": 2.0, "verify": 1.0})
    assert clock.call(5) == pytest.approx(1.2)  # a single measurement may be a hiccup
    clock.add(5, 2, {"draft": 0.4, "target": 2.0, "verify": 1.0})
    assert clock.call(3) == pytest.approx(2.0)
    assert clock.call(9) == pytest.approx(5.0)
    assert [clock.draft(levels) for levels in (0, 1, 3)] == pytest.approx([0.0, 0.2, 0.6])
    clock.add(37, 0, {"draft": 0.0, "target": 2.5})  # fewer never take more
    assert clock.call(5) == clock.call(37) == 2.5
    assert clock.call(40) > 2.5  # beyond what was measured nothing is free
    clock.add(37, 0, {"draft": 0.0, "target": 10.0})
    clock.add(37, 0, {"draft": 0.0, "target": 10.0})
    clock.add(3, 0, {"draft": 0.0, "target": 3.0})  # neighbours are no steps of a stair: they lie near a line
    clock.add(3, 0, {"draft": 0.0, "target": 3.0})
    assert 1 < clock.call(1) < clock.call(2) < clock.call(3) < clock.call(5) == pytest.approx(3.0, rel=0.1)
    for levels, seconds in ((1, 0.25), (4, 0.7)):
        clock.add(levels + 1, levels, {"draft": seconds, "target": 0.5})
    assert clock.draft(3) == pytest.approx(0.1 + 3 * 0.15)  # the first level takes longer than the others


def test_times_of_a_busy_machine_are_forgotten_once_it_is_quiet():
    clock = Clock()
    for _ in range(7):
        clock.add(16, 0, {"draft": 0.0, "target": 300.0})
        clock.add(5, 4, {"draft": 40.0, "target": 200.0})
    clock.add(16, 0, {"draft": 0.0, "target": 30.0})
    assert clock.call(16) == 30.0
    assert clock.call(5) <= 30.0
    clock.add(5, 4, {"draft": 4.0, "target": 20.0})
    assert clock.draft(4) == pytest.approx(4.0)


def test_times_of_drafting_are_scaled_to_other_batches():
    clock = Clock()
    clock.add(1, 0, {"draft": 0.0, "target": 10.0})
    assert clock.draft(2, 4) == pytest.approx(0.1 * clock.call(4))  # a first guess
    clock.add(4, 3, {"draft": 3.0, "target": 10.0}, rows=1)
    clock.add(32, 1, {"draft": 8.0, "target": 30.0}, rows=16)
    assert clock.draft(3, 1) == pytest.approx(3.0)
    assert clock.draft(2, 16) == pytest.approx(16.0)
    assert 2.0 < clock.draft(2, 2) < clock.draft(2, 8) < 16.0 < clock.draft(2, 32) < 32.0


def test_acceptance_by_position_is_continued_as_it_went_last():
    seen = Survival()
    for _ in range(60):
        seen.add(2, 2, [[0.8, 0.4], [0.6, 0.3]])
    assert seen.reached[:4] == pytest.approx([0.7, 0.35, 0.175, 0.0875], rel=0.03)
    assert seen.deep[:2] == pytest.approx([1, 1])
    for _ in range(60):
        seen.add(2, 0, [[], []])  # no guess: says nothing about guesses
    assert seen.reached[0] == pytest.approx(0.7, rel=0.02)
    assert seen.guessed < 0.15


def test_the_draft_temperature_follows_the_laws():
    p, q = tables.correlated(1, 200, 2.0, 0.9)
    temper = Temper()
    sharp = tempered(q, 0.7)  # a draft that is too sure of itself
    for _ in range(8):
        used = tempered(sharp, temper.factor)
        temper.learn(p[None], used[None])
    assert temper.factor == 1.15
    for _ in range(200):
        temper.learn(p[None], tempered(p, 1 / 0.7 * temper.factor)[None])
    assert temper.factor == 0.7


def test_what_a_rule_accepts():
    assert verify.get("block").trees == "chain"
    assert verify.get("csbv").trees == "paths"
    assert couple.COUPLINGS["gumbel"].trees == "any"
    assert shape_name(Tree.chain(3)) == "chain:3"
    assert shape_name(Tree.paths(2, 3)) == "paths:2x3"
    assert shape_name(Tree.of(2, 2)) == repr(Tree.of(2, 2))
    assert shape_name(Tree.best(20, 5)) == "best:20x5"
    assert shape_name(Tree.best(20, 5).cut(3)) == "best:14x3"


def test_assumed_costs_come_from_sizes():
    costs = assumed(tiny.model(), [tiny.model("llama", 1)])
    assert costs.level == pytest.approx(1.0)
    assert assumed(tiny.model(), [NGram(tiny.VOCABULARY)]).level == 0.002
    assert costs.call(11) == pytest.approx(2.0)


# In the engine


def samples(target, draft, rule, count, length, pace, tree):
    """Texts of one batch whose rows set their own pace, or share one."""
    verifier = verify.get(rule)
    batch = eager(target, [draft], verifier, tree, count, capacity=0)
    requests = [ask(target, PROMPT, dp.Sampling(), dp.Sampling(), length, (3, r), tuner=pace()) for r in range(count)]
    for request in requests:
        batch.add([request])
    while not batch.is_finished:
        batch.step()
    return Counter(tuple(request.tokens[-3:]) for request in requests), requests


def last_three(model, length):
    """The law of the last three of `length` tokens."""
    law: Counter[tuple[int, ...]] = Counter()
    for text, mass in target_law(model.rows, length, PROMPT).items():
        law[text[-3:]] += mass
    return law


def test_the_law_is_the_targets_while_each_row_starts_stops_and_tempers_as_it_likes():
    target, length = table(1, size=3, floor=0.2), 9
    counts, requests = samples(
        target,
        table(2, size=3, floor=0.05),
        "block",
        2500,
        length,
        lambda: Auto("chain", Nominal(0.25, 0.1), tempers=True),
        Tree.chain(16),
    )
    gof.check(counts, last_three(target, length))
    shapes = sum((request.trace.shapes for request in requests), Counter())
    assert {"chain:0", "chain:1", "chain:2"} <= set(shapes)
    assert {request.tuner.temper.factor for request in requests} != {1.0}


def test_the_law_is_the_targets_with_one_clock_for_all():
    """Steps of the batch take made-up times, so that shapes change from step to step."""

    class Restless(Clock):
        def call(self, tokens):
            return super().call(tokens) * random.Random(len(self._levels) + tokens).uniform(0.5, 1.5)

    target, length = table(1, size=3, floor=0.2), 9
    counts, requests = samples(
        target, table(2, size=3), "block", 2500, length, lambda: None, Auto("chain", Restless(), tempers=True)
    )
    gof.check(counts, last_three(target, length))
    assert len(requests[0].trace.shapes) > 1


@pytest.mark.parametrize("rule", ["block", "csbv", "nodeplan"])
def test_text_is_written_and_the_trace_names_the_shapes(rule):
    target, draft = (TableModel(tables.as_float(tables.table(seed, 3))) for seed in (1, 2))
    out = dp.generate(target, [0], draft=draft, verify=rule, tree="auto", max_new_tokens=120)
    assert len(out.tokens) == out.trace.tokens == 120
    assert out.trace.tree
    assert sum(out.trace.shapes.values()) == len(out.trace.steps)
    assert f"{out.trace.tree} x {out.trace.shapes[out.trace.tree]}" in out.trace.summary()


def test_a_seed_gives_the_same_text_whoever_else_is_in_the_batch():
    """Neither the clock nor a neighbour decides anything then, although each row tunes itself."""
    target, draft = tiny.model(), tiny.model("llama", 1)

    def request(number):
        pace = Auto("chain", assumed(target, [draft]), tempers=True)
        prompt = tuple(b"once upon a time, once upon"[number:])
        return ask(target, prompt, dp.Sampling(), dp.Sampling(), 40, (7, number), tuner=pace)

    def write(requests):
        rule = verify.get("block")
        batch = eager(target, [draft], rule, Tree.chain(16), 3, 90)
        for one in requests:
            batch.add([one])
        while not batch.is_finished:
            batch.step()
        return [one.tokens for one in requests]

    alone = [write([request(number)])[0] for number in range(3)]
    assert write([request(number) for number in range(3)]) == alone
    settings = {"draft": draft, "max_new_tokens": 40}
    first = dp.generate(target, "hello", seed=5, **settings)
    assert first.tokens == dp.generate(target, "hello", seed=5, **settings).tokens
    assert len(first.trace.shapes) > 1


def test_texts_of_an_engine_without_a_seed_are_tuned_together():
    target, draft = table(1), table(2)
    engine = dp.Engine(target, draft=draft, rows=4, length=64)
    free = [engine.add_request(PROMPT, max_new_tokens=20) for _ in range(2)]
    seeded = [engine.add_request(PROMPT, max_new_tokens=20, seed=1) for _ in range(2)]
    assert free[0].tuner is free[1].tuner
    assert len({id(request.tuner) for request in (*seeded, free[0])}) == 3
    while not engine.is_finished:
        engine.step()
    assert [len(request.tokens) for request in (*free, *seeded)] == [20] * 4
    assert (
        seeded[0].tokens
        == seeded[1].tokens
        == dp.generate(target, PROMPT, draft=draft, max_new_tokens=20, seed=1).tokens
    )


def test_the_times_of_a_step_that_others_share_teach_nothing_about_a_tuners_own_texts():
    target, draft = table(1), table(2)
    engine = dp.Engine(target, draft=draft, rows=4, length=64)
    free = engine.add_request(PROMPT, max_new_tokens=20)
    for seed in range(2):
        engine.add_request(PROMPT, max_new_tokens=60, seed=seed)
    while not free.finish:
        engine.step()
    assert not free.tuner.costs.known


def test_shapes_are_chosen_by_what_can_be_repeated():
    def chosen(verify, drafts, tree, repeatable):
        tuner, per_request = choose_tuner(choose_rule(verify, None), drafts, tree, repeatable, False)
        return tuner.tree if isinstance(tuner, Fixed) else type(tuner), per_request

    draft = [object()]
    assert chosen("block", draft, None, True) == (Tree.chain(16), True)
    assert chosen("block", draft, None, False) == (Auto, False)
    assert chosen("csbv", draft, None, True) == (Tree.chain(5), False)
    assert chosen("gumbel", draft, None, True)[0] is Auto
    assert chosen("block", [], "auto", True) == (Tree.chain(0), False)
    assert chosen("block", draft, "chain:3", True) == (Tree.chain(3), False)
    with pytest.raises(dp.DraftproofError, match="unknown tree 5: use a Tree"):
        chosen("block", draft, 5, False)


def test_shared_noise_gives_the_same_text_whatever_is_measured():
    target, draft = (TableModel(tables.as_float(tables.table(seed, 3))) for seed in (1, 2))
    settings = {"verify": "gumbel", "max_new_tokens": 80, "seed": 5}
    plain = dp.generate(target, [0], draft=None, **settings)
    assert dp.generate(target, [0], draft=draft, **settings).tokens == plain.tokens


def test_what_was_learned_is_kept_by_an_auto_that_is_passed_on():
    target, draft = (TableModel(tables.as_float(tables.table(seed, 3))) for seed in (1, 2))
    auto = Auto("chain")
    for _ in range(2):
        dp.generate(target, [0], draft=draft, tree=auto, max_new_tokens=4)
    assert auto.costs.known  # neither text alone has three plain steps after its first


def test_while_it_is_off_the_drafter_is_not_asked():
    class Shy(TableModel):
        asked = 0

        def session(self, rows, capacity):
            inner = super().session(rows, capacity)
            answer = inner.extend

            def count(*args):
                self.asked += 1
                return answer(*args)

            inner.extend = count
            return inner

    target, draft = table(1), Shy(lambda context: np.eye(5)[0])
    auto = Auto("chain", Nominal(0.5, 0.5))
    auto._account.probing = 0
    auto._off()
    auto.tree = PLAIN
    out = dp.generate(target, [0], draft=draft, tree=auto, max_new_tokens=7)
    assert draft.asked == 0
    assert out.trace.shapes == {"chain:0": 7}


def test_on_the_command_line(tmp_path):
    folder = str(tiny.save(tmp_path))
    words = ["generate", "abc", "--target", folder, "--draft", folder, "-n", "70", "--json", "--seed", "2"]
    traces = [json.loads(CliRunner().invoke(cli.app, words).stdout)["trace"] for _ in range(2)]
    assert traces[0]["shapes"] == traces[1]["shapes"]
    assert sum(traces[0]["shapes"].values()) == traces[0]["target_calls"]
    without = words[:-3]
    assert "no seed, so drafts were tuned by the clock" in CliRunner().invoke(cli.app, without).stderr
    assert "; seed " in CliRunner().invoke(cli.app, [*without, "--reproducible"]).stderr
    fixed = json.loads(CliRunner().invoke(cli.app, [*words, "--draft-length", "3"]).stdout)["trace"]
    assert fixed["shapes"] == {}
    assert max(step["drafted"] for step in fixed["steps"]) == 3
    wrong = CliRunner().invoke(cli.app, [*words, "--draft-length", "3", "--tree", "star:2"])
    assert "give either --tree or --draft-length" in str(wrong.exception)


def test_texts_without_a_seed_tell_their_tuner_how_many_they_are():
    """Before a step: what pays for few texts may not for many."""
    target = tiny.model()
    engine = dp.Engine(target, draft=tiny.model("llama", 1), rows=4, length=40)
    going_on = dp.Sampling(min_new_tokens=30)
    told, shared = [], engine.setup.together
    shared.expect = lambda rows, joining: told.append((rows, joining))
    for _ in range(3):
        engine.add_request([1, 2, 3], sampling=going_on, max_new_tokens=30)
    engine.add_request([1, 2, 3], sampling=going_on, max_new_tokens=30, seed=1)
    engine.step()
    engine.step()
    assert told[:2] == [(3, True), (3, False)]
