# mypy: ignore-errors
# ruff: noqa: RUF005 (Triton has no other way to lengthen a tuple)
"""Products of one or two rows in the megakernel: plain arithmetic, with a column of the result for every warp.

Warps exchange nothing, weights are loaded before the rows have arrived, and rows arrive by mailbox.
"""

import triton
import triton.language as tl

from draftproof.kernels.llama.gemm import gated, load_operands, rotate_pairs, store_entries, tile_columns
from draftproof.kernels.llama.mailbox import missing, peek, post, unpack


@triton.jit
def gemv(
    inbox, weight, norm, to, N: tl.constexpr, K: tl.constexpr, EPILOGUE: tl.constexpr,
    H: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BIASED: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, M: tl.constexpr, PROGRAMS: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Rows [M, K] from a mailbox times weight [.., K], BN of N columns or pairs at a time: no two warps share one.

    norm      None, or the norm of the rows: gain [K], eps
    EPILOGUE  what becomes of the result, as in gemm.py, except that it goes to a mailbox:
              "rotate"    (cos, sin, slots), (mailbox [M, (H + 2 * KV_HEADS) * D], keys, values, bias, capacity,
                          tokens of a row)
              "residual"  mailbox [M, N] of what this program posted before, to which columns are added,
                          (mailbox [M, N],)
              "gate"      (), (mailbox [M, N],)
    """
    tiles: tl.constexpr = (N + BN - 1) // BN
    S: tl.constexpr = (K + BK - 1) // BK
    PAIRS: tl.constexpr = EPILOGUE != "residual"
    APART: tl.constexpr = D // 2 if EPILOGUE == "rotate" else N
    unit = tl.program_id(0)
    if EPILOGUE == "residual":
        tl.debug_barrier()  # `row_operands` reads what other threads of this program have posted
    if unit < tiles:
        j, n = tile_columns(unit, N, D, BN, EPILOGUE)
        w = load_row(weight + n[:, None] * K, (j < N)[:, None], K, BK)
        v = load_row(weight + (n + APART)[:, None] * K, ((j < N) & PAIRS)[:, None], K, BK)
        zero = 0 * n[:, None]
        if norm is not None:
            gain = load_row(norm[0] + zero, zero == 0, K, BK)
        operands = row_operands(to[0], n, j < N, N, EPILOGUE, H, KV_HEADS, D, M, TYPE)
        words = receive(inbox, M, K, BK)
        rows, roots = (), ()
        for i in tl.static_range(M * S):
            rows = rows + (tl.broadcast_to(unpack(words[i], TYPE)[None, :], (BN, BK)),)
        if norm is not None:
            normed = ()
            for m in tl.static_range(M):
                squares = tl.zeros((BN, BK), tl.float32)
                for s in tl.static_range(S):
                    exact = rows[m * S + s].to(tl.float32)
                    squares += exact * exact
                    normed = normed + (exact * gain[s].to(tl.float32),)
                roots = roots + (tl.rsqrt(tl.sum(squares, 1) / K + norm[1]),)
            rows = normed
        while unit < tiles:
            j, n = tile_columns(unit, N, D, BN, EPILOGUE)
            next_j, next_n = tile_columns(unit + PROGRAMS, N, D, BN, EPILOGUE)
            next_w = load_row(weight + next_n[:, None] * K, (next_j < N)[:, None], K, BK)
            next_v = load_row(weight + (next_n + APART)[:, None] * K, ((next_j < N) & PAIRS)[:, None], K, BK)
            next_operands = row_operands(to[0], next_n, next_j < N, N, EPILOGUE, H, KV_HEADS, D, M, TYPE)
            for m in tl.static_range(M):
                one, two = tl.zeros((BN, BK), tl.float32), tl.zeros((BN, BK), tl.float32)
                for s in tl.static_range(S):
                    one += rows[m * S + s].to(tl.float32) * w[s].to(tl.float32)
                    if PAIRS:
                        two += rows[m * S + s].to(tl.float32) * v[s].to(tl.float32)
                one, two = tl.sum(one, 1), tl.sum(two, 1)
                if norm is not None:
                    one, two = one * roots[m], two * roots[m]
                post_columns(
                    one, two, to[1], operands[m], m, n, j < N, unit, N, EPILOGUE, H, KV_HEADS, D, BIASED, BN, TYPE
                )
            w, v, operands = next_w, next_v, next_operands
            unit += PROGRAMS


@triton.jit
def load_row(at, inside, K: tl.constexpr, BK: tl.constexpr):
    """Rows of K values from `at` [BN, 1] on, in pieces [BN, BK]."""
    pieces = ()
    for start in tl.static_range(0, K, BK):
        k = start + tl.arange(0, BK)[None, :]
        pieces = pieces + (tl.load(at + k, mask=inside & (k < K), other=0.0),)
    return pieces


@triton.jit
def row_operands(
    given, n, mask, N, EPILOGUE: tl.constexpr, H: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr,
    M: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Load what the epilogue reads, for each row."""
    read = ()
    for m in tl.static_range(M):
        if EPILOGUE == "residual":
            read = read + (unpack(peek(given + m * N + n, mask), TYPE).to(tl.float32),)
        else:
            read = read + (load_operands(given, m + 0 * n, n, mask, N, EPILOGUE, H, KV_HEADS, D),)
    return read


@triton.jit
def receive(inbox, M: tl.constexpr, K: tl.constexpr, BK: tl.constexpr):
    """Spin until all words of rows [M, K] are ready; the words, in pieces [BK]."""
    words, lacks = peek_rows(inbox, M, K, BK)
    while lacks > 0:
        words, lacks = peek_rows(inbox, M, K, BK)
    return words


@triton.jit
def peek_rows(inbox, M: tl.constexpr, K: tl.constexpr, BK: tl.constexpr):
    """Words of rows [M, K] as they are now, in pieces [BK], and whether any is missing."""
    words, every = (), tl.full((BK,), 1, inbox.dtype.element_ty)
    for m in tl.static_range(M):
        for start in tl.static_range(0, K, BK):
            k = start + tl.arange(0, BK)
            word = peek(inbox + m * K + k, k < K)
            words, every = words + (word,), every & word
    return words, missing(every)


@triton.jit
def post_columns(
    one, two, to, read, m, n, mask, tile, N, EPILOGUE: tl.constexpr, H: tl.constexpr, KV_HEADS: tl.constexpr,
    D: tl.constexpr, BIASED: tl.constexpr, BN: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Apply the epilogue to columns n [BN] of row m, and post them."""
    if EPILOGUE == "rotate":
        outbox, keys, values, bias, capacity, tokens = to
        one, two = rotate_pairs(one, two, read, bias, n, mask, D, BIASED)
        at = outbox + m * ((H + 2 * KV_HEADS) * D) + n
        post(at, one, mask, TYPE)
        post(at + D // 2, two, mask, TYPE)
        store_entries(one, two, keys, values, read[2], m + 0 * n, n, mask, tile, capacity, tokens, H, KV_HEADS, D, BN)
    if EPILOGUE == "gate":
        post(to[0] + m * N + n, gated(one, two), mask, TYPE)
    if EPILOGUE == "residual":
        post(to[0] + m * N + n, one + read, mask, TYPE)
