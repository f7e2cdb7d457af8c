"""Transcripts: written and read again; and what cannot be audited is told by its line, never as a verdict."""

from __future__ import annotations

import json

import numpy as np
import pytest

from draftproof.audit import InputError, Transcript, audit, read, write
from draftproof.errors import DraftproofError
from draftproof.models.table import TableModel
from draftproof.sampling import Anneal, Sampling
from tests.support import tiny

MODEL = TableModel(lambda context: np.full(5, 0.2), context=20)
GOOD = {"prompt_token_ids": [1], "output_token_ids": [2, 3], "sampling": {}}


def lines(folder, *entries):
    path = folder / "transcripts.jsonl"
    path.write_text("\n".join(e if isinstance(e, str) else json.dumps(e) for e in entries) + "\n")
    return path


def test_what_is_written_is_read_again(tmp_path):
    texts = [
        Transcript((1, 2), (3,), Sampling(temperature=0.7, top_p=0.9, end_tokens=[]), (False,)),
        Transcript((1,), (0, 4), Sampling(logit_bias={2: 1.5}, banned=[3], end_tokens=[4]), None, True),
    ]
    assert write(tmp_path / "t.jsonl", texts) == 2
    again = list(read(tmp_path / "t.jsonl", MODEL))
    assert [text._replace(line=0) for text in again] == texts
    assert [text.line for text in again] == [1, 2]


def test_words_and_messages_are_tokenised(tmp_path):
    entry = {**GOOD, "prompt": "ab"}
    del entry["prompt_token_ids"]
    (text,) = read(lines(tmp_path, entry), tiny.model())
    assert text.prompt == tuple(tiny.tokenizer()("ab")["input_ids"])


def test_a_text_that_ended_has_its_end_token(tmp_path):
    entry = {**GOOD, "finish": "end", "accepted": [1, 0]}
    (text,) = read(lines(tmp_path, entry), tiny.model())
    assert (text.output, text.accepted) == ((2, 3, 256), (True, False, False))
    (text,) = read(lines(tmp_path, {**entry, "finish": "length"}), tiny.model())
    assert text.output == (2, 3)


def test_a_bias_is_named_by_words_in_json(tmp_path):
    (text,) = read(lines(tmp_path, {**GOOD, "sampling": {"logit_bias": {"3": -1.5}}}), MODEL)
    assert text.sampling.logit_bias == {3: -1.5}


def test_settings_by_the_names_of_other_engines(tmp_path):
    vllm = {"temperature": 0.8, "top_k": -1, "min_tokens": 2, "max_tokens": 9, "ignore_eos": False, "logprobs": None}
    llama = {"temp": 0.8, "top_k": 40, "n_predict": 9, "repeat_penalty": 1.0, "mirostat": 0, "cache_prompt": True}
    texts = read(lines(tmp_path, {**GOOD, "sampling": vllm}, {**GOOD, "sampling": llama}), MODEL)
    assert [text.sampling for text in texts] == [
        Sampling(temperature=0.8, min_new_tokens=2, end_tokens=()),
        Sampling(temperature=0.8, top_k=40, end_tokens=()),
    ]


BAD = {
    "cut off": ('{"prompt_token_ids": [1], "output_tok', "line 2 is cut off in the middle"),
    "not json": ('{"prompt": nonsense}', "line 2 is not JSON"),
    "no object": ("[1, 2]", "line 2 is list, not an object"),
    "no settings": ({k: v for k, v in GOOD.items() if k != "sampling"}, "line 2 has no settings"),
    "no output": ({k: v for k, v in GOOD.items() if k != "output_token_ids"}, "line 2 has no output_token_ids"),
    "no prompt": ({k: v for k, v in GOOD.items() if k != "prompt_token_ids"}, "line 2 has no prompt"),
    "empty output": ({**GOOD, "output_token_ids": []}, "line 2: the output has no tokens"),
    "strange id": ({**GOOD, "output_token_ids": [2, 5]}, "line 2: output token id 5 is outside the vocabulary"),
    "strange prompt id": ({**GOOD, "prompt_token_ids": [-1]}, "line 2: prompt token id -1 is outside"),
    "ids that are words": ({**GOOD, "output_token_ids": ["a"]}, "line 2: output_token_ids must be a list of whole"),
    "unknown setting": ({**GOOD, "sampling": {"top_q": 0.9}}, "line 2: unknown setting 'top_q': did you mean"),
    "no law": ({**GOOD, "sampling": {"mirostat": 2}}, "line 2: no law is known for mirostat=2: audit texts made"),
    "strange finish": ({**GOOD, "finish": "eos"}, "line 2: finish 'eos' is unknown"),
    "unknown key": ({**GOOD, "ouput": [1]}, "line 2: unknown key 'ouput'"),
    "wrong value": ({**GOOD, "sampling": {"top_p": 2}}, "line 2: top_p must be in"),
    "bias by word": ({**GOOD, "sampling": {"logit_bias": {"the": 1}}}, "line 2: logit_bias must be numbers by"),
    "one id for a list": ({**GOOD, "sampling": {"end_tokens": 3}}, "line 2: end_tokens must be a list of token"),
    "settings no object": ({**GOOD, "sampling": 1}, "line 2: sampling must be an object"),
    "flags": ({**GOOD, "accepted": [1]}, "line 2: `accepted` has 1 entries for 2 output tokens"),
    "too long": ({**GOOD, "output_token_ids": [2] * 21}, "line 2: 21 tokens do not fit the 20"),
    "no tokenizer": (
        {"prompt": "a", "output_token_ids": [1], "sampling": {}},
        "line 2: model 'table' has no tokenizer",
    ),
    "which end": ({**GOOD, "finish": "end"}, "line 2: the text ended but its end token is missing"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_told_by_its_line(name, tmp_path):
    entry, message = BAD[name]
    with pytest.raises(InputError) as error:
        audit(read(lines(tmp_path, GOOD, entry), MODEL), MODEL)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_no_transcripts_and_no_file(tmp_path):
    with pytest.raises(InputError, match="there are no transcripts"):
        audit(read(lines(tmp_path, ""), MODEL), MODEL)
    with pytest.raises(InputError, match=r"cannot be read from .*none\.jsonl"):
        audit(read(tmp_path / "none.jsonl", MODEL), MODEL)


def test_another_models_tokens_are_not_a_failed_audit():
    """Peaked laws and ids from elsewhere: a perplexity above the size of the vocabulary is nobody's sampling."""
    sharp = np.random.default_rng(0).dirichlet(np.full(200, 0.02), size=200) + 1e-12
    model = TableModel(lambda context: sharp[context[-1] if context else 0] / sharp[0].sum())
    chance = np.random.default_rng(1)
    foreign = [Transcript((1,), tuple(chance.integers(200, size=30).tolist()), Sampling(), line=i) for i in range(1, 9)]
    with pytest.raises(
        InputError, match=r"^line 2: .* perplexity of .* wrong model or tokenizer, so there is no verdict"
    ):
        audit(foreign, model)
    own, text = [], [1]
    for _ in range(200):
        text.append(int(chance.choice(200, p=sharp[text[-1]] / sharp[text[-1]].sum())))
    own = [Transcript((1,), tuple(text[1:]), Sampling())]
    assert audit(own, model).exact
    hot = [Transcript((1,), tuple(text[1:]), Sampling(temperature=5.0))]
    assert not audit(hot, model).exact  # that is a verdict: the tokens are this model's


def test_code_cannot_be_written(tmp_path):
    with pytest.raises(DraftproofError, match="temperature is code"):
        write(tmp_path / "t.jsonl", [Transcript((1,), (2,), Sampling(temperature=Anneal(1, 2, over=3)))])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0.0}, "alpha must be between 0 and 1"),
        ({"tolerance": 0.5}, "tolerance must be at least 0 and below 0.5"),
        ({"draft": TableModel(lambda context: [0.5, 0.5])}, "2 tokens but target 'table' has 5"),
    ],
)
def test_wrong_settings_of_the_audit(settings, message):
    with pytest.raises(DraftproofError, match=message):
        audit([Transcript((1,), (2,), Sampling())], MODEL, **settings)
