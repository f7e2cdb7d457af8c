"""Shared noise: the text depends on target and seed alone, and guesses agree exactly as often as the formula says."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from draftproof.couple import COUPLINGS, get, gumbel, gumbel_list
from draftproof.draft import Tree
from draftproof.errors import DraftproofError
from draftproof.law import overlap, total_variation
from draftproof.noise import races
from draftproof.rule import Coupling
from tests.support import gof
from tests.support.tables import as_float, table

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text())
SIZE, LENGTH = 7, 24


def name(value: int) -> np.ndarray:
    return np.array([value])


def plain(coupling: Coupling, target, seed: int, asarray=np.asarray) -> list[int]:
    """Sampling without any draft: one race a position."""
    text: list[int] = []
    while len(text) < LENGTH:
        noise = races(asarray(name(seed)), asarray(name(3)), asarray(name(len(text))), SIZE, coupling.streams)
        text.append(int(coupling.emit(asarray(target(tuple(text))[None]), noise)[0]))
    return text


def speculative(coupling: Coupling, target, drafter, tree: Tree, seed: int) -> tuple[list[int], int]:
    """The step of the contract, over and over: guess every node, then walk down while a guess is the emitted token."""
    text: list[int] = []
    calls = 0
    while len(text) < LENGTH:
        noise = [races(name(seed), name(3), name(len(text) + d), SIZE, coupling.streams) for d in range(LENGTH)]
        context, tokens = {0: tuple(text)}, {}
        for node in range(tree.size):
            children = tree.children(node)
            if children:
                guess = coupling.draft(drafter(context[node])[None], noise[tree.depth[node]], len(children))[0]
                for child, token in zip(children, guess.tolist(), strict=True):
                    tokens[child], context[child] = token, (*context[node], token)
        calls += 1
        node: int | None = 0
        while node is not None:
            y = int(coupling.emit(target(context[node])[None], noise[tree.depth[node]])[0])
            text.append(y)
            node = next((child for child in tree.children(node) if tokens[child] == y), None)
    return text[:LENGTH], calls


@pytest.mark.parametrize("coupling", COUPLINGS.values(), ids=list(COUPLINGS))
def test_text_is_a_function_of_target_and_seed(coupling: Coupling) -> None:
    """Three drafters, one of which abstains at times, on five trees: letter for letter what plain sampling gives."""
    target = as_float(table(70, SIZE))
    drafters = [as_float(table(71, SIZE)), as_float(table(72, SIZE, abstain=0.4)), target]
    trees = [Tree.chain(1), Tree.chain(4), Tree.star(3), Tree.paths(2, 3), Tree.of(3, 2)]
    for seed in (0, 1):
        text = plain(coupling, target, seed)
        calls = {}
        for number, drafter in enumerate(drafters):
            for tree in trees:
                again, calls[number, tree] = speculative(coupling, target, drafter, tree, seed)
                assert again == text
        assert all(calls[number, tree] < LENGTH for number, tree in calls if number != 1), "speculation saved no call"
        assert len(set(calls.values())) > 3
    assert plain(coupling, target, 0) != plain(coupling, target, 1)


def test_the_target_as_its_own_drafter_is_always_right() -> None:
    target = as_float(table(70, SIZE))
    assert speculative(get("gumbel"), target, target, Tree.chain(3), 0)[1] == LENGTH // 4


@pytest.mark.parametrize("coupling", COUPLINGS.values(), ids=list(COUPLINGS))
def test_torch_gives_the_same_text(coupling: Coupling) -> None:
    target = as_float(table(70, SIZE))
    assert plain(coupling, target, 5, torch.from_numpy) == plain(coupling, target, 5)


@pytest.mark.parametrize("coupling", [get("gumbel"), *map(gumbel_list.of, (1, 2, 5))], ids=lambda c: f"{c.streams}")
def test_emitted_token_follows_the_target(coupling: Coupling) -> None:
    run = np.arange(20_000)
    p = np.array([0.4, 0.0, 0.3, 0.05, 0.25])
    tokens = coupling.emit(np.broadcast_to(p, (len(run), 5)), races(run * 0 + 9, run * 0, run, 5, coupling.streams))
    gof.check(Counter(tokens.tolist()), dict(enumerate(p)))


def test_siblings_are_a_draw_without_replacement() -> None:
    run = np.arange(20_000)
    q = np.array([0.5, 0.3, 0.2, 0.0])
    pairs = get("gumbel").draft(np.broadcast_to(q, (len(run), 4)), races(run * 0 + 8, run, run * 0, 4), 4)
    assert np.all(pairs[:, 3] == -1)  # three tokens have mass: the fourth sibling has none left
    law = {(i, j): q[i] * q[j] / (1 - q[i]) for i in range(3) for j in range(3) if i != j}
    gof.check(Counter(map(tuple, pairs[:, :2].tolist())), law)


def joint(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """[V, V]: law of (guess, token) by integrating the race, guess a at time s and token b at time rho s."""
    law = np.diag([1 / np.maximum(p / p[a], q / q[a]).sum() if p[a] and q[a] else 0.0 for a in range(len(p))])
    for a, b in ((a, b) for a in range(len(p)) for b in range(len(p)) if a != b and q[a] and p[b]):
        low, high = q[b] / q[a], p[b] / p[a] if p[a] else np.inf  # b loses at speeds q and beats a at speeds p
        others = [i for i in range(len(p)) if i not in (a, b)]
        turns = {q[i] / q[a] * p[b] / p[i] for i in others if p[i]}
        edges = [low, *sorted(t for t in turns if low < t < high), high] if low < high else []
        for left, right in pairwise(edges):
            inside = (left + right) / 2 if np.isfinite(right) else 2 * left + 1
            slow = 1 + sum(q[i] / q[a] for i in others if q[i] / q[a] >= inside * p[i] / p[b])
            fast = 1 + sum(p[i] / p[b] for i in others if q[i] / q[a] < inside * p[i] / p[b])
            law[a, b] += (1 / (slow + fast * left) - 1 / (slow + fast * right)) / fast
    return law


def pairs(count: int, size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(as_float(table(s, size))(()), as_float(table(s + 1000, size))(())) for s in range(count)]


def test_match_probability_is_the_diagonal_of_the_joint_law() -> None:
    for p, q in pairs(40, 5):
        law = joint(p, q)
        assert np.allclose(law.sum(axis=0), p, rtol=0, atol=1e-12)
        assert np.allclose(law.sum(axis=1), q, rtol=0, atol=1e-12)
        assert gumbel.match_probability(p[None], q[None])[0] == pytest.approx(np.trace(law), abs=1e-12)


def test_match_probability_stays_in_its_bounds() -> None:
    for p, q in pairs(200, 6):
        match, distance = gumbel.match_probability(p[None], q[None])[0], total_variation(p, q)
        assert (1 - distance) / (1 + distance) - 1e-12 <= match <= overlap(p, q) + 1e-12


def test_match_probability_golden() -> None:
    p, q = np.array([GOLDEN["p"]]), np.array([GOLDEN["q"]])
    assert gumbel.match_probability(p, q)[0] == pytest.approx(GOLDEN["gumbel_match_prob"], abs=1e-12)
    for k in (2, 3, 4):
        assert gumbel.match_probability(p, q, k)[0] == pytest.approx(GOLDEN[f"iid_K{k}"]["GLS_bound"], abs=1e-12)


@pytest.mark.parametrize("width", [1, 3])
def test_guesses_match_as_often_as_promised(width: int) -> None:
    """One guess matches with the formula's probability; one of several with at least the list's bound."""
    p, q = np.array([GOLDEN["p"]]), np.array([GOLDEN["q"]])
    run = np.arange(20_000)
    coupling = gumbel_list.of(width)
    noise = races(run * 0 + 4, run * 0, run, 5, width)
    rows = (len(run), 5)
    guesses = coupling.draft(np.broadcast_to(q, rows), noise, width)
    hits = int(np.any(guesses == coupling.emit(np.broadcast_to(p, rows), noise)[:, None], axis=1).sum())
    bound = float(gumbel.match_probability(p, q, width)[0])
    if width == 1:
        gof.check(Counter({True: hits, False: len(run) - hits}), {True: bound, False: 1 - bound})
    else:
        assert hits / len(run) > bound


def test_races_are_named_by_position_and_token() -> None:
    batch = races(np.array([4, 9]), np.array([1, 2]), np.array([3, 8]), 11, 2)
    alone = races(name(9), name(2), name(8), 6, 2)
    assert batch.shape == (2, 2, 11)
    assert np.array_equal(batch[1:, :, :6], alone)  # neither the batch nor a padded vocabulary changes a number
    assert len(np.unique(batch)) == batch.size
    assert np.all(batch >= 0)
    assert np.all(np.isfinite(batch))


def test_errors_name_the_value_and_the_remedy() -> None:
    with pytest.raises(DraftproofError, match="unknown coupling 'gumble': did you mean 'gumbel'"):
        get("gumble")


def test_there_are_no_more_guesses_than_races() -> None:
    noise, q = races(name(0), name(0), name(0), 4, 2), np.full((1, 4), 0.25)
    two, three = (gumbel_list.draft(q, noise, siblings).tolist() for siblings in (2, 3))
    assert three == [[*two[0], -1]]
