# mypy: ignore-errors
"""Probabilities from scores on the device: the law of a row in six numbers."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from draftproof.kernels.types import Controls, Summary


class SummaryPtrs(NamedTuple):
    """The summaries of rows (types.Summary) in memory."""

    shift_ptr: Any = None
    scale_ptr: Any = None
    cutoff_ptr: Any = None  # None where no row is truncated
    first_ptr: Any = None  # None where no row is truncated or greedy
    crest_ptr: Any = None  # None where it was not asked for, or rows are truncated
    height_ptr: Any = None  # as crest_ptr
    stride: Any = 0  # rows from one sequence to the next

    @staticmethod
    def of(summary: Summary | None, controls: Controls) -> "SummaryPtrs":
        """The parts of a summary that these controls make kernels use."""
        if summary is None:
            return SummaryPtrs()
        cutoff = summary.cutoff if controls.truncates else None
        first = summary.first if controls.truncates or controls.greedy else None
        crest, height = (None, None) if controls.truncates else (summary.crest, summary.height)
        return SummaryPtrs(summary.shift, summary.scale, cutoff, first, crest, height, summary.shift.stride(0))


class LawPair(NamedTuple):
    """The two laws that verification compares, p of the target and q of the drafter: their logits and summaries."""

    rows: Any  # LogitRows of the target
    laws: Any  # SummaryPtrs of the target
    draft_rows: Any  # LogitRows of the drafter
    draft_laws: Any  # SummaryPtrs of the drafter


class RowLaw(NamedTuple):
    """The law of a row, or of several as vectors: p(v) = scale * 2 ** (rate * score_v - shift) of the tokens kept."""

    shift: Any
    scale: Any  # not positive: the row has no law
    cutoff: Any  # tokens with larger scores are kept, ...
    first: Any  # ... and of those with equal scores the ids from here on; of a greedy row this id alone
    rate: Any  # log2(e) / temperature
    greedy: Any


@triton.jit
def rate_of(rows, b):
    """log2(e) / temperature, so that exp2(rate * score) is a token's weight, or 1 for greedy rows; whether greedy."""
    temperature = tl.load(rows.temperature_ptr + b)
    greedy = temperature == 0
    return tl.where(greedy, 1.0, 1.4426950408889634 / tl.where(greedy, 1.0, temperature)), greedy


@triton.jit
def shift_of(peak, rate):
    """rate * peak, rounded: sums of 2 ** (rate * score - shift) then differ by powers of 2, which are exact."""
    return tl.where(peak == float("-inf"), 0.0, lane_shift(peak, rate))


@triton.jit
def lane_shift(peak, rate):
    """Like shift_of, but below every other shift where there is no token yet, so that a running sum can begin.

    Adding 1.5 * 2 ** 23 rounds to a whole number on the units that multiply; the units that round are busy with the
    exponentials, one for every token.
    """
    return tl.maximum(tl.fma(peak, rate, 12582912.0) - 12582912.0, -1e30)


@triton.jit
def load_law(rows, laws, b, n, mask):
    """The laws of rows n of sequence b."""
    i = b * laws.stride + n
    shift = tl.load(laws.shift_ptr + i, mask=mask, other=0.0)
    scale = tl.load(laws.scale_ptr + i, mask=mask, other=0.0)
    cutoff, first = shift, n * 0
    if laws.cutoff_ptr is not None:
        cutoff = tl.load(laws.cutoff_ptr + i, mask=mask, other=0.0)
    if laws.first_ptr is not None:
        first = tl.load(laws.first_ptr + i, mask=mask, other=0)
    rate, greedy = rate_of(rows, b)
    return RowLaw(shift, scale, cutoff, first, rate, greedy)


@triton.jit
def probability(laws, s, ids, law):
    """The probability of tokens `ids` with scores s under a RowLaw; `laws` says which of its numbers are in use."""
    p = tl.exp2(tl.fma(s, law.rate, -law.shift)) * law.scale
    if laws.cutoff_ptr is not None:
        p = tl.where((s > law.cutoff) | ((s == law.cutoff) & (ids >= law.first)), p, 0.0)
    if laws.first_ptr is not None:
        p = tl.where(law.greedy, ((ids == law.first) & (s > float("-inf"))).to(tl.float32), p)
    return p


@triton.jit
def scaled(law, factor):
    """The law times a factor."""
    return RowLaw(law.shift, law.scale * factor, law.cutoff, law.first, law.rate, law.greedy)


@triton.jit
def acceptance(p, q):
    """min(1, p / q), and 0 where q is 0."""
    return tl.where(q > 0, tl.minimum(p, q) / tl.where(q > 0, q, 1.0), 0.0)
