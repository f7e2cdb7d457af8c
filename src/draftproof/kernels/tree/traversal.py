# mypy: ignore-errors
"""Traversal verification (Weng et al., arXiv 2505.12398) of a tree in waves of passes over the vocabulary.

Child j of node a, whose k elder siblings are rejected, was drawn from Q = q / rest, where rest is q's mass outside of
those. The sum of S_i Q_i over them is c q, with one number c for all tokens that were not drafted; the i-th child keeps
the c that it was rejected with. So a wave sums, for every node it concerns, left = (w p - c q)+ and rest, and
`update_weights` computes from the two the weight w_j and c_j of the next child, with S = 1 - w + sum(left). Child j can
be tried as soon as its k elder siblings are rejected, whatever happens elsewhere: it belongs to wave k after its
parent's. Eldest children need no sum at all, because sum(left) = w there. No program waits for another.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from draftproof.kernels.lib.codes import (
    DRAFT_FAULT,
    IMPOSSIBLE_FAULT,
    NEXT_LANE,
    NO_TOKEN,
    STOP_LANE,
    TARGET_FAULT,
    TOKEN_FAULT,
)
from draftproof.kernels.lib.inverse_cdf import chunk_at, multiply, search_chunks, token_at
from draftproof.kernels.lib.laws import acceptance, load_law, probability
from draftproof.kernels.lib.pdl import launch_dependents, wait
from draftproof.kernels.lib.rows import load_scores
from draftproof.kernels.lib.uniform import uniform


class NodeResidual(NamedTuple):
    """What (w p - c q)+ of a node's row is computed from."""

    p_law: Any  # RowLaw of p
    q_law: Any  # RowLaw of q
    w: Any
    c: Any
    draft_row: Any  # the row of q among the drafter's


@triton.jit
def load_sums(scratch, row, mask, BLOCK_PARTS: tl.constexpr):
    """Sums of (w p - c q)+ and of q outside the rejected children in rows `row`, over the programs of each row."""
    part = tl.arange(0, BLOCK_PARTS)
    mask = mask[:, None] & (part < scratch.parts)[None, :]
    place = 2 * (row[:, None] * scratch.parts + part[None, :])
    left = tl.load(scratch.sums_ptr + place, mask=mask, other=0.0).to(tl.float64)
    rest = tl.load(scratch.sums_ptr + place + 1, mask=mask, other=0.0).to(tl.float64)
    return tl.sum(left, 1), tl.sum(rest, 1)


@triton.jit(do_not_specialize=["wave", "N", "M", "D"])
def update_weights(
    pair, tree, scratch, wave, N, M, D,
    BLOCK_N: tl.constexpr, BLOCK_PARTS: tl.constexpr, FIRST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Weight w and number c of one sequence's draft tokens whose turn it is. FIRST: looks up their p and q, too."""
    launch_dependents(PDL)
    b = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK_N)
    node = n < N
    parent = tl.load(tree.parent_ptr + n, mask=node, other=0)
    elder = tl.load(tree.elder_ptr + n, mask=node, other=-1)
    start = tl.load(tree.start_ptr + n, mask=node, other=NO_TOKEN)
    row = tl.load(tree.row_ptr + parent)
    wait(PDL)
    at = b * N + n
    if FIRST:
        p, q = load_drafts(pair, tree, scratch, b, N, D, BLOCK_N)
        tl.store(scratch.p_ptr + at, p, mask=node)
        tl.store(scratch.q_ptr + at, q, mask=node)
        w = tl.where(n == 0, 1.0, 0.0).to(tl.float64)
        c = w * 0.0
    else:
        p = tl.load(scratch.p_ptr + at, mask=node, other=0.0)
        q = tl.load(scratch.q_ptr + at, mask=node, other=-1.0)
        w = tl.load(scratch.w_ptr + at, mask=start < wave, other=0.0)
        c = tl.load(scratch.c_ptr + at, mask=start < wave, other=0.0)
    p, q = p.to(tl.float64), q.to(tl.float64)
    turn = start == wave
    younger = turn & (elder >= 0)
    drawn = q >= 0
    elder_c = tl.where(younger, tl.gather(c, tl.maximum(elder, 0), 0), 0.0)
    parent_w = tl.gather(w, parent, 0)
    summed = younger & (parent_w > 0) & (elder_c > 0)
    left, rest = load_sums(scratch, b * M + row, summed, BLOCK_PARTS)
    s = tl.where(summed, 1.0 - parent_w + left, 1.0)
    rest = tl.where(summed, rest, 1.0)
    some = drawn & (rest > 0)
    ratio = s / tl.where(some, rest, 1.0)
    accepted = acceptance(tl.maximum(parent_w * p - elder_c * q, 0.0), ratio * q)
    w = tl.where(younger, tl.where(some, accepted, 0.0), w)
    c = tl.where(turn, elder_c + tl.where(some, ratio, 0.0), c)
    for _ in range(D):  # an eldest child's turn is its parent's
        parent_w = tl.gather(w, parent, 0)
        w = tl.where(turn & (elder < 0) & (n > 0), tl.where(drawn, acceptance(parent_w * p, q), 0.0), w)
    tl.store(scratch.w_ptr + at, w, mask=turn)
    tl.store(scratch.c_ptr + at, c, mask=turn)


@triton.jit
def load_drafts(pair, tree, scratch, b, N, D, BLOCK_N: tl.constexpr):
    """p and q of every draft token, q = -1 for one that counts as not drawn; stores the tokens and the fault."""
    rows, laws, draft_rows, draft_laws = pair
    n = tl.arange(0, BLOCK_N)
    parent = tl.load(tree.parent_ptr + n, mask=n < N, other=0)
    row = tl.load(tree.row_ptr + parent)
    x = tl.load(rows.tokens_ptr + b * N + n, mask=(n > 0) & (n < N), other=-1)
    p_law = load_law(rows, laws, b, parent, n < N)
    q_law = load_law(draft_rows, draft_laws, b, row, row >= 0)
    inside = (x >= 0) & (x < rows.vocabulary)
    sound = q_law.scale > 0
    drawn = inside & sound
    reached = n == 0  # every token on the path from the root was drawn
    asked = reached
    for _ in range(D):
        asked = (n > 0) & (tl.gather(reached.to(tl.int32), parent, 0) > 0)
        reached = (n == 0) | (drawn & asked)
    drawn &= reached  # or tokens below one that was not drawn would count as drawn
    same = (x[:, None] == x[None, :]) & (parent[:, None] == parent[None, :]) & (n[None, :] < n[:, None])
    again = tl.max((same & (n > 0)[None, :]).to(tl.int32), 1) > 0
    p = probability(laws, load_scores(rows, b, parent, tl.where(drawn, x, 0), drawn), x, p_law)
    t = load_scores(draft_rows, b, tl.maximum(row, 0), tl.where(drawn, x, 0), drawn)
    q = probability(draft_laws, t, x, q_law)
    q = tl.where(drawn, tl.where(again, 0.0, q), -1.0)
    tl.store(scratch.token_ptr + b * N + n, tl.where(drawn & (again == 0), x, -1).to(tl.int32), mask=n < N)
    scale = tl.load(laws.scale_ptr + b * laws.stride + n, mask=reached, other=1.0)
    lost = tl.sum((scale > 0).to(tl.int32), 0) < BLOCK_N
    fault = tl.where(lost, TARGET_FAULT, 0)
    fault += tl.where(tl.sum((asked & (x >= rows.vocabulary)).to(tl.int32), 0) > 0, TOKEN_FAULT, 0)
    fault += tl.where(tl.sum((asked & inside & ~sound).to(tl.int32), 0) > 0, DRAFT_FAULT, 0)
    fault += tl.where(tl.sum((reached & (q == 0) & (n > 0)).to(tl.int32), 0) > 0, IMPOSSIBLE_FAULT, 0)
    tl.store(scratch.fault_ptr + b, fault)
    return tl.where(q < 0, 0.0, p), q


@triton.jit
def load_node(pair, tree, scratch, b, n, last, N):
    """The NodeResidual of node n, whose children up to `last` are rejected."""
    rows, laws, draft_rows, draft_laws = pair
    c = tl.load(scratch.c_ptr + b * N + last, mask=last >= 0, other=0.0)
    w = tl.load(scratch.w_ptr + b * N + n)
    draft_row = tl.maximum(tl.load(tree.row_ptr + n), 0)
    q_law = load_law(draft_rows, draft_laws, b, draft_row, c > 0)
    return NodeResidual(
        load_law(rows, laws, b, n, n >= 0), q_law, w.to(tl.float32), c.to(tl.float32), draft_row
    )  # fmt: skip


@triton.jit
def residual_of(pair, tree, scratch, b, n, node, ids, low, k, N, K, SIZE: tl.constexpr):
    """(w p - c q)+ of SIZE tokens `ids` from `low` on, node n's first k children rejected, and q outside of those."""
    rows, laws, draft_rows, draft_laws = pair
    inside = ids < rows.vocabulary
    p = probability(laws, load_scores(rows, b, n, ids, inside), ids, node.p_law)
    q = probability(draft_laws, load_scores(draft_rows, b, node.draft_row, ids, inside), ids, node.q_law)
    q = tl.where(node.c > 0, q, 0.0)  # else nothing was drawn from that row, whatever it holds
    rest, subtracted = q, node.c * q
    for i in range(k):
        child = tl.load(tree.child_ptr + n * K + i)
        x = tl.load(scratch.token_ptr + b * N + child)
        if (x >= low) & (x < low + SIZE):  # mostly it is not: comparing with every token would cost as much as p
            subtracted = tl.where(ids == x, tl.load(scratch.c_ptr + b * N + child).to(tl.float32) * q, subtracted)
            rest = tl.where(ids == x, 0.0, rest)
    return tl.maximum(node.w * p - subtracted, 0.0), rest


@triton.jit(do_not_specialize=["wave", "width", "N", "M", "K"])
def sum_wave(
    pair, tree, scratch, nodes_ptr, wave, width, N, M, K, TILE: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """One of the programs that share the row of one of the wave's `width` nodes."""
    launch_dependents(PDL)
    part = tl.program_id(0) % scratch.parts
    b = (tl.program_id(0) // (scratch.parts * width)).to(tl.int64)
    n = tl.load(nodes_ptr + tl.program_id(0) // scratch.parts % width)
    k = wave + 1 - tl.load(tree.start_ptr + n)
    last = tl.load(tree.child_ptr + n * K + k - 1)
    m = tl.load(tree.row_ptr + n)
    wait(PDL)
    node = load_node(pair, tree, scratch, b, n, last, N)
    vocabulary = pair.rows.vocabulary
    if (node.w > 0) & (node.c > 0):  # else the sum is known: it is w
        left = tl.zeros((TILE,), tl.float32)
        rest = tl.zeros((TILE,), tl.float32)
        for t in range(part, tl.cdiv(vocabulary, TILE), scratch.parts):
            ids = t * TILE + tl.arange(0, TILE)
            more, outside = residual_of(pair, tree, scratch, b, n, node, ids, t * TILE, k, N, K, TILE)
            left += more
            rest += outside
        sums_ptr = scratch.sums_ptr + 2 * ((b * M + m) * scratch.parts + part)
        tl.store(sums_ptr, tl.sum(left, 0))
        tl.store(sums_ptr + 1, tl.sum(rest, 0))


@triton.jit(do_not_specialize=["N", "M", "D"])
def choose_node(
    noise, tree, scratch, N, M, D, BLOCK_N: tl.constexpr, BLOCK_PARTS: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """The node at which each sequence stops: verify.traversal.upward, and an inversion in the order of the nodes."""
    launch_dependents(PDL)
    b = tl.program_id(0).to(tl.int64)
    u = uniform(noise, b, STOP_LANE, 0)
    n = tl.arange(0, BLOCK_N)
    node = n < N
    parent = tl.load(tree.parent_ptr + n, mask=node, other=BLOCK_N)
    last = tl.load(tree.last_ptr + n, mask=node, other=-1)
    row = tl.load(tree.row_ptr + n, mask=node, other=-1)
    wait(PDL)
    w = tl.load(scratch.w_ptr + b * N + n, mask=node, other=0.0)
    c = tl.load(scratch.c_ptr + b * N + last, mask=last >= 0, other=0.0)
    summed = (w > 0) & (c > 0)
    left, _ = load_sums(scratch, b * M + row, summed, BLOCK_PARTS)
    left = tl.where(summed, left, w)
    whole = left + (1.0 - w)
    h = tl.where(whole > 0, left / tl.where(whole > 0, whole, 1.0), 1.0)
    below = (parent[None, :] == n[:, None]) & (n > 0)[None, :]  # [parents, children]
    rejected = tl.full((BLOCK_N,), 1.0, tl.float64)  # probability that nothing below a node is accepted
    for _ in range(D):
        nothing = (1.0 - h) * rejected  # ... nor the node itself
        rejected = tl.reduce(tl.where(below, nothing[None, :], 1.0), 1, multiply)
    nothing = (1.0 - h) * rejected
    elders = (parent[None, :] == parent[:, None]) & (n[None, :] < n[:, None]) & (n > 0)[None, :]
    passed = tl.reduce(tl.where(elders, nothing[None, :], 1.0), 1, multiply)
    reach = tl.full((BLOCK_N,), 1.0, tl.float64)
    for _ in range(D):
        reach = tl.where(n > 0, tl.gather(reach, tl.minimum(parent, BLOCK_N - 1), 0) * passed, 1.0)
    law = tl.where(node, reach * rejected * h, 0.0)
    tl.store(scratch.stop_ptr + b * N + n, law.to(tl.float32), mask=node)
    stop, _ = chunk_at(law, u * tl.sum(law, 0))
    tl.store(scratch.node_ptr + b, tl.where((tl.load(scratch.fault_ptr + b) & TARGET_FAULT) == 0, stop, 0))


@triton.jit(do_not_specialize=["parts", "N", "K", "chunks"])
def sum_residual(
    pair, tree, scratch, sums_ptr, parts, N, K, chunks,
    TILE: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Sums [B, chunks] of the residual after the node of each sequence, over chunks of tokens."""
    launch_dependents(PDL)
    b = (tl.program_id(0) // parts).to(tl.int64)
    chunk = tl.arange(0, TILE // CHUNK)
    wait(PDL)
    n = tl.load(scratch.node_ptr + b)
    node = load_node(pair, tree, scratch, b, n, tl.load(tree.last_ptr + n), N)
    k = tl.load(tree.children_ptr + n)
    for t in range(tl.program_id(0) % parts, tl.cdiv(pair.rows.vocabulary, TILE), parts):
        ids = t * TILE + chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
        left, _ = residual_of(pair, tree, scratch, b, n, node, ids, t * TILE, k, N, K, TILE)
        tl.store(sums_ptr + b * chunks + t * (TILE // CHUNK) + chunk, tl.sum(left, 1))


@triton.jit(do_not_specialize=["N", "K", "D", "chunks"])
def draw_token(
    pair, noise, tree, scratch, sums_ptr, out, N, K, D, chunks,
    CHUNK: tl.constexpr, BLOCK_CHUNKS: tl.constexpr, BLOCK_D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The token after the node of each sequence, and the path to it."""
    rows = pair.rows
    b = tl.program_id(0).to(tl.int64)
    u = uniform(noise, b, NEXT_LANE, 0)
    c, d = tl.arange(0, BLOCK_CHUNKS), tl.arange(0, BLOCK_D)
    wait(PDL)
    n = tl.load(scratch.node_ptr + b)
    fault = tl.load(scratch.fault_ptr + b)
    node = load_node(pair, tree, scratch, b, n, tl.load(tree.last_ptr + n), N)
    k = tl.load(tree.children_ptr + n)
    sums = tl.load(sums_ptr + b * chunks + c, mask=c < chunks, other=0.0).to(tl.float64)
    o, end, running, threshold, empty = search_chunks(sums, u, rows.vocabulary, CHUNK)
    w, subtracted, k = tl.where(empty, 1.0, node.w), tl.where(empty, 0.0, node.c), tl.where(empty, 0, k)
    node = NodeResidual(node.p_law, node.q_law, w, subtracted, node.draft_row)
    token, final = o * 0 + NO_TOKEN, o * 0
    while (o < end) & (token == NO_TOKEN):
        ids = o + tl.arange(0, CHUNK)
        left, _ = residual_of(pair, tree, scratch, b, n, node, ids, o, k, N, K, CHUNK)
        left = left.to(tl.float64)
        token, last, running = token_at(ids, left, running, threshold)
        final = tl.maximum(final, last)
        o += CHUNK
    token = tl.where((fault & TARGET_FAULT) == 0, tl.minimum(token, final), 0).to(tl.int64)
    depth = tl.load(tree.depth_ptr + n)
    path = tl.load(tree.path_ptr + n * D + d, mask=d < D, other=0)
    x = tl.load(rows.tokens_ptr + b * N + path, mask=path > 0, other=-1)
    tl.store(out.tokens + b * (D + 1) + d, tl.where(d == depth, token, x), mask=d <= D)
    tl.store(out.accepted + b, depth)
    tl.store(out.path + b * D + d, path.to(tl.int64), mask=d < D)
    tl.store(out.fault + b, fault)
