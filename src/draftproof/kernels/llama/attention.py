# mypy: ignore-errors
"""Parts of a Llama layer for calls of few tokens: attention with all that belongs to it in one launch, norm and gate.

Attention is flash-decoding (Dao et al. 2023): the slots of a row are split among programs, and the last one to finish
puts the parts together. How long a row is stands on the device, so a program reads what there is and not what there is
room for.
"""

import triton
import triton.language as tl

from draftproof.kernels.lib.pdl import launch_dependents, wait


@triton.jit
def turned(joint, cos, sin, at, angle, inside, D: tl.constexpr):
    """Vectors [R, D] of `joint` from `at` [R] on, turned by the angles in rows `angle` [R]; float32."""
    d = tl.arange(0, D)[None, :]
    inside = inside[:, None]
    x = tl.load(joint + at[:, None] + d, mask=inside, other=0.0).to(tl.float32)
    swapped = tl.load(joint + at[:, None] + (d + D // 2) % D, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos + angle[:, None] * D + d, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + angle[:, None] * D + d, mask=inside, other=0.0).to(tl.float32)
    return x * c + swapped * s


@triton.jit
def take_in(q, k, v, seen, scale, peak, norm, sums):
    """Running softmax: scores of keys [S, D] and queries [M, D], in powers of 2, added to what is there."""
    # float32 must stay float32: by default it would be rounded to 10 bits
    score = tl.where(seen, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
    higher = tl.maximum(peak, tl.max(score, 1))
    share = tl.exp2(score - higher[:, None])
    fade = tl.exp2(peak - higher)
    sums = sums * fade[:, None] + tl.dot(share.to(v.dtype), v, input_precision="ieee")
    return higher, norm * fade + tl.sum(share, 1), sums


@triton.jit
def join(
    peak, norm, sums, peaks, norms, parts, arrived, row, split, used, SPLITS, M: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """Leave what one of `used` programs has of a row; the last to arrive puts all together: whether it is, and that.

    They are added in their order, whoever is last.
    """
    m, d = tl.arange(0, M), tl.arange(0, D)[None, :]
    mine = (row * SPLITS + split) * M + m
    tl.store(peaks + mine, peak)
    tl.store(norms + mine, norm)
    tl.store(parts + mine[:, None] * D + d, sums)
    tl.debug_barrier()
    last = tl.atomic_add(arrived + row, 1, sem="acq_rel") == used - 1
    if last:
        tl.store(arrived + row, 0)
        peak = tl.full((M,), -1e30, tl.float32)
        norm = tl.zeros((M,), tl.float32)
        sums = tl.zeros((M, D), tl.float32)
        for other in tl.range(0, used):
            its = (row * SPLITS + other) * M + m
            theirs = tl.load(peaks + its, cache_modifier=".cg")
            higher = tl.maximum(peak, theirs)
            fade, share = tl.exp2(peak - higher), tl.exp2(theirs - higher)
            norm = norm * fade + tl.load(norms + its, cache_modifier=".cg") * share
            part = tl.load(parts + its[:, None] * D + d, cache_modifier=".cg")
            sums = sums * fade[:, None] + part * share[:, None]
            peak = higher
    return last, norm, sums


@triton.jit
def is_above(bits, node):
    """Whether nodes [S] are among those that bits [M] name, [M, S]; numbers below 0 are nobody's."""
    return (node >= 0)[None, :] & (
        ((bits[:, None] >> tl.minimum(tl.maximum(node, 0), 63).to(tl.int64)[None, :]) & 1) > 0
    )


@triton.jit(do_not_specialize=["window", "scale", "T", "SOME", "G", "H", "SPLITS", "room"])
def attend(
    joint, cos, sin, own, place, root, above, keys, values, out, peaks, norms, scratch, arrived,
    window, scale, T, SOME, G, H, SPLITS, room,
    D: tl.constexpr, M: tl.constexpr, NEW: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
    WINDOW: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One head of keys and values, one of SPLITS ranges of its slots, one row: SOME of T tokens of G query heads each.

    joint [B, T, (H + 2 * shared) * D]; cos, sin [B, T, D]; own [B, T] the slots of the tokens, one after another, but
    that 0 may be repeated; keys, values [B, shared, room, D]; out [B, T, H * D]. A token sees the slots from 1 to its
    own, or 0 alone if that is its own; with a window, only those less than `window` away.

    Nodes of a tree have root [B], the slot of node 0, and above [T], whose bit n says whether node n is seen; `own` [T]
    are their numbers then, and `place` [T] their depths. Slots between those of this call are no ancestors.
    """
    launch_dependents(EARLY)
    wait(EARLY)
    split, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    parts = tl.cdiv(T, SOME)
    h, part, shared = tl.program_id(0) // parts, tl.program_id(0) % parts, tl.num_programs(0) // parts
    at, node0 = b * T, 0
    if above is not None:
        at, node0 = b * 0, tl.load(root + b).to(tl.int32)
    first = node0 + tl.load(own + at).to(tl.int32)  # from here on slots are new: not read, so nobody waits for them
    begin = first * 0 + 1
    if WINDOW:
        begin = tl.maximum(begin, node0 + tl.load(place + at).to(tl.int32) - window + 1)
    old = tl.maximum(first - begin, 0)
    span = tl.maximum(tl.cdiv(tl.cdiv(old, SPLITS), CHUNK), 1) * CHUNK
    used = tl.maximum(tl.cdiv(old, span), 1)
    if split < used:
        d = tl.arange(0, D)[None, :]
        m = tl.arange(0, M)
        t = part * SOME + m // G
        real = (m < SOME * G) & (t < T)
        width = (H + 2 * shared) * D
        q = turned(joint, cos, sin, (b * T + t) * width + (h * G + m % G) * D, b * T + t, real, D)
        q = q.to(keys.dtype.element_ty)
        mine = node0 + tl.load(place + at + t, mask=real, other=0).to(tl.int32)  # slot in a straight text
        if above is not None:
            bits = tl.load(above + t, mask=real, other=0)
        peak = tl.full((M,), -1e30, tl.float32)  # not minus infinity, whose differences are NaN
        norm = tl.zeros((M,), tl.float32)
        sums = tl.zeros((M, D), tl.float32)
        store = (b * shared + h) * room * D
        low = begin + split * span
        high = tl.minimum(low + span, first)
        for start in tl.range(low, high, BLOCK):
            slot = start + tl.arange(0, BLOCK)
            inside = slot < high
            k = tl.load(keys + store + slot[:, None] * D + d, mask=inside[:, None], other=0.0)
            v = tl.load(values + store + slot[:, None] * D + d, mask=inside[:, None], other=0.0)
            seen = inside[None, :]
            if above is not None:
                seen = seen & ((slot < node0)[None, :] | is_above(bits, slot - node0))
            if WINDOW:
                seen = seen & (mine[:, None] - slot[None, :] < window)
            peak, norm, sums = take_in(q, k, v, seen, scale, peak, norm, sums)
        if split == used - 1:
            j = tl.arange(0, NEW)
            inside = j < T
            new = (b * T + j) * width + (H + h) * D
            slot = node0 + tl.load(own + at + j, mask=inside, other=0).to(tl.int32)
            k = turned(joint, cos, sin, new, b * T + j, inside, D).to(q.dtype)
            v = tl.load(joint + (new + shared * D)[:, None] + d, mask=inside[:, None], other=0.0)
            if part == 0:
                tl.store(keys + store + slot[:, None] * D + d, k, mask=inside[:, None])
                tl.store(values + store + slot[:, None] * D + d, v, mask=inside[:, None])
            if above is not None:
                seen = inside[None, :] & is_above(bits, slot - node0)
            else:
                seen = inside[None, :] & (j[None, :] <= t[:, None]) & ((slot[None, :] > 0) | (mine[:, None] == 0))
            if WINDOW:
                seen = seen & (mine[:, None] - slot[None, :] < window)
            peak, norm, sums = take_in(q, k, v, seen, scale, peak, norm, sums)
        last = used == 1
        if used > 1:
            last, norm, sums = join(
                peak, norm, sums, peaks, norms, scratch, arrived, b * shared * parts + tl.program_id(0), split, used,
                SPLITS, M, D,
            )  # fmt: skip
        if last:
            sums = sums / tl.where(real, norm, 1.0)[:, None]
            head = (b * T + t) * H + h * G + m % G  # a query's among all
            tl.store(out + head[:, None] * D + d, sums.to(out.dtype.element_ty), mask=real[:, None])


@triton.jit
def norm(x, added, weight, total, out, eps, width, W: tl.constexpr, EARLY: tl.constexpr):
    """RMSNorm of a row of x [R, width]; where something is `added` to it first, that sum goes to `total`."""
    launch_dependents(EARLY)
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64) * width
    i = tl.arange(0, W)
    inside = i < width
    value = tl.load(x + row + i, mask=inside, other=0.0).to(tl.float32)
    if added is not None:
        value += tl.load(added + row + i, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + row + i, value.to(total.dtype.element_ty), mask=inside)
        value = value.to(total.dtype.element_ty).to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    value *= tl.load(weight + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + i, value.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["eps", "other_eps", "T", "S", "N"])
def enter(
    states, parent, tokens, number, embeddings, weight, other_weight, out, eps, other_eps, T, S, N, width,
    W: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """RMSNorm of a state of states [B, S, width], or of the embedding of a token of tokens [B, N]: half of a row of out
    [B, T, 2 * width]."""
    launch_dependents(EARLY)
    row, half = tl.program_id(0), tl.program_id(1)
    b, t = (row // T).to(tl.int64), row % T
    i = tl.arange(0, W)
    inside = i < width
    if half == 0:
        place = t.to(tl.int64)
        if parent is not None:
            place = tl.load(parent + t)
        gain = tl.load(weight + i, mask=inside, other=0.0).to(tl.float32)
        wait(EARLY)
        value = tl.load(states + (b * S + place) * width + i, mask=inside, other=0.0).to(tl.float32)
    else:
        place = t.to(tl.int64)
        if number is not None:
            place = tl.load(number + t)
        gain = tl.load(other_weight + i, mask=inside, other=0.0).to(tl.float32)
        wait(EARLY)
        token = tl.maximum(tl.load(tokens + b * N + place), 0)
        value = tl.load(embeddings + token * width + i, mask=inside, other=0.0).to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, 0) / width + tl.where(half == 0, eps, other_eps)) * gain
    tl.store(out + (row.to(tl.int64) * 2 + half) * width + i, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def gate(joint, out, width, W: tl.constexpr, EARLY: tl.constexpr):
    """silu(first half) * second half of a row of joint [R, 2 * width], W places of it."""
    launch_dependents(EARLY)
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64) * width
    i = tl.program_id(1) * W + tl.arange(0, W)
    inside = i < width
    x = tl.load(joint + 2 * row + i, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(joint + 2 * row + width + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + i, (x / (1.0 + tl.exp(-x)) * up).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["scale"])
def angles(positions, frequencies, cos, sin, scale, D: tl.constexpr):
    """A token's row of llama.Rotation, [D] each."""
    i = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D // 2)
    angle = tl.load(positions + i).to(tl.float32) * tl.load(frequencies + d)
    c, s = tl.cos(angle) * scale, tl.sin(angle) * scale
    tl.store(cos + i * D + d, c.to(cos.dtype.element_ty))
    tl.store(cos + i * D + D // 2 + d, c.to(cos.dtype.element_ty))
    tl.store(sin + i * D + d, (-s).to(sin.dtype.element_ty))
    tl.store(sin + i * D + D // 2 + d, s.to(sin.dtype.element_ty))
