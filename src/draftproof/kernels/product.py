# mypy: ignore-errors
"""A linear layer for few rows, with what comes before and after it: the time it takes is that of reading its weights.

Norm before a product is free: the gain belongs to the columns and the root to the rows, so the root is known when the
sums are.
"""

import triton
import triton.language as tl

from draftproof.kernels.layer import begin_early


@triton.jit(do_not_specialize=["R", "eps"])
def product(
    x, weight, gain, bias, added, out, R, N, K, eps,
    GATE: tl.constexpr, RP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """BN columns of out [R, N] = x [R, K] times weight [N, K], at most RP rows.

    With a gain [K] the rows of x are normed first; bias [N] and added [R, N] are added. With GATE there are twice as
    many weights, and silu(first half) * second half is the result.
    """
    begin_early(EARLY)
    r, k = tl.arange(0, RP), tl.arange(0, BK)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    row, column = r < R, n < N
    sums, ups = tl.zeros((RP, BN), tl.float32), tl.zeros((RP, BN), tl.float32)
    squares = tl.zeros((RP,), tl.float32)
    from_x = x + r[:, None] * K + k[None, :]
    from_weight = weight + n.to(tl.int64)[:, None] * K + k[None, :]
    for start in tl.range(0, K, BK, num_stages=STAGES):
        inside = start + k < K
        a = tl.load(from_x + start, mask=row[:, None] & inside[None, :], other=0.0)
        some = column[:, None] & inside[None, :]
        w = tl.load(from_weight + start, mask=some, other=0.0, eviction_policy="evict_first")
        if gain is not None:
            exact = a.to(tl.float32)
            squares += tl.sum(exact * exact, 1)
            a = (exact * tl.load(gain + start + k, mask=inside, other=0.0).to(tl.float32)[None, :]).to(a.dtype)
        sums = tl.dot(a, tl.trans(w), sums, input_precision="ieee")
        if GATE:
            w = tl.load(from_weight + start + N.to(tl.int64) * K, mask=some, other=0.0, eviction_policy="evict_first")
            ups = tl.dot(a, tl.trans(w), ups, input_precision="ieee")
    if gain is not None:
        root = tl.rsqrt(squares / K + eps)[:, None]
        sums *= root
        ups *= root
    if GATE:
        sums = sums / (1.0 + tl.exp(-sums)) * ups
    if bias is not None:
        sums += tl.load(bias + n, mask=column, other=0.0).to(tl.float32)[None, :]
    at, some = r.to(tl.int64)[:, None] * N + n[None, :], row[:, None] & column[None, :]
    if added is not None:
        sums += tl.load(added + at, mask=some, other=0.0).to(tl.float32)
    tl.store(out + at, sums.to(out.dtype.element_ty), mask=some)
