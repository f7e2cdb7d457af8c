"""Measured limits: unbiased, under the bounds, on texts that are the target's own; and the command around them."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
from typer.testing import CliRunner

import draftproof as dp
from draftproof import limits, prompts
from draftproof.commands import cli
from draftproof.draft import Draft, Tree
from draftproof.draws import DRAWS
from draftproof.law import overlap
from draftproof.limits import FACTORS, LimitSettings, measure, report
from draftproof.limits.forest import Forest, RuleCase, cases, compact, reached
from draftproof.limits.walk import Walk
from draftproof.models.drafters.ngram import NGram
from draftproof.models.table import TableModel
from draftproof.theory import bounds
from draftproof.theory.enumerate import expected_accepted
from draftproof.verify import VERIFIERS
from tests.support import tables, tiny

P = np.array([0.05, 0.2, 0.3, 0.45])
Q = np.array([0.4, 0.3, 0.2, 0.1])


def always(row) -> TableModel:
    """A model that says the same in every context, so that positions differ by the luck of the draw alone."""
    return TableModel(lambda context: row)


@pytest.fixture(scope="module")
def measured():
    return measure(always(P), always(Q), [[0], [1]], LimitSettings(siblings=(1, 2), tokens=60, length=2))


@pytest.fixture(scope="module")
def on_tiny_models():
    return measure(tiny.model(), tiny.model("llama", 1), ["abcabc"], LimitSettings(siblings=(1, 2), tokens=5, length=3))


# The numbers


def test_every_rule_is_measured_for_every_number_of_guesses():
    found = cases((1, 2))
    assert {case.rule for case in found if case.siblings == 2} == {
        r.name for r in VERIFIERS.values() if r.trees != "chain"
    }
    assert {case.rule for case in found if case.siblings == 1} == {"token", "block", "match", "onehot"}
    assert all(case.draw in VERIFIERS[case.rule].draws for case in found)


def test_acceptance_and_tokens_are_those_of_the_enumeration(measured):
    (result,) = measured.results
    assert result.positions == 120
    for rule in result.rules:
        case, draw = rule.case, DRAWS[rule.case.draw]
        verifier, models = VERIFIERS[case.rule], (lambda c: P, lambda c: Q)
        exact = expected_accepted(verifier, *models, Tree.star(case.siblings), draw)
        assert abs(rule.acceptance - exact) < 4 * rule.acceptance_error + 1e-9, case
        exact = 1 + expected_accepted(verifier, *models, Tree.paths(case.siblings, 2), draw)
        assert abs(rule.tokens - exact) < 4 * rule.tokens_error, case
        assert rule.tokens_error < 0.1


def test_limits_are_those_of_theory_and_the_best_rules_reach_them(measured):
    for rule in measured.results[0].rules:
        case = rule.case
        assert rule.limit == pytest.approx(bounds.LIMITS[case.draw](P[None], Q[None], case.siblings)[0])
        assert rule.acceptance <= rule.limit + 4 * rule.acceptance_error + 1e-9
        if case.rule in ("optimal", "sbv", "csbv", "nodeplan", "top_plus_one"):
            assert rule.acceptance == pytest.approx(rule.limit, abs=1e-9)
        if case.siblings == 1 and case.rule in ("token", "block"):
            assert rule.acceptance == pytest.approx(overlap(P, Q), abs=1e-9)
        if case.rule == "block":
            assert rule.tokens == pytest.approx(rule.tokens_limit)
    exact = bounds.block(lambda c: P, lambda c: Q, 2)
    block = next(rule for rule in measured.results[0].rules if rule.case.rule == "block")
    assert abs(block.tokens_limit - 1 - exact) < 4 * block.tokens_error


def test_draft_temperature_is_searched_on_the_same_rows(measured):
    estimate = measured.results[0].draft[2]
    assert estimate.mean[FACTORS.index(1.0)] == pytest.approx(bounds.iid(P[None], Q[None], 2)[0])
    assert f"K = 2: {FACTORS[int(estimate.mean.argmax())]:g} times" in report.hotter(measured.results[0])


@pytest.mark.parametrize("name", sorted(VERIFIERS))
def test_putting_tokens_together_changes_no_stop(name):
    rule, random = VERIFIERS[name], np.random.default_rng(7)
    tree = next(t for t in (Tree.paths(2, 2), Tree.chain(3)) if rule.accepts(t))
    p, q = random.dirichlet(np.full(40, 0.3), size=(2, 1, tree.size))
    q[..., 25:] = 0
    q[:, tree.levels[-1].start :] = 0
    q /= np.maximum(q.sum(axis=-1, keepdims=True), 1e-300)
    draw = DRAWS[sorted(rule.draws)[0]]
    tokens = np.full((1, tree.size), -1)
    for node in range(tree.size):
        if children := list(tree.children(node)):
            tokens[:, children] = draw.sample(q[:, node], random.random((1, len(children))))
    draft, u = Draft(tree, tokens, q, p), random.random((1, 20))
    small = compact(draft)
    assert small.p.shape[-1] <= 26
    np.testing.assert_allclose(reached(rule, small, u, 3), reached(rule, draft, u, 3), atol=1e-9)


def test_fewer_paths_are_the_first_of_more_where_the_draw_allows():
    forest = Forest.of([RuleCase("optimal", "iid", 2), RuleCase("optimal", "iid", 3), RuleCase("nodeplan", "plan", 2)])
    assert forest.width == 5
    assert list(forest.paths(RuleCase("sbv", "iid", 2))) == [0, 1]
    assert list(forest.paths(RuleCase("nodeplan", "plan", 2))) == [3, 4]
    tokens = np.arange(11)[None]
    rows = np.ones((1, 11, 4))
    part = forest.part(Draft(Tree.paths(5, 2), tokens, rows, rows), range(3, 5))
    assert part.tree == Tree.paths(2, 2)
    assert part.tokens.tolist() == [[0, 4, 5, 9, 10]]
    short = forest.part(Draft(Tree.paths(5, 2), tokens, rows, rows), range(3, 5), 1)
    assert short.tokens.tolist() == [[0, 4, 5]]
    assert not short.q[:, 1:].any()


@pytest.mark.parametrize("draft", ["small model", "ngram"])
def test_texts_are_the_targets_own(draft, monkeypatch):
    """Guesses, measurements and the clock leave no trace in the text: it is plain sampling's, token for token."""
    walks = []
    go_on = Walk.go_on
    monkeypatch.setattr(Walk, "go_on", lambda walk: (walks.append(walk), go_on(walk)))
    target = tiny.model()
    drafter = NGram(target.vocabulary) if draft == "ngram" else tiny.model("llama", 1)
    limits.measure(target, drafter, ["abcabcabc"], LimitSettings(siblings=(1, 2), tokens=12, length=2, seed=3))
    plain = dp.generate(target, "abcabcabc", draft=None, max_new_tokens=12, seed=3)
    assert list(walks[-1].row.output) == plain.tokens


def test_a_drafter_without_a_guess_accepts_nothing():
    silent = TableModel(lambda context: [0.25] * 4)
    found = measure(silent, NGram(4, longest=9, shortest=9), [[0]], LimitSettings(siblings=(1, 2), tokens=3))
    assert all(rule.acceptance == rule.limit == 0 and rule.tokens == 1 for rule in found.results[0].rules)
    assert "use --draft none: no rule accepted anything." in report.advice(found, found.results[0])


def test_memory_does_not_grow_with_the_prompts():
    wide = np.full(2000, 1 / 2000)

    def peak(count: int) -> int:
        tracemalloc.start()
        measure(always(wide), always(wide), [[0]] * count, LimitSettings(siblings=(1,), tokens=4, length=2))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(1)  # imports
    assert peak(8) < 1.1 * peak(2)


def test_advice_names_the_fastest(measured):
    (result,) = measured.results
    fastest = max(result.rules, key=lambda rule: rule.plan.speedup)
    said = report.advice(measured, result)
    assert fastest.case.rule in said
    assert said.count("\n") == 0
    promised = fastest._replace(plan=fastest.plan._replace(speedup=1.5, tokens=2.5, error=0.25))
    said = report.advice(measured, result._replace(rules=[promised]))
    tree = report.shape(promised)
    idle = promised._replace(plan=promised.plan._replace(speedup=3.0, tokens=1.0))  # by the clock's mistake
    assert report.best(result._replace(rules=[idle, promised])) == promised
    doubtful = promised._replace(plan=promised.plan._replace(speedup=1.2))
    assert "use --draft none" in report.advice(measured, result._replace(rules=[doubtful]))
    assert f"use --verify {promised.case.rule} --tree {tree}: 2.50 tokens a call, predicted 1.50 ± 0.25 times" in said


# The command


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny.save(tmp_path_factory.mktemp("tiny")))


def test_json_and_plot(folder, tmp_path):
    file, picture = tmp_path / "prompts.jsonl", tmp_path / "out.svg"
    file.write_text('{"prompt": "abc"}\n\n{"turns": ["abcabc", "more"]}\n')
    words = ["limits", "--target", folder, "--draft", folder, "--prompts", str(file), "--k", "1,2", "--tokens", "2"]
    words += ["--temperature", "0.5,1", "--length", "2", "--plot", str(picture), "--json"]
    done = CliRunner().invoke(cli.app, words)
    said = json.loads(done.stdout)
    assert [result["temperature"] for result in said["results"]] == [0.5, 1.0]
    assert all(result["positions"] == 4 for result in said["results"])
    rules = {(row["rule"], row["k"]): row for row in said["results"][1]["rules"]}
    assert rules["token", 1]["acceptance"] == pytest.approx(1)  # the draft is the target
    assert rules["block", 1]["tokens_per_call"] == pytest.approx(3, abs=1e-4)
    assert rules["csbv", 2]["best_tree"].startswith("paths:2x")
    assert said["seconds"]["draft"]["mean"] > 0
    assert set(said["seconds"]["target"]) == {"1", "2", "3", "5", "9", "17", "33"}
    text = picture.read_text()
    assert text.startswith("<?xml")
    assert "limit, iid draws" in text


def test_tables_for_people(folder, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("abc\n")
    picture = tmp_path / "out.png"
    words = ["limits", "--target", folder, "--prompts", str(file), "--k", "2", "--tokens", "2", "--plot", str(picture)]
    done = CliRunner().invoke(cli.app, words)
    lines = done.stdout.splitlines()
    assert lines[0] == "temperature 1, 2 positions of 1 texts"
    assert lines[2].split()[:3] == ["K", "rule", "draws"]
    assert {case.rule for case in cases((2,))} <= {line.split()[1] for line in lines if line.startswith("2 ")}
    assert any(line.startswith("At temperature 1 on this machine use ") for line in lines)
    assert any(line.startswith("Times in ms: draft call ") for line in lines)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--k", "1,x"], "k takes numbers separated by commas, not '1,x'"),
        (["--k", "0"], "k must be from 1 to 64, not 0"),
        (["--temperature", "-1"], "temperature must be 0 (greedy) or a positive number"),
        (["--k", "1,65"], "k must be from 1 to 64, not 1, 65"),
        (["--tokens", "0"], "tokens must be at least 1, not 0"),
        (["--length", "0"], "length must be at least 1, not 0"),
        (["--draft-top-k", "-2"], "top_k must be 0 (off) or a positive integer"),
        (["--seed", "-1"], "seed must be an integer from 0"),
        (["--plot", "out.pdf"], "a plot is a .svg or .png file, not 'out.pdf'"),
        (["--plot", "nowhere/out.svg"], "the plot cannot be written to nowhere/out.svg"),
        (["--draft", "none", "--target", "tiny"], "--draft none finds no drafter for 'tiny'"),
        (["--prompts", "absent.txt"], "prompts cannot be read from absent.txt"),
        (["--prompts", "some.csv"], "prompts come from a .txt or .jsonl file, not from 'some.csv'"),
        (["--target", "smolm2"], "unknown model 'smolm2': did you mean 'smollm2'?"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(draftproof, words, message):
    code, out, err = draftproof("limits", *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "\n \n", "contains no prompt: write one per line"),
        ("a.jsonl", '{"prompt": "x"}\nnothing\n', "line 2 of .* is not JSON"),
        ("a.jsonl", '{"text": "x"}\n', "line 1 of .* has no prompt: put it into one of the fields prompt, question"),
        ("a.jsonl", '["x"]\n', "line 1 of .* has no prompt"),
    ],
)
def test_unreadable_prompts_are_named(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(dp.DraftproofError, match=message):
        prompts.read(tmp_path / name)


def test_prompts_from_files(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\n two \n")
    assert prompts.read(tmp_path / "a.txt") == ["one", "two"]
    lines = [{"question": "q"}, {"instruction": "i", "output": "o"}, {"turns": ["t", "u"]}, {"prompt": "p"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert prompts.read(tmp_path / "a.jsonl") == ["q", "i", "t", "p"]
    (tmp_path / "b.jsonl").write_text(json.dumps({"prompt": "two\u2028lines"}, ensure_ascii=False), encoding="utf-8")
    assert prompts.read(tmp_path / "b.jsonl") == ["two\u2028lines"]


def test_prompts_that_fill_the_context(on_tiny_models):
    assert on_tiny_models.results[0].positions == 5
    with pytest.raises(dp.DraftproofError, match="the prompts fill the context"):
        measure(tiny.model(), tiny.model(), ["x" * 90], LimitSettings(tokens=2))


def test_different_vocabularies_are_refused():
    with pytest.raises(dp.DraftproofError, match="choose a draft of the same family"):
        measure(always(P), TableModel(tables.as_float(tables.table(1, 3))), [[0]])
