"""Nodes of a draft tree in calls of fixed shape: their numbers, depths and ancestors, kept on the device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from draftproof.draft import Tree
from draftproof.models.hf import ancestry
from draftproof.models.llama.masks import Branching
from draftproof.models.llama.placement import NodeSlots


class NodeCall(NamedTuple):
    """The nodes of a tree that one call takes."""

    nodes: tuple[int, ...]  # their numbers, ascending
    number: torch.Tensor  # [T] int64, the same on the device
    depth: torch.Tensor  # [T] int64
    ancestors: torch.Tensor  # [T] int64, as Branching has it
    parent: torch.Tensor  # [T] int64: each one's parent among the nodes of the call before; 0 where there was none
    first: int  # how many nodes earlier calls asked about

    @staticmethod
    def of(
        tree: Tree, nodes: tuple[int, ...], device: torch.device, before: tuple[int, ...] = (), first: int = 0
    ) -> NodeCall:
        """`before`: nodes of the call before this one."""
        bits = ancestry(tree)[list(nodes)].astype(np.uint64) << np.arange(tree.size, dtype=np.uint64)
        ancestors = bits.sum(axis=1, dtype=np.uint64).view(np.int64)
        place = {node: i for i, node in enumerate(before)}
        parent = [place.get(tree.parent[node], 0) for node in nodes]
        columns = (nodes, [tree.depth[node] for node in nodes], ancestors, parent)
        number, depth, bitmask, elder = (torch.tensor(np.asarray(column), device=device) for column in columns)
        return NodeCall(nodes, number, depth, bitmask, elder, first)

    def mask(self, window: int | None = None) -> Branching:
        """What the nodes see."""
        return Branching(self.depth, self.ancestors, window)

    def placement(self, root: torch.Tensor, end: int) -> NodeSlots:
        """Where they go if node 0 is in slot root [B]."""
        return NodeSlots(root, self.number, end)


class TreeCalls(NamedTuple):
    """The calls of a step for one tree: the drafter's, level by level after nodes with children, and the target's."""

    drafter: tuple[NodeCall, ...]  # the first is the root's
    target: NodeCall

    @staticmethod
    def of(tree: Tree, device: torch.device) -> TreeCalls:
        """For a tree with draft tokens in it."""
        calls: list[NodeCall] = []
        for level in tree.levels[:-1]:
            nodes = tuple(node for node in level if node in tree.inner)
            before = calls[-1].nodes if calls else ()
            calls.append(NodeCall.of(tree, nodes, device, before, sum(len(call.nodes) for call in calls)))
        return TreeCalls(tuple(calls), NodeCall.of(tree, tuple(range(tree.size)), device))
