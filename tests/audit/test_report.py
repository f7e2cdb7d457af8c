"""What an audit says: a sentence, numbers, a page; and the exit codes of the command line."""

from __future__ import annotations

import json
import math
import re
import sys
import xml.etree.ElementTree

import numpy as np
import pytest

from draftproof.audit import wealth
from draftproof.audit.page import html
from draftproof.audit.report import TOO_FEW, power_of_ten
from draftproof.commands import cli
from draftproof.sampling import Sampling
from tests.support import tiny
from tests.support.faults import auditor, feed, plain, world


def audited(heat: float = 1.0, stated: Sampling | None = None):
    here = world(1, 30, 0.7)
    book = auditor(here, draft=False)
    texts = [plain(here, 400, seed, heat)._replace(line=seed + 1) for seed in range(5)]
    feed(book, here, *(text._replace(sampling=stated or text.sampling) for text in texts), draft=False)
    return book.report(0.01)


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
    assert "\nstrongest alternative: as if the temperature were 0.6" in found.text()
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
    shares = {p["family"]: p["share"] for p in said["power"]}
    assert shares["impossible tokens"] is None  # the settings forbid none, so this bet differs from p by rounding alone
    assert all(0 < share <= 1 for share in shares.values() if share is not None)
    assert all(0 < p["total_variation"] < 1 for p in said["power"] if p["share"] is not None)
    assert all(p["total_variation"] is None for p in said["power"] if p["share"] is None)
    assert sum(share is not None for share in shares.values()) >= 2
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
    assert "url(" not in page
    (drawn,) = re.findall(r"<svg[^>]*role.*?</svg>", page, flags=re.DOTALL)
    lines = xml.etree.ElementTree.fromstring(drawn).findall("polyline")
    assert len(lines) == 5
    heights = [float(pair.split(",")[1]) for pair in lines[-1].attrib["points"].split()]  # drawn last, on top
    assert (heights[-1] < heights[0]) == (found.final > 0)  # upwards is evidence
    said = re.sub(r"<.*?>", "", page)
    assert found.verdict.lower() in said.lower()


def test_the_legend_stands_outside_the_chart_and_names_every_line():
    page = html(audited(0.6))
    (drawn,) = re.findall(r"<svg[^>]*role.*?</svg>", page, flags=re.DOTALL)
    assert "<text" not in drawn  # it is stretched, and so would letters be
    (legend,) = re.findall(r'<ul class="legend">.*?</ul>', page, flags=re.DOTALL)
    used = set(re.findall(r'class="(l\d|alarm)"', drawn))
    assert used == set(re.findall(r'class="(l\d|alarm)"', legend)) == {"l0", "l1", "l2", "l3", "l4", "alarm"}
    assert len(set(re.findall(r'stroke-dasharray="(.*?)" points', drawn))) == 4  # not by colour alone


def test_labels_and_dashes_of_the_chart_are_told_apart_on_a_phone():
    """The last label needs the right half of a narrow chart; the alarm is dashed unlike any line."""
    found = audited(0.6)
    page = html(found._replace(curve=(found.curve[0], (578, *found.curve[-1][1:]))))
    below = re.search(r'<div class="x".*?</div>', page, flags=re.DOTALL)[0]
    shown = re.findall(r"<span style=\"left:([\d.]+)%\">", below)
    assert shown == ["0.00", "34.60"]
    assert re.findall(r"<span class=late[^>]*>(\d+)<", below) == ["400"]
    (alarm,) = re.findall(r"\.alarm {[^}]*dasharray: (\d+) ", page)
    dashes = {int(dash) for dash in re.findall(r'dasharray="(\d+) ', page)}
    assert dashes == {3, 12, 18}
    assert all(max(dash, int(alarm)) >= 2 * min(dash, int(alarm)) for dash in dashes)


def test_the_page_suits_phones_and_dark_rooms():
    page = html(audited())
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert "@media (prefers-color-scheme: dark)" in page
    assert page.count("<table>") == page.count('<div class="scroll" role="region" tabindex="0"') == 2
    light, dark = (dict(re.findall(r"--(\w+): (#\w+)", part)) for part in page.split("prefers-color-scheme: dark"))
    assert light.keys() == dark.keys()
    for colours in (light, dark):
        for name in ("text", "quiet", "good", "bad"):
            assert min(contrast(colours[name], colours[ground]) for ground in ("page", "panel")) >= 4.5, name
        for name in ("alarm", "c1", "c2", "c3", "c4"):
            assert contrast(colours[name], colours["page"]) >= 3, name


def contrast(one: str, other: str) -> float:
    """The contrast of two colours as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_everything_on_the_page_is_escaped():
    evil = '<b onclick="x">&\''
    found = audited(0.6)
    found = found._replace(target=evil, lead=evil, words=tuple((evil, evil) for _ in found.words))
    found = found._replace(families=tuple(evil for _ in found.families))
    found = found._replace(power=tuple(power._replace(says=evil) for power in found.power))
    assert "<b" not in html(found).replace("<body", "")
    assert html(found).count("&lt;b onclick=&quot;x&quot;&gt;&amp;") > 20


def test_evidence_without_bound_leaves_the_chart_at_its_top():
    page = html(audited(stated=Sampling(top_k=2)))
    points = re.findall(r'class="l0"[^>]*points="([^"]*)"', page)[0].split()
    assert len(points) > 1
    assert float(points[-1].split(",")[1]) == 0
    assert "all bets together: without bound" in page


def test_more_tokens_show_smaller_faults():
    here = world(1, 30, 0.7)
    book = auditor(here)
    sizes = []
    for portion in range(3):
        feed(book, here, *(plain(here, 500, 10 * portion + seed) for seed in range(4 ** (portion + 1) // 4)))
        sizes.append({p.family: p.total_variation for p in book.report(0.01).power})
    assert sizes[0]["draft leaks"] > sizes[1]["draft leaks"] > sizes[2]["draft leaks"] > 0
    assert sizes[0]["temperature"] > sizes[2]["temperature"] > 0


def test_few_tokens_would_show_nothing_and_say_so():
    here = world(1, 30, 0.7)
    book = auditor(here)
    feed(book, here, plain(here, 3, seed=1))
    found = book.report(0.01)
    assert found.power
    assert all(p.share is p.total_variation is None for p in found.power)  # also of temperatures beyond those bet on
    assert TOO_FEW in found.text()
    assert TOO_FEW in html(found)
    assert "nine times out of ten these" not in found.text()


def test_the_curve_stays_short_however_long_the_audit(monkeypatch):
    monkeypatch.setattr(wealth, "POINTS", 16)
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
    assert "<strong>Not exact</strong>" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_an_engine_against_its_own_plain_sampling(draftproof, folder, tmp_path):
    """From files alone; the audit's model may be another one than the engine's."""
    (tmp_path / "prompts.txt").write_text("abcabc\nhello\n")
    plain, speculative, page = (tmp_path / name for name in ("plain.jsonl", "speculative.jsonl", "page.html"))
    words = [tmp_path / "prompts.txt", "--target", folder, "--samples", "16", "-n", "12"]
    for path, extra in ((plain, ["--seed", "1"]), (speculative, ["--seed", "2", "--draft", "ngram"])):
        assert draftproof("collect", "engine", words[0], path, *words[1:], *extra)[0] == 0
    code, out, _ = draftproof("audit", speculative, "--against", plain, "--target", folder, "--draft", "ngram")
    assert code == 0, out
    assert re.match(r"no difference so far at level 0\.01 after \d+ tokens in 32 pairs", out)
    told = [json.loads(line) for line in speculative.read_text().splitlines()]
    for text in told:  # an engine that says the same token again and again
        text["output_token_ids"] = [97] * len(text["output_token_ids"])
    speculative.write_text("".join(json.dumps(text) + "\n" for text in told))
    arguments = ["audit", speculative, "--against", plain, "--target", folder, "--json", "--html", page]
    code, out, _ = draftproof(*arguments)
    assert code == 1
    assert json.loads(out)["paired"]["groups"] == 32
    assert "pairs of texts" in page.read_text(encoding="utf-8")
    code, _, err = draftproof(*arguments, "--tolerance", "0.01")
    assert (code, err) == (2, "error: a comparison with plain transcripts needs no allowance: leave --tolerance out\n")
    cool = tmp_path / "cool.jsonl"
    cool.write_text("".join(json.dumps({**text, "sampling": {"temperature": 0.5}}) + "\n" for text in told))
    code, _, err = draftproof("audit", cool, "--against", plain, "--target", folder)
    assert (code, err.count("\n")) == (2, 1)
    assert "line 1: temperature is 0.5, but 1.0 in the plain transcripts of this prompt" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["audit", "file.txt", "--against", "none.jsonl"], "no transcripts at none.jsonl: create some"),
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
