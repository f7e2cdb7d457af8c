# mypy: ignore-errors
"""Causal attention among the tokens of whole prompts packed into one call: FlashAttention (Dao et al. 2205.14135)."""

import triton
import triton.language as tl

from draftproof.kernels.lib.pdl import launch_dependents, wait
from draftproof.kernels.llama.attention import load_rotated, online_softmax


@triton.jit(do_not_specialize=["window", "scale", "T", "G", "H", "capacity"])
def prefill_attention(
    qkv, cos, sin, slots, rows, keys, values, out, window, scale, T, G, H, capacity,
    D: tl.constexpr, TOKENS: tl.constexpr, M: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """TOKENS of T tokens and one KV head, which G query heads share.

    qkv [T, (H + 2 * kv_heads) * D]; cos, sin [T, D]; slots, rows [T]: where the tokens' entries go in keys and values
    [rows, kv_heads, capacity, D]; out [T, H * D]. A token in slot s sees itself and the s - 1 tokens before it; with a
    window, at most `window` in all. Every program rotates the keys it reads, so nobody waits for them to be stored.
    """
    launch_dependents(EARLY)
    wait(EARLY)
    begin, h = tl.program_id(0) * TOKENS, tl.program_id(1)
    kv_heads = tl.num_programs(1)
    width = (H + 2 * kv_heads).to(tl.int64) * D
    d = tl.arange(0, D)[None, :]
    i = begin + tl.arange(0, TOKENS)
    inside = i < T
    at = i * width + (H + h) * D
    slot = tl.load(slots + i, mask=inside, other=0)
    entry = ((tl.load(rows + i, mask=inside, other=0) * kv_heads + h) * capacity + slot)[:, None] * D + d
    k = load_rotated(qkv, cos, sin, at, i, inside, D)
    v = tl.load(qkv + (at + kv_heads * D)[:, None] + d, mask=inside[:, None], other=0.0)
    tl.store(keys + entry, k.to(keys.dtype.element_ty), mask=inside[:, None])
    tl.store(values + entry, v, mask=inside[:, None])
    m = tl.arange(0, M)
    t = begin + m // G
    real = (m < TOKENS * G) & (t < T)
    head = h * G + m % G
    q = load_rotated(qkv, cos, sin, t * width + head * D, t, real, D).to(keys.dtype.element_ty)
    sees = tl.maximum(tl.load(slots + t, mask=real, other=1).to(tl.int32), 1)
    if WINDOW:
        sees = tl.minimum(sees, window)
    first = t - sees + 1
    peak = tl.full((M,), -1e30, tl.float32)  # not minus infinity: differences of infinities are NaN
    norm = tl.zeros((M,), tl.float32)
    sums = tl.zeros((M, D), tl.float32)
    for start in tl.range(tl.min(first, 0), tl.minimum(begin + TOKENS, T), BLOCK):
        j = start + tl.arange(0, BLOCK)
        key_at = j * width + (H + h) * D
        visible = (j[None, :] >= first[:, None]) & (j[None, :] <= t[:, None])
        key = load_rotated(qkv, cos, sin, key_at, j, j < T, D).to(q.dtype)
        value = tl.load(qkv + (key_at + kv_heads * D)[:, None] + d, mask=(j < T)[:, None], other=0.0)
        peak, norm, sums = online_softmax(q, key, value, visible, scale, peak, norm, sums)
    sums = sums / tl.where(real, norm, 1.0)[:, None]
    tl.store(out + (t.to(tl.int64) * H + head)[:, None] * D + d, sums.to(out.dtype.element_ty), mask=real[:, None])
