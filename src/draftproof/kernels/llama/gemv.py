# mypy: ignore-errors
# ruff: noqa: RUF005 (the language knows no other way to lengthen a tuple)
"""Products of few rows in a small network: by plain arithmetic, every warp has its own column.

Nothing is exchanged between warps, the weights are on their way before the rows are there, and these are told in words.
"""

import triton
import triton.language as tl

from draftproof.kernels.llama.gemm import columns, gated, keep, need, turn
from draftproof.kernels.llama.mailbox import look, missing, tell, told


@triton.jit
def few(
    words, weight, norm, to, N: tl.constexpr, K: tl.constexpr, END: tl.constexpr,
    H: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, BIASED: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, M: tl.constexpr, PROGRAMS: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Rows [M, K], told in `words`, times weight [.., K], BN of N columns or pairs at a time: no two warps share one.

    norm   None, or of the rows: gain [K], eps
    END    what becomes of the result, as for many rows, but that it is told:
           "turn"  (cos, sin, own), (words [M, (H + 2 * SHARED) * D], keys, values, bias, room, tokens of a row)
           "add"   what this program told before, to which columns are added: words [M, N], (words [M, N],)
           "gate"  (), (words [M, N],)
    """
    tiles: tl.constexpr = (N + BN - 1) // BN
    S: tl.constexpr = (K + BK - 1) // BK
    PAIRS: tl.constexpr = END != "add"
    APART: tl.constexpr = D // 2 if END == "turn" else N
    unit = tl.program_id(0)
    if END == "add":
        tl.debug_barrier()  # what other threads of this program have told is there for `needed`
    if unit < tiles:
        j, n = columns(unit, N, D, BN, END)
        w = pieces(weight + n[:, None] * K, (j < N)[:, None], K, BK)
        v = pieces(weight + (n + APART)[:, None] * K, ((j < N) & PAIRS)[:, None], K, BK)
        zero = 0 * n[:, None]
        if norm is not None:
            gain = pieces(norm[0] + zero, zero == 0, K, BK)
        needs = needed(to[0], n, j < N, N, END, H, SHARED, D, M, TYPE)
        heard = hear(words, M, K, BK)
        rows, roots = (), ()
        for i in tl.static_range(M * S):
            rows = rows + (tl.broadcast_to(told(heard[i], TYPE)[None, :], (BN, BK)),)
        if norm is not None:
            normed = ()
            for m in tl.static_range(M):
                squares = tl.zeros((BN, BK), tl.float32)
                for s in tl.static_range(S):
                    exact = rows[m * S + s].to(tl.float32)
                    squares += exact * exact
                    normed = normed + (exact * gain[s].to(tl.float32),)
                roots = roots + (tl.rsqrt(tl.sum(squares, 1) / K + norm[1]),)
            rows = normed
        while unit < tiles:
            j, n = columns(unit, N, D, BN, END)
            following, then = columns(unit + PROGRAMS, N, D, BN, END)
            next_w = pieces(weight + then[:, None] * K, (following < N)[:, None], K, BK)
            next_v = pieces(weight + (then + APART)[:, None] * K, ((following < N) & PAIRS)[:, None], K, BK)
            next_needs = needed(to[0], then, following < N, N, END, H, SHARED, D, M, TYPE)
            for m in tl.static_range(M):
                one, two = tl.zeros((BN, BK), tl.float32), tl.zeros((BN, BK), tl.float32)
                for s in tl.static_range(S):
                    one += rows[m * S + s].to(tl.float32) * w[s].to(tl.float32)
                    if PAIRS:
                        two += rows[m * S + s].to(tl.float32) * v[s].to(tl.float32)
                one, two = tl.sum(one, 1), tl.sum(two, 1)
                if norm is not None:
                    one, two = one * roots[m], two * roots[m]
                say(one, two, to[1], needs[m], m, n, j < N, unit, N, END, H, SHARED, D, BIASED, BN, TYPE)
            w, v, needs = next_w, next_v, next_needs
            unit += PROGRAMS


@triton.jit
def pieces(at, inside, K: tl.constexpr, BK: tl.constexpr):
    """Rows of K values from `at` [BN, 1] on, as [BN, BK] each."""
    made = ()
    for start in tl.static_range(0, K, BK):
        k = start + tl.arange(0, BK)[None, :]
        made = made + (tl.load(at + k, mask=inside & (k < K), other=0.0),)
    return made


@triton.jit
def needed(
    given, n, there, N, END: tl.constexpr, H: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, M: tl.constexpr,
    TYPE: tl.constexpr,
):  # fmt: skip
    """What `say` reads of each row."""
    read = ()
    for m in tl.static_range(M):
        if END == "add":
            read = read + (told(look(given + m * N + n, there), TYPE).to(tl.float32),)
        else:
            read = read + (need(given, m + 0 * n, n, there, N, END, H, SHARED, D),)
    return read


@triton.jit
def hear(words, M: tl.constexpr, K: tl.constexpr, BK: tl.constexpr):
    """Words of rows [M, K], in pieces [BK], when all are there."""
    found, lacks = glance(words, M, K, BK)
    while lacks > 0:
        found, lacks = glance(words, M, K, BK)
    return found


@triton.jit
def glance(words, M: tl.constexpr, K: tl.constexpr, BK: tl.constexpr):
    """Words of rows [M, K] as they are now, in pieces [BK], and whether any is missing."""
    found, every = (), tl.full((BK,), 1, words.dtype.element_ty)
    for m in tl.static_range(M):
        for start in tl.static_range(0, K, BK):
            k = start + tl.arange(0, BK)
            word = look(words + m * K + k, k < K)
            found, every = found + (word,), every & word
    return found, missing(every)


@triton.jit
def say(
    one, two, to, read, m, n, there, tile, N, END: tl.constexpr, H: tl.constexpr, SHARED: tl.constexpr,
    D: tl.constexpr, BIASED: tl.constexpr, BN: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Columns n [BN] of row m."""
    if END == "turn":
        words, keys, values, bias, room, tokens = to
        one, two = turn(one, two, read, bias, n, there, D, BIASED)
        at = words + m * ((H + 2 * SHARED) * D) + n
        tell(at, one, there, TYPE)
        tell(at + D // 2, two, there, TYPE)
        keep(one, two, keys, values, read[2], m + 0 * n, n, there, tile, room, tokens, H, SHARED, D, BN)
    if END == "gate":
        tell(to[0] + m * N + n, gated(one, two), there, TYPE)
    if END == "add":
        tell(to[0] + m * N + n, one + read, there, TYPE)
