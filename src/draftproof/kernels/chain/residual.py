# mypy: ignore-errors
"""What a draft leaves of its row: the excess (w p - q)+ of tokens, by the laws of both or by the row's list."""

import triton
import triton.language as tl

from draftproof.kernels.lib.rows import LATE, plain, score, weigh


@triton.jit
def listed(lists, row):
    """How many candidate tokens of a row are listed, -1 for none."""
    count = tl.full((), -1, tl.int32)
    if lists.count is not None:
        count = tl.load(lists.count + row)
    return count


@triton.jit
def ids_of(lists, row, many, i, end):
    """Token ids at places i below `end`: of the row's list if it has one, else of the vocabulary."""
    ids = tl.where(i < end, i, LATE)
    if lists.count is not None:
        found = tl.load(lists.ids + row * lists.room + i, mask=i < tl.minimum(end, many), other=LATE)
        ids = tl.where(many >= 0, found, ids)
    return ids


@triton.jit
def beside(n, x, length, rule):
    """What stands beside row n: whether q is that of a draft row, and the id that q is all on, -1 for none."""
    drafted = n < length
    return drafted & (rule != 2), tl.where(drafted & (rule == 2), x, -1)


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
