"""Any causal language model of transformers as a Session: one call computes a whole draft tree.

A call takes the committed tokens that are not in the KV cache yet (the prompt at first) and the nodes of a tree. Every
node attends to the text and to its own ancestors, at the position of its depth, so its logits are those of running its
path alone.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from draftproof.draft import Tree
from draftproof.errors import DraftproofError
from draftproof.law import Array
from draftproof.models.base import ModelFacts
from draftproof.models.kv_cache import SlotCache
from draftproof.models.llama.masks import Causal, Mask, additive
from draftproof.models.llama.placement import placed
from draftproof.models.llama.rebuild import FusedLlama
from draftproof.models.windows import attention_windows


class HFModel:
    """A transformers model with its tokenizer, ready for sessions."""

    def __init__(self, network: Any, tokenizer: Any = None, name: str | None = None) -> None:
        self.network = network.eval()
        self.tokenizer = tokenizer
        config = network.config.get_text_config()
        self.name = name or config._name_or_path or config.model_type
        self.vocabulary = int(config.vocab_size)
        self.context: int | None = getattr(config, "max_position_embeddings", None)
        # positions are clamped to this one: a drafter whose text outgrows it drafts worse, but stays in its table
        self.last = (self.context or sys.maxsize) - 1
        self.end_tokens = _end_tokens(network, tokenizer)
        self.windows = attention_windows(network)
        self.layers = int(config.num_hidden_layers)
        self.width = int(config.hidden_size)
        self.heads: dict[str, Any] = {}  # drafters that read its hidden states, by name: each is loaded once
        self.kept: dict[str, Any] = {}  # what an engine keeps for the next text; freed with the model
        self.trims_logits = "logits_to_keep" in inspect.signature(network.forward).parameters

    @property
    def facts(self) -> ModelFacts:
        """Size and speed facts, computed from the config because packed weights cannot be counted."""
        config, device = self.network.config.get_text_config(), str(self.network.device.type)
        width, heads = config.hidden_size, config.num_attention_heads
        shared = width * (getattr(config, "num_key_value_heads", None) or heads) // heads
        inner = getattr(config, "intermediate_size", None) or 4 * width
        weights = config.num_hidden_layers * width * (2 * width + 2 * shared + 3 * inner) + config.vocab_size * width
        fused = not isinstance(self.network, PreTrainedModel)  # rebuilt from our own layers
        return ModelFacts(int(weights), True, device, 0.01 if device == "cuda" else 0.05 if fused else 0.1)

    def session(self, rows: int, capacity: int, taps: Sequence[int] = ()) -> HFSession:
        """`taps`: hidden states to keep for a drafter that reads them, as transformers numbers them."""
        return HFSession(self, rows, capacity, taps)


class HFSession:
    """B texts in one cache. Row b has `length[b]` cached tokens, and `pending[b]` are committed but not cached yet."""

    speaks: Literal["logits", "law"] = "logits"

    def __init__(self, model: HFModel, rows: int, capacity: int, taps: Sequence[int] = ()) -> None:
        self.model = model
        self.capacity = capacity
        self.taps = tuple(taps)
        self.cache = SlotCache(model.layers, rows, capacity)
        self.cache.make_features(len(self.taps) * model.width, model.network)
        self.length = np.zeros(rows, dtype=np.int64)
        self.pending: list[list[int]] = [[] for _ in range(rows)]
        self.extended = 0  # nodes of the current tree that are in the cache

    def join(self, row: int, tokens: Sequence[int]) -> None:
        self.rejoin(row, tokens, kept=0)

    def rejoin(self, row: int, tokens: Sequence[int], kept: int) -> None:
        """Join again between two steps, with a text whose first `kept` tokens the row already has."""
        self.length[row] = min(int(self.length[row]), kept, len(tokens) - 1)
        self.pending[row] = list(tokens[self.length[row] : -1])
        if not self.length[row]:  # another text
            self.cache.take(row)

    def copy(self, source: int, target: int) -> None:
        self.length[target] = self.length[source]
        self.pending[target] = list(self.pending[source])
        filled = int(self.length[source]) + 1 + self.extended
        self.cache.copy(source, target, filled)
        self.cache.take(target, filled)

    def forget(self) -> None:
        self.extended = 0

    def read(self, rows: int) -> None:
        """Prefill what is pending in the first rows now: a head reads these hidden states next."""
        if any(self.pending[:rows]):
            self.extend(Tree.chain(0), np.zeros((rows, 1), dtype=np.int64), range(0))

    @torch.no_grad()
    def extend(self, tree: Tree, tokens: Array, nodes: range) -> Array:
        network = self.model.network
        device = network.device
        ids, positions, slots = self._layout(tree, np.asarray(tokens), nodes)
        if int(slots.max()) > self.capacity:
            raise DraftproofError(f"the text outgrew this session's {self.capacity} tokens: ask for a larger capacity")
        placement = placed(slots, device)
        masks = self._masks(tree, nodes, positions, slots)
        extra: dict[str, Any] = {"logits_to_keep": max(len(nodes), 1)} if self.model.trims_logits else {}
        if self.taps:
            extra["output_hidden_states"] = True
        output = network(
            input_ids=torch.as_tensor(ids, device=device),
            position_ids=torch.as_tensor(np.minimum(positions, self.model.last), device=device),
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            past_key_values=self.cache.at(placement),
            use_cache=True,
            **extra,
        )
        if self.taps:
            self.cache.keep(torch.cat([output.hidden_states[tap] for tap in self.taps], dim=-1), placement)
        if nodes.start == 0:
            for b in range(len(ids)):
                self.length[b] += len(self.pending[b])
                self.pending[b] = []
        self.extended = nodes.stop
        return output.logits[:, -max(len(nodes), 1) :]

    def commit(self, tree: Tree, tokens: Array, node: Sequence[int], token: Sequence[int]) -> None:
        for b, last in enumerate(node):
            kept = (0, *tree.path(int(last)))
            cached = [n for n in kept if n < self.extended]
            base = int(self.length[b])
            moved = [(n, i) for i, n in enumerate(cached) if n != i]
            if moved:
                self.cache.move(b, [base + 1 + n for n, _ in moved], [base + 1 + i for _, i in moved])
            self.length[b] += len(cached)
            self.pending[b] += [int(tokens[b][n]) for n in kept[len(cached) :]]
        self.extended = 0

    def _layout(self, tree: Tree, tokens: np.ndarray, nodes: range) -> tuple[Any, Any, Any]:
        """Ids, positions and slots [B, T] for the next call.

        Columns are padding, then pending tokens, then nodes, so the nodes of all rows are in the last columns.
        """
        rows = len(tokens)
        pending = self.pending[:rows] if nodes.start == 0 else [[]] * rows
        lead = max(map(len, pending))
        width = lead + len(nodes)
        depth = np.array(tree.depth)
        ids = np.zeros((rows, width), dtype=np.int64)
        positions = np.zeros((rows, width), dtype=np.int64)
        slots = np.zeros((rows, width), dtype=np.int64)
        base = self.length[:rows] + [len(late) for late in pending]  # tokens before node 0
        for b, late in enumerate(pending):
            start = lead - len(late)
            ids[b, start:lead] = late
            positions[b, start:lead] = slots[b, start:lead] = np.arange(self.length[b], base[b])
            drawn = tokens[b, nodes.start : nodes.stop] >= 0  # others are never looked at, but must be valid input
            ids[b, lead:] = np.where(drawn, tokens[b, nodes.start : nodes.stop], 0)
            positions[b, lead:] = base[b] + np.where(drawn, depth[nodes.start : nodes.stop], 0)
            slots[b, start:] += 1  # slot 0 is for padding
            slots[b, lead:] = base[b] + 1 + np.arange(nodes.start, nodes.stop)
        return ids, positions, slots

    def _masks(self, tree: Tree, nodes: range, positions: np.ndarray, slots: np.ndarray) -> dict[str, Mask]:
        """What every token of the next call sees, for each kind of attention: a rule, or a mask [B, 1, T, S]."""
        network, windows = self.model.network, self.model.windows
        if tree.is_chain and isinstance(network, FusedLlama) and network.device.type == "cpu":
            return {kind: Causal(window) for kind, window in windows.items()}
        (rows, width), depth = slots.shape, np.array(tree.depth)
        lead = width - len(nodes)
        visible = np.arange(slots.max() + 1) <= np.where(slots > 0, slots, 0)[:, :, None]  # [B, T, S]
        visible[:, :, 0] = slots == 0  # padding sees padding, nothing else does
        above = ancestry(tree)[nodes.start : nodes.stop, : nodes.stop]
        place = np.maximum(np.arange(slots.max() + 1) - 1, 0)[None].repeat(rows, 0)  # position of each slot
        base = self.length[:rows] + [0 if nodes.start else len(late) for late in self.pending[:rows]]
        for b in range(rows):
            first = base[b] + 1
            visible[b, lead:, first : first + nodes.stop] = above
            visible[b, :, first + nodes.stop :] = False
            place[b, first : first + nodes.stop] = base[b] + depth[: nodes.stop]
        masks: dict[str, Mask] = {}
        for kind, window in windows.items():
            near = True if window is None else positions[:, :, None] - place[:, None] < window
            masks[kind] = additive(torch.as_tensor(visible & near, device=network.device), network.dtype)
        return masks


@lru_cache(maxsize=64)
def ancestry(tree: Tree) -> np.ndarray:
    """[N, N]: whether the second node is the first or one of its ancestors."""
    table = np.eye(tree.size, dtype=bool)
    for node in range(1, tree.size):
        table[node] |= table[tree.parent[node]]
    return table


def _end_tokens(network: Any, tokenizer: Any) -> tuple[int, ...]:
    """Ids that end a text, from the generation settings, else from the tokenizer."""
    ends = getattr(getattr(network, "generation_config", None), "eos_token_id", None)
    if ends is None:
        ends = getattr(tokenizer, "eos_token_id", None)
    if ends is None:
        return ()
    size = network.config.get_text_config().vocab_size
    return tuple(end for end in (ends if isinstance(ends, list | tuple) else [ends]) if end < size)
