# mypy: ignore-errors
"""The kernel of a step, in one launch for small work and in two or three for much, where lean programs read faster.

Its programs measure the target rows; the last program of a sequence to finish decides how far the draft goes; others
then sum the excess, and the last of those emits the token. Programs take tickets in that order, so that within a launch
whoever waits, waits for programs that are already running.
"""

import triton
import triton.language as tl

from draftproof.kernels.cut import cut
from draftproof.kernels.device import plain
from draftproof.kernels.emit import emit, excess
from draftproof.kernels.measure import decide, measure


@triton.jit(do_not_specialize=["B", "N", "S", "E", "F", "Q", "G"])
def step(
    rows, law, draft, draft_law, stats, lists, state, limits, out, B, N, S, E, F, Q, G,
    SPAN: tl.constexpr, TILE: tl.constexpr, UNIT: tl.constexpr, HALF: tl.constexpr, GROUP: tl.constexpr,
    NP: tl.constexpr, SP: tl.constexpr, EP: tl.constexpr, GP: tl.constexpr, FEW: tl.constexpr, SWEEP: tl.constexpr,
    LANE: tl.constexpr, BLOCK: tl.constexpr, SHIFT: tl.constexpr, GREEDY: tl.constexpr, SUMMED: tl.constexpr,
    MEASURES: tl.constexpr, DECIDES: tl.constexpr, EMITS: tl.constexpr,
):  # fmt: skip
    """One of B * (F + Q) programs, for each sequence F that measure spans or else cut rows, and Q that sum units."""
    ticket = tl.atomic_add(state.ticket, 1, sem="relaxed")
    if ticket == B * (F + Q) - 1:
        tl.store(state.ticket, 0)
    last = ticket < 0
    b = ticket.to(tl.int64)
    if ticket < B * F:
        b = (ticket // F).to(tl.int64)
        part = ticket % F
        n = part // S if MEASURES else part
        used = n == 0
        if n > 0:
            used = tl.load(rows.tokens + b * plain(rows.drafts) + plain(rows.node) + n - 1) >= 0
        whole = part >= 0
        if MEASURES:
            if used:
                measure(rows, stats, b, n, N, part % S, S, G, SPAN, TILE, LANE, GREEDY)
            if DECIDES & (stats.group is not None):
                tl.debug_barrier()
                whole = tl.atomic_add(state.measured + b * N + n, 1, sem="acq_rel") == S - 1
        if DECIDES:
            if stats.group is None:
                tl.debug_barrier()
                last = tl.atomic_add(state.arrived + b, 1, sem="acq_rel") == N * S - 1
            elif whole:
                tl.store(state.measured + b * N + n, 0)
                if used:
                    cut(rows, law, stats, lists, limits, b, n, N, S, GROUP, SP, GP, FEW, SWEEP, SHIFT, GREEDY)
                tl.debug_barrier()
                last = tl.atomic_add(state.arrived + b, 1, sem="acq_rel") == N - 1
            if last:
                tl.store(state.arrived + b, 0)
                wanted = decide(rows, law, draft, draft_law, stats, lists, state, b, N, S, NP, SP, GREEDY)
                tl.debug_barrier()
                if SUMMED if EMITS else out[0] is not None:  # other programs wait for it
                    tl.atomic_xchg(state.decided + b, tl.where(wanted, 2, 1), sem="release")
                    last = wanted == 0
    elif EMITS:
        b = ((ticket - B * F) // Q).to(tl.int64)
        decided = tl.atomic_add(state.decided + b, 0, sem="acquire")
        while decided == 0:
            decided = tl.atomic_add(state.decided + b, 0, sem="acquire")
        if SUMMED:  # noqa: SIM102  (known when the kernel is compiled; the next when it runs)
            if decided == 2:
                c = (ticket - B * F) % Q
                excess(rows, law, draft, draft_law, stats, lists, state, b, c, N, E, G, GROUP, UNIT, HALF)
        tl.debug_barrier()
        if tl.atomic_add(state.summed + b, 1, sem="acq_rel") == Q - 1:
            tl.store(state.summed + b, 0)
            tl.store(state.decided + b, 0)
            last = (decided == 2) | (DECIDES == 0)  # else it was emitted when it was decided
    if EMITS:  # noqa: SIM102
        if last:
            emit(
                rows, law, draft, draft_law, stats, lists, state, out, b, N, S, E, G,
                SPAN, GROUP, NP, EP, UNIT, BLOCK, SUMMED,
            )  # fmt: skip
