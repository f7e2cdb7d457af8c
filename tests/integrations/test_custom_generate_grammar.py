"""transformers' generate() with a grammar: its texts have the form, and its greedy text is transformers' own."""

from __future__ import annotations

import re

import pytest
import torch

import draftproof as dp
from draftproof.models.grammars import start
from tests.support import tiny

PATTERN = "[a-f]{2,4}-[0-9]{2}(;[xyz]{3}){1,3}"
GRAMMAR = dp.Grammar.regex(PATTERN)


def ids(*texts: str) -> dict[str, torch.Tensor]:
    made = tiny.tokenizer()(list(texts), return_tensors="pt", padding=True, padding_side="left")
    return {"input_ids": made.input_ids, "attention_mask": made.attention_mask}


def written(inputs: dict[str, torch.Tensor], made: torch.Tensor) -> list[str]:
    return tiny.tokenizer().batch_decode(made[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def generate(inputs, *, grammar=GRAMMAR, draft="ngram", **settings):
    method = dp.custom_generate(draft=draft, grammar=grammar, tokenizer=tiny.tokenizer())
    return tiny.network("llama").generate(**inputs, max_new_tokens=40, custom_generate=method, **settings)


def allowed(prompt: int):
    """What transformers asks for: the tokens that may follow a text."""

    def follow(_, text):
        state = start(GRAMMAR, tiny.model(), (256,))
        for token in text[prompt:].tolist():
            state = state.after(token)
        return state.allowed.nonzero()[0].tolist()

    return follow


@pytest.mark.parametrize("draft", ["ngram", None, "model"])
def test_the_greedy_text_is_that_of_transformers_with_the_same_masks(draft):
    inputs = ids("abcabc")
    ours = generate(inputs, draft=tiny.network("llama", 1) if draft == "model" else draft, do_sample=False)
    theirs = tiny.network("llama").generate(
        **inputs, do_sample=False, max_new_tokens=40, prefix_allowed_tokens_fn=allowed(inputs["input_ids"].shape[1])
    )
    assert torch.equal(ours, theirs)


def test_sampled_texts_have_the_form():
    inputs = ids("abc", "abcdef")
    torch.manual_seed(0)
    texts = written(inputs, generate(inputs, do_sample=True, num_return_sequences=4, temperature=0.8))
    assert len(set(texts)) > 4
    assert all(re.fullmatch(PATTERN, text) for text in texts), texts


def test_short_forms_of_a_grammar():
    inputs = ids("abc")
    assert written(inputs, generate(inputs, grammar=["left", "right"], do_sample=True))[0] in ("left", "right")


def test_what_is_missing_or_cannot_be_used_is_one_line():
    inputs = ids("abc")
    with pytest.raises(dp.DraftproofError, match="a grammar needs the model's tokenizer"):
        dp.custom_generate(grammar=GRAMMAR)
    with pytest.raises(dp.DraftproofError, match="unknown grammar 'xml'"):
        dp.custom_generate(grammar="xml")
    with pytest.raises(dp.DraftproofError, match="the regular expression cannot be used: unclosed group"):
        generate(inputs, grammar=dp.Grammar.regex("a(b"))


def test_a_processor_that_follows_a_grammar_itself_is_refused():
    processor = type("LogitsProcessor", (), {"__module__": "xgrammar.contrib.hf", "__call__": lambda *_: None})()
    with pytest.raises(dp.DraftproofError, match=r"processor of xgrammar .* use custom_generate\(grammar="):
        generate(ids("abc"), grammar=None, logits_processor=[processor])
