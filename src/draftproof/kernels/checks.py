"""Check the arguments of the fused kernels by shape, type and device, without synchronising with the device."""

from __future__ import annotations

import torch
from torch import Tensor

from draftproof.errors import DraftproofError
from draftproof.kernels.types import CREST, Controls, NoiseKeys, Ragged, Summary


def fits(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, packed: bool = False
) -> None:
    """Check one tensor. Packed: it must also be contiguous, because the kernel does not take its strides."""
    if tensor.shape != shape or tensor.dtype != dtype or tensor.device != device:
        raise DraftproofError(
            f"{name} must be {[*shape]} of {dtype} on {device}, "
            f"not {[*tensor.shape]} of {tensor.dtype} on {tensor.device}"
        )
    if packed and not tensor.is_contiguous():
        raise DraftproofError(f"{name} must be contiguous, not with strides {tensor.stride()}")


def check_rows(*rows: Tensor) -> None:
    """Check raw logits [B, N, V] of any size."""
    for logits in rows:
        kinds = (torch.bfloat16, torch.float16, torch.float32)
        if logits.ndim != 3 or logits.stride(-1) != 1 or logits.dtype not in kinds:
            raise DraftproofError(
                f"logits must be [B, N, V] of bfloat16, float16 or float32 with adjacent tokens, "
                f"not {[*logits.shape]} of {logits.dtype} with strides {logits.stride()}"
            )


def check_first_rows(*rows: Tensor | Ragged | None) -> None:
    """Check where the sequences of ragged rows begin; that they lie inside is for the caller to know."""
    for ragged in rows:
        if isinstance(ragged, Ragged):
            fits("first", ragged.first, tuple(ragged.first.shape[:1]), torch.int64, ragged.rows.device, packed=True)


def check_drafts(tokens: Tensor, rows: Tensor, least: int) -> None:
    """Check draft tokens [B, K] beside rows [B, N, V]: K is at least `least`."""
    fits("tokens", tokens, (len(rows), max([least, *tokens.shape[-1:]])), torch.int64, rows.device)


def check_noise(noise: NoiseKeys, rows: Tensor) -> None:
    """Check the noise keys of the sequences of rows [B, N, V]."""
    for name, part in zip(NoiseKeys._fields, noise, strict=True):
        fits(f"noise.{name}", part, (len(rows),), torch.int64, rows.device, packed=True)


def check_controls(controls: Controls, rows: Tensor, masks: int | None = None, more: bool = True) -> None:
    """Check the controls of rows [B, N, V], with a mask for each row, or `masks` masks; `more`: or more of them."""
    (batch, count, size), device = rows.shape, rows.device
    column, table, word, real, double = (batch,), (batch, size), torch.int32, torch.float32, torch.float64
    for name, shape, dtype in (
        ("temperature", column, real), ("top_k", column, word), ("top_p", column, double), ("min_p", column, double),
        ("bias", table, real), ("penalties", (batch, 3), real), ("seen", table, word), ("made", table, word),
    ):  # fmt: skip
        if (part := getattr(controls, name)) is not None:
            fits(f"controls.{name}", part, shape, dtype, device, packed=True)
        elif name in ("seen", "made") and controls.penalties is not None:
            raise DraftproofError(f"penalties need counts of tokens: controls.{name} is None")
    if (allowed := controls.allowed) is not None:
        masks = count if masks is None else masks
        held = max([masks, *allowed.shape[1:2]]) if more else masks
        fits("controls.allowed", allowed, (batch, held, -(-size // 32)), word, device, packed=True)


def check_summary(name: str, summary: Summary | None, rows: Tensor) -> None:
    """Check the summaries of rows [B, N, V], if given: laid out as by `Summary.empty` and `Summary.at`."""
    if summary is None:
        return
    (batch, count, _), stride = rows.shape, summary.shift.stride(0)
    row, crest = ((batch, count), (stride, 1)), ((batch, count, CREST), (stride * CREST, CREST, 1))
    for field, part in zip(Summary._fields, summary, strict=True):
        if part is not None:
            shape, strides = row if field in Summary._fields[:4] else crest
            dtype = torch.int32 if field in ("first", "crest") else torch.float32
            fits(f"{name}.{field}", part, shape, dtype, rows.device)
            if part.stride() != strides:
                raise DraftproofError(f"{name}.{field} must have strides {strides}, not {part.stride()}")
