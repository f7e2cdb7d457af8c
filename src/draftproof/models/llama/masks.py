"""Attention masks: what each token of a call may attend to, written out as a tensor or stated as a rule.

Kernels follow a rule without a mask in memory; other backends write it out with `visible`. A rule defines what is seen
from each slot; the call's placement gives the slots of its tokens.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch

from draftproof.models.llama.placement import NodeSlots, PackedSlots, Range, Slots

FULL, SLIDING = "full_attention", "sliding_attention"  # transformers' names for layers without and with a window
TREE_NODES = 64  # of a tree at most: one bit each in `Branching.ancestors`


class Causal(NamedTuple):
    """A token sees the slots up to its own; slot 0, the padding, is seen by tokens in slot 0 alone."""

    window: int | None = None  # slots that a token sees at most

    def visible(self, placement: Slots | Range) -> torch.Tensor:
        """[B, T, S]: which of the slots that are read each token sees."""
        own, slots = placement.slots[..., None], placement.read_slots
        seen = (slots <= own) & ((slots > 0) | (own == 0))
        return seen if self.window is None else seen & (own - slots < self.window)


class Branching(NamedTuple):
    """A node of a draft tree sees the text before the root, its ancestors and itself.

    Ancestors may be nodes of this call or of one before it; slot 0 is no part of a text.
    """

    depth: torch.Tensor  # [T] int64
    ancestors: torch.Tensor  # [T] int64: bit n says whether node n is the node itself or one of its ancestors
    window: int | None = None  # slots of a straight text that a node sees at most; more than the tree is deep

    def visible(self, placement: NodeSlots) -> torch.Tensor:
        """[B, T, S]: which of the slots that are read each node sees."""
        slots = placement.read_slots
        node = (slots - placement.root[:, None])[:, None]  # [B, 1, S]
        inside = (self.ancestors[:, None] >> node.clamp(0, TREE_NODES - 1)) & 1 > 0
        seen = (slots > 0) & ((node < 0) | ((node < TREE_NODES) & inside))
        straight = (placement.root[:, None] + self.depth)[..., None]  # a node's slot if its path were the text
        return seen if self.window is None else seen & (straight - slots < self.window)


class Packed(NamedTuple):
    """Prompts side by side in one row: a token in slot s of its own row sees itself and the s - 1 tokens before it."""

    window: int | None = None  # tokens that a token sees at most

    def visible(self, placement: PackedSlots) -> torch.Tensor:
        """[1, T, T]: which of the tokens each one sees."""
        place = torch.arange(len(placement.slots), device=placement.slots.device)
        apart = place[:, None] - place
        return ((apart >= 0) & (apart < placement.slots.clamp(1, self.window)[:, None]))[None]


RULES = (Causal, Branching, Packed)
Rule: TypeAlias = Causal | Branching | Packed
Mask: TypeAlias = torch.Tensor | Rule | None  # [B, 1, T, S] additive or boolean; a rule; None: every query sees all


def additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A boolean mask [B, T, S] as [B, 1, T, S]: zero where attention is allowed; every attention takes that."""
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return bias.masked_fill_(~mask, torch.finfo(dtype).min)[:, None]
