"""Verification in vLLM's model runner V2, which is the GPU's: `RejectionSampler._verify` and `rejection_sample`.

Where the kernels know all controls of a batch, `_verify` is replaced and they read raw logits. Otherwise vLLM applies
its controls, and then calls `rejection_sample`, which is replaced as well.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from vllm.config.model import PROCESSED_LOGPROBS_MODES
from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample

from draftproof.integrations.vllm import drafting, layout
from draftproof.integrations.vllm.layout import SlotColumns, SlotLaws
from draftproof.integrations.vllm.requests import Mix, RequestChoice, choice, mix
from draftproof.integrations.vllm.verification import ServedStep, Verification, of_one_width
from draftproof.kernels import ChainRule, Controls, Emitted, NoiseKeys, Ragged

VLLM_PROCESSORS = 3  # bias, penalties, bad words; what comes after them is the user's own


class ChoiceSlots:
    """The choices of all requests by slot. It stands among the sampler's logits processors to hear of new requests."""

    def __init__(self, default: str, slots: int, device: torch.device) -> None:
        self.default = default
        self.choices: list[RequestChoice | None] = [None] * slots
        self.rule = torch.zeros(slots, dtype=torch.int32, device=device)
        self._host = np.zeros(slots, dtype=np.int32)
        self._changed = True
        self._mixed: tuple[bytes, Mix] | None = None  # of the last batch; the next one is often the same

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Whether the request needs this processor: never."""
        made = self.choices[req_idx] = choice(sampling_params, self.default)
        self._host[req_idx] = int(made.rule)
        self._changed, self._mixed = True, None
        return False

    def apply_staged_writes(self) -> None:
        """What was added reaches the device before the next step."""
        if self._changed:
            self.rule.copy_(layout.to_device(self._host, self.rule.device))
            self._changed = False

    def apply(self, logits: Tensor, context: Any) -> Tensor:
        return logits

    def mix(self, slots: Any) -> Mix:
        """Of the requests in these slots; vLLM's warm-up has some that never came."""
        key = slots.tobytes()
        if self._mixed is None or self._mixed[0] != key:
            known = [each for slot in slots.tolist() if (each := self.choices[slot]) is not None]
            unknown = Mix(raw=False, truncates=2, greedy=True, whole=True)
            self._mixed = key, mix(known) if len(known) == len(slots) else unknown
        return self._mixed[1]


class Now(NamedTuple):
    """The call of `_verify` that is going on."""

    mix: Mix
    undrafted: Any  # [B] bool on the host: which requests have no draft
    draft_sampled: Tensor  # [R] the token that each row was read with; -1 ends a draft


class SamplerServer:
    """Serves one `RejectionSampler`."""

    def __init__(self, sampler: Any, default: str, device: torch.device, verification: Verification) -> None:
        self.states = sampler.sampling_states
        self.use_fp64 = sampler.use_fp64_gumbel
        self.verification = verification
        self.fused = not (
            len(sampler.logits_processors) > VLLM_PROCESSORS
            or sampler.logprobs_mode in PROCESSED_LOGPROBS_MODES
            or sampler.return_sampling_mask
        )
        self.slots = ChoiceSlots(default, self.states.max_num_reqs, device)
        sampler.logits_processors.append(self.slots)
        slots = self.states.max_num_reqs
        self.undrafted = np.zeros(slots, dtype=bool)  # by slot, whether the request has no draft in this step
        # columns of nothing: a request number, and controls that are off
        self.zero = torch.zeros(slots, dtype=torch.int64, device=device)
        self.off = (
            torch.zeros(slots, dtype=torch.int32, device=device), torch.ones(slots, dtype=torch.float64, device=device),
            torch.zeros(slots, dtype=torch.float64, device=device),
        )  # fmt: skip
        self.onehot = torch.full((slots,), ChainRule.ONEHOT, dtype=torch.int32, device=device)
        self.now: Now | None = None

    def begin(self, batch: Any) -> None:
        """A step begins."""
        lengths = np.diff(batch.cu_num_logits_np[: len(batch.idx_mapping_np) + 1])
        self.undrafted[batch.idx_mapping_np] = lengths <= 1

    def call(self, arguments: dict[str, Any]) -> Now:
        """What is known on the host of a call of `_verify`, which has all of a step's requests or some of them."""
        slots, sampled = arguments["idx_mapping_np"], arguments["draft_sampled"]
        marked = arguments.get("verify_draft_sampled", sampled)
        if marked.data_ptr() != sampled.data_ptr():  # two views of one tensor where nothing is marked
            sampled = layout.ended_by_grammars(arguments["logits"], sampled, marked)
        return Now(self.slots.mix(slots), self.undrafted[slots], sampled)

    def verify(
        self,
        now: Now,
        logits: Tensor,  # [R, V]
        draft_logits: Tensor | None,  # [M, K, V]
        starts: Tensor,  # [B + 1]
        position: Tensor,  # [R]
        slot: Tensor,  # [B]
        depth: int,  # K
        processed: bool,  # whether vLLM has applied its controls
    ) -> tuple[Tensor, Tensor]:
        """The sampled tokens [B, K + 1] and how many of them there are [B]."""
        nodes, states = min(depth + 1, len(logits)), self.states
        columns = SlotColumns(
            states.temperature.gpu, states.top_k.gpu, states.top_p.gpu, states.min_p.gpu, states.seeds.gpu,
            self.onehot if draft_logits is None else self.slots.rule,
        )  # fmt: skip

        laws = drafting.laws_of(draft_logits)

        def call() -> tuple[Tensor, Tensor]:
            out, number = self._call(now, logits, draft_logits, laws, columns, starts, position, slot, nodes, processed)
            return out.tokens, number

        inputs = (logits, draft_logits, starts, position, slot, now.draft_sampled, *columns, *(laws or ()))
        tokens, number = self.verification.again(logits, (now.mix, nodes, processed), call, inputs)
        if nodes <= depth:
            tokens = torch.nn.functional.pad(tokens, (0, depth + 1 - nodes), value=-1)
        if now.undrafted.any():
            self._undrafted(now, tokens, logits, starts, position, slot)
        return tokens, number

    def _call(
        self, now: Now, logits: Tensor, draft_logits: Tensor | None, laws: SlotLaws | None, columns: SlotColumns,
        starts: Tensor, position: Tensor, slot: Tensor, nodes: int, processed: bool,
    ) -> tuple[Emitted, Tensor]:  # fmt: skip
        """Verification, of nothing but tensors that vLLM has and the laws of its drafts."""
        gather = layout.slot_step
        if self.verification.fused(logits):
            from draftproof.integrations.vllm import launches

            gather = functools.partial(launches.slot_step, laws=laws)
        step = gather(
            columns, slot, starts, position, now.draft_sampled, nodes=nodes,
            depth=0 if draft_logits is None else draft_logits.shape[1], vocabulary=logits.shape[-1],
            truncates=bool(now.mix.truncates), processed=processed,
        )  # fmt: skip
        target = Ragged(logits, step.first, nodes)
        draft = None
        if draft_logits is not None:
            draft = Ragged(layout.slot_rows(draft_logits), step.draft_first, nodes - 1)
        target, draft = of_one_width(target, draft)
        # each step commits a token, so that the position at its beginning is a number of the step
        noise = NoiseKeys(step.seed, self.zero[: len(slot)], step.position)
        top_k, top_p, min_p = (column[: len(slot)] for column in self.off)
        drawn = Controls(step.temperature, top_k, top_p, min_p, greedy=now.mix.greedy)  # as vLLM draws drafts
        controls = drawn._replace(temperature=step.target_temperature)
        if now.mix.truncates and not processed:
            controls = Controls(
                step.temperature, step.top_k, step.top_p, step.min_p,
                truncates=now.mix.truncates, greedy=now.mix.greedy, whole=now.mix.whole,
            )  # fmt: skip
        return self.verification(
            ServedStep(target, draft, step.tokens, controls, drawn, step.rule, noise, step.drafted)
        )

    def _undrafted(
        self, now: Now, tokens: Tensor, logits: Tensor, first: Tensor, position: Tensor, slot: Tensor
    ) -> None:
        """Requests without a draft get what vLLM samples: with a seed, the same whoever else drafts."""
        index = layout.to_device(np.flatnonzero(now.undrafted), tokens.device)
        rows = first[index]
        tokens[index, 0] = gumbel_sample(
            logits[rows], slot[index], self.states.temperature.gpu, self.states.seeds.gpu, position[rows],
            apply_temperature=False, is_drafting=False, use_fp64=self.use_fp64,
        )  # fmt: skip


def install_call(original: Callable[..., Any], served: Callable[[Any], SamplerServer | None]) -> Any:
    """`RejectionSampler.__call__` as it is to be."""

    def draftproof_call(self: Any, logits: Any, input_batch: Any, *arguments: Any, **named: Any) -> Any:
        if (server := served(self)) is not None:
            server.begin(input_batch)
        return original(self, logits, input_batch, *arguments, **named)

    return draftproof_call


def install_verify(original: Callable[..., Any], served: Callable[[Any], SamplerServer | None]) -> Any:
    """`RejectionSampler._verify` as it is to be."""
    signature = inspect.signature(original)

    def draftproof_verify(self: Any, *arguments: Any, **named: Any) -> Any:
        server = served(self)
        if server is None:
            return original(self, *arguments, **named)
        values = signature.bind(self, *arguments, **named).arguments
        server.now = now = server.call(values)
        try:
            # what a request without a draft gets is sampled by vLLM, which needs its own controls applied
            if server.fused and now.mix.raw and not now.undrafted.any():
                sampled, count = server.verify(
                    now, values["logits"], values["draft_logits"], values["cu_num_logits"], values["pos"],
                    values["idx_mapping"], self.num_speculative_steps, processed=False,
                )  # fmt: skip
                return values["logits"], sampled, count
            _CURRENT.append(server)
            try:
                return original(self, *arguments, **named)
            finally:
                _CURRENT.pop()
        finally:
            server.now = None

    return draftproof_verify


_CURRENT: list[SamplerServer] = []  # whose `_verify` is calling `rejection_sample`


def install_sample(original: Callable[..., Any]) -> Any:
    """`rejection_sample` as it is to be, where `_verify` looks for it."""
    signature = inspect.signature(original)

    def draftproof_rejection_sample(*arguments: Any, **named: Any) -> Any:
        if not _CURRENT or (now := _CURRENT[-1].now) is None:
            return original(*arguments, **named)
        values = signature.bind(*arguments, **named).arguments
        return _CURRENT[-1].verify(
            now, values["target_logits"], values["draft_logits"], values["cu_num_logits"], values["pos"],
            values["idx_mapping"], values["num_speculative_steps"], processed=True,
        )  # fmt: skip

    return draftproof_rejection_sample
