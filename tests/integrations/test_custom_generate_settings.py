"""Every setting of transformers' GenerationConfig, one by one: it does what it does there, or is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import CompileConfig, DynamicCache, GenerationConfig, WatermarkingConfig

import draftproof as dp
from tests.support import tiny

END = 119  # a token that greedy text says soon
GREEDY = {"do_sample": False, "max_new_tokens": 12}
FOUND = 65  # a token that greedy text says first

# greedy text under the setting; each changes that text
DOES = {
    "max_length": {"max_length": 14, "max_new_tokens": None},
    "max_new_tokens": {"max_new_tokens": 5},
    "min_length": {"min_length": 16, "eos_token_id": END},
    "min_new_tokens": {"min_new_tokens": 8, "eos_token_id": END},
    "max_time": {"max_time": 0.0},
    "repetition_penalty": {"repetition_penalty": 1.8},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 3.0},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 1},
    "bad_words_ids": {"bad_words_ids": [[FOUND], [END, 110]]},
    "suppress_tokens": {"suppress_tokens": [END]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [FOUND, 84]},
    "sequence_bias": {"sequence_bias": [[[FOUND], -50.0]]},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (2, 3.0)},
    "forced_eos_token_id": {"forced_eos_token_id": 77},
    "watermarking_config": {"watermarking_config": WatermarkingConfig(bias=50.0)},
    "eos_token_id": {"eos_token_id": [END, FOUND]},
    "pad_token_id": {"eos_token_id": [END, FOUND], "pad_token_id": 200},
}
# sampled text under the setting; each leaves one token
CUTS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1e-4},
    "top_k": {"top_k": 1},
    "top_p": {"top_p": 1e-6},
    "min_p": {"min_p": 1.0},
    "top_h": {"top_h": 1e-6},
    "typical_p": {"typical_p": 1e-6},
    "epsilon_cutoff": {"epsilon_cutoff": 0.999},
    "eta_cutoff": {"eta_cutoff": 0.99, "temperature": 0.02},
}
REFUSED = {
    "num_beams": 2,
    "use_mtp": True,
    "use_cache": False,
    "cache_implementation": "static",
    "cache_config": {"backend": "quanto"},
    "max_cache_len": 100,
    "stop_strings": ["a"],
    "token_healing": True,
    "guidance_scale": 1.5,
    "output_attentions": True,
    "output_hidden_states": True,
    "output_scores": True,
    "output_logits": True,
    "is_assistant": True,
    "num_assistant_tokens": 4,
    "num_assistant_tokens_schedule": "heuristic",
    "assistant_confidence_threshold": 0.2,
    "prompt_lookup_num_tokens": 3,
    "max_matching_ngram_size": 3,
    "assistant_early_exit": 1,
    "assistant_lookbehind": 3,
    "target_lookbehind": 3,
    "assistant_ensemble_weight": 0.3,
    "speculation_type": "mtp",
    "compile_config": CompileConfig(),
    "continuous_batching_config": {"block_size": 16},
    "low_memory": True,
    "penalty_alpha": 0.5,
    "dola_layers": "low",
    "num_beam_groups": 2,
    "constraints": [1],
    "force_words_ids": [[1]],
    "prefill_chunk_size": 3,
}
BY_THEMSELVES = {"do_sample", "num_return_sequences", "return_dict_in_generate", "forced_bos_token_id"}  # tests below
CHANGE_NOTHING = {
    *("renormalize_logits", "remove_invalid_values"),  # of finite scores
    *("early_stopping", "length_penalty", "diversity_penalty", "decoder_start_token_id"),  # of beams and encoders
    *("disable_compile", "bos_token_id"),
}


def test_the_lists_name_every_setting_once():
    named = [name for one in (DOES, CUTS, REFUSED, BY_THEMSELVES, CHANGE_NOTHING) for name in one]
    assert len(named) == len(set(named))
    known = {name for name in vars(GenerationConfig()) if not name.startswith(("_", "transformers_version"))}
    assert known <= set(named)  # an older transformers has fewer


def both(inputs: dict[str, Any], settings: dict[str, Any]) -> tuple[list[list[int]], list[list[int]]]:
    """What transformers writes, and what we write in its place."""
    model = tiny.network("llama")
    method = dp.custom_generate(draft=tiny.network("llama", 1), tree=dp.Tree.chain(3))
    torch.manual_seed(0)
    theirs = model.generate(**inputs, **settings)
    torch.manual_seed(1)
    return theirs.tolist(), model.generate(**inputs, **settings, custom_generate=method).tolist()


def inputs(*texts: str) -> dict[str, Any]:
    made = tiny.tokenizer()(list(texts), return_tensors="pt", padding=True, padding_side="left")
    return {"input_ids": made.input_ids, "attention_mask": made.attention_mask}


UNEVEN = ("abcabcabc", "cba")  # the second is padded: processors count and read the padding too


@pytest.mark.parametrize("name", DOES)
def test_a_setting_does_what_it_does_there(name):
    theirs, ours = both(inputs(*UNEVEN), GREEDY | DOES[name])
    assert ours == theirs
    without = {key: value for key, value in (GREEDY | DOES[name]).items() if key != name or name in GREEDY}
    without = without | GREEDY if name in ("max_length", "max_new_tokens") else without
    assert tiny.network("llama").generate(**inputs(*UNEVEN), **without).tolist() != theirs


@pytest.mark.parametrize("name", CUTS)
def test_a_cut_cuts_as_it_does_there(name):
    theirs, ours = both(inputs(*UNEVEN), GREEDY | CUTS[name] | {"do_sample": True})
    assert ours == theirs


@pytest.mark.parametrize("name", sorted(CHANGE_NOTHING))
def test_what_changes_nothing_there_changes_nothing_here(name):
    values = {"length_penalty": 2.0, "diversity_penalty": 0.5, "decoder_start_token_id": 3, "bos_token_id": 4}
    theirs, ours = both(inputs("abc"), GREEDY | {name: values.get(name, True)})
    assert ours == theirs


def test_the_first_token_can_be_forced():
    theirs, ours = both(inputs("a"), GREEDY | {"forced_bos_token_id": 9})
    assert ours == theirs
    assert ours[0][1] == 9


def test_allowed_tokens_may_differ_from_text_to_text():
    allowed = {0: [70, 71, 72], 1: [80, 81], 2: [90, 91]}
    settings = GREEDY | {"prefix_allowed_tokens_fn": lambda row, ids: allowed[row]}
    theirs, ours = both(inputs("abc", "abc", "cb"), settings)
    assert ours == theirs
    assert {token for row in ours for token in row[3:]} <= {70, 71, 72, 80, 81, 90, 91}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(name):
    words = {"stop_strings": "stop strings", "token_healing": "token healing"}  # transformers itself refuses these
    with pytest.raises((dp.DraftproofError, ValueError), match=words.get(name, name)):
        generate(**{name: REFUSED[name]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"assistant_model": tiny.network("llama", 1)}, r"assistant_model is .*: pass it as custom_generate\(draft"),
        ({"synced_gpus": True}, "synced_gpus=True is not supported"),
        ({"past_key_values": DynamicCache()}, "past_key_values is not supported"),
        ({"position_ids": torch.arange(3)[None]}, "position_ids is not supported"),
        ({"inputs_embeds": torch.zeros(1, 3, 32)}, "inputs_embeds is not supported"),
        ({"attention_mask": torch.zeros(1, 3, dtype=torch.int64)}, "row 0 of input_ids has no token"),
    ],
)
def test_arguments_that_cannot_be_honoured_are_refused(change, message):
    with pytest.raises(dp.DraftproofError, match=message):
        generate(**change)


def generate(**change: Any) -> None:
    settings = inputs("abc") | GREEDY | change
    tiny.network("llama").generate(**settings, custom_generate=dp.custom_generate(draft="ngram"))
