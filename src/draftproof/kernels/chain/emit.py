# mypy: ignore-errors
"""Last kernel: finish the decision where a draft stops, and draw the token after it.

One program for each sequence finds the chunk of the vocabulary in which the cumulated residual crosses the uniform, and
reads that chunk alone once more; or it goes through the row's list.
"""

import triton
import triton.language as tl

from draftproof.kernels.chain.residual import list_length, load_ids, residual_of
from draftproof.kernels.chain.state import OVERFLOW, decision_field, load_decision, load_rule
from draftproof.kernels.chain.worklist import ResidualRow, entry_of, load_item, residual_row
from draftproof.kernels.lib.codes import NO_TOKEN, TARGET_FAULT
from draftproof.kernels.lib.inverse_cdf import chunk_at, token_at
from draftproof.kernels.lib.laws import RowLaw, load_law, probability
from draftproof.kernels.lib.pdl import computed, launch_dependents, wait
from draftproof.kernels.lib.rows import load_scores, value_of
from draftproof.kernels.lib.uniform import uniform


@triton.jit(do_not_specialize=["N", "chunks", "parts"])
def emit(
    pair, lists, state, out, N, chunks, parts,
    CHUNK: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_CHUNKS: tl.constexpr, BLOCK_PARTS: tl.constexpr,
    DENSE: tl.constexpr, DEFER_LAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The outcome of one sequence. What may be needed is loaded before it is known whether it is."""
    launch_dependents(PDL)
    rows, laws = pair.rows, pair.laws
    b = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK_N)
    u = uniform(state.noise, b, state.lane, value_of(state.index))
    _rule, v = load_rule(state, b)
    x = tl.load(rows.tokens_ptr + b * value_of(rows.drafts) + n, mask=n < N - 1, other=-1)
    if computed(tl.sum(x, 0) + u + v):
        wait(PDL)
    stop, low, high, length, fault = load_decision(state, b)
    c = tl.arange(0, BLOCK_CHUNKS)
    part = tl.arange(0, BLOCK_PARTS)
    item = load_item(state, pair, b)  # mostly the only row of the sequence
    sums = tl.load(state.sums_ptr + b * chunks + c, mask=c < chunks, other=0.0)
    total = tl.sum(tl.load(state.totals_ptr + b * parts + part, mask=part < parts, other=0.0), 0).to(tl.float64)
    shifts = sums
    if DEFER_LAST:
        shifts = tl.load(state.shifts_ptr + b * chunks + c, mask=c < chunks, other=-1e30)
    if state.rule_ptr is not None:
        overflow, residuals, w = low * 0, n * u, n * u
        if DENSE:
            residuals, w = load_residuals(state, b, n, overflow, N, N, parts, BLOCK_PARTS, DENSE)
        if stop < 0:
            if not DENSE:
                overflow = tl.load(decision_field(state, b, OVERFLOW))
                residuals, w = load_residuals(state, b, n, overflow, high - low + 1, N, parts, BLOCK_PARTS, DENSE)
            stop = low + last_accepted(n, v, low * 0, length - low, residuals, w)
            if stop > low:
                entry = entry_of(stop - low, b, tl.num_programs(0), overflow, DENSE).to(tl.int64)
                item = load_item(state, pair, entry)
                sums = tl.load(state.sums_ptr + entry * chunks + c, mask=c < chunks, other=0.0)
                total = tl.sum(tl.where(low + n == stop, residuals, 0.0), 0)
    token = stop * 0
    unmeasured = low > high  # whether the law of the row is known only now, as these numbers
    shift, scale = tl.zeros((), tl.float32), tl.zeros((), tl.float32)
    sums = sums.to(tl.float64)
    if low <= high:
        listed = list_length(lists, b * N + stop)
        if DEFER_LAST:
            unmeasured = stop == length
            if unmeasured:
                shift, scale, sums = law_from_chunks(shifts, sums)
                total = tl.sum(sums, 0)
        row = residual_row(item, (total <= 0) | unmeasured)
        row = ResidualRow(late_law(row.p_law, unmeasured, shift, scale), row.q_law, row.drawn, row.hit)
        token = draw_token(pair, lists, b, stop, u, total, sums, row, listed, N, True, CHUNK)
        fault += tl.where(unmeasured & ~(total > 0), TARGET_FAULT, 0)
    elif laws.first_ptr is not None:
        token = tl.load(laws.first_ptr + b * laws.stride + stop)  # of a greedy row
    law = RowLaw(shift, scale, shift, stop, scale, unmeasured)
    chance = tl.full((BLOCK_N,), 1.0, tl.float32)
    if out.logprob is not None:
        law = late_law(load_law(rows, laws, b, stop, stop >= 0), unmeasured, shift, scale)
        if state.rule_ptr is not None:
            chance = tl.load(state.chance_ptr + b * N + n, mask=n < N, other=1.0)
    store_outcome(rows, laws, out, b, x, stop, token, fault, law, chance, N, BLOCK_N)


@triton.jit
def load_residuals(state, b, i, overflow, count, N, parts, BLOCK_PARTS: tl.constexpr, DENSE: tl.constexpr):
    """Sum of the residual, and weight, of the rows of sequence b whose residual is wanted, at most `count`."""
    part = tl.arange(0, BLOCK_PARTS)[None, :]
    start = entry_of(i, b, tl.num_programs(0), overflow, DENSE)[:, None] * parts
    totals = tl.load(state.totals_ptr + start + part, mask=(i < count)[:, None] & (part < parts), other=0.0)
    return tl.sum(totals, 1).to(tl.float64), tl.load(state.weight_ptr + b * N + i, mask=i < N, other=0.0)


@triton.jit
def store_outcome(rows, laws, out, b, x, stop, token, fault, law, chance, N, BLOCK_N: tl.constexpr):
    """Write the drafts before node `stop`, the token after them, and if wanted the logs of their p.

    `x` [BLOCK_N] are the drafts, `chance` [BLOCK_N] is p of each, `law` is that of the row the token comes from.
    """
    n = tl.arange(0, BLOCK_N)
    sound = (fault & TARGET_FAULT) == 0
    token = tl.where(sound, token, 0)
    stop = tl.where(sound, stop, 0)
    x = tl.where(n < stop, x, -1)
    tl.store(out.tokens + b * N + n, tl.where(n == stop, token.to(tl.int64), x), mask=n < N)
    tl.store(out.accepted + b, stop)
    tl.store(out.fault + b, fault)
    if out.logprob is not None:
        one = tl.zeros((1,), tl.int32)
        p = tl.sum(probability(laws, load_scores(rows, b, stop, token + one, one == 0), token + one, law), 0)
        p = tl.where((n == stop) & sound, p, tl.where(n < stop, chance, 1.0))
        tl.store(out.logprob + b * N + n, tl.log(p), mask=n < N)


@triton.jit
def last_accepted(n, v, low, length, residuals, w):
    """The node at which block verification's scan from the back ends, not below `low`."""
    back = n.shape[0] - 1 - n
    accepted = accepts(back, v, low, length, tl.gather(residuals, back, 0), tl.gather(w, back, 0))
    return tl.max(tl.where(accepted, back, low), 0)


@triton.jit
def accepts(n, v, low, length, residuals, w):
    """Which of the nodes n, from the last to the first, block verification accepts if it comes to them above `low`.

    Node n is accepted with h = Z / (Z + 1 - w), where Z, in `residuals`, is the sum of its residual; `beyond` is the
    probability that all nodes down to it are rejected.
    """
    asked = (n > low) & (n < length)
    rejected = tl.where(asked, 1.0 - residuals / (residuals + 1.0 - w), tl.where(n == length, 1.0 - w, 1.0))
    beyond = tl.cumprod(rejected, 0)
    return asked & (v >= beyond)


@triton.jit
def law_from_chunks(shifts, sums):
    """Shift and scale of a row that was not measured, from the sums of its chunks; and these sums under that law."""
    shift = tl.max(shifts, 0)
    sums *= tl.exp2(shifts - shift)
    norm = tl.sum(sums, 0)
    scale = tl.where(norm > 0, 1.0 / norm, norm - 1.0)
    return shift, scale.to(tl.float32), sums * scale


@triton.jit
def late_law(law, unmeasured, shift, scale):
    """The law, with this shift and scale in place of its own if the row was not measured."""
    shift, scale = tl.where(unmeasured, shift, law.shift), tl.where(unmeasured, scale, law.scale)
    return RowLaw(shift, scale, law.cutoff, law.first, law.rate, law.greedy)


@triton.jit
def draw_token(
    pair, lists, b, n, u, total, sums, row, listed, N, SUMMED: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """The token of row n at which the cumulated residual first exceeds u times its total. SUMMED: `sums` of its chunks
    are known."""
    vocabulary = pair.rows.vocabulary
    empty = total <= 0  # probability zero but for rounding: p stands in, as in law.residual
    threshold = u * tl.where(empty, 1.0, total)
    o = n * 0
    end = tl.where(listed < 0, vocabulary, listed)
    running = u * 0
    if SUMMED:
        chunk, before = chunk_at(sums, threshold)
        helps = (listed < 0) & ~empty
        o = tl.where(helps, chunk * CHUNK, 0)
        end = tl.where(helps, tl.minimum(o + CHUNK, vocabulary), end)
        running = tl.where(helps, before, 0.0)
    token = o * 0 + NO_TOKEN
    final = o * 0
    while (o < end) & (token == NO_TOKEN):
        ids = load_ids(lists, b * N + n, listed, o + tl.arange(0, CHUNK), end)
        masses = residual_of(pair, b, n, row, ids).to(tl.float64)
        reached, last, running = token_at(ids, masses, running, threshold)
        token, final = tl.minimum(token, reached), tl.maximum(final, last)
        o += CHUNK
    return tl.minimum(token, final)
