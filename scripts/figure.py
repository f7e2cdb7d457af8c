"""The figure of docs/how-it-works.md: draft, accept, correct, on two tokens, with numbers that the library computes.

Its numbers stand in a comment at the top of the SVG. They are what `--check` compares, because the lines of an SVG
differ from one matplotlib to the next.
"""

from __future__ import annotations

import io
import json
import re
from fractions import Fraction
from typing import Any

import numpy as np

from draftproof.law import overlap, residual

PATH = "docs/figures/how-it-works.svg"
TOKENS = ("A", "B")
# Colours that hold on white and on black; accepted and corrected are those of the command line.
INK, DRAFT, ACCEPTED, REJECTED, CORRECTED = "#768390", "#316dca", "#347d39", "#e5534b", "#966600"


def numbers() -> dict[str, list[str]]:
    """The masses of the example, token by token, as fractions."""
    p = np.array([Fraction(1, 4), Fraction(3, 4)])
    q = np.array([Fraction(1, 2), Fraction(1, 2)])
    accepted = np.where(p < q, p, q)
    corrected = (1 - overlap(p, q)) * residual(p, q)
    masses = {"p": p, "q": q, "accepted": accepted, "rejected": q - accepted, "corrected": corrected}
    masses["emitted"] = accepted + corrected
    return {name: [str(mass) for mass in row] for name, row in masses.items()}


def numbers_in(svg: str) -> dict[str, Any] | None:
    """What a drawn figure says it shows."""
    found = re.search(r"<!-- numbers (.*?) -->", svg)
    return json.loads(found[1]) if found else None


def draw() -> str:
    """The figure as SVG text: the same bytes for the same matplotlib."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"hatch.linewidth": 0.8, "font.size": 10, "hatch.color": REJECTED}):
        figure = Figure(figsize=(9.0, 2.9))
        axes = figure.subplots(1, 3, sharey=True)
        _panels(axes, {name: [Fraction(mass) for mass in row] for name, row in numbers().items()})
        figure.subplots_adjust(left=0.01, right=0.99, top=0.89, bottom=0.12, wspace=0.1)
        return as_svg(figure, numbers())


def as_svg(figure: Any, numbers: dict[str, Any]) -> str:
    """SVG text without dates or random names, its numbers in a comment at the top."""
    from matplotlib import rc_context

    out = io.StringIO()
    with rc_context({"svg.hashsalt": "draftproof"}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    start = next(i for i, line in enumerate(lines) if line.startswith("<svg"))
    return "\n".join([*lines[:start], f"<!-- numbers {json.dumps(numbers)} -->", *lines[start:]]) + "\n"


def _panels(axes: Any, mass: dict[str, list[Fraction]]) -> None:
    """Three stages, left to right; the dashed line at each token is the target's p."""
    titles = ("1. draft from q", "2. accept min(p, q)", "3. redraw the rest from (p − q)₊")
    names = [f"{token}   p = {p}" for token, p in zip(TOKENS, mass["p"], strict=True)]
    for ax, title in zip(axes, titles, strict=True):
        ax.set_title(title, color=INK, fontsize=11, pad=6, loc="left", x=0.04)
        ax.set(xlim=(-0.6, 1.6), ylim=(0, 0.84), yticks=[], facecolor="none")
        ax.set_xticks(range(2), names, color=INK, fontsize=10)
        ax.tick_params(length=0, pad=6)
        for side, spine in ax.spines.items():
            spine.set_visible(side == "bottom")
            spine.set_color(INK)
        for x, p in enumerate(mass["p"]):
            ax.plot([x - 0.48, x + 0.48], [float(p)] * 2, color=INK, linestyle=(0, (3, 2)), linewidth=1.4, zorder=3)
    _stack(axes[0], [("q", DRAFT, "drafted")], mass)
    _stack(axes[1], [("accepted", ACCEPTED, "accepted"), ("rejected", REJECTED, "rejected")], mass)
    _stack(axes[2], [("accepted", ACCEPTED, "accepted"), ("corrected", CORRECTED, "corrected")], mass)


def _stack(ax: Any, layers: list[tuple[str, str, str]], mass: dict[str, list[Fraction]]) -> None:
    """Bars on top of each other, each labelled with its mass; rejected mass is only outlined."""
    for x in range(2):
        floor = Fraction(0)
        for name, colour, word in layers:
            height = mass[name][x]
            if height == 0:
                continue
            gone = name == "rejected"
            look = {"facecolor": "none", "hatch": "///", "linestyle": ":"} if gone else {"facecolor": colour}
            ax.bar(x, float(height), 0.84, bottom=float(floor), edgecolor=colour, linewidth=0.8, **look)
            place = floor + height + Fraction(1, 25) if gone else floor + Fraction(1, 8)
            label = f"{word} {height}"
            ax.text(x, float(place), label, color=colour if gone else "white", ha="center", va="center", fontsize=9.5)
            floor += height
