# mypy: ignore-errors
"""All layers of a small Llama network in one launch, for calls of few tokens: persistent threads (Gupta et al. 2012).

A drafter's weights are read in less time than its kernels take to begin and end, one after the other. Here as many
programs as the device has processors stay until the last layer is done, and wait for each other five times a layer.
"""

import triton
import triton.language as tl

from draftproof.kernels.grid import arrive, reach
from draftproof.kernels.layer import is_above, join
from draftproof.kernels.product import product

# columns of a network's table of addresses, which has a row for each layer
QKV, OUT, GATE_UP, DOWN, NORM_IN, NORM_MLP, KEYS, VALUES, BIAS, COLUMNS = (tl.constexpr(i) for i in range(10))


@triton.jit(do_not_specialize=["LAYERS", "B", "T", "eps", "scale", "SPLITS", "room"])
def network(
    x, gained, squares, queries, seen, inner, cos, sin, own, root, above, table, peaks, norms, parts, arrived,
    LAYERS, B, T, eps, scale, SPLITS, room,
    WIDTH: tl.constexpr, H: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, INNER: tl.constexpr,
    BIASED: tl.constexpr, M: tl.constexpr, MANY: tl.constexpr, BN: tl.constexpr, BG: tl.constexpr, BK: tl.constexpr,
    BI: tl.constexpr, QUERIES: tl.constexpr, BP: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """x [B, T, WIDTH] through all layers, in place.

    table [LAYERS, COLUMNS] says where weights, keys and values are; cos, sin [B, T, D] are angles and own [B, T] slots,
    as for layer.attend, but without a window; nodes of a tree have root [B] and above [T] beside them, as there.
    Scratch: gained [B, T, WIDTH] and squares [B, T, TILES], where there are MANY rows; queries, seen [B, T, H * D];
    inner [B, T, INNER]; parts and so on [B, SHARED, SPLITS, QUERIES, ..]; arrived [1 + B * SHARED] zeros.
    """
    TILES: tl.constexpr = (WIDTH + BN - 1) // BN
    R, goal, source = B * T, 0, x
    b = tl.arange(0, BP)
    longest = tl.max(tl.load(own + b * T + T - 1, mask=b < B, other=0).to(tl.int32), 0)
    units = B * SHARED * tl.cdiv(longest + 1, BLOCK)
    if MANY:
        source = gained
        begin(x, gained, squares, pointer(table, 0, NORM_IN, x), R, WIDTH, TILES, PROGRAMS)
        arrive(arrived, PROGRAMS)
        goal += PROGRAMS
    for layer in tl.range(0, LAYERS):
        # all at once, long before they are needed
        qkv, out, bias = pointer(table, layer, QKV, x), pointer(table, layer, OUT, x), pointer(table, layer, BIAS, x)
        gate_up, down = pointer(table, layer, GATE_UP, x), pointer(table, layer, DOWN, x)
        keys, values = pointer(table, layer, KEYS, x), pointer(table, layer, VALUES, x)
        gain_in, gain_mlp = pointer(table, layer, NORM_IN, x), pointer(table, layer, NORM_MLP, x)
        gain_next = pointer(table, tl.minimum(layer + 1, LAYERS - 1), NORM_IN, x)
        product(
            source, qkv, (gain_in, squares, eps),
            ((cos, sin, own), (queries, keys, values, bias, room, T)), arrived, goal,
            R, (H + 2 * SHARED) * D // 2, WIDTH, "turn", H, SHARED, D, BIASED, TILES, BN, BK, M, MANY, PROGRAMS,
        )  # fmt: skip
        arrive(arrived, PROGRAMS)
        attend(
            queries, keys, values, own, root, above, seen, peaks, norms, parts, arrived, goal + PROGRAMS, units, scale,
            B, T, SPLITS, room, H // SHARED, SHARED, D, QUERIES, BLOCK, PROGRAMS,
        )  # fmt: skip
        arrive(arrived, PROGRAMS)
        product(
            seen, out, None, ((x, gain_mlp), (x, gained, squares)), arrived,
            goal + 2 * PROGRAMS, R, WIDTH, H * D, "add", H, SHARED, D, BIASED, TILES, BN, BK, M, MANY, PROGRAMS,
        )  # fmt: skip
        arrive(arrived, PROGRAMS)
        product(
            source, gate_up, (gain_mlp, squares, eps), ((), (inner,)), arrived,
            goal + 3 * PROGRAMS, R, INNER, WIDTH, "gate", H, SHARED, D, BIASED, TILES, BG, BK, M, MANY, PROGRAMS,
        )  # fmt: skip
        arrive(arrived, PROGRAMS)
        product(
            inner, down, None, ((x, gain_next), (x, gained, squares)), arrived,
            goal + 4 * PROGRAMS, R, WIDTH, INNER, "add", H, SHARED, D, BIASED, TILES, BN, BI, M, MANY, PROGRAMS,
        )  # fmt: skip
        arrive(arrived, PROGRAMS)
        goal += 5 * PROGRAMS


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
def attend(
    queries, keys, values, own, root, above, out, peaks, norms, parts, arrived, goal, units, scale, B, T, SPLITS, room,
    G: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, M: tl.constexpr, BLOCK: tl.constexpr,
    PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Like layer.attend, where all that is seen is in the cache: a unit is BLOCK slots of a row and a head of keys."""
    d, m = tl.arange(0, D)[None, :], tl.arange(0, M)
    t, real = m // G, m < T * G
    unit = tl.program_id(0)
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
            q = tl.load(queries + place[:, None] * D + d, mask=real[:, None], other=0.0, cache_modifier=".cg")
            k = tl.load(keys + at, mask=inside, other=0.0, cache_modifier=".cg")
            v = tl.load(values + at, mask=inside, other=0.0, cache_modifier=".cg")
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
                last, norm, sums = join(
                    peak, norm, sums, peaks, norms, parts, arrived + 1, row, split, used, SPLITS, M, D
                )
            if last:
                sums = sums / tl.where(real, norm, 1.0)[:, None]
                tl.store(out + place[:, None] * D + d, sums.to(out.dtype.element_ty), mask=real[:, None])
        unit += PROGRAMS
