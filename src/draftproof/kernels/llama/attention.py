# mypy: ignore-errors
"""Attention of a few new tokens over a KV cache, in one launch: rotary positions, cache write and softmax included.

This is flash-decoding (Dao et al. 2023): the slots of a row are split among programs, and the last program to finish
combines the partial results. The length of a row is read on the device, so a program reads the slots in use and not
the capacity of the cache.
"""

import triton
import triton.language as tl

from draftproof.kernels.lib.pdl import launch_dependents, wait


@triton.jit
def load_rotated(qkv, cos, sin, at, angle, inside, D: tl.constexpr):
    """Heads [R, D] of `qkv` that begin at `at` [R], rotated by rows `angle` [R] of cos and sin; float32."""
    d = tl.arange(0, D)[None, :]
    inside = inside[:, None]
    x = tl.load(qkv + at[:, None] + d, mask=inside, other=0.0).to(tl.float32)
    swapped = tl.load(qkv + at[:, None] + (d + D // 2) % D, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos + angle[:, None] * D + d, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + angle[:, None] * D + d, mask=inside, other=0.0).to(tl.float32)
    return x * c + swapped * s


@triton.jit
def online_softmax(q, k, v, visible, scale, peak, norm, sums):
    """One step of the running softmax: add keys and values [S, D] to what queries [M, D] have seen; powers of 2."""
    # float32 must stay float32: by default it would be rounded to 10 bits
    score = tl.where(visible, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
    higher = tl.maximum(peak, tl.max(score, 1))
    share = tl.exp2(score - higher[:, None])
    fade = tl.exp2(peak - higher)
    sums = sums * fade[:, None] + tl.dot(share.to(v.dtype), v, input_precision="ieee")
    return higher, norm * fade + tl.sum(share, 1), sums


@triton.jit
def combine_splits(
    peak, norm, sums, peaks, norms, partials, arrivals, row, split, used, SPLITS, M: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """Store the partial softmax of one of `used` splits of a row; the last to arrive combines them all.

    Returns whether this program was the last, and the combined normaliser and sums. Splits are added in their order,
    whoever is last, so the result is deterministic.
    """
    m, d = tl.arange(0, M), tl.arange(0, D)[None, :]
    mine = (row * SPLITS + split) * M + m
    tl.store(peaks + mine, peak)
    tl.store(norms + mine, norm)
    tl.store(partials + mine[:, None] * D + d, sums)
    tl.debug_barrier()
    last = tl.atomic_add(arrivals + row, 1, sem="acq_rel") == used - 1
    if last:
        tl.store(arrivals + row, 0)
        peak = tl.full((M,), -1e30, tl.float32)
        norm = tl.zeros((M,), tl.float32)
        sums = tl.zeros((M, D), tl.float32)
        for other in tl.range(0, used):
            at = (row * SPLITS + other) * M + m
            its_peak = tl.load(peaks + at, cache_modifier=".cg")
            higher = tl.maximum(peak, its_peak)
            fade, share = tl.exp2(peak - higher), tl.exp2(its_peak - higher)
            norm = norm * fade + tl.load(norms + at, cache_modifier=".cg") * share
            partial = tl.load(partials + at[:, None] * D + d, cache_modifier=".cg")
            sums = sums * fade[:, None] + partial * share[:, None]
            peak = higher
    return last, norm, sums


@triton.jit
def is_ancestor(bits, node):
    """Whether nodes [S] are set in the ancestor bits [M] of each query: [M, S]; negative numbers are not nodes."""
    return (node >= 0)[None, :] & (
        ((bits[:, None] >> tl.minimum(tl.maximum(node, 0), 63).to(tl.int64)[None, :]) & 1) > 0
    )


@triton.jit(do_not_specialize=["window", "scale", "T", "SOME", "G", "H", "SPLITS", "capacity"])
def decode_attention(
    qkv, cos, sin, slots, straight, root, ancestors, keys, values, out, peaks, norms, partials, arrivals,
    window, scale, T, SOME, G, H, SPLITS, capacity,
    D: tl.constexpr, M: tl.constexpr, NEW: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
    WINDOW: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One KV head, one of SPLITS ranges of its slots, one row: SOME of T tokens with G query heads each.

    qkv [B, T, (H + 2 * kv_heads) * D]; cos, sin [B, T, D]; slots [B, T] of the tokens, consecutive, except that slot 0
    may be repeated; keys, values [B, kv_heads, capacity, D]; out [B, T, H * D]. A token sees the slots from 1 to its
    own, or slot 0 alone if that is its own; with a window, only slots less than `window` away.

    For nodes of a tree there are root [B], the slot of node 0, and ancestors [T], whose bit n says whether node n is
    seen; `slots` [T] are then node numbers and `straight` [T] depths, both relative to the root. Slots between those of
    this call belong to other branches.
    """
    launch_dependents(EARLY)
    wait(EARLY)
    split, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    parts = tl.cdiv(T, SOME)
    h, part, kv_heads = tl.program_id(0) // parts, tl.program_id(0) % parts, tl.num_programs(0) // parts
    at, node0 = b * T, 0
    if ancestors is not None:
        at, node0 = b * 0, tl.load(root + b).to(tl.int32)
    # slots from here on are written by this call; they are taken from qkv, so nobody waits for the stores
    first = node0 + tl.load(slots + at).to(tl.int32)
    begin = first * 0 + 1
    if WINDOW:
        begin = tl.maximum(begin, node0 + tl.load(straight + at).to(tl.int32) - window + 1)
    old = tl.maximum(first - begin, 0)
    span = tl.maximum(tl.cdiv(tl.cdiv(old, SPLITS), CHUNK), 1) * CHUNK
    used = tl.maximum(tl.cdiv(old, span), 1)
    if split < used:
        d = tl.arange(0, D)[None, :]
        m = tl.arange(0, M)
        t = part * SOME + m // G
        real = (m < SOME * G) & (t < T)
        width = (H + 2 * kv_heads) * D
        q = load_rotated(qkv, cos, sin, (b * T + t) * width + (h * G + m % G) * D, b * T + t, real, D)
        q = q.to(keys.dtype.element_ty)
        mine = node0 + tl.load(straight + at + t, mask=real, other=0).to(tl.int32)  # slot if its path were a text
        if ancestors is not None:
            bits = tl.load(ancestors + t, mask=real, other=0)
        peak = tl.full((M,), -1e30, tl.float32)  # not minus infinity: differences of infinities are NaN
        norm = tl.zeros((M,), tl.float32)
        sums = tl.zeros((M, D), tl.float32)
        head = (b * kv_heads + h) * capacity * D
        low = begin + split * span
        high = tl.minimum(low + span, first)
        for start in tl.range(low, high, BLOCK):
            slot = start + tl.arange(0, BLOCK)
            inside = slot < high
            k = tl.load(keys + head + slot[:, None] * D + d, mask=inside[:, None], other=0.0)
            v = tl.load(values + head + slot[:, None] * D + d, mask=inside[:, None], other=0.0)
            visible = inside[None, :]
            if ancestors is not None:
                visible = visible & ((slot < node0)[None, :] | is_ancestor(bits, slot - node0))
            if WINDOW:
                visible = visible & (mine[:, None] - slot[None, :] < window)
            peak, norm, sums = online_softmax(q, k, v, visible, scale, peak, norm, sums)
        if split == used - 1:
            j = tl.arange(0, NEW)
            inside = j < T
            new = (b * T + j) * width + (H + h) * D
            slot = node0 + tl.load(slots + at + j, mask=inside, other=0).to(tl.int32)
            k = load_rotated(qkv, cos, sin, new, b * T + j, inside, D).to(q.dtype)
            v = tl.load(qkv + (new + kv_heads * D)[:, None] + d, mask=inside[:, None], other=0.0)
            if part == 0:
                tl.store(keys + head + slot[:, None] * D + d, k, mask=inside[:, None])
                tl.store(values + head + slot[:, None] * D + d, v, mask=inside[:, None])
            if ancestors is not None:
                visible = inside[None, :] & is_ancestor(bits, slot - node0)
            else:
                visible = inside[None, :] & (j[None, :] <= t[:, None]) & ((slot[None, :] > 0) | (mine[:, None] == 0))
            if WINDOW:
                visible = visible & (mine[:, None] - slot[None, :] < window)
            peak, norm, sums = online_softmax(q, k, v, visible, scale, peak, norm, sums)
        last = used == 1
        if used > 1:
            last, norm, sums = combine_splits(
                peak, norm, sums, peaks, norms, partials, arrivals, b * kv_heads * parts + tl.program_id(0), split,
                used, SPLITS, M, D,
            )  # fmt: skip
        if last:
            sums = sums / tl.where(real, norm, 1.0)[:, None]
            query = (b * T + t) * H + h * G + m % G
            tl.store(out + query[:, None] * D + d, sums.to(out.dtype.element_ty), mask=real[:, None])
