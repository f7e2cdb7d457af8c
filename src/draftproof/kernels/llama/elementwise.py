# mypy: ignore-errors
"""What a Llama layer does between its products, one launch each: RMSNorm, gated SiLU, rotary angles, head inputs."""

import triton
import triton.language as tl

from draftproof.kernels.lib.pdl import launch_dependents, wait


@triton.jit
def rms_norm(x, residual, weight, total, out, eps, width, W: tl.constexpr, EARLY: tl.constexpr):
    """RMSNorm of one row of x [R, width]; with a `residual`, of their sum, which is stored in `total`."""
    launch_dependents(EARLY)
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64) * width
    i = tl.arange(0, W)
    inside = i < width
    value = tl.load(x + row + i, mask=inside, other=0.0).to(tl.float32)
    if residual is not None:
        value += tl.load(residual + row + i, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + row + i, value.to(total.dtype.element_ty), mask=inside)
        value = value.to(total.dtype.element_ty).to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    value *= tl.load(weight + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + i, value.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["eps", "other_eps", "T", "S", "N"])
def head_inputs(
    states, parent, tokens, number, embeddings, weight, other_weight, out, eps, other_eps, T, S, N, width,
    W: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """What a trained head reads: RMSNorms of a state and of a token's embedding, side by side.

    A program writes one half of a row of out [B, T, 2 * width]: from states [B, S, width], taken as `parent` [T] says,
    or from the embedding of tokens [B, N], taken as `number` [T] says; None means one after another.
    """
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
def silu_gate(gate_up, out, width, W: tl.constexpr, EARLY: tl.constexpr):
    """silu(gate) * up for W columns of one row of gate_up [R, 2 * width], in which gate and up lie side by side."""
    launch_dependents(EARLY)
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64) * width
    i = tl.program_id(1) * W + tl.arange(0, W)
    inside = i < width
    x = tl.load(gate_up + 2 * row + i, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + 2 * row + width + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + i, (x / (1.0 + tl.exp(-x)) * up).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["scale"])
def rotary_angles(positions, frequencies, cos, sin, scale, D: tl.constexpr):
    """Cosine and sine [D] of one token's position; the first half of the sines is negated."""
    i = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D // 2)
    angle = tl.load(positions + i).to(tl.float32) * tl.load(frequencies + d)
    c, s = tl.cos(angle) * scale, tl.sin(angle) * scale
    tl.store(cos + i * D + d, c.to(cos.dtype.element_ty))
    tl.store(cos + i * D + D // 2 + d, c.to(cos.dtype.element_ty))
    tl.store(sin + i * D + d, (-s).to(sin.dtype.element_ty))
    tl.store(sin + i * D + D // 2 + d, s.to(sin.dtype.element_ty))
