"""Numbers computed once by independent prototypes (tests/data/golden.json), reproduced to 1e-12."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from draftproof import law
from draftproof.draft import Draft, Tree
from draftproof.draws import DRAWS
from draftproof.theory.enumerate import expected_accepted
from draftproof.verify import VERIFIERS, block

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text())
P, Q = np.array(GOLDEN["p"]), np.array(GOLDEN["q"])


def close(found: object, wanted: object) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["token", "block"])
def test_single_draft(name: str) -> None:
    """A chain of one: acceptance of each token, overall acceptance, residual."""
    verifier, wanted, size = VERIFIERS[name], GOLDEN["single"], len(P)
    tokens = np.stack([np.full(size, -1), np.arange(size)], axis=1)  # a batch with every token drafted once
    draft = Draft(Tree.chain(1), tokens, np.stack([[Q, Q * 0]] * size), np.stack([[P, P]] * size))
    close(verifier.stop(draft)[:, 1], wanted["accept_prob_per_token"])
    close(verifier.next(draft, np.zeros(size, dtype=int)), [wanted["residual"]] * size)
    close(verifier.next(draft, np.ones(size, dtype=int)), [P] * size)
    alpha = expected_accepted(verifier, lambda c: P, lambda c: Q, Tree.chain(1), DRAWS["iid"])
    close([alpha, law.overlap(P, Q), 1 - law.total_variation(P, Q)], wanted["alpha"])


def test_block_weights_thresholds_and_excess() -> None:
    wanted = GOLDEN["block"]
    p, q = np.array(wanted["P_rows"]), np.array([*wanted["Q_rows"], np.zeros_like(P)])
    draft = Draft(Tree.chain(3), np.array([[-1, *wanted["draft"]]]), q[None], p[None])
    w = block.weights(draft)[0]
    close(w, wanted["w"])
    close(law.positive(w[:3, None] * p[:3] - q[:3]).sum(axis=1), wanted["Z"])
    stop = block.stop(draft)[0]
    reached = [1 - stop[i + 1 :].sum() for i in range(1, 4)]  # probability that the scan from the back reaches node i
    close(stop[1:] / reached, wanted["h"])
    for node in range(3):
        excess = law.positive(wanted["w"][node] * p[node] - q[node])
        close(block.next(draft, np.array([node]))[0], excess / wanted["Z"][node])


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize(("draw", "key"), [("iid", "alpha_star"), ("distinct", "alpha_star_without_replacement")])
def test_best_acceptance_of_several_drafts(width: int, draw: str, key: str) -> None:
    """The optimum min_S p(S) + P(guesses not inside S), summed with the probabilities that `draws` states."""
    tokens = np.array(list(itertools.product(range(len(P)), repeat=width)))
    chance = DRAWS[draw].probability(np.stack([Q] * len(tokens)), tokens)
    close(chance.sum(), 1)
    best = 1.0
    for mask in itertools.product([False, True], repeat=len(P)):
        inside = np.array(mask)
        best = min(best, P[inside].sum() + chance[~inside[tokens].all(axis=1)].sum())
    close(best, GOLDEN[f"iid_K{width}"][key])
