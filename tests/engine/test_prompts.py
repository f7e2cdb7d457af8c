"""Prompts of every kind: token ids in any container, chat messages, and lists of prompts."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import draftproof as dp
from draftproof.engine.arguments import encode
from tests.support import tiny

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + (m['name'] or '') + ':' + m['content'] }}"
    "{% for call in m['tool_calls'] %}{{ call['function'] }}{% endfor %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(scope="module")
def target():
    """A model with a chat template that shows what it was given."""
    model = tiny.model()
    model.tokenizer = copy.copy(tiny.tokenizer())
    model.tokenizer.chat_template = TEMPLATE
    return model


def read(target, prompt, **how):
    return target.tokenizer.decode(encode(target, prompt, **how))


@pytest.mark.parametrize(
    "prompt",
    [
        [71, 72],
        (71, 72),
        range(71, 73),
        (token for token in (71, 72)),
        np.array([71, 72]),
        np.array([[71, 72]], dtype=np.int32),
        torch.tensor([71, 72]),
        torch.tensor([[71, 72]]),
        list(torch.tensor([71, 72])),
    ],
    ids=["list", "tuple", "range", "generator", "array", "row", "tensor", "tensor row", "list of tensors"],
)
def test_token_ids_in_any_container(target, prompt):
    order = {"max_new_tokens": 3, "seed": 1}
    like = dp.generate(target, "hi", chat=False, **order)
    assert dp.generate(target, prompt, **order).tokens == like.tokens


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (torch.tensor([[1, 2], [3, 4]]), r"one row of token ids, not of shape \(2, 2\): give a list of rows"),
        (np.array(3), r"one row of token ids, not of shape \(\)"),
        (np.array([1.5, 2]), "token ids are whole numbers, not float64"),
        ({"role": "user", "content": "hi"}, "not dict: put a message into a list"),
        ({1, 2}, "a prompt is text, chat messages or token ids, not set: convert it"),
        (5, "a prompt is text, chat messages or token ids, not int"),
        ([1, "two"], "one prompt is a text, or a list of token ids or of chat messages, not int and str"),
        ([{"role": "user", "content": "hi"}, 3], "not dict and int"),
        (["one", 2], "prompt 2 of 2: a prompt is text, chat messages or token ids, not int"),
        (["one", ""], "prompt 2 of 2: the prompt is empty"),
        (["one", [999]], "prompt 2 of 2: token id 999 is outside the vocabulary"),
        ([{"content": "hi"}], "a chat message has no role but content: give it a role and content"),
        ([{"role": "user"}], "a message of role 'user' without content: give its text"),
        ([{"role": "user", "content": None}], "a message of role 'user' whose content is None: give its text"),
        ([{"role": "usr", "content": "hi"}], "unknown role 'usr' of a chat message: did you mean 'user'"),
        ([{"role": 7, "content": "hi"}], "unknown role 7 of a chat message: use one of system, "),
        ([{"role": "user", "content": 7}], "the content of a message is text or a list of parts, not int"),
        ([{"role": "user", "content": ["hi"]}], "a content part looks like .* not 'hi'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "a text part of a message has no text but None"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}],
            "a content part has the type 'image_url': only text parts can be read",
        ),
    ],
)
def test_a_wrong_prompt_is_one_line(target, prompt, message):
    with pytest.raises(dp.DraftproofError, match=message) as error:
        dp.generate(target, prompt, max_new_tokens=3)
    assert "\n" not in str(error.value)


def test_text_parts_are_joined_line_by_line(target):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert read(target, [{"role": "user", "content": parts}]) == "user:one\ntwo\nassistant:"


def test_other_fields_reach_the_template(target):
    messages = [
        {"role": "user", "content": "hi", "name": " Ann"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": "look()"}]},
        {"role": "tool", "content": "3"},
    ]
    assert read(target, messages) == "user Ann:hi\nassistant:look()\ntool:3\nassistant:"
    assert messages[1]["content"] is None  # the caller's messages stay as they are


def test_a_role_that_the_template_names_is_taken(target):
    own = copy.copy(target)
    own.tokenizer = copy.copy(target.tokenizer)
    own.tokenizer.chat_template = TEMPLATE + '{% if messages[0]["role"] == "critic" %}!{% endif %}'
    messages = [{"role": "critic", "content": "hi"}]
    assert read(own, messages) == "critic:hi\nassistant:!"
    with pytest.raises(dp.DraftproofError, match="unknown role 'critic'"):
        read(target, messages)


def test_a_final_assistant_message_is_continued_or_followed_by_a_new_turn(target):
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well,"}]
    assert read(target, messages) == "user:hi\nassistant:Well,"
    assert read(target, messages, continue_final_message=False) == "user:hi\nassistant:Well,\nassistant:"
    parts = [messages[0], {"role": "assistant", "content": [{"type": "text", "text": "Well,"}]}]
    order = {"max_new_tokens": 4, "seed": 1}
    raw = dp.generate(target, "user:hi\nassistant:Well,", chat=False, **order).tokens
    anew = dp.generate(target, "user:hi\nassistant:Well,\nassistant:", chat=False, **order).tokens
    assert dp.generate(target, parts, **order).tokens == raw
    assert dp.generate(target, messages, continue_final_message=False, **order).tokens == anew
    writing = dp.stream(target, messages, continue_final_message=False, **order)
    assert list(writing)
    assert writing.output.tokens == anew
    engine = dp.Engine(target, length=80)
    assert engine.add_request(messages, max_new_tokens=4).prompt == encode(target, messages)
    request = engine.add_request(messages, max_new_tokens=4, continue_final_message=False)
    assert request.prompt == encode(target, messages, continue_final_message=False)


# Lists of prompts

SEVERAL = ["once", "a longer prompt than the others", [104, 105], "once", [{"role": "user", "content": "why"}]]


@pytest.mark.parametrize("draft", ["ngram", None])
def test_each_text_of_a_list_is_that_of_its_prompt_alone(target, draft):
    order = {"draft": draft, "max_new_tokens": 12, "seed": 5}
    outputs = dp.generate(target, SEVERAL, **order)
    assert [out.tokens for out in outputs] == [dp.generate(target, prompt, **order).tokens for prompt in SEVERAL]
    assert {out.seed for out in outputs} == {5}
    samples = dp.generate(target, tuple(SEVERAL), n=2, **order)
    alone = [dp.generate(target, prompt, n=2, **order) for prompt in SEVERAL]
    assert [[out.tokens for out in of] for of in samples] == [[out.tokens for out in of] for of in alone]


def test_more_prompts_than_rows_are_all_answered_in_order(target):
    prompts = [[number] for number in range(40)]
    outputs = dp.generate(target, prompts, max_new_tokens=3, seed=2)
    assert [out.tokens for out in outputs] == [
        dp.generate(target, prompt, max_new_tokens=3, seed=2).tokens for prompt in prompts
    ]
    assert len(dp.generate(target, ["one"], max_new_tokens=3)) == 1


def test_a_list_is_generated_together(target):
    """One target call serves all rows."""
    model, calls = copy.copy(target), []
    model.network = copy.copy(target.network)
    inner = model.network.forward
    model.network.forward = lambda **how: (calls.append(len(how["input_ids"])), inner(**how))[1]
    sampling = dp.Sampling(end_tokens=())
    dp.generate(model, ["one", "two", "three"], draft=None, sampling=sampling, max_new_tokens=6, seed=1)
    assert calls == [3] * 6


def test_without_a_seed_each_prompt_has_its_own(target):
    first, second = dp.generate(target, ["same", "same"], max_new_tokens=3)
    assert first.seed != second.seed


def test_streams_and_requests_have_one_prompt(target):
    with pytest.raises(dp.DraftproofError, match=r"these are 2 prompts: use generate .* Engine"):
        dp.stream(target, ["one", "two"])
    with pytest.raises(dp.DraftproofError, match="call add_request once for each"):
        dp.Engine(target, length=60).add_request(["one", "two"])
