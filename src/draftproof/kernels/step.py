# mypy: ignore-errors
"""The one kernel of a step: programs take tickets, and whoever waits, waits for programs that are already running.

The first tickets measure the target rows; the last program of a sequence to finish decides how far its draft goes. The
tickets after them sum the excess, and the last of a sequence emits its token.
"""

import triton
import triton.language as tl

from draftproof.kernels.cut import cut
from draftproof.kernels.device import plain
from draftproof.kernels.emit import emit, excess
from draftproof.kernels.measure import decide, measure


@triton.jit(do_not_specialize=["B", "N", "S", "E", "Q", "G"])
def step(
    rows, law, draft, draft_law, stats, lists, state, limits, out, B, N, S, E, Q, G,
    SPAN: tl.constexpr, TILE: tl.constexpr, UNIT: tl.constexpr, HALF: tl.constexpr, GROUP: tl.constexpr,
    NP: tl.constexpr, SP: tl.constexpr, EP: tl.constexpr, GP: tl.constexpr, FEW: tl.constexpr, SWEEP: tl.constexpr,
    LANE: tl.constexpr, BLOCK: tl.constexpr, SHIFT: tl.constexpr, GREEDY: tl.constexpr, SUMMED: tl.constexpr,
):  # fmt: skip
    """One of B * (N * S + Q) programs: N rows of S spans to measure for each sequence, and Q units to sum."""
    ticket = tl.atomic_add(state.ticket, 1, sem="relaxed")
    if ticket == B * (N * S + Q) - 1:
        tl.store(state.ticket, 0)
    last = ticket < 0
    b = (ticket // (N * S)).to(tl.int64)
    if b < B:
        part = ticket % (N * S)
        n = part // S
        used = n == 0
        if n > 0:
            used = tl.load(rows.tokens + b * plain(rows.drafts) + plain(rows.node) + n - 1) >= 0
        if used:
            measure(rows, stats, b, n, N, part % S, S, G, SPAN, TILE, LANE, GREEDY)
        tl.debug_barrier()
        if stats.group is None:
            last = tl.atomic_add(state.arrived + b, 1, sem="acq_rel") == N * S - 1
        else:
            whole = tl.atomic_add(state.measured + b * N + n, 1, sem="acq_rel") == S - 1
            if whole:
                tl.store(state.measured + b * N + n, 0)
                if used:
                    cut(rows, law, stats, lists, limits, b, n, N, S, GROUP, SP, GP, FEW, SWEEP, SHIFT, GREEDY)
                tl.debug_barrier()
                last = tl.atomic_add(state.arrived + b, 1, sem="acq_rel") == N - 1
        if last:
            tl.store(state.arrived + b, 0)
            wanted = decide(rows, law, draft, draft_law, stats, lists, state, b, N, S, NP, SP, GREEDY)
            tl.debug_barrier()
            if SUMMED:
                tl.atomic_xchg(state.decided + b, tl.where(wanted, 2, 1), sem="release")
                last = wanted == 0
    elif SUMMED:
        b = ((ticket - B * N * S) // Q).to(tl.int64)
        decided = tl.atomic_add(state.decided + b, 0, sem="acquire")
        while decided == 0:
            decided = tl.atomic_add(state.decided + b, 0, sem="acquire")
        if decided == 2:
            c = (ticket - B * N * S) % Q
            excess(rows, law, draft, draft_law, stats, lists, state, b, c, N, E, G, GROUP, UNIT, HALF)
        tl.debug_barrier()
        if tl.atomic_add(state.summed + b, 1, sem="acq_rel") == Q - 1:
            tl.store(state.summed + b, 0)
            tl.store(state.decided + b, 0)
            last = decided == 2
    if out[0] is not None:  # noqa: SIM102  (known when the kernel is compiled; the next when it runs)
        if last:
            emit(
                rows, law, draft, draft_law, stats, lists, state, out, b, N, S, E, G,
                SPAN, GROUP, NP, EP, UNIT, BLOCK, SUMMED,
            )  # fmt: skip
