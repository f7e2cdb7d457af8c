"""One step of verification, the same for both of vLLM's model runners."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from draftproof import kernels
from draftproof.integrations.vllm import counters
from draftproof.integrations.vllm.requests import Mix
from draftproof.kernels import Controls, Emitted, NoiseKeys, Ragged, Summary

if TYPE_CHECKING:
    from draftproof.kernels.chain.workspace import Workspace
    from draftproof.kernels.lib.recording import Recordings


class ServedStep(NamedTuple):
    """What one step of B requests is verified from."""

    target: Ragged  # [B, N, V]
    draft: Ragged | None  # [B, N - 1, V]; None where draft tokens come without laws
    tokens: Tensor  # [B, N - 1] int64, -1 behind a draft's end
    controls: Controls
    draft_controls: Controls
    rule: Tensor  # [B] int32, ONEHOT where draft tokens come without laws
    noise: NoiseKeys
    drafted: Summary | None = None  # the laws of the draft's rows, where they are known


class Verification:
    """Verifies steps, counts what comes of it, and keeps the kernels' memory for the next step of the same shape."""

    def __init__(self, device: torch.device, writes: bool = True, backend: str = "auto") -> None:
        self.counters = counters.Counters(device, writes)
        self.backend = backend  # as in `kernels.verify`
        self._space: Workspace | None = None
        self._recordings: Recordings | None = None

    def __call__(self, step: ServedStep) -> tuple[Emitted, Tensor]:
        """How far each draft goes, and the token after it; and [B] how many tokens that makes.

        It is counted, but not yet published.
        """
        out = kernels.verify(
            step.target, step.draft, step.tokens, step.controls, step.rule, step.noise,
            drafted=step.drafted, draft_controls=step.draft_controls, expected=True, backend=self.backend,
            workspace=self._workspace(step.target),
        )  # fmt: skip
        reach = out.reach if out.reach is not None else torch.empty_like(step.tokens)  # None where nobody has a draft
        fused = self.fused(step.target.rows)
        return out, self.counters.add(step.rule, step.tokens, out.accepted, reach, out.fault, fused)

    def again(
        self,
        logits: Tensor,
        key: Hashable,  # all that the call depends on besides its inputs
        call: Callable[[], tuple[Tensor, ...]],  # which verifies one step
        inputs: Sequence[Tensor | None],
    ) -> tuple[Tensor, ...]:
        """What a call returns; where only kernels do its work, they are launched as they were the last time.

        Not inside a CUDA graph, which would outlive the recordings and their memory.
        """
        captures = logits.is_cuda and torch.cuda.is_current_stream_capturing()
        if not self.fused(logits) or captures or counters.warming_up():
            out = call()
        else:
            if self._recordings is None:
                from draftproof.kernels.lib.recording import Recordings

                self._recordings = Recordings()
            out = self._recordings(key, call, inputs)
        self.counters.publish()
        return out

    def fused(self, logits: Tensor) -> bool:
        """Whether kernels verify these logits."""
        return self.backend == "triton" or (
            self.backend == "auto" and logits.is_cuda and kernels.available(logits.device)
        )

    def _workspace(self, target: Ragged) -> Workspace | None:
        """The last step's if it fits. Only one is kept: it may have 200 MB, and vLLM leaves little memory free."""
        if not self.fused(target.rows):
            return None
        shape = (len(target.first), target.nodes, target.rows.shape[-1])
        if self._space is None or self._space.shape != shape:
            self._space = None  # freed before the next one is made, with the recordings that write to it
            if self._recordings is not None:
                self._recordings.clear()
            self._space = kernels.workspace(*shape, target.rows.device)
        return self._space


def controls_of(
    temperature: Tensor,  # [B]
    mix: Mix,
    *,
    top_k: Tensor | None = None,  # [B]; as vLLM has it: the vocabulary's size is off
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    vocabulary: int = 0,
) -> Controls:
    """Controls of a batch from columns of vLLM's; without the truncations, the laws are whole."""
    truncates = top_k is not None or top_p is not None or min_p is not None
    off = torch.zeros_like(temperature, dtype=torch.float64)
    return Controls(
        temperature.to(torch.float32).contiguous(),
        torch.zeros_like(temperature, dtype=torch.int32)
        if top_k is None
        else torch.where(top_k < vocabulary, top_k, 0).to(torch.int32),
        off + 1 if top_p is None else top_p.to(torch.float64),
        off if min_p is None else min_p.to(torch.float64),
        truncates=mix.truncates if truncates else 0,
        greedy=mix.greedy,
        whole=mix.whole or not truncates,
    )


def of_one_width(target: Ragged, draft: Ragged | None) -> tuple[Ragged, Ragged | None]:
    """Both with the larger vocabulary: a token that only one of them has is impossible in the other's law.

    Embeddings are padded to different sizes in a few pairs of models. Cutting the wider one instead would leave the
    drafter's law without the mass of what was cut off.
    """
    if draft is None or draft.rows.shape[-1] == target.rows.shape[-1]:
        return target, draft
    width = max(draft.rows.shape[-1], target.rows.shape[-1])
    wide = [
        each._replace(rows=torch.nn.functional.pad(each.rows, (0, width - each.rows.shape[-1]), value=-torch.inf))
        for each in (target, draft)
    ]
    return wide[0], wide[1]
