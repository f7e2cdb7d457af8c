# mypy: ignore-errors
"""Traversal verification (Weng et al., arXiv 2505.12398) in waves over the vocabulary; no program waits for another.

Guess j after node a, of which k elder siblings are refused, was drawn from Q = q / rest, rest being q's mass outside of
those. The sum of S_i Q_i over them is c q, with one number c for all tokens that were not guessed; the i-th guess keeps
the c that it was refused with. So a wave sums, for every node it concerns, left = (w p - c q)+ and rest, and `settle`
finds from the two the weight w_j and c_j of the next guess, with S = 1 - w + sum(left). Guess j can be tried as soon as
its k elders are refused, whatever happens elsewhere: it belongs to wave k after its parent's. Eldest children need no
sum at all, because sum(left) = w there.
"""

import triton
import triton.language as tl

from draftproof.kernels.lib.inverse_cdf import begin, chunk_at, times, token_at
from draftproof.kernels.lib.rows import LATE, next_may_begin, recall, score, uniform, wait, weigh


@triton.jit
def capped(p, q):
    """min(1, p / q), and 0 where q is."""
    return tl.where(q > 0, tl.minimum(p, q) / tl.where(q > 0, q, 1.0), 0.0)


@triton.jit
def sums_of(walk, at, there, PP: tl.constexpr):
    """Sums [NP] of what is left in rows `at`, and of q outside the refused guesses, over the programs of a row."""
    part = tl.arange(0, PP)
    mask = there[:, None] & (part < walk.parts)[None, :]
    place = 2 * (at[:, None] * walk.parts + part[None, :])
    left = tl.load(walk.sums + place, mask=mask, other=0.0).to(tl.float64)
    rest = tl.load(walk.sums + place + 1, mask=mask, other=0.0).to(tl.float64)
    return tl.sum(left, 1), tl.sum(rest, 1)


@triton.jit(do_not_specialize=["wave", "N", "M", "D"])
def settle(
    rows, law, draft, draft_law, tree, walk, wave, N, M, D,
    NP: tl.constexpr, PP: tl.constexpr, FIRST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Weight w and number c of the guesses whose turn it is, of one sequence. The FIRST time guesses are looked up."""
    next_may_begin(EARLY)
    b = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, NP)
    node = n < N
    above = tl.load(tree.parent + n, mask=node, other=0)
    elder = tl.load(tree.elder + n, mask=node, other=-1)
    start = tl.load(tree.start + n, mask=node, other=LATE)
    row = tl.load(tree.row + above)
    wait(EARLY)
    at = b * N + n
    if FIRST:
        p, q = look_up(rows, law, draft, draft_law, tree, walk, b, N, D, NP)
        tl.store(walk.p + at, p, mask=node)
        tl.store(walk.q + at, q, mask=node)
        w = tl.where(n == 0, 1.0, 0.0).to(tl.float64)
        c = w * 0.0
    else:
        p = tl.load(walk.p + at, mask=node, other=0.0)
        q = tl.load(walk.q + at, mask=node, other=-1.0)
        w = tl.load(walk.w + at, mask=start < wave, other=0.0)
        c = tl.load(walk.c + at, mask=start < wave, other=0.0)
    p, q = p.to(tl.float64), q.to(tl.float64)
    turn = start == wave
    younger = turn & (elder >= 0)
    drawn = q >= 0
    so_far = tl.where(younger, tl.gather(c, tl.maximum(elder, 0), 0), 0.0)
    ours = tl.gather(w, above, 0)
    summed = younger & (ours > 0) & (so_far > 0)
    left, rest = sums_of(walk, b * M + row, summed, PP)
    s = tl.where(summed, 1.0 - ours + left, 1.0)
    rest = tl.where(summed, rest, 1.0)
    some = drawn & (rest > 0)
    ratio = s / tl.where(some, rest, 1.0)
    w = tl.where(younger, tl.where(some, capped(tl.maximum(ours * p - so_far * q, 0.0), ratio * q), 0.0), w)
    c = tl.where(turn, so_far + tl.where(some, ratio, 0.0), c)
    for _ in range(D):  # an eldest child's turn is its parent's
        ours = tl.gather(w, above, 0)
        w = tl.where(turn & (elder < 0) & (n > 0), tl.where(drawn, capped(ours * p, q), 0.0), w)
    tl.store(walk.w + at, w, mask=turn)
    tl.store(walk.c + at, c, mask=turn)


@triton.jit
def look_up(rows, law, draft, draft_law, tree, walk, b, N, D, NP: tl.constexpr):
    """p and q of every guess, q = -1 for one that counts as not drawn; leaves which tokens they are, and the fault."""
    n = tl.arange(0, NP)
    above = tl.load(tree.parent + n, mask=n < N, other=0)
    row = tl.load(tree.row + above)
    x = tl.load(rows.tokens + b * N + n, mask=(n > 0) & (n < N), other=-1)
    ours = recall(rows, law, b, above, n < N)
    theirs = recall(draft, draft_law, b, row, row >= 0)
    inside = (x >= 0) & (x < rows.size)
    sound = theirs[1] > 0
    drawn = inside & sound
    reached = n == 0  # by a way on which every guess was drawn
    asked = reached
    for _ in range(D):
        asked = (n > 0) & (tl.gather(reached.to(tl.int32), above, 0) > 0)
        reached = (n == 0) | (drawn & asked)
    drawn &= reached  # else what is below one that was not drawn might be taken for drawn
    same = (x[:, None] == x[None, :]) & (above[:, None] == above[None, :]) & (n[None, :] < n[:, None])
    again = tl.max((same & (n > 0)[None, :]).to(tl.int32), 1) > 0
    p = weigh(law, score(rows, b, above, tl.where(drawn, x, 0), drawn), x, ours)
    q = weigh(draft_law, score(draft, b, tl.maximum(row, 0), tl.where(drawn, x, 0), drawn), x, theirs)
    q = tl.where(drawn, tl.where(again, 0.0, q), -1.0)
    tl.store(walk.guess + b * N + n, tl.where(drawn & (again == 0), x, -1).to(tl.int32), mask=n < N)
    scale = tl.load(law.scale + b * law.stride + n, mask=reached, other=1.0)
    lost = tl.sum((scale > 0).to(tl.int32), 0) < NP
    fault = tl.where(lost, 1, 0)
    fault += tl.where(tl.sum((asked & (x >= rows.size)).to(tl.int32), 0) > 0, 2, 0)
    fault += tl.where(tl.sum((asked & inside & ~sound).to(tl.int32), 0) > 0, 4, 0)
    fault += tl.where(tl.sum((reached & (q == 0) & (n > 0)).to(tl.int32), 0) > 0, 8, 0)
    tl.store(walk.fault + b, fault)
    return tl.where(q < 0, 0.0, p), q


@triton.jit
def row_of(rows, law, draft, draft_law, tree, walk, b, n, last, N):
    """The laws p and q of node n, whose children up to `last` are refused, with w and c; and the row of q."""
    c = tl.load(walk.c + b * N + last, mask=last >= 0, other=0.0)
    w = tl.load(walk.w + b * N + n)
    m = tl.maximum(tl.load(tree.row + n), 0)
    theirs = recall(draft, draft_law, b, m, c > 0)
    return recall(rows, law, b, n, n >= 0), theirs, w.to(tl.float32), c.to(tl.float32), m


@triton.jit
def remains(rows, law, draft, draft_law, tree, walk, b, n, row, ids, low, k, N, K, SIZE: tl.constexpr):
    """(w p - c q)+ of SIZE tokens `ids` from `low` on, node n's first k children refused, and q outside of those."""
    ours, theirs, w, c, m = row
    inside = ids < rows.size
    p = weigh(law, score(rows, b, n, ids, inside), ids, ours)
    q = weigh(draft_law, score(draft, b, m, ids, inside), ids, theirs)
    q = tl.where(c > 0, q, 0.0)  # else nothing was drawn from that row, whatever it holds
    rest, taken = q, c * q
    for i in range(k):
        child = tl.load(tree.child + n * K + i)
        x = tl.load(walk.guess + b * N + child)
        if (x >= low) & (x < low + SIZE):  # mostly it is not: a comparison for every token would cost as much as p
            taken = tl.where(ids == x, tl.load(walk.c + b * N + child).to(tl.float32) * q, taken)
            rest = tl.where(ids == x, 0.0, rest)
    return tl.maximum(w * p - taken, 0.0), rest


@triton.jit(do_not_specialize=["wave", "W", "N", "M", "K"])
def sum_up(
    rows, law, draft, draft_law, tree, walk, nodes, wave, W, N, M, K, TILE: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    """A wave: one of several programs that share the row of one of its W nodes."""
    next_may_begin(EARLY)
    part = tl.program_id(0) % walk.parts
    b = (tl.program_id(0) // (walk.parts * W)).to(tl.int64)
    n = tl.load(nodes + tl.program_id(0) // walk.parts % W)
    k = wave + 1 - tl.load(tree.start + n)
    last = tl.load(tree.child + n * K + k - 1)
    m = tl.load(tree.row + n)
    wait(EARLY)
    row = row_of(rows, law, draft, draft_law, tree, walk, b, n, last, N)
    if (row[2] > 0) & (row[3] > 0):  # else it is known: w is left
        left = tl.zeros((TILE,), tl.float32)
        rest = tl.zeros((TILE,), tl.float32)
        for t in range(part, tl.cdiv(rows.size, TILE), walk.parts):
            ids = t * TILE + tl.arange(0, TILE)
            more, out = remains(rows, law, draft, draft_law, tree, walk, b, n, row, ids, t * TILE, k, N, K, TILE)
            left += more
            rest += out
        at = walk.sums + 2 * ((b * M + m) * walk.parts + part)
        tl.store(at, tl.sum(left, 0))
        tl.store(at + 1, tl.sum(rest, 0))


@triton.jit(do_not_specialize=["N", "M", "D"])
def choose(names, tree, walk, N, M, D, NP: tl.constexpr, PP: tl.constexpr, EARLY: tl.constexpr):
    """The node at which each sequence stops: verify.traversal.upward, and an inversion in the order of the nodes."""
    next_may_begin(EARLY)
    b = tl.program_id(0).to(tl.int64)
    u = uniform(names, b, 1, 0)
    n = tl.arange(0, NP)
    node = n < N
    above = tl.load(tree.parent + n, mask=node, other=NP)
    last = tl.load(tree.last + n, mask=node, other=-1)
    row = tl.load(tree.row + n, mask=node, other=-1)
    wait(EARLY)
    w = tl.load(walk.w + b * N + n, mask=node, other=0.0)
    c = tl.load(walk.c + b * N + last, mask=last >= 0, other=0.0)
    summed = (w > 0) & (c > 0)
    left, _ = sums_of(walk, b * M + row, summed, PP)
    left = tl.where(summed, left, w)
    whole = left + (1.0 - w)
    h = tl.where(whole > 0, left / tl.where(whole > 0, whole, 1.0), 1.0)
    below = (above[None, :] == n[:, None]) & (n > 0)[None, :]  # [parents, children]
    refused = tl.full((NP,), 1.0, tl.float64)  # probability that nothing is taken below a node
    for _ in range(D):
        nothing = (1.0 - h) * refused  # ... nor the node itself
        refused = tl.reduce(tl.where(below, nothing[None, :], 1.0), 1, times)
    nothing = (1.0 - h) * refused
    elders = (above[None, :] == above[:, None]) & (n[None, :] < n[:, None]) & (n > 0)[None, :]
    passed = tl.reduce(tl.where(elders, nothing[None, :], 1.0), 1, times)
    reach = tl.full((NP,), 1.0, tl.float64)
    for _ in range(D):
        reach = tl.where(n > 0, tl.gather(reach, tl.minimum(above, NP - 1), 0) * passed, 1.0)
    law = tl.where(node, reach * refused * h, 0.0)
    stop, _ = chunk_at(law, u * tl.sum(law, 0))
    tl.store(walk.node + b, tl.where((tl.load(walk.fault + b) & 1) == 0, stop, 0))


@triton.jit(do_not_specialize=["Q", "N", "K", "E"])
def leave(
    rows, law, draft, draft_law, tree, walk, sums, Q, N, K, E,
    TILE: tl.constexpr, CHUNK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Sums [B, E] of what is left after the node of each sequence, over chunks of tokens."""
    next_may_begin(EARLY)
    b = (tl.program_id(0) // Q).to(tl.int64)
    chunk = tl.arange(0, TILE // CHUNK)
    wait(EARLY)
    n = tl.load(walk.node + b)
    row = row_of(rows, law, draft, draft_law, tree, walk, b, n, tl.load(tree.last + n), N)
    k = tl.load(tree.children + n)
    for t in range(tl.program_id(0) % Q, tl.cdiv(rows.size, TILE), Q):
        ids = t * TILE + chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
        left, _ = remains(rows, law, draft, draft_law, tree, walk, b, n, row, ids, t * TILE, k, N, K, TILE)
        tl.store(sums + b * E + t * (TILE // CHUNK) + chunk, tl.sum(left, 1))


@triton.jit(do_not_specialize=["N", "K", "D", "E"])
def close(
    rows, law, draft, draft_law, names, tree, walk, sums, out, N, K, D, E,
    CHUNK: tl.constexpr, EP: tl.constexpr, DP: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The token after the node of each sequence, and the way there."""
    b = tl.program_id(0).to(tl.int64)
    u = uniform(names, b, 2, 0)
    c, d = tl.arange(0, EP), tl.arange(0, DP)
    wait(EARLY)
    n = tl.load(walk.node + b)
    fault = tl.load(walk.fault + b)
    ours, theirs, w, each, m = row_of(rows, law, draft, draft_law, tree, walk, b, n, tl.load(tree.last + n), N)
    k = tl.load(tree.children + n)
    parts = tl.load(sums + b * E + c, mask=c < E, other=0.0).to(tl.float64)
    o, end, running, threshold, bare = begin(parts, u, rows.size, CHUNK)
    w, each, k = tl.where(bare, 1.0, w), tl.where(bare, 0.0, each), tl.where(bare, 0, k)
    row = ours, theirs, w, each, m
    token, final = o * 0 + LATE, o * 0
    while (o < end) & (token == LATE):
        ids = o + tl.arange(0, CHUNK)
        left, _ = remains(rows, law, draft, draft_law, tree, walk, b, n, row, ids, o, k, N, K, CHUNK)
        left = left.to(tl.float64)
        token, furthest, running = token_at(ids, left, running, threshold)
        final = tl.maximum(final, furthest)
        o += CHUNK
    token = tl.where((fault & 1) == 0, tl.minimum(token, final), 0).to(tl.int64)
    depth = tl.load(tree.depth + n)
    way = tl.load(tree.path + n * D + d, mask=d < D, other=0)
    guess = tl.load(rows.tokens + b * N + way, mask=way > 0, other=-1)
    tl.store(out[0] + b * (D + 1) + d, tl.where(d == depth, token, guess), mask=d <= D)
    tl.store(out[1] + b, depth)
    tl.store(out[2] + b * D + d, way.to(tl.int64), mask=d < D)
    tl.store(out[3] + b, fault)
