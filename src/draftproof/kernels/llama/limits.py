"""What the kernels take, and the sizes they are launched with; imports no Triton, so that a backend can ask first."""

from __future__ import annotations

DECODE_TOKENS = 64  # new tokens of a row in one call, or nodes of a tree: one bit each
HEAD_SIZES = (16, 32, 64, 128)
QUERIES, QUERY_BYTES = 128, 128 * 128 * 2  # of one program at most
QUERY_PARTS = 8  # programs that may share the queries of one KV head
BLOCK = 64  # slots of one step of the softmax
CHUNK = 256  # slots; more are split among programs
PROGRAMS, SPLITS = 264, 32  # programs of a launch that has work for them; splits of a row and head at most
PREFILL_QUERIES = 64  # of one program
MOVED = 2048  # numbers of a slot that one program moves

# the megakernel
WIDEST, ROWS = 2048, 64  # width of a small network; tokens of a call
GEMV_ROWS = 2  # tokens that are multiplied without tensor cores
COLUMNS = 8  # of a product, in one tile
GROUP_QUERIES = 64  # of a row for one KV head


def query_parts(tokens: int, group: int, size: int) -> int:
    """Programs that share the queries of `tokens` tokens, with `group` query heads of `size` bytes for a KV head."""
    most = min(QUERIES, QUERY_BYTES // size)  # queries of a program
    return -(-tokens // max(most // group, 1))
