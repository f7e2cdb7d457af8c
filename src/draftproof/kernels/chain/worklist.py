# mypy: ignore-errors
"""The worklist: rows whose residual is wanted, each as a record with all that is known of it.

A program that sums a row, or draws from it, needs one load to begin. The first row of sequence b, mostly the only one,
has entry b, so it is loaded before anything else of the sequence is known.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from draftproof.kernels.lib.laws import RowLaw, scaled

# The words of an item (int32; floats are stored by their bits)
KIND: tl.constexpr = tl.constexpr(0)  # NODE_KIND times the node, plus flags; -1: not wanted
SEQUENCE: tl.constexpr = tl.constexpr(1)
HIT: tl.constexpr = tl.constexpr(2)
WEIGHT: tl.constexpr = tl.constexpr(3)
P_LAW: tl.constexpr = tl.constexpr(4)  # the words of a law begin here
Q_LAW: tl.constexpr = tl.constexpr(9)
ITEM_SIZE: tl.constexpr = tl.constexpr(16)

# The words of a law
SHIFT: tl.constexpr = tl.constexpr(0)
SCALE: tl.constexpr = tl.constexpr(1)
RATE: tl.constexpr = tl.constexpr(2)
CUTOFF: tl.constexpr = tl.constexpr(3)
FIRST: tl.constexpr = tl.constexpr(4)

# The flags of an item's kind
DRAWN: tl.constexpr = tl.constexpr(1)  # q is the law of the draft row
UNMEASURED: tl.constexpr = tl.constexpr(2)  # the row has not been read yet
GREEDY_DRAFT: tl.constexpr = tl.constexpr(4)
NODE_KIND: tl.constexpr = tl.constexpr(8)


class WorkItem(NamedTuple):
    """A row whose residual (w p - q)+ is wanted."""

    kind: Any  # as KIND
    sequence: Any
    p_law: Any  # RowLaw of p
    q_law: Any  # RowLaw of q
    hit: Any  # the id that has all of q, -1 for none
    weight: Any  # w


class ResidualRow(NamedTuple):
    """What the residual of a row's tokens is computed from."""

    p_law: Any  # RowLaw of w p
    q_law: Any  # RowLaw of q
    drawn: Any  # whether q is the law of the draft row
    hit: Any  # the id that has all of q, -1 for none


@triton.jit
def entry_of(i, b, B, overflow, DENSE: tl.constexpr):
    """The entry of the i-th row of sequence b whose residual is wanted.

    DENSE: every row has an entry of its own. Else the first B entries are for first rows, and other rows have the next
    free ones, `overflow` of which were in use before.
    """
    entry = i * B + b
    if not DENSE:
        entry = tl.where(i == 0, b, B + overflow + i - 1)
    return entry


@triton.jit
def store_items(
    state, pair, b, n, N, low, high, overflow, unmeasured, weights, row, DENSE: tl.constexpr
):  # fmt: skip
    """Write the items of rows low to high of sequence b, and that its other rows are not wanted.

    `row` is a ResidualRow of all nodes, with the law of p in place of w p.
    """
    wanted = (n >= low) & (n <= high)
    i = tl.where(n < low, n - low + N, n - low)
    item = state.worklist_ptr + ITEM_SIZE * entry_of(i, b, tl.num_programs(0), overflow, DENSE)
    kind = NODE_KIND * n + tl.where(row.drawn, DRAWN, 0)
    kind = kind + tl.where(unmeasured, UNMEASURED, 0) + tl.where(row.q_law.greedy, GREEDY_DRAFT, 0)
    tl.store(item + KIND, tl.where(wanted, kind, -1), mask=(n < N) if DENSE else wanted | (n == low))
    tl.store(item + SEQUENCE, (n * 0 + b).to(tl.int32), mask=wanted)
    tl.store(item + HIT, row.hit.to(tl.int32), mask=wanted)
    store_float(item + WEIGHT, weights.to(tl.float32), wanted)
    store_law(item + P_LAW, pair.laws, row.p_law, wanted)
    if pair.draft_laws.shift_ptr is not None:
        store_law(item + Q_LAW, pair.draft_laws, row.q_law, wanted)


@triton.jit
def store_law(words, laws, law, mask):
    """Write a law, but for whether it is greedy."""
    store_float(words + SHIFT, law.shift, mask)
    store_float(words + SCALE, law.scale, mask)
    store_float(words + RATE, law.rate + law.shift * 0, mask)
    if laws.cutoff_ptr is not None:
        store_float(words + CUTOFF, law.cutoff, mask)
    if laws.first_ptr is not None:
        tl.store(words + FIRST, law.first, mask=mask)


@triton.jit
def store_float(word, value, mask):
    """Write a float32 as an int32 of the same bits."""
    tl.store(word, value.to(tl.int32, bitcast=True), mask=mask)


@triton.jit
def load_float(word):
    """Read a float32 that is stored as an int32 of the same bits."""
    return tl.load(word).to(tl.float32, bitcast=True)


@triton.jit
def load_item(state, pair, entry):
    """Read an item; if its kind is -1 the rest means nothing."""
    item = state.worklist_ptr + ITEM_SIZE * entry
    kind, sequence, hit = tl.load(item + KIND), tl.load(item + SEQUENCE), tl.load(item + HIT)
    weight = load_float(item + WEIGHT)
    p_law = load_law(item + P_LAW, pair.laws, kind < 0)
    q_law = p_law
    if pair.draft_laws.shift_ptr is not None:
        q_law = load_law(item + Q_LAW, pair.draft_laws, (kind & GREEDY_DRAFT) > 0)
    return WorkItem(kind, sequence.to(tl.int64), p_law, q_law, hit, weight)


@triton.jit
def load_law(words, laws, greedy):
    """Read a law."""
    shift = load_float(words + SHIFT)
    scale = load_float(words + SCALE)
    rate = load_float(words + RATE)
    cutoff, first = shift, tl.zeros((), tl.int32)
    if laws.cutoff_ptr is not None:
        cutoff = load_float(words + CUTOFF)
    if laws.first_ptr is not None:
        first = tl.load(words + FIRST)
    return RowLaw(shift, scale, cutoff, first, rate, greedy)


@triton.jit
def residual_row(item, target_alone):
    """The item as a ResidualRow; with `target_alone` that of p, as if nothing had been drafted."""
    p_law = scaled(item.p_law, tl.where(target_alone, 1.0, item.weight))
    drawn = ((item.kind & DRAWN) > 0) & ~target_alone
    return ResidualRow(p_law, item.q_law, drawn, tl.where(target_alone, -1, item.hit))
