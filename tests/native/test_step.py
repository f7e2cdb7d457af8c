"""Laws made and drawn from in C are those of the core."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof import law, native, verify
from draftproof.controls import softmax
from draftproof.draft import Draft, Tree
from draftproof.native import build
from draftproof.noise import Lane, uniforms


@pytest.mark.parametrize("size", [1, 5, 16, 259, 49152])
def test_laws_and_draws(size):
    if build.compiled() is None:
        return
    chance = np.random.default_rng(size)
    scores = (4 * chance.standard_normal((3, size))).astype(np.float32)
    scores[:, size // 2 + 1 :: 3] = -np.inf
    made = native.whole_laws(scores, 0.8)
    truth = softmax(scores.astype(np.float64), 0.8)
    assert np.abs(made - truth).sum(axis=-1).max() < 1e-7
    assert np.all(made[scores == -np.inf] == 0)
    for u in (np.zeros(3), np.full(3, 1 - 2.0**-53), *chance.random((20, 3))):
        assert native.draws(made, u).tolist() == law.sample(made, u).tolist()


LAST = 1 - 2.0**-53  # the largest uniform


def dyadic(chance, rows, size, parts=64):
    """Laws of multiples of 1 / parts with many zeros: all sums are exact, so that a uniform can hit a boundary."""
    shares = np.zeros((rows, size), dtype=np.float32)
    for row in shares:
        np.add.at(row, chance.integers(size, size=parts), 1 / parts)
    return shares


@pytest.mark.parametrize("size", [3, 40, 700])
def test_draws_at_the_boundaries_of_tokens(size):
    """Between two tokens, before the first and after the last that can be drawn, also in another part of a law."""
    if build.compiled() is None:
        return
    made = dyadic(np.random.default_rng(size), 6, size)
    made[0], made[1], made[0, 0], made[1, -1] = 0, 0, 1, 1
    for u in (*np.arange(64) / 64, np.nextafter(0.5, 0), LAST):
        assert native.draws(made, np.full(6, u)).tolist() == law.sample(made, np.full(6, u)).tolist()


def test_uniforms_are_those_of_the_core():
    if build.compiled() is None:
        return
    names = [(0, 0, 0), (2**63 - 1, 2**31, 10**6), (2**40 + 3, 5, 7)]
    for lane in Lane:
        made = native.uniforms(names, lane, 9)
        assert made.tolist() == uniforms(*np.array(names).T, lane, 9).tolist()


def test_a_law_of_nothing_draws_nothing():
    if build.compiled() is None:
        return
    assert native.draws(np.zeros((2, 300), dtype=np.float32), np.array([0.0, 0.9])).tolist() == [-1, -1]


def test_uniforms_may_lie_apart():
    if build.compiled() is None:
        return
    chance = np.random.default_rng(0)
    made, u = chance.random((400, 50), dtype=np.float32), chance.random(800)[::2]
    assert native.draws(made, u).tolist() == native.draws(made, u.copy()).tolist()


def test_the_last_token_that_can_be_drawn_is_drawn_however_sums_are_rounded():
    if build.compiled() is None:
        return
    made = np.zeros((1, 700), dtype=np.float32)
    made[0, [3, 600]] = 0.1, 0.9
    assert native.draws(made, np.array([np.nextafter(1.0, 0)])).tolist() == [600]
    assert native.draws(made, np.array([1.0])).tolist() == [600]  # as if u * total had been rounded up
    made[0, 600] = 0
    assert native.draws(made, np.array([1.0])).tolist() == [3]  # also if it is in a part that was skipped


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_what_is_no_score_is_left_to_the_core(odd):
    scores = np.zeros((2, 40), dtype=np.float32)
    assert (native.whole_laws(scores, 1.0) is None) == (build.compiled() is None)
    scores[1, 38] = odd
    assert native.whole_laws(scores, 1.0) is None
    scores[1] = -np.inf
    assert native.whole_laws(scores, 1.0) is None


@pytest.mark.parametrize("rule", native.CHAINS)
@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_chain_is_verified_as_the_rule_says(rule, length):
    """Good and bad guesses, laws with zeros, and p where all of it can be guessed."""
    if build.compiled() is None:
        return
    chance, verifier, tree = np.random.default_rng(length), verify.get(rule), Tree.chain(length)
    ends = set()
    for trial in range(40):
        names = np.arange(90) if trial % 4 == 0 else np.sort(chance.choice(90, 40, replace=False))
        scores = 2 * chance.standard_normal((length + 1, 90)).astype(np.float32)
        near = scores[:, names] + chance.standard_normal((length + 1, len(names))).astype(np.float32)
        scores[chance.random(scores.shape) < 0.2] = -np.inf
        p, q = native.whole_laws(scores, 1.0), native.whole_laws(near, 1.0)
        q[-1] = 0
        places = native.draws(q[:-1], chance.random(length))
        tokens = np.concatenate([[0], names[places]])
        u = chance.random(2)
        made = native.verify(rule, p, q, names, tokens, (u[0], u[1]))
        wide = np.zeros_like(p)
        wide[:, names] = q
        draft = Draft(tree, tokens[None], wide[None].astype(np.float64), p[None].astype(np.float64))
        stop = verifier.stop(draft)
        np.testing.assert_allclose(made.stop, stop[0], atol=2e-6)
        node = law.sample(stop, u[:1])
        assert made.node == node[0]
        assert made.token == law.sample(verifier.next(draft, node), u[1:])[0]
        ends.add(made.node)
    assert {0, length} <= ends


@pytest.mark.parametrize("rule", native.CHAINS)
@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_chain_is_verified_as_the_rule_says_at_the_edges(rule, length):
    """Nodes that are never or always last, tokens that p or q never has, and uniforms at the ends and at boundaries."""
    if build.compiled() is None:
        return
    chance, verifier, tree = np.random.default_rng(10 + length), verify.get(rule), Tree.chain(length)
    edges = (0.0, LAST, *np.arange(1, 64) / 64)
    for trial in range(30):
        size = 5 if trial % 2 else 300
        names = np.sort(chance.choice(size, size - 1 - trial % 3, replace=False))
        p, q = dyadic(chance, length + 1, size, 4), dyadic(chance, length + 1, len(names), 4)
        if trial % 3 == 0:  # the draft's laws are right at first
            right = chance.integers(1, length + 1)
            p[:right] = 0
            p[:right, names] = q[:right]
        q[-1] = 0
        places = np.array([chance.choice(np.nonzero(row)[0]) for row in q[:-1]])
        if trial % 5 == 0:  # nobody draws such tokens, but they are rejected
            places = chance.integers(len(names), size=length)
        tokens = np.concatenate([[0], names[places]])
        wide = np.zeros_like(p)
        wide[:, names] = q
        draft = Draft(tree, tokens[None], wide[None].astype(np.float64), p[None].astype(np.float64))
        stop = verifier.stop(draft)
        boundaries = np.cumsum(stop[0])
        for u_stop in edges:
            if 0 < u_stop < LAST and np.abs(boundaries - u_stop).min() < 1e-12 and rule == "block":
                continue  # a weight is a quotient: its last bit may differ
            u_next = edges[chance.integers(len(edges))]
            made = native.verify(rule, p, q, names, tokens, (u_stop, u_next))
            node = law.sample(stop, np.array([u_stop]))
            assert made.node == node[0]
            rest = verifier.next(draft, node)
            if rule == "token" or np.abs(np.cumsum(rest[0]) - u_next).min() > 1e-6 or u_next in (0.0, LAST):
                assert made.token == law.sample(rest, np.array([u_next]))[0]


@pytest.mark.parametrize("rule", native.CHAINS)
def test_where_rounding_leaves_no_residual_a_token_is_drawn_from_p(rule):
    """p is nowhere above q, and less by a last bit at the draft token, which is therefore rejected now and then."""
    if build.compiled() is None:
        return
    q = np.array([[0.25, 0.75], [0, 0]], dtype=np.float32)
    p = np.array([[0.25, np.nextafter(np.float32(0.75), 0)], [0.5, 0.5]], dtype=np.float32)
    draft = Draft(Tree.chain(1), np.array([[0, 1]]), q[None].astype(np.float64), p[None].astype(np.float64))
    for u_next in (0.0, 0.2, 0.5, LAST):
        made = native.verify(rule, p, q, np.arange(2), np.array([0, 1]), (0.0, u_next))
        assert made.node == 0
        assert made.token == law.sample(verify.get(rule).next(draft, np.array([0])), np.array([u_next]))[0]


def test_other_rules_and_other_numbers_are_left_to_the_core():
    p = np.full((2, 4), 0.25, dtype=np.float32)
    u = (0.5, 0.5)
    assert native.verify("traversal", p, p, np.arange(4), np.array([0, 1]), u) is None
    assert native.verify("block", p.astype(np.float64), p, np.arange(4), np.array([0, 1]), u) is None


@pytest.mark.parametrize("temperature", [0.8, 0.0])
def test_laws_of_what_a_mask_allows(temperature):
    if build.compiled() is None:
        return
    chance = np.random.default_rng(3)
    scores = (4 * chance.standard_normal((5, 1000))).astype(np.float32)
    masks = [chance.random(1000) < 0.3, None, np.arange(1000) == 999, chance.random(1000) < 0.01, np.arange(1000) < 17]
    scores[0, ~masks[0]] = np.nan  # nobody looks there
    made = native.whole_laws(scores, temperature, masks)
    for row, mask, own in zip(scores, masks, made, strict=True):
        some = np.where(np.ones(1000, dtype=bool) if mask is None else mask, row, -np.inf).astype(np.float64)
        truth = softmax(some[None], temperature)[0] if temperature else np.eye(1000)[some.argmax()]
        assert np.abs(own - truth).sum() < 1e-6
        assert np.all(own[some == -np.inf] == 0)


def test_at_temperature_zero_the_first_of_equals_is_taken():
    if build.compiled() is None:
        return
    scores = np.full((1, 300), -1.0, dtype=np.float32)
    scores[0, [70, 71, 299]] = 2
    assert native.whole_laws(scores, 0.0)[0].tolist() == np.eye(300)[70].tolist()
    assert native.whole_laws(scores, 0.0, [np.arange(300) > 70])[0].tolist() == np.eye(300)[71].tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_a_mask_that_leaves_no_law(temperature, odd):
    if build.compiled() is None:
        return
    scores = np.zeros((1, 300), dtype=np.float32)
    assert native.whole_laws(scores, temperature, [np.zeros(300, dtype=bool)]) is None
    scores[0, 200] = odd
    assert native.whole_laws(scores, temperature) is None
    assert native.whole_laws(scores, temperature, [np.arange(300) < 201]) is None
    assert native.whole_laws(scores, temperature, [np.arange(300) < 200]) is not None
