# mypy: ignore-errors
"""All layers of a small Llama network in one launch, for calls of few tokens: persistent threads (Gupta et al. 2012).

A drafter's weights are read in less time than its kernels would take to start and end one after the other. Here one
program for each multiprocessor stays until the last layer is done, and programs wait for each other's results five
times a layer.
"""

import triton
import triton.language as tl

from draftproof.kernels.llama.attention import combine_splits, is_ancestor
from draftproof.kernels.llama.barrier import arrive, wait_for
from draftproof.kernels.llama.gemm import gemm
from draftproof.kernels.llama.gemv import gemv
from draftproof.kernels.llama.mailbox import missing, peek, post, unpack

# columns of the table of addresses, which has a row for each layer
QKV, OUT, GATE_UP, DOWN, NORM_IN, NORM_MLP, KEYS, VALUES, BIAS, COLUMNS = (tl.constexpr(i) for i in range(10))


@triton.jit(do_not_specialize=["LAYERS", "B", "T", "eps", "scale", "SPLITS", "capacity"])
def megakernel(
    x, gained, squares, queries, attended, inner, cos, sin, slots, root, ancestors, table, peaks, norms, partials,
    arrivals, mail, LAYERS, B, T, eps, scale, SPLITS, capacity,
    WIDTH: tl.constexpr, H: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, INNER: tl.constexpr,
    BIASED: tl.constexpr, M: tl.constexpr, MANY: tl.constexpr, BN: tl.constexpr, BG: tl.constexpr, BK: tl.constexpr,
    BI: tl.constexpr, QUERIES: tl.constexpr, BP: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """x [B, T, WIDTH] through all layers, in place.

    table [LAYERS, COLUMNS] holds the addresses of weights, keys and values; cos, sin [B, T, D] and slots [B, T] are as
    for decode_attention, but without a window; nodes of a tree also have root [B] and ancestors [T], as there.
    Scratch: peaks and so on [B, KV_HEADS, SPLITS, QUERIES, ..]; arrivals [1 + LAYERS * B * KV_HEADS] zeros. For MANY
    rows gained [B, T, WIDTH], squares [B, T, TILES], queries, attended [B, T, H * D], inner [B, T, INNER]; else mail,
    zeros: M rows of x, and for every layer M rows each of rotated qkv, attention output, x, `inner` and x again.
    """
    R, goal = B * T, 0
    TILES: tl.constexpr = (WIDTH + BN - 1) // BN
    b = tl.arange(0, BP)
    longest = tl.max(tl.load(slots + b * T + T - 1, mask=b < B, other=0).to(tl.int32), 0)
    units = B * KV_HEADS * tl.cdiv(longest + 1, BLOCK)
    if MANY:
        first_norm_input(x, gained, squares, load_pointer(table, 0, NORM_IN, x), R, WIDTH, TILES, PROGRAMS)
        arrive(arrivals, PROGRAMS)
        goal += PROGRAMS
    else:
        post_input(x, mail, WIDTH, BN, M, PROGRAMS)
    for layer in tl.range(0, LAYERS):
        # all at once, long before they are needed
        qkv = load_pointer(table, layer, QKV, x)
        out = load_pointer(table, layer, OUT, x)
        bias = load_pointer(table, layer, BIAS, x)
        gate_up, down = load_pointer(table, layer, GATE_UP, x), load_pointer(table, layer, DOWN, x)
        keys, values = load_pointer(table, layer, KEYS, x), load_pointer(table, layer, VALUES, x)
        gain_in, gain_mlp = load_pointer(table, layer, NORM_IN, x), load_pointer(table, layer, NORM_MLP, x)
        gain_next = load_pointer(table, tl.minimum(layer + 1, LAYERS - 1), NORM_IN, x)
        combined = arrivals + 1 + layer * (B * KV_HEADS)
        if MANY:
            gemm(
                gained, qkv, (squares, eps), ((cos, sin, slots), (queries, keys, values, bias, capacity, T)), arrivals,
                goal, R, (H + 2 * KV_HEADS) * D // 2, WIDTH, "rotate", H, KV_HEADS, D, BIASED, TILES, BN, BK, M,
                PROGRAMS,
            )  # fmt: skip
            arrive(arrivals, PROGRAMS)
            cache_attention(
                queries, None, keys, values, slots, root, ancestors, attended, peaks, norms, partials, combined,
                arrivals, goal + PROGRAMS, units, scale, B, T, SPLITS, capacity, H // KV_HEADS, KV_HEADS, D, QUERIES,
                BLOCK, PROGRAMS, M,
            )  # fmt: skip
            arrive(arrivals, PROGRAMS)
            gemm(
                attended, out, None, ((x, gain_mlp), (x, gained, squares)), arrivals, goal + 2 * PROGRAMS,
                R, WIDTH, H * D, "residual", H, KV_HEADS, D, BIASED, TILES, BN, BK, M, PROGRAMS,
            )  # fmt: skip
            arrive(arrivals, PROGRAMS)
            gemm(
                gained, gate_up, (squares, eps), ((), (inner,)), arrivals, goal + 3 * PROGRAMS,
                R, INNER, WIDTH, "gate", H, KV_HEADS, D, BIASED, TILES, BG, BK, M, PROGRAMS,
            )  # fmt: skip
            arrive(arrivals, PROGRAMS)
            gemm(
                inner, down, None, ((x, gain_next), (x, gained, squares)), arrivals, goal + 4 * PROGRAMS,
                R, WIDTH, INNER, "residual", H, KV_HEADS, D, BIASED, TILES, BN, BI, M, PROGRAMS,
            )  # fmt: skip
            arrive(arrivals, PROGRAMS)
            goal += 5 * PROGRAMS
        else:
            TYPE: tl.constexpr = x.dtype.element_ty
            # mailboxes of a layer, after that of its input: the last one is the next layer's input
            rotated_mail = mail + M * WIDTH
            attended_mail = rotated_mail + M * ((H + 2 * KV_HEADS) * D)
            half_mail = attended_mail + M * (H * D)
            inner_mail = half_mail + M * WIDTH
            output_mail = inner_mail + M * INNER
            gemv(
                mail, qkv, (gain_in, eps), ((cos, sin, slots), (rotated_mail, keys, values, bias, capacity, T)),
                (H + 2 * KV_HEADS) * D // 2, WIDTH, "rotate", H, KV_HEADS, D, BIASED, BN, BK, M, PROGRAMS, TYPE,
            )  # fmt: skip
            cache_attention(
                x, rotated_mail, keys, values, slots, root, ancestors, attended_mail, peaks, norms, partials, combined,
                arrivals, goal, units, scale, B, T, SPLITS, capacity, H // KV_HEADS, KV_HEADS, D, QUERIES, BLOCK,
                PROGRAMS, M,
            )  # fmt: skip
            gemv(
                attended_mail, out, None, (mail, (half_mail,)), WIDTH, H * D, "residual",
                H, KV_HEADS, D, BIASED, BN, BK, M, PROGRAMS, TYPE,
            )  # fmt: skip
            gemv(
                half_mail, gate_up, (gain_mlp, eps), ((), (inner_mail,)), INNER, WIDTH, "gate",
                H, KV_HEADS, D, BIASED, BG, BK, M, PROGRAMS, TYPE,
            )  # fmt: skip
            gemv(
                inner_mail, down, None, (half_mail, (output_mail,)), WIDTH, INNER, "residual",
                H, KV_HEADS, D, BIASED, BN, BI, M, PROGRAMS, TYPE,
            )  # fmt: skip
            mail = output_mail
    if not MANY:
        collect_output(x, mail, WIDTH, BN, M, PROGRAMS)


@triton.jit
def load_pointer(table, layer, COLUMN: tl.constexpr, like):
    """An address from the table, as a pointer of the type of `like`."""
    return tl.multiple_of(tl.load(table + layer * COLUMNS + COLUMN).to(like.dtype), 16)


@triton.jit
def first_norm_input(x, gained, squares, gain, R, WIDTH: tl.constexpr, TILES: tl.constexpr, PROGRAMS: tl.constexpr):
    """Store x as the first norm reads it; gemm.store_norm_input does so for the others."""
    i, t = tl.arange(0, triton.next_power_of_2(WIDTH)), tl.arange(0, triton.next_power_of_2(TILES))
    g = tl.load(gain + i, mask=i < WIDTH, other=0.0).to(tl.float32)
    for r in tl.range(tl.program_id(0), R, PROGRAMS):
        exact = tl.load(x + r * WIDTH + i, mask=i < WIDTH, other=0.0).to(tl.float32)
        tl.store(gained + r * WIDTH + i, (exact * g).to(x.dtype.element_ty), mask=i < WIDTH)
        tl.store(squares + r * TILES + t, tl.where(t == 0, tl.sum(exact * exact, 0), 0.0), mask=t < TILES)


@triton.jit
def post_input(x, mail, WIDTH: tl.constexpr, BN: tl.constexpr, M: tl.constexpr, PROGRAMS: tl.constexpr):
    """Post x, each program the columns that it will add to."""
    TILES: tl.constexpr = (WIDTH + BN - 1) // BN
    for tile in tl.range(tl.program_id(0), TILES, PROGRAMS):
        n = tile * BN + tl.arange(0, BN)
        for m in tl.static_range(M):
            value = tl.load(x + m * WIDTH + n, mask=n < WIDTH, other=0.0)
            post(mail + m * WIDTH + n, value, n < WIDTH, x.dtype.element_ty)


@triton.jit
def collect_output(x, mail, WIDTH: tl.constexpr, BN: tl.constexpr, M: tl.constexpr, PROGRAMS: tl.constexpr):
    """Store the last mailbox in x, each program the columns that it has posted."""
    TILES: tl.constexpr = (WIDTH + BN - 1) // BN
    tl.debug_barrier()
    for tile in tl.range(tl.program_id(0), TILES, PROGRAMS):
        n = tile * BN + tl.arange(0, BN)
        for m in tl.static_range(M):
            word = peek(mail + m * WIDTH + n, n < WIDTH)
            tl.store(x + m * WIDTH + n, unpack(word, x.dtype.element_ty), mask=n < WIDTH)


@triton.jit
def cache_attention(
    queries, inbox, keys, values, slots, root, ancestors, out, peaks, norms, partials, combined, arrivals, goal, units,
    scale, B, T, SPLITS, capacity, G: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, M: tl.constexpr,
    BLOCK: tl.constexpr, PROGRAMS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Attention over the cache, which holds this call's entries too: a unit is BLOCK slots of a row and a KV head.

    With an inbox [ROWS, (H + 2 * KV_HEADS) * D] queries and new entries are read from that mailbox, and `out` is one
    as well.
    """
    d, m = tl.arange(0, D)[None, :], tl.arange(0, M)
    t, real = m // G, m < T * G
    unit = tl.program_id(0)
    TYPE: tl.constexpr = queries.dtype.element_ty
    if inbox is None:
        wait_for(arrivals, goal, PROGRAMS)
    while unit < units:
        row, split = unit % (B * KV_HEADS), unit // (B * KV_HEADS)
        b, h = row // KV_HEADS, row % KV_HEADS
        total = tl.load(slots + b * T + T - 1).to(tl.int32) + 1
        used = tl.cdiv(total, BLOCK)
        if split < used:
            query = (b * T + t) * (G * KV_HEADS) + h * G + m % G
            slot = split * BLOCK + tl.arange(0, BLOCK)
            at, inside = row.to(tl.int64) * capacity * D + slot[:, None] * D + d, (slot < total)[:, None]
            k = tl.load(keys + at, mask=inside, other=0.0, cache_modifier=".cg")
            v = tl.load(values + at, mask=inside, other=0.0, cache_modifier=".cg")
            if inbox is None:
                q = tl.load(queries + query[:, None] * D + d, mask=real[:, None], other=0.0, cache_modifier=".cg")
            else:
                q, k, v = receive_qkv(inbox, k, v, slots, slot, b, h, t, m % G, real, T, G, KV_HEADS, D, ROWS, TYPE)
            if ancestors is not None:
                node = slot - tl.load(root + b).to(tl.int32)
                bits = tl.load(ancestors + t, mask=real, other=0)
                visible = (slot > 0)[None, :] & ((node < 0)[None, :] | is_ancestor(bits, node))
            else:
                mine = tl.load(slots + b * T + t, mask=real, other=0).to(tl.int32)[:, None]
                visible = (slot[None, :] <= mine) & ((slot[None, :] > 0) | (mine == 0))
            score = tl.where(visible, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
            peak = tl.maximum(tl.max(score, 1), -1e30)  # not minus infinity: differences of infinities are NaN
            share = tl.exp2(score - peak[:, None])
            norm, sums = tl.sum(share, 1), tl.dot(share.to(v.dtype), v, input_precision="ieee")
            last = used == 1
            if used > 1:
                last, norm, sums = combine_splits(
                    peak, norm, sums, peaks, norms, partials, combined, row, split, used, SPLITS, M, D
                )
            if last:
                sums = sums / tl.where(real, norm, 1.0)[:, None]
                if inbox is None:
                    tl.store(out + query[:, None] * D + d, sums.to(TYPE), mask=real[:, None])
                else:
                    post(out + query[:, None] * D + d, sums, real[:, None] & (d >= 0), TYPE)
        unit += PROGRAMS


@triton.jit
def receive_qkv(
    inbox, k, v, slots, slot, b, h, t, g, real, T,
    G: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Wait for queries [M, D] of row b and KV head h, and put this call's entries among keys and values [S, D]."""
    d = tl.arange(0, D)
    WIDTH: tl.constexpr = (G + 2) * KV_HEADS * D
    queries = inbox + ((b * T + t) * WIDTH + (h * G + g) * D)[:, None] + d[None, :]
    new = inbox + (G * KV_HEADS + h) * D + d  # keys; values are KV_HEADS * D further
    q, entries, lacks = peek_qkv(queries, new, real, KV_HEADS * D, WIDTH, ROWS)
    while lacks > 0:
        q, entries, lacks = peek_qkv(queries, new, real, KV_HEADS * D, WIDTH, ROWS)
    for r in tl.static_range(ROWS):
        mine = (slot == tl.load(slots + r).to(tl.int32)) & (r // T == b)
        k = tl.where(mine[:, None], unpack(entries[2 * r], TYPE)[None, :], k)
        v = tl.where(mine[:, None], unpack(entries[2 * r + 1], TYPE)[None, :], v)
    return unpack(q, TYPE), k, v


@triton.jit
def peek_qkv(queries, new, real, APART: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Words of queries, and of a key and a value of every row, as they are now; and whether any is missing."""
    q = peek(queries, real[:, None])
    entries, lacks = (), missing(q)
    for r in tl.static_range(ROWS):
        one, two = peek(new + r * WIDTH, None), peek(new + r * WIDTH + APART, None)
        entries = entries + (one, two)  # noqa: RUF005 (Triton has no other way to lengthen a tuple)
        lacks += missing(one & two)
    return q, entries, lacks
