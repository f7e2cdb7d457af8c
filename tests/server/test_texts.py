"""What the two endpoints write, seen by the openai client: the texts, logprobs and numbers of generate()."""

from __future__ import annotations

import itertools
import json
import time

import pytest

from draftproof import Sampling, generate
from draftproof.audit.collect import endpoint
from draftproof.server.protocol import CompletionBody
from draftproof.server.texts import ServedModel, completion_request
from tests.support.serving import DRAFT, tiny

PROMPT = "Once upon a time"
CHAT = [{"role": "user", "content": PROMPT}]


def ours(prompt=PROMPT, **settings):
    return generate(tiny(), prompt, draft=DRAFT, **{"max_new_tokens": 20, "seed": 1, "logprobs": 3, **settings})


# Texts


def test_a_seeded_chat_is_the_text_of_generate(client):
    answer = client.chat.completions.create(model="tiny", messages=CHAT, max_completion_tokens=20, seed=1)
    expected = ours(CHAT)
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 20
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 20


def test_a_seeded_completion_is_the_text_of_generate(client):
    answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=20, seed=1)
    assert answer.choices[0].text == ours(chat=False).text


@pytest.mark.parametrize(
    ("given", "sampling"),
    [
        ({"temperature": 0}, {"temperature": 0}),
        ({"top_p": 0.5, "frequency_penalty": 0.5, "presence_penalty": 0.5}, {}),
        ({"top_k": 5, "min_p": 0.1, "typical_p": 0.9, "repetition_penalty": 1.3}, {}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"logit_bias": {"28": 5.0}}, {"logit_bias": {28: 5.0}}),
        ({"ignore_eos": True}, {"end_tokens": ()}),
        ({"stop_token_ids": [30, 28], "min_tokens": 9}, {"end_tokens": (2, 30, 28), "min_new_tokens": 9}),
    ],
)
def test_sampling_controls_reach_the_engine(server, given, sampling):
    answer = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 20, "seed": 1, **given}).json()
    expected = ours(chat=False, sampling=Sampling(**(sampling or given)))
    assert answer["choices"][0]["text"] == expected.text
    assert answer["usage"]["completion_tokens"] == len(expected.tokens)


def test_an_empty_prediction_predicts_nothing(server):
    body = {"prompt": PROMPT, "max_tokens": 20, "seed": 1, "prediction": {"type": "content", "content": ""}}
    answer = server.post("/v1/completions", body).json()
    assert answer["choices"][0]["text"] == ours(chat=False).text


def test_a_top_k_of_the_whole_vocabulary_sorts_nothing():
    """It is off: otherwise every law would be sorted for nothing."""
    model = ServedModel("tiny", tiny(), rows=1, length=64)
    body = CompletionBody(prompt=PROMPT, top_k=tiny().vocabulary)
    assert completion_request(body, model).settings[0]["sampling"].top_k == 0


def test_samples_and_lists_of_prompts(client):
    answer = client.completions.create(model="tiny", prompt=[PROMPT, "The sea"], n=2, max_tokens=8, seed=1)
    expected = [one.text for p in (PROMPT, "The sea") for one in ours(p, n=2, chat=False, max_new_tokens=8)]
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.completion_tokens == 32


def test_token_ids_as_prompt_and_in_the_answer(server):
    ids = server.post("/tokenize", {"prompt": PROMPT}).json()["tokens"]
    body = {"prompt": ids, "max_tokens": 8, "seed": 1, "return_token_ids": True}
    choice = server.post("/v1/completions", body).json()["choices"][0]
    expected = ours(chat=False, max_new_tokens=8)
    assert (choice["text"], choice["token_ids"], choice["prompt_token_ids"]) == (expected.text, expected.tokens, ids)
    assert server.post("/detokenize", {"tokens": ids}).json() == {"prompt": PROMPT}


def test_echo_and_stop(client):
    whole = ours(chat=False).text
    word = whole.split()[3]
    answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=20, seed=1, echo=True, stop=[word])
    assert answer.choices[0].text == PROMPT + whole[: whole.index(word)]
    assert answer.choices[0].finish_reason == "stop"


def test_the_last_message_is_over_unless_it_is_continued(server):
    messages = [*CHAT, {"role": "assistant", "content": "There was"}]
    body = {"messages": messages, "max_tokens": 8, "seed": 1}
    over = server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
    going = server.post("/v1/chat/completions", {**body, "continue_final_message": True}).json()
    assert over == ours(messages, max_new_tokens=8, continue_final_message=False).text
    assert going["choices"][0]["message"]["content"] == ours(messages, max_new_tokens=8).text
    bare = server.post("/tokenize", {"messages": messages, "add_generation_prompt": False}).json()["tokens"]
    opened = server.post("/tokenize", {"messages": messages}).json()["tokens"]
    assert opened[: len(bare)] == bare
    assert len(opened) > len(bare)


def test_content_parts_are_joined(client):
    parts = [{"type": "text", "text": "Once upon"}, {"type": "text", "text": "a time"}]
    messages = [{"role": "user", "content": parts}]
    answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=8, seed=1)
    assert answer.choices[0].message.content == ours("Once upon\na time", max_new_tokens=8).text


def test_the_default_length_is_what_is_left(server):
    long = [28] * (server.service.limits.length - 12)
    usage = server.post("/v1/completions", {"prompt": long, "ignore_eos": True}).json()["usage"]
    assert usage["completion_tokens"] == 12


# Streams


def test_a_stream_has_the_same_text_and_usage(client):
    how = {"model": "tiny", "messages": CHAT, "max_tokens": 20, "seed": 1, "n": 2}
    whole = client.chat.completions.create(**how)
    chunks = list(client.chat.completions.create(**how, stream=True, stream_options={"include_usage": True}))
    texts = ["", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert [choice.delta.role for chunk in chunks[:2] for choice in chunk.choices] == ["assistant", "assistant"]
    ends = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert ends == ["length", "length"]
    assert not chunks[-1].choices
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 40
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_streamed_completion_with_echo(client):
    how = {"model": "tiny", "prompt": PROMPT, "max_tokens": 20, "seed": 1, "echo": True}
    chunks = list(client.completions.create(**how, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == PROMPT + ours(chat=False).text
    assert all(chunk.usage is None for chunk in chunks)


# Logprobs


def test_chat_logprobs_are_those_of_generate(client):
    how = {"model": "tiny", "messages": CHAT, "max_tokens": 20, "seed": 1, "logprobs": True, "top_logprobs": 3}
    content = client.chat.completions.create(**how).choices[0].logprobs.content
    expected = ours(CHAT)
    assert [one.logprob for one in content] == pytest.approx([one.logprob for one in expected.logprobs])
    tops = [[pair.logprob for pair in one.top_logprobs] for one in content]
    assert tops == [pytest.approx([logprob for _, logprob in one.top]) for one in expected.logprobs]
    assert b"".join(bytes(one.bytes) for one in content).decode() == expected.text
    streamed = client.chat.completions.create(**how, stream=True)
    again = [one for chunk in streamed for c in chunk.choices if c.logprobs for one in c.logprobs.content]
    assert again == content


def test_bytes_of_a_character_in_several_tokens(server):
    """A token that is part of a character has its own bytes."""
    snowman = server.post("/tokenize", {"prompt": "\u2603"}).json()["tokens"]
    assert len(snowman) > 1
    words = server.service.loaded.words
    assert b"".join(bytes(words.utf8(token)) for token in snowman).decode() == "\u2603"


def test_logprobs_name_tokens_by_id_if_asked(server):
    body = {"prompt": PROMPT, "max_tokens": 8, "seed": 1, "logprobs": 1, "return_tokens_as_token_ids": True}
    found = server.post("/v1/completions", body).json()["choices"][0]["logprobs"]
    assert found["tokens"] == [f"token_id:{token}" for token in ours(chat=False, max_new_tokens=8).tokens]
    assert all(name in top for name, top in zip(found["tokens"], found["top_logprobs"], strict=True))


def test_transcripts_are_collected_from_the_server(server, monkeypatch):
    monkeypatch.setattr("secrets.randbits", lambda bits: 7)  # by other seeds, a text may end early
    prompt = tuple(tiny().tokenizer(PROMPT)["input_ids"])
    found = list(endpoint(f"{server.url}/v1", "tiny", tiny(), [prompt], Sampling(), samples=2, max_new_tokens=8))
    assert [(one.prompt, len(one.output), one.retokenised) for one in found] == [(prompt, 8, False)] * 2


def test_completion_logprobs_have_offsets(client):
    answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=20, seed=1, logprobs=2)
    found, expected = answer.choices[0].logprobs, ours(chat=False)
    assert found.token_logprobs == pytest.approx([one.logprob for one in expected.logprobs])
    assert "".join(found.tokens) == expected.text
    for start, end, token in zip(found.text_offset, [*found.text_offset[1:], None], found.tokens, strict=True):
        assert expected.text[start:end] == token
    for top, token, logprob in zip(found.top_logprobs, found.tokens, found.token_logprobs, strict=True):
        assert top[token] == logprob
        assert len(top) in (2, 3)


# Drafting


def test_details_tell_of_every_token_and_step(server):
    body = {"messages": CHAT, "max_tokens": 40, "seed": 3, "temperature": 0, "draftproof": {"details": True}}
    with server.openai() as client:
        extra = {"draftproof": body["draftproof"]}
        how = {"model": "tiny", "messages": CHAT, "max_tokens": 40, "seed": 3, "temperature": 0, "extra_body": extra}
        chunks = [chunk.to_dict() for chunk in client.chat.completions.create(**how, stream=True)]
    steps = [choice["draftproof"] for chunk in chunks for choice in chunk["choices"] if "draftproof" in choice]
    tokens = list(itertools.chain.from_iterable(step["tokens"] for step in steps))
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    totals = chunks[-1]["draftproof"]
    assert "".join(token["text"] for token in tokens) == text
    assert totals["accepted"] == sum(token["kind"] == "accepted" for token in tokens) > 0
    assert totals["target_calls"] == len(steps)
    assert sum(step["step"]["tokens"] for step in steps) == len(tokens) == 40
    assert all(len(token["top"]) >= 1 and token["logprob"] == 0 for token in tokens)  # greedy
    assert all(chunk["choices"][0]["logprobs"] is None for chunk in chunks)  # nobody asked for them
    whole = server.post("/v1/chat/completions", body).json()
    assert [token["id"] for token in whole["choices"][0]["draftproof"]["tokens"]] == [token["id"] for token in tokens]


@pytest.mark.parametrize(
    ("how", "drafter"), [({"speculate": False}, "none"), ({"draft": "none"}, "none"), ({"draft": "cache|ngram"}, None)]
)
def test_a_request_chooses_its_drafter(server, how, drafter):
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "draftproof": how}
    answer = server.post("/v1/completions", body).json()
    assert answer["choices"][0]["text"] == ours(chat=False, max_new_tokens=12, sampling=Sampling(temperature=0)).text
    found = answer["draftproof"]
    assert found["drafter"] == drafter if drafter else "ngram" in found["drafter"]
    assert (found["target_calls"] == 12) if drafter else (found["target_calls"] <= 12)


def test_a_rule_and_a_tree_of_the_request(server):
    how = {"verify": "recursive", "tree": "paths:2x3"}
    body = {"prompt": PROMPT, "max_tokens": 12, "seed": 1, "draftproof": how}
    assert server.post("/v1/completions", body).json()["draftproof"]["verifier"] == "recursive"


def test_a_predicted_text_takes_few_target_calls(client):
    """200 tokens of the model's own greedy text, predicted with three words changed."""
    how = {"model": "tiny", "messages": CHAT, "max_tokens": 200, "temperature": 0, "extra_body": {"ignore_eos": True}}
    plain = client.chat.completions.create(**how)
    text = plain.choices[0].message.content
    words = text.split(" ")
    for place in (len(words) // 4, len(words) // 2, 3 * len(words) // 4):
        words[place] = "zebra"
    predicted = client.chat.completions.create(**how, prediction={"type": "content", "content": " ".join(words)})
    assert predicted.choices[0].message.content == text
    assert predicted.usage.completion_tokens == 200
    assert predicted.to_dict()["draftproof"]["target_calls"] <= 25
    counts = predicted.usage.completion_tokens_details
    assert counts.accepted_prediction_tokens > 170
    assert counts.rejected_prediction_tokens > 0
    assert plain.usage.completion_tokens_details.accepted_prediction_tokens == 0


def test_draft_tokens_of_the_drafter_are_not_the_predictions(server):
    body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    answer = server.post("/v1/completions", {**body, "prediction": {"type": "content", "content": "zebra"}}).json()
    counts = answer["usage"]["completion_tokens_details"]
    assert answer["draftproof"]["accepted"] > 0  # by the n-gram drafter, once the prediction is over
    assert counts["accepted_prediction_tokens"] == 0
    assert 0 < counts["rejected_prediction_tokens"] < answer["draftproof"]["drafted"]


def test_time_that_samples_share_counts_once(server):
    begun = time.perf_counter()
    answer = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 60, "n": 4, "seed": 1}).json()
    assert sum(answer["draftproof"]["seconds"].values()) <= time.perf_counter() - begun


def test_a_prompt_that_was_read_before_is_counted_as_cached(client):
    messages = [{"role": "user", "content": "Tell me about the lighthouse keeper and her seven cats."}]
    how = {"model": "tiny", "max_tokens": 4, "seed": 1}
    first = client.chat.completions.create(messages=messages, **how)
    turn = {"role": "assistant", "content": first.choices[0].message.content}
    second = client.chat.completions.create(messages=[*messages, turn, *CHAT], **how)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 1


# The other endpoints


def test_models_and_schema(server, client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    paths = server.get("/openapi.json").json()["paths"]
    assert {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/stats", "/health"} <= set(paths)


def test_stats_are_those_of_the_last_texts(server):
    server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 30, "temperature": 0})
    server.idle()
    stats = server.get("/stats").json()
    assert (stats["status"], stats["rows"], stats["rows_in_use"], stats["waiting"]) == ("ready", 4, 0, 0)
    assert (stats["drafter"], stats["verifier"]) == ("ngram", "block")
    assert stats["tokens_per_s"] > 0
    assert stats["tokens_per_call"] >= 1
    assert len(stats["acceptance_by_position"]) >= 1
    json.dumps(stats, allow_nan=False)
