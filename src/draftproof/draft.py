"""The nouns: a Tree of guesses, a Draft of them with both models' laws, a Verifier that is a law."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

from array_api_compat import array_namespace

from draftproof.errors import DraftproofError
from draftproof.law import Array, row


def _count(guesses: int) -> int:
    if guesses < 0:
        raise DraftproofError(f"a tree has so many guesses, or none, not {guesses}: give 0 or more")
    return guesses


class Tree(NamedTuple):
    """Shape of a draft. Node 0 is the last committed token; every other node guesses one token after its parent.

    Nodes are numbered level by level, so a node's parent always comes before it and a level is a range.

    >>> Tree.chain(3).parent
    (-1, 0, 1, 2)
    >>> Tree.paths(2, 3).parent
    (-1, 0, 0, 1, 2, 3, 4)
    """

    parent: tuple[int, ...]

    @staticmethod
    def chain(length: int) -> Tree:
        """One guess after another."""
        return Tree((-1, *range(_count(length))))

    @staticmethod
    def star(width: int) -> Tree:
        """`width` guesses for the next token."""
        return Tree((-1, *(0,) * _count(width)))

    @staticmethod
    def paths(width: int, length: int) -> Tree:
        """`width` separate chains of `length` tokens, side by side."""
        first = (-1, *(0,) * _count(width)) if _count(length) else (-1,)
        return Tree(first + tuple(range(1, 1 + width * (length - 1))))

    @staticmethod
    def of(*widths: int) -> Tree:
        """Every node at depth d has `widths[d]` children.

        >>> Tree.of(2, 1).parent
        (-1, 0, 0, 1, 2)
        """
        parent, level = [-1], [0]
        for width in widths:
            below = []
            for node in level:
                for _ in range(_count(width)):
                    below.append(len(parent))
                    parent.append(node)
            level = below
        return Tree(tuple(parent))

    @staticmethod
    def parse(text: str) -> Tree:
        """A tree by name: "chain:5", "star:4", "paths:4x5" (four chains of five), "of:3x2x1" (children by depth).

        >>> Tree.parse("paths:2x3") == Tree.paths(2, 3)
        True
        """
        makers: dict[str, tuple[Callable[..., Tree], int | None]] = {
            "chain": (Tree.chain, 1),
            "star": (Tree.star, 1),
            "paths": (Tree.paths, 2),
            "of": (Tree.of, None),
        }
        kind, _, sizes = text.partition(":")
        numbers = [int(size) for size in sizes.split("x") if size.isdigit() and int(size) > 0]
        if kind in makers and len(numbers) == len(sizes.split("x")):
            make, count = makers[kind]
            if count in (None, len(numbers)):
                return make(*numbers)
        raise DraftproofError(f"unknown tree {text!r}: use chain:5, star:4, paths:4x5 or of:3x2x1")

    @property
    def size(self) -> int:
        """Number of nodes, node 0 included."""
        return len(self.parent)

    @property
    def depth(self) -> tuple[int, ...]:
        """Depth of each node; node 0 has depth 0."""
        depth = [0]
        for parent in self.parent[1:]:
            depth.append(depth[parent] + 1)
        return tuple(depth)

    @property
    def levels(self) -> tuple[range, ...]:
        """The nodes of each depth, in order."""
        depth = self.depth
        starts = [depth.index(d) for d in range(depth[-1] + 1)] + [self.size]
        return tuple(range(a, b) for a, b in pairwise(starts))

    def children(self, node: int) -> tuple[int, ...]:
        """The guesses for the token after `node`, in draw order."""
        return tuple(n for n, parent in enumerate(self.parent) if parent == node)

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from below node 0 down to `node`; empty for node 0."""
        path: list[int] = []
        while node > 0:
            path.append(node)
            node = self.parent[node]
        return tuple(reversed(path))

    def cut(self, depth: int) -> Tree:
        """The same tree without the nodes below `depth`."""
        return Tree(self.parent[: sum(d <= depth for d in self.depth)])

    @property
    def is_chain(self) -> bool:
        return all(parent == node - 1 for node, parent in enumerate(self.parent))

    @property
    def is_star(self) -> bool:
        return all(parent == 0 for parent in self.parent[1:])


class Draft(NamedTuple):
    """Guesses together with the law they were drawn from and the law they must end up following.

    A node with no drawn children (a leaf, a drafter that had no guess) has an all-zero row in `q`, and a child
    that was not drawn has token -1. That one convention makes every formula hold at ends of uneven length: with
    q = 0 the residual (p - q)+ is p itself.
    """

    tree: Tree
    tokens: Array  # [B, N] node 0 holds the last committed token
    q: Array  # [B, N, V] law that the children of each node were drawn from
    p: Array  # [B, N, V] target's law after each node
    own: Array | None = None  # [B, N, V] law that each node itself was drawn from, where siblings have different ones

    def children(self, node: Array) -> list[Array]:
        """The children [B] of node [B], one entry a sibling in draw order; -1 where there are fewer."""
        xp = array_namespace(self.tokens)
        children = [self.tree.children(n) for n in range(self.tree.size)]
        found = []
        for k in range(max(map(len, children))):
            child = node * 0 - 1
            for n, below in enumerate(children):
                if k < len(below):
                    child = xp.where(node == n, node * 0 + below[k], child)
            found.append(child)
        return found

    def guesses(self, node: Array) -> list[Array]:
        """The tokens [B] guessed after node [B], one entry a sibling in draw order; -1 where there are fewer."""
        xp = array_namespace(self.tokens)
        found = []
        for child in self.children(node):
            token = row(self.tokens, xp.where(child < 0, child * 0, child))
            found.append(xp.where(child < 0, child, token))
        return found


class Selection(NamedTuple):
    """One path of a tree, chosen by a rule whose outcome has a known law: several drafts made one (Khisti et al.)."""

    nodes: Array  # [B, L] the chosen path's nodes in the tree, node 0 first
    chain: Draft  # that path as a chain of L nodes; its q rows are the law of the chosen tokens


class Verifier(NamedTuple):
    """A verification algorithm as a law: where the accepted path ends, and what is emitted after it.

    Most rules sum their inner randomness in closed form. Where that is impossible, `select` takes uniforms and reduces
    the tree to one path, and `stop` and `next` are then those of a chain rule on the selected path.
    """

    name: str
    summary: str
    paper: str
    draws: frozenset[str]  # ways of drawing siblings it is exact for (draftproof.draws)
    trees: str  # "chain", "star", "paths" or "any"
    stop: Callable[[Draft], Array]  # [B, N] law of the last accepted node; node 0 = nothing accepted
    next: Callable[[Draft, Array], Array]  # [B, V] law of the token emitted after node [B]
    dominates: frozenset[str] = frozenset()  # verifiers whose expected accepted length it never falls below
    select: Callable[[Draft, Array], Selection] | None = None  # (draft, u [B, uniforms(tree)]) -> Selection
    uniforms: Callable[[Tree], int] = lambda tree: 0  # how many numbers `select` needs
    cells: Callable[[Draft], list[tuple[Array, Any]]] | None = None  # (u, weight) that integrate `select` for one draft
    mixes: bool = False  # exact also where siblings come from several drafters (Draft.own)

    def accepts(self, tree: Tree) -> bool:
        """Whether the algorithm is defined on this shape of draft."""
        match self.trees:
            case "chain":
                return tree.is_chain
            case "star":
                return tree.is_star or tree.size == 1
            case "paths":
                return tree == Tree.paths(len(tree.children(0)), tree.depth[-1])
            case _:
                return True
