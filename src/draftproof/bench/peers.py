"""Verification kernels of peers, for bench/kernels.py: PyTorch, and vLLM and FlashInfer if installed.

A peer gets what its engine would pass: raw target logits, and the drafter's logits (vLLM) or probabilities (others).
vLLM and FlashInfer may be wheels unpacked on the path without their dependencies: missing modules are replaced by
mocks, and a peer that still does not run is left out with a note.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import torch
from torch import Tensor

Call = Callable[[], Any]


class Input(NamedTuple):
    """One step's input in the forms that peers take."""

    target: Tensor  # [B, K + 1, V] logits
    draft: Tensor  # [B, K, V] logits
    q: Tensor  # [B, K, V] float32, the drafter's law
    tokens: Tensor  # [B, K]
    sampling: Any  # a Sampling of plain numbers


def eager(target: Tensor, q: Tensor, tokens: Tensor, sampling: Any) -> tuple[Tensor, Tensor]:
    """The token rule as it is commonly written in PyTorch, from logits and the draft's probabilities."""
    scores = target.float() / sampling.temperature
    if sampling.top_k or sampling.top_p < 1:
        ordered, ids = scores.sort(-1, descending=True)
        if sampling.top_k:
            ordered[..., sampling.top_k :] = float("-inf")
        share = ordered.softmax(-1)
        ordered = ordered.masked_fill(share.cumsum(-1) - share > sampling.top_p, float("-inf"))
        scores = torch.empty_like(scores).scatter_(-1, ids, ordered)
    p = scores.softmax(-1)
    if sampling.min_p:
        p = torch.where(p < sampling.min_p * p.amax(-1, keepdim=True), 0, p)
    drafts = tokens.shape[1]
    ratio = p[:, :-1].gather(-1, tokens[..., None])[..., 0] / q.gather(-1, tokens[..., None])[..., 0]
    accepted = (torch.rand_like(ratio) < ratio).int().cumprod(-1).sum(-1)
    rows = torch.arange(len(tokens), device=tokens.device)
    last = torch.where((accepted < drafts)[:, None], q[rows, accepted.clamp(max=drafts - 1)], 0)
    rest = (p[rows, accepted] - last).clamp_min(0)
    return accepted, (rest / torch.empty_like(rest).exponential_()).argmax(-1)


def calls(data: Input, compiled: bool) -> dict[tuple[str, str], Call]:
    """Every peer that supports this input, by name and rule."""
    plain = (data.target, data.q, data.tokens, data.sampling)
    by_name: dict[tuple[str, str], Call] = {("torch eager", "token"): lambda: eager(*plain)}
    if (
        compiled and data.sampling.top_p == 1 and not data.sampling.min_p
    ):  # a sort does not compile into anything better
        fast = torch.compile(eager, dynamic=False)
        by_name["torch.compile", "token"] = lambda: fast(*plain)
    if not data.sampling.min_p:
        for name, maker in (("vLLM", vllm), ("FlashInfer", flashinfer)):
            try:
                for rule, call in maker(data).items():
                    call()
                    by_name[name, rule] = call
            except ImportError:
                continue
            except Exception as error:  # a peer's failure should not lose the run
                print(f"note: {name} does not run here: {error!r:.200}", file=sys.stderr)
    return by_name


def vllm(data: Input) -> dict[str, Call]:
    """vLLM's rejection sampler (V2 model runner), with the casts and controls that run before it."""
    importlib.import_module("vllm")
    if not any(isinstance(finder, _Missing) for finder in sys.meta_path):
        sys.meta_path.append(_Missing())
    sampler = importlib.import_module("vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils").rejection_sample
    heat = importlib.import_module("vllm.v1.worker.gpu.sample.gumbel").apply_temperature
    cut = importlib.import_module("vllm.v1.sample.ops.topk_topp_triton").apply_top_k_top_p_triton
    batch, nodes, size = data.target.shape
    device, sampling = data.target.device, data.sampling
    starts = torch.arange(0, batch * nodes + 1, nodes, device=device, dtype=torch.int32)
    position = torch.arange(batch * nodes, device=device)
    index = torch.arange(batch, device=device, dtype=torch.int32)
    spread = index.repeat_interleave(nodes)
    local = torch.arange(nodes, device=device, dtype=torch.int32).repeat(batch)
    temperature = torch.full((batch,), float(sampling.temperature), device=device)
    seed = torch.arange(batch, device=device)
    top_k = torch.full((batch,), sampling.top_k, device=device, dtype=torch.int32) if sampling.top_k else None
    top_p = torch.full((batch,), sampling.top_p, device=device) if sampling.top_p < 1 else None
    fed = torch.nn.functional.pad(data.tokens, (1, 0)).reshape(-1).contiguous()

    def call(block: bool) -> Any:
        logits = data.target.view(-1, size).to(torch.float32)
        heat(logits, spread, temperature)
        if top_k is not None or top_p is not None:
            logits = cut(logits, *(None if each is None else each[spread] for each in (top_k, top_p)))
        return sampler(
            logits, data.draft, fed, starts, position, index, spread, local, temperature, seed, nodes - 1,
            use_block_verification=block,
        )  # fmt: skip

    return {"token": lambda: call(False), "block": lambda: call(True)}


def flashinfer(data: Input) -> dict[str, Call]:
    """FlashInfer's chain verification, from probabilities."""
    sampling = importlib.import_module("flashinfer.sampling")
    tokens = data.tokens.int()
    batch, nodes, size = data.target.shape
    if data.sampling.top_k:
        return {}

    def call() -> Any:
        p = torch.softmax(data.target.float() / data.sampling.temperature, -1)
        if data.sampling.top_p < 1:
            p = sampling.top_p_renorm_probs(p.view(-1, size), data.sampling.top_p).view(batch, nodes, size)
        return sampling.chain_speculative_sampling(data.q, tokens, p)

    return {"token": call}


class _Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook that replaces missing modules of vLLM by modules of mocks."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        missing = fullname.startswith("vllm.") and "vllm" in sys.modules
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if missing else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []

        def stand_in(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return MagicMock(name=name)

        module.__getattr__ = stand_in  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""
