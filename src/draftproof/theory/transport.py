"""Limits by linear programming, for small cases and any way of drawing: candidates to tokens, whole trees to stops.

The first program is the optimal transport of SpecTr (Sun et al., arXiv 2310.15141); Khisti et al. (2410.18234) show
that picking one guess and then the token rule loses nothing against it. The second bounds every rule on a tree.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from draftproof.draft import Tree
from draftproof.draws import Draw
from draftproof.errors import DraftproofError
from draftproof.theory.enumerate import Context, Drafter, Model, drafts

GuessSets = dict[frozenset[int], float]  # set of guesses -> probability


class Transport(NamedTuple):
    """An optimal way of sending sets of guesses to tokens among them."""

    value: float  # the limit: probability that the emitted token is a guess
    sent: dict[frozenset[int], dict[int, float]]  # mass that each set sends to each of its tokens


class PickWeights(NamedTuple):
    """The same optimum in two steps: pick one guess, then the token rule with the pick's law in place of q."""

    weights: dict[frozenset[int], dict[int, float]]  # probability to pick each token of a set
    a: Any  # [V] law of the pick


def guesses(q: Any, draw: Draw, siblings: int) -> GuessSets:
    """Law of the set of guesses that K siblings drawn from the row q [V] make."""
    tokens = np.array(list(itertools.product(range(-1, len(q)), repeat=siblings)))
    law: GuessSets = defaultdict(float)
    for guess, chance in zip(tokens.tolist(), draw.probability(np.stack([q] * len(tokens)), tokens), strict=True):
        if chance > 0:
            law[frozenset(guess) - {-1}] += float(chance)
    return dict(law)


def transport(p: Any, law: GuessSets) -> Transport:
    """The best acceptance for a target row p [V]: a token gets at most p, a set sends at most its probability."""
    routes = [(s, x) for s in law for x in sorted(s)]
    sets = {s: n for n, s in enumerate(law)}
    if not routes:  # the drafter has no guess
        return Transport(0.0, {s: {} for s in law})
    columns = np.arange(len(routes))
    rows = np.concatenate([[sets[s] for s, _ in routes], [len(sets) + x for _, x in routes]])
    solution = _maximise(
        np.ones(len(routes)),
        (np.ones(2 * len(routes)), rows, np.concatenate([columns, columns])),
        np.concatenate([list(law.values()), np.asarray(p, dtype=np.float64)]),
    )
    sent: dict[frozenset[int], dict[int, float]] = {s: {} for s in law}
    for (s, x), mass in zip(routes, solution, strict=True):
        sent[s][x] = max(float(mass), 0.0)
    return Transport(float(solution.sum()), sent)


def decompose(p: Any, law: GuessSets, plan: Transport) -> PickWeights:
    """Weights that reach the plan's value: a set picks as it sends, and gives what it keeps back to its first token.

    The law `a` of the pick is then at least what the plan sends to each token, and so is p; hence sum min(p, a), the
    acceptance of the token rule with `a`, is at least the plan's value. More is impossible.
    """
    weights: dict[frozenset[int], dict[int, float]] = {}
    a = np.zeros(len(p))
    for s, chance in law.items():
        if not s:
            continue
        weight = {x: mass / chance for x, mass in plan.sent[s].items()}
        total = sum(weight.values())
        weight = {x: w / max(total, 1.0) for x, w in weight.items()}
        weight[min(s)] += max(1 - total, 0.0)
        weights[s] = weight
        for x, w in weight.items():
            a[x] += chance * w
    return PickWeights(weights, a)


def tree_limit(target: Model, drafter: Drafter, tree: Tree, draw: Draw, context: Context = ()) -> float:
    """The largest expected number of accepted tokens of any exact rule on this tree of drafts.

    Variables: the probability to stop at each node of each possible draft. Let A(s) be that of accepting the path s. As
    the token after s follows p, A(s x) <= A(s) p(x | s); and whatever fulfils this is some exact rule.
    """
    draft, chance = drafts(target, drafter, tree, draw, context)
    stops: dict[Context, list[int]] = defaultdict(list)  # path -> the variables of stops at or below it
    depth = []
    for b, tokens in enumerate(draft.tokens.tolist()):
        for node in range(tree.size):
            path = tuple(tokens[n] for n in tree.path(node))
            if -1 in path:
                path = ()  # not drawn: the same as stopping at once
            depth.append(len(path))
            for end in range(len(path) + 1):
                stops[path[:end]].append(b * tree.size + node)
    mass = np.repeat(chance.astype(np.float64), tree.size)
    values, rows, columns = [], [], []
    for row, path in enumerate(s for s in stops if s):
        share = float(target(context + path[:-1])[path[-1]])
        for sign, below in ((1.0, stops[path]), (-share, stops[path[:-1]])):
            values += [sign * mass[n] for n in below]
            rows += [row] * len(below)
            columns += below
    count = len(stops) - 1
    for n in range(len(mass)):  # a draft stops once
        values.append(1.0)
        rows.append(count + n // tree.size)
        columns.append(n)
    limit = np.concatenate([np.zeros(count), np.ones(len(chance))])
    gain = mass * np.array(depth)
    return float(gain @ _maximise(gain, (np.array(values), np.array(rows), np.array(columns)), limit))


def _maximise(gain: Any, entries: tuple[Any, Any, Any], limit: Any) -> Any:
    """x >= 0 that maximises gain @ x under a sparse matrix (values, rows, columns) @ x <= limit."""
    try:
        from scipy.optimize import linprog
        from scipy.sparse import coo_array
    except ImportError as error:
        raise DraftproofError("linear programs need scipy: install draftproof[theory]") from error
    values, rows, columns = entries
    matrix = coo_array((values, (rows, columns)), shape=(len(limit), len(gain))).tocsr()
    return linprog(-gain, A_ub=matrix, b_ub=limit, bounds=(0, None), method="highs").x
