"""The shortfall of a rule: exact on average, never negative for any draft, and bound to the limit of its own draws."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.draft import Draft, Tree
from draftproof.draws import DRAWS
from draftproof.theory import bounds
from draftproof.theory.acceptance import ACCEPTANCE, judged, sampled
from draftproof.theory.enumerate import drafts, expected_accepted
from draftproof.verify import VERIFIERS
from tests.support.tables import as_float, correlated, table

PAIRS = [(name, draw) for name, rule in sorted(VERIFIERS.items()) for draw in sorted(rule.draws)]


@pytest.mark.parametrize("draw", sorted(bounds.CUTS))
def test_the_set_of_a_limit_gives_the_limit(draw: str) -> None:
    """p(S) + P(D not inside S), summed over all guesses; with zeros in the rows and drafters without a guess."""
    for seed in range(30):
        target, drafter = (as_float(model) for model in (table(seed, 4), table(800 + seed, 4, abstain=0.1)))
        width = 1 + seed % 3
        cut = bounds.CUTS[draw](target(())[None], drafter(())[None], width)
        draft, chance = drafts(target, drafter, Tree.star(width), DRAWS[draw], ())
        inside = cut.inside[0]
        leaves = [any(x >= 0 and not inside[x] for x in tokens[1:]) for tokens in draft.tokens.tolist()]
        assert target(())[inside].sum() + chance @ np.array(leaves) == pytest.approx(cut.limit[0], abs=1e-9)
        assert cut.limit[0] == bounds.LIMITS[draw](target(())[None], drafter(())[None], width)[0]


@pytest.mark.parametrize(("name", "draw"), PAIRS)
def test_shortfall_is_the_limit_less_the_acceptance(name: str, draw: str) -> None:
    rule = VERIFIERS[name]
    width = 1 if rule.trees == "chain" else 2
    for seed in range(6):
        target, drafter = (as_float(model) for model in (table(seed, 4), table(300 + seed, 4, abstain=0.1)))
        cut = bounds.CUTS[draw](target(())[None], drafter(())[None], width)
        draft, chance = drafts(target, drafter, Tree.star(width), DRAWS[draw], ())
        mean = np.zeros(2)
        for b in range(len(chance)):
            one = Draft(draft.tree, draft.tokens[b : b + 1], draft.q[b : b + 1], draft.p[b : b + 1])
            for u, weight in [(None, 1)] if rule.cells is None else rule.cells(one):
                found = judged(rule, one, cut.inside, None if u is None else u[None])
                assert found.shortfall[0] >= 0
                mean += chance[b] * weight * np.array([found.accepted[0], found.shortfall[0]])
        accepted = expected_accepted(rule, target, drafter, Tree.star(width), DRAWS[draw])
        np.testing.assert_allclose(mean, [accepted, cut.limit[0] - accepted], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["gbv", "recursive_distinct", "importance", "naive"])
def test_few_samples_never_pass_the_limit(name: str) -> None:
    """However few: of 40 pairs with a single draft each, an ordinary mean would be above the limit on many."""
    draw = "distinct" if name == "recursive_distinct" else "iid"
    for seed in range(40):
        p, q = correlated(seed, 30, 3.0, 0.8)
        limit = float(bounds.LIMITS[draw](p[None], q[None], 2)[0])
        assert sampled(VERIFIERS[name], draw, p, q, 2, 1, seed) <= limit + 1e-12


def test_samples_of_the_best_rules_have_no_noise() -> None:
    p, q = correlated(7, 20, 1.5, 0.8)
    for name, draw in (("optimal", "iid"), ("sbv", "iid"), ("nodeplan", "plan"), ("top_plus_one", "top")):
        assert sampled(VERIFIERS[name], draw, p, q, 3, 2) == pytest.approx(ACCEPTANCE[name](p, q, 3), abs=1e-12)
