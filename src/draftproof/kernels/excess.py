# mypy: ignore-errors
"""Fourth kernel: the excess (w p - q)+ of the rows that a draft may stop at, summed over chunks of the vocabulary.

A row whose candidates are listed has one sum, which one program makes.
"""

import triton
import triton.language as tl

from draftproof.kernels.device import LATE, next_may_begin, plain, recall, score, wait, weigh


@triton.jit(do_not_specialize=["B", "N", "Q", "R", "E"])
def excess(
    rows, law, draft, draft_law, lists, state, B, N, Q, R, E,
    TILE: tl.constexpr, CHUNK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Part c of Q of every R-th row of a sequence.

    First come the first rows of all; and the sequences measured last, whose rows may still be in the cache.
    """
    next_may_begin(EARLY)
    c = tl.program_id(0) % Q
    b = (B - 1 - tl.program_id(0) // Q % B).to(tl.int64)
    tiles = tl.cdiv(tl.cdiv(rows.size, TILE), Q)
    start = c * tiles
    end = tl.minimum(start + tiles, tl.cdiv(rows.size, TILE))
    full = tl.minimum(end, rows.size // TILE)  # the last tile may be shorter
    chunk = tl.arange(0, TILE // CHUNK)
    ids = chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    wait(EARLY)
    low = tl.load(state.facts + 8 * b + 1)
    high = tl.load(state.facts + 8 * b + 2)
    for n in range(low + tl.program_id(0) // (Q * B), high + 1, R):
        row = row_of(rows, law, draft, draft_law, state, b, n, N, n < 0)
        at = state.sums + (b * N + n) * E + chunk
        many = listed(lists, b * N + n)
        if many < 0:
            for t in tl.range(start, full, num_stages=3):
                part = rest(rows, law, draft, draft_law, b, n, row, t * TILE + ids, True)
                tl.store(at + t * (TILE // CHUNK), tl.sum(part, 1))
            if (full < end) & (start < end):
                part = rest(rows, law, draft, draft_law, b, n, row, full * TILE + ids, False)
                tl.store(at + full * (TILE // CHUNK), tl.sum(part, 1))
        elif n % Q == c:
            total = tl.zeros((CHUNK,), tl.float32)
            for o in range(0, many, CHUNK):
                places = place(lists, b * N + n, many, o + tl.arange(0, CHUNK), many)
                total += rest(rows, law, draft, draft_law, b, n, row, places, False)
            tl.store(state.sums + (b * N + n) * E, tl.sum(total, 0))


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
    if lists.count is not None:  # noqa: SIM102  (known when the kernel is compiled; the next when it runs)
        if many >= 0:
            ids = tl.load(lists.ids + row * lists.room + i, mask=i < end, other=LATE)
    return ids


@triton.jit
def row_of(rows, law, draft, draft_law, state, b, n, N, bare):
    """The laws w p and q of row n, whether q is read from the draft row, and the id that q is all on, -1 for none.

    If bare, there is p alone.
    """
    shift, scale, cutoff, first, rate, greedy = recall(rows, law, b, n, n >= 0)
    drawn = n < 0
    hit = tl.full((), -1, tl.int64)
    if state.rule is not None:
        rule = tl.load(state.facts + 8 * b + 5)
        guessed = (n < tl.load(state.facts + 8 * b + 3)) & (bare == 0)
        hit = tl.load(rows.tokens + b * plain(rows.drafts) + n, mask=guessed & (rule == 2), other=-1)
        drawn = guessed & (rule != 2)
        w = tl.load(state.weight + b * N + n, mask=bare == 0, other=1.0)
        scale *= w.to(tl.float32)
    ours = shift, scale, cutoff, first, rate, greedy
    theirs = ours
    if draft.logits is not None:
        theirs = recall(draft, draft_law, b, n, drawn)
    return ours, theirs, drawn, hit


@triton.jit
def rest(rows, law, draft, draft_law, b, n, row, ids, FULL: tl.constexpr):
    """(w p - q)+ of tokens `ids` in row n. FULL: all are inside the row."""
    ours, theirs, drawn, hit = row
    inside = None if FULL else ids < rows.size
    s = score(rows, b, n, ids, inside)
    left = weigh(law, s, ids, ours)
    if draft.logits is not None:
        there = tl.full(ids.shape, 0, tl.int1) | drawn
        if inside is not None:
            there = there & inside
        t = score(draft, b, tl.minimum(n, plain(rows.drafts) - 1), ids, there)
        left -= weigh(draft_law, t, ids, theirs)
    return tl.where(ids == hit, 0.0, tl.maximum(left, 0.0))  # where q is 1 nothing is left
