"""Plan the launches of a step from shapes and controls alone, before anything is launched."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from draftproof.kernels.lib import launching
from draftproof.kernels.lib.launching import cdiv, next_power_of_2
from draftproof.kernels.types import CREST, Controls

GROUPS = 2048  # most groups of a row, each of which keeps its largest score, unless a group is as large as 64 tokens
TILE = 2048  # tokens whose residual is summed at a time, ...
CHUNK = 256  # ... in chunks whose sums are kept
PROCESSORS = 132  # multiprocessors of an H200; other GPUs differ by less than would matter
FINE_GROUP = 32  # tokens of a group where few tokens are kept, ...
BLOCKS = 256  # ... and the fewest blocks of such groups for which a row has blocks
CAPACITY = 8192  # candidates that are listed before a row is searched group by group
UNUSED_BITS = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}  # low bits of a float32 that a type never sets


class Tiling(NamedTuple):
    """How logits of one shape are divided among programs."""

    span: int  # tokens that a program measures, ...
    tile: int  # ... this many at a time
    group: int  # tokens whose largest score is kept together
    parts: int  # programs that share the residual of a row, ...
    ranks: int  # ... and rows of a sequence that have such programs: mostly one is wanted, sometimes all
    fuse_truncation: bool = False  # whether a row truncated to a few tokens is one span, truncated where it is read

    @staticmethod
    def of(batch: int, nodes: int, vocabulary: int) -> Tiling:
        """Programs grow with the root of the work: fewer have to start, and there are still enough for an even end."""
        root = math.sqrt(batch * nodes * vocabulary)
        group = min(max(32, next_power_of_2(cdiv(vocabulary, GROUPS))), 64)
        span = min(_power_of_2(9 * root, 1024, 16384), max(group, next_power_of_2(vocabulary)))
        parts = cdiv(vocabulary, _power_of_2(2.3 * root, TILE, 32768))
        ranks = nodes if batch * nodes <= PROCESSORS else min(2, nodes)
        fuse_truncation = 2 * PROCESSORS <= batch * nodes <= 6 * PROCESSORS
        return Tiling(span, min(span, 4096), group, parts, ranks, fuse_truncation)


def chunk_count(vocabulary: int) -> int:
    """How many chunks a row has."""
    return cdiv(vocabulary, TILE) * TILE // CHUNK


def list_capacity(vocabulary: int) -> int:
    """How many candidates of a row can be listed."""
    return min(CAPACITY, vocabulary)


def group_count(tiling: Tiling, vocabulary: int, group: int) -> int:
    """How many groups of `group` tokens a row has, counting whole tiles."""
    return cdiv(vocabulary, tiling.tile) * tiling.tile // group


def most_groups(tiling: Tiling, vocabulary: int) -> int:
    """How many groups a row has at most, whatever its controls are."""
    return group_count(tiling, vocabulary, min(tiling.group, FINE_GROUP))


def edits_scores(controls: Controls) -> bool:
    """Whether scores differ from the logits in more than being masked."""
    return controls.bias is not None or controls.penalties is not None


class TruncateOptions(NamedTuple):
    """How a program truncates a row: warps and registers, tokens that it reads and sorts at a time."""

    warps: int
    registers: int
    sweep: int
    few: int

    @staticmethod
    def of(rows: int, many: bool, fused: bool) -> TruncateOptions:
        """Several warps are the fastest for one row, one warp the cheapest. `many`: hundreds of tokens may be kept."""
        if many:
            return TruncateOptions(8 if rows <= PROCESSORS else 4, 128, 2048, 512)
        if fused or rows <= PROCESSORS:
            return TruncateOptions(4, 128, 2048, 128)
        return TruncateOptions(1, 168, 1024, 128)


class LaunchPlan(NamedTuple):
    """Which kernels a call launches, and with which constants."""

    batch: int
    nodes: int
    vocabulary: int
    tiling: Tiling
    truncates: bool  # whether any row is truncated, ...
    many: bool  # ... and one may keep more tokens than a shortlist
    greedy: bool  # whether any row is
    defer_last: bool  # the row after the last draft is not measured, but read where its residual is summed, if it is
    sums: bool  # residuals are summed over the vocabulary; else every row that is drawn from has a list
    uses_crest: bool  # block verification is bounded by the drafter's large tokens
    fuse_truncation: bool  # `measure` truncates the rows, too
    group: int  # tokens of a group, or of a lane where nothing is truncated
    block: int  # groups of a block
    groups: int  # groups of a row
    span: int  # tokens of a span
    unused_bits: int  # of a score, see UNUSED_BITS
    pdl: bool  # kernels start while the one before still runs

    @staticmethod
    def of(
        tiling: Tiling,
        logits: torch.Tensor,  # [B, N, V]
        controls: Controls,
        *,
        drafted: bool = False,  # whether there are drafts to verify
        draft_crest: bool = False,  # whether their rows have a crest
    ) -> LaunchPlan:
        """The plan for rows of logits."""
        batch, nodes, vocabulary = logits.shape
        sums = controls.whole or controls.truncates > 1
        shortlists = controls.truncates > 0 and not sums
        fuse_truncation = shortlists and tiling.fuse_truncation
        group, block, groups = _grouping(tiling, vocabulary, controls)
        return LaunchPlan(
            batch=batch,
            nodes=nodes,
            vocabulary=vocabulary,
            tiling=tiling,
            truncates=controls.truncates > 0,
            many=controls.truncates > 1,
            greedy=controls.greedy,
            # a law that keeps every token can be drawn from in the pass that makes it
            defer_last=drafted and not (controls.truncates or controls.greedy),
            sums=sums,
            uses_crest=draft_crest and not shortlists,
            fuse_truncation=fuse_truncation,
            group=group,
            block=block,
            groups=groups,
            span=max(tiling.tile, next_power_of_2(vocabulary)) if fuse_truncation else tiling.span,
            unused_bits=0 if edits_scores(controls) else UNUSED_BITS[logits.dtype],
            pdl=launching.may_overlap(logits.device),
        )

    @property
    def shortlists(self) -> bool:
        """Whether top-k leaves every row that is drawn from a list so short that one program goes through it."""
        return self.truncates and not self.sums

    @property
    def measured(self) -> int:
        """How many rows of a sequence are measured."""
        return self.nodes - self.defer_last

    @property
    def spans(self) -> int:
        """How many spans a row has."""
        return cdiv(self.vocabulary, self.span)

    @property
    def chunks(self) -> int:
        """How many chunks a row has."""
        return chunk_count(self.vocabulary)

    @property
    def crest_per_span(self) -> int:
        """How many large tokens a span contributes, a power of two, so that a row has CREST or fewer."""
        lanes = self.tiling.tile // self.group
        return int(min(2 ** int(math.log2(max(1, CREST // self.spans))), lanes))

    @property
    def truncation(self) -> TruncateOptions:
        """How rows are truncated."""
        return TruncateOptions.of(self.batch * self.nodes, self.many, self.fuse_truncation)

    @property
    def dense(self) -> bool:
        """Whether every row has an entry in the worklist."""
        return self.tiling.ranks == self.nodes

    @property
    def decide_warps(self) -> int:
        """Warps of a program that decides."""
        return 4 if self.uses_crest or self.batch * self.nodes <= PROCESSORS else 1


def _grouping(tiling: Tiling, vocabulary: int, controls: Controls) -> tuple[int, int, int]:
    """How many tokens make a group, how many groups a block, and how many groups a row; their largest scores are
    kept."""
    if not controls.truncates:
        return min(8, tiling.tile), 1, most_groups(tiling, vocabulary)
    few = controls.truncates < 2
    group = min(tiling.group, FINE_GROUP) if few else tiling.group
    groups = group_count(tiling, vocabulary, group)
    # blocks are listed for a while in the memory of the candidates, so all of them must fit there
    block = next((size for size in (8, 4) if few and size * BLOCKS <= groups <= size * CAPACITY), 1)
    return group, block, groups


def _power_of_2(number: float, least: int, most: int) -> int:
    """The power of two nearest to a number, within bounds."""
    return int(min(max(2 ** round(math.log2(number + 1)), least), most))
