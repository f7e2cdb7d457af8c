"""A transformers model whose text lengths live on the device: calls of a fixed shape that a CUDA graph can replay.

Token t of a text lives in slot t + 1 of the cache, and node n of a tree n slots after its root's. What lies beyond a
row's length is stale and hidden by the mask until it is overwritten, so undoing a rejected draft costs nothing at all.
Slot 0 takes a token at position -1, which the first call of a drafter may have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from draftproof.models.hf import HFModel, additive
from draftproof.models.kv_cache import SlotCache
from draftproof.models.llama import cuda
from draftproof.models.llama.rebuild import Lean
from draftproof.models.static.packing import Texts
from draftproof.models.static.tree_calls import Nodes


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

    @torch.no_grad()
    def prefill(self, ids: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor) -> None:
        """Read whole texts that stand side by side (see `packs`), [T] each."""
        own, network, windows = positions[None] + 1, self.model.network, self.model.windows
        self.cache.place_texts(rows, own[0])
        masks: dict[str, Any] = {kind: Texts(own, rows, window) for kind, window in windows.items()}
        if not (isinstance(network, Lean) and cuda.fits(network.blocks, 1)):
            masks = {kind: additive(texts.among(), network.dtype) for kind, texts in masks.items()}
        self._call(network, ids[None], positions[None], masks, 1)

    def copy(self, sources: torch.Tensor, targets: torch.Tensor, length: int) -> None:
        """Make the first `length` tokens of some rows [n] the same as those of others [n]."""
        self.cache.copy(sources, targets, length + 1)

    def start(self, text: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        """As a drafter: logits [B, V] after the token at position base [B]; text [B, S] holds token t in slot t + 1."""
        # the token before it is read again: after a fully accepted draft the drafter has not seen it
        ids = torch.cat([text.gather(1, base[:, None]), text.gather(1, base[:, None] + 1)], dim=1)
        return self.forward(ids, base - 1, keep=1)[:, 0]

    def go_on(self, token: torch.Tensor, base: torch.Tensor, count: int) -> torch.Tensor:
        """Logits [B, V] after `count` guesses, of which token [B] is the last."""
        return self.forward(token[:, None], base + count, keep=1)[:, 0]

    def branch(self, tokens: torch.Tensor, base: torch.Tensor, nodes: Nodes) -> torch.Tensor:
        """Logits [B, T, V] after some nodes of a tree of tokens [B, N]; node 0 stands at position base [B]."""
        root, windows = base + 1, self.model.windows
        rules = {kind: nodes.rule(root, window) for kind, window in windows.items()}
        # what follows a guess that was not drawn is never looked at, but must be valid input
        ids = tokens.index_select(1, nodes.number).clamp_min(0)
        return self._look(ids, base[:, None] + nodes.depth, rules, len(nodes.names))

    def follow(self, base: torch.Tensor, path: torch.Tensor, count: torch.Tensor) -> None:
        """Make the first count [B] nodes of each path [B, D] the text after the token at position base [B]."""
        self.cache.follow(base + 1, path, count)

    def forward(self, ids: torch.Tensor, base: torch.Tensor, keep: int) -> torch.Tensor:
        """Logits [B, keep, V] after the last tokens of ids [B, T], the first of which stands at position base [B]."""
        positions = base[:, None] + torch.arange(ids.shape[1], device=self.device)
        rules = {kind: cuda.Causal(positions + 1, window) for kind, window in self.model.windows.items()}
        return self._look(ids, positions, rules, keep)

    @torch.no_grad()
    def _look(
        self, ids: torch.Tensor, positions: torch.Tensor, rules: Mapping[str, cuda.Rule], keep: int
    ) -> torch.Tensor:
        network, masks = self.model.network, dict[str, Any](rules)
        self.cache.place_on_device(next(iter(rules.values())).own)
        if self.compiled or not (isinstance(network, Lean) and cuda.fits(network.blocks, ids.shape[1])):
            slots = torch.arange(self.capacity + 1, device=self.device)
            masks = {kind: additive(rule.over(slots), network.dtype) for kind, rule in rules.items()}
        return self._call(self._fast, ids, positions, masks, keep)

    def _call(
        self, run: Any, ids: torch.Tensor, positions: torch.Tensor, masks: dict[str, Any], keep: int
    ) -> torch.Tensor:
        said = run(
            input_ids=ids,
            position_ids=positions.clamp(0, self.model.last),  # guesses may reach beyond the context, and are dropped
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            past_key_values=self.cache,
            use_cache=True,
            **({"logits_to_keep": keep} if self.model.trims_logits else {}),
            **({"output_hidden_states": True} if self.taps else {}),
        )
        if self.taps:
            self.cache.keep(torch.cat([said.hidden_states[tap] for tap in self.taps], dim=-1))
        logits: torch.Tensor = said.logits
        return logits[:, -keep:]
