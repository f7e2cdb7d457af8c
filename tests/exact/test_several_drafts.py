"""Rules for several guesses: drafters side by side, acceptance in closed form, wrong variants that must be caught."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from draftproof import hull
from draftproof.draft import Draft, Tree
from draftproof.draws import DRAWS, Draw
from draftproof.errors import DraftproofError
from draftproof.law import at, divide, residual
from draftproof.rule import Verifier
from draftproof.theory.acceptance import ACCEPTANCE, sampled
from draftproof.theory.enumerate import expected_accepted, output_law, target_law
from draftproof.verify import VERIFIERS, kseq, recursive, recursive_distinct
from draftproof.verify._topdown import NodeRule, top_down
from tests.support.tables import correlated, table

IID, DISTINCT, FIXED, PLAN = (DRAWS[name] for name in ("iid", "distinct", "fixed", "plan"))
SEVERAL = ["recursive", "importance"]


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize(
    ("tree", "size"), [(Tree.star(2), 3), (Tree.star(3), 2), (Tree((-1, 0, 0, 1, 1)), 2), (Tree.of(2, 2), 2)]
)
def test_drafters_side_by_side(name: str, tree: Tree, size: int) -> None:
    """Sibling k comes from drafter k; one of them abstains at times. Equal guesses share what each of their drafters
    guessed below. Still the target's law, tolerance zero."""
    for seed in range(3):
        drafters = [table(50 + 3 * seed + k, size, abstain=0.2 * (k == 1)) for k in range(len(tree.children(0)))]
        target = table(seed, size)
        length = tree.depth[-1] + 1
        assert output_law(VERIFIERS[name], target, drafters, tree, IID, length) == target_law(target, length)


@pytest.mark.parametrize("name", SEVERAL)
def test_each_sibling_is_judged_by_its_own_law(name: str) -> None:
    """With the first drafter's law for all of them the output is wrong: the test above does look at `own`."""
    rule = VERIFIERS[name]
    blind = rule._replace(
        stop=lambda draft: rule.stop(draft._replace(own=None)),
        next=lambda draft, node: rule.next(draft._replace(own=None), node),
    )
    laws = [
        output_law(blind, table(seed, 3), [table(50 + seed, 3), table(80 + seed, 3)], Tree.star(2), IID, 1)
        for seed in range(6)
    ]
    assert laws != [target_law(table(seed, 3), 1) for seed in range(6)]


@pytest.mark.parametrize("name", ["naive", "recursive_distinct", "kseq", "top_plus_one", "optimal", "nodeplan"])
def test_rules_for_one_law_refuse_several(name: str) -> None:
    draft = Draft(Tree.star(2), np.array([[-1, 0, 1]]), *np.full((2, 1, 3, 2), 0.5), own=np.full((1, 3, 2), 0.5))
    for ask in (lambda: VERIFIERS[name].stop(draft), lambda: VERIFIERS[name].next(draft, np.array([0]))):
        with pytest.raises(DraftproofError, match="use recursive or importance"):
            ask()


# Acceptance in closed form


@pytest.mark.parametrize("name", sorted(ACCEPTANCE))
@pytest.mark.parametrize("width", [2, 3])
def test_acceptance_with_lucky_hits(name: str, width: int) -> None:
    verifier = VERIFIERS[name]
    draw = IID if "iid" in verifier.draws else DRAWS[min(verifier.draws)]
    for seed in range(8):
        target, drafter = table(2 * seed, 3), table(2 * seed + 1, 3)
        accepted = expected_accepted(verifier, target, drafter, Tree.star(width), draw)
        assert accepted == ACCEPTANCE[name](target(()), drafter(()), width)


def test_sampled_acceptance() -> None:
    """For rules without a formula; compared on one that has one."""
    p, q = correlated(7, 20, 1.5, 0.8)
    found = sampled(VERIFIERS["recursive"], "iid", p, q, 3, 4000)
    assert found == pytest.approx(ACCEPTANCE["recursive"](p, q, 3), abs=0.02)


def test_optimal_is_best_on_a_star() -> None:
    """No other rule for i.i.d. guesses accepts more, and each accepts less somewhere."""
    others = [v for v in VERIFIERS.values() if "iid" in v.draws and v.accepts(Tree.star(2)) and v.select is None]
    for rule in others:
        gain = Fraction(0)
        for seed in range(8):
            target, drafter = table(2 * seed, 3), table(2 * seed + 1, 3)
            high, low = (expected_accepted(v, target, drafter, Tree.star(2), IID) for v in (VERIFIERS["optimal"], rule))
            assert high >= low, rule.name
            gain = max(gain, high - low)
        assert gain > 0 or rule.name in ("optimal", "sbv", "importance", "optimal_binned"), rule.name


def test_worked_example() -> None:
    """K = 4 guesses of this pair can always be accepted; recursive rejection accepts 55/64 of them."""
    p = np.array([Fraction(n, 20) for n in (2, 5, 1, 8, 4)])
    q = np.array([Fraction(n, 20) for n in (6, 4, 5, 3, 2)])
    plan = hull.plan(p, q, 4)
    assert list(plan.law) == list(p)
    assert ACCEPTANCE["recursive"](p, q, 4) == Fraction(55, 64)


# Wrong variants


def wrong(rule: NodeRule, base: str = "recursive") -> Verifier:
    stop, next = top_down(rule)
    return VERIFIERS[base]._replace(name="wrong", stop=stop, next=next)


def skips_duplicates(p: Any, laws: list[Any], tokens: Any) -> tuple[Any, Any]:
    """Recursive rejection that passes over a repeated guess without updating the target."""
    fresh = np.array([[t if t not in row[:k] else -1 for k, t in enumerate(row)] for row in tokens.tolist()])
    return recursive.rule(p, laws, fresh)


def never_updates(p: Any, laws: list[Any], tokens: Any) -> tuple[Any, Any]:
    """Every guess against the same p, the residual of a single draft at the end."""
    accept, refused = [], 1
    for k in range(tokens.shape[1]):
        kept = np.minimum(divide(at(p, tokens[:, k]), at(laws[0], tokens[:, k])), 1)
        accept.append(refused * kept)
        refused = refused * (1 - kept)
    return np.stack(accept, axis=1), residual(p, laws[0])


def sorts_guesses(p: Any, laws: list[Any], tokens: Any) -> tuple[Any, Any]:
    """Rejection without replacement in the order of q instead of the order of drawing."""
    order = np.array(
        [sorted(range(len(row)), key=lambda k: -q[row[k]]) for row, q in zip(tokens, laws[0], strict=True)]
    )
    accept, left = recursive_distinct.rule(p, laws, np.take_along_axis(tokens, order, axis=1))
    back = np.argsort(order, axis=1)
    return np.take_along_axis(accept, back, axis=1), left


def kseq_too_lenient(p: Any, laws: list[Any], tokens: Any) -> tuple[Any, Any]:
    return kseq.rule_with(p[:, 0] * 0 + 1, p, laws[0], tokens)


def best_ratio_by_q(p: Any, laws: list[Any], tokens: Any) -> tuple[Any, Any]:
    """The guess with the largest p/q, judged as if it had been the only one."""
    ratio = np.stack([divide(at(p, tokens[:, k]), at(laws[0], tokens[:, k])) for k in range(tokens.shape[1])], axis=1)
    top = np.argmax(ratio, axis=1)[:, None] == np.arange(tokens.shape[1])
    return np.minimum(ratio, 1) * top, residual(p, laws[0])


MUTANTS: list[tuple[str, Verifier, Draw]] = [
    ("duplicates skipped", wrong(skips_duplicates), IID),
    ("target never updated", wrong(never_updates), IID),
    ("guesses sorted by q", wrong(sorts_guesses), DISTINCT),
    ("top tokens taken for distinct draws", VERIFIERS["recursive_distinct"], FIXED),
    ("distinct draws taken for independent ones", VERIFIERS["recursive"], DISTINCT),
    ("rho too small", wrong(kseq_too_lenient), IID),
    ("best of K judged by q", wrong(best_ratio_by_q), IID),
    ("optimal on distinct draws", VERIFIERS["optimal"], DISTINCT),
    ("optimal on planned draws", VERIFIERS["optimal"], PLAN),
    ("node plan on independent draws", VERIFIERS["nodeplan"], IID),
    ("top plus one on independent draws", VERIFIERS["top_plus_one"], IID),
]


def is_caught(verifier: Verifier, draw: Draw) -> bool:
    """On a star of three, because a repeated guess can only do harm if another comes after it."""
    for seed in range(20):
        target, drafter = table(2 * seed, 3), table(2 * seed + 1, 3)
        if output_law(verifier, target, drafter, Tree.star(3), draw, 1) != target_law(target, 1):
            return True
    return False


@pytest.mark.parametrize(("verifier", "draw"), [pytest.param(v, d, id=name) for name, v, d in MUTANTS])
def test_wrong_variant_is_caught(verifier: Verifier, draw: Draw) -> None:
    assert is_caught(verifier, draw)


def _others_after_zero(q: Any, tokens: Any) -> Any:
    """More guesses are drawn only if the first was token 0: the number of siblings depends on a value."""
    first, others = IID.probability(q, tokens[:, :1]), IID.probability(q, tokens[:, 1:])
    return first * np.where(tokens[:, 0] == 0, others, (tokens[:, 1:] == -1).all(axis=1).astype(int))


@pytest.mark.parametrize(("name", "exact"), [("recursive", True), ("optimal", False), ("kseq", False)])
def test_number_of_siblings_is_fixed_before_drawing(name: str, exact: bool) -> None:
    """Sequential rejection does not mind; rules that judge the set of guesses do."""
    adaptive = Draw("adaptive", "other guesses only after token 0", IID.sample, _others_after_zero)
    assert is_caught(VERIFIERS[name], adaptive) is not exact
