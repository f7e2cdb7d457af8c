# mypy: ignore-errors
"""What the parts of the kernel share on the device: a token's score, its mass under a row's law, and named uniforms."""

from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LATE: tl.constexpr = tl.constexpr(2147483647)  # no token has this id


class Rows(NamedTuple):
    """Rows of raw logits and what edits them; a missing edit is None and leaves no code behind."""

    logits: Any  # [B, N, V]
    stride_b: Any
    stride_n: Any
    size: Any  # V
    node: Any  # the first row's node in the chain, dull
    tokens: Any  # [B, K] the drafts
    drafts: Any  # K, dull
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

    shift: Any
    scale: Any
    cutoff: Any  # None where no row is truncated
    first: Any  # None where no row is truncated or greedy
    crest: Any  # None where it was not asked for or rows are truncated
    height: Any  # as crest
    stride: Any


class Stats(NamedTuple):
    """What the first pass leaves of each span of each row."""

    peak: Any  # [B * N, S] largest score
    # [B * N, S] sum of 2 ** (slope * score - shift), where shift is slope * peak, rounded; None where every row is
    # greedy or has top-k, and then the peak is NaN where a score is
    norm: Any
    first: Any  # [B * N, S] smallest id of the largest score
    group: Any  # [B * N, G] largest score of each group of tokens; None where nothing is truncated
    block: Any  # [B * N, G / BLOCK] largest score of each BLOCK groups
    share: Any  # [B * N, G] like norm, of each group and its own peak; None unless many tokens may stay
    height: Any  # [B * N, C] scores of the drafter's large tokens; None where they are not wanted


class Lists(NamedTuple):
    """Tokens of a truncated row that are read again."""

    groups: Any  # [B * N, limit] the first tokens of the groups that hold them
    limit: Any  # groups in a row
    ids: Any  # [B * N, room] the tokens in order
    scores: Any  # [B * N, room]
    room: Any
    count: Any  # [B * N] how many are listed; -1 where nothing is truncated or they found no room


class State(NamedTuple):
    """The rules and noise of sequences, and what is found out about them."""

    rule: Any  # [B], None where nothing is drafted
    seed: Any
    request: Any
    step: Any
    lane: Any  # of the emitted token's uniform
    index: Any  # dull
    # [B, 8]: the last accepted node, -1 while block verification needs the excess of several; the first and the last
    # node whose excess is wanted; number of drafts; fault; places taken before. None where nothing is to be emitted
    facts: Any = None
    # [B, N] w, the factor of p in the excess, of the first row whose excess is wanted and those after it
    weight: Any = None
    chance: Any = None  # [B, N] p of the draft after each node
    # Rows whose excess is wanted have a place each (`places.place_of`): the first of sequence b has place b
    places: Any = None  # [B * N, 16] what is known of the row, as `places.keep` writes it
    sums: Any = None  # [B * N, E] excess of each chunk of tokens
    totals: Any = None  # [B * N, Q] excess of each program's part of a row
    shifts: Any = None  # [B, E] of each chunk of a row that was not measured: the power of two that its sum counts
    work: Any = None  # [1] how many places are taken beyond the first B; None where nobody sums


def dull(number: int) -> int:
    """A number that moves from call to call, made one that the compiler builds no kernel of its own for."""
    return 2 * number + 3


@triton.jit
def plain(number):
    """What `dull` was given."""
    return (number - 3) // 2


@triton.jit
def next_may_begin(EARLY: tl.constexpr):
    """The next kernel may be loaded while this one runs; `wait` there makes it wait for this one's results."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def wait(EARLY: tl.constexpr):
    """Until the kernel before this one has ended."""
    if EARLY:
        gdc_wait()


@triton.jit
def known(number):
    """Always true of a number that is not as low as -1e30, but not before it is there.

    A wait that hangs on it is not put before the work for it; else the compiler puts off until after the wait what was
    meant to be done in the meantime.
    """
    return (number < -1e30) == 0


@triton.jit
def at(x, k):
    """The entry of x at k; 0 where there is none."""
    return tl.sum(tl.where(tl.arange(0, x.shape[0]) == k, x, 0), 0)


@triton.jit
def is_read(rows, b, n, LAZY: tl.constexpr):
    """Whether a draft leads to row n. LAZY: whether one leaves it, the row after the last draft being read later."""
    used = n == 0
    if LAZY:
        used = tl.load(rows.tokens + b * plain(rows.drafts) + n) >= 0
    elif n > 0:
        used = tl.load(rows.tokens + b * plain(rows.drafts) + plain(rows.node) + n - 1) >= 0
    return used


@triton.jit
def score(rows, b, n, ids, inside):
    """Logits after bias, penalties and masks, in float32; minus infinity outside the row. None: all are inside."""
    return edit(rows, raw(rows, b, n, ids, inside), b, n, ids, inside)


@triton.jit
def raw(rows, b, n, ids, inside):
    """Logits as they are; minus infinity outside the row."""
    at = rows.logits + b * rows.stride_b + n * rows.stride_n + ids
    # a select for every token is a tenth of the arithmetic
    return tl.load(at) if inside is None else tl.load(at, mask=inside, other=float("-inf"))


@triton.jit
def edit(rows, s, b, n, ids, inside):
    """The scores of raw logits."""
    s = s.to(tl.float32)
    if rows.bias is not None:
        s += tl.load(rows.bias + b * rows.size + ids, mask=inside)
    if rows.penalties is not None:
        seen = tl.load(rows.seen + b * rows.size + ids, mask=inside)
        made = tl.load(rows.made + b * rows.size + ids, mask=inside)
        for i in range(plain(rows.drafts)):  # the path to node n is part of its history
            hit = (ids == tl.load(rows.tokens + b * plain(rows.drafts) + i)) & (i < n + plain(rows.node))
            seen += hit.to(tl.int32)
            made += hit.to(tl.int32)
        repetition = tl.load(rows.penalties + 3 * b)
        penalised = tl.where(s < 0, s * repetition, tl.div_rn(s, tl.zeros_like(s) + repetition))
        s = tl.where(seen > 0, penalised, s)
        s -= tl.load(rows.penalties + 3 * b + 1) * (made > 0).to(tl.float32)
        s -= tl.load(rows.penalties + 3 * b + 2) * made.to(tl.float32)
    if rows.allowed is not None:
        word = tl.load(rows.allowed + (b * rows.nodes + n + plain(rows.node)) * rows.words + ids // 32, mask=inside)
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
def shift_of(peak, rate):
    """slope * peak as a whole number: sums of 2 ** (slope * score - shift) differ by powers of 2, which are exact."""
    return tl.where(peak == float("-inf"), 0.0, lane_shift(peak, rate))


@triton.jit
def lane_shift(peak, rate):
    """Like shift_of, but below all others where there is no token: so a sum can begin.

    Adding 1.5 * 2 ** 23 rounds to a whole number on the units that multiply; those that round also make exponentials,
    of which there is one a token.
    """
    return tl.maximum(tl.fma(peak, rate, 12582912.0) - 12582912.0, -1e30)


@triton.jit
def recall(rows, law, b, n, there):
    """Numbers that make scores of rows n probabilities: shift, scale, cutoff, first id, slope and whether greedy."""
    at = b * law.stride + n
    shift = tl.load(law.shift + at, mask=there, other=0.0)
    scale = tl.load(law.scale + at, mask=there, other=0.0)
    cutoff, first = shift, n * 0
    if law.cutoff is not None:
        cutoff = tl.load(law.cutoff + at, mask=there, other=0.0)
    if law.first is not None:
        first = tl.load(law.first + at, mask=there, other=0)
    rate, greedy = slope(rows, b)
    return shift, scale, cutoff, first, rate, greedy


@triton.jit
def weigh(law, s, ids, numbers):
    """The probability of tokens `ids` with scores s by the numbers of `recall`; minus infinity weighs nothing."""
    shift, scale, cutoff, first, rate, greedy = numbers
    p = tl.exp2(tl.fma(s, rate, -shift)) * scale
    if law.cutoff is not None:
        p = tl.where((s > cutoff) | ((s == cutoff) & (ids >= first)), p, 0.0)
    if law.first is not None:
        p = tl.where(greedy, ((ids == first) & (s > float("-inf"))).to(tl.float32), p)
    return p


@triton.jit
def stopping(state, b):
    """The rule of a sequence and the uniform that it stops by; zeros where nothing is drafted."""
    rule, v = tl.zeros((), tl.int32), tl.zeros((), tl.float64)
    if state.rule is not None:
        rule, v = tl.load(state.rule + b), uniform(state, b, 1, 0)
    return rule, v


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
