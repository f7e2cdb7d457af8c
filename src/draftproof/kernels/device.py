# mypy: ignore-errors
"""What the three kernels share on the device: a token's score, its mass under a row's law, and named uniforms."""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Rows(NamedTuple):
    """Rows of raw logits and what edits them; a missing edit is None and leaves no code behind."""

    logits: Any  # [B, N, V]
    stride_b: Any
    stride_n: Any
    size: Any  # V
    node: Any  # the first row's node in the chain
    tokens: Any  # [B, K] the drafts
    drafts: Any  # K
    temperature: Any  # [B]
    bias: Any
    penalties: Any
    seen: Any
    made: Any
    allowed: Any  # [B, nodes, words]
    nodes: Any
    words: Any


class Law(NamedTuple):
    """Summaries of rows: types.Summary by pointers."""

    peak: Any
    scale: Any
    cutoff: Any  # None where no row is truncated
    first: Any  # None where no row is truncated or greedy
    stride: Any


class Stats(NamedTuple):
    """What the first pass leaves of each chunk of each row."""

    peak: Any  # [B * N, S] largest score
    norm: Any  # [B * N, S] sum of exp((score - peak) / temperature)
    first: Any  # [B * N, S] smallest id of the largest score
    group: Any  # [B * N, S * C / GROUP] largest score of each group of tokens; None where nothing is truncated


class State(NamedTuple):
    """What one launch tells the next about a sequence, and its noise."""

    rule: Any  # [B], None where nothing is drafted
    seed: Any
    request: Any
    step: Any
    lane: Any  # of the emitted token's uniform
    index: Any
    stop: Any  # [B] the last accepted node; -1 while block verification needs the excess of several nodes
    low: Any  # [B] first and ...
    high: Any  # [B] ... last node whose excess is wanted
    length: Any  # [B] how many drafts there are
    fault: Any  # [B]
    weight: Any  # [B, N] factor of p in the excess
    chance: Any  # [B, N] p of the draft after each node
    excess: Any  # [B * N, S] sum over a chunk of (weight p - q)+
    arrived: Any  # [B] programs that are done; always left at zero


@triton.jit
def score(rows, b, n, ids, inside):
    """Logits after bias, penalties and masks, in float32; minus infinity outside the row."""
    s = tl.load(rows.logits + b * rows.stride_b + n * rows.stride_n + ids, mask=inside, other=float("-inf"))
    s = s.to(tl.float32)
    if rows.bias is not None:
        s += tl.load(rows.bias + b * rows.size + ids, mask=inside, other=0.0)
    if rows.penalties is not None:
        seen = tl.load(rows.seen + b * rows.size + ids, mask=inside, other=0)
        made = tl.load(rows.made + b * rows.size + ids, mask=inside, other=0)
        for i in range(rows.drafts):  # the path to node n is part of its history
            hit = (ids == tl.load(rows.tokens + b * rows.drafts + i)) & (i < n + rows.node)
            seen += hit.to(tl.int32)
            made += hit.to(tl.int32)
        repetition = tl.load(rows.penalties + 3 * b)
        penalised = tl.where(s < 0, s * repetition, tl.div_rn(s, tl.zeros_like(s) + repetition))
        s = tl.where(seen > 0, penalised, s)
        s -= tl.load(rows.penalties + 3 * b + 1) * (made > 0).to(tl.float32)
        s -= tl.load(rows.penalties + 3 * b + 2) * made.to(tl.float32)
    if rows.allowed is not None:
        word = tl.load(rows.allowed + (b * rows.nodes + n + rows.node) * rows.words + ids // 32, mask=inside, other=0)
        sound = s < float("inf")  # NaN and +inf are faults of the model, not to be hidden by a mask
        s = tl.where((((word >> (ids % 32)) & 1) == 0) & sound, float("-inf"), s)
    return s


@triton.jit
def slope(rows, b):
    """log2(e) / temperature, so that exp2(slope * score) is the weight of a token; 1 for greedy rows, and whether."""
    t = tl.load(rows.temperature + b)
    greedy = t == 0
    return tl.where(greedy, 1.0, 1.4426950408889634 / tl.where(greedy, 1.0, t)), greedy


@triton.jit
def weigh(rows, law, b, n, ids, inside, peak, scale, cutoff, first):
    """The probability of tokens `ids` in row n, whose law is given; minus infinity outside weighs nothing."""
    s = score(rows, b, n, ids, inside)
    rate, greedy = slope(rows, b)
    p = tl.exp2((s - peak) * rate) * scale
    if law.cutoff is not None:
        p = tl.where((s > cutoff) | ((s == cutoff) & (ids >= first)), p, 0.0)
    if law.first is not None:
        p = tl.where(greedy, (ids == first).to(tl.float32), p)
    return p


@triton.jit
def mass(rows, law, b, n, ids, inside):
    """The probability of tokens `ids` in row n."""
    at = b * law.stride + n
    peak = tl.load(law.peak + at)
    scale = tl.load(law.scale + at)
    cutoff, first = peak, 0
    if law.cutoff is not None:
        cutoff = tl.load(law.cutoff + at)
    if law.first is not None:
        first = tl.load(law.first + at)
    return weigh(rows, law, b, n, ids, inside, peak, scale, cutoff, first)


@triton.jit
def uniform(state, b, lane, index):
    """The float64 in [0, 1) that noise.py gives this name."""
    word = tl.zeros((), dtype=tl.uint32)
    high, low, _, _ = tl.philox(
        tl.load(state.seed + b),
        (word + index).to(tl.uint32),
        (word + lane).to(tl.uint32),
        tl.load(state.step + b).to(tl.uint32),
        tl.load(state.request + b).to(tl.uint32),
    )
    return ((high >> 5).to(tl.float64) * 67108864.0 + (low >> 6).to(tl.float64)) * 1.1102230246251565e-16
