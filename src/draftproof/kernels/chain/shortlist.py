# mypy: ignore-errors
"""One kernel in place of the last three where top-k makes every row's list short: decide and draw from the lists."""

import triton
import triton.language as tl

from draftproof.kernels.chain.decide import accept, lacks_law, load_drafts
from draftproof.kernels.chain.emit import accepts, draw_token, last_accepted, store_outcome
from draftproof.kernels.chain.residual import load_ids, q_kind, residual_of
from draftproof.kernels.chain.state import load_rule, store_reach
from draftproof.kernels.chain.worklist import ResidualRow
from draftproof.kernels.lib.codes import NO_TOKEN, TARGET_FAULT
from draftproof.kernels.lib.laws import RowLaw, load_law, probability, rate_of, scaled
from draftproof.kernels.lib.pdl import computed, launch_dependents, wait
from draftproof.kernels.lib.rows import apply_controls, element, load_logits, value_of
from draftproof.kernels.lib.uniform import uniform


@triton.jit(do_not_specialize=["N"])
def verify_lists(
    pair, lists, state, out, N,
    BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The outcome of one sequence. A token is drawn from every row while it is decided which of them counts."""
    launch_dependents(PDL)
    rows, laws, draft_rows = pair.rows, pair.laws, pair.draft_rows
    b = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK_N)
    u = uniform(state.noise, b, state.lane, value_of(state.index))
    u = tl.minimum(u, 1.0 - 1e-12)  # or the cumulated sums, rounded, may never exceed u times their total
    rule, v = load_rule(state, b)
    rate, greedy = rate_of(rows, b)
    drafts = load_drafts(pair, rule, b, N, BLOCK_N, False)
    x, q, q_law, length = drafts.ids, drafts.q, drafts.q_law, drafts.length
    drawn, hit = q_kind(n, x.to(tl.int32), length, rule)
    listed, shift, scale, cutoff, first = n * 0, q * 0, q * 0, q * 0, n * 0
    ids = tl.full((WIDTH, BLOCK_N), NO_TOKEN, tl.int32)
    scores = tl.zeros((WIDTH, BLOCK_N), tl.float32)
    # the loads too, or the compiler waits for the laws, to decide by, before it issues the loads of the lists
    if computed(tl.sum(tl.abs(q) + x, 0) + u + v + rate + length + drafts.fault):
        wait(PDL)
        shift, scale, cutoff, first, _, _ = load_law(rows, laws, b, n, n < N)
        listed = tl.load(lists.count_ptr + b * N + n, mask=n < N, other=0)
        ids, scores = load_lists(lists, b, n, N, WIDTH)
    ids = tl.where(tl.arange(0, WIDTH)[:, None] < listed[None, :], ids, NO_TOKEN)
    inside = ids < tl.where(drawn, rows.vocabulary, 0)[None, :]
    logits = None if draft_rows.logits_ptr is None else load_logits(draft_rows, b, n[None, :], ids, inside)
    p_law = RowLaw(shift, scale, cutoff, first, rate, greedy)
    p = tl.where(n < length, probability(laws, drafts.scores, x, p_law), 0.0)
    stop, low, high, weights, reach = accept(n, v, p, q, length, rule)
    fault = drafts.fault + tl.where(lacks_law(n, p_law, tl.maximum(stop, length - 1)), TARGET_FAULT, 0)
    store_reach(state, b, n, N, reach, (fault & TARGET_FAULT) > 0)
    last, token = low, element(first, low)
    if ((fault & TARGET_FAULT) == 0) & (greedy == 0):
        residuals, tokens = draw_each(pair, b, n, ids, scores, logits, inside, p_law, q_law, weights, hit, u)
        back = BLOCK_N - 1 - n  # from the last node to the first
        accepted = back == low
        if stop < 0:
            accepted |= accepts(back, v, low, length, tl.gather(residuals, back, 0), tl.gather(weights, back, 0))
        last, token = tl.reduce((tl.where(accepted, back, -1), tl.gather(tokens, back, 0)), 0, later)
        short = tl.max(tl.where(n <= length, listed, 0).to(tl.uint32), 0) <= WIDTH  # -1, for no list, is the largest
        if (token == NO_TOKEN) | (short == 0):
            last, token = draw_long(
                pair, lists, b, n, u, v, stop, low, high, p_law, q_law, weights, x, listed, length, rule, N, WIDTH
            )
    store_outcome(rows, laws, out, b, x, last, token, fault, load_law(rows, laws, b, last, last >= 0), p, N, BLOCK_N)


@triton.jit
def load_lists(lists, b, n, N, WIDTH: tl.constexpr):
    """The first tokens [WIDTH, BLOCK_N] of all lists and their scores, before it is known how long the lists are.

    Tokens are the first dimension because the compiler lays threads along it where it knows nothing of the addresses:
    so all stays in the threads that have read it.
    """
    n = n[None, :]
    i = tl.arange(0, WIDTH)[:, None]
    at = (b * N + n) * lists.capacity + i
    mask = (n < N) & (i < lists.capacity)
    return tl.load(lists.ids_ptr + at, mask=mask, other=NO_TOKEN), tl.load(lists.scores_ptr + at, mask=mask, other=0.0)


@triton.jit
def draw_each(pair, b, n, ids, scores, logits, inside, p_law, q_law, weights, hit, u):
    """Of every row the sum of its tokens' residual (w p - q)+, and the token at which that exceeds u times the sum, or
    NO_TOKEN. `scores` are the target's, `logits` the drafter's.

    A list this short holds exactly the tokens that are kept.
    """
    law = row_vector(p_law)
    left = tl.exp2(tl.fma(scores, law.rate, -law.shift)) * law.scale * weights.to(tl.float32)[None, :]
    if pair.draft_rows.logits_ptr is not None:
        t = apply_controls(pair.draft_rows, logits, b, n[None, :], ids, inside)
        left -= tl.where(inside, probability(pair.draft_laws, t, ids, row_vector(q_law)), 0.0)
    left = tl.where((ids == NO_TOKEN) | (ids == hit[None, :]), 0.0, tl.maximum(left, 0.0)).to(tl.float64)
    residuals = tl.sum(left, 0)
    reached = (tl.cumsum(left, 0) > (u * residuals)[None, :]) & (left > 0)
    return residuals, tl.min(tl.where(reached, ids, NO_TOKEN), 0)


@triton.jit
def later(n_a, a, n_b, b):
    """The later node and its token, in one reduction."""
    return tl.maximum(n_a, n_b), tl.where(n_a > n_b, a, b)


@triton.jit
def row_vector(law):
    """Laws [BLOCK_N], shaped to stand above their tokens [WIDTH, BLOCK_N]."""
    return RowLaw(
        law.shift[None, :], law.scale[None, :], law.cutoff[None, :], law.first[None, :], law.rate, law.greedy
    )  # fmt: skip


@triton.jit
def draw_long(
    pair, lists, b, n, u, v, stop, low, high, p_law, q_law, weights, x, listed, length, rule, N, WIDTH: tl.constexpr
):  # fmt: skip
    """The last node and the token after it where lists are long or missing, or where rounding has left no token."""
    if stop < 0:
        wanted = (n > low) & (n <= high)
        weighted = row_vector(scaled(p_law, weights.to(tl.float32)))
        drawn, hit = q_kind(n, x, length, rule)
        every = ResidualRow(weighted, row_vector(q_law), drawn[None, :], hit[None, :])
        residuals = sum_lists(pair, lists, b, n, every, tl.where(wanted, listed, 0), N, WIDTH)
        stop = last_accepted(n, v, low, length, residuals.to(tl.float64), weights)
    row = row_at(stop, p_law, q_law, weights, x, length, rule)
    count = element(listed, stop)
    end = tl.where(count < 0, pair.rows.vocabulary, count)
    total = u * 0
    for o in range(0, end, WIDTH):
        ids = load_ids(lists, b * N + stop, count, o + tl.arange(0, WIDTH), end)
        total += tl.sum(residual_of(pair, b, stop, row, ids).to(tl.float64), 0)
    if total <= 0:
        row = row_at(stop, p_law, q_law, weights * 0 + 1.0, x, stop, rule)  # as if no draft followed
    return stop, draw_token(pair, lists, b, stop, u, total, weights, row, count, N, False, WIDTH)


@triton.jit
def row_at(k, p_law, q_law, weights, x, length, rule):
    """Row k as a ResidualRow, from the laws, weights and drafts [BLOCK_N] of all rows."""
    drawn, hit = q_kind(k, element(x, k), length, rule)
    weighted = law_at(p_law, k, factor=weights.to(tl.float32))
    return ResidualRow(weighted, law_at(q_law, k), drawn, hit)


@triton.jit
def law_at(law, k, factor=None):
    """The law of row k, of laws [BLOCK_N], times a factor [BLOCK_N] if given."""
    shift = element(law.shift, k)
    scale = element(law.scale if factor is None else law.scale * factor, k)
    return RowLaw(shift, scale, element(law.cutoff, k), element(law.first, k), law.rate, law.greedy)


@triton.jit
def sum_lists(pair, lists, b, n, every, listed, N, WIDTH: tl.constexpr):
    """The residuals [BLOCK_N] of rows by their lists; of a row too flat for one, by the whole vocabulary."""
    n = tl.minimum(n, N - 1)[None, :]
    listed = listed[None, :]
    end = tl.where(listed < 0, pair.rows.vocabulary, listed)
    left = tl.zeros((WIDTH, listed.shape[1]), tl.float32)
    for o in range(0, tl.max(end), WIDTH):
        ids = load_ids(lists, b * N + n, listed, o + tl.arange(0, WIDTH)[:, None], end)
        left += residual_of(pair, b, n, every, ids)
    return tl.sum(left, 0)
