"""Options that say what form a text has: what they make of it, and what is refused before a model is loaded."""

from __future__ import annotations

import json
import re

import pytest

import draftproof as dp
from draftproof.models import load
from tests.support import tiny

ABSENT = ("--target", "no-such-model")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Anna", "Tom"]}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},  # random weights would write spaces without end
}
FILES = {
    "schema.json": json.dumps(SCHEMA),
    "torn.json": '{"type": "object"',
    "list.json": "[1, 2]",
    "feature.json": '{"type": "array", "uniqueItems": true}',
    "empty.json": '{"type": "integer", "minimum": 5, "maximum": 4}',
    "sum.lark": "start: NUMBER SIGN NUMBER\nNUMBER: /[0-9]{1,2}/\nSIGN: /[+*]/\n",
    "torn.lark": "start: NUMBER (\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny.save(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--json-schema", "absent.json"), "grammars cannot be read from absent.json"),
        (("--json-schema", "torn.json"), "torn.json: a JSON schema must be JSON"),
        (("--json-schema", "list.json"), "list.json: a JSON schema is an object, not "),
        (("--json-schema", "feature.json"), "feature.json: the JSON schema cannot be used: .*uniqueItems"),
        (("--json-schema", "empty.json"), "empty.json: the JSON schema cannot be used: .*minimum"),
        (("--regex", "a(b"), "the regular expression cannot be used: .*unclosed group"),
        (("--regex", r"(a)\1"), "the regular expression cannot be used: .*backreferences are not supported"),
        (("--regex", ""), "the regex grammar is empty"),
        (("--grammar", "absent.lark"), "grammars cannot be read from absent.lark"),
        (("--grammar", "torn.lark"), "torn.lark: the grammar cannot be used: "),
        (("--choice", ""), "choices are a list of at least one text"),
        (("--regex", "a", "--choice", "b"), "--regex and --choice each name a form of the text: give only one of them"),
        (("--json-object", "--json-schema", "schema.json"), "--json-schema and --json-object each name a form"),
        (("--json-object", "--compare"), "--compare does not go with a grammar: leave it out"),
    ],
)
def test_what_cannot_be_used_is_refused_before_a_model_is_loaded(draftproof, words, message):
    code, out, err = draftproof("generate", "x", *words, *ABSENT)
    assert (code, out) == (2, "")
    assert re.match(f"error: {message}", err), err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "fits"),
    [
        (("--json-schema", "schema.json"), lambda text: 0 <= json.loads(text)["age"] <= 120),
        (("--regex", "[ab]{3}-(yes|no)"), lambda text: re.fullmatch("[ab]{3}-(yes|no)", text)),
        (("--grammar", "sum.lark"), lambda text: re.fullmatch(r"\d{1,2}[+*]\d{1,2}", text)),
        (("--choice", "red", "--choice", "green"), lambda text: text in ("red", "green")),
    ],
)
@pytest.mark.parametrize("draft", ["ngram", "none"])
def test_the_text_has_the_form(draftproof, folder, words, fits, draft):
    settings = ("--target", folder, "--draft", draft, "--seed", "3", "-n", "60", "--temperature", "0.7")
    code, out, err = draftproof("generate", "ababab", *settings, *words)
    assert code == 0
    assert "finished: end" in err
    assert fits(out.rstrip("\n")), out


def test_a_text_that_is_cut_off_is_the_beginning_of_a_valid_one(draftproof, folder):
    code, out, err = draftproof("generate", "x", "--target", folder, "--json-schema", "schema.json", "-n", "5")
    assert code == 0
    assert "finished: length" in err
    assert out.startswith("{")


def test_json_has_the_grammar_and_the_text_can_be_written_again(draftproof, folder):
    words = ("generate", "abab", "--target", folder, "--draft", "ngram", "--json", "--seed", "4", "-n", "60")
    code, out, _ = draftproof(*words, "--json-schema", "schema.json")
    report = json.loads(out)
    assert code == 0
    assert report["sampling"]["grammar"] == {"kind": "json_schema", "text": json.dumps(SCHEMA, separators=(",", ":"))}
    assert json.loads(report["text"])["name"] in ("Anna", "Tom")
    again = dp.Sampling(**report["sampling"])
    made = dp.generate(load(folder), "abab", draft="ngram", sampling=again, seed=4, max_new_tokens=60)
    assert made.text == report["text"]


def test_a_batch_goes_on_with_the_same_grammar_only(draftproof, folder, tmp_path):
    (tmp_path / "prompts.txt").write_text("ab\nba\n")
    words = ("generate", "--prompts", "prompts.txt", "--out", "texts.jsonl", "--target", folder, "-n", "20")
    assert draftproof(*words, "--choice", "yes", "--choice", "no")[0] == 0
    texts = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text().splitlines()]
    assert all(text["text"] in ("yes", "no") and text["finish"] == "end" for text in texts)
    assert texts[0]["settings"]["grammar"] == {"kind": "choice", "text": '["yes","no"]'}
    code, _, err = draftproof(*words, "--choice", "yes")
    assert code == 2
    assert "was written with grammar" in err


def test_a_prompt_of_a_file_may_have_a_form_of_its_own(draftproof, folder, tmp_path):
    lines = [{"prompt": "ab", "grammar": ["left", "right"]}, {"prompt": "ab", "grammar": SCHEMA}, {"prompt": "ab"}]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("generate", "--prompts", "prompts.jsonl", "--out", "texts.jsonl", "--target", folder, "-n", "60")
    assert draftproof(*words, "--choice", "yes")[0] == 0
    texts = {
        text["index"]: text["text"] for text in map(json.loads, (tmp_path / "texts.jsonl").read_text().splitlines())
    }
    assert texts[0] in ("left", "right")
    assert json.loads(texts[1])["name"] in ("Anna", "Tom")
    assert texts[2] == "yes"
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "ab", "grammar": "xml"}\n')
    code, _, err = draftproof(*words, "--overwrite")
    assert code == 2
    assert err.startswith("error: line 1 of prompts.jsonl: unknown grammar 'xml'")
