"""Drop-in for transformers: model.generate(**inputs, custom_generate=draftproof.custom_generate(draft=...)).

transformers prepares everything as for its own sampling (processors, stopping criteria, lengths, padding), and hands it
over; here the loop is replaced. Its processors are applied to every guess with that guess's own history, so whatever
they do stays exact. What cannot be honoured is refused by name.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig

from draftproof.draft import Tree
from draftproof.engine.request import Request, SampleKey
from draftproof.engine.scheduler import Scheduler
from draftproof.engine.setup import Setup, choose_draw, choose_rule, choose_tuner
from draftproof.engine.tuning import Fixed
from draftproof.errors import DraftproofError
from draftproof.integrations.network_cache import Opened
from draftproof.integrations.processors import View, of_row, samplings_of
from draftproof.models.base import Model
from draftproof.sampling import Sampling

# Processors that keep a state of their own between calls: asked about a guess, they would take it for the text.
STATEFUL = ("UnbatchedClassifierFreeGuidanceLogitsProcessor", "SynthIDTextWatermarkLogitsProcessor")

# Settings of GenerationConfig that mean here what they mean there; all others must be left as they are.
HONOURED = {
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_time", "num_return_sequences", "do_sample"),
    *("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    *("repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
    *("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias", "exponential_decay_length_penalty"),
    *("forced_bos_token_id", "forced_eos_token_id", "renormalize_logits", "remove_invalid_values"),
    *("watermarking_config", "return_dict_in_generate", "pad_token_id", "bos_token_id", "eos_token_id"),
    "disable_compile",  # nothing is compiled
    *("early_stopping", "length_penalty", "diversity_penalty", "decoder_start_token_id"),  # of beams and encoders alone
}
# What the others are where nobody asked for anything; those that are not named are None or False.
UNASKED = {
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
    "assistant_model": "give it to custom_generate(draft=...)",
    "prompt_lookup_num_tokens": "give custom_generate(draft='ngram')",
    "num_assistant_tokens": "give custom_generate(tree=Tree.chain(...))",
    "use_cache": "leave it out, the text is the same and a cache is always used",
    "guidance_scale": "leave it out, its processor keeps a state between tokens and cannot judge guesses",
}
READ = ("attention_mask", "logits_to_keep", "use_cache")  # inputs of the model that are followed or change nothing
MADE = ("position_ids", "cache_position", "past_key_values")  # made by generate() itself, unless somebody gave them


def custom_generate(
    draft: str | Model | Any | None = "auto",
    *,
    verify: str = "block",
    tree: Tree | None = None,
    draft_temperature: float | None = None,
    lean: bool = True,
) -> Callable[..., Any]:
    """A generation method for `model.generate(..., custom_generate=...)`.

    draft               a name of `draftproof list`, a model of transformers, or None
    verify, tree        as in `draftproof.generate`
    draft_temperature   divides the guesses' scores once more; the text's law is not changed by it
    lean                runs models of the Llama family by faster layers, as `draftproof.load` does; on a CPU in float32
                        that takes room for the weights once more
    """
    rule = choose_rule(verify, None)  # what is refused is refused now, not in the middle of generate()
    if draft_temperature is not None:
        Sampling(temperature=draft_temperature)  # refuses what is none
    tuner, per_request = choose_tuner(rule, [] if draft is None else [draft], tree, repeatable=True, tempers=False)
    draw = choose_draw(rule, tuner.example, None)  # refuses a tree that does not suit

    opened = Opened(draft, lean)

    def method(
        model: Any, input_ids: Any, logits_processor: Any, stopping_criteria: Any, generation_config: Any, **rest: Any
    ) -> Any:
        call = _call(sys._getframe(1))
        _refuse(generation_config, logits_processor, rest, call)
        streamer, count = call.get("streamer"), len(input_ids)
        if streamer is not None and count > 1:
            raise DraftproofError(f"a streamer shows one text, here are {count}: leave one of the two out")
        prompts = _unpadded(input_ids, rest.get("attention_mask"))
        length = generation_config.max_length - input_ids.shape[1]
        seed = int(torch.randint(2**62, (1,)))  # follows torch.manual_seed, as transformers' own sampling does
        calm = not model.training  # else its weights are left as they are
        with _at_rest(model):
            target, drafts = opened.get(model, lean=calm)
            setup = Setup(target, tuple(drafts), rule, tuner if drafts else Fixed(Tree.chain(0)), draw, per_request)
            requests = []
            for r, prompt in enumerate(prompts):
                view = View(tuple(input_ids[r].tolist()), len(prompt))
                own = [of_row(one, r, input_ids, generation_config) for one in logits_processor]
                samplings = samplings_of(own, view, generation_config.do_sample, draft_temperature)
                stopping = _criteria(view.of(stopping_criteria), prompt, input_ids.device)
                requests.append(setup.request(prompt, samplings, length, SampleKey(seed, r), stopping=stopping))
            scheduler = setup.scheduler(count, max(map(len, prompts)) + length, reuse=True)
            for _, same in itertools.groupby(requests, key=lambda request: (request.prompt, request.sampling)):
                scheduler.add(list(same))  # samples of one prompt share what they have in common
            _write(scheduler, requests[0], streamer)
        return _output(input_ids, requests, generation_config)

    return method


@contextmanager
def _at_rest(model: Any) -> Iterator[None]:
    """Without dropout, with which there would be no law to follow; a model in training is so again afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _write(scheduler: Scheduler, first: Request, streamer: Any) -> None:
    """Step until all is said; a streamer is told of the first text."""
    told = 0
    while not scheduler.is_finished:
        scheduler.step()
        if streamer is not None and len(first.tokens) > told:
            streamer.put(torch.tensor(first.tokens[told:]))
            told = len(first.tokens)
    if streamer is not None:
        streamer.end()


def _call(frame: Any) -> Mapping[str, Any]:
    """The arguments of generate(), read where they stand: a custom method is handed neither streamer nor assistant."""
    found = frame.f_locals
    return found if frame.f_code.co_name == "generate" and "custom_generate" in found else {}


def _refuse(config: Any, processors: Any, rest: dict[str, Any], call: Mapping[str, Any]) -> None:
    """What is asked for and cannot be had, by its name: settings, arguments of generate(), inputs of the model."""
    settings = vars(GenerationConfig()).keys() - HONOURED
    settings = sorted(name for name in settings if not name.startswith(("_", "transformers_version")))
    asked = {name: getattr(config, name, None) for name in settings}
    asked |= {name: call.get(name) for name in ("assistant_model", "synced_gpus")}
    for name, value in asked.items():
        if value not in (None, UNASKED.get(name, False)):
            words = f"{name}={value!r}" if isinstance(value, int | float | str) else name
            raise DraftproofError(f"{words} is not possible with custom_generate: {REMEDIES.get(name, 'leave it out')}")
    for processor in processors:
        if type(processor).__name__ in STATEFUL:
            raise DraftproofError(f"{type(processor).__name__} keeps a state between tokens: it cannot judge guesses")
    given = call.get("kwargs", {})
    for name, value in rest.items():
        if value is not None and not (name in MADE and given.get(name) is None) and name not in READ:
            raise DraftproofError(f"{name} is not possible with custom_generate: pass the whole text as input_ids")


def _unpadded(input_ids: torch.Tensor, mask: torch.Tensor | None) -> list[tuple[int, ...]]:
    """The prompts without their padding."""
    kept = torch.ones_like(input_ids) if mask is None else mask
    pairs = zip(input_ids.tolist(), kept.tolist(), strict=True)
    prompts = [tuple(token for token, keep in zip(*pair, strict=True) if keep) for pair in pairs]
    if () in prompts:
        raise DraftproofError(f"row {prompts.index(())} of input_ids has no token: give each prompt at least one")
    return prompts


def _criteria(criteria: Any, prompt: Sequence[int], device: torch.device) -> Callable[[Sequence[int]], bool]:
    """transformers' stopping criteria, asked after every token as in its own loop."""

    def until(tokens: Sequence[int]) -> bool:
        ids = torch.tensor([[*prompt, *tokens]], device=device)
        return bool(criteria(ids, None)[0])

    return until


def _output(input_ids: torch.Tensor, requests: Sequence[Request], config: Any) -> Any:
    """Prompts and texts side by side, padded on the right; with `return_dict_in_generate` in transformers' own type."""
    width = max(len(request.tokens) for request in requests)
    pad = config.pad_token_id if config.pad_token_id is not None else (config.eos_token_id or 0)
    pad = pad[0] if isinstance(pad, list) else int(pad)
    rows = [request.tokens + [pad] * (width - len(request.tokens)) for request in requests]
    sequences = torch.cat([input_ids, torch.tensor(rows, device=input_ids.device, dtype=input_ids.dtype)], dim=1)
    if not config.return_dict_in_generate:
        return sequences
    from transformers.generation import GenerateDecoderOnlyOutput

    return GenerateDecoderOnlyOutput(sequences=sequences)
