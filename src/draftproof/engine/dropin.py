"""Drop-in for transformers: model.generate(**inputs, custom_generate=draftproof.custom_generate(draft=...)).

transformers prepares everything as for its own sampling (processors, stopping criteria, lengths, padding), and hands it
over; here the loop is replaced. Its processors are applied to every guess with that guess's own history, so whatever
they do stays exact. What cannot be honoured is refused by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from draftproof.draft import Tree
from draftproof.engine.auto import Auto, assumed, hope
from draftproof.engine.generate import choose_draw, choose_rule, choose_shape, open_batch
from draftproof.engine.laws import Member
from draftproof.engine.request import Request
from draftproof.engine.trace import Trace
from draftproof.errors import DraftproofError
from draftproof.models import check_vocabularies, drafter
from draftproof.models.hf import HFModel
from draftproof.models.session import Model
from draftproof.sampling import Sampling

# Processors that keep a state of their own between calls: asked about a guess, they would take it for the text.
STATEFUL = ("UnbatchedClassifierFreeGuidanceLogitsProcessor", "SynthIDTextWatermarkLogitsProcessor")
REFUSED = {"num_beams": (None, 1), "output_scores": (None, False), "output_logits": (None, False)} | dict.fromkeys(
    ("output_attentions", "output_hidden_states"), (None, False)
)


def custom_generate(
    draft: str | Model | Any | None = "ngram",
    *,
    verify: str = "block",
    tree: Tree | None = None,
    draft_temperature: float | None = None,
    streamer: Any = None,
) -> Callable[..., Any]:
    """A generation method for `model.generate(..., custom_generate=...)`.

    draft               "ngram", a name, a model of transformers, or None
    verify, tree        as in `draftproof.generate`
    draft_temperature   divides the guesses' scores once more; the text's law is not changed by it
    streamer            give it here: transformers does not pass its own to custom methods
    """
    rule = choose_rule(verify, None)
    # the seed is torch's, so a text must be repeatable
    shape, paced = choose_shape(rule, [] if draft is None else [draft], tree, seeded=True, tempers=False)
    choose_draw(
        rule, shape.example if isinstance(shape, Auto) else shape, None
    )  # refuses a tree that does not suit, now and not in the middle of generate()

    def method(
        model: Any, input_ids: Any, logits_processor: Any, stopping_criteria: Any, generation_config: Any, **rest: Any
    ) -> Any:
        _refuse(generation_config, logits_processor, rest)
        target = HFModel(model)
        guesser = _drafter(draft, target)
        # scores come out of the processors finished: a plain softmax of them is transformers' law
        sampling = Sampling(temperature=1 if generation_config.do_sample else 0, processors=tuple(logits_processor))
        guessing = sampling
        if draft_temperature is not None and generation_config.do_sample:
            guessing = Sampling(temperature=draft_temperature, processors=tuple(logits_processor))
        if streamer is not None and len(input_ids) > 1:
            raise DraftproofError(f"a streamer shows one text, here are {len(input_ids)}: leave one of the two out")
        prompts = _unpadded(input_ids, rest.get("attention_mask"))
        length = generation_config.max_length - input_ids.shape[1]
        seed = int(torch.randint(2**62, (1,)))  # follows torch.manual_seed, as transformers' own sampling does
        name = guesser.name if guesser else "none"
        drafts = [guesser] if guesser else []
        requests = [
            Request(
                target,
                prompt,
                sampling,
                guessing,
                length,
                (),
                Member(seed, r),
                Trace(rule.name, name),
                Auto("chain", assumed(target, drafts), hope=hope(drafts)) if paced else None,
            )
            for r, prompt in enumerate(prompts)
        ]
        for request, prompt in zip(requests, prompts, strict=True):
            request.until = _criteria(stopping_criteria, prompt, input_ids.device)
        capacity = _capacity(target, prompts, length, shape.size)
        batch = open_batch(target, drafts, rule, shape, (sampling, guessing), len(prompts), capacity, paced=paced)
        for _, same in itertools.groupby(requests, key=lambda request: request.prompt):
            batch.add(list(same))  # samples of one prompt share what they have in common
        while not batch.is_finished:
            batch.step()
            if streamer is not None:
                streamer.put(torch.tensor(requests[0].trace.steps[-1].tokens))
        if streamer is not None:
            streamer.end()
        return _output(input_ids, requests, generation_config)

    return method


def _refuse(config: Any, processors: Any, rest: dict[str, Any]) -> None:
    for name, fine in REFUSED.items():
        if getattr(config, name, None) not in fine:
            raise DraftproofError(
                f"{name}={getattr(config, name)!r} is not possible with custom_generate: leave it out"
            )
    for processor in processors:
        if type(processor).__name__ in STATEFUL:
            raise DraftproofError(f"{type(processor).__name__} keeps a state between tokens: it cannot judge guesses")
    cache = rest.get("past_key_values")
    if cache is not None and cache.get_seq_length() > 0:
        raise DraftproofError("past_key_values with a text in it is not supported: pass the whole text as input_ids")
    for name in ("inputs_embeds", "token_type_ids", "encoder_outputs"):
        if rest.get(name) is not None:
            raise DraftproofError(f"{name} is not supported: pass input_ids")
    if rest.get("synced_gpus"):
        raise DraftproofError("synced_gpus is not supported: run on one process")


def _drafter(draft: Any, target: HFModel) -> Model | None:
    if draft is None:
        return None
    if isinstance(draft, str):
        return drafter(draft, target)
    model: Model = HFModel(draft) if isinstance(draft, torch.nn.Module) else draft
    check_vocabularies(target, model)
    return model


def _unpadded(input_ids: torch.Tensor, mask: torch.Tensor | None) -> list[tuple[int, ...]]:
    """The prompts without the padding on their left."""
    rows = input_ids.tolist()
    if mask is None:
        return [tuple(row) for row in rows]
    return [
        tuple(t for t, m in zip(row, kept, strict=True) if m) for row, kept in zip(rows, mask.tolist(), strict=True)
    ]


def _criteria(criteria: Any, prompt: Sequence[int], device: torch.device) -> Callable[[Sequence[int]], bool]:
    """transformers' stopping criteria, asked after every token as in its own loop."""

    def until(tokens: Sequence[int]) -> bool:
        ids = torch.tensor([[*prompt, *tokens]], device=device)
        return bool(criteria(ids, None)[0])

    return until


def _capacity(target: HFModel, prompts: Sequence[Sequence[int]], length: int, draft: int) -> int:
    longest = max(map(len, prompts)) + length
    return min(longest, target.context or longest) + draft


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
