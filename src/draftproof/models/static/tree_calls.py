"""Nodes of a draft tree in calls of fixed shape: where each one stands and what it sees, kept on the device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from draftproof.draft import Tree
from draftproof.models.hf import ancestry
from draftproof.models.llama.cuda import Branching


class Nodes(NamedTuple):
    """Some nodes of a tree, those of one call."""

    names: tuple[int, ...]  # their numbers, ascending
    number: torch.Tensor  # [T] int64, the same
    depth: torch.Tensor  # [T] int64
    above: torch.Tensor  # [T] int64, as Branching has it
    parent: torch.Tensor  # [T] int64: which node of the call before is each one's parent; 0 where there was none
    first: int  # how many nodes were asked about in calls before

    @staticmethod
    def of(
        tree: Tree, names: tuple[int, ...], device: torch.device, before: tuple[int, ...] = (), first: int = 0
    ) -> Nodes:
        """`before`: nodes of the call before this one."""
        bits = ancestry(tree)[list(names)].astype(np.uint64) << np.arange(tree.size, dtype=np.uint64)
        above = bits.sum(axis=1, dtype=np.uint64).view(np.int64)
        place = {node: i for i, node in enumerate(before)}
        parent = [place.get(tree.parent[node], 0) for node in names]
        columns = (names, [tree.depth[node] for node in names], above, parent)
        number, depth, seen, elder = (torch.tensor(np.asarray(column), device=device) for column in columns)
        return Nodes(names, number, depth, seen, elder, first)

    def rule(self, root: torch.Tensor, window: int | None = None) -> Branching:
        """What they see where node 0 is in slot root [B]."""
        return Branching(root, self.number, self.depth, self.above, window)


class Calls(NamedTuple):
    """A tree as a step meets it: the drafter is asked level by level after the nodes with children, the target once."""

    drafter: tuple[Nodes, ...]  # the first is the root's
    target: Nodes

    @staticmethod
    def of(tree: Tree, device: torch.device) -> Calls:
        """For a tree with guesses in it."""
        asked: list[Nodes] = []
        for level in tree.levels[:-1]:
            names = tuple(node for node in level if node in tree.inner)
            last = asked[-1].names if asked else ()
            asked.append(Nodes.of(tree, names, device, last, sum(len(call.names) for call in asked)))
        return Calls(tuple(asked), Nodes.of(tree, tuple(range(tree.size)), device))
