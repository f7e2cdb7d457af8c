"""Wrong rules that look right, every one taken from a bug that was shipped or proposed: each must be caught.

A mutant is caught when its output law differs from the target's on one of a handful of random tables; the rule it was
made from is exact on all of them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from draftproof import law
from draftproof.draft import Draft, Tree
from draftproof.draws import DRAWS
from draftproof.law import at, divide, normalise, one_hot, positive, residual, row
from draftproof.rule import Verifier
from draftproof.theory.enumerate import Context, Law, Model, drafts, output_law, target_law
from draftproof.verify import VERIFIERS, block
from tests.support.tables import table

TOKEN, BLOCK, MATCH, ONEHOT = (VERIFIERS[name] for name in ("token", "block", "match", "onehot"))
SEEDS = range(6)


def scanned_from_the_back(h: np.ndarray) -> np.ndarray:
    """[B, N] law of the last accepted node when node i is taken with h_i and node 0 takes the rest."""
    reach, laws = h[:, 0] * 0 + 1, []
    for i in reversed(range(1, h.shape[1])):
        laws.append(reach * h[:, i])
        reach = reach * (1 - h[:, i])
    return np.stack([reach, *reversed(laws)], axis=1)


def block_thresholds(draft: Draft) -> np.ndarray:
    w = block.weights(draft)
    excess = positive(w[..., None] * draft.p - draft.q).sum(axis=-1)
    return divide(excess, excess + 1 - w, otherwise=1)


def stop_forward(draft: Draft) -> np.ndarray:
    """Block's thresholds, but scanned from the front up to the first refusal."""
    h = block_thresholds(draft)
    reach, laws = h[:, 0] * 0 + 1, []
    for i in range(1, h.shape[1]):
        laws.append(reach * (1 - h[:, i]))
        reach = reach * h[:, i]
    return np.stack([*laws, reach], axis=1)


def stop_with_row_of_the_token(draft: Draft) -> np.ndarray:
    """Z taken from the row that drew the token instead of the row after it."""
    w = block.weights(draft)
    excess = positive(w[:, 1:, None] * draft.p[:, :-1] - draft.q[:, :-1]).sum(axis=-1)
    h = divide(excess, excess + 1 - w[:, 1:], otherwise=1)
    return scanned_from_the_back(np.concatenate([w[:, :1], h[:, :-1], w[:, -1:]], axis=1))


def stop_uncapped(draft: Draft) -> np.ndarray:
    """Weights as a plain product of ratios: only the whole product is capped, not each step of it."""
    ratio = divide(at(draft.p[:, :-1], draft.tokens[:, 1:]), at(draft.q[:, :-1], draft.tokens[:, 1:]))
    product = np.cumprod(np.concatenate([ratio[:, :1] * 0 + 1, ratio], axis=1), axis=1)
    w = np.where(product < 1, product, product * 0 + 1)
    excess = positive(w[..., None] * draft.p - draft.q).sum(axis=-1)
    return scanned_from_the_back(divide(excess, excess + 1 - w, otherwise=1))


def next_from_p(draft: Draft, node: np.ndarray) -> np.ndarray:
    return row(draft.p, node)


def counting_duplicates(draft: Draft) -> np.ndarray:
    """Match rule on a star that gives each of two equal guesses the token's mass."""
    drawn = draft.tokens[:, 1:] >= 0
    mass = np.where(drawn, at(draft.p[:, :1].repeat(draft.tree.size - 1, axis=1), draft.tokens[:, 1:]), Fraction(0))
    return np.concatenate([1 - mass.sum(axis=1, keepdims=True), mass], axis=1)


def recursive(distinct: bool) -> Verifier:
    """Recursive rejection on a star; `distinct` takes each refused guess out of q, right only if it was drawn so."""

    def walk(draft: Draft) -> tuple[list[np.ndarray], np.ndarray]:
        p, q = draft.p[:, 0], draft.q[:, 0]
        left, laws = p[:, 0] * 0 + 1, []
        for k in range(1, draft.tree.size):
            token = draft.tokens[:, k]
            ratio = divide(at(p, token), at(q, token))
            kept = np.where((ratio < 1) | (token < 0), ratio * (token >= 0), ratio * 0 + 1)
            laws.append(left * kept)
            left = left * (1 - kept)
            p = residual(p, q)
            q = normalise(q * (1 - one_hot(token, like=q))) if distinct else q
        return [left, *laws], p

    def after(draft: Draft, node: np.ndarray) -> np.ndarray:
        return np.where(node[:, None] == 0, walk(draft)[1], row(draft.p, node))

    return TOKEN._replace(trees="star", stop=lambda draft: np.stack(walk(draft)[0], axis=1), next=after)


def differs(verifier: Verifier, tree: Tree, size: int, draw: str) -> list[bool]:
    """For each table whether the rule's output law is not the target's."""
    found = []
    for seed in SEEDS:
        target, drafter = table(2 * seed, size), table(2 * seed + 1, size)
        length = tree.depth[-1] + 1
        found.append(output_law(verifier, target, drafter, tree, DRAWS[draw], length) != target_law(target, length))
    return found


CHAIN, STAR = (Tree.chain(2), 3), (Tree.star(2), 3)
MUTANTS: dict[str, tuple[Verifier, Verifier, tuple[Tree, int], str, str]] = {
    # name: (mutant, the rule it was made from, (tree, vocabulary), draw of the mutant, draw of the rule)
    "residual replaced by p": (TOKEN._replace(next=next_from_p), TOKEN, CHAIN, "iid", "iid"),
    "token's stop, block's next": (TOKEN._replace(next=block.next), TOKEN, CHAIN, "iid", "iid"),
    "block's stop, token's next": (BLOCK._replace(next=TOKEN.next), BLOCK, CHAIN, "iid", "iid"),
    "block scanned forward": (BLOCK._replace(stop=stop_forward), BLOCK, CHAIN, "iid", "iid"),
    "block with h = w": (
        BLOCK._replace(stop=lambda draft: scanned_from_the_back(block.weights(draft))),
        BLOCK,
        CHAIN,
        "iid",
        "iid",
    ),
    "block with Z of the token's row": (BLOCK._replace(stop=stop_with_row_of_the_token), BLOCK, CHAIN, "iid", "iid"),
    "block with uncapped weights": (BLOCK._replace(stop=stop_uncapped), BLOCK, (Tree.chain(3), 2), "iid", "iid"),
    "argmax drafts tested against softmax q": (TOKEN, ONEHOT, CHAIN, "fixed", "fixed"),
    "match counts duplicates twice": (MATCH._replace(stop=counting_duplicates), MATCH, STAR, "iid", "iid"),
    "distinct rule on iid draws": (recursive(True), recursive(True), STAR, "iid", "distinct"),
    "iid rule on distinct draws": (recursive(False), recursive(False), STAR, "distinct", "iid"),
    "fixed guesses as distinct draws": (recursive(True), recursive(True), STAR, "fixed", "distinct"),
}


@pytest.mark.parametrize(("mutant", "rule", "shape", "wrong", "right"), MUTANTS.values(), ids=MUTANTS)
def test_mutant_is_caught(mutant: Verifier, rule: Verifier, shape: tuple[Tree, int], wrong: str, right: str) -> None:
    assert any(differs(mutant, *shape, wrong))
    assert not any(differs(rule, *shape, right))


def test_a_stop_that_is_a_law_on_average_only() -> None:
    """Block's thresholds with `nothing below node i was taken` replaced by its mean 1 - w: the output law, a mean over
    drafts, is the target's, but no single draft has a law to draw from. So rows of `stop` are summed one by one."""

    def stop(draft: Draft) -> np.ndarray:
        w, h = block.weights(draft), block_thresholds(draft)
        return h * np.concatenate([1 - w[:, 1:], w[:, :1]], axis=1)

    mutant = BLOCK._replace(stop=stop)
    assert not any(differs(mutant, *CHAIN, "iid"))
    draft, _ = drafts(table(0, 3), table(1, 3), Tree.chain(2), DRAWS["iid"], ())
    assert np.any(stop(draft).sum(axis=1) != 1)
    assert np.all(block.stop(draft).sum(axis=1) == 1)


# What the uniforms do. A law whose entries are multiples of 1/D is drawn exactly by the D uniforms 0, 1/D, ...


def accept_at_or_below(weights: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Inverse transform with `u <= ...` where `u < ...` is right."""
    return np.sum(np.cumsum(weights, axis=-1) < u[..., None], axis=-1)


@pytest.mark.parametrize(("sampler", "exact"), [(law.sample, True), (accept_at_or_below, False)])
def test_strict_comparison(sampler: Callable[[np.ndarray, np.ndarray], np.ndarray], exact: bool) -> None:
    """With `<=`, u = 0 accepts a token of probability zero."""
    weights = np.array([Fraction(0), Fraction(2, 5), Fraction(0), Fraction(3, 5)])
    grid = np.array([Fraction(k, 5) for k in range(5)])
    counts = Counter(sampler(np.stack([weights] * 5), grid).tolist())
    assert ({t: Fraction(c, 5) for t, c in counts.items()} == {1: Fraction(2, 5), 3: Fraction(3, 5)}) is exact
    assert (counts[0] == 0) is exact


PARTS = 3
GRID = [Fraction(k, PARTS) for k in range(PARTS)]
Noise = Callable[[int, int], Fraction]  # (position at which the step starts, position that is drafted) -> uniform


def law_given_noise(
    verifier: Verifier, target: Model, drafter: Model, noise: Noise, length: int, context: Context = ()
) -> Law:
    """Law of `length` tokens from drafts of two tokens whose uniforms are given."""
    tokens, tree = [-1], Tree.chain(2)
    for node in range(2):
        u = np.array([[noise(len(context), len(context) + node)]])
        tokens.append(int(DRAWS["iid"].sample(drafter((*context, *tokens[1:]))[None], u)[0, 0]))
    paths = [(*context, *tokens[1 : node + 1]) for node in range(3)]
    q = np.stack([*(drafter(path) for path in paths[:2]), drafter(()) * 0])
    draft = Draft(tree, np.array([tokens]), q[None], np.stack([target(path) for path in paths])[None])
    emitted: Law = Counter()
    for node, reach in enumerate(verifier.stop(draft)[0]):
        for token, mass in enumerate(verifier.next(draft, np.array([node]))[0]):
            text = (*tokens[1 : node + 1], token)
            if reach * mass and len(text) >= length:
                emitted[text[:length]] += reach * mass
            elif reach * mass:
                rest = law_given_noise(verifier, target, drafter, noise, length - len(text), (*context, *text))
                for later, share in rest.items():
                    emitted[text + later] += reach * mass * share
    return emitted


def law_over_noise(verifier: Verifier, target: Model, drafter: Model, keys: dict[tuple[int, int], int]) -> Law:
    """Mean of the laws over all values of the uniforms; `keys` says which uniform each (start, position) reads."""
    total: Law = Counter()
    values = list(itertools.product(GRID, repeat=len(set(keys.values()))))
    for uniforms in values:
        given = law_given_noise(verifier, target, drafter, lambda s, t, u=uniforms: u[keys[s, t]], length=2)
        for text, chance in given.items():
            total[text] += chance / len(values)
    return dict(total)


# Two tokens need at most two steps, which start at positions 0 and 1 and draft two positions each.
BY_POSITION = {(0, 0): 0, (0, 1): 1, (1, 1): 1, (1, 2): 2}
BY_STEP = {(0, 0): 0, (0, 1): 1, (1, 1): 2, (1, 2): 3}


@pytest.mark.parametrize(
    ("verifier", "keys", "exact"),
    [(TOKEN, BY_POSITION, True), (TOKEN, BY_STEP, True), (BLOCK, BY_POSITION, False), (BLOCK, BY_STEP, True)],
    ids=["token by position", "token by step", "block by position", "block by step"],
)
def test_noise_keyed_by_position_biases_block(
    verifier: Verifier, keys: dict[tuple[int, int], int], exact: bool
) -> None:
    """A position drafted again with the number it had before: harmless for token, whose accepted length never looks
    ahead, and wrong for block although each single step is right."""
    equal = []
    for seed in range(8):
        target, drafter = table(seed, 2, parts=7), table(seed + 100, 2, parts=PARTS)
        equal.append(law_over_noise(verifier, target, drafter, keys) == target_law(target, 2))
    assert all(equal) is exact
