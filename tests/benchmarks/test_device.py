"""The check of a device: its cases cover what they should, a run on the CPU holds, and what is wrong is seen."""

from __future__ import annotations

import itertools
import json
import random
import sys

import numpy as np
import pytest

from benchmarks.device import __main__ as bench
from benchmarks.device import cases, checking, commands, running, table, workers
from benchmarks.device.cases import Case
from benchmarks.device.running import Written
from draftproof import Sampling
from draftproof.couple import COUPLINGS
from draftproof.verify import VERIFIERS

SMALL = Case("llama", "float32", "model", "block", "top_k", "engine", 4, 20)


@pytest.fixture(scope="module")
def matrix():
    return cases.matrix()


def test_pairs_that_interact_are_covered(matrix):
    """All but those that no case can have, such as a stream of several texts."""
    for names in (tuple(pair.split()) for pair in cases.INTERACT):
        found = {tuple(getattr(case, name) for name in names) for case in matrix}
        for values in set(itertools.product(*(cases.VALUES[name] for name in names))) - found:
            assert next(cases._with((names, values), cases.VALUES, random.Random(1)), None) is None, values


def test_every_rule_has_a_tree_that_it_takes(matrix):
    from draftproof import Tree

    rules = {case.rule for case in matrix}
    assert rules >= {*VERIFIERS, *COUPLINGS, cases.TUNED}
    for case in matrix:
        if case.rule in VERIFIERS and case.tree is not None:
            assert VERIFIERS[case.rule].accepts(Tree.parse(case.tree))


def test_documented_commands_are_found():
    found = {command.words[0] for command in commands.documented() if not command.why_not}
    assert found >= {"generate", "chat", "serve", "limits", "list", "collect", "audit", "warm", "bench"}
    assert all(command.why_not for command in commands.documented() if "distill" in command.words)


def run(monkeypatch, tmp_path, *words):
    monkeypatch.setattr(sys, "argv", ["device", "--device", "cpu", "--results", str(tmp_path / "rows.jsonl"), *words])
    return bench.main()


class Here:
    """A worker in this process."""

    def run(self, case, limit):
        return bench.measured(bench._case(json.loads(json.dumps(case._asdict()))), "cpu", 1)

    def end(self):
        pass


def test_a_run_holds_and_is_not_repeated(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "known", lambda quick: {SMALL.name: SMALL, "list": commands.Command(("list",))})
    monkeypatch.setattr(bench, "Worker", lambda *settings: Here())
    assert run(monkeypatch, tmp_path) == 0
    rows = {row["case"]: row for row in map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())}
    row = rows[SMALL.name]
    assert (row["ok"], row["check"], row["stepper"], row["batch"]) == (True, "same tokens", "eager", 4)
    assert rows["list"]["check"].endswith("words")
    assert {"machine", "versions", "commit", "seed", "seconds", "device"} <= row.keys()
    assert "2 cases, 0 failed, 0 left out" in capsys.readouterr().out
    monkeypatch.setattr(bench, "Worker", lambda *settings: pytest.fail("it is not run again"))
    assert run(monkeypatch, tmp_path) == 0
    assert run(monkeypatch, tmp_path, "--only", "nobody") == 2


def test_a_wrong_text_fails(tmp_path, monkeypatch, capsys):
    """Tokens of one device that are not those of the other, in more texts than rounding explains."""
    write = running.write
    calls = itertools.count()

    def wrong(case, dtype, device, seed):
        texts = write(case, dtype, device, seed)
        return [text._replace(tokens=[65, *text.tokens[1:]]) for text in texts] if next(calls) % 2 else texts

    monkeypatch.setattr(checking, "write", wrong)
    monkeypatch.setattr(bench, "known", lambda quick: {SMALL.name: SMALL})
    monkeypatch.setattr(bench, "Worker", lambda *settings: Here())
    assert run(monkeypatch, tmp_path) == 1
    assert "of 12 texts differ from those on the CPU" in capsys.readouterr().out
    (row,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert not row["ok"]


def texts_of(p, count, chance):
    return [Written((0,), chance.choice(len(p), 20, p=p).tolist()) for _ in range(count)]


def test_another_law_is_seen():
    """A law that is a little too sharp fails, the right one does not; neither does it in a truncated law."""
    scores = np.random.default_rng(5).normal(size=50) * 2.5
    softmax = np.exp(scores) / np.exp(scores).sum()
    sharp = softmax**1.5 / (softmax**1.5).sum()
    cut = np.where(softmax >= np.sort(softmax)[-5], softmax, 0)

    def logits(text):
        return np.repeat(scores[None], len(text.tokens), 0)

    def judged(p, **controls):
        texts = texts_of(p / p.sum(), 40, np.random.default_rng(1))
        return checking.judge(logits, Sampling(**controls, end_tokens=()), texts, exact=True)

    assert judged(softmax).startswith("law, 0.")
    assert judged(cut, top_k=5).startswith("law, 0.")
    for p, controls in ((sharp, {}), (cut, {}), (softmax, {"top_k": 5})):
        with pytest.raises(AssertionError, match="the law of 800 tokens is another"):
            judged(p, **controls)
    with pytest.raises(AssertionError, match="banned were written"):
        judged(softmax, banned=[int(scores.argmax())])
    with pytest.raises(AssertionError, match="below the largest logit"):
        judged(softmax, temperature=0)


def test_a_process_that_ends_or_takes_too_long_is_a_failed_row(tmp_path, monkeypatch):
    program = tmp_path / "worker.py"
    program.write_text(
        "import json, os, sys, time\n"
        "for line in sys.stdin:\n"
        "    what = json.loads(line)['words'][0]\n"
        "    os._exit(3) if what == 'end' else time.sleep(60 * (what == 'sleep'))\n"
        "    print(json.dumps({'ok': True, 'check': what, 'error': '', 'seconds': 0}), flush=True)\n"
    )

    class Scripted(workers.Worker):
        def __init__(self):
            pipe = workers.subprocess.PIPE
            self.process = workers.subprocess.Popen([sys.executable, program], text=True, stdin=pipe, stdout=pipe)

    asked = {word: commands.Command((word,)) for word in ("one", "end", "two", "sleep", "three")}
    rows = dict(workers.run_all(asked, Scripted, 1, limit=5.0))
    assert {name for name, row in rows.items() if row["ok"]} == {"one", "two", "three"}
    assert rows["end"]["error"] == "the process ended with 3"
    assert rows["sleep"]["error"] == "took longer than 5 s"


def test_the_page_claims_only_what_was_recorded(tmp_path):
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    assert table.page_table(tmp_path) == "No run on a GPU is recorded at this version.\n"
    about = {
        "commit": "abc",
        "date": "2026-01-01",
        "seconds": 2,
        "check": "",
        "machine": {"gpu": "H"},
        "versions": {"torch": "2"},
    }
    rows = [{"case": "a", "ok": False, "device": "cuda", **about}, {"case": "b", "ok": True, "device": "cpu", **about}]
    rows += [{"case": "a", "ok": True, "device": "cuda", "draft": "ngram|head", **about}]
    (results / "device.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = table.page_table(tmp_path)
    assert page.startswith("1 cases on H at commit `abc` (2026-01-01), torch 2: 0 failed.")
    assert page.endswith("| draft | ngram/head | 1 | 0 |\n")
