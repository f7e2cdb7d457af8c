"""What an audit says: a sentence, numbers, a page; and the exit codes of the command line."""

from __future__ import annotations

import json
import math
import re
import sys
import xml.etree.ElementTree

import numpy as np
import pytest

from draftproof.audit import evidence
from draftproof.audit.page import html
from draftproof.audit.report import TOO_FEW, power_of_ten, report
from draftproof.commands import cli
from draftproof.sampling import Sampling
from tests.support import tiny
from tests.support.faults import auditor, feed, plain, world


def audited(heat: float = 1.0, stated: Sampling | None = None):
    here = world(1, 30, 0.7)
    book = auditor(here, draft=False)
    texts = [plain(here, 400, seed, heat)._replace(line=seed + 1) for seed in range(5)]
    feed(book, here, *(text._replace(sampling=stated or text.sampling) for text in texts), draft=False)
    return report(book.evidence, book.notes, 0.01)


def test_an_exact_engine_in_one_sentence():
    found = audited()
    assert re.fullmatch(
        r"exact so far at level 0.01 after 2000 tokens \(evidence [\d.]+, alarm at 100\)", found.verdict
    )
    assert found.verdict in found.text()
    low, high = found.interval
    assert low < found.rate < high
    assert found.evidence >= found.final


def test_a_wrong_engine_in_one_sentence():
    found = audited(heat=0.6)
    assert re.match(
        r"not exact: the outputs look as if the temperature were 0\.6\d? instead of 1, evidence 10\^", found.verdict
    )
    assert found.interval[0] > 0
    assert math.exp(found.interval[0]) > 1
    gains = [spot.gain for spot in found.worst]
    assert gains == sorted(gains, reverse=True)
    assert {spot.line for spot in found.worst} <= set(range(1, 6))


def test_an_impossible_token_is_evidence_without_bound():
    found = audited(stated=Sampling(top_k=2))
    assert "evidence without bound" in found.verdict
    assert found.impossible > 100
    said = json.loads(found.json())
    assert (said["exact"], said["evidence"]) == (False, None)
    assert said["impossible"] == found.impossible
    assert found.worst[0].chance == 0
    assert "<svg" in html(found)


def test_json_carries_everything():
    said = json.loads(audited().json())
    assert said["exact"] is True
    assert {"verdict", "alpha", "tolerance", "tokens", "rate", "interval", "power", "worst", "curve"} <= set(said)
    assert all(0 < p["total_variation"] < 1 for p in said["power"] if p["share"] <= 1)
    tokens = [n for n, _, _ in said["curve"]]
    assert tokens == sorted(set(tokens))
    assert (tokens[0], tokens[-1]) == (0, said["tokens"])


@pytest.mark.parametrize("heat", [1.0, 0.6])
def test_the_page_needs_nothing_but_itself(heat):
    found = audited(heat)
    page = html(found)
    assert "http" not in page
    assert "<script" not in page
    assert "src=" not in page
    (drawn,) = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    lines = xml.etree.ElementTree.fromstring(drawn).findall("polyline")
    assert len(lines) == 5
    heights = [float(pair.split(",")[1]) for pair in lines[0].attrib["points"].split()]
    assert (heights[-1] < heights[0]) == (found.final > 0)  # upwards is evidence
    assert found.verdict.split("(")[0].strip()[:30] in page


def test_more_tokens_show_smaller_faults():
    here = world(1, 30, 0.7)
    book = auditor(here)
    sizes = []
    for portion in range(3):
        feed(book, here, *(plain(here, 500, 10 * portion + seed) for seed in range(4 ** (portion + 1) // 4)))
        sizes.append({p.family: p.total_variation for p in report(book.evidence, book.notes, 0.01).power})
    assert sizes[0]["draft leaks"] > sizes[1]["draft leaks"] > sizes[2]["draft leaks"] > 0
    assert sizes[0]["temperature"] > sizes[2]["temperature"] > 0


def test_few_tokens_would_show_nothing_and_say_so():
    here = world(1, 30, 0.7)
    book = auditor(here)
    feed(book, here, plain(here, 3, seed=1))
    found = report(book.evidence, book.notes, 0.01)
    assert all(p.share > 1 for p in found.power)  # a temperature that is off by more than any that is bet on, too
    assert TOO_FEW in found.text()
    assert TOO_FEW in html(found)
    assert "nine times out of ten these" not in found.text()


def test_the_curve_stays_short_however_long_the_audit(monkeypatch):
    monkeypatch.setattr(evidence, "POINTS", 16)
    here = world(1, 5)
    book = auditor(here, draft=False)
    for seed in range(12):
        feed(book, here, plain(here, 1_000, seed), draft=False)
    assert 8 <= len(book.evidence.curve) <= 16
    assert book.evidence.curve[-1][0] > 10_000


@pytest.mark.parametrize(
    ("log", "words"), [(0.0, "1"), (math.log(99), "99"), (20.8, "10^9"), (np.inf, "without bound")]
)
def test_evidence_as_people_say_it(log, words):
    assert power_of_ten(log) == words


# The command line


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def draftproof(monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["draftproof", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return run


def test_collect_then_audit(draftproof, folder, tmp_path):
    (tmp_path / "prompts.txt").write_text("abcabc\n\nhello\n")
    words = ["--target", folder, "--samples", "6", "-n", "30", "--temperature", "0.8"]
    for source in ("engine", "transformers"):
        extra = ["--draft", folder, "--verify", "token", "--tree", "chain:3"] if source == "engine" else []
        code, _, err = draftproof(
            "collect", source, tmp_path / "prompts.txt", tmp_path / f"{source}.jsonl", *words, *extra
        )
        assert code == 0
        assert f"12 transcripts in {tmp_path / f'{source}.jsonl'}\n" in err
        code, out, _ = draftproof("audit", tmp_path / f"{source}.jsonl", "--target", folder, "--draft", "ngram")
        assert code == 0, out
        assert out.startswith("exact so far at level 0.01 after ")
    told = [json.loads(line) for line in (tmp_path / "engine.jsonl").read_text().splitlines()]
    assert told[0]["sampling"] == {"end_tokens": [256], "temperature": 0.8}
    assert any(sum(text["accepted"]) for text in told)
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text("".join(json.dumps({**text, "sampling": {"temperature": 0.3}}) + "\n" for text in told))
    code, out, _ = draftproof("audit", wrong, "--target", folder, "--json", "--html", tmp_path / "page.html")
    assert code == 1
    assert "temperature were 0.3" in json.loads(out)["verdict"]
    assert "not exact" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["audit", "none.jsonl"], "no transcripts at none.jsonl: create some with `draftproof collect`"),
        (["audit", "file.txt", "--target", "FOLDER"], "line 1 is not JSON"),
        (["audit", "file.txt", "--html", "nowhere/page.html"], "the report cannot be written to nowhere/page.html"),
        (["audit", "bytes.txt", "--target", "FOLDER"], "bytes.txt is not UTF-8 text"),
        (["collect", "engine", "bytes.txt", "out"], "bytes.txt is not UTF-8 text (byte 0): save it as UTF-8"),
        (["collect", "engine", "file.txt", "nowhere/out"], "transcripts cannot be written to nowhere/out"),
        (["collect", "engine", "file.txt", "out", "-n", "0"], "max_new_tokens must be at least 1"),
        (["collect", "engine", "none.txt", "out"], "prompts cannot be read from none.txt"),
        (["collect", "engine", "file.txt", "out", "--samples", "0"], "samples must be at least 1"),
        (["collect", "engine", "file.txt", "out", "--seed", "-1"], "seed must be an integer from 0"),
        (["collect", "engine", "file.txt", "file.txt"], "file.txt contains the prompts: choose another file"),
        (["collect", "elsewhere", "file.txt", "out", "--target", "FOLDER"], "unknown source 'elsewhere'"),
        (["collect", "assisted", "file.txt", "out", "--target", "FOLDER"], "assisted generation needs a model"),
        (["collect", "vllm", "file.txt", "out", "--target", "FOLDER"], "vllm is not installed here"),
        (["collect", "http://127.0.0.1:9", "file.txt", "out", "--target", "FOLDER"], "no completions from http://127"),
    ],
)
def test_bad_input_ends_with_code_two(words, message, draftproof, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").write_text("hello world\n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    code, out, err = draftproof(*(str(folder) if word == "FOLDER" else word for word in words))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "file.txt").read_text() == "hello world\n"
