"""Scratch memory of a step, allocated once for a shape and shared by many calls."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from draftproof.errors import DraftproofError
from draftproof.kernels.chain import plan
from draftproof.kernels.chain.plan import Tiling
from draftproof.kernels.chain.state import DECISION_SIZE, CandidateLists, ChainState, SpanStats
from draftproof.kernels.chain.worklist import ITEM_SIZE
from draftproof.kernels.lib.launching import cdiv
from draftproof.kernels.lib.rows import unspecialised
from draftproof.kernels.types import CREST, Summary
from draftproof.noise import Lane


class Workspace(NamedTuple):
    """Scratch memory for logits of one shape; it serves many calls, one after another in one stream."""

    shape: tuple[int, int, int]
    tiling: Tiling
    stats: SpanStats
    state: ChainState
    lists: CandidateLists
    summary: Summary

    @staticmethod
    def of(batch: int, nodes: int, vocabulary: int, device: torch.device, tiling: Tiling | None = None) -> Workspace:
        """Scratch memory for logits [batch, nodes, vocabulary]."""
        tiling = Tiling.of(batch, nodes, vocabulary) if tiling is None else tiling
        rows, spans = batch * nodes, cdiv(vocabulary, tiling.span)
        groups, chunks = plan.most_groups(tiling, vocabulary), plan.chunk_count(vocabulary)
        capacity = plan.list_capacity(vocabulary)

        def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        def words(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        stats = SpanStats(
            peak_ptr=floats(rows, spans),
            norm_ptr=floats(rows, spans),
            first_ptr=words(rows, spans),
            group_ptr=floats(rows, groups),
            block_ptr=floats(rows, groups),
            share_ptr=floats(rows, groups),
            height_ptr=floats(rows, CREST),
        )
        state = ChainState(
            rule_ptr=None,
            noise=None,
            lane=int(Lane.NEXT),
            index=unspecialised(0),
            decision_ptr=words(batch, DECISION_SIZE.value),
            weight_ptr=floats(rows, dtype=torch.float64),
            chance_ptr=floats(rows),
            worklist_ptr=words(rows, ITEM_SIZE.value),
            sums_ptr=floats(rows, chunks),
            totals_ptr=floats(rows, tiling.parts),
            shifts_ptr=floats(batch, chunks),
            overflow_ptr=words(1),
        )
        lists = CandidateLists(
            groups_ptr=words(rows, groups),
            limit=groups,
            ids_ptr=words(rows, capacity),
            scores_ptr=floats(rows, capacity),
            capacity=capacity,
            count_ptr=words(rows),
        )
        shape = (batch, nodes, vocabulary)
        return Workspace(shape, tiling, stats, state, lists, Summary.empty(batch, nodes, device))

    @staticmethod
    def serving(logits: Tensor, workspace: Workspace | None) -> Workspace:
        """The given workspace, if it fits these logits; a new one if none is given."""
        batch, nodes, vocabulary = logits.shape
        if workspace is None:
            return Workspace.of(batch, nodes, vocabulary, logits.device)
        if workspace.shape != logits.shape or workspace.summary.shift.device != logits.device:
            raise DraftproofError(
                f"a workspace for logits {[*workspace.shape]} on {workspace.summary.shift.device} does not serve "
                f"{[*logits.shape]} on {logits.device}"
            )
        return workspace
