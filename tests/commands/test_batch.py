"""Files of prompts: a line for each text, repeatable, and resumed where it was stopped."""

from __future__ import annotations

import json

import pytest

import draftproof as dp
from draftproof.models import load
from tests.support import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny.save(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def batch(draftproof, folder, tmp_path):
    """Write prompts to a file and run the command on it: exit code, lines, standard error."""

    def run(prompts, *words, name="prompts.jsonl"):
        if prompts is not None:
            lines = prompts if name.endswith(".txt") else map(json.dumps, prompts)
            (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
        out = tmp_path / "texts.jsonl"
        files = ("--prompts", str(tmp_path / name), "--out", str(out))
        code, said, err = draftproof("generate", "--target", folder, "--draft", "ngram", "-n", "8", *files, *words)
        assert said == ""
        texts = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
        return code, texts, err

    run.out = tmp_path / "texts.jsonl"
    return run


PROMPTS = [
    {"prompt": "hello", "id": "a"},
    {"prompt": "abcabc", "max_new_tokens": 5, "temperature": 0.5, "seed": 7},
    {"question": "why", "top_p": 0.9},
]


def test_every_text_can_be_written_again_from_its_line(batch, folder):
    code, texts, err = batch(PROMPTS, "--seed", "40", "--rows", "2", "--min-p", "0.01")
    assert code == 0
    assert "3 of 3 texts are in" in err
    texts.sort(key=lambda text: text["index"])
    assert [text["id"] for text in texts] == ["a", None, None]
    assert [text["seed"] for text in texts] == [40, 7, 42]
    assert [text["settings"]["max_new_tokens"] for text in texts] == [8, 5, 8]
    model = load(folder)
    for text in texts:
        sampling = dp.Sampling(**text["used"]["sampling"])
        length = text["settings"]["max_new_tokens"]
        alone = dp.generate(
            model, text["prompt"], draft="ngram", sampling=sampling, max_new_tokens=length, seed=text["seed"]
        )
        assert (alone.tokens, alone.text, alone.finish) == (text["tokens"], text["text"], text["finish"])
        assert text["used"]["sampling"]["min_p"] == 0.01
        assert text["used"]["verify"] == "block"
        assert text["prompt_tokens"] == len(text["prompt"])


def test_plain_files_and_samples(batch):
    code, texts, _ = batch(["hello", "", "you"], "--n", "2", "--seed", "5", name="prompts.txt")
    assert code == 0
    assert sorted((text["index"], text["sample"], text["seed"]) for text in texts) == [
        (0, 0, 5),
        (0, 1, 6),
        (1, 0, 7),
        (1, 1, 8),
    ]


def test_what_is_done_is_skipped_and_a_torn_line_dropped(batch, monkeypatch):
    code, texts, _ = batch(PROMPTS, "--seed", "1")
    whole = batch.out.read_text()
    batch.out.write_text("".join(whole.splitlines(keepends=True)[:1]) + whole.splitlines()[1][:40])
    code, again, _ = batch(None, "--seed", "1")
    assert code == 0
    by_index = {text["index"]: text for text in texts}
    assert again[0] == texts[0]
    assert {text["index"]: text for text in again} == by_index
    monkeypatch.setattr("draftproof.models.load", None)  # nothing is left to do: no model is loaded
    code, same, err = batch(None, "--seed", "1")
    assert (code, same, err) == (0, again, f"all 3 texts are in {batch.out} already\n")


def test_a_random_seed_is_recorded_and_kept(batch):
    _, texts, _ = batch(PROMPTS[:1])
    _, more, _ = batch([PROMPTS[0], {"prompt": "more"}])
    assert more[0] == texts[0]
    assert len({text["seed"] for text in more}) == 2


@pytest.mark.parametrize(
    ("prompts", "words", "message"),
    [
        (
            None,
            ["--temperature", "0.7"],
            "was written with temperature None, not 0.7: give the same again, --overwrite",
        ),
        (None, ["--seed", "2"], "was written with seed 1, not 2"),
        (None, ["--verify", "token"], "was written with verify 'auto', not 'token'"),
        ([{"prompt": "other"}, *PROMPTS[1:]], [], "was written with another prompt 0 (line 1 of"),
        (PROMPTS[:1], [], "is no text of this batch"),
    ],
)
def test_other_settings_are_refused_and_nothing_is_lost(batch, prompts, words, message):
    _, texts, _ = batch(PROMPTS, "--seed", "1")
    code, same, err = batch(prompts, "--seed", "1", *words)
    assert (code, same) == (2, texts)
    assert message in err
    assert err.count("\n") == 1
    code, anew, _ = batch(prompts, "--seed", "1", *words, "--overwrite")
    assert code == 0
    assert len(anew) == len(prompts or PROMPTS)


def test_one_bad_prompt_does_not_stop_the_others_and_is_tried_again(batch):
    code, texts, err = batch([{"prompt": "x" * 200}, *PROMPTS], "--seed", "1")
    assert code == 1
    (failed,) = (text for text in texts if "error" in text)
    assert (failed["index"], "the prompt has 200 tokens" in failed["error"]) == (0, True)
    assert len(texts) == 4
    assert "1 of 4 texts failed" in err
    code, texts, err = batch([{"prompt": "short"}, *PROMPTS], "--seed", "1")
    assert code == 0
    assert sorted(text["index"] for text in texts) == [0, 1, 2, 3]
    assert not any("error" in text for text in texts)


def test_fields_that_are_not_read_are_named(batch):
    prompts = [{"prompt": "hello", "temprature": 0.5}, {"prompt": "abc", "id": 3, "seed": 2, "category": "x"}]
    code, texts, err = batch(prompts, "--seed", "1")
    assert (code, len(texts)) == (0, 2)
    assert "note: fields of " in err
    assert "prompts.jsonl that are not read: category, temprature\n" in err
    assert "note: " not in batch(PROMPTS, "--seed", "1", "--overwrite")[2]


def test_a_text_that_fills_the_context_says_so(batch):
    code, texts, _ = batch([{"prompt": "x" * 90}], "-n", "50", "--ignore-eos", "--seed", "1")
    assert (code, texts[0]["finish"], len(texts[0]["tokens"])) == (0, "context", 6)


def test_a_character_that_is_none_is_reported(batch):
    code, texts, _ = batch([{"prompt": "caf\udce9"}])
    assert (code, texts[0]["prompt"]) == (1, "caf\udce9")
    assert "bytes that are not text" in texts[0]["error"]


def test_messages_and_the_system_message(batch, folder):
    messages = [{"role": "user", "content": "Hi"}]
    code, _, err = batch([{"messages": messages}], "--system", "Be brief.")
    assert (code, err.count("\n")) == (2, 1)
    assert "has no chat template, so --system has no place" in err
    code, texts, _ = batch(
        [{"messages": messages}, {"prompt": "Hi"}, {"messages": [{"role": "system", "content": "Sing."}, *messages]}],
        *("--target", "tiny", "--system", "Be brief.", "--seed", "1"),
    )
    lengths = {text["index"]: text["prompt_tokens"] for text in texts}
    assert code == 0
    assert lengths[0] == lengths[1]
    tokenizer = load("tiny").tokenizer
    said = [{"role": "system", "content": "Be brief."}, *messages]
    assert lengths[0] == len(tokenizer.apply_chat_template(said, add_generation_prompt=True)["input_ids"])
    said[0]["content"] = "Sing."  # messages may have their own
    assert lengths[2] == len(tokenizer.apply_chat_template(said, add_generation_prompt=True)["input_ids"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x", "--prompts", "p.txt", "--out", "o.jsonl"], "a prompt and --prompts are two kinds of work"),
        (["--prompts", "p.txt"], "--prompts FILE and --out FILE.jsonl belong together"),
        (["x", "--out", "o.jsonl"], "--prompts FILE and --out FILE.jsonl belong together"),
        ([], "there is no prompt"),
        (["x", "--overwrite"], "--overwrite does not go with one prompt"),
        (["x", "--rows", "3"], "--rows does not go with one prompt"),
        (["--prompts", "p.txt", "--out", "o.jsonl", "--json"], "--json does not go with --prompts"),
        (["--prompts", "p.txt", "--out", "o.jsonl", "--rows", "0"], "--rows must be a whole number of at least 1"),
        (["--prompts", "p.txt", "--out", "o.txt"], "--out must be a .jsonl file, not 'o.txt'"),
        (["--prompts", "none.txt", "--out", "o.jsonl"], "prompts cannot be read from none.txt"),
        (["--prompts", "p.jsonl", "--out", "p.jsonl"], "p.jsonl contains the prompts: choose another file"),
        (["--prompts", "bad.jsonl", "--out", "o.jsonl"], "line 1 of bad.jsonl: temperature must be"),
        (
            ["--prompts", "empty.jsonl", "--out", "o.jsonl"],
            "line 1 of empty.jsonl has no prompt: put it into one of the fields prompt, question, instruction, turns, "
            "messages",
        ),
        (["--prompts", "p.txt", "--out", "other.jsonl"], "line 1 of other.jsonl is no text of this batch"),
    ],
)
def test_mistakes_fail_before_a_model_is_loaded(draftproof, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.txt").write_text("hello\n")
    (tmp_path / "p.jsonl").write_text('{"prompt": "hello"}\n')
    (tmp_path / "bad.jsonl").write_text('{"prompt": "hello", "temperature": -1}\n')
    (tmp_path / "empty.jsonl").write_text('{"messages": []}\n')
    (tmp_path / "other.jsonl").write_text("notes\n")
    code, out, err = draftproof("generate", *words, "--target", "no-such-model")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1
    assert (tmp_path / "other.jsonl").read_text() == "notes\n"
