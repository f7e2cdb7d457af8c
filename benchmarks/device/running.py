"""Write the texts of a case on a device, by the door that it names."""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.device.cases import TUNED, Case
from benchmarks.device.models import drafter, target, transformers_network
from draftproof import Anneal, Engine, Sampling, Tree, custom_generate, generate, stream
from draftproof.engine.setup import Setup

LENGTH = 24  # tokens of a text
PAD = 257


class Written(NamedTuple):
    """A text, and whether it went on to its end."""

    prompt: tuple[int, ...]
    tokens: list[int]
    is_whole: bool = True


def unlike_the_last(ids: Any, scores: Any) -> Any:
    """A processor: no token twice in a row; of arrays of either library."""
    scores = scores + 0
    for row, last in enumerate(ids[:, -1].tolist()):
        scores[row, last] = -math.inf
    return scores


CONTROLS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.8},
    "greedy": {"temperature": 0},
    "top_k": {"top_k": 20},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.05},
    "typical_p": {"typical_p": 0.7},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    "bias": {"logit_bias": {65: 2.0, 66: -2.0}},
    "masks": {"banned": range(100, 140)},
    "schedule": {"temperature": Anneal(1.2, 0.4, over=10)},
    "processor": {"processors": [unlike_the_last], "temperature": 0.7},
}
# The same as transformers' generate has it, where the names differ.
THEIRS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "bias": {"sequence_bias": {(65,): 2.0, (66,): -2.0}},
    "masks": {"suppress_tokens": list(CONTROLS["masks"]["banned"])},
    "penalties": {"repetition_penalty": 1.3},
    "processor": {"logits_processor": [unlike_the_last], "temperature": 0.7},
}


def sampling_of(case: Case) -> Sampling:
    """The law that the texts of a case follow."""
    chosen = CONTROLS[case.control]
    if case.door == "custom_generate" and case.control == "penalties":
        chosen = THEIRS["penalties"]
    return Sampling(**chosen, end_tokens=())


@cache
def prompts(case: Case) -> list[list[int]]:
    """A prompt for each text of the batch, all different; the first has the case's length."""
    chance = np.random.default_rng(case.prompt)
    words = chance.permutation(94).tolist() * (case.prompt // 94 + 1)
    lengths = [case.prompt, *(max(1, min(case.prompt, 300) - 7 * i) for i in range(1, case.batch))]
    return [[33 + word for word in words[i:] + words[:i]][:length] for i, length in enumerate(lengths)]


def write(case: Case, dtype: str, device: str, seed: int | None) -> list[Written]:
    """All texts of a case; raises if drafting was given up in one of them.

    Without a seed every text has noise of its own, as the test of a law needs it.
    """
    return {"engine": _engine, "custom_generate": _custom}.get(case.door, _generate)(case, dtype, device, seed)


def by_graph(case: Case, device: str) -> bool:
    """Whether the graph stepper serves the case."""
    host = target(case.family, case.dtype, device)
    kind = _kind(case, case.dtype, device)
    setup = Setup.of(host, kind["draft"], verify=kind["verify"], tree=kind["tree"], repeatable=case.rule != TUNED)
    return setup.uses_graph(setup.suited(sampling_of(case)), case.batch)


def _kind(case: Case, dtype: str, device: str) -> dict[str, Any]:
    verify = "auto" if case.rule == TUNED else case.rule
    return {"draft": drafter(case.draft, case.family, dtype, device), "verify": verify, "tree": case.tree}


def _generate(case: Case, dtype: str, device: str, seed: int | None) -> list[Written]:
    host, asked = target(case.family, dtype, device), prompts(case)
    settings = {**_kind(case, dtype, device), "sampling": sampling_of(case), "max_new_tokens": LENGTH}
    settings |= {"seed": seed, "chat": False}
    if case.door == "stream":
        writing = stream(host, asked[0], **settings)
        pieces = "".join(piece.text for piece in writing)
        if host.tokenizer is not None and pieces != writing.output.text:
            raise AssertionError(f"the pieces of the stream are {pieces!r} and its text is {writing.output.text!r}")
        return [_checked(asked[0], writing.output)]
    if case.door == "samples":
        return [_checked(asked[0], output) for output in generate(host, asked[0], n=case.batch, **settings)]
    return [_checked(ids, output) for ids, output in zip(asked, generate(host, asked, **settings), strict=True)]


def _checked(prompt: Any, output: Any) -> Written:
    if output.trace.failures:
        raise AssertionError(f"drafting was given up: {next(iter(output.trace.failures))}")
    return Written(tuple(prompt), output.tokens, output.finish in ("length", "context"))


def _engine(case: Case, dtype: str, device: str, seed: int | None) -> list[Written]:
    """Requests for half as many rows; some come later, and in a batch one is cancelled in the middle."""
    host, asked = target(case.family, dtype, device), prompts(case)
    engine = Engine(host, **_kind(case, dtype, device), rows=max(1, case.batch // 2), length=case.prompt + 2 * LENGTH)
    add = partial(engine.add_request, sampling=sampling_of(case), max_new_tokens=LENGTH, chat=False)
    waiting = [partial(add, ids, seed=None if seed is None else seed + i) for i, ids in enumerate(asked)]
    requests = [waiting.pop(0)() for _ in range((len(waiting) + 1) // 2)]
    while waiting or not engine.is_finished:
        engine.step()
        if waiting:
            requests.append(waiting.pop(0)())
        if len(requests) > 1 and len(requests[1].tokens) > 3:
            engine.cancel(requests[1])
    return [_checked(request.prompt, request.output) for request in requests]


def _custom(case: Case, dtype: str, device: str, seed: int | None) -> list[Written]:
    """transformers' own `generate` with our loop in it."""
    network, asked = transformers_network(case.family, dtype, device), prompts(case)
    width = max(map(len, asked))
    ids = torch.tensor([[PAD] * (width - len(one)) + one for one in asked], device=device)
    lengths = torch.tensor([len(one) for one in asked], device=device)
    mask = (torch.arange(width, device=device) >= width - lengths[:, None]).long()
    draft: Any = None if case.draft == "none" else case.draft
    if draft == "model":
        draft = transformers_network(case.family, dtype, device, 0.1)
    rule = "auto" if case.rule == TUNED else case.rule
    how = custom_generate(draft, verify=rule, tree=None if case.tree is None else Tree.parse(case.tree))
    controls = {"do_sample": True, "top_k": 0, **THEIRS.get(case.control, CONTROLS[case.control])}
    if seed is not None:
        torch.manual_seed(seed)
    found = network.generate(
        ids, attention_mask=mask, max_new_tokens=LENGTH, pad_token_id=PAD, custom_generate=how, **controls
    )
    return [Written(tuple(one), row[width:].tolist()) for one, row in zip(asked, found, strict=True)]
