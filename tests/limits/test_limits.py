"""Measured limits: unbiased, under the bounds, on texts that are the target's own; and the command around them."""

from __future__ import annotations

import io
import json
import shlex
import tracemalloc

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import draftproof as dp
from draftproof import limits, prompts
from draftproof.commands import cli
from draftproof.draft import Draft, Tree
from draftproof.draws import DRAWS
from draftproof.law import overlap
from draftproof.limits import FACTORS, CommandNames, LimitSettings, clock, measure, report
from draftproof.limits.advice import advice, best, command, draft_temperature, shape, speed
from draftproof.limits.forest import Forest, RuleCase, cases, compact, reached
from draftproof.limits.walk import Walk
from draftproof.models.drafters.ngram import NGram
from draftproof.models.table import TableModel
from draftproof.theory import bounds
from draftproof.theory.acceptance import judged
from draftproof.theory.enumerate import expected_accepted
from draftproof.theory.plan import Estimate, Seconds
from draftproof.verify import VERIFIERS
from tests.support import tables, tiny

P = np.array([0.05, 0.2, 0.3, 0.45])
Q = np.array([0.4, 0.3, 0.2, 0.1])


def as_text(table, width: int = 120) -> str:
    """A table as the command prints it."""
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


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
        assert rule.acceptance <= rule.limit
        if case.rule in ("optimal", "sbv", "csbv", "nodeplan", "sbv_plan", "top_plus_one"):
            assert rule.share == pytest.approx(1, abs=1e-9)
            assert rule.share_error == pytest.approx(0, abs=1e-9)
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
    factor = FACTORS[int(estimate.mean.argmax())]
    assert f"{factor:g} times the target's for K = 2 (+" in draft_temperature(measured.results[0])


@pytest.mark.parametrize("seed", range(6))
def test_few_positions_never_pass_a_limit_and_errors_stay_in_range(seed):
    """An ordinary mean of these few guesses is above its limit for some rule with every seed."""
    models = (TableModel(tables.as_float(tables.table(number, 6))) for number in (seed, 70 + seed))
    found = measure(*models, [[0]], LimitSettings(siblings=(1, 2, 3), tokens=4, length=2, seed=seed))
    over = 0
    for rule in found.results[0].rules:
        assert 0 <= rule.acceptance <= rule.limit
        assert rule.acceptance_error >= 0
        if rule.share is not None:
            assert 0 <= rule.share_error <= 1 - rule.share <= 1
        if rule.tokens_limit is not None:
            assert rule.tokens <= rule.tokens_limit + 1e-9
        over += rule.estimate.mean[0] > rule.limit + 1e-9
        low, high = rule.plan.interval
        assert 0 <= low <= rule.plan.speedup <= high
    assert over


def test_errors_of_shares_are_their_spread_over_repetitions():
    random, rule, cut = np.random.default_rng(1), VERIFIERS["recursive"], bounds.CUTS["iid"](P[None], Q[None], 2)
    found = []
    for _ in range(300):
        tokens = DRAWS["iid"].sample(np.stack([Q] * 120), random.random((120, 2)))
        rows = np.stack([[Q, Q * 0, Q * 0]] * 120)
        draft = Draft(Tree.star(2), np.concatenate([tokens[:, :1], tokens], axis=1), rows, np.stack([[P] * 3] * 120))
        result = judged(rule, draft, np.repeat(cut.inside, 120, axis=0))
        entries = np.stack([*result, np.full(120, cut.limit[0])], axis=1)
        found.append(limits.Measured(RuleCase("recursive", "iid", 2), Estimate.of(entries), None))
    shares = [one.share for one in found]
    exact = expected_accepted(rule, lambda c: P, lambda c: Q, Tree.star(2), DRAWS["iid"])
    assert np.mean(shares) == pytest.approx(exact / cut.limit[0], abs=4 * np.std(shares) / 300**0.5)
    assert np.mean([one.share_error for one in found]) == pytest.approx(np.std(shares), rel=0.15)


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
    (result,) = found.results
    assert result.drafted == 0
    assert all(rule.share is rule.share_error is None for rule in result.rules)
    assert "--draft none --temperature 1`: no rule accepted anything." in advice(found, result)
    assert as_text(report.table(result)).count(" – ") == len(result.rules)
    assert "%" not in as_text(report.table(result))
    assert any(line.startswith("–: the limit is zero") for line in report.notes(result))
    assert {row["of_limit"] for row in report.as_dict(found)["results"][0]["rules"]} == {None}


@pytest.mark.parametrize("width", [80, 116, 120])
def test_no_number_is_cut_off_on_a_narrow_screen(measured, width):
    (result,) = measured.results
    lines = as_text(report.table(result, width), width).splitlines()
    assert len(lines) == 2 + len(result.rules)  # a row each, a heading, a line between the two K
    assert not any("…" in line for line in lines)
    for rule, line in zip(report.ranked(result), (line for line in lines[1:] if line.strip()), strict=True):
        assert line.split()[:2] == [str(rule.case.siblings), rule.case.rule]
        assert f" {rule.case.draw} {rule.limit:.3f} " in line
        assert f"{100 * rule.share:.1f}" in line


def test_only_drafters_with_logits_have_a_temperature(measured, on_tiny_models):
    repeat = TableModel(lambda context: [0.05] * 3 + [0.85])
    found = measure(repeat, NGram(4), [[3] * 9], LimitSettings(siblings=(1, 2), tokens=6))
    (result,) = found.results
    assert result.drafted > 0
    assert (draft_temperature(result), result.draft, found.draft_top_k) == ("", {}, 0)
    rule = result.rules[0]
    words = command(found, result, rule).split()
    assert (
        words[3:]
        == f"--target table --draft ngram --verify {rule.case.rule} --tree {shape(rule)} --temperature 1".split()
    )
    assert report.as_dict(found)["results"][0]["draft_temperature"] == {}
    greedy = measure(always(P), always(Q), [[0]], LimitSettings(siblings=(1,), temperatures=(0.0,), tokens=3))
    assert draft_temperature(greedy.results[0]) == ""
    (result,) = measured.results
    assert result.draft.keys() == {1, 2}


def test_a_draft_temperature_is_recommended_if_it_helps_for_sure(measured):
    (result,) = measured.results
    rule = next(rule for rule in result.rules if rule.case == RuleCase("sbv", "iid", 2))
    other = next(rule for rule in result.rules if rule.case == RuleCase("nodeplan", "plan", 2))
    factor = FACTORS[int(result.draft[2].mean.argmax())]
    assert factor != 1
    assert f" --draft-temperature {factor:g}" in command(measured, result, rule)
    assert "--draft-temperature" not in command(measured, result, other)  # another limit binds these draws
    noisy = result.draft[2]._replace(scatter=np.diag([1e3] * len(FACTORS)))
    result = result._replace(draft={2: noisy})
    assert "--draft-temperature" not in command(measured, result, rule)
    assert draft_temperature(result).endswith(": the target's own for K = 2.")


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
    said = advice(measured, result)
    assert fastest.case.rule in said
    assert said.count("\n") == 0
    promised = fastest._replace(plan=fastest.plan._replace(speedup=1.5, tokens=2.5, error=0.25))
    said = advice(measured, result._replace(rules=[promised]))
    idle = promised._replace(plan=promised.plan._replace(speedup=3.0, tokens=1.0))  # by the clock's mistake
    assert best(result._replace(rules=[idle, promised])) == promised
    doubtful = promised._replace(plan=promised.plan._replace(speedup=1.2))
    assert "--draft none" in advice(measured, result._replace(rules=[doubtful]))
    line = f"`{command(measured, result, promised)}`: 2.50 tokens a call, predicted 1.50 (1.27-1.77) times"
    assert line in said
    noisy = promised._replace(plan=promised.plan._replace(speedup=1.5, error=30.0))
    assert speed(noisy.plan) == "1.50 (?)"
    assert "--draft none" in advice(measured, result._replace(rules=[noisy]))
    assert any(line.startswith("(?): the times") for line in report.notes(result._replace(rules=[noisy])))


def test_the_recommended_command_runs(draftproof, folder):
    names = CommandNames(folder, folder, ("--raw",))
    target, settings = tiny.model(), LimitSettings(siblings=(1, 2), tokens=4, length=2, draft_top_k=50)
    found = measure(target, tiny.model("llama", 1), ["abcabc"], settings, names=names)
    assert found.draft_top_k == 50
    (result,) = found.results
    for rule in (None, *result.rules):
        words = shlex.split(command(found, result, rule))
        assert words[:3] == ["draftproof", "generate", "PROMPT"]
        assert {"--target", "--draft", "--temperature", "--raw"} <= set(words)
        assert rule is None or {"--verify", "--tree", "--draft-top-k"} <= set(words)
    code, out, err = draftproof(*words[1:], "-n", "5", "--seed", "1")
    assert code == 0, err
    assert f"verifier {rule.case.rule}" in out + err


def test_plain_sampling_is_not_slower_than_a_call_with_more_tokens(monkeypatch):
    """Else a busy moment of the machine promises a speed-up above the number of tokens a call."""

    def busy(*works, repeats=5):
        for work in works:
            work()
        return [Seconds(0.1), Seconds(9.0), *[Seconds(1.0 + n) for n in range(6)]] if len(works) > 1 else [Seconds(0.0)]

    monkeypatch.setattr(clock, "_times", busy)
    found = measure(always(P), always(Q), [[0]], LimitSettings(siblings=(1, 2), tokens=3, length=2))
    assert [call.mean for call in found.times.models.target.values()] == [1, 1, 2, 3, 4, 5, 6]
    assert all(rule.plan.speedup <= rule.plan.tokens for rule in found.results[0].rules)


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
    panels = {draw: f"limit of {draw} draws" for draw in ("iid", "distinct", "top", "plan")}
    assert all(text.count(f">{label}<") == 1 for label in panels.values())  # one legend entry for each way of drawing
    assert all(text.count(f">{draw} draws, temperature {heat}<") == 1 for draw in panels for heat in ("0.5", "1"))


def test_tables_for_people(folder, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("abc\n")
    picture = tmp_path / "out.png"
    words = ["limits", "--target", folder, "--prompts", str(file), "--k", "2", "--tokens", "2", "--plot", str(picture)]
    done = CliRunner().invoke(cli.app, words)
    lines = done.stdout.splitlines()
    assert lines[0] == "temperature 1, 2 positions of 1 text, the drafter had candidates at 0 of them"
    assert " ".join(lines[2].split()).startswith("K rule acceptance limit of draws of limit tokens a call")
    assert {case.rule for case in cases((2,))} <= {line.split()[1] for line in lines if line.startswith("2 ")}
    assert any(line.startswith("At temperature 1 on this machine use `draftproof generate PROMPT ") for line in lines)
    assert not any("Draft temperature" in line for line in lines)  # n-grams have none
    assert any(line == f"  plan: {DRAWS['plan'].summary}" for line in lines)
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
