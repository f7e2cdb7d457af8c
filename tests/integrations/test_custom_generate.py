"""transformers' generate() with our loop in it: its own arguments mean what they mean there."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

import draftproof as dp
from draftproof.integrations import network_cache as opened_models
from draftproof.models import drafter
from tests.support import gof, tiny


def ids(text: str, rows: int = 1) -> dict[str, torch.Tensor]:
    made = tiny.tokenizer()([text] * rows, return_tensors="pt")
    return {"input_ids": made.input_ids, "attention_mask": made.attention_mask}


@pytest.mark.parametrize("draft", ["ngram", None, "model"])
@pytest.mark.parametrize(
    "controls", [{}, {"repetition_penalty": 1.4}, {"no_repeat_ngram_size": 2, "min_new_tokens": 9}]
)
def test_greedy_text_is_transformers_own(draft, controls):
    model = tiny.network("llama")
    guesser = tiny.network("llama", 1) if draft == "model" else draft
    settings = {**ids("abcabcabc"), "do_sample": False, "max_new_tokens": 24, **controls}
    ours = model.generate(**settings, custom_generate=dp.custom_generate(draft=guesser))
    assert torch.equal(ours, model.generate(**settings))


def test_sampled_tokens_follow_transformers_law():
    """Two tokens under all the usual controls at once, against the law that transformers' processors give."""
    model = tiny.network("llama")
    settings = {"do_sample": True, "temperature": 0.7, "top_k": 6, "top_p": 0.9, "repetition_penalty": 1.3}
    prompt = ids("ab")
    torch.manual_seed(0)
    out = model.generate(
        **prompt,
        **settings,
        max_new_tokens=1,
        num_return_sequences=3000,
        custom_generate=dp.custom_generate(draft=tiny.network("llama", 1)),
    )
    theirs = model.generate(**prompt, **settings, max_new_tokens=1, output_scores=True, return_dict_in_generate=True)
    law = torch.softmax(theirs.scores[0][0].double(), -1)
    gof.check(Counter(out[:, -1].tolist()), {t: float(p) for t, p in enumerate(law) if p > 0})


def test_torch_seed_makes_it_repeatable():
    model, guesser = tiny.network("gpt2"), tiny.network("gpt2", 1)

    def text(seed):
        torch.manual_seed(seed)
        method = dp.custom_generate(draft=guesser, draft_temperature=1.2, tree=dp.Tree.chain(3))
        return model.generate(**ids("hello"), do_sample=True, max_new_tokens=20, custom_generate=method).tolist()

    assert text(1) == text(1) != text(2)


def test_uneven_prompts_and_ends_are_padded():
    model = tiny.network("llama")
    made = tiny.tokenizer()(["abc", "abcdef"], return_tensors="pt", padding=True, padding_side="left")
    inputs = {"input_ids": made.input_ids, "attention_mask": made.attention_mask}
    settings = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": [int(t) for t in range(100, 130)]}
    ours = model.generate(**inputs, **settings, custom_generate=dp.custom_generate())
    assert torch.equal(ours, model.generate(**inputs, **settings))


class AtLength(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((input_ids.shape[0],), input_ids.shape[1] >= 11)


class Only(LogitsProcessor):
    """Allows one token more than the last one, so that a guess's own history matters."""

    def __call__(self, input_ids, scores):
        kept = torch.full_like(scores, float("-inf"))
        follower = (input_ids[:, -1:] + 1) % 250
        return kept.scatter(1, follower, scores.gather(1, follower))


def test_stopping_criteria_and_processors_are_honoured_along_a_draft():
    out = tiny.network("llama").generate(
        **ids("a"),
        do_sample=True,
        max_new_tokens=50,
        stopping_criteria=StoppingCriteriaList([AtLength()]),
        logits_processor=LogitsProcessorList([Only()]),
        custom_generate=dp.custom_generate(draft=tiny.network("llama", 1)),
    )
    first = int(out[0, 0])
    assert out[0].tolist() == list(range(first, first + 11))


class Collect:
    def __init__(self):
        self.tokens, self.ended = [], False

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.ended = True


def test_a_dict_is_returned_when_asked_for_and_a_streamer_is_fed():
    seen = Collect()
    settings = {**ids("abc"), "do_sample": True, "max_new_tokens": 9, "return_dict_in_generate": True}
    out = tiny.network("llama").generate(**settings, streamer=seen, custom_generate=dp.custom_generate())
    assert out.sequences[0].tolist() == seen.tokens  # the prompt comes first, as in transformers
    assert seen.ended


def test_a_streamer_shows_one_text():
    settings = {**ids("abc", 2), "do_sample": True, "max_new_tokens": 5, "streamer": Collect()}
    with pytest.raises(dp.DraftproofError, match="a streamer takes one text, but there are 2"):
        tiny.network("llama").generate(**settings, custom_generate=dp.custom_generate())


def test_a_drafter_is_opened_once_and_keeps_what_it_learned(monkeypatch):
    opened = []
    monkeypatch.setattr(opened_models, "drafter", lambda name, target: opened.append(name) or drafter("cache", target))
    model, method = tiny.network("llama"), dp.custom_generate(draft="cache")
    for _ in range(3):
        model.generate(**ids("abc"), do_sample=False, max_new_tokens=6, custom_generate=method)
    tiny.network("llama", 1).generate(**ids("abc"), do_sample=False, max_new_tokens=6, custom_generate=method)
    assert opened == ["cache", "cache"]  # for each model


def test_a_model_in_training_is_so_afterwards():
    model = copy.deepcopy(tiny.network("llama"))
    model.train()
    model.lm_head.eval()
    settings = {**ids("abc"), "do_sample": False, "max_new_tokens": 6}
    model.generate(**settings, custom_generate=dp.custom_generate(draft=tiny.network("llama", 1)))
    assert model.training
    assert not model.lm_head.training


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draft_temperature": "hot"}, "temperature must be 0 .* not 'hot'"),
        ({"tree": dp.Tree.star(3), "verify": "block"}, "works on chain drafts only"),
        ({"tree": dp.Tree((-1, 0, 1, 0)), "verify": "match"}, "is not numbered level by level"),
    ],
)
def test_what_cannot_be_had_is_refused_before_generate_is_called(change, message):
    with pytest.raises(dp.DraftproofError, match=message):
        dp.custom_generate(draft="ngram", **change)


def test_what_is_no_drafter_is_named():
    with pytest.raises(dp.DraftproofError, match="draft must be a name or a model, not int"):
        tiny.network("llama").generate(**ids("abc"), max_new_tokens=5, custom_generate=dp.custom_generate(draft=3))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("change", ["a weight", "its data", "all of it"])
def test_a_model_that_has_changed_is_read_anew(family, change):
    model, other = (copy.deepcopy(tiny.network(family, seed)) for seed in (0, 1))
    method, settings = dp.custom_generate(draft="ngram"), {**ids("abcabc"), "do_sample": False, "max_new_tokens": 12}
    before = model.generate(**settings, custom_generate=method)
    with torch.no_grad():
        if change == "a weight":
            model.get_output_embeddings().weight.mul_(-1)
        elif change == "its data":
            for weight in model.parameters():
                weight.data += 0.1 * torch.sin(torch.arange(weight.numel()).float()).view_as(weight)
        else:
            model.load_state_dict(other.state_dict())
    ours = model.generate(**settings, custom_generate=method)
    assert torch.equal(ours, model.generate(**settings))
    assert not torch.equal(ours, before)


def test_lean_or_not_the_text_is_the_same_and_the_model_still_works():
    model = copy.deepcopy(tiny.network("llama"))
    settings = {**ids("abcabc"), "do_sample": False, "max_new_tokens": 12}
    before = model.generate(**settings)
    for lean in (False, True, False):
        assert torch.equal(model.generate(**settings, custom_generate=dp.custom_generate(lean=lean)), before)
    assert torch.equal(model.generate(**settings), before)
