# mypy: ignore-errors
"""Move the cache entries of an accepted path to consecutive slots, in all buffers of a cache with one launch."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["capacity", "depth"])
def compact_cache(table, like, root, path, count, capacity, depth, BLOCK: tl.constexpr):
    """One buffer [rows, heads, capacity, width], BLOCK of the numbers of a slot, one row.

    table [buffers, 3] holds the address of each buffer, its heads and their width, and `like` points to values of its
    type. path [B, depth] are nodes below the root, of which the first count [B] are accepted; node n is in slot
    root + n. A node's number is at least its depth, so nothing is overwritten before it is read.
    """
    buffer, chunk, b = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    heads, width = tl.load(table + 3 * buffer + 1), tl.load(table + 3 * buffer + 2)
    e = chunk * BLOCK + tl.arange(0, BLOCK)
    inside = e < heads * width
    if chunk * BLOCK < heads * width:
        values = tl.load(table + 3 * buffer).to(like.dtype)
        first = tl.load(root + b)
        at = (b * heads + e // width) * capacity * width + e % width
        for i in tl.range(0, tl.load(count + b)):
            node = tl.load(path + b * depth + i)
            if node != i + 1:
                value = tl.load(values + at + (first + node) * width, mask=inside)
                tl.store(values + at + (first + 1 + i) * width, value, mask=inside)
