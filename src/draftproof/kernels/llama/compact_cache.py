# mypy: ignore-errors
"""An accepted path becomes a straight text: its entries in all buffers of a cache move to their slots in one launch."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["slots", "depth"])
def follow(table, like, root, path, count, slots, depth, BLOCK: tl.constexpr):
    """One buffer [rows, heads, slots, width], BLOCK of the entries of a slot, one row.

    table [buffers, 3] says where each buffer is, how many heads it has and their width, and `like` points to values of
    its type. path [B, depth] are nodes below the root, of which the first count [B] are accepted; node n is in slot
    root + n. Nodes are numbered at least as high as they are deep, so nothing is overwritten before it is read.
    """
    buffer, chunk, b = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    heads, width = tl.load(table + 3 * buffer + 1), tl.load(table + 3 * buffer + 2)
    e = chunk * BLOCK + tl.arange(0, BLOCK)
    inside = e < heads * width
    if chunk * BLOCK < heads * width:
        values = tl.load(table + 3 * buffer).to(like.dtype)
        first = tl.load(root + b)
        at = (b * heads + e // width) * slots * width + e % width
        for i in tl.range(0, tl.load(count + b)):
            node = tl.load(path + b * depth + i)
            if node != i + 1:
                value = tl.load(values + at + (first + node) * width, mask=inside)
                tl.store(values + at + (first + 1 + i) * width, value, mask=inside)
