# mypy: ignore-errors
"""Load rows of logits on the device and apply bias, penalties and masks: a token's score."""

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from draftproof.kernels.types import Controls


class LogitRows(NamedTuple):
    """Rows of raw logits and the controls that change them; a control that is None compiles to nothing."""

    logits_ptr: Any  # [B, N, V]
    stride_b: Any
    stride_n: Any
    vocabulary: Any  # V
    node: Any  # of the first row in its chain, `unspecialised`
    tokens_ptr: Any  # [B, K] the draft tokens
    drafts: Any  # K, `unspecialised`
    temperature_ptr: Any  # [B]
    bias_ptr: Any  # [B, V]
    penalties_ptr: Any  # [B, 3]
    seen_ptr: Any  # [B, V]
    made_ptr: Any  # [B, V]
    allowed_ptr: Any  # [B, mask_nodes, mask_words]
    mask_nodes: Any
    mask_words: Any
    first_row_ptr: Any  # [B] where each sequence's rows begin, in rows; None where they lie at equal distances

    @staticmethod
    def of(
        logits: Tensor | None, tokens: Tensor, controls: Controls, node: int = 0, first_row: Tensor | None = None
    ) -> "LogitRows":
        """Rows [B, N, V], of which the first is that of `node` in a chain of draft tokens [B, K]."""
        allowed = controls.allowed
        mask_nodes, mask_words = (0, 0) if allowed is None else (allowed.shape[1], allowed.shape[2])
        stride_b, stride_n, size = (
            (0, 0, 0) if logits is None else (logits.stride(0), logits.stride(1), logits.shape[-1])
        )
        return LogitRows(
            logits, stride_b, stride_n, size, unspecialised(node), tokens, unspecialised(tokens.shape[1]),
            controls.temperature, controls.bias, controls.penalties, controls.seen, controls.made,
            allowed, mask_nodes, mask_words, first_row,
        )  # fmt: skip


def unspecialised(number: int) -> int:
    """An argument that differs from call to call, as 2n + 3: Triton compiles anew for 1 and for multiples of 16."""
    return 2 * number + 3


@triton.jit
def value_of(argument):
    """The number that `unspecialised` was given."""
    return (argument - 3) // 2


@triton.jit
def is_needed(rows, b, n, DEFER_LAST: tl.constexpr):
    """Whether drafts lead to row n; with DEFER_LAST, and a draft follows it: the row after the last is read later."""
    needed = n == 0
    if DEFER_LAST:
        needed = tl.load(rows.tokens_ptr + b * value_of(rows.drafts) + n) >= 0
    elif n > 0:
        needed = tl.load(rows.tokens_ptr + b * value_of(rows.drafts) + value_of(rows.node) + n - 1) >= 0
    return needed


@triton.jit
def load_scores(rows, b, n, ids, mask=None):
    """Logits after bias, penalties and masks in float32; minus infinity outside `mask`, if one is given."""
    return apply_controls(rows, load_logits(rows, b, n, ids, mask), b, n, ids, mask)


@triton.jit
def load_logits(rows, b, n, ids, mask=None):
    """Raw logits; minus infinity outside `mask`, if one is given."""
    if rows.first_row_ptr is None:
        ptrs = rows.logits_ptr + b * rows.stride_b + n * rows.stride_n + ids
    else:
        ptrs = rows.logits_ptr + (tl.load(rows.first_row_ptr + b) + n) * rows.stride_n + ids
    # without a mask where none is needed: a select for every token is a tenth of the arithmetic
    return tl.load(ptrs) if mask is None else tl.load(ptrs, mask=mask, other=float("-inf"))


@triton.jit
def apply_controls(rows, s, b, n, ids, mask):
    """The scores of raw logits s."""
    s = s.to(tl.float32)
    if rows.bias_ptr is not None:
        s += tl.load(rows.bias_ptr + b * rows.vocabulary + ids, mask=mask)
    if rows.penalties_ptr is not None:
        seen = tl.load(rows.seen_ptr + b * rows.vocabulary + ids, mask=mask)
        made = tl.load(rows.made_ptr + b * rows.vocabulary + ids, mask=mask)
        for i in range(value_of(rows.drafts)):  # the drafts on the path to node n are part of its history
            hit = (ids == tl.load(rows.tokens_ptr + b * value_of(rows.drafts) + i)) & (i < n + value_of(rows.node))
            seen += hit.to(tl.int32)
            made += hit.to(tl.int32)
        repetition = tl.load(rows.penalties_ptr + 3 * b)
        penalised = tl.where(s < 0, s * repetition, tl.div_rn(s, tl.zeros_like(s) + repetition))
        s = tl.where(seen > 0, penalised, s)
        s -= tl.load(rows.penalties_ptr + 3 * b + 1) * (made > 0).to(tl.float32)
        s -= tl.load(rows.penalties_ptr + 3 * b + 2) * made.to(tl.float32)
    if rows.allowed_ptr is not None:
        mask_row = b * rows.mask_nodes + n + value_of(rows.node)
        word = tl.load(rows.allowed_ptr + mask_row * rows.mask_words + ids // 32, mask=mask)
        sound = s < float("inf")  # NaN and +inf are faults of the model: a mask must not hide them
        s = tl.where((((word >> (ids % 32)) & 1) == 0) & sound, float("-inf"), s)
    return s


@triton.jit
def element(x, k):
    """The element of the vector x at k; 0 where k is outside."""
    return tl.sum(tl.where(tl.arange(0, x.shape[0]) == k, x, 0), 0)
