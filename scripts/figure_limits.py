"""The figure of docs/limits.md: where the limit of several candidates comes from, and what more of them do to it."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np

from draftproof.law import divide
from draftproof.theory import bounds
from scripts.figure import ACCEPTED, CORRECTED, DRAFT, INK, REJECTED, as_svg

PATH = "docs/figures/limits.svg"
P = tuple(Fraction(n, 20) for n in (2, 5, 1, 8, 4))
Q = tuple(Fraction(n, 20) for n in (6, 4, 5, 3, 2))
COIN = Fraction(1, 4)  # p(A) of the second panel
CANDIDATES = {1: REJECTED, 2: CORRECTED, 4: ACCEPTED, 8: DRAFT}


def numbers() -> dict[str, Any]:
    """The masses of all sets of five tokens, of the first tokens by p/q, the limit, and where the coin is certain."""
    p, q = np.array(P), np.array(Q)
    order = np.argsort(divide(p, q), kind="stable").tolist()
    sets = [list(s) for n in range(6) for s in combinations(range(5), n)]
    return {
        "sets": [[str(p[s].sum()), str(q[s].sum() ** 2)] for s in sets],
        "prefixes": [[str(p[order[:n]].sum()), str(q[order[:n]].sum() ** 2)] for n in range(6)],
        "limit": str(bounds.iid(p, q, 2)),
        "certain": {
            str(K): [round(1 - float(1 - COIN) ** (1 / K), 6), round(float(COIN) ** (1 / K), 6)] for K in CANDIDATES
        },
    }


def draw() -> str:
    """The figure as SVG text: the same bytes for the same matplotlib."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"font.size": 10}):
        figure = Figure(figsize=(9.0, 3.9))
        axes = figure.subplots(1, 2)
        _sets(axes[0])
        _coin(axes[1])
        for ax in axes:
            ax.tick_params(colors=INK, labelsize=9)
            for side, spine in ax.spines.items():
                spine.set_visible(side in ("bottom", "left"))
                spine.set_color(INK)
        figure.subplots_adjust(left=0.07, right=0.985, top=0.9, bottom=0.14, wspace=0.22)
        return as_svg(figure, numbers())


def _sets(ax: Any) -> None:
    """Every set of tokens as a point; the limit is the largest height above the diagonal."""
    found = numbers()
    points, line = (np.array([[float(Fraction(n)) for n in pair] for pair in found[k]]) for k in ("sets", "prefixes"))
    worst = max(line.tolist(), key=lambda point: point[1] - point[0])
    ax.plot([0, 1], [0, 1], color=INK, lw=1, ls=(0, (3, 2)))
    ax.plot(*points.T, "o", color=INK, ms=4, alpha=0.6, label="every set S")
    ax.plot(*line.T, "o-", color=DRAFT, ms=6, lw=1.4, label="first tokens by p/q")
    ax.plot([worst[0]] * 2, [worst[0], worst[1]], color=REJECTED, lw=2.5)
    gap = 1 - Fraction(found["limit"])
    ax.text(worst[0], worst[1] + 0.03, f"{gap} lost", color=REJECTED, ha="right", va="bottom")
    _words(ax, "two candidates, five tokens", "p(S): wanted in S", "q(S)²: both candidates in S")


def _coin(ax: Any) -> None:
    """The limit for two tokens, against the drafter's law."""
    q = np.linspace(0, 1, 201)
    p = np.array([[float(COIN), float(1 - COIN)]] * len(q))
    for K, colour in CANDIDATES.items():
        ax.plot(q, bounds.iid(p, np.stack([q, 1 - q], axis=1), K), color=colour, lw=1.8, label=f"K = {K}")
    ax.axvline(float(COIN), color=INK, lw=1, ls=(0, (3, 2)))
    ax.set_ylim(0.2, 1.03)
    _words(ax, f"two tokens, p(A) = {COIN}", "q(A)", "limit of the acceptance")


def _words(ax: Any, title: str, x: str, y: str) -> None:
    ax.set_title(title, color=INK, fontsize=11, loc="left")
    ax.set_xlabel(x, color=INK)
    ax.set_ylabel(y, color=INK)
    ax.set_facecolor("none")
    ax.legend(frameon=False, labelcolor=INK, fontsize=9, loc="upper left" if "five" in title else "lower left")
