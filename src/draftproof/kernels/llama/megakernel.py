# mypy: ignore-errors
"""All layers of a small Llama network in one launch, for calls of few tokens: persistent threads (Gupta et al. 2012).

A drafter's weights are read in less time than its kernels take to begin and end, one after the other. Here as many
programs as the device has processors stay until the last layer is done, and wait for each other's numbers five times
a layer.
"""

import triton
import triton.language as tl

from draftproof.kernels.llama.attention import is_above, join
from draftproof.kernels.llama.barrier import arrive, reach
from draftproof.kernels.llama.gemm import many
from draftproof.kernels.llama.gemv import few
from draftproof.kernels.llama.mailbox import look, missing, tell, told

# columns of a network's table of addresses, which has a row for each layer
QKV, OUT, GATE_UP, DOWN, NORM_IN, NORM_MLP, KEYS, VALUES, BIAS, COLUMNS = (tl.constexpr(i) for i in range(10))


@triton.jit(do_not_specialize=["LAYERS", "B", "T", "eps", "scale", "SPLITS", "room"])
def network(
    x, gained, squares, queries, seen, inner, cos, sin, own, root, above, table, peaks, norms, parts, arrived, words,
    LAYERS, B, T, eps, scale, SPLITS, room,
    WIDTH: tl.constexpr, H: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, INNER: tl.constexpr,
    BIASED: tl.constexpr, M: tl.constexpr, MANY: tl.constexpr, BN: tl.constexpr, BG: tl.constexpr, BK: tl.constexpr,
    BI: tl.constexpr, QUERIES: tl.constexpr, BP: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """x [B, T, WIDTH] through all layers, in place.

    table [LAYERS, COLUMNS] says where weights, keys and values are; cos, sin [B, T, D] are angles and own [B, T] slots,
    as for layer.attend, but without a window; nodes of a tree have root [B] and above [T] beside them, as there.
    Scratch: parts and so on [B, SHARED, SPLITS, QUERIES, ..]; arrived [1 + LAYERS * B * SHARED] zeros. For MANY rows
    gained [B, T, WIDTH], squares [B, T, TILES], queries, seen [B, T, H * D], inner [B, T, INNER]; else words, zeros:
    M rows of x, and of every layer M rows each of what is turned, of what is seen, of x, of `inner` and of x again.
    """
    R, goal = B * T, 0
    TILES: tl.constexpr = (WIDTH + BN - 1) // BN
    b = tl.arange(0, BP)
    longest = tl.max(tl.load(own + b * T + T - 1, mask=b < B, other=0).to(tl.int32), 0)
    units = B * SHARED * tl.cdiv(longest + 1, BLOCK)
    if MANY:
        begin(x, gained, squares, pointer(table, 0, NORM_IN, x), R, WIDTH, TILES, PROGRAMS)
        arrive(arrived, PROGRAMS)
        goal += PROGRAMS
    else:
        announce(x, words, WIDTH, BN, M, PROGRAMS)
    for layer in tl.range(0, LAYERS):
        # all at once, long before they are needed
        qkv, out, bias = pointer(table, layer, QKV, x), pointer(table, layer, OUT, x), pointer(table, layer, BIAS, x)
        gate_up, down = pointer(table, layer, GATE_UP, x), pointer(table, layer, DOWN, x)
        keys, values = pointer(table, layer, KEYS, x), pointer(table, layer, VALUES, x)
        gain_in, gain_mlp = pointer(table, layer, NORM_IN, x), pointer(table, layer, NORM_MLP, x)
        gain_next = pointer(table, tl.minimum(layer + 1, LAYERS - 1), NORM_IN, x)
        joined = arrived + 1 + layer * (B * SHARED)
        if MANY:
            many(
                gained, qkv, (squares, eps), ((cos, sin, own), (queries, keys, values, bias, room, T)), arrived, goal,
                R, (H + 2 * SHARED) * D // 2, WIDTH, "turn", H, SHARED, D, BIASED, TILES, BN, BK, M, PROGRAMS,
            )  # fmt: skip
            arrive(arrived, PROGRAMS)
            attend(
                queries, None, keys, values, own, root, above, seen, peaks, norms, parts, joined, arrived,
                goal + PROGRAMS, units, scale, B, T, SPLITS, room, H // SHARED, SHARED, D, QUERIES, BLOCK, PROGRAMS, M,
            )  # fmt: skip
            arrive(arrived, PROGRAMS)
            many(
                seen, out, None, ((x, gain_mlp), (x, gained, squares)), arrived, goal + 2 * PROGRAMS,
                R, WIDTH, H * D, "add", H, SHARED, D, BIASED, TILES, BN, BK, M, PROGRAMS,
            )  # fmt: skip
            arrive(arrived, PROGRAMS)
            many(
                gained, gate_up, (squares, eps), ((), (inner,)), arrived, goal + 3 * PROGRAMS,
                R, INNER, WIDTH, "gate", H, SHARED, D, BIASED, TILES, BG, BK, M, PROGRAMS,
            )  # fmt: skip
            arrive(arrived, PROGRAMS)
            many(
                inner, down, None, ((x, gain_next), (x, gained, squares)), arrived, goal + 4 * PROGRAMS,
                R, WIDTH, INNER, "add", H, SHARED, D, BIASED, TILES, BN, BI, M, PROGRAMS,
            )  # fmt: skip
            arrive(arrived, PROGRAMS)
            goal += 5 * PROGRAMS
        else:
            TYPE: tl.constexpr = x.dtype.element_ty
            # after those of x: the last are the next layer's x
            turned = words + M * WIDTH
            attended = turned + M * ((H + 2 * SHARED) * D)
            half = attended + M * (H * D)
            wide = half + M * WIDTH
            end = wide + M * INNER
            few(
                words, qkv, (gain_in, eps), ((cos, sin, own), (turned, keys, values, bias, room, T)),
                (H + 2 * SHARED) * D // 2, WIDTH, "turn", H, SHARED, D, BIASED, BN, BK, M, PROGRAMS, TYPE,
            )  # fmt: skip
            attend(
                x, turned, keys, values, own, root, above, attended, peaks, norms, parts, joined, arrived,
                goal, units, scale, B, T, SPLITS, room, H // SHARED, SHARED, D, QUERIES, BLOCK, PROGRAMS, M,
            )  # fmt: skip
            few(
                attended, out, None, (words, (half,)), WIDTH, H * D, "add",
                H, SHARED, D, BIASED, BN, BK, M, PROGRAMS, TYPE,
            )  # fmt: skip
            few(
                half, gate_up, (gain_mlp, eps), ((), (wide,)), INNER, WIDTH, "gate",
                H, SHARED, D, BIASED, BG, BK, M, PROGRAMS, TYPE,
            )  # fmt: skip
            few(
                wide, down, None, (half, (end,)), WIDTH, INNER, "add",
                H, SHARED, D, BIASED, BN, BI, M, PROGRAMS, TYPE,
            )  # fmt: skip
            words = end
    if not MANY:
        note(x, words, WIDTH, BN, M, PROGRAMS)


@triton.jit
def pointer(table, layer, COLUMN: tl.constexpr, like):
    """An address of the table, to values of the type that `like` points to."""
    return tl.multiple_of(tl.load(table + layer * COLUMNS + COLUMN).to(like.dtype), 16)


@triton.jit
def begin(x, gained, squares, gain, R, WIDTH: tl.constexpr, TILES: tl.constexpr, PROGRAMS: tl.constexpr):
    """What the first norm is given, as product.tally makes it for the others."""
    i, t = tl.arange(0, triton.next_power_of_2(WIDTH)), tl.arange(0, triton.next_power_of_2(TILES))
    g = tl.load(gain + i, mask=i < WIDTH, other=0.0).to(tl.float32)
    for r in tl.range(tl.program_id(0), R, PROGRAMS):
        exact = tl.load(x + r * WIDTH + i, mask=i < WIDTH, other=0.0).to(tl.float32)
        tl.store(gained + r * WIDTH + i, (exact * g).to(x.dtype.element_ty), mask=i < WIDTH)
        tl.store(squares + r * TILES + t, tl.where(t == 0, tl.sum(exact * exact, 0), 0.0), mask=t < TILES)


@triton.jit
def announce(x, words, WIDTH: tl.constexpr, BN: tl.constexpr, M: tl.constexpr, PROGRAMS: tl.constexpr):
    """x in words, each program the columns that it will add to."""
    TILES: tl.constexpr = (WIDTH + BN - 1) // BN
    for tile in tl.range(tl.program_id(0), TILES, PROGRAMS):
        n = tile * BN + tl.arange(0, BN)
        for m in tl.static_range(M):
            value = tl.load(x + m * WIDTH + n, mask=n < WIDTH, other=0.0)
            tell(words + m * WIDTH + n, value, n < WIDTH, x.dtype.element_ty)


@triton.jit
def note(x, words, WIDTH: tl.constexpr, BN: tl.constexpr, M: tl.constexpr, PROGRAMS: tl.constexpr):
    """Words in x, each program the columns that it has told."""
    TILES: tl.constexpr = (WIDTH + BN - 1) // BN
    tl.debug_barrier()
    for tile in tl.range(tl.program_id(0), TILES, PROGRAMS):
        n = tile * BN + tl.arange(0, BN)
        for m in tl.static_range(M):
            word = look(words + m * WIDTH + n, n < WIDTH)
            tl.store(x + m * WIDTH + n, told(word, x.dtype.element_ty), mask=n < WIDTH)


@triton.jit
def attend(
    queries, words, keys, values, own, root, above, out, peaks, norms, parts, joined, arrived, goal, units, scale,
    B, T, SPLITS, room, G: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, M: tl.constexpr, BLOCK: tl.constexpr,
    PROGRAMS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Like layer.attend, where all that is seen is in the cache: a unit is BLOCK slots of a row and a head of keys.

    With words [ROWS, (H + 2 * SHARED) * D] the queries and the entries of this call are there, and `out` is words too.
    """
    d, m = tl.arange(0, D)[None, :], tl.arange(0, M)
    t, real = m // G, m < T * G
    unit = tl.program_id(0)
    TYPE: tl.constexpr = queries.dtype.element_ty
    if words is None:
        reach(arrived, goal, PROGRAMS)
    while unit < units:
        row, split = unit % (B * SHARED), unit // (B * SHARED)
        b, h = row // SHARED, row % SHARED
        total = tl.load(own + b * T + T - 1).to(tl.int32) + 1
        used = tl.cdiv(total, BLOCK)
        if split < used:
            place = (b * T + t) * (G * SHARED) + h * G + m % G  # of a query's head among all
            slot = split * BLOCK + tl.arange(0, BLOCK)
            at, inside = row.to(tl.int64) * room * D + slot[:, None] * D + d, (slot < total)[:, None]
            k = tl.load(keys + at, mask=inside, other=0.0, cache_modifier=".cg")
            v = tl.load(values + at, mask=inside, other=0.0, cache_modifier=".cg")
            if words is None:
                q = tl.load(queries + place[:, None] * D + d, mask=real[:, None], other=0.0, cache_modifier=".cg")
            else:
                q, k, v = renewed(words, k, v, own, slot, b, h, t, m % G, real, T, G, SHARED, D, ROWS, TYPE)
            if above is not None:
                node = slot - tl.load(root + b).to(tl.int32)
                bits = tl.load(above + t, mask=real, other=0)
                visible = (slot > 0)[None, :] & ((node < 0)[None, :] | is_above(bits, node))
            else:
                mine = tl.load(own + b * T + t, mask=real, other=0).to(tl.int32)[:, None]
                visible = (slot[None, :] <= mine) & ((slot[None, :] > 0) | (mine == 0))
            score = tl.where(visible, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
            peak = tl.maximum(tl.max(score, 1), -1e30)  # not minus infinity, whose differences are NaN
            share = tl.exp2(score - peak[:, None])
            norm, sums = tl.sum(share, 1), tl.dot(share.to(v.dtype), v, input_precision="ieee")
            last = used == 1
            if used > 1:
                last, norm, sums = join(peak, norm, sums, peaks, norms, parts, joined, row, split, used, SPLITS, M, D)
            if last:
                sums = sums / tl.where(real, norm, 1.0)[:, None]
                if words is None:
                    tl.store(out + place[:, None] * D + d, sums.to(TYPE), mask=real[:, None])
                else:
                    tell(out + place[:, None] * D + d, sums, real[:, None] & (d >= 0), TYPE)
        unit += PROGRAMS


@triton.jit
def renewed(
    words, k, v, own, slot, b, h, t, g, real, T,
    G: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Queries [M, D] of row b and key head h, and keys and values [S, D] with this call's, when they are told."""
    d = tl.arange(0, D)
    WIDTH: tl.constexpr = (G + 2) * SHARED * D
    asked = words + ((b * T + t) * WIDTH + (h * G + g) * D)[:, None] + d[None, :]
    new = words + (G * SHARED + h) * D + d  # of keys, and values SHARED * D further
    q, entries, lacks = peek(asked, new, real, SHARED * D, WIDTH, ROWS)
    while lacks > 0:
        q, entries, lacks = peek(asked, new, real, SHARED * D, WIDTH, ROWS)
    for r in tl.static_range(ROWS):
        mine = (slot == tl.load(own + r).to(tl.int32)) & (r // T == b)
        k = tl.where(mine[:, None], told(entries[2 * r], TYPE)[None, :], k)
        v = tl.where(mine[:, None], told(entries[2 * r + 1], TYPE)[None, :], v)
    return told(q, TYPE), k, v


@triton.jit
def peek(asked, new, real, APART: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Words of queries, and of a key and a value of every row, as they are now; and whether any is missing."""
    q = look(asked, real[:, None])
    entries, lacks = (), missing(q)
    for r in tl.static_range(ROWS):
        one, two = look(new + r * WIDTH, None), look(new + r * WIDTH + APART, None)
        entries = entries + (one, two)  # noqa: RUF005 (the language knows no other way)
        lacks += missing(one & two)
    return q, entries, lacks
