# mypy: ignore-errors
"""The memory through which the kernels of one step pass their results on, as structs of pointers."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from draftproof.kernels.lib.codes import STOP_LANE
from draftproof.kernels.lib.uniform import uniform


class SpanStats(NamedTuple):
    """What `measure` finds in each span of each row. S spans and G groups of tokens make a row."""

    peak_ptr: Any  # [B * N, S] largest score
    # [B * N, S] sum of 2 ** (rate * score - shift), where shift is rate * peak, rounded; None where every row is greedy
    # or has a top-k, and then the peak is NaN where a score is
    norm_ptr: Any
    first_ptr: Any  # [B * N, S] smallest id of the largest score
    group_ptr: Any  # [B * N, G] largest score of each group; None where nothing is truncated
    block_ptr: Any  # [B * N, G / BLOCK] largest score of each BLOCK groups
    share_ptr: Any  # [B * N, G] like norm, of each group by its own peak; None unless many tokens may be kept
    height_ptr: Any  # [B * N, CREST] the target's scores of the drafter's crest; None where they are not used


class CandidateLists(NamedTuple):
    """Tokens of each truncated row that may be kept; after truncation, where these are few, those that are kept."""

    groups_ptr: Any  # [B * N, limit] the first tokens of the groups that hold candidates
    limit: Any  # groups of a row
    ids_ptr: Any  # [B * N, capacity] the candidates, ascending
    scores_ptr: Any  # [B * N, capacity]
    capacity: Any
    count_ptr: Any  # [B * N] how many are listed; -1 where a row is not truncated, or has more than the capacity


class ChainState(NamedTuple):
    """Rule and noise of each sequence, and what the kernels have computed for it so far."""

    rule_ptr: Any  # [B], None where nothing is drafted
    noise: Any  # NoiseKeys; None where nothing is drawn
    lane: Any  # of the emitted token's uniform, ...
    index: Any  # ... and its index there, `unspecialised`
    decision_ptr: Any = None  # [B, DECISION_SIZE] a record, see `decision_field`; None where nothing is to be emitted
    # [B, N] w, the factor of p in the residual, of the first row whose residual is wanted and those after it
    weight_ptr: Any = None
    chance_ptr: Any = None  # [B, N] p of the draft token after each node
    reach_ptr: Any = None  # [B, N - 1] `Emitted.reach`; None where nobody asked for it
    worklist_ptr: Any = None  # [B * N, worklist.ITEM_SIZE] records of the rows whose residual is wanted
    sums_ptr: Any = None  # [B * N, E] residual of each chunk of tokens, by entry of the worklist
    totals_ptr: Any = None  # [B * N, Q] residual of each program's part of a row, by entry of the worklist
    shifts_ptr: Any = None  # [B, E] of a row that was not measured: the power of two in which each chunk is summed
    overflow_ptr: Any = None  # [1] entries of the worklist in use beyond the first B; None where nothing is summed


# The fields of a decision
STOP: tl.constexpr = tl.constexpr(0)  # the last accepted node; -1 while block verification needs several residuals
LOW: tl.constexpr = tl.constexpr(1)  # the first node whose residual is wanted, ...
HIGH: tl.constexpr = tl.constexpr(2)  # ... and the last
LENGTH: tl.constexpr = tl.constexpr(3)  # number of draft tokens
FAULT: tl.constexpr = tl.constexpr(4)
OVERFLOW: tl.constexpr = tl.constexpr(5)  # entries beyond the first B that were in use before this sequence's
DECISION_SIZE: tl.constexpr = tl.constexpr(8)  # int32 words


class ChainDecision(NamedTuple):
    """How far a sequence's draft goes: the fields of its record that `emit` always reads."""

    stop: Any
    low: Any
    high: Any
    length: Any
    fault: Any


@triton.jit
def decision_field(state, b, FIELD: tl.constexpr):
    """A pointer to one field of the decision about sequence b."""
    return state.decision_ptr + DECISION_SIZE * b + FIELD


@triton.jit
def store_decision(state, b, decision, overflow):
    """Write the decision about sequence b."""
    tl.store(decision_field(state, b, STOP), decision.stop)
    tl.store(decision_field(state, b, LOW), decision.low)
    tl.store(decision_field(state, b, HIGH), decision.high)
    tl.store(decision_field(state, b, LENGTH), decision.length)
    tl.store(decision_field(state, b, FAULT), decision.fault)
    tl.store(decision_field(state, b, OVERFLOW), overflow)


@triton.jit
def load_decision(state, b):
    """Read the decision about sequence b."""
    stop = tl.load(decision_field(state, b, STOP))
    low = tl.load(decision_field(state, b, LOW))
    high = tl.load(decision_field(state, b, HIGH))
    length = tl.load(decision_field(state, b, LENGTH))
    fault = tl.load(decision_field(state, b, FAULT))
    return ChainDecision(stop, low, high, length, fault)


@triton.jit
def store_reach(state, b, n, N, reach, lost):
    """Write how far the draft of sequence b goes on average, if asked: nowhere where a row is lost."""
    if state.reach_ptr is not None:
        tl.store(state.reach_ptr + b * (N - 1) + n, tl.where(lost, 0.0, reach.to(tl.float32)), mask=n < N - 1)


@triton.jit
def load_rule(state, b):
    """The rule of a sequence and the uniform that decides where it stops; zeros where nothing is drafted."""
    rule, v = tl.zeros((), tl.int32), tl.zeros((), tl.float64)
    if state.rule_ptr is not None:
        rule, v = tl.load(state.rule_ptr + b), uniform(state.noise, b, STOP_LANE, 0)
    return rule, v
