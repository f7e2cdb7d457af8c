"""Transcripts from engines: ours, transformers' generate, vLLM, and anything that speaks OpenAI's completions."""

from __future__ import annotations

import dataclasses
import json
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from draftproof.audit.transcripts import Transcript
from draftproof.draft import Tree
from draftproof.engine.arguments import suited
from draftproof.errors import DraftproofError
from draftproof.models.base import Model
from draftproof.sampling import Sampling

Ids = tuple[int, ...]
# What a server is told where nothing is asked for. `samplers` is for llama.cpp, which else truncates before it heats.
AT_REST: dict[str, Any] = {
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
}


def engine(
    target: Model,
    prompts: Sequence[Ids],
    sampling: Sampling,
    *,
    samples: int = 1,
    draft: Model | None = None,
    verify: str = "block",
    tree: Tree | None = None,
    max_new_tokens: int = 128,
    seed: int = 0,
    rows: int = 64,
) -> Iterator[Transcript]:
    """Our own engine, up to `rows` texts in each target call, every text with a row and a draft of its own."""
    from draftproof.engine.request import Request, SampleKey
    from draftproof.engine.setup import Setup

    setup = Setup.of(target, draft, verify=verify, tree=tree or Tree.chain(5))
    samplings = setup.suited(sampling)
    rows = min(rows, len(prompts) * samples)
    scheduler = setup.scheduler(rows, max(map(len, prompts)) + max_new_tokens)
    wanted = deque(
        setup.request(prompt, samplings, max_new_tokens, SampleKey(seed, i), detokenize=False)  # nobody reads the words
        for i, prompt in enumerate(prompt for prompt in prompts for _ in range(samples))
    )
    begun: deque[Request] = deque()
    while wanted or begun:
        if wanted and 2 * scheduler.room >= rows:  # read together: one by one each prompt would make all others wait
            for request in [wanted.popleft() for _ in range(min(scheduler.room, len(wanted)))]:
                scheduler.add([request])
                begun.append(request)
        scheduler.step()
        while begun and begun[0].finish:  # in the order in which they were asked for, not that in which they ended
            request = begun.popleft()
            steps = request.trace.steps
            flags = tuple(i < step.accepted for step in steps for i in range(len(step.tokens)))
            yield Transcript(request.prompt, tuple(request.tokens), samplings[0], flags)


def transformers(
    target: Any,
    prompts: Sequence[Ids],
    sampling: Sampling,
    *,
    samples: int = 1,
    assistant: Any = None,
    lookup: int | None = None,
    max_new_tokens: int = 128,
    seed: int = 0,
) -> Iterator[Transcript]:
    """transformers' generate: plain, with an assistant model, or with prompt lookup of `lookup` tokens."""
    import torch

    network, stated = target.network, suited(sampling, target)
    settings: dict[str, Any] = {**_for_transformers(sampling), "max_new_tokens": max_new_tokens}
    settings["eos_token_id"] = list(stated.ends)
    if assistant is not None:
        settings["assistant_model"] = assistant.network
    if lookup is not None:
        settings["prompt_lookup_num_tokens"] = lookup
    pad = (target.end_tokens or (0,))[0]
    torch.manual_seed(seed)
    alone = assistant is not None or lookup is not None or not settings["do_sample"]  # these write a text at a time
    together = 1 if alone else samples
    for prompt in prompts:
        for _ in range(samples // together):
            ids = torch.tensor([prompt], device=network.device)
            made = network.generate(
                ids, attention_mask=torch.ones_like(ids), num_return_sequences=together, pad_token_id=pad, **settings
            )
            for text in made[:, len(prompt) :].tolist():
                yield Transcript(prompt, _until_end(text, stated.ends), stated)


def endpoint(
    url: str,
    model: str,
    target: Model,
    prompts: Sequence[Ids],
    sampling: Sampling,
    *,
    samples: int = 1,
    max_new_tokens: int = 128,
    key: str | None = None,
) -> Iterator[Transcript]:
    """An OpenAI-compatible server: POST `url`/completions with token ids as the prompt.

    The output's ids are taken from `token_ids` where the server gives them (vLLM does), else from the log
    probabilities (llama.cpp has ids there), else made from the text again, and then marked so. Every setting is sent,
    those at rest too: servers have defaults of their own (llama.cpp top-k 40, vLLM what the model's folder says).
    """
    stated = suited(sampling, target)
    for prompt in prompts:
        body = {
            "model": model,
            "prompt": list(prompt),
            "n": samples,
            "max_tokens": max_new_tokens,
            "logprobs": 1,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            **AT_REST,
            "top_k": target.vocabulary,
            **_for_openai(sampling),
        }
        for choice in _post(f"{url.rstrip('/')}/completions", body, key).get("choices", []):
            output, retokenised = _chosen(choice, target)
            ends = stated.ends
            if (
                choice.get("finish_reason") == "stop"
                and output[-1:] != ()
                and output[-1] not in ends
                and len(ends) == 1
            ):
                output = (*output, ends[0])
            if output:
                yield Transcript(prompt, output, stated, retokenised=retokenised)


def vllm(
    model: str,
    target: Model,
    prompts: Sequence[Ids],
    sampling: Sampling,
    *,
    samples: int = 1,
    max_new_tokens: int = 128,
    seed: int = 0,
    engine_settings: Mapping[str, Any] | None = None,
) -> Iterator[Transcript]:
    """vLLM in this process; `engine_settings` such as speculative_config go to its LLM unchanged."""
    try:
        from vllm import LLM, SamplingParams  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise DraftproofError("vllm is not installed here: install it, or collect from its server by URL") from error
    stated = suited(sampling, target)
    params = SamplingParams(n=samples, max_tokens=max_new_tokens, **_for_openai(sampling))
    asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    for prompt, answer in zip(
        prompts, LLM(model, seed=seed, **(engine_settings or {})).generate(asked, params), strict=True
    ):
        for choice in answer.outputs:
            yield Transcript(prompt, tuple(choice.token_ids), stated)


def _for_transformers(sampling: Sampling) -> dict[str, Any]:
    """generate()'s names; what it cannot do is an error rather than a difference in law."""
    names = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
    _only(sampling, (*names, "repetition_penalty", "end_tokens"), "transformers' generate")
    off = Sampling()
    values = {name: getattr(sampling, name) for name in names}
    kept = {name: value for name, value in values.items() if value != getattr(off, name)}
    if sampling.temperature == 0:  # refused there by number; one token is left, so there is nothing to truncate
        return {"do_sample": False, "repetition_penalty": sampling.repetition_penalty}
    # its default is top-k 50, so "off" must be said
    return {"do_sample": True, "top_k": 0, "repetition_penalty": sampling.repetition_penalty, **kept}


def _for_openai(sampling: Sampling) -> dict[str, Any]:
    """The names of OpenAI's completions and vLLM's additions to them; settings at rest are left out."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    ends = ("end_tokens",) if sampling.end_tokens else ()  # servers do not agree on what it is to have none
    _only(sampling, (*names, *ends), "a completions endpoint")
    off = Sampling()
    made = {name: getattr(sampling, name) for name in names if getattr(sampling, name) != getattr(off, name)}
    return {"temperature": 1.0, **made}  # some servers have another default


def _only(sampling: Sampling, names: Sequence[str], who: str) -> None:
    off = Sampling()
    for field in dataclasses.fields(Sampling):
        value = getattr(sampling, field.name)
        if (value != getattr(off, field.name) and field.name not in names) or callable(value):
            raise DraftproofError(f"{who} has no {field.name}={value!r}: leave it out to audit this engine")


def _until_end(text: list[int], ends: Sequence[int]) -> Ids:
    """A text without the padding after its end; the end token stays."""
    for i, token in enumerate(text):
        if token in ends:
            return tuple(text[: i + 1])
    return tuple(text)


def _chosen(choice: dict[str, Any], target: Model) -> tuple[Ids, bool]:
    """Ids of one completion, and whether they had to be made from its text."""
    if choice.get("token_ids"):
        return tuple(choice["token_ids"]), False
    told = choice.get("logprobs") or {}
    entries = told.get("content") or []
    if entries and all(isinstance(entry.get("id"), int) for entry in entries):
        return tuple(entry["id"] for entry in entries), False
    named = told.get("tokens") or []
    if named and all(name.startswith("token_id:") for name in named):
        return tuple(int(name.removeprefix("token_id:")) for name in named), False
    if target.tokenizer is None:
        raise DraftproofError(f"the server gave no token ids and {target.name!r} has no tokenizer: audit another way")
    vocabulary = target.tokenizer.get_vocab()
    if named and all(name in vocabulary for name in named):
        return tuple(vocabulary[name] for name in named), False
    return tuple(target.tokenizer(choice.get("text", ""), add_special_tokens=False)["input_ids"]), True


def _post(url: str, body: dict[str, Any], key: str | None) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            said = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        detail = error.read().decode(errors="replace").strip().splitlines()[:1]
        raise DraftproofError(
            f"{url} answered {error.code} ({''.join(detail)[:200]}): check model and settings"
        ) from error
    except (OSError, json.JSONDecodeError) as error:
        raise DraftproofError(f"no completions from {url} ({error}): check the address and that it runs") from error
    if not isinstance(said, dict):
        raise DraftproofError(
            f"{url} answered with {type(said).__name__}, not an object: is this a completions server?"
        )
    return said
