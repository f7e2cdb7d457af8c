# mypy: ignore-errors
"""Matrix products of the megakernel on tensor cores, each fused with what comes before and after it.

A tile is some columns of the result, or some pairs of columns: gate and up of one place, or the two columns that a
rotary position mixes. A phase begins when all programs are done with the one before. One or two rows have products of
their own (gemv.py).
"""

import triton
import triton.language as tl

from draftproof.kernels.llama.barrier import wait_for

STAGES: tl.constexpr = tl.constexpr(6)  # of the loop over weights: loads in flight at once


@triton.jit
def gemm(
    x, weight, norm, to, count, goal, R, N: tl.constexpr, K: tl.constexpr, EPILOGUE: tl.constexpr,
    H: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BIASED: tl.constexpr, TILES: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, M: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """x [R, K] times weight [.., K], in tiles of M rows and BN of N columns or pairs, after `goal` arrivals.

    norm      None, or what normalises the rows of x, already multiplied by the gain: sums of squares [R, TILES], eps
    EPILOGUE  what becomes of the result; `to` is what it reads, loaded during the product, and where it goes:
              "rotate"    pairs are rotated, unless they are values, and become queries or cache entries:
                          (cos, sin [R, D], slots [R]),
                          (queries [R, H * D], keys, values [B, KV_HEADS, capacity, D], bias, capacity, tokens of a row)
              "residual"  columns are added to x [R, N]; x times the next norm's gain and squares are stored too:
                          (x, gain), (x, gained [R, N], squares [R, TILES])
              "gate"      silu(first) * second of a pair: (), (out [R, N],)
    """
    tiles: tl.constexpr = (N + BN - 1) // BN
    TP: tl.constexpr = triton.next_power_of_2(TILES)
    unit = tl.program_id(0)
    wait_for(count, goal, PROGRAMS)
    while unit < tiles * tl.cdiv(R, M):
        j, n = tile_columns(unit % tiles, N, D, BN, EPILOGUE)
        r, t = unit // tiles * M + tl.arange(0, M), tl.arange(0, TP)[None, :]
        both = (r < R)[:, None] & (j < N)[None, :]
        operands = load_operands(to[0], r[:, None], n[None, :], both, N, EPILOGUE, H, KV_HEADS, D)
        if norm is not None:
            inside = (r < R)[:, None] & (t < TILES)
            squares = tl.load(norm[0] + r[:, None] * TILES + t, mask=inside, other=0.0, cache_modifier=".cg")
        one, two = tile_product(
            x, weight, r, r < R, n, j < N, K, D // 2 if EPILOGUE == "rotate" else N, EPILOGUE != "residual", BN, BK, M
        )
        if norm is not None:
            root = tl.rsqrt(tl.sum(squares, 1) / K + norm[1])[:, None]
            one, two = one * root, two * root
        store_tile(
            one, two, to[1], operands, r[:, None], n[None, :], both, unit % tiles, N, EPILOGUE, H, KV_HEADS, D, BIASED,
            BN,
        )  # fmt: skip
        if EPILOGUE == "residual":
            store_norm_input(one + operands[0], to[1], operands[1], r, n, both, r < R, unit % tiles, N, TILES)
        unit += PROGRAMS


@triton.jit
def tile_product(
    x, weight, r, row, n, column, K: tl.constexpr, APART: tl.constexpr, PAIRS: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Rows r [M] times columns n [BN] and, for pairs, times columns n + APART: [M, BN] twice."""
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
def tile_columns(tile, N: tl.constexpr, D: tl.constexpr, BN: tl.constexpr, EPILOGUE: tl.constexpr):
    """Numbers of a tile's columns or pairs, and the column of (the first of) each."""
    j = tile * BN + tl.arange(0, BN)
    n = j
    if EPILOGUE == "rotate":
        n = j // (D // 2) * D + j % (D // 2)
    return j, n


@triton.jit
def load_operands(
    given, r, n, both, N, EPILOGUE: tl.constexpr, H: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """Load what the epilogue reads, while the product is being made."""
    read = ()
    if EPILOGUE == "rotate":
        cos, sin, slots = given
        rotates = both & (n < (H + KV_HEADS) * D)
        c = tl.load(cos + r * D + n % D, mask=rotates, other=1.0).to(tl.float32)
        s = tl.load(sin + r * D + D // 2 + n % D, mask=rotates, other=0.0).to(tl.float32)
        read = (c, s, tl.load(slots + r, mask=both, other=0))
    if EPILOGUE == "residual":
        x, gain = given
        old = tl.load(x + r * N + n, mask=both, other=0.0, cache_modifier=".cg").to(tl.float32)
        read = (old, tl.load(gain + n, mask=both, other=0.0).to(tl.float32))
    return read


@triton.jit
def store_tile(
    one, two, to, read, r, n, both, tile, N, EPILOGUE: tl.constexpr, H: tl.constexpr, KV_HEADS: tl.constexpr,
    D: tl.constexpr, BIASED: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Apply the epilogue to columns n of rows r, [M, BN], and store them."""
    if EPILOGUE == "rotate":
        queries, keys, values, bias, capacity, tokens = to
        one, two = rotate_pairs(one, two, read, bias, n, both, D, BIASED)
        if tile * BN < H * (D // 2):
            at = queries + (r * (H * D) + n).to(tl.int64)
            tl.store(at, one.to(queries.dtype.element_ty), mask=both)
            tl.store(at + D // 2, two.to(queries.dtype.element_ty), mask=both)
        store_entries(one, two, keys, values, read[2], r, n, both, tile, capacity, tokens, H, KV_HEADS, D, BN)
    if EPILOGUE == "gate":
        tl.store(to[0] + r * N + n, gated(one, two).to(to[0].dtype.element_ty), mask=both)
    if EPILOGUE == "residual":
        tl.store(to[0] + r * N + n, (one + read[0]).to(to[0].dtype.element_ty), mask=both)


@triton.jit
def rotate_pairs(one, two, read, bias, n, mask, D: tl.constexpr, BIASED: tl.constexpr):
    """Pairs of columns, with their bias, rotated by the angles of `load_operands`."""
    c, s, _slot = read
    if BIASED:
        one += tl.load(bias + n, mask=mask, other=0.0).to(tl.float32)
        two += tl.load(bias + n + D // 2, mask=mask, other=0.0).to(tl.float32)
    return one * c - two * s, two * c + one * s


@triton.jit
def store_entries(
    one, two, keys, values, slot, r, n, mask, tile, capacity, tokens,
    H: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write rotated pairs into the KV cache, if they are keys or values."""
    head = tile * BN // (D // 2)  # of all columns, as BN divides D // 2
    if head >= H:
        out = keys
        if head >= H + KV_HEADS:
            out = values
        at = ((r // tokens * KV_HEADS + (head - H) % KV_HEADS) * capacity + slot) * D + n % D
        tl.store(out + at, one.to(out.dtype.element_ty), mask=mask)
        tl.store(out + at + D // 2, two.to(out.dtype.element_ty), mask=mask)


@triton.jit
def gated(one, two):
    """silu(one) * two."""
    return one / (1.0 + tl.exp(-one)) * two


@triton.jit
def store_norm_input(new, to, gain, r, n, both, row, tile, N, TILES: tl.constexpr):
    """Store new columns [M, BN] of x as the next norm reads them: multiplied by its gain, and their squares."""
    x, gained, squares = to
    exact = tl.where(both, new.to(x.dtype.element_ty).to(tl.float32), 0.0)
    tl.store(gained + r[:, None] * N + n[None, :], (exact * gain).to(x.dtype.element_ty), mask=both)
    tl.store(squares + r * TILES + tile, tl.sum(exact * exact, 1), mask=row)
