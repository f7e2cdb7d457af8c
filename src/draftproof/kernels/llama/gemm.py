# mypy: ignore-errors
"""Products of a small network as phases of one launch, with what comes before and after them.

A unit of work is some columns of the result, or some pairs of columns: gate and up of the same place, or what a rotary
position turns into each other. Many rows go through tensor cores, and a phase begins when all programs are done with
the one before; few rows have a way of their own (few.py).
"""

import triton
import triton.language as tl

from draftproof.kernels.llama.barrier import reach

STAGES: tl.constexpr = tl.constexpr(6)  # of a loop over weights: loads that are on their way at once


@triton.jit
def many(
    x, weight, norm, to, count, goal, R, N: tl.constexpr, K: tl.constexpr, END: tl.constexpr,
    H: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, BIASED: tl.constexpr, TILES: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, M: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """x [R, K] times weight [.., K], BN of N columns or pairs and M rows at a time, once all have come so far.

    norm   None, or of the rows of x, in which the gain already is: sums of squares [R, TILES], eps
    END    what becomes of the result; `to` is what that reads meanwhile, and where it goes:
           "turn"  pairs are turned, if they are not of values, and become queries or entries of the cache:
                   (cos, sin [R, D], own [R] slots),
                   (queries [R, H * D], keys, values [B, SHARED, room, D], bias, room, tokens of a row)
           "add"   columns are added to x [R, N]; x times the next norm's gain is kept too, and squares:
                   (x, gain), (x, gained [R, N], squares [R, TILES])
           "gate"  silu(first) * second of a pair: (), (out [R, N],)
    """
    tiles: tl.constexpr = (N + BN - 1) // BN
    TP: tl.constexpr = triton.next_power_of_2(TILES)
    unit = tl.program_id(0)
    reach(count, goal, PROGRAMS)
    while unit < tiles * tl.cdiv(R, M):
        j, n = columns(unit % tiles, N, D, BN, END)
        r, t = unit // tiles * M + tl.arange(0, M), tl.arange(0, TP)[None, :]
        both = (r < R)[:, None] & (j < N)[None, :]
        needs = need(to[0], r[:, None], n[None, :], both, N, END, H, SHARED, D)
        if norm is not None:
            inside = (r < R)[:, None] & (t < TILES)
            squares = tl.load(norm[0] + r[:, None] * TILES + t, mask=inside, other=0.0, cache_modifier=".cg")
        one, two = sums(x, weight, r, r < R, n, j < N, K, D // 2 if END == "turn" else N, END != "add", BN, BK, M)
        if norm is not None:
            root = tl.rsqrt(tl.sum(squares, 1) / K + norm[1])[:, None]
            one, two = one * root, two * root
        finish(one, two, to[1], needs, r[:, None], n[None, :], both, unit % tiles, N, END, H, SHARED, D, BIASED, BN)
        if END == "add":
            tally(one + needs[0], to[1], needs[1], r, n, both, r < R, unit % tiles, N, TILES)
        unit += PROGRAMS


@triton.jit
def sums(
    x, weight, r, row, n, column, K: tl.constexpr, APART: tl.constexpr, PAIRS: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Rows r [M] times columns n [BN] and, of pairs, n + APART -> [M, BN] twice."""
    one, two = tl.zeros((M, BN), tl.float32), tl.zeros((M, BN), tl.float32)
    for start in tl.range(0, K, BK, num_stages=STAGES):
        k = start + tl.arange(0, BK)[None, :]
        a = tl.load(x + r[:, None] * K + k, mask=row[:, None] & (k < K), other=0.0, cache_modifier=".cg")
        at, inside = weight + n[:, None] * K + k, column[:, None] & (k < K)
        w = tl.load(at, mask=inside, other=0.0)
        one = tl.dot(a, tl.trans(w), one, input_precision="ieee")  # float32 would be rounded to 10 bits
        if PAIRS:
            v = tl.load(at + APART * K, mask=inside, other=0.0)
            two = tl.dot(a, tl.trans(v), two, input_precision="ieee")
    return one, two


@triton.jit
def columns(tile, N: tl.constexpr, D: tl.constexpr, BN: tl.constexpr, END: tl.constexpr):
    """Numbers of columns or pairs, and the place of (the first of) each."""
    j = tile * BN + tl.arange(0, BN)
    n = j
    if END == "turn":
        n = j // (D // 2) * D + j % (D // 2)
    return j, n


@triton.jit
def need(given, r, n, both, N, END: tl.constexpr, H: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr):
    """What `say` and `finish` read, while the product is being made."""
    read = ()
    if END == "turn":
        cos, sin, own = given
        turns = both & (n < (H + SHARED) * D)
        c = tl.load(cos + r * D + n % D, mask=turns, other=1.0).to(tl.float32)
        s = tl.load(sin + r * D + D // 2 + n % D, mask=turns, other=0.0).to(tl.float32)
        read = (c, s, tl.load(own + r, mask=both, other=0))
    if END == "add":
        x, gain = given
        old = tl.load(x + r * N + n, mask=both, other=0.0, cache_modifier=".cg").to(tl.float32)
        read = (old, tl.load(gain + n, mask=both, other=0.0).to(tl.float32))
    return read


@triton.jit
def finish(
    one, two, to, read, r, n, both, tile, N, END: tl.constexpr, H: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr,
    BIASED: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Columns n of rows r, [M, BN]."""
    if END == "turn":
        queries, keys, values, bias, room, tokens = to
        one, two = turn(one, two, read, bias, n, both, D, BIASED)
        if tile * BN < H * (D // 2):
            at = queries + (r * (H * D) + n).to(tl.int64)
            tl.store(at, one.to(queries.dtype.element_ty), mask=both)
            tl.store(at + D // 2, two.to(queries.dtype.element_ty), mask=both)
        keep(one, two, keys, values, read[2], r, n, both, tile, room, tokens, H, SHARED, D, BN)
    if END == "gate":
        tl.store(to[0] + r * N + n, gated(one, two).to(to[0].dtype.element_ty), mask=both)
    if END == "add":
        tl.store(to[0] + r * N + n, (one + read[0]).to(to[0].dtype.element_ty), mask=both)


@triton.jit
def turn(one, two, read, bias, n, there, D: tl.constexpr, BIASED: tl.constexpr):
    """Pairs of columns, with their bias, turned by the angles that `need` has read."""
    c, s, _slot = read
    if BIASED:
        one += tl.load(bias + n, mask=there, other=0.0).to(tl.float32)
        two += tl.load(bias + n + D // 2, mask=there, other=0.0).to(tl.float32)
    return one * c - two * s, two * c + one * s


@triton.jit
def keep(
    one, two, keys, values, slot, r, n, there, tile, room, tokens,
    H: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Turned pairs as entries of the cache, if they are of keys or values."""
    head = tile * BN // (D // 2)  # of all columns, as BN divides D // 2
    if head >= H:
        out = keys
        if head >= H + SHARED:
            out = values
        at = ((r // tokens * SHARED + (head - H) % SHARED) * room + slot) * D + n % D
        tl.store(out + at, one.to(out.dtype.element_ty), mask=there)
        tl.store(out + at + D // 2, two.to(out.dtype.element_ty), mask=there)


@triton.jit
def gated(one, two):
    """silu(one) * two."""
    return one / (1.0 + tl.exp(-one)) * two


@triton.jit
def tally(new, to, gain, r, n, both, row, tile, N, TILES: tl.constexpr):
    """New columns [M, BN] of x, for the norm that follows: with its gain, and their squares."""
    x, gained, squares = to
    exact = tl.where(both, new.to(x.dtype.element_ty).to(tl.float32), 0.0)
    tl.store(gained + r[:, None] * N + n[None, :], (exact * gain).to(x.dtype.element_ty), mask=both)
    tl.store(squares + r * TILES + tile, tl.sum(exact * exact, 1), mask=row)
