"""tree="auto": what it learns, what it chooses, and that the text stays the target's."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import draftproof as dp
from draftproof import cli, couple, verify
from draftproof.draft import Tree
from draftproof.engine.auto import MOST, ROUNDS, WIDTHS, Auto, continued, trees_of
from draftproof.engine.trace import Step
from draftproof.models.table import TableModel
from tests import tables, tiny


def taught(trees: str, *, alpha: dict[int, float], target, draft: float, prompt: float = 100.0) -> Auto:
    """An Auto that saw steps with acceptance alpha[K] for the first guess of K, alpha[1] below, and given times."""
    auto = Auto(trees)
    extra = prompt  # the first call reads the prompt
    while auto.plan is None:
        tree = auto.cut(99)
        depth, width = tree.depth[-1], len(tree.children(0))
        reached = tuple(alpha[width] * alpha[1] ** i for i in range(depth))
        seconds = {"draft": draft * depth, "target": target(tree.size) + extra, "verify": 0.0}
        auto.learn(tree, [Step((0,), tree.size - 1, depth, 0, reached, (), seconds)])
        extra = 0.0
        _ = auto.tree
    return auto


FLAT = {1: 0.7, 2: 0.85, 4: 0.95, 8: 0.99}


def test_a_good_cheap_drafter_gets_a_long_chain_and_a_dear_one_none():
    assert taught("chain", alpha=FLAT, target=lambda n: 1.0, draft=0.02).name == "chain:8"
    assert taught("chain", alpha=FLAT, target=lambda n: 1.0, draft=0.3).name == "chain:2"
    assert taught("chain", alpha=FLAT, target=lambda n: 1.0, draft=2.0).name == "chain:0"
    assert taught("chain", alpha=FLAT, target=lambda n: float(n), draft=0.0).name == "chain:0"


def test_paths_are_as_many_as_pay():
    assert taught("paths", alpha=FLAT, target=lambda n: 1.0, draft=0.3).name == "paths:8x2"
    assert taught("paths", alpha=FLAT, target=lambda n: 1 + 0.03 * n, draft=0.1).name == "paths:2x3"
    alike = dict.fromkeys(WIDTHS, 0.7)
    assert taught("paths", alpha=alike, target=lambda n: 1 + 0.01 * n, draft=0.1).name.startswith("chain:")


def test_trees_grow_where_siblings_help():
    wide = taught("any", alpha=FLAT, target=lambda n: 1.0, draft=0.1)
    assert len(wide.tree.children(0)) > 1
    assert wide.tree.size <= MOST
    assert wide.name == repr(wide.tree)
    alike = dict.fromkeys(WIDTHS, 0.7)
    assert taught("any", alpha=alike, target=lambda n: 1 + 0.01 * n, draft=0.1).tree.is_chain


def test_the_call_that_reads_the_prompt_is_not_counted():
    settings = {"alpha": FLAT, "target": lambda n: 1.0, "draft": 0.3}
    assert taught("chain", **settings, prompt=1e6).plan == taught("chain", **settings, prompt=0.0).plan


def test_a_drafter_that_is_mostly_silent_costs_little():
    """Guesses in one step of four, all accepted, in calls of twice the time: what counts is the mean."""
    auto = Auto("chain")
    count = 0
    while auto.plan is None:
        tree = auto.cut(99)
        guessed = tree.depth[-1] if tree.size > 1 and count // 2 % ROUNDS == 0 else 0
        count += tree.size > 1
        seconds = {"draft": 0.0, "target": 2.0 if guessed else 1.0, "verify": 0.0}
        auto.learn(tree, [Step((0,), guessed, guessed, 0, (1.0,) * guessed, (), seconds)])
        _ = auto.tree
    assert auto.plan.tree.size > 4
    assert auto.plan.seconds == pytest.approx(1.25)


def test_a_shortened_call_teaches_nothing():
    auto = Auto("chain")
    step = Step((0,), 0, 0, 0, (), (), {"draft": 0.0, "target": 1.0, "verify": 0.0})
    for _ in range(2):
        auto.learn(Tree.chain(0), [step])
    left = len(auto.trials)
    auto.learn(auto.cut(1), [step])
    assert len(auto.trials) == left == 3 * ROUNDS - 1


def test_acceptance_is_continued_as_it_went_last():
    estimate = continued([[0.5, 0.2], [0.7, 0.4], [0.6, 0.3, 0.15]], length=5)
    assert estimate.mean.tolist() == pytest.approx([0.6, 0.3, 0.15, 0.075, 0.0375])
    assert continued([[0.0], [0.0]], length=3).mean.tolist() == [0, 0, 0]


def test_what_a_rule_accepts():
    assert trees_of(verify.get("block")) == "chain"
    assert trees_of(verify.get("csbv")) == "paths"
    assert trees_of(couple.COUPLINGS["gumbel"]) == "any"


@pytest.mark.parametrize("rule", ["block", "csbv", "nodeplan"])
def test_text_is_written_through_trials_and_plan(rule):
    target, draft = (TableModel(tables.as_float(tables.table(seed, 3))) for seed in (1, 2))
    out = dp.generate(target, [0], draft=draft, verify=rule, tree="auto", max_new_tokens=120, seed=1)
    assert len(out.tokens) == out.trace.tokens == 120
    assert out.trace.tree
    assert out.trace.tree in out.trace.summary()


def test_shared_noise_gives_the_same_text_whatever_is_measured():
    target, draft = (TableModel(tables.as_float(tables.table(seed, 3))) for seed in (1, 2))
    settings = {"verify": "gumbel", "max_new_tokens": 80, "seed": 5}
    plain = dp.generate(target, [0], draft=None, **settings)
    assert dp.generate(target, [0], draft=draft, tree="auto", **settings).tokens == plain.tokens


def test_on_the_command_line(tmp_path):
    folder = str(tiny.save(tmp_path))
    words = ["generate", "abc", "--target", folder, "--draft", folder, "--tree", "auto", "-n", "70", "--json"]
    words += ["--seed", "2"]  # a text that does not end early
    trace = json.loads(CliRunner().invoke(cli.app, words).stdout)["trace"]
    assert trace["tree"].startswith("chain:")
    sizes = [step["drafted"] for step in trace["steps"][: 3 * ROUNDS + 1]]
    assert sizes == [0, *[0, 4, 8] * ROUNDS][: len(sizes)]
