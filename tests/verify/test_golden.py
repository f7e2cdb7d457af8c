"""Numbers computed once by independent prototypes (tests/data/golden.json), every one of them reproduced to 1e-12."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftproof import hull, law
from draftproof.couple import gumbel
from draftproof.draft import Draft, Tree
from draftproof.draws import DRAWS
from draftproof.theory import bounds, plan
from draftproof.theory.acceptance import ACCEPTANCE
from draftproof.theory.enumerate import expected_accepted
from draftproof.verify import VERIFIERS, block, kseq

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text())
P, Q = np.array(GOLDEN["p"]), np.array(GOLDEN["q"])
GIVEN = {"P_rows", "Q_rows", "draft"}  # what the numbers are computed from


def accepted(name: str, draw: str, tree: Tree) -> Any:
    """Expected accepted tokens, summed over every draft."""
    return expected_accepted(VERIFIERS[name], lambda c: P, lambda c: Q, tree, DRAWS[draw])


def single() -> dict[str, Any]:
    size = len(P)
    tokens = np.stack([np.full(size, -1), np.arange(size)], axis=1)  # a batch with every token drafted once
    draft = Draft(Tree.chain(1), tokens, np.stack([[Q, Q * 0]] * size), np.stack([[P, P]] * size))
    return {
        "accept_prob_per_token": VERIFIERS["token"].stop(draft)[:, 1],
        "alpha": accepted("token", "iid", Tree.chain(1)),
        "residual": VERIFIERS["token"].next(draft, np.zeros(size, dtype=int))[0],
    }


def several(width: int) -> dict[str, Any]:
    found = hull.plan(P, Q, width)
    return {
        "order_ascending_ratio": found.order,
        "hull_nodes": found.vertices,
        "a": found.law,
        "lambda": found.law / P,
        "nu_boundaries_1_to_m-1": [hull.threshold(found, k, k + 1) for k in range(1, len(P))],
        "alpha_star": bounds.iid(P, Q, width),
        "alpha": law.overlap(P, found.law),
        "RRS_acceptance": ACCEPTANCE["recursive"](P, Q, width),
        "kseq_rho": kseq.rho(P[None], Q[None], np.array([width]))[0],
        "greedy_top_K-1_plus_1": bounds.LIMITS["top"](P[None], Q[None], width)[0],
        "best_ratio_order": accepted("gbv", "iid", Tree.paths(width, 1)),
        "alpha_star_without_replacement": least_cut("distinct", width),
        "GLS_bound": gumbel.match_probability(P[None], Q[None], width)[0],
    }


def least_cut(draw: str, width: int) -> float:
    """The optimum min_S p(S) + P(guesses not inside S), summed with the probabilities that `draws` states."""
    tokens = np.array(list(itertools.product(range(len(P)), repeat=width)))
    chance = DRAWS[draw].probability(np.stack([Q] * len(tokens)), tokens)
    sets = [np.array(mask) for mask in itertools.product([False, True], repeat=len(P))]
    return min(P[inside].sum() + chance[~inside[tokens].all(axis=1)].sum() for inside in sets)


def nodeplan() -> dict[str, Any]:
    """Token 0 is a guess for certain, two others are drawn from the rest."""
    free = law.normalise(Q * (np.arange(len(Q)) > 0))
    scale, a = hull.exchanged(P, hull.plan(P, free, 2).law, [0])
    return {"a": a, "lambda_T": scale, "alpha": law.overlap(P, a)}


def whole_block() -> dict[str, Any]:
    wanted = GOLDEN["block"]
    p, q = np.array(wanted["P_rows"]), np.array([*wanted["Q_rows"], np.zeros_like(P)])
    draft = Draft(Tree.chain(3), np.array([[-1, *wanted["draft"]]]), q[None], p[None])
    w, stop = block.weights(draft)[0], block.stop(draft)[0]
    reached = [1 - stop[i + 1 :].sum() for i in range(1, 4)]  # probability that the scan from the back reaches node i
    return {"w": w, "h": stop[1:] / reached, "Z": law.positive(w[:3, None] * p[:3] - q[:3]).sum(axis=1)}


def lengths() -> list[dict[str, Any]]:
    rows = []
    for alpha, cost in [(row["alpha"], row["c"]) for row in GOLDEN["gamma"]]:
        best = plan.best_length(alpha, cost)
        rows.append({"alpha": alpha, "c": cost, "gamma": best, "speedup": plan.speedup(alpha, best, cost)})
    return rows


FOUND: dict[str, Callable[[], Any]] = {
    "p": lambda: P,
    "q": lambda: Q,
    "single": single,
    **{f"iid_K{width}": lambda width=width: several(width) for width in (2, 3, 4)},
    "nodeplan_T0_k2": nodeplan,
    "gumbel_match_prob": lambda: gumbel.match_probability(P[None], Q[None])[0],
    "block": whole_block,
    "gamma": lengths,
}


@pytest.mark.parametrize("key", GOLDEN)
def test_every_number(key: str) -> None:
    """A key that nothing here computes fails."""
    agree(FOUND[key](), GOLDEN[key])


def agree(found: Any, wanted: Any) -> None:
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys() - GIVEN
        for key in found:
            if key == "kseq_rho":
                assert 0 <= found[key] - wanted[key] < 1e-11  # the search keeps its upper end
            else:
                agree(found[key], wanted[key])
    elif isinstance(wanted, list) and isinstance(wanted[0], dict):
        for one, other in zip(found, wanted, strict=True):
            agree(one, other)
    else:
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


def test_block_is_the_token_rule_on_one_token() -> None:
    size = len(P)
    tokens = np.stack([np.full(size, -1), np.arange(size)], axis=1)
    draft = Draft(Tree.chain(1), tokens, np.stack([[Q, Q * 0]] * size), np.stack([[P, P]] * size))
    for verifier in (VERIFIERS["token"], VERIFIERS["block"]):
        agree(verifier.stop(draft)[:, 1], GOLDEN["single"]["accept_prob_per_token"])
        agree(verifier.next(draft, np.zeros(size, dtype=int)), [GOLDEN["single"]["residual"]] * size)
        agree(verifier.next(draft, np.ones(size, dtype=int)), [P.tolist()] * size)
    agree([law.overlap(P, Q), 1 - law.total_variation(P, Q)], [GOLDEN["single"]["alpha"]] * 2)


@pytest.mark.parametrize("width", [2, 3])
def test_rules_reach_what_their_formulas_say(width: int) -> None:
    """Summed over every draft: the formulas above are not only formulas."""
    wanted = GOLDEN[f"iid_K{width}"]
    agree(accepted("recursive", "iid", Tree.star(width)), wanted["RRS_acceptance"])
    agree(accepted("top_plus_one", "top", Tree.star(width)), wanted["greedy_top_K-1_plus_1"])
    agree(accepted("optimal", "iid", Tree.star(width)), wanted["alpha_star"])
    agree(least_cut("iid", width), wanted["alpha_star"])
    assert bounds.distinct(P, Q, width) == pytest.approx(wanted["alpha_star_without_replacement"], abs=1e-9)


def test_block_emits_the_excess() -> None:
    wanted = GOLDEN["block"]
    p, q = np.array(wanted["P_rows"]), np.array([*wanted["Q_rows"], np.zeros_like(P)])
    draft = Draft(Tree.chain(3), np.array([[-1, *wanted["draft"]]]), q[None], p[None])
    for node in range(3):
        excess = law.positive(wanted["w"][node] * p[node] - q[node])
        agree(block.next(draft, np.array([node]))[0], (excess / wanted["Z"][node]).tolist())
