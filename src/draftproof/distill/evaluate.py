"""Evaluate a drafter on held-out text: overlap by draft token and temperature, and tokens per target call.

The text is the target's own, so the accepted length of a chain needs no drafting: a path x from p serves as well as
one from q, because sum prod min(p, q) is the mean of prod min(1, q / p) over p. So there is no noise of acceptance.
In the same way the mean of min(1, prod q / p) is the most that any rule can accept of a path. These are means over all
positions of a text; an engine starts more steps at hard positions, and how many follows from the same ratios. For a
tree the chance that one of K siblings is accepted is assumed to be the same at every node (Chen et al. 2402.12374).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from draftproof.distill import loss
from draftproof.distill.data import Text
from draftproof.distill.student import Student
from draftproof.distill.teacher import run_teacher
from draftproof.draft import grow
from draftproof.errors import DraftproofError
from draftproof.models.hf import HFModel
from draftproof.theory.plan import by_sibling

SIBLINGS, NODES, DEPTH = 4, 20, 8  # of the tree


class Quality(NamedTuple):
    """The quality of a drafter at one temperature."""

    temperature: float
    overlap: list[float]  # of the first, second, ... guess
    reach: float  # mass of p on the draft vocabulary: an upper bound for the overlap
    tokens: list[float]  # per target call, for chains of 1, 2, ... guesses, verified one by one
    limit: list[float]  # the same for the best possible rule
    engine: float  # the same for the longest chain, from where an engine starts its steps: after each refusal
    tree_of_20: float  # the same for the best such tree, siblings judged one after another (`recursive`)
    laws: int  # number of laws compared


@torch.no_grad()
def measure(
    model: HFModel, student: Student, text: Text, temperature: float, guesses: int = 5, rows: int = 16
) -> Quality:
    """Evaluate a student on the rows of text that were drawn at this temperature."""
    network: Any = model.network
    student.network.to(network.dtype)
    own = (text.temperature - temperature).abs() < 1e-6
    sums = Sums(guesses)
    for ids, drawn in zip(*(torch.split(part[own], rows) for part in (text.tokens, text.drawn)), strict=True):
        comparison = _compare(model, student, ids.long().to(network.device), temperature, guesses)
        sums.add(comparison, drawn[:, 2:].to(network.device))
    if not sums.laws[0] or not sums.starts:
        raise DraftproofError(f"the target's text at temperature {temperature:g} is too short: use a larger --length")
    overlap = (sums.overlap / sums.laws).tolist()
    tokens, limit = ((1 + (part / sums.starts).cumsum(0)).tolist() for part in (sums.paths, sums.joint))
    engine, reach, laws = float(sums.laws[0] / sums.calls), float(sums.mass / sums.laws[0]), int(sums.laws[0])
    one_of = dict(enumerate((sums.siblings / sums.laws.sum()).tolist(), start=1))
    tree = sum(node.value for node in grow(by_sibling(one_of), NODES + 1, DEPTH))
    return Quality(temperature, overlap, reach, tokens, limit, engine, tree, laws)


class Comparison(NamedTuple):
    """Target and draft compared on a few rows, for the laws after tokens 1, 2, ... except the last."""

    mass: torch.Tensor  # [B, L - 2] of p on the draft vocabulary
    overlap: torch.Tensor  # [K, B, L - 2]
    ratio: torch.Tensor  # [K, B, L - 2] q / p of the token that follows
    siblings: torch.Tensor  # [K, S, B, L - 2] chance that one of 1, 2, ... siblings is accepted


def _compare(model: HFModel, student: Student, ids: torch.Tensor, temperature: float, guesses: int) -> Comparison:
    teacher = run_teacher(model, ids, student.taps)
    after, following = teacher.logits[:, 1:-1], ids[:, 2:, None]
    heat = torch.full((1, 1), temperature, device=ids.device)
    total = loss.totals(after, heat)
    p = loss.law_of(after if student.tokens is None else after.index_select(-1, student.tokens), total, heat)
    p_following = torch.exp(after.gather(-1, following)[..., 0].float() / temperature - total)
    column, inside = _columns(student, following)
    overlaps, ratios, siblings = [], [], []
    for guess in student.guesses(teacher, guesses):
        q = torch.softmax(guess[:, :-1].float() / temperature, dim=-1)
        overlaps.append(torch.minimum(p, q).sum(-1))
        ratios.append((q.gather(-1, column) * inside)[..., 0] / p_following)
        siblings.append(_one_of(p, q))
    while len(overlaps) < guesses:  # an independent model guesses equally well at every depth
        overlaps.append(overlaps[-1])
        ratios.append(ratios[-1])
        siblings.append(siblings[-1])
    return Comparison(p.sum(-1), torch.stack(overlaps), torch.stack(ratios), torch.stack(siblings))


def _one_of(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Probability [S, B, T] that one of 1, 2, ... guesses from q is accepted; a refusal leaves (p - q)+ to the next."""
    refused, chances = torch.ones_like(p[..., 0]), []
    for _ in range(SIBLINGS):
        both = torch.minimum(p, q)
        missed = 1 - both.sum(-1)
        refused = refused * missed
        chances.append(1 - refused)
        p = (p - both) / missed.clamp_min(1e-9)[..., None]
    return torch.stack(chances)


def _columns(student: Student, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The columns of the tokens in the draft vocabulary, and whether they are in it."""
    if student.tokens is None:
        return ids, torch.ones_like(ids, dtype=torch.bool)
    column = torch.searchsorted(student.tokens, ids.contiguous()).clamp_max(len(student.tokens) - 1)
    return column, student.tokens[column] == ids


class Sums:
    """Running sums over laws, and over paths that start at each of them."""

    def __init__(self, guesses: int) -> None:
        self.guesses = guesses
        self.mass = self.starts = self.calls = torch.zeros((), dtype=torch.float64)
        self.overlap, self.laws, self.paths, self.joint = (torch.zeros(guesses, dtype=torch.float64) for _ in range(4))
        self.siblings = torch.zeros(SIBLINGS, dtype=torch.float64)

    def add(self, comparison: Comparison, drawn: torch.Tensor) -> None:
        """Add a comparison; drawn [B, L - 2] says whether the token after a law was drawn by the target."""
        count, length = self.guesses, drawn.shape[1] - self.guesses + 1
        self.mass = self.mass + (comparison.mass * drawn).sum().double().cpu()
        step_starts = loss.visits(list(comparison.ratio.clamp_max(1)), drawn, sweeps=drawn.shape[1])[0]
        self.calls = self.calls + step_starts.sum().double().cpu()
        windows = [drawn[:, k : k + length] for k in range(count)]
        whole = torch.stack(windows).all(dim=0).double()  # all guesses from here on have a drawn token
        self.starts = self.starts + whole.sum().cpu()
        accepted, product = whole, torch.ones_like(whole)
        for k in range(count):
            valid = drawn.clone()
            valid[:, :k] = False  # too early in the text for a k-th guess
            self.overlap[k] += (comparison.overlap[k] * valid).sum().double().cpu()
            self.siblings += (comparison.siblings[k] * valid).sum(dim=(1, 2)).double().cpu()
            self.laws[k] += valid.sum().cpu()
            ratio = comparison.ratio[k, :, k : k + length].double()
            accepted, product = accepted * ratio.clamp_max(1), product * ratio
            self.paths[k] += accepted.sum().cpu()
            self.joint[k] += (whole * product.clamp_max(1)).sum().cpu()


def plot(qualities: Sequence[Quality], path: Path) -> None:
    """Plot overlap by guess below its upper bound, and tokens per call below the limit of any rule."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "draftproof", "font.size": 9}):
        figure = Figure(figsize=(8.4, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        for n, quality in enumerate(qualities):
            at = range(1, len(quality.overlap) + 1)
            style = {"marker": "o", "ms": 4, "color": f"C{n}", "label": f"temperature {quality.temperature:g}"}
            left.plot(at, quality.overlap, **style)
            left.axhline(quality.reach, color=f"C{n}", ls="--", lw=1)
            right.plot(at, quality.tokens, **style)
            right.plot(at, quality.limit, color=f"C{n}", ls="--", lw=1)
            right.axhline(quality.tree_of_20, color=f"C{n}", ls=":", lw=1)
        left.set(xlabel="draft token", ylabel="overlap with the target", ylim=(0, 1))
        right.set(xlabel="length of the chain", ylabel="tokens per target call", ylim=(1, None))
        right.plot([], [], color="grey", ls="--", lw=1, label="limit")
        right.plot([], [], color="grey", ls=":", lw=1, label=f"tree of {NODES}")
        for panel in (left, right):
            panel.grid(alpha=0.3)
            panel.set_xticks(range(1, len(qualities[0].overlap) + 1))
        right.legend(fontsize=8)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
