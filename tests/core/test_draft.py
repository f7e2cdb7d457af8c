"""Trees and drafts: numbering, and the guesses after a node that differs from row to row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from draftproof.draft import Draft, Tree
from draftproof.errors import DraftproofError
from draftproof.verify import VERIFIERS


@pytest.mark.parametrize(
    ("tree", "parent", "depth"),
    [
        (Tree.chain(0), (-1,), (0,)),
        (Tree.chain(2), (-1, 0, 1), (0, 1, 2)),
        (Tree.star(3), (-1, 0, 0, 0), (0, 1, 1, 1)),
        (Tree.paths(2, 2), (-1, 0, 0, 1, 2), (0, 1, 1, 2, 2)),
        (Tree.paths(3, 0), (-1,), (0,)),
        (Tree.of(2, 2), (-1, 0, 0, 1, 1, 2, 2), (0, 1, 1, 2, 2, 2, 2)),
        (Tree.of(), (-1,), (0,)),
    ],
)
def test_shapes(tree: Tree, parent: tuple[int, ...], depth: tuple[int, ...]) -> None:
    assert tree.parent == parent
    assert tree.depth == depth
    assert tree.size == len(parent)
    assert [node for level in tree.levels for node in level] == list(range(tree.size))
    for d, level in enumerate(tree.levels):
        assert {depth[node] for node in level} == {d}
    for node in range(tree.size):
        assert len(tree.path(node)) == depth[node]
        assert all(parent[child] == node for child in tree.children(node))


def test_a_path_leads_from_the_root_to_the_node() -> None:
    assert Tree.paths(2, 3).path(6) == (2, 4, 6)
    assert Tree.chain(3).path(0) == ()


@pytest.mark.parametrize(
    ("kind", "accepted"),
    [("chain", "chain"), ("star", "star"), ("paths", "chain star paths"), ("any", "chain star paths tree")],
)
def test_what_a_verifier_accepts(kind: str, accepted: str) -> None:
    shapes = {"star": Tree.star(3), "paths": Tree.paths(2, 3), "tree": Tree.of(1, 2), "chain": Tree.chain(3)}
    verifier = VERIFIERS["match"]._replace(trees=kind)
    found = {name for name, tree in shapes.items() if verifier.accepts(tree)}
    assert found == set(accepted.split())
    assert verifier.accepts(Tree.chain(1))  # one guess is a chain, a star and a path
    assert verifier.accepts(Tree.chain(0))


@pytest.mark.parametrize("backend", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_guesses_after_a_node(backend: type) -> None:
    """Node 1 has one child, node 0 two, node 3 none; a child that was not drawn is -1 as well."""
    tokens = backend(np.array([[9, 4, 5, 6], [9, 4, 5, 6], [9, 4, -1, 6], [9, 4, 5, 6]]))
    empty = backend(np.zeros((4, 4, 2)))
    draft = Draft(Tree((-1, 0, 0, 1)), tokens, empty, empty)
    first, second = draft.guesses(backend(np.array([0, 1, 0, 3])))
    assert first.tolist() == [4, 6, 4, -1]
    assert second.tolist() == [5, -1, -1, -1]


@pytest.mark.parametrize("make", [Tree.chain, Tree.star, Tree.of, lambda width: Tree.paths(width, 2)])
def test_a_tree_has_no_fewer_than_no_guesses(make) -> None:
    assert make(0) == Tree((-1,))
    with pytest.raises(DraftproofError, match="at least 0, not -1"):
        make(-1)


def test_best_guesses_by_name() -> None:
    tree = Tree.parse("best:20x5")
    assert tree == Tree.best(20, 5)
    assert (tree.size, max(tree.depth)) == (21, 5)
    assert tree.inner == tuple(node for node in range(tree.size) if tree.children(node))
    assert len(tree.inner) < len(Tree.best(20, 20).inner)  # a deeper tree is narrower
    assert Tree.best(3, 1) == Tree.star(3)
    assert Tree.best(9, 1) == Tree.star(5)  # a sixth child is not worth a guess
    with pytest.raises(DraftproofError, match="unknown tree 'best:20': use chain:5"):
        Tree.parse("best:20")


@pytest.mark.parametrize("name", ["chain:4097", "star:100000000", "paths:65x64", "of:99x99x99x99", "best:5000x3"])
def test_a_tree_that_no_model_reads_is_not_made(name: str) -> None:
    with pytest.raises(DraftproofError, match=f"at most 4096 draft tokens, '{name}' would have more"):
        Tree.parse(name)


@pytest.mark.parametrize("parent", [(), (0,), (-1, -1), (-1, 1), (-1, 2, 0), (-1, 0, 1, 0), (-1, 0, 1, 2, 3, 0)])
def test_a_tree_is_numbered_level_by_level(parent: tuple[int, ...]) -> None:
    with pytest.raises(DraftproofError, match="is not numbered level by level"):
        Tree(parent).check()


@pytest.mark.parametrize("tree", [Tree((-1,)), Tree.chain(3), Tree.of(3, 2), Tree((-1, 0, 0, 2, 1)), Tree.best(20, 5)])
def test_a_tree_that_is_so_numbered_is_itself(tree: Tree) -> None:
    assert tree.check() is tree
