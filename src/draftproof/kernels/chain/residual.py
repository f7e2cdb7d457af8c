# mypy: ignore-errors
"""Fourth kernel: sum the residual (w p - q)+ of the rows that a draft may stop at, over chunks of the vocabulary.

A row whose candidates are listed has a single sum, which one program makes. The row after the last draft, if it is read
here for the first time, has no law yet: each of its chunks is summed in a power of two of its own.
"""

import triton
import triton.language as tl

from draftproof.kernels.chain.worklist import NODE_KIND, UNMEASURED, load_item, residual_row
from draftproof.kernels.lib.codes import NO_TOKEN, ONEHOT_RULE
from draftproof.kernels.lib.laws import lane_shift, probability, rate_of
from draftproof.kernels.lib.pdl import launch_dependents, wait
from draftproof.kernels.lib.rows import apply_controls, load_logits, load_scores, value_of


@triton.jit
def list_length(lists, row):
    """How many candidates of a row are listed; -1 without a list."""
    count = tl.full((), -1, tl.int32)
    if lists.count_ptr is not None:
        count = tl.load(lists.count_ptr + row)
    return count


@triton.jit
def load_ids(lists, row, listed, i, end):
    """The i-th token ids, i below `end`: of the row's list if it has one (`listed` >= 0), else of the vocabulary."""
    ids = tl.where(i < end, i, NO_TOKEN)
    if lists.count_ptr is not None:
        mask = i < tl.minimum(end, listed)
        candidates = tl.load(lists.ids_ptr + row * lists.capacity + i, mask=mask, other=NO_TOKEN)
        ids = tl.where(listed >= 0, candidates, ids)
    return ids


@triton.jit
def q_kind(n, x, length, rule):
    """What q is at node n: whether it is the law of the draft row, and the id that has all of it, -1 for none."""
    drafted = n < length
    return drafted & (rule != ONEHOT_RULE), tl.where(drafted & (rule == ONEHOT_RULE), x, -1)


@triton.jit
def residual_of(pair, b, n, row, ids):
    """(w p - q)+ of tokens `ids` in row n of sequence b, which is a ResidualRow."""
    rows = pair.rows
    left = probability(pair.laws, load_scores(rows, b, n, ids, ids < rows.vocabulary), ids, row.p_law)
    if pair.draft_rows.logits_ptr is not None:
        end = tl.where(row.drawn, rows.vocabulary, 0)
        t = load_scores(pair.draft_rows, b, tl.minimum(n, value_of(rows.drafts) - 1), ids, ids < end)
        left -= probability(pair.draft_laws, t, ids, row.q_law)
    return tl.where(ids == row.hit, 0.0, tl.maximum(left, 0.0))  # nothing is left where q is 1


@triton.jit(do_not_specialize=["B", "N", "parts", "chunks"])
def sum_residuals(
    pair, lists, state, B, N, parts, chunks,
    TILE: tl.constexpr, CHUNK: tl.constexpr, DENSE: tl.constexpr, DEFER_LAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One of `parts` parts of every row of the worklist that is this program's turn."""
    launch_dependents(PDL)
    part = tl.program_id(0) % parts
    k = tl.program_id(0) // parts
    # sequences from the last to the first, whose rows may still be in the cache
    entry = tl.where(k < B, B - 1 - k, k)
    wait(PDL)
    item = load_item(state, pair, entry)  # before it is known whether there is one
    end = B * N if DENSE else B + tl.load(state.overflow_ptr)
    while entry < end:
        if item.kind >= 0:
            sum_row(pair, lists, state, item, entry, part, N, parts, chunks, TILE, CHUNK, DEFER_LAST)
        k += tl.num_programs(0) // parts
        entry = k
        item = load_item(state, pair, tl.minimum(k, end - 1))


@triton.jit
def sum_row(
    pair, lists, state, item, entry, part, N, parts, chunks,
    TILE: tl.constexpr, CHUNK: tl.constexpr, DEFER_LAST: tl.constexpr,
):  # fmt: skip
    """One part of a row: the sums of its chunks and their total."""
    b = item.sequence
    n = item.kind // NODE_KIND
    row = residual_row(item, item.kind < 0)
    sums_ptr = state.sums_ptr + entry.to(tl.int64) * chunks
    listed = list_length(lists, b * N + n)
    total = tl.zeros((TILE // CHUNK,), tl.float32)
    if listed >= 0:
        if n % parts == part:
            total = sum_list(pair, lists, b, n, row, listed, N, TILE, CHUNK)
            tl.store(sums_ptr, tl.sum(total, 0))
    elif (item.kind & UNMEASURED) > 0:
        if DEFER_LAST:
            sum_unmeasured(pair.rows, state.shifts_ptr + b * chunks, sums_ptr, b, n, part, parts, TILE, CHUNK)
    elif row.drawn:
        total = sum_chunks(pair, sums_ptr, b, n, row, part, parts, pair.draft_rows.logits_ptr is not None, TILE, CHUNK)
    else:
        total = sum_chunks(pair, sums_ptr, b, n, row, part, parts, False, TILE, CHUNK)
    tl.store(state.totals_ptr + entry * parts + part, tl.sum(total, 0))


@triton.jit
def sum_list(pair, lists, b, n, row, listed, N, TILE: tl.constexpr, CHUNK: tl.constexpr):
    """The residual of a listed row, in the first of TILE // CHUNK numbers."""
    total = tl.zeros((CHUNK,), tl.float32)
    for o in range(0, listed, CHUNK):
        ids = load_ids(lists, b * N + n, listed, o + tl.arange(0, CHUNK), listed)
        total += residual_of(pair, b, n, row, ids)
    return tl.where(tl.arange(0, TILE // CHUNK) == 0, tl.sum(total, 0), 0.0)


@triton.jit
def tile_ids(t, TILE: tl.constexpr, CHUNK: tl.constexpr):
    """The ids [TILE // CHUNK, CHUNK] of tile t."""
    return t * TILE + tl.arange(0, TILE // CHUNK)[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]


@triton.jit
def tile_range(vocabulary, part, parts, TILE: tl.constexpr):
    """The first tile of a part, the end of the tiles that its loop goes through, and the end of all.

    The loop leaves the last tile out if that is the row's last and shorter, or the part's only one: it is loaded before
    the loop, so that it is in flight sooner.
    """
    each = tl.cdiv(tl.cdiv(vocabulary, TILE), parts)
    end = tl.minimum((part + 1) * each, tl.cdiv(vocabulary, TILE))
    return part * each, tl.where(each == 1, part, tl.minimum(end, vocabulary // TILE)), end


@triton.jit
def last_tile(vocabulary, start, full, end, TILE: tl.constexpr, CHUNK: tl.constexpr):
    """The ids of the tile that the loop leaves out, and which of them are in the vocabulary: none without a tile."""
    ids = tile_ids(full, TILE, CHUNK)
    return ids, ids < tl.where((full < end) & (start < end), vocabulary, 0)


@triton.jit
def sum_chunks(
    pair, sums_ptr, b, n, row, part, parts,
    DRAWN: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Store the sums of a part's chunks; their totals over its tiles. DRAWN: q is the law of a draft row."""
    rows, draft_rows = pair.rows, pair.draft_rows
    start, full, end = tile_range(rows.vocabulary, part, parts, TILE)
    i = tl.arange(0, TILE // CHUNK)
    total = tl.zeros((TILE // CHUNK,), tl.float32)
    last, mask = last_tile(rows.vocabulary, start, full, end, TILE, CHUNK)
    logits = load_logits(rows, b, n, last, mask)  # in flight while the other tiles are processed
    draft_logits = logits
    if DRAWN:
        draft_logits = load_logits(draft_rows, b, n, last, mask)
    for tile in tl.range(start, full, num_stages=3):
        ids = tile_ids(tile, TILE, CHUNK)
        s = load_scores(rows, b, n, ids)
        t = s
        if DRAWN:
            t = load_scores(draft_rows, b, n, ids)
        sums = chunk_residuals(pair, row, ids, s, t, DRAWN)
        tl.store(sums_ptr + tile * (TILE // CHUNK) + i, sums)
        total += sums
    if (full < end) & (start < end):
        s = apply_controls(rows, logits, b, n, last, mask)
        t = s
        if DRAWN:
            t = apply_controls(draft_rows, draft_logits, b, n, last, mask)
        sums = chunk_residuals(pair, row, last, s, t, DRAWN)
        tl.store(sums_ptr + full * (TILE // CHUNK) + i, sums)
        total += sums
    return total


@triton.jit
def chunk_residuals(pair, row, ids, s, t, DRAWN: tl.constexpr):
    """The residuals of chunks of tokens with target scores s and draft scores t: `residual_of` for one kind of q."""
    left = probability(pair.laws, s, ids, row.p_law)
    if not DRAWN:
        left = tl.where(ids == row.hit, 0.0, left)
    else:
        left = tl.maximum(left - probability(pair.draft_laws, t, ids, row.q_law), 0.0)
    return tl.sum(left, 1)


@triton.jit
def sum_unmeasured(rows, shifts_ptr, sums_ptr, b, n, part, parts, TILE: tl.constexpr, CHUNK: tl.constexpr):
    """Of the chunks of a row without a law yet: the sum of 2 ** (rate * score - shift), and each chunk's shift."""
    start, full, end = tile_range(rows.vocabulary, part, parts, TILE)
    i = tl.arange(0, TILE // CHUNK)
    rate, _ = rate_of(rows, b)
    last, mask = last_tile(rows.vocabulary, start, full, end, TILE, CHUNK)
    logits = load_logits(rows, b, n, last, mask)
    for tile in tl.range(start, full, num_stages=3):
        shift, total = chunk_weights(load_scores(rows, b, n, tile_ids(tile, TILE, CHUNK)), rate)
        tl.store(shifts_ptr + tile * (TILE // CHUNK) + i, shift)
        tl.store(sums_ptr + tile * (TILE // CHUNK) + i, total)
    if (full < end) & (start < end):
        shift, total = chunk_weights(apply_controls(rows, logits, b, n, last, mask), rate)
        tl.store(shifts_ptr + full * (TILE // CHUNK) + i, shift)
        tl.store(sums_ptr + full * (TILE // CHUNK) + i, total)


@triton.jit
def chunk_weights(s, rate):
    """Shift and sum of chunks of scores."""
    shift = lane_shift(tl.max(s, 1), rate)
    return shift, tl.sum(tl.exp2(tl.fma(s, rate, -shift[:, None])), 1)
