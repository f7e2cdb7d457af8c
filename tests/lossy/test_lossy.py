"""Lossy rules keep their promises: they emit the law they declare, bounds hold, the account covers the loss."""

from __future__ import annotations

import ast
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import draftproof.verify
from draftproof.draft import Draft, Tree
from draftproof.draws import DRAWS
from draftproof.errors import DraftproofError
from draftproof.law import overlap, total_variation
from draftproof.lossy import LOSSY, get
from draftproof.lossy.clipped import clip, clipped
from draftproof.lossy.lenience import lenience
from draftproof.lossy.mentored import divergence, mentored
from draftproof.rule import Lossy, Verifier
from draftproof.theory.enumerate import Context, Model, drafts, output_law, step_law, target_law
from tests.support.tables import as_float, table

RATIONAL = [lenience(Fraction(1, 2)), clipped(Fraction(3, 2))]
RULES = [get(text) for text in ("lenience:0.5", "clipped:1.5", "mentored:0.05", "typical:0.3,0.3", "skip:0.9")]
EXACT = [lenience(1.0), clipped(1.0), get("skip:0")]


def models(seed: int, size: int = 3, abstain: float = 0.0) -> tuple[Model, Model]:
    return as_float(table(2 * seed, size)), as_float(table(2 * seed + 1, size, abstain=abstain))


def one(p: np.ndarray, q: np.ndarray) -> Draft:
    """A chain of one guess, token 0."""
    return Draft(Tree.chain(1), np.array([[-1, 0]]), np.stack([q, q * 0])[None], np.stack([p, p])[None])


def stand_in(rule: Lossy) -> Verifier:
    """The rule in a verifier's clothes, for the enumeration only: nothing in the package takes one for the other."""
    return draftproof.verify.VERIFIERS["token"]._replace(name=rule.name, stop=rule.stop, next=rule.next)


def first_token(rule: Lossy, target: Model, drafter: Model, size: int) -> list:
    law = step_law(stand_in(rule), target, drafter, Tree.chain(1), DRAWS["iid"])
    return [sum(mass for tokens, mass in law.items() if tokens[0] == token) for token in range(size)]


@pytest.mark.parametrize("rule", RATIONAL, ids=lambda rule: rule.name)
def test_declared_law_is_the_emitted_law(rule: Lossy) -> None:
    """Rationals, no tolerance."""
    for seed in range(30):
        target, drafter = table(2 * seed, 4), table(2 * seed + 1, 4, abstain=0.2)
        declared = rule.emitted(one(target(()), drafter(())))[0, 0]
        assert declared.sum() == 1
        assert first_token(rule, target, drafter, 4) == list(declared)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_declared_law_is_the_emitted_law_in_floats(rule: Lossy) -> None:
    for seed in range(10):
        target, drafter = models(seed, 4, abstain=0.2)
        declared = rule.emitted(one(target(()), drafter(())))[0, 0]
        assert np.allclose(first_token(rule, target, drafter, 4), declared, rtol=0, atol=1e-12)


def test_lenience_bounds() -> None:
    """No token more than 1 / l times as likely as it should be, and never further from p than q is."""
    for seed in range(60):
        p, q = table(2 * seed, 5)(()), table(2 * seed + 1, 5)(())
        for factor in (Fraction(1, 5), Fraction(3, 4), Fraction(1)):
            out = lenience(factor).emitted(one(p, q))[0, 0]
            assert np.all(out * factor <= p)
            assert total_variation(out, p) <= total_variation(q, p)
            assert factor < 1 or list(out) == list(p)


def test_clipped_law_is_clipped() -> None:
    for seed in range(60):
        p, q = table(2 * seed, 5)(()), table(2 * seed + 1, 5)(())
        for ceiling in (Fraction(1), Fraction(4, 3), Fraction(10)):
            out = clip(p, q, ceiling)
            inside = p > 0
            s, t = p[inside], q[inside]
            ratio = out[inside] / s
            floor = min(ratio)
            assert out.sum() == 1
            assert not out[~inside].any()
            assert floor <= 1 <= max(ratio) <= ceiling
            assert list(out[inside]) == list(np.maximum(floor * s, np.minimum(ceiling * s, t)))
            assert ceiling > 1 or list(out) == list(p)


def test_clipped_is_the_best_law_for_its_divergence() -> None:
    """No law within the same KL(p || out) has more overlap with q: a numerical optimiser finds none."""
    chance = np.random.default_rng(4)
    for _ in range(3):
        p, q = chance.dirichlet(np.ones(4)), chance.dirichlet(np.ones(4))
        out = clip(p, q, 1.3)
        budget, reached = divergence(p, out), overlap(out, q)
        best = 0.0
        for start in (out, p, q):
            result = minimize(
                lambda x, q=q: -np.minimum(x, q).sum(),
                start,
                bounds=[(1e-9, 1)] * 4,
                constraints=[
                    {"type": "eq", "fun": lambda x: x.sum() - 1},
                    {"type": "ineq", "fun": lambda x, p=p, budget=budget: budget - (p * np.log(p / x)).sum()},
                ],
                method="SLSQP",
                options={"maxiter": 300, "ftol": 1e-12},
            )
            best = max(best, -result.fun)
        assert best == pytest.approx(reached, abs=1e-5)
        assert reached > overlap(p, q)


def test_mentored_keeps_to_its_budget() -> None:
    spent = []
    for seed in range(40):
        p, q = (model(()) for model in models(seed, 5))
        out = mentored(0.05).emitted(one(p, q))[0, 0]
        spent.append(divergence(p, out))
        assert spent[-1] <= 0.05 + 1e-9
    assert max(spent) > 0.0499  # and uses it


def test_typical_acceptance_is_far_off() -> None:
    """The worked example: total variation about 0.30 on four tokens."""
    p, q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.1, 0.2, 0.4, 0.3])
    assert get("typical:0.3,0.3").account(one(p, q))[0, 0] == pytest.approx(0.3, abs=0.01)


def test_skip_costs_the_distance_of_the_rows_it_skips() -> None:
    rule = get("skip:0.9")
    for seed in range(20):
        p, q = (model(()) for model in models(seed))
        entropy = -sum(x * np.log(x) for x in q if x > 0)
        cost = total_variation(p, q) if entropy < 0.9 else 0
        assert rule.account(one(p, q))[0].tolist() == pytest.approx([cost, 0], abs=1e-12)


@pytest.mark.parametrize("rule", EXACT, ids=lambda rule: rule.name)
def test_neutral_settings_cost_nothing(rule: Lossy) -> None:
    for seed in range(20):
        draft, _ = drafts(*models(seed, abstain=0.2), Tree.chain(2), DRAWS["iid"], ())
        assert np.all(rule.account(draft) < 1e-12)


def expected_account(rule: Lossy, target: Model, drafter: Model, tree: Tree, length: int, context: Context = ()):
    """Mean of the accounts that a trace of `length` tokens adds up, over everything the rule may emit."""
    draft, chance = drafts(target, drafter, tree, DRAWS["iid"], context)
    stop, cost = rule.stop(draft), rule.account(draft)
    total = 0.0
    for node in range(tree.size):
        law = rule.next(draft, np.full(len(chance), node))
        for b in np.flatnonzero(stop[:, node] > 0):
            path = (0, *tree.path(node))[:length]
            later = 0.0
            if length > len(path):
                text = (*context, *(int(draft.tokens[b, n]) for n in path[1:]))
                for y in np.flatnonzero(law[b]):
                    left = length - len(path)
                    later += law[b, y] * expected_account(rule, target, drafter, tree, left, (*text, int(y)))
            total += chance[b] * stop[b, node] * (cost[b, list(path)].sum() + later)
    return total


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_account_covers_the_true_total_variation(rule: Lossy) -> None:
    """Three tokens in steps of up to three: the law's distance from the target's is at most the mean account."""
    worst = 0.0
    for seed in range(4):
        target, drafter = models(seed, abstain=0.2)
        truth, law = target_law(target, 3), output_law(stand_in(rule), target, drafter, Tree.chain(2), DRAWS["iid"], 3)
        distance = sum(abs(law.get(key, 0) - truth.get(key, 0)) for key in law.keys() | truth.keys()) / 2
        account = expected_account(rule, target, drafter, Tree.chain(2), 3)
        assert distance <= account + 1e-12
        worst = max(worst, distance)
    assert worst > 0.01, "the rule lost nothing on these tables: the test saw nothing"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_torch_agrees(rule: Lossy) -> None:
    draft, _ = drafts(*models(1, abstain=0.2), Tree.chain(2), DRAWS["iid"], ())
    same = Draft(draft.tree, *map(torch.from_numpy, (draft.tokens, draft.q, draft.p)))
    node = np.zeros(len(draft.tokens), dtype=np.int64) + 1
    assert np.allclose(rule.stop(draft), rule.stop(same).numpy(), rtol=0, atol=1e-9)
    assert np.allclose(rule.account(draft), rule.account(same).numpy(), rtol=0, atol=1e-9)
    assert np.allclose(rule.next(draft, node), rule.next(same, torch.from_numpy(node)).numpy(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_ratio_beyond_the_largest_float_does_no_harm(rule: Lossy) -> None:
    p, q = torch.tensor([[[0.5, 0.5], [0.5, 0.5]]]), torch.tensor([[[1e-44, 1.0], [0.0, 0.0]]])
    cost = rule.account(Draft(Tree.chain(1), torch.tensor([[0, 1]]), q, p))[0]
    assert torch.isfinite(cost).all()
    assert cost[0] <= 0.5 + 1e-6


def test_lossy_and_exact_never_meet() -> None:
    """Different types, different names, and no exact rule imports a lossy one or the other way round."""
    assert not LOSSY.keys() & draftproof.verify.VERIFIERS.keys()
    assert not any(isinstance(rule, Verifier) for rule in RULES)
    assert not hasattr(draftproof.verify, "lossy")
    root = Path(draftproof.verify.__file__).parents[1]
    for folder, forbidden in (("verify", "draftproof.lossy"), ("lossy", "draftproof.verify")):
        for file in (root / folder).glob("*.py"):
            for statement in ast.walk(ast.parse(file.read_text())):
                if isinstance(statement, ast.ImportFrom):
                    assert not str(statement.module).startswith(forbidden)


def test_every_rule_says_that_it_is_not_exact() -> None:
    for name, family in LOSSY.items():
        assert family.summary.startswith("not exact: ")
        assert get(name).notice.startswith(f"not exact: {name} (")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lenence", "unknown lossy rule 'lenence': did you mean 'lenience'"),
        ("lenience:often", "'often' in 'lenience:often' is not a number"),
        ("lenience:0.5,2", "has 2 numbers, but lenience takes only factor"),
        ("lenience:0", r"the factor of lenience must be in \(0, 1\], 1 = exact, not 0.0"),
        ("clipped:0.5", "the ceiling of clipped must be a number of at least 1"),
        ("mentored:-1", "the budget of mentored must be a positive number"),
        ("typical:2", "must be in"),
        ("skip:nan", "the entropy of skip must be 0"),
    ],
)
def test_errors_name_the_value_and_the_remedy(text: str, message: str) -> None:
    with pytest.raises(DraftproofError, match=message) as caught:
        get(text)
    assert "\n" not in str(caught.value)
