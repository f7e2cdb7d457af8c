"""Which rule accepts most: every verifier on synthetic pairs of laws, one step and several, beside the limits.

`python -m benchmarks.acceptance` writes docs/acceptance.md, docs/figures/acceptance.svg and
benchmarks/results/acceptance.json. Laws are exact where they can be, so one run is enough; seeds are fixed. A new
verifier gets its row without an edit here.
"""

from __future__ import annotations

import argparse
import heapq
import json
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from draftproof.couple.gumbel import match_probability
from draftproof.draft import Draft, Tree
from draftproof.draws import DRAWS
from draftproof.law import overlap
from draftproof.noise import Lane, uniforms
from draftproof.rule import Verifier
from draftproof.theory import bounds
from draftproof.theory.acceptance import ACCEPTANCE, sampled
from draftproof.verify import VERIFIERS

ROOT = Path(__file__).resolve().parents[1]
SCALE = 3.0  # standard deviation of the logits at temperature 1
PAIRS = 40  # of laws, for each column
SAMPLES = 64  # drafts for each pair where a rule has no formula
NO_MATCH = "-"
CHAINS = {"token", "block"}  # rules for one path

Context = tuple[int, ...]
Pair = Callable[[Context], tuple[Any, Any]]  # context -> rows p and q [V]


class Row(NamedTuple):
    """One number of a table."""

    table: str  # "one step" or "several steps"
    rule: str
    draw: str
    siblings: int
    likeness: float  # correlation of the drafter's logits with the target's
    vocabulary: int
    temperature: float
    value: float  # probability that a guess is accepted; or expected number of accepted tokens
    error: float  # standard error over the pairs


def pair(chance: np.random.Generator, size: int, likeness: float, temperature: float) -> tuple[Any, Any]:
    """Rows p and q [V]: softmax of correlated normal logits."""
    z, e = chance.standard_normal((2, size))
    logits = np.stack([z, likeness * z + np.sqrt(1 - likeness**2) * e]) * SCALE / temperature
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    p, q = weights / weights.sum(axis=1, keepdims=True)
    return p, q


def one_step(pairs: int) -> Iterator[Row]:
    """Every verifier on a star of K guesses, and the limit for each way of drawing."""
    for likeness in (0.95, 0.8):
        for size in (50, 1000):
            for temperature in (0.5, 1.0, 1.5):
                chance = np.random.default_rng([int(100 * likeness), size, int(10 * temperature)])
                rows = [pair(chance, size, likeness, temperature) for _ in range(pairs)]
                place = (likeness, size, temperature)
                yield _row(
                    "one step", "gumbel", "race", 1, place, [match_probability(p[None], q[None])[0] for p, q in rows]
                )
                yield _row("one step", "token", "iid", 1, place, [overlap(p, q) for p, q in rows])
                for siblings in (2, 4):
                    yield from _star(siblings, place, rows)


def _star(siblings: int, place: tuple[float, int, float], rows: list[tuple[Any, Any]]) -> Iterator[Row]:
    for draw, limit in bounds.LIMITS.items():
        values = [float(limit(p[None], q[None], siblings)[0]) for p, q in rows]
        yield _row("one step", "limit", draw, siblings, place, values)
    for name, verifier in VERIFIERS.items():
        if verifier.select is not None or not verifier.accepts(Tree.star(siblings)) or name == "onehot":
            continue
        draw = "iid" if "iid" in verifier.draws else min(verifier.draws)
        if name in ACCEPTANCE:
            values = [float(ACCEPTANCE[name](p, q, siblings)) for p, q in rows]
        else:
            values = [sampled(verifier, draw, p, q, siblings, SAMPLES, seed) for seed, (p, q) in enumerate(rows)]
        yield _row("one step", name, draw, siblings, place, values)


def several_steps(rounds: int, length: int = 5, size: int = 50) -> Iterator[Row]:
    """Every verifier on K paths of L tokens, or on one path; a fresh context-dependent pair every round."""
    for likeness, temperature in ((0.95, 1.0), (0.8, 1.0), (0.95, 0.5)):
        place = (likeness, size, temperature)
        found = models(rounds, place)
        for siblings in (1, 2, 4):
            drafts: dict[str, Draft] = {}
            for name, verifier in VERIFIERS.items():
                wanted = {"chain"} if siblings == 1 else {"paths", "any"}
                if verifier.trees in wanted and name not in ("onehot", "importance"):
                    draw = "iid" if "iid" in verifier.draws else min(verifier.draws)
                    if draw not in drafts:
                        drafts[draw] = draw_paths(Tree.paths(siblings, length), draw, found)
                    yield _row("several steps", name, draw, siblings, place, _accepted(verifier, drafts[draw]))
            trees = [likely_tree(model, siblings * length, length) for model in found]
            values = np.concatenate([_accepted(VERIFIERS["match"], tree) for tree in trees])
            yield _row("several steps", "match", "fixed", siblings, place, values)


def models(rounds: int, place: tuple[float, int, float]) -> list[Pair]:
    """A pair of models for every round: each context has rows p and q of its own."""
    likeness, size, temperature = place
    seeds = np.random.SeedSequence([int(100 * likeness), int(10 * temperature)]).spawn(rounds)

    def model(base: int) -> Pair:
        return cache(lambda path: pair(np.random.default_rng([base, *path]), size, likeness, temperature))

    return [model(int(seed.generate_state(1)[0])) for seed in seeds]


def draw_paths(tree: Tree, draw: str, found: list[Pair]) -> Draft:
    """A draft of the tree for each pair of models; equal paths have equal rows."""
    run, size = np.arange(len(found)), len(found[0](())[0])
    tokens = np.full((len(found), tree.size), -1)
    p, q = np.zeros((2, len(found), tree.size, size))
    u = uniforms(run * 0, run * 0, run, Lane.DRAFT, tree.size)
    for b, model in enumerate(found):
        for node in range(tree.size):
            p[b, node], law = model(tuple(tokens[b, n] for n in tree.path(node)))
            if children := list(tree.children(node)):
                q[b, node] = law
                tokens[b, children] = DRAWS[draw].sample(law[None], u[b, children][None])[0]
    return Draft(tree, tokens, q, p)


def likely_tree(model: Pair, nodes: int, length: int) -> Draft:
    """The `nodes` paths that the drafter finds most probable, none longer than `length`: one tree, nothing drawn."""
    heap: list[tuple[float, Context]] = [(-1.0, ())]
    paths: list[Context] = []
    while len(paths) <= nodes:  # the root is one of them
        chance, path = heapq.heappop(heap)
        paths.append(path)
        if len(path) < length:
            q = model(path)[1]
            for token in np.argsort(-q, kind="stable")[:nodes].tolist():
                heapq.heappush(heap, (chance * q[token], (*path, token)))
    paths.sort(key=len)
    tree = Tree((-1, *(paths.index(path[:-1]) for path in paths[1:])))
    p = np.stack([model(path)[0] for path in paths])
    return Draft(tree, np.array([[-1, *(path[-1] for path in paths[1:])]]), p[None] * 0, p[None])


def _accepted(verifier: Verifier, draft: Draft) -> Any:
    """[B]: expected accepted tokens given each draft."""
    if verifier.select is not None:
        run = np.arange(len(draft.tokens))
        draft = verifier.select(
            draft, uniforms(run * 0, run * 0, run, Lane.SELECT, verifier.uniforms(draft.tree))
        ).chain
    return (verifier.stop(draft) * np.array(draft.tree.depth)).sum(axis=1)


def _row(table: str, rule: str, draw: str, siblings: int, place: tuple[float, int, float], values: Any) -> Row:
    values = np.asarray(values, dtype=np.float64)
    error = float(values.std() / np.sqrt(len(values)))
    return Row(table, rule, draw, siblings, *place, round(float(values.mean()), 4), round(error, 4))


def markdown(rows: list[Row]) -> str:
    """The page."""
    one, several = ([row for row in rows if row.table == table] for table in ("one step", "several steps"))
    without = sorted({row.rule for row in one} & set(VERIFIERS) - set(ACCEPTANCE) - {"token"})
    sampled_rules = _filled(
        f"""Each number is exact for its pairs, except for {", ".join(f"`{name}`" for name in without)}: these are the
        limit of their draws less what they fall short of it, on average over {SAMPLES} sampled drafts a pair. That is
        never negative, so no number is above its own limit."""
    )
    ways = "\n".join(_filled(f"- *{draw.name}*: {draw.summary}.", "  ") for draw in DRAWS.values())
    return f"""# Acceptance

Which rule accepts most, on synthetic pairs of laws, and how far each is from the limit of its draws.

`python -m benchmarks.acceptance` wrote this page. Target and drafter are p = softmax(3 z / T) and
q = softmax(3 (r z + sqrt(1 - r²) e) / T) with normal z and e: a larger r is a better drafter, a larger T gives flatter
laws. V is the vocabulary size. Numbers are means over random pairs and contexts with fixed seeds.

![Acceptance of each rule and the limit of each way of drawing](figures/acceptance.svg)

## One step

The probability that the emitted token is one of K candidates. How the candidates are drawn decides how good a rule can
be, so there is a [limit](limits.md) for each way of drawing, not one for all:

{ways}
- *race*: drafter and target share their noise (`gumbel`).

Rows are grouped by the way of drawing: first the limit that no exact rule passes whose candidates are drawn so, then
these rules from worst to best. A rule with other draws may well pass it: the limit of *distinct* draws is above that of
*iid* ones in every column.

{sampled_rules}

{_table(one)}

`optimal` equals the limit of *iid* draws in every column, `nodeplan` that of *plan* draws, and `top_plus_one` that of
*top* draws; `match` reaches that of *fixed* ones. No rule here reaches the limit of *distinct* draws. `nodeplan` comes
close to it with draws of its own.

## Several steps

Expected accepted draft tokens per target call, for K paths of 5 tokens. The first tokens are drawn in the way the rule
needs, and each is continued as a chain. For `fixed` nothing is drawn: the tree has the 5 K nodes that are most probable
under the drafter. For one path `block` is the limit of any rule that starts anew after each step; for several paths no
formula for the limit is known. Standard errors are at most {max(row.error for row in several):.2f}, so neighbours in
the order may trade places.

{_table(several)}

From worst to best:

{_order(several)}

`recursive`, `kseq`, `optimal` and `nodeplan` verify one node after the other; `block`, `traversal`, `sbv` and `csbv`
judge a path as a whole. Paths that begin with the same tokens are merged, and all their continuations are candidates
after the common part, except with `plan`. Planned candidates (`sbv_plan`) keep up with the best where independent ones
repeat each other: with a poor drafter, or with few candidates at low temperature.
"""


def _filled(text: str, indent: str = "") -> str:
    """The text in lines of 120 characters."""
    return textwrap.fill(" ".join(text.split()), 120, subsequent_indent=indent)


def _order(rows: list[Row]) -> str:
    """What the table says in words: for a good drafter all rules in order, elsewhere the five best."""
    lines = []
    for siblings, place in ((4, (0.95, 50, 1.0)), (4, (0.8, 50, 1.0)), (2, (0.95, 50, 0.5)), (4, (0.95, 50, 0.5))):
        column = [row for row in rows if row[4:7] == place and (row.siblings == siblings or row.rule in CHAINS)]
        column.sort(key=lambda row: row.value)
        names = [f"`{row.rule}`{' (fixed)' * (row.draw == 'fixed')} {row.value:.2f}" for row in column]
        shown = ", ".join(names if not lines else ["...", *names[-5:]])
        text = f"- r {place[0]}, T {place[2]}, K {siblings}: {shown}."
        lines.append(_filled(text, "  "))
    return "\n".join(lines)


def _table(rows: list[Row]) -> str:
    columns = sorted({(-row.likeness, row.vocabulary, row.temperature) for row in rows})
    cells = {(row.siblings, row.draw, row.rule, -row.likeness, row.vocabulary, row.temperature): row for row in rows}
    lines = sorted({(row.siblings, row.draw, row.rule) for row in rows}, key=lambda line: _rank(line, rows))
    head = "| K | draws | rule | " + " | ".join(f"r {-r} V {v} T {t}" for r, v, t in columns) + " |"
    body = []
    for line in lines:
        found = [cells.get((*line, *column)) for column in columns]
        numbers = " | ".join(NO_MATCH if row is None else f"{row.value:.3f}" for row in found)
        name = f"*limit of {line[1]} draws*" if line[2] == "limit" else f"`{line[2]}`"
        body.append(f"| {line[0]} | {line[1]} | {name} | {numbers} |")
    return "\n".join([head, "|---|---|---|" + "---|" * len(columns), *body])


def _rank(line: tuple[int, str, str], rows: list[Row]) -> tuple[Any, ...]:
    """Lines by K, by way of drawing, the limit first, then from worst to best."""
    values = [row.value for row in rows if (row.siblings, row.draw, row.rule) == line]
    draws = ["race", *DRAWS]
    return line[0], draws.index(line[1]), line[2] != "limit", sum(values) / len(values), line[2]


def draw_figure(rows: list[Row], path: Path) -> None:
    """Acceptance of four guesses against temperature, a panel for each place, a colour for each draw."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    shown = {
        "iid": ["match", "naive", "recursive", "kseq", "optimal"],
        "distinct": ["recursive_distinct"],
        "top": ["top_plus_one"],
        "plan": ["nodeplan"],
    }
    colours = dict(zip(shown, ("#0072b2", "#d55e00", "#009e73", "#cc79a7"), strict=True))  # Okabe and Ito
    markers = dict(zip([rule for rules in shown.values() for rule in rules], "vs^Do*Ph", strict=True))
    places = sorted({(-row.likeness, row.vocabulary) for row in rows if row.table == "one step"})
    with rc_context({"svg.hashsalt": "draftproof", "font.size": 9}):
        figure = Figure(figsize=(11, 4.2))
        axes = figure.subplots(1, len(places), sharey=True)
        for axis, (likeness, vocabulary) in zip(axes, places, strict=True):
            here = [row for row in rows if (row.table, row.siblings) == ("one step", 4)]
            here = [row for row in here if (-row.likeness, row.vocabulary) == (likeness, vocabulary)]
            for draw, rules in shown.items():
                for rule in ("limit", *rules):
                    line = sorted((row.temperature, row.value) for row in here if (row.rule, row.draw) == (rule, draw))
                    if rule == "limit":
                        style = {"ls": (0, (5, 2)), "lw": 3, "alpha": 0.45, "label": f"limit of {draw} draws"}
                    else:
                        style = {"marker": markers[rule], "ms": 5, "lw": 1, "label": f"{rule} ({draw})"}
                    axis.plot(*zip(*line, strict=True), color=colours[draw], **style)
            axis.set_title(f"V = {vocabulary}, r = {-likeness}")
            axis.set_xlabel("temperature")
            axis.set_xticks([0.5, 1.0, 1.5])
            axis.grid(alpha=0.25)
        axes[0].set_ylabel("acceptance of one of 4 candidates")
        handles = axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=4, frameon=False)
        figure.set_layout_engine("constrained")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.acceptance", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"pairs of laws per column (default {PAIRS})")
    parser.add_argument("--rounds", type=int, default=4000, help="drafts per column of several steps (default 4000)")
    parser.add_argument("--root", type=Path, default=ROOT, help="where to write docs/ and benchmarks/results/")
    options = parser.parse_args()
    rows = [*one_step(options.pairs), *several_steps(options.rounds)]
    results = options.root / "benchmarks" / "results" / "acceptance.json"
    for path in (results, options.root / "docs" / "acceptance.md"):
        path.parent.mkdir(parents=True, exist_ok=True)
    results.write_text("[\n" + ",\n".join(json.dumps(row._asdict()) for row in rows) + "\n]\n", encoding="utf-8")
    (options.root / "docs" / "acceptance.md").write_text(markdown(rows), encoding="utf-8")
    draw_figure(rows, options.root / "docs" / "figures" / "acceptance.svg")


if __name__ == "__main__":
    main()
