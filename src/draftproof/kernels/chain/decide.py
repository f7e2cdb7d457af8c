# mypy: ignore-errors
"""Third kernel: decide how far a sequence's draft goes, from a few numbers of each row.

That settles the token and one-hot rules. Block verification accepts node i with h = Z / (Z + 1 - w), where Z is a sum
over the vocabulary; but h never exceeds w, the last node's h is w itself, and w = 1 ends the scan. So the weights w
alone leave one node or a few open, from `low` to `high`, and a few tokens of their rows may leave fewer (`bounds`).
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from draftproof.kernels.chain.bounds import Crest, load_crest, narrow
from draftproof.kernels.chain.residual import q_kind
from draftproof.kernels.chain.state import ChainDecision, load_rule, store_decision, store_reach
from draftproof.kernels.chain.worklist import ResidualRow, store_items
from draftproof.kernels.lib.codes import (
    BLOCK_RULE,
    DRAFT_FAULT,
    IMPOSSIBLE_FAULT,
    NO_TOKEN,
    ONEHOT_RULE,
    TARGET_FAULT,
    TOKEN_FAULT,
)
from draftproof.kernels.lib.inverse_cdf import multiply
from draftproof.kernels.lib.laws import RowLaw, load_law, probability, rate_of, shift_of
from draftproof.kernels.lib.pdl import computed, launch_dependents, wait
from draftproof.kernels.lib.rows import load_scores, value_of


class DraftTokens(NamedTuple):
    """The drafts of a sequence, as vectors over its nodes [BLOCK_N]."""

    ids: Any  # the draft token after each node; 0 from the end on
    scores: Any  # its score in the target's row
    q: Any  # its probability in the draft row; 1 for the one-hot rule
    q_law: Any  # RowLaw of the draft row
    length: Any  # how many there are
    fault: Any  # Fault flags
    measured: Any  # which target rows `measure` has read


@triton.jit(do_not_specialize=["N", "spans"])
def decide(
    pair, stats, state, N, spans,
    BLOCK_N: tl.constexpr, BLOCK_SPANS: tl.constexpr, CREST: tl.constexpr, DENSE: tl.constexpr,
    GREEDY: tl.constexpr, DEFER_LAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One sequence; without a decision to make, only the laws of its rows are combined from their spans.

    What does not need the rows' laws is loaded while the kernel before may still run.
    """
    launch_dependents(PDL)
    b = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)  # the last rows first: they may still be in the cache
    n = tl.arange(0, BLOCK_N)
    rule, v = load_rule(state, b)
    drafts = load_drafts(pair, rule, b, N, BLOCK_N, DEFER_LAST)
    if stats.height_ptr is not None:
        crest_ids, draft_scores = load_crest(pair.draft_laws, rule, b, N, BLOCK_N, CREST)
    if computed(tl.sum(tl.abs(drafts.q) + drafts.ids, 0) + v + drafts.length + drafts.fault):
        wait(PDL)
    if stats.height_ptr is not None:
        i = (b * N + n[:, None]) * CREST + tl.arange(0, CREST)[None, :]
        target_scores = tl.load(stats.height_ptr + i, mask=crest_ids >= 0, other=float("-inf"))
    if pair.laws.cutoff_ptr is None:
        p_law = combine_spans(pair.rows, pair.laws, stats, b, N, spans, drafts.measured, BLOCK_N, BLOCK_SPANS, GREEDY)
    else:
        p_law = load_law(pair.rows, pair.laws, b, n, n < N)
    if state.decision_ptr is not None:
        length = drafts.length
        p = tl.where(n < length, probability(pair.laws, drafts.scores, drafts.ids, p_law), 0.0)
        stop, low, high, weights, reach = accept(n, v, p, drafts.q, length, rule)
        if stats.height_ptr is not None:  # noqa: SIM102  (known when the kernel is compiled; the next when it runs)
            if stop < 0:
                crest = Crest(crest_ids, draft_scores, target_scores)
                stop, low, high = narrow(
                    n, v, pair.laws, pair.draft_laws, crest, p_law, drafts.q_law, weights, low, high
                )
        lost = lacks_law(n, p_law, length - 1 if DEFER_LAST else tl.maximum(stop, length - 1))
        high = tl.where(lost | p_law.greedy, low - 1, high)  # nothing to sum, nothing to draw
        overflow = low * 0
        if state.overflow_ptr is not None:
            if not DENSE:  # noqa: SIM102  (known when the kernel is compiled; the next when it runs)
                if high > low:
                    overflow = tl.atomic_add(state.overflow_ptr, high - low, sem="relaxed")
            unmeasured = n == (length if DEFER_LAST else -1)
            drawn, hit = q_kind(n, drafts.ids, length, rule)
            row = ResidualRow(p_law, drafts.q_law, drawn, hit)
            store_items(state, pair, b, n, N, low, high, overflow, unmeasured, weights, row, DENSE)
        store_reach(state, b, n, N, reach, lost)
        stop, fault = tl.where(lost, 0, stop), drafts.fault + tl.where(lost, TARGET_FAULT, 0)
        store_decision(state, b, ChainDecision(stop, low, high, length, fault), overflow)
        if state.rule_ptr is not None:
            tl.store(state.chance_ptr + b * N + n, p, mask=n < N)
            tl.store(state.weight_ptr + b * N + n - low, weights, mask=(n >= low) & (n < N))


@triton.jit
def lacks_law(n, law, last):
    """Whether a row up to `last` has no law."""
    return tl.sum(((n <= last) & ~(law.scale > 0)).to(tl.int32)) > 0


@triton.jit
def load_drafts(pair, rule, b, N, BLOCK_N: tl.constexpr, DEFER_LAST: tl.constexpr):
    """The DraftTokens of sequence b, up to the first that is invalid."""
    rows, draft_rows = pair.rows, pair.draft_rows
    n = tl.arange(0, BLOCK_N)
    ptrs = rows.tokens_ptr + b * value_of(rows.drafts) + value_of(rows.node) + n
    x = tl.load(ptrs, mask=n < N - 1, other=-1)
    measured = x >= 0
    if not DEFER_LAST:
        measured = (n == 0) | (tl.load(ptrs - 1, mask=(n > 0) & (n < N), other=-1) >= 0)
    length = tl.min(tl.where((x >= 0) & (x < rows.vocabulary), BLOCK_N, n))
    fault = tl.where(tl.sum(((x >= rows.vocabulary) & (n == length)).to(tl.int32)) > 0, TOKEN_FAULT, 0)
    x = tl.where(n < length, x, 0)
    s = load_scores(rows, b, n, x, n < length)
    q = tl.full((BLOCK_N,), 1.0, tl.float32)
    q_law = RowLaw(q, q, q, n, s, n < 0)  # never used
    if draft_rows.logits_ptr is not None:
        t = load_scores(draft_rows, b, n, x, n < length)
        law = load_law(draft_rows, pair.draft_laws, b, n, n < length)
        sound = law.scale > 0  # other rows get no mass, or they would spoil sums over all rows
        shift, scale = tl.where(sound, law.shift, 0.0), tl.where(sound, law.scale, 0.0)
        q_law = RowLaw(shift, scale, law.cutoff, law.first, law.rate, law.greedy)
        broken = tl.min(tl.where((n < length) & (rule != ONEHOT_RULE) & ~sound, n, length))
        fault += tl.where(broken < length, DRAFT_FAULT, 0)
        length = broken
        q = tl.where(rule == ONEHOT_RULE, q, probability(pair.draft_laws, t, x, q_law))
    else:  # every other rule needs the law that a token was drawn from
        fault += tl.where((length > 0) & (rule != ONEHOT_RULE), DRAFT_FAULT, 0)
        length = tl.where(rule == ONEHOT_RULE, length, 0)
    fault += tl.where(tl.sum(((n < length) & (q == 0)).to(tl.int32)) > 0, IMPOSSIBLE_FAULT, 0)
    return DraftTokens(x, s, q, q_law, length, fault, measured)


@triton.jit
def combine_spans(
    rows, laws, stats, b, N, spans, measured, BLOCK_N: tl.constexpr, BLOCK_SPANS: tl.constexpr, GREEDY: tl.constexpr
):  # fmt: skip
    """The laws of a sequence's rows from the statistics of their spans, where nothing is truncated; also stored."""
    n = tl.arange(0, BLOCK_N)
    c = tl.arange(0, BLOCK_SPANS)
    i = (b * N + n[:, None]) * spans + c[None, :]
    mask = measured[:, None] & (c < spans)[None, :]
    peaks = tl.load(stats.peak_ptr + i, mask=mask, other=float("-inf"))
    norms = tl.load(stats.norm_ptr + i, mask=mask, other=0.0)
    peak = tl.max(peaks, 1)
    rate, greedy = rate_of(rows, b)
    shift = shift_of(peak, rate)
    norm = tl.sum((norms * tl.exp2(shift_of(peaks, rate) - shift[:, None])).to(tl.float64), 1)
    scale = tl.where(norm > 0, 1.0 / norm, norm - 1.0).to(tl.float32)
    first = tl.zeros((BLOCK_N,), tl.int32)
    if GREEDY:
        firsts = tl.load(stats.first_ptr + i, mask=mask, other=NO_TOKEN)
        first = tl.where(greedy, tl.min(tl.where(peaks == peak[:, None], firsts, NO_TOKEN), 1), 0)
    row = b * laws.stride + n
    tl.store(laws.shift_ptr + row, shift, mask=n < N)
    tl.store(laws.scale_ptr + row, scale, mask=n < N)
    if laws.first_ptr is not None:
        tl.store(laws.first_ptr + row, first, mask=n < N)
    return RowLaw(shift, scale, shift, first, rate, greedy)


@triton.jit
def accept(n, v, p, q, length, rule):
    """Walk along the chain: token acceptances, and block verification's weights w_{n+1} = min(1, w_n p_n / q_n).

    The last accepted node, -1 while it is open; the lowest and the highest that it can be; the weights [BLOCK_N]; and
    the probability [BLOCK_N] that the draft token after each node is accepted, given it and those before.
    """
    inside = n < length
    drawn = inside & (q > 0)
    ratio = tl.where(drawn, p.to(tl.float64) / tl.where(drawn, q, 1.0), 0.0)
    w, most, reach = tl.associative_scan(
        (ratio, tl.full(ratio.shape, 1.0, tl.float64), tl.minimum(ratio, 1.0)), 0, compose
    )
    w = tl.where(inside, tl.minimum(w, most), 0.0)  # of the node after n
    accepted, sures = inside & (1.0 - reach <= v), tl.where(w == 1.0, n + 1, 0)
    stop, sure, final = tl.reduce(
        (accepted.to(tl.int32), sures, tl.where(n == length - 1, w, 0.0)), 0, sum_max_and_sum
    )  # fmt: skip
    after = inside & (n >= sure)
    below = tl.reduce(tl.where(after, 1.0 - w, 1.0), 0, multiply)  # all nodes after the sure one are rejected
    end = tl.where(length > 0, 1.0 - final, 0.0)
    block = rule == BLOCK_RULE
    open_nodes = block & (v < end) & (v >= below)
    last = tl.where(block, tl.where(v >= end, length, sure), stop)
    # each node's own weight stands one place further on
    weights = tl.where((n == 0) | ~block, 1.0, tl.gather(w, tl.maximum(n - 1, 0), 0))
    reach = tl.where(inside, tl.where(block, w, reach), 0.0)
    return tl.where(open_nodes, -1, last), last, tl.where(open_nodes, length - 1, last), weights, reach


@triton.jit
def compose(a, most, reach, b, cap, goes):
    """w -> min(b w, cap) after w -> min(a w, most), as one such step; and a product, in the same scan."""
    return tl.minimum(a * b, 1e300), tl.minimum(b * most, cap), reach * goes  # never infinite: inf * 0 is NaN


@triton.jit
def sum_max_and_sum(count_a, max_a, sum_a, count_b, max_b, sum_b):
    """A count, a maximum and a sum in one reduction."""
    return count_a + count_b, tl.maximum(max_a, max_b), sum_a + sum_b
