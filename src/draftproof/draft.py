"""Tree is the shape of a draft; Draft is a tree of draft tokens with the laws of drafter and target."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from array_api_compat import array_namespace

from draftproof.errors import DraftproofError, whole
from draftproof.law import Array, row

LARGEST = 4096  # guesses in a tree given by name: far more than a model verifies in one call
# acceptance rate of the first, second, ... guess for one token: about those of the shipped head at temperature 1
CHANCES = (0.63, 0.09, 0.04, 0.025, 0.012)


def _count(guesses: int) -> int:
    return whole("the size of a tree", guesses, 0)


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
    def best(guesses: int, depth: int) -> Tree:
        """The tree with the most expected tokens under `CHANCES`: at most `guesses` nodes, none below `depth`.

        >>> Tree.best(6, 3).parent
        (-1, 0, 0, 1, 1, 2, 3)
        """
        return as_tree(grow(CHANCES, _count(guesses) + 1, depth))

    @staticmethod
    def parse(text: str) -> Tree:
        """A tree by name: "chain:5", "star:4", "paths:4x5" (four chains of five), "of:3x2x1" (children by depth),
        "best:20x5" (at most 20 guesses, none below depth 5, as they are likeliest to be accepted).

        >>> Tree.parse("paths:2x3") == Tree.paths(2, 3)
        True
        """
        makers: dict[str, tuple[Callable[..., Tree], int | None]] = {
            "chain": (Tree.chain, 1),
            "star": (Tree.star, 1),
            "paths": (Tree.paths, 2),
            "of": (Tree.of, None),
            "best": (Tree.best, 2),
        }
        kind, _, sizes = text.partition(":")
        numbers = [int(size) for size in sizes.split("x") if size.isdecimal() and int(size) > 0]
        if kind in makers and len(numbers) == len(sizes.split("x")):
            make, count = makers[kind]
            if (numbers[0] if kind == "best" else math.prod(numbers)) > LARGEST:
                raise DraftproofError(
                    f"a tree has at most {LARGEST} draft tokens, {text!r} would have more: give fewer"
                )
            if count in (None, len(numbers)):
                return make(*numbers)
        raise DraftproofError(f"unknown tree {text!r}: use chain:5, star:4, paths:4x5, of:3x2x1 or best:20x5")

    def check(self) -> Tree:
        """Return the tree, or raise if it is not numbered level by level: its guesses would be lost silently."""
        parents = enumerate(self.parent[1:], start=1)
        rooted = self.parent[:1] == (-1,) and all(0 <= parent < node for node, parent in parents)
        if not rooted or list(self.depth) != sorted(self.depth):
            raise DraftproofError(f"{self} is not numbered level by level: sort its nodes by depth, root -1 first")
        return self

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

    @property
    def inner(self) -> tuple[int, ...]:
        """The nodes that have children."""
        return tuple(sorted(set(self.parent[1:])))

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from below node 0 down to `node`; empty for node 0."""
        path: list[int] = []
        while node > 0:
            path.append(node)
            node = self.parent[node]
        return tuple(reversed(path))

    @property
    def ways(self) -> tuple[tuple[int, ...], ...]:
        """The path to each node as a table, padded with 0 to the depth of the tree."""
        deepest = self.depth[-1]
        return tuple((*self.path(node), *(0,) * deepest)[:deepest] for node in range(self.size))

    def cut(self, depth: int) -> Tree:
        """The same tree without the nodes below `depth`."""
        return Tree(self.parent[: sum(d <= depth for d in self.depth)])

    @property
    def is_chain(self) -> bool:
        return all(parent == node - 1 for node, parent in enumerate(self.parent))

    @property
    def is_star(self) -> bool:
        return all(parent == 0 for parent in self.parent[1:])


class Node(NamedTuple):
    """A node of a planned tree: which child to take at each level on the way to it, and how likely it is accepted."""

    place: tuple[int, ...]
    value: float


def grow(acc: Sequence[float], most: int, depth: int) -> list[Node]:
    """Up to `most` nodes in the order in which they are worth having, none below `depth`; the first is the root.

    A tree's expected tokens are the sum of its nodes' values, each the product of `acc` on the path to it. A child is
    worth less than its parent and a sibling less than its elder, so repeatedly taking the best node within reach
    gives the best tree of every size.
    """
    if any(later > earlier for earlier, later in pairwise(acc)):
        raise DraftproofError(f"acceptance by sibling must not increase, not {list(acc)}: give the likeliest first")
    # negated value, depth, place, value of the parent
    heap: list[tuple[float, int, tuple[int, ...], float]] = [(-1.0, 0, (), 1.0)]
    nodes: list[Node] = []
    while heap and len(nodes) < most:
        negative, level, place, above = heapq.heappop(heap)
        nodes.append(Node(place, -negative))
        if level < depth:
            heapq.heappush(heap, (negative * acc[0], level + 1, (*place, 0), -negative))
        if place and place[-1] + 1 < len(acc):
            rank = place[-1] + 1
            heapq.heappush(heap, (-above * acc[rank], level, (*place[:-1], rank), above))
    return nodes


def as_tree(nodes: Sequence[Node]) -> Tree:
    """The tree of these nodes, numbered level by level, siblings in order."""
    places = sorted((node.place for node in nodes), key=lambda place: (len(place), place))
    number = {place: n for n, place in enumerate(places)}
    return Tree(tuple(number[place[:-1]] if place else -1 for place in places))


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
        columns = []
        for k in range(max(map(len, children))):
            child = node * 0 - 1
            for n, below in enumerate(children):
                if k < len(below):
                    child = xp.where(node == n, node * 0 + below[k], child)
            columns.append(child)
        return columns

    def guesses(self, node: Array) -> list[Array]:
        """The tokens [B] guessed after node [B], one entry a sibling in draw order; -1 where there are fewer."""
        xp = array_namespace(self.tokens)
        tokens = []
        for child in self.children(node):
            token = row(self.tokens, xp.where(child < 0, child * 0, child))
            tokens.append(xp.where(child < 0, child, token))
        return tokens


class Selection(NamedTuple):
    """One path of a tree, chosen by a rule whose outcome has a known law: one draft out of several (Khisti et al.)."""

    nodes: Array  # [B, L] the chosen path's nodes in the tree, node 0 first
    chain: Draft  # that path as a chain of L nodes; its q rows are the law of the chosen tokens
