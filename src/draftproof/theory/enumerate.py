"""The exact law of what speculative sampling emits, by summing over every draft, every stop and every token.

Models here are functions from a context (a tuple of tokens) to a row of V numbers. With rows of Fractions every sum is
exact, so an algorithm is correct when its law *equals* the target's: no tolerance, no repetitions.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from draftproof.draft import Draft, Tree
from draftproof.draws import Draw
from draftproof.rule import Verifier

Context = tuple[int, ...]
Model = Callable[[Context], Any]  # context -> [V]
Drafter = Model | Sequence[Model]  # of several, the k-th draws the k-th child of every node, independently
Law = dict[Context, Any]  # emitted tokens -> probability


def drafts(target: Model, drafter: Drafter, tree: Tree, draw: Draw, context: Context) -> tuple[Draft, Any]:
    """Every draft that can be drawn after `context`, stacked as one batch, and the probability [B] of each."""
    outcomes = [((-1,) * tree.size, 1)]
    for node in range(tree.size):
        children = tree.children(node)
        if not children:
            continue
        grown, known = [], dict[Context, list[tuple[Context, Any]]]()
        for tokens, chance in outcomes:
            path = tuple(tokens[n] for n in tree.path(node))
            if path not in known:
                laws = [_draft_row(model, tree, tokens, node, context) for model in _several(drafter)]
                known[path] = _guesses(draw, laws, len(children))
            for guess, share in known[path]:
                drawn = dict(zip(children, guess, strict=True))
                grown.append((tuple(drawn.get(n, t) for n, t in enumerate(tokens)), chance * share))
        outcomes = grown
    p = np.stack([[_target_row(target, tree, t, n, context) for n in range(tree.size)] for t, _ in outcomes])
    rows = [
        [[_draft_row(d, tree, t, n, context) for n in range(tree.size)] for t, _ in outcomes] for d in _several(drafter)
    ]
    q, own = np.stack(rows[0]), None
    if isinstance(drafter, Sequence):
        rank = [0] + [tree.children(above).index(node) for node, above in enumerate(tree.parent) if node]
        own = np.stack([np.stack(rows[rank[n]])[:, max(tree.parent[n], 0)] for n in range(tree.size)], axis=1)
    return Draft(tree, np.array([t for t, _ in outcomes]), q, p, own), np.array([c for _, c in outcomes])


def reduced(verifier: Verifier, draft: Draft, chance: Any) -> tuple[Draft, Any]:
    """The drafts that `stop` and `next` see: each path a selector may choose, with its probability; else unchanged."""
    if verifier.select is None or verifier.cells is None:
        return draft, chance
    chains, weights = [], []
    for b in range(len(chance)):
        single = Draft(draft.tree, draft.tokens[b : b + 1], draft.q[b : b + 1], draft.p[b : b + 1])
        for u, weight in verifier.cells(single):
            chains.append(verifier.select(single, u[None]).chain)
            weights.append(chance[b] * weight)
    tokens, q, p = (np.concatenate(arrays) for arrays in zip(*(chain[1:4] for chain in chains), strict=True))
    return Draft(chains[0].tree, tokens, q, p), np.array(weights)


def step_law(verifier: Verifier, target: Model, drafter: Drafter, tree: Tree, draw: Draw, context: Context = ()) -> Law:
    """Law of the tokens that one speculative step emits: an accepted path and the token after it."""
    draft, chance = reduced(verifier, *drafts(target, drafter, tree, draw, context))
    tree = draft.tree
    emitted: Law = defaultdict(int)
    stop = verifier.stop(draft)
    for node in range(tree.size):
        token_law = verifier.next(draft, np.full(len(chance), node))
        for b in range(len(chance)):
            reach = chance[b] * stop[b, node]
            if reach != 0:
                path = tuple(int(draft.tokens[b, n]) for n in tree.path(node))
                for token, mass in enumerate(token_law[b]):
                    if mass != 0:
                        emitted[(*path, token)] += reach * mass
    return dict(emitted)


def output_law(
    verifier: Verifier, target: Model, drafter: Drafter, tree: Tree, draw: Draw, length: int, context: Context = ()
) -> Law:
    """Joint law of the first `length` tokens when speculative steps follow one another.

    Texts are continued from the shortest to the longest: however many steps led to a text, it is continued once.
    """
    texts: list[Law] = [defaultdict(int) for _ in range(length + 1)]  # by length: text -> probability to stop there
    texts[0][()] = 1
    for shorter in texts[:-1]:
        for text, chance in shorter.items():
            for emitted, share in step_law(verifier, target, drafter, tree, draw, (*context, *text)).items():
                longer = (text + emitted)[:length]
                texts[len(longer)][longer] += chance * share
    return dict(texts[-1])


def target_law(target: Model, length: int, context: Context = ()) -> Law:
    """Joint law of the first `length` tokens of plain sampling."""
    law: Law = {(): 1}
    for _ in range(length):
        law = {
            (*tokens, token): chance * mass
            for tokens, chance in law.items()
            for token, mass in enumerate(target((*context, *tokens)))
            if mass != 0
        }
    return law


def expected_accepted(
    verifier: Verifier, target: Model, drafter: Drafter, tree: Tree, draw: Draw, context: Context = ()
) -> Any:
    """Expected number of accepted draft tokens in one step."""
    draft, chance = reduced(verifier, *drafts(target, drafter, tree, draw, context))
    return (chance[:, None] * verifier.stop(draft) * np.array(draft.tree.depth)).sum()


def _several(drafter: Drafter) -> Sequence[Model]:
    return drafter if isinstance(drafter, Sequence) else [drafter]


def _guesses(draw: Draw, laws: Sequence[Any], children: int) -> list[tuple[Context, Any]]:
    """Every outcome of a node's guesses that has a probability: drawn together from one law, or each from its own."""
    outcomes = list(itertools.product(range(-1, len(laws[0])), repeat=children))
    rows, tokens = [np.stack([q] * len(outcomes)) for q in laws], np.array(outcomes)
    if len(laws) == 1:
        chances = draw.probability(rows[0], tokens)
    else:
        alone = (draw.probability(q, tokens[:, k : k + 1]) for k, q in enumerate(rows[:children]))
        chances = functools.reduce(operator.mul, alone)
    return [(guess, chance) for guess, chance in zip(outcomes, chances, strict=True) if chance > 0]


def _target_row(target: Model, tree: Tree, tokens: Context, node: int, context: Context) -> Any:
    """Target's row after a node. Below a guess that was not drawn any row will do: it has no probability."""
    path = tuple(tokens[n] for n in tree.path(node))
    return target(context if -1 in path else context + path)


def _draft_row(drafter: Model, tree: Tree, tokens: Context, node: int, context: Context) -> Any:
    """Drafter's row after a node, zero where nothing is drawn: at leaves and below a guess that was not drawn."""
    path = tuple(tokens[n] for n in tree.path(node))
    row = np.asarray(drafter(context if -1 in path else context + path))
    return row * 0 if -1 in path or not tree.children(node) else row
