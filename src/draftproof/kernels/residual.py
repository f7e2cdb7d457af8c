# mypy: ignore-errors
"""What a draft leaves of its row: the excess (w p - q)+ of tokens, by the laws of both or by the row's list."""

import triton
import triton.language as tl

from draftproof.kernels.device import LATE, plain, recall, score, weigh


@triton.jit
def listed(lists, row):
    """How many candidate tokens of a row are listed, -1 for none."""
    count = tl.full((), -1, tl.int32)
    if lists.count is not None:
        count = tl.load(lists.count + row)
    return count


@triton.jit
def place(lists, row, many, i, end):
    """Token ids at places i below `end`: of the row's list if it has one, else of the vocabulary."""
    ids = tl.where(i < end, i, LATE)
    if lists.count is not None:
        found = tl.load(lists.ids + row * lists.room + i, mask=i < tl.minimum(end, many), other=LATE)
        ids = tl.where(many >= 0, found, ids)
    return ids


@triton.jit
def row_of(rows, law, draft, draft_law, state, b, n, N):
    """The laws p and q of row n, whether q is read from the draft row, the id that q is all on, -1 for none, and w."""
    shift, scale, cutoff, first, rate, greedy = recall(rows, law, b, n, n >= 0)
    drawn = n < 0
    hit = tl.full((), -1, tl.int64)
    w = tl.full((), 1.0, tl.float64)
    theirs = shift, scale, cutoff, first, rate, greedy
    if state.rule is not None:  # all that may be needed is loaded at once, then chosen from
        drafted = n < plain(rows.drafts)
        rule, length = tl.load(state.facts + 8 * b + 5), tl.load(state.facts + 8 * b + 3)
        x = tl.load(rows.tokens + b * plain(rows.drafts) + n, mask=drafted, other=-1)
        w = tl.load(state.weight + b * N + n)
        if draft.logits is not None:
            theirs = recall(draft, draft_law, b, n, drafted)
        drawn = (n < length) & (rule != 2)
        hit = tl.where((n < length) & (rule == 2), x, -1)
    return (shift, scale, cutoff, first, rate, greedy), theirs, drawn, hit, w


@triton.jit
def weighted(row, bare):
    """A row of `row_of` with w p in place of p; if bare, with p alone."""
    ours, theirs, drawn, hit, w = row
    scale = ours[1] * tl.where(bare, 1.0, w).to(tl.float32)
    ours = ours[0], scale, ours[2], ours[3], ours[4], ours[5]
    return ours, theirs, drawn & ~bare, tl.where(bare, -1, hit)


@triton.jit
def rest(rows, law, draft, draft_law, b, n, row, ids):
    """(w p - q)+ of tokens `ids` in row n."""
    ours, theirs, drawn, hit = row
    left = weigh(law, score(rows, b, n, ids, ids < rows.size), ids, ours)
    if draft.logits is not None:
        end = tl.where(drawn, rows.size, 0)
        t = score(draft, b, tl.minimum(n, plain(rows.drafts) - 1), ids, ids < end)
        left -= weigh(draft_law, t, ids, theirs)
    return tl.where(ids == hit, 0.0, tl.maximum(left, 0.0))  # where q is 1 nothing is left
