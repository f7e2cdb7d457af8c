"""Options of the commands: wrong ones fail before a model is loaded, and what is not given follows the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

import draftproof as dp
from draftproof.commands import shared
from draftproof.models import devices, load
from tests.support import tiny

ABSENT = ("--target", "no-such-model")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def configured(tmp_path_factory):
    """A model that says in its generation_config.json how it wants to be sampled."""
    folder = tiny.save(tmp_path_factory.mktemp("configured"))
    (folder / "generation_config.json").write_text('{"eos_token_id": 256, "temperature": 0.5, "top_p": 0.9}')
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("generate", "x", "-n", "0"), "max_new_tokens must be a whole number of at least 1, not 0"),
        (("generate", "x", "--seed", "-1"), "seed must be an integer from 0"),
        (("generate", "x", "--stop", ""), "stop must be text, not ''"),
        (("generate", "x", "--temperature", "nan"), "temperature must be 0 (greedy) or a positive number"),
        (("generate", "x", "--top-p", "1.5"), "top_p must be in (0, 1]"),
        (("generate", "x", "--min-p", "-1"), "min_p must be in [0, 1]"),
        (("generate", "x", "--typical-p", "0"), "typical_p must be in (0, 1]"),
        (("generate", "x", "--repetition-penalty", "0"), "repetition_penalty must be a positive number"),
        (("generate", "x", "--presence-penalty", "inf"), "presence_penalty must be a finite number"),
        (("generate", "x", "--draft-temperature", "-2"), "temperature must be 0 (greedy)"),
        (("generate", "x", "--n", "0"), "--n must be a whole number of at least 1, not 0"),
        (("generate", "x", "--threads", "0"), "threads must be a whole number of at least 1, not 0"),
        (("generate", "x", "--dtype", "float33"), "unknown dtype 'float33': use float32, bfloat16, float16 or int8"),
        (("generate", "x", "--device", "gpu"), "unknown device 'gpu': use auto, cpu, cuda, cuda:1 or mps"),
        (("generate", "x", "--device", "cuda:99"), "device 'cuda:99' is not available here"),
        (("generate", "x", "--device", "cuda", "--dtype", "int8"), "int8 weights run on the CPU, not on 'cuda'"),
        (("generate", "x", "--tree", "bush"), "unknown tree 'bush'"),
        (("generate", "x", "--verify", "block", "--tree", "best:20x5"), "verifier 'block' works on chain drafts only"),
        (("generate", "x", "--lossy", "typical", "--tree", "star:2"), "verifier 'typical' works on chain drafts only"),
        (("generate", "x", "--system", "y", "--raw"), "--system needs the chat template that --raw leaves out"),
        (("generate", "x", "--draft", "./absent"), "no model at ./absent: check the path"),
        (("generate", "x", "--draft", "ngram|ngrm"), "unknown draft 'ngrm': did you mean 'ngram'?"),
        (("chat", "--draft", "head,absent"), "unknown model 'absent'"),
        (("warm", "--draft", "./absent"), "no model at ./absent"),
        (("limits", "--draft", "./absent"), "no model at ./absent"),
        (("bench", "demo", "--draft", "./absent"), "no model at ./absent"),
        (("generate", ""), "the prompt is empty"),
        (("limits", "--seed", "-1"), "seed must be"),
        (("limits", "--temperature", "-1"), "temperature must be"),
        (("limits", "--tokens", "0"), "tokens must be at least 1"),
        (("limits", "--dtype", "x"), "unknown dtype 'x'"),
        (("limits", "--device", "x"), "unknown device 'x'"),
        (("limits", "--draft", "none"), "--draft none finds no drafter"),
        (("audit", "FILE", "--alpha", "2"), "alpha must be between 0 and 1"),
        (("audit", "FILE", "--tolerance", "1"), "tolerance must be at least 0"),
        (("audit", "FILE", "--dtype", "x"), "unknown dtype 'x'"),
        (("audit", "FILE", "--device", "x"), "unknown device 'x'"),
        (("collect", "engine", "FILE", "o.jsonl", "--seed", "-1"), "seed must be"),
        (("collect", "engine", "FILE", "o.jsonl", "-n", "0"), "max_new_tokens must be at least 1"),
        (("collect", "engine", "FILE", "o.jsonl", "--top-p", "2"), "top_p must be"),
        (("collect", "engine", "FILE", "o.jsonl", "--draft", "ngram", "--verify", "blok"), "unknown verifier 'blok'"),
        (("collect", "engine", "FILE", "o.jsonl", "--device", "x"), "unknown device 'x'"),
        (("collect", "nobody", "FILE", "o.jsonl"), "unknown source 'nobody'"),
        (("distill", "--out", "o", "--seed", "-1"), "seed must be"),
        (("distill", "--out", "o", "--dtype", "x"), "unknown dtype 'x'"),
        (("distill", "--out", "o", "--device", "x"), "unknown device 'x'"),
        (("bench", "engine", "-n", "0"), "tokens must be at least 1"),
        (("bench", "engine", "--temperature", "nan"), "temperature must be"),
        (("bench", "demo", "--seed", "-1"), "seed must be"),
        (("bench", "demo", "--dtype", "x"), "unknown dtype 'x'"),
        (("bench", "samples", "--device", "x"), "unknown device 'x'"),
        (("bench", "samples", "--verify", "block", "--tree", "star:2"), "verifier 'block' works on chain drafts only"),
    ],
)
def test_wrong_values_fail_before_a_model_is_loaded(draftproof, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").write_text("hello\n")
    code, out, err = draftproof(*("file.txt" if word == "FILE" else word for word in words), *ABSENT)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1


def test_a_wrong_number_of_threads_fails_before_torch_is_imported(draftproof, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, err = draftproof("generate", "x", "--threads", "0")
    assert (code, err) == (2, "error: threads must be a whole number of at least 1, not 0\n")


def test_precisions_and_devices_are_those_that_load():
    assert shared.PRECISIONS == devices.PRECISIONS
    assert shared.DEVICES == devices.DEVICES


@pytest.mark.parametrize(("option", "values"), [("--dtype", shared.PRECISIONS), ("--device", shared.DEVICES)])
def test_values_are_listed_by_help_and_completed_by_the_shell(option, values):
    run = [sys.executable, "-m", "draftproof"]
    wide = {**os.environ, "COLUMNS": "200"}
    shown = subprocess.run([*run, "generate", "--help"], capture_output=True, text=True, check=True, env=wide)
    assert "|".join(values) in shown.stdout
    asked = {"_DRAFTPROOF_COMPLETE": "complete_bash", "COMP_WORDS": f"draftproof generate {option} ", "COMP_CWORD": "3"}
    code = "import sys; sys.argv[0] = 'draftproof'; from draftproof.commands.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **asked})
    assert tuple(done.stdout.split()) == values


def test_json_says_what_the_text_was_written_with(draftproof, folder):
    words = ("generate", "abcabc", "--target", str(folder), "--draft", "ngram", "--tree", "best:8x3", "-n", "9")
    code, out, _ = draftproof(*words, "--json", "--seed", "4", "--top-k", "40", "--stop", "zz", "--device", "cpu")
    report = json.loads(out)
    assert code == 0
    assert (report["target"], report["draft"]) == (str(folder), "ngram")
    assert (report["verify"], report["tree"], report["lossy"]) == ("traversal", "best:8x3", None)
    assert (report["dtype"], report["device"], report["seed"]) == ("float32", "cpu", 4)
    assert (report["stop"], report["max_new_tokens"]) == (["zz"], 9)
    assert report["prompt_tokens"] == len(report["prompt_ids"]) == 6
    assert set(report["versions"]) == {"draftproof", "torch", "transformers"}
    assert report["trace"]["chosen_for"] == "best:8x3"
    again = dp.generate(
        load(folder),
        report["prompt_ids"],
        draft=report["draft"],
        verify=report["verify"],
        tree=report["tree"],
        sampling=dp.Sampling(**report["sampling"]),
        max_new_tokens=9,
        stop=report["stop"],
        seed=4,
    )
    assert again.tokens == report["tokens"]


def test_the_default_rule_is_chosen_for_the_tree_and_the_summary_says_so(draftproof, folder):
    words = ("generate", "abc", "--target", str(folder), "--draft", str(folder), "-n", "9", "--seed", "1")
    code, _, err = draftproof(*words, "--tree", "best:20x5")
    assert code == 0
    assert f"draft {folder}, verifier traversal, chosen for best:20x5: " in err
    assert f"draft {folder}, verifier block: " in draftproof(*words)[2]


def test_controls_that_are_not_given_follow_the_model(draftproof, configured):
    def sampling(*words):
        asked = ("generate", "abc", "--target", str(configured), "-n", "5", "--seed", "1", "--json")
        report = json.loads(draftproof(*asked, *words)[1])
        return report["sampling"]["temperature"], report["sampling"]["top_p"]

    assert sampling() == (0.5, 0.9)
    assert sampling("--temperature", "0.7") == (0.7, 0.9)
    assert sampling("--temperature", "1", "--top-p", "1") == (1, 1)
    assert sampling("--no-generation-config") == (1, 1)
    assert sampling("--no-generation-config", "--top-p", "0.8") == (1, 0.8)


def test_the_summary_says_what_the_model_decided(draftproof, configured):
    words = ("generate", "abc", "--target", str(configured), "-n", "5", "--seed", "1")
    assert "sampling from generation_config.json: temperature 0.5, top_p 0.9\n" in draftproof(*words)[2]
    assert "sampling from generation_config.json: top_p 0.9\n" in draftproof(*words, "--temperature", "0.5")[2]
    assert "generation_config" not in draftproof(*words, "--no-generation-config")[2]


def test_collected_texts_follow_the_model_too(draftproof, configured, tmp_path):
    (tmp_path / "p.txt").write_text("abc\n")
    words = ("collect", "engine", str(tmp_path / "p.txt"), str(tmp_path / "t.jsonl"), "--target", str(configured))
    assert draftproof(*words, "-n", "4", "--top-p", "0.8")[0] == 0
    line = json.loads((tmp_path / "t.jsonl").read_text())
    assert line["sampling"] | {"end_tokens": 0} == {"temperature": 0.5, "top_p": 0.8, "end_tokens": 0}


def test_samples_are_those_of_generate(draftproof, folder):
    words = ("generate", "abc", "--target", str(folder), "--draft", "ngram", "-n", "6", "--seed", "3", "--n", "3")
    report = json.loads(draftproof(*words, "--json")[1])
    made = dp.generate(load(folder), "abc", n=3, draft="ngram", max_new_tokens=6, seed=3)
    assert [sample["tokens"] for sample in report["samples"]] == [one.tokens for one in made]
    assert "text" not in report
    code, out, err = draftproof(*words)
    assert (code, out) == (0, "\n\n".join(one.text for one in made) + "\n")
    assert "3 samples with " in err


def test_samples_have_a_header_on_a_terminal(draftproof, folder, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = draftproof("generate", "abc", "--target", str(folder), "-n", "3", "--seed", "3", "--n", "2")[1]
    assert "── sample 1 of 2 ──" in out
    assert "── sample 2 of 2 ──" in out


def test_threads_are_those_that_are_asked_for(draftproof, folder):
    before = torch.get_num_threads()
    try:
        assert draftproof("generate", "abc", "--target", str(folder), "-n", "3", "--threads", "2")[0] == 0
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_system_message_needs_a_chat_template(draftproof, folder):
    code, _, err = draftproof("generate", "abc", "--target", str(folder), "--system", "Sing.")
    assert (code, "has no chat template, so --system has no place" in err) == (2, True)
    words = ("generate", "Hi", "--target", "tiny", "-n", "3", "--seed", "1", "--json")
    plain, sung = (json.loads(draftproof(*words, *more)[1]) for more in ((), ("--system", "Sing.")))
    tokenizer = load("tiny").tokenizer
    said = [{"role": "system", "content": "Sing."}, {"role": "user", "content": "Hi"}]
    assert sung["prompt_ids"] == list(tokenizer.apply_chat_template(said, add_generation_prompt=True)["input_ids"])
    assert sung["prompt_ids"] != plain["prompt_ids"]
