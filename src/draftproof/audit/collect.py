"""Collect transcripts from engines: ours, transformers' generate, vLLM, and any OpenAI-compatible server."""

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
# Neutral settings that are always sent. `samplers` is for llama.cpp, which otherwise truncates before the temperature.
NEUTRAL: dict[str, Any] = {
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
    verify: str = "auto",
    tree: Tree | None = None,
    max_new_tokens: int = 128,
    seed: int = 0,
    rows: int = 64,
) -> Iterator[Transcript]:
    """Sample from our own engine, up to `rows` texts per target call, each drafted for itself."""
    from draftproof.engine.request import Request, SampleKey
    from draftproof.engine.setup import Setup

    setup = Setup.of(target, draft, verify=verify, tree=tree or Tree.chain(5))
    samplings = setup.suited(sampling)
    rows = min(rows, len(prompts) * samples)
    scheduler = setup.scheduler(rows, max(map(len, prompts)) + max_new_tokens)
    waiting = deque(
        setup.request(prompt, samplings, max_new_tokens, SampleKey(seed, i), detokenize=False)  # only ids are recorded
        for i, prompt in enumerate(prompt for prompt in prompts for _ in range(samples))
    )
    running: deque[Request] = deque()
    while waiting or running:
        if waiting and 2 * scheduler.room >= rows:  # several at once: each prefill stalls all rows
            for request in [waiting.popleft() for _ in range(min(scheduler.room, len(waiting)))]:
                scheduler.add([request])
                running.append(request)
        scheduler.step()
        while running and running[0].finish:  # yield in the order of the requests, not in that in which they end
            request = running.popleft()
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
    """Sample from transformers' generate: plain, with an assistant model, or with prompt lookup of `lookup` tokens."""
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
    single = assistant is not None or lookup is not None or not settings["do_sample"]  # one text per call
    together = 1 if single else samples
    for prompt in prompts:
        for _ in range(samples // together):
            ids = torch.tensor([prompt], device=network.device)
            outputs = network.generate(
                ids, attention_mask=torch.ones_like(ids), num_return_sequences=together, pad_token_id=pad, **settings
            )
            for text in outputs[:, len(prompt) :].tolist():
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
    """Sample from an OpenAI-compatible server: POST `url`/completions with token ids as the prompt.

    The output's ids are taken from `token_ids` where the server gives them (vLLM does), else from the log
    probabilities (llama.cpp has ids there), else by tokenising the text again, which is then recorded. Every setting is
    sent, neutral ones too: servers have defaults of their own (llama.cpp top-k 40, vLLM the model's generation config).
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
            **NEUTRAL,
            "top_k": target.vocabulary,
            **_for_openai(dataclasses.replace(sampling, grammar=None)),
            **_structured(sampling),
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
    """Sample from vLLM in this process; `engine_settings` such as speculative_config go to its LLM unchanged."""
    try:
        from vllm import LLM, SamplingParams  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise DraftproofError("vllm is not installed here: install it, or collect from its server by URL") from error
    stated = suited(sampling, target)
    params = SamplingParams(n=samples, max_tokens=max_new_tokens, **_for_openai(sampling))
    inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    for prompt, answer in zip(
        prompts, LLM(model, seed=seed, **(engine_settings or {})).generate(inputs, params), strict=True
    ):
        for choice in answer.outputs:
            yield Transcript(prompt, tuple(choice.token_ids), stated)


def _for_transformers(sampling: Sampling) -> dict[str, Any]:
    """The settings under generate()'s names; what it does not support is an error, so that the laws cannot differ."""
    names = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
    _only(sampling, (*names, "repetition_penalty", "end_tokens"), "transformers' generate")
    off = Sampling()
    values = {name: getattr(sampling, name) for name in names}
    changed = {name: value for name, value in values.items() if value != getattr(off, name)}
    if sampling.temperature == 0:  # transformers rejects 0; greedy leaves nothing to truncate
        return {"do_sample": False, "repetition_penalty": sampling.repetition_penalty}
    # its default is top-k 50, so 0 has to be passed explicitly
    return {"do_sample": True, "top_k": 0, "repetition_penalty": sampling.repetition_penalty, **changed}


def _for_openai(sampling: Sampling) -> dict[str, Any]:
    """The settings under the names of OpenAI's completions and vLLM's extensions; defaults are left out."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    ends = ("end_tokens",) if sampling.end_tokens else ()  # servers disagree on what an empty list means
    _only(sampling, (*names, *ends), "a completions endpoint")
    off = Sampling()
    changed = {name: getattr(sampling, name) for name in names if getattr(sampling, name) != getattr(off, name)}
    return {"temperature": 1.0, **changed}  # some servers have another default


def _structured(sampling: Sampling) -> dict[str, Any]:
    """The grammar under vLLM's name for it."""
    if sampling.grammar is None:
        return {}
    kind, text = sampling.grammar.kind, sampling.grammar.text
    names = {"json_schema": "json", "json": "json", "regex": "regex", "choice": "choice", "lark": "grammar"}
    if kind not in names:
        raise DraftproofError(f"a completions endpoint takes no grammar of {kind}: leave it out to audit this engine")
    value = json.loads(text or "{}") if kind in ("json_schema", "json", "choice") else text
    return {"structured_outputs": {names[kind]: value}}


def _only(sampling: Sampling, names: Sequence[str], who: str) -> None:
    off = Sampling()
    for field in dataclasses.fields(Sampling):
        value = getattr(sampling, field.name)
        if (value != getattr(off, field.name) and field.name not in names) or callable(value):
            raise DraftproofError(f"{who} does not support {field.name}={value!r}: leave it out to audit this engine")


def _until_end(text: list[int], ends: Sequence[int]) -> Ids:
    """Cut the padding after the end token; the end token stays."""
    for i, token in enumerate(text):
        if token in ends:
            return tuple(text[: i + 1])
    return tuple(text)


def _chosen(choice: dict[str, Any], target: Model) -> tuple[Ids, bool]:
    """The token ids of one completion, and whether they come from tokenising its text again."""
    if choice.get("token_ids"):
        return tuple(choice["token_ids"]), False
    logprobs = choice.get("logprobs") or {}
    entries = logprobs.get("content") or []
    if entries and all(isinstance(entry.get("id"), int) for entry in entries):
        return tuple(entry["id"] for entry in entries), False
    named = logprobs.get("tokens") or []
    if named and all(name.startswith("token_id:") for name in named):
        return tuple(int(name.removeprefix("token_id:")) for name in named), False
    if target.tokenizer is None:
        raise DraftproofError(
            f"the server returns no token ids and {target.name!r} has no tokenizer: use a server that returns ids"
        )
    vocabulary = target.tokenizer.get_vocab()
    if named and all(name in vocabulary for name in named):
        return tuple(vocabulary[name] for name in named), False
    return tuple(target.tokenizer(choice.get("text", ""), add_special_tokens=False)["input_ids"]), True


def _post(url: str, body: dict[str, Any], key: str | None) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            reply = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        detail = error.read().decode(errors="replace").strip().splitlines()[:1]
        raise DraftproofError(
            f"{url} answered {error.code} ({''.join(detail)[:200]}): check model and settings"
        ) from error
    except (OSError, json.JSONDecodeError) as error:
        raise DraftproofError(
            f"no completions from {url} ({error}): check the address and that the server is running"
        ) from error
    if not isinstance(reply, dict):
        raise DraftproofError(
            f"{url} answered with {type(reply).__name__}, not an object: is this a completions server?"
        )
    return reply
