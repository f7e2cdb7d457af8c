"""The benchmarks: every peer in the same run and in turns, rows that say where they come from, a page made of them."""

from __future__ import annotations

import json
import sys

import pytest

from draftproof.bench import demo, engine, inflate, ours, theirs
from draftproof.bench.pair import open_pair, prompts
from draftproof.bench.rows import Facts, Setting, rows
from draftproof.bench.turns import Candidate, Run, Workload, take_turns, warm_up
from draftproof.commands import cli
from draftproof.errors import DraftproofError
from scripts import performance
from tests.support import tiny

PROMISED = (
    *("bench", "name", "device", "dtype", "batch", "temperature", "tokens_per_s", "tokens_per_call", "ratio_to"),
    *("machine", "versions", "commit", "seed", "median", "p20", "p80", "phases", "memory", "command", "date"),
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Target and drafter."""
    return [str(tiny.save(tmp_path_factory.mktemp(f"tiny{seed}"), seed)) for seed in (0, 1)]


@pytest.fixture
def bench(monkeypatch, capsys, folders, tmp_path):
    """The command as it is typed, and the rows it appended."""

    def run(*words: str):
        file = tmp_path / "rows.jsonl"
        monkeypatch.setattr(sys, "argv", ["draftproof", "bench", *words, "--target", folders[0], "--json", str(file)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        made = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return end.value.code, said.out, said.err, made

    return run


def test_engine_measures_every_peer_in_the_same_run(bench, folders):
    small = ("--tokens", "5", "--repeat", "2")
    code, out, err, made = bench(
        "engine", "--draft", folders[1], "--batch", "1,2", "--verify", "token,block", "--temperature", "0.8", *small
    )
    assert code == 0
    assert "note: " not in err  # every way runs here
    assert "transformers assisted" in out
    ways = ["draftproof plain", "draftproof token", "draftproof block", "transformers plain"]
    assert [row["name"] for row in made if row["batch"] == 1] == [*ways, "transformers assisted"]
    assert [row["name"] for row in made if row["batch"] == 2] == ways  # assisted takes one text
    for row in made:
        assert set(PROMISED) <= set(row)
        assert row["p20"] <= row["median"] <= row["p80"]
        assert 1 <= row["tokens_per_call"] <= (1 if row["name"].endswith("plain") else 5)
        peers = {peer["name"] for peer in made if peer["batch"] == row["batch"]}
        assert set(row["ratio_to"]) == peers - {row["name"]}
        assert "/" not in row["target"] + row["draft"] + row["command"]  # no places on this machine
        assert (sum(row["phases"].values()) == pytest.approx(1, abs=0.01)) or row["name"].startswith("transformers")
    twice = ("--temperature", "0.5", "--temperature", "0.7,1.5")
    *_, made = bench("engine", "--draft", "none", "--only", "draftproof", *twice, *small)
    assert [(row["name"], row["temperature"]) for row in made[9:]] == [("draftproof plain", t) for t in (0.5, 0.7, 1.5)]
    *_, made = bench("engine", "--draft", "ngram", *small)
    assert [row["name"] for row in made[12:]] == [
        "draftproof plain",
        "draftproof block",
        *ways[3:],
        "transformers lookup",
    ]


def test_demo_is_the_default_draft_beside_plain_sampling_and_transformers_in_float32(bench):
    code, out, err, made = bench("demo", "--tokens", "6", "--repeat", "2")
    assert code == 0
    assert "note: " not in err
    assert "x transformers float32" in out
    assert [row["name"] for row in made] == ["draftproof plain", "draftproof block", "transformers float32"]
    for row in made:
        assert set(PROMISED) <= set(row)
        assert (row["bench"], row["dtype"], row["temperature"], row["draft"]) == ("demo", "int8", 0.8, "ngram")
        assert set(row["ratio_to"]) == {peer["name"] for peer in made} - {row["name"]}
    *_, plain = bench("demo", "--draft", "none", "--tokens", "6", "--repeat", "1")
    assert [row["name"] for row in plain[3:]] == ["draftproof plain", "transformers float32"]


def test_one_text_after_another():
    """A way that takes batches, given one text at a time: the same workload, everything added up."""
    seen = []

    def write(prompts, temperature, seed):
        seen.append((tuple(prompts), seed))
        return Run(5, 3, {"target": 1.0})

    def ready(workload):
        return write

    both = demo.alone(Candidate("x", ready)).open(Workload(1, 5, 1))([(1,), (2,)], 1.0, 7)
    assert (both.tokens, both.calls, both.phases) == (10, 6, {"target": 2.0})
    assert seen == [(((1,),), 7), (((2,),), 8)]


def test_samples_one_by_one_and_together(bench):
    code, _, _, made = bench("samples", "--batch", "3", "--tokens", "4", "--repeat", "1")
    assert code == 0
    assert [row["name"] for row in made] == ["draftproof one by one", "draftproof together", "transformers together"]
    assert {(row["bench"], row["batch"], row["tokens_per_call"]) for row in made} == {("samples", 3, 1.0)}


def test_both_sides_write_texts_of_full_length(folders):
    """The tiny model ends most texts within the first hundred tokens if it may."""
    pair = open_pair(folders[0], folders[1], "float32")
    ids = [(65, 66, 67), (70,)]
    for way in engine.peers(pair, engine.Options(), batch=1):
        run = way.open(Workload(batch=1, tokens=30, longest=3))(ids[:1], 1.0, 3)
        assert run.tokens == 30
        assert 30 / 6 <= run.calls <= 30
    for way in (theirs.plain(pair.network, pair.target.tokenizer), ours.one_row_each("", ours.Contender(pair.target))):
        assert way.open(Workload(2, 7, 3))(ids, 0.0, 0)[:2] == (14, 14)


def test_ways_take_turns_and_one_that_fails_is_left_out():
    order, notices = [], []

    def way(name):
        def write(prompts, temperature, seed):
            order.append((name, prompts, temperature, seed))
            if name == "broken":
                raise RuntimeError("no compiler\nfound")
            return Run(1, 1, {})

        return Candidate(name, lambda workload: write)

    ready = warm_up([way("a"), way("broken"), way("b")], Workload(1, 1, 1), "p", [1.0], "cpu", notices.append)
    order.clear()
    runs = take_turns(ready, ["p", "q"], 0.8, 5, "cpu")
    assert order == [("a", "p", 0.8, 5), ("b", "p", 0.8, 5), ("a", "q", 0.8, 6), ("b", "q", 0.8, 6)]
    assert {name: len(made) for name, made in runs.items()} == {"a": 2, "b": 2}
    assert all(run.seconds > 0 for made in runs.values() for run in made)
    assert notices == ["broken does not run here: no compiler"]


def test_ratios_are_medians_of_the_ratios_within_rounds():
    """The machine is ten times slower in the second round, for both alike."""
    setting = Setting("engine", "/models/big", "none", "", "cpu", "float32", False, 1, 1.0, 10, "", 3, 0)
    runs = {
        "fast": [Run(10, 5, {"target": s / 2}, s, 7) for s in (1, 10, 1.25)],
        "slow": [Run(10, 10, {}, s, 9) for s in (2, 20, 5)],
    }
    fast, slow = rows(setting, runs, Facts({}, {}, "", "", ""))
    assert (fast["ratio_to"], slow["ratio_to"]) == ({"slow": 2.0}, {"fast": 0.5})
    assert (fast["median"], slow["median"]) == (fast["tokens_per_s"], slow["tokens_per_s"]) == (8.0, 2.0)
    assert (fast["tokens_per_call"], slow["tokens_per_call"]) == (2.0, 1.0)
    assert (fast["phases"], slow["phases"]) == ({"target": 0.5, "other": 0.5}, {})
    assert fast["target"] == "big"


def test_prompts_in_groups(folders, tmp_path):
    pair = open_pair(folders[0], "none", "float32")
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        '{"kind": "b", "turns": ["x", "y"]}\n\n{"kind": "a", "prompt": "zz"}\n{"kind": "b", "prompt": "w"}\n'
    )
    ids = {text: tuple(tiny.tokenizer()(text)["input_ids"]) for text in ("x", "zz", "w")}
    assert prompts(pair, file, "kind") == {"b": [ids["x"], ids["w"]], "a": [ids["zz"]]}
    assert prompts(pair, file, None) == {"": list(ids.values())}
    with pytest.raises(DraftproofError, match=r"has no field 'category': choose from kind, turns"):
        prompts(pair, file, "category")
    with pytest.raises(DraftproofError, match=r"grouped by a field of a \.jsonl file: give one with --prompts"):
        prompts(pair, None, "kind")


def test_the_target_may_be_inflated_and_the_drafter_blurred(folders, monkeypatch):
    monkeypatch.setitem(inflate.SHAPES, "8b", inflate.ModelShape(64, 3, 64, 8, 2))
    pair = open_pair(folders[0], folders[0], "float32", "8b", blur=0.05)
    assert pair.target.network.embed is pair.network.model.embed_tokens  # one set of weights for both
    assert pair.network.config.hidden_size == 64
    assert 0 < inflate.errors(tiny.network("llama"), pair.assistant, [65, 66, 67])[1] < 0.5
    for network in (pair.target.network, pair.network):
        assert inflate.errors(tiny.network("llama"), network, [65, 66, 67])[0] < 1e-3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--batch", "1,x"), "batch takes numbers separated by commas, not '1,x'"),
        (("--batch", "0"), "batch must be at least 1, not 0"),
        (("--temperature", "-1"), "temperature must be 0 (greedy) or a positive number"),
        (("--verify", "blok"), "unknown verifier 'blok'"),
        (("--verify", "block", "--tree", "star:2"), "verifier 'block' works on chain drafts only: choose such a tree"),
        (("--inflate", "9b"), "unknown shape '9b'"),
        (("--inflate", "8b", "--dtype", "int8"), "inflate does not work with int8 weights"),
        (("--inflate", "8b", "--dtype", "float33"), "unknown dtype 'float33': use float32"),
        (("--dtype", "int8", "--draft", "TARGET", "--blur", "0.1"), "blur needs a draft model with float weights"),
        (("--blur", "0.1"), "blur needs a draft model with float weights, not 'ngram' in float32"),
        (("--blur", "2"), "blur must be from 0 to 1, not 2.0"),
        (("--seed", "-1"), "seed must be an integer from 0"),
        (("--only", "nobody"), "--only nobody leaves nothing to measure: choose from draftproof plain"),
    ],
)
def test_mistakes_are_one_line(bench, folders, words, said):
    code, _, err, made = bench("engine", *(folders[0] if word == "TARGET" else word for word in words))
    assert (code, made) == (2, [])
    assert said in err
    assert err.count("\n") == 1


def test_the_page_is_what_the_rows_say(tmp_path):
    assert (performance.ROOT / "docs/performance.md").read_text(encoding="utf-8") == performance.page(performance.ROOT)
    setting = Setting("engine", "small", "none", "", "cpu", "int8", False, 2, 0.8, 10, "coding", 1, 0)
    facts = Facts({"cpu": "Chip", "threads": 2}, {"torch": "2"}, "abc", "draftproof bench engine", "2026-01-02")
    made = rows(setting, {"draftproof plain": [Run(9, 9, {}, 1)], "transformers plain": [Run(9, 9, {}, 4)]}, facts)
    folder = tmp_path / "benchmarks/results"
    folder.mkdir(parents=True)
    (folder / "engine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*made, {"bench": "kernels"}]))
    text = performance.page(tmp_path)
    assert "## Sampling: small in int8, plain, batch 2, Chip, 2 threads" in text
    assert "**small, draft none, cpu int8, batch 2, temperature 0.8, 10 tokens, coding**" in text
    assert "| draftproof plain | 9.0 | 9.0 to 9.0 | 1.00 |  | 4.00 |  | 0 MB |" in text
