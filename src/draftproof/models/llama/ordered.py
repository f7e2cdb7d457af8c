"""What lanes.h, attention.c and linear.c of draftproof.native compute, in torch and to the last bit.

A quantised model rounds its activations to bytes, and where a sum is one bit larger a byte may be one larger, and so on
from layer to layer: it would be another model on another processor. So floats are added in one order, sixteen lanes at
a time, every operation is rounded by itself, and exp is written out. torch's own sums follow no order, and its exp and
its fused operations differ from machine to machine; here are only those of its operations that IEEE 754 defines.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812

LANES = 16


def lanes(x: torch.Tensor, filling: float = 0.0) -> torch.Tensor:
    """x [..., n] as [..., n / 16, 16], the end filled up."""
    whole = F.pad(x, (0, -x.shape[-1] % LANES), value=filling)
    return whole.view(*whole.shape[:-1], -1, LANES)


def total(x: torch.Tensor) -> torch.Tensor:
    """The sum over lanes [..., n, 16]: lane by lane from the front, then neighbours until one number is left."""
    sums = x[..., 0, :]
    for i in range(1, x.shape[-2]):
        sums = sums + x[..., i, :]
    while sums.shape[-1] > 1:
        sums = sums[..., ::2] + sums[..., 1::2]
    return sums[..., 0]


def squares(x: torch.Tensor) -> torch.Tensor:
    """The sum of squares [..., 1] of x [..., width]."""
    return total(lanes(x * x))[..., None]


def root(x: torch.Tensor) -> torch.Tensor:
    """The square root of x in float32, correctly rounded: torch's own is not, but near enough in double precision."""
    return x.double().sqrt().float()


def exp(x: torch.Tensor) -> torch.Tensor:
    """exp(x) with a relative error below 1e-6, from 2^-126 to 2^126."""
    t = (x * 1.44269504).clamp(-126, 126)
    whole = torch.round(t)
    f = t - whole
    p = f * 0.000154035304 + 0.00133335581
    p = f * (f * p + 0.00961812911) + 0.0555041087
    p = f * (f * (f * p + 0.240226507) + 0.693147181) + 1
    power = ((whole.nan_to_num().to(torch.int32) + 127) << 23).view(torch.float32)
    return power * p


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm of x [..., width]."""
    return x * (1 / root(squares(x) / x.shape[-1] + eps)) * weight


def gate(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of [..., 2 * width]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate / (exp(-gate) + 1) * up


def to_bytes(x: torch.Tensor, gain: torch.Tensor | None, floor: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row of x [M, K], times the gain [K], as low + unit * byte: bytes [M, K], and unit and low [M, 2].

    With a floor, unit and low are divided by the root of floor^2 plus the sum of the row's squares.
    """
    z = x if gain is None else x * gain
    low, high = z.amin(dim=-1, keepdim=True), z.amax(dim=-1, keepdim=True)
    unit = (high - low) / 255
    steps = torch.where(unit > 1e-30, 1 / unit, 0)
    whole = ((z - low) * steps + 0.5).nan_to_num().clamp(0, 255).to(torch.uint8)
    square = squares(x)
    affine = torch.cat([unit, torch.where(square.isnan(), torch.nan, low)], dim=-1)
    if floor is None:
        return whole, affine
    least = torch.tensor(floor)  # in float32
    return whole, affine * (1 / root(least * least + square))


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Attention output [B, heads, T, size] of queries [B, heads, T, size] to keys and values [B, shared, S, size].

    Each token adds up the slots that it sees (visible [B, T, S]) in their order, so it does not matter where they are.
    """
    (batch, shared, slots, size), (_, heads, tokens, _) = k.shape, q.shape
    q = q.view(batch, shared, heads // shared, tokens, size)
    most = max(1, (1 << 22) // (batch * shared * slots * size))  # tokens at a time, for memory
    outputs = [
        _attend(q[:, :, :, i : i + most], k, v, visible[:, i : i + most].expand(batch, -1, -1))
        for i in range(0, tokens, most)
    ]
    return torch.cat(outputs, dim=3).flatten(1, 2)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """[B, shared, group, T, size]; q of that shape too."""
    count = visible.sum(dim=-1)  # [B, T]
    most = int(count.max())
    order = visible.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[..., :most]  # [B, T, S]
    each = torch.arange(len(k))[:, None, None]
    keys, values = (part.transpose(1, 2)[each, order].permute(0, 3, 1, 2, 4)[:, :, None] for part in (k, v))
    scores = total(lanes(q[..., None, :]) * lanes(keys))  # [B, shared, group, T, S]
    scores = scores * (1 / root(torch.tensor(float(q.shape[-1]))))
    scores = scores.masked_fill((torch.arange(most) >= count[..., None])[:, None, None], -torch.inf)
    apart = scores - scores.amax(dim=-1, keepdim=True)
    weights = torch.where(apart < -60, 0, exp(apart))
    out = torch.zeros_like(q)
    for s in range(most):
        out = out + weights[..., s, None] * values[..., s, :]
    return out / total(lanes(weights))[..., None]
