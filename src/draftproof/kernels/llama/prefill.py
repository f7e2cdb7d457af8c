# mypy: ignore-errors
"""Attention among the tokens of whole texts that stand side by side: FlashAttention (Dao et al. 2205.14135)."""

import triton
import triton.language as tl

from draftproof.kernels.lib.pdl import launch_dependents, wait
from draftproof.kernels.llama.attention import take_in, turned


@triton.jit(do_not_specialize=["window", "scale", "T", "G", "H", "room"])
def read(
    joint, cos, sin, own, rows, keys, values, out, window, scale, T, G, H, room,
    D: tl.constexpr, TOKENS: tl.constexpr, M: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """TOKENS of T tokens and one head of keys and values, which G query heads share.

    joint [T, (H + 2 * shared) * D]; cos, sin [T, D]; own, rows [T] the tokens' slots, and the rows of keys and values
    [rows, shared, room, D] where those are; out [T, H * D]. A token in slot s sees itself and the s - 1 before it; with
    a window, at most `window` in all. Keys are turned by all who read them, so nobody waits for them to be stored.
    """
    launch_dependents(EARLY)
    wait(EARLY)
    begin, h = tl.program_id(0) * TOKENS, tl.program_id(1)
    shared = tl.num_programs(1)
    width = (H + 2 * shared).to(tl.int64) * D
    d = tl.arange(0, D)[None, :]
    i = begin + tl.arange(0, TOKENS)
    inside = i < T
    at = i * width + (H + h) * D
    slot = tl.load(own + i, mask=inside, other=0)
    store = ((tl.load(rows + i, mask=inside, other=0) * shared + h) * room + slot)[:, None] * D + d
    k = turned(joint, cos, sin, at, i, inside, D)
    v = tl.load(joint + (at + shared * D)[:, None] + d, mask=inside[:, None], other=0.0)
    tl.store(keys + store, k.to(keys.dtype.element_ty), mask=inside[:, None])
    tl.store(values + store, v, mask=inside[:, None])
    m = tl.arange(0, M)
    t = begin + m // G
    real = (m < TOKENS * G) & (t < T)
    head = h * G + m % G
    q = turned(joint, cos, sin, t * width + head * D, t, real, D).to(keys.dtype.element_ty)
    sees = tl.maximum(tl.load(own + t, mask=real, other=1).to(tl.int32), 1)
    if WINDOW:
        sees = tl.minimum(sees, window)
    first = t - sees + 1
    peak = tl.full((M,), -1e30, tl.float32)  # not minus infinity, whose differences are NaN
    norm = tl.zeros((M,), tl.float32)
    sums = tl.zeros((M, D), tl.float32)
    for start in tl.range(tl.min(first, 0), tl.minimum(begin + TOKENS, T), BLOCK):
        j = start + tl.arange(0, BLOCK)
        there = j * width + (H + h) * D
        seen = (j[None, :] >= first[:, None]) & (j[None, :] <= t[:, None])
        key = turned(joint, cos, sin, there, j, j < T, D).to(q.dtype)
        value = tl.load(joint + (there + shared * D)[:, None] + d, mask=(j < T)[:, None], other=0.0)
        peak, norm, sums = take_in(q, key, value, seen, scale, peak, norm, sums)
    sums = sums / tl.where(real, norm, 1.0)[:, None]
    tl.store(out + (t.to(tl.int64) * H + head)[:, None] * D + d, sums.to(out.dtype.element_ty), mask=real[:, None])
