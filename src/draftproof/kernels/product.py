# mypy: ignore-errors
"""A linear layer of a small network for few rows, with what comes before and after it.

Such a product takes less time than starting it and waiting for its weights. So norm, gate and residual are part of it,
and where the device allows it (programmatic dependent launch), a program begins while the kernel before it still runs:
it has its weights when what they are multiplied with is there.
"""

import triton
import triton.language as tl

from draftproof.kernels.device import next_may_begin, wait


@triton.jit
def times(a, w):
    """a [C, R, BK] and w [C, BN, BK] -> [R, BN]: every warp sums a part of the row."""
    return tl.sum(tl.dot(a, tl.permute(w, (0, 2, 1)), input_precision="ieee"), 0)


@triton.jit(do_not_specialize=["R", "eps"])
def product(
    x, weight, gain, bias, added, out, R, N, K, eps,
    GATE: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """BN columns of out [R, N] = x [R, K] times weight [N, K], R at most 16 and K at most C * BK.

    With a gain [K] the rows of x are normed first; bias [N] and added [R, N] are added. With GATE there are twice as
    many weights, and silu(first half) * second half is the result.
    """
    n, r = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, 16)
    k = tl.arange(0, C)[:, None] * BK + tl.arange(0, BK)[None, :]
    row, column, inside = r < R, n < N, k < K
    some = column[None, :, None] & inside[:, None, :]
    from_weight = weight + n[None, :, None] * K + k[:, None, :]
    w = tl.load(from_weight, mask=some, other=0.0)
    if GATE:
        v = tl.load(from_weight + N * K, mask=some, other=0.0)
    if gain is not None:
        g = tl.load(gain + k, mask=inside, other=0.0).to(tl.float32)
    next_may_begin(EARLY)
    wait(EARLY)
    a = tl.load(x + r[None, :, None] * K + k[:, None, :], mask=row[None, :, None] & inside[:, None, :], other=0.0)
    if gain is not None:
        # the gain belongs to the columns and the root to the rows, so the root may come after the sums
        exact = a.to(tl.float32)
        root = tl.rsqrt(tl.sum(tl.sum(exact * exact, 2), 0) / K + eps)[:, None]
        a = (exact * g[:, None, :]).to(a.dtype)
    sums = times(a, w)
    if gain is not None:
        sums *= root
    if GATE:
        ups = times(a, v)
        if gain is not None:
            ups *= root
        sums = sums / (1.0 + tl.exp(-sums)) * ups
    if bias is not None:
        sums += tl.load(bias + n, mask=column, other=0.0).to(tl.float32)[None, :]
    at, both = r[:, None] * N + n[None, :], row[:, None] & column[None, :]
    if added is not None:
        sums += tl.load(added + at, mask=both, other=0.0).to(tl.float32)
    tl.store(out + at, sums.to(out.dtype.element_ty), mask=both)
