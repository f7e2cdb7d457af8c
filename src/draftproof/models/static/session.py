"""A transformers model whose text lengths live on the device: calls of a fixed shape that a CUDA graph can replay.

Token t of a text lives in slot t + 1 of the cache, and node n of a tree n slots after its root's. What lies beyond a
row's length is stale and masked until it is overwritten, so undoing a rejected draft costs nothing. Slot 0 takes a
token at position -1, which the first call of a drafter may have.

Every buffer and table is made in the constructor: nothing may come from the host while a graph is captured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from draftproof.models.hf import HFModel, cache_view
from draftproof.models.kv_cache import SlotCache
from draftproof.models.llama.backends.tables import compact, open_buffers, open_tables
from draftproof.models.llama.call import written_out
from draftproof.models.llama.masks import Causal, Packed, Rule
from draftproof.models.llama.network import FusedLlama
from draftproof.models.llama.placement import PackedSlots, Placement, Slots
from draftproof.models.static.tree_calls import NodeCall


class StaticSession:
    """B rows of up to `capacity` tokens."""

    def __init__(
        self, model: HFModel, rows: int, capacity: int, compiled: bool = False, taps: Sequence[int] = ()
    ) -> None:
        self.model = model
        self.taps = tuple(taps)  # hidden states that a drafter reads
        self.capacity = capacity
        self.cache = SlotCache(model.layers, rows, capacity)
        self.cache.make_features(len(self.taps) * model.width, model.network)
        self.device = model.network.device
        self.compiled = compiled
        # dynamic=False: a call has one of two shapes, and each deserves code of its own
        self._fast = torch.compile(model.network.forward, dynamic=False) if compiled else model.network
        self.tables = None
        if isinstance(model.network, FusedLlama):
            shape, like = model.network.blocks.shape, model.network.embed.weight
            self.cache.allocate(shape.shared, shape.size, like)
            self.tables = open_tables(model.network.blocks, self.cache)
        else:
            token = torch.zeros(1, dtype=torch.int64, device=self.device)
            self.prefill(token, token, token)  # transformers' layers say what they cache when they first do
            for buffer in self.cache.buffers:
                buffer.zero_()
        self.buffers = open_buffers(self.cache.buffers)

    @torch.no_grad()
    def prefill(self, ids: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor) -> None:
        """Read whole texts that stand side by side (see `packs`), [T] each."""
        masks = {kind: Packed(window) for kind, window in self.model.windows.items()}
        self._call(self.model.network, ids[None], positions[None], masks, PackedSlots(rows, positions + 1), 1)

    def copy(self, sources: torch.Tensor, targets: torch.Tensor, length: int) -> None:
        """Make the first `length` tokens of some rows [n] the same as those of others [n]."""
        self.cache.copy(sources, targets, length + 1)

    def start(self, text: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        """As a drafter: logits [B, V] after the token at position base [B]; text [B, S] holds token t in slot t + 1."""
        # the token before it is read again: after a fully accepted draft the drafter has not seen it
        ids = torch.cat([text.gather(1, base[:, None]), text.gather(1, base[:, None] + 1)], dim=1)
        return self.forward(ids, base - 1, keep=1)[:, 0]

    def go_on(self, token: torch.Tensor, base: torch.Tensor, count: int) -> torch.Tensor:
        """Logits [B, V] after `count` draft tokens, of which token [B] is the last."""
        return self.forward(token[:, None], base + count, keep=1)[:, 0]

    @torch.no_grad()
    def branch(self, tokens: torch.Tensor, base: torch.Tensor, nodes: NodeCall) -> torch.Tensor:
        """Logits [B, T, V] after some nodes of a tree of tokens [B, N]; node 0 stands at position base [B]."""
        masks = {kind: nodes.mask(window) for kind, window in self.model.windows.items()}
        # what follows a node that was not drawn is never looked at, but must be valid input
        ids = tokens.index_select(1, nodes.number).clamp_min(0)
        placement = nodes.placement(base + 1, self.capacity + 1)
        return self._call(self._fast, ids, base[:, None] + nodes.depth, masks, placement, len(nodes.nodes))

    @torch.no_grad()
    def forward(self, ids: torch.Tensor, base: torch.Tensor, keep: int) -> torch.Tensor:
        """Logits [B, keep, V] after the last tokens of ids [B, T], the first of which stands at position base [B]."""
        positions = base[:, None] + torch.arange(ids.shape[1], device=self.device)
        masks = {kind: Causal(window) for kind, window in self.model.windows.items()}
        return self._call(self._fast, ids, positions, masks, Slots(positions + 1, self.capacity + 1), keep)

    def follow(self, base: torch.Tensor, path: torch.Tensor, count: torch.Tensor) -> None:
        """Make the first count [B] nodes of each path [B, D] the text after the token at position base [B]."""
        if self.buffers is not None:
            compact(self.buffers, base + 1, path, count)
        else:
            self.cache.compact(base + 1, path, count)

    def _call(
        self,
        run: Any,
        ids: torch.Tensor,
        positions: torch.Tensor,
        masks: Mapping[str, Rule],
        placement: Placement,
        keep: int,
    ) -> torch.Tensor:
        given: Mapping[str, Any] = masks
        view: Any = self.cache.at(placement, self.tables)
        if not isinstance(run, FusedLlama):  # compiled, or not rebuilt: it knows tensors only
            given, placement = written_out(masks, placement, self.model.network.dtype)
            view = cache_view(self.model.network, self.cache, placement)
        output = run(
            input_ids=ids,
            position_ids=positions.clamp(0, self.model.last),  # guesses may reach beyond the context, and are dropped
            attention_mask=given if len(given) > 1 else next(iter(given.values())),
            past_key_values=view,
            use_cache=True,
            **({"logits_to_keep": keep} if self.model.trims_logits else {}),
            **({"output_hidden_states": self.taps if isinstance(run, FusedLlama) else True} if self.taps else {}),
        )
        if self.taps:
            self.cache.keep(torch.cat([output.hidden_states[tap] for tap in self.taps], dim=-1), placement)
        logits: torch.Tensor = output.logits
        return logits[:, -keep:]
