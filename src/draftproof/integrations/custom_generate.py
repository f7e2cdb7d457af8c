"""Drop-in for transformers: model.generate(**inputs, custom_generate=draftproof.custom_generate(draft=...)).

transformers prepares everything as for its own sampling (processors, stopping criteria, lengths, padding); only the
decoding loop is replaced. Its processors are applied to every guess with that guess's own history, so they stay exact.
A setting that is not supported raises an error that names it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from transformers import GenerationConfig

from draftproof.draft import Tree
from draftproof.engine.choices import best_rule, choose_draw, choose_rule, choose_tuner
from draftproof.engine.request import Request, SampleKey
from draftproof.engine.scheduler import Scheduler
from draftproof.engine.setup import Setup
from draftproof.engine.tuning import Fixed
from draftproof.errors import DraftproofError
from draftproof.grammar import Grammar, as_grammar
from draftproof.integrations.network_cache import NetworkCache
from draftproof.integrations.processors import PaddedPrompt, of_row, samplings_of
from draftproof.models.base import Model
from draftproof.sampling import Sampling

# Processors with a state of their own between calls: they would take every guess for committed text.
STATEFUL = ("UnbatchedClassifierFreeGuidanceLogitsProcessor", "SynthIDTextWatermarkLogitsProcessor")
STRUCTURED = ("xgrammar", "llguidance", "outlines", "lmformatenforcer")  # packages whose processors do too

# Settings of GenerationConfig that are supported; all others must have their default value.
SUPPORTED = {
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_time", "num_return_sequences", "do_sample"),
    *("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    *("repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
    *("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias", "exponential_decay_length_penalty"),
    *("forced_bos_token_id", "forced_eos_token_id", "renormalize_logits", "remove_invalid_values"),
    *("watermarking_config", "return_dict_in_generate", "pad_token_id", "bos_token_id", "eos_token_id"),
    "disable_compile",  # nothing is compiled
    *("early_stopping", "length_penalty", "diversity_penalty", "decoder_start_token_id"),  # for beams and encoders only
}
# Defaults of the others; those not listed are None or False.
DEFAULTS = {
    "num_beams": 1,
    "num_beam_groups": 1,
    "use_cache": True,
    "num_assistant_tokens": 20,
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0.4,
    "assistant_lookbehind": 10,
    "target_lookbehind": 10,
}
REMEDIES = {
    "assistant_model": "pass it as custom_generate(draft=...)",
    "prompt_lookup_num_tokens": "use custom_generate(draft='ngram')",
    "num_assistant_tokens": "use custom_generate(tree=Tree.chain(...))",
    "use_cache": "leave it out: the text is the same, and a cache is always used",
    "guidance_scale": "leave it out: its processor keeps a state between tokens and cannot be applied to draft tokens",
}
MODEL_INPUTS = ("attention_mask", "logits_to_keep", "use_cache")  # model inputs that are used or change nothing
CREATED = (
    "position_ids",
    "cache_position",
    "past_key_values",
    "cache_params",
)  # created by generate() itself, unless the caller passed them


def custom_generate(
    draft: str | Model | Any | None = "auto",
    *,
    verify: str = "auto",
    tree: Tree | None = None,
    draft_temperature: float | None = None,
    grammar: Any = None,
    tokenizer: Any = None,
    lean: bool = True,
) -> Callable[..., Any]:
    """A decoding loop for `model.generate(..., custom_generate=...)`.

    draft               a name of `draftproof list`, a model of transformers, or None
    verify, tree        as in `draftproof.generate`
    draft_temperature   divides the draft's scores once more; the law of the text does not change
    grammar             the form that texts must have, as in `Sampling`; it needs the model's `tokenizer`
    lean                runs models of the Llama family with faster layers, as `draftproof.load` does; on a CPU in
                        float32 that takes memory for the weights a second time
    """
    rule = choose_rule(verify, None)  # raise now, not in the middle of generate()
    if verify == "auto" and draft is not None:
        rule = best_rule(tree)
    if draft_temperature is not None:
        Sampling(temperature=draft_temperature)  # raises if it is not a temperature
    form = as_grammar(grammar)
    if form is not None and tokenizer is None:
        raise DraftproofError("a grammar needs the model's tokenizer: use custom_generate(grammar=..., tokenizer=...)")
    tuner, per_request = choose_tuner(rule, [] if draft is None else [draft], tree, repeatable=True, tempers=False)
    draw = choose_draw(rule, tuner.example, None)  # raises if the tree does not fit the rule

    networks = NetworkCache(draft, lean)

    def method(
        model: Any, input_ids: Any, logits_processor: Any, stopping_criteria: Any, generation_config: Any, **rest: Any
    ) -> Any:
        call = _call(sys._getframe(1))
        _refuse(generation_config, logits_processor, rest, call)
        streamer, count, device = call.get("streamer"), len(input_ids), input_ids.device
        if streamer is not None and count > 1:
            raise DraftproofError(f"a streamer takes one text, but there are {count}: pass one prompt, or no streamer")
        prompts = _unpadded(input_ids, rest.get("attention_mask"))
        length = generation_config.max_length - input_ids.shape[1]
        seed = int(torch.randint(2**62, (1,)))  # depends on torch.manual_seed, like transformers' own sampling
        evaluating = not model.training  # a model in training keeps its own layers
        with _eval_mode(model):
            target, drafts = networks.get(model, lean=evaluating)
            target.tokenizer = tokenizer
            setup = Setup(target, tuple(drafts), rule, tuner if drafts else Fixed(Tree.chain(0)), draw, per_request)
            requests = []
            for r, prompt in enumerate(prompts):
                view = PaddedPrompt(tuple(input_ids[r].tolist()), len(prompt))
                own = [of_row(processor, r, input_ids, generation_config) for processor in logits_processor]
                samplings = samplings_of(own, view, generation_config.do_sample, draft_temperature, device)
                if form is not None:
                    samplings = _with_grammar(samplings, form, generation_config)
                stopping = _criteria(view.of(stopping_criteria), prompt, device)
                requests.append(setup.request(prompt, samplings, length, SampleKey(seed, r), stopping=stopping))
            scheduler = setup.scheduler(count, max(map(len, prompts)) + length, reuse=True)
            for _, same in itertools.groupby(requests, key=lambda request: (request.prompt, request.sampling)):
                scheduler.add(list(same))  # samples of one prompt share their common prefix
            _write(scheduler, requests[0], streamer)
        return _output(input_ids, requests, generation_config)

    return method


def _with_grammar(samplings: tuple[Sampling, Sampling], form: Grammar, config: Any) -> tuple[Sampling, Sampling]:
    """The samplings with the grammar, and with the tokens that may end a text where the grammar says so."""
    ends = config.eos_token_id
    ends = () if ends is None else ends if isinstance(ends, list) else (ends,)
    sampling, draft = (replace(one, grammar=form, end_tokens=ends) for one in samplings)
    return sampling, draft


@contextmanager
def _eval_mode(model: Any) -> Iterator[None]:
    """Evaluation mode, because dropout has no fixed law; restores training mode afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _write(scheduler: Scheduler, first: Request, streamer: Any) -> None:
    """Step until all texts are finished; a streamer gets the tokens of the first."""
    sent = 0
    while not scheduler.is_finished:
        scheduler.step()
        if streamer is not None and len(first.tokens) > sent:
            streamer.put(torch.tensor(first.tokens[sent:]))
            sent = len(first.tokens)
    if streamer is not None:
        streamer.end()


def _call(frame: Any) -> Mapping[str, Any]:
    """The arguments of generate(), from its stack frame: a custom loop is passed neither streamer nor assistant."""
    arguments = frame.f_locals
    return arguments if frame.f_code.co_name == "generate" and "custom_generate" in arguments else {}


def _refuse(config: Any, processors: Any, rest: dict[str, Any], call: Mapping[str, Any]) -> None:
    """Raise for the first setting, argument of generate() or model input that is not supported."""
    settings = vars(GenerationConfig()).keys() - SUPPORTED
    settings = sorted(name for name in settings if not name.startswith(("_", "transformers_version")))
    requested = {name: getattr(config, name, None) for name in settings}
    requested |= {name: call.get(name) for name in ("assistant_model", "synced_gpus")}
    for name, value in requested.items():
        if value not in (None, DEFAULTS.get(name, False)):
            words = f"{name}={value!r}" if isinstance(value, int | float | str) else name
            raise DraftproofError(
                f"{words} is not supported with custom_generate: {REMEDIES.get(name, 'leave it out')}"
            )
    for processor in processors:
        if type(processor).__name__ in STATEFUL:
            raise DraftproofError(
                f"{type(processor).__name__} keeps a state between tokens and cannot judge draft tokens: leave it out"
            )
        package = type(processor).__module__.partition(".")[0]
        if package in STRUCTURED:
            raise DraftproofError(
                f"the processor of {package} keeps a state between tokens and cannot judge draft tokens: "
                "use custom_generate(grammar=..., tokenizer=...)"
            )
    passed = call.get("kwargs", {})
    for name, value in rest.items():
        if value is not None and not (name in CREATED and passed.get(name) is None) and name not in MODEL_INPUTS:
            raise DraftproofError(f"{name} is not supported with custom_generate: pass the whole text as input_ids")


def _unpadded(input_ids: torch.Tensor, mask: torch.Tensor | None) -> list[tuple[int, ...]]:
    """The prompts without their padding."""
    attended = torch.ones_like(input_ids) if mask is None else mask
    pairs = zip(input_ids.tolist(), attended.tolist(), strict=True)
    prompts = [tuple(token for token, keep in zip(*pair, strict=True) if keep) for pair in pairs]
    if () in prompts:
        raise DraftproofError(f"row {prompts.index(())} of input_ids has no token: give each prompt at least one")
    return prompts


def _criteria(criteria: Any, prompt: Sequence[int], device: torch.device) -> Callable[[Sequence[int]], bool]:
    """transformers' stopping criteria, checked after every token as in its own loop."""

    def until(tokens: Sequence[int]) -> bool:
        ids = torch.tensor([[*prompt, *tokens]], device=device)
        return bool(criteria(ids, None)[0])

    return until


def _output(input_ids: torch.Tensor, requests: Sequence[Request], config: Any) -> Any:
    """Prompts and texts joined, padded on the right; with `return_dict_in_generate` as transformers' output type."""
    width = max(len(request.tokens) for request in requests)
    pad = config.pad_token_id if config.pad_token_id is not None else (config.eos_token_id or 0)
    pad = pad[0] if isinstance(pad, list) else int(pad)
    rows = [request.tokens + [pad] * (width - len(request.tokens)) for request in requests]
    sequences = torch.cat([input_ids, torch.tensor(rows, device=input_ids.device, dtype=input_ids.dtype)], dim=1)
    if not config.return_dict_in_generate:
        return sequences
    from transformers.generation import GenerateDecoderOnlyOutput

    return GenerateDecoderOnlyOutput(sequences=sequences)
