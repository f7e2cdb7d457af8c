"""Any causal language model of transformers as a Session: one call computes a whole draft tree.

A call takes the committed tokens that are not in the KV cache yet (the prompt at first) and the nodes of a tree. Every
node attends to the text and to its own ancestors, at the position of its depth, so its logits are those of running its
path alone.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from functools import cached_property, lru_cache
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch

from draftproof.draft import Tree
from draftproof.errors import DraftproofError
from draftproof.law import Array
from draftproof.models import architecture
from draftproof.models.base import ModelFacts, Session
from draftproof.models.kv_cache import SlotCache
from draftproof.models.llama.backends import triton_ops
from draftproof.models.llama.backends.tables import KernelTables, open_tables
from draftproof.models.llama.masks import Causal, Mask, additive
from draftproof.models.llama.network import FusedLlama
from draftproof.models.llama.placement import Placement, Slots, placed
from draftproof.models.plain import PlainSession
from draftproof.sampling import Sampling

# sampling controls of generation_config.json, which have the same names and meanings here
CONFIGURED = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "repetition_penalty",
)

NARROW = 8  # tokens that take as long on a CPU as what a call costs in any case: reading the weights


class HFModel:
    """A transformers model with its tokenizer, ready for sessions."""

    def __init__(self, network: Any, tokenizer: Any = None, name: str | None = None) -> None:
        self.network = network.eval()
        if not isinstance(network, FusedLlama):  # one that was rebuilt has been checked
            architecture.check_decoder(network)
        self.tokenizer = tokenizer
        config = network.config.get_text_config()
        self.name = name or config._name_or_path or config.model_type
        self.vocabulary = int(config.vocab_size)
        self.context: int | None = getattr(config, "max_position_embeddings", None)
        # positions are clamped to this one: a drafter whose text outgrows it drafts worse, but stays in its table
        self.last = (self.context or sys.maxsize) - 1
        self.end_tokens = _end_tokens(network, tokenizer)
        self.obstacle = architecture.obstacle(network)  # why drafts do not fit; empty where they do
        self.windows = architecture.attention_windows(network)
        self.layers = int(config.num_hidden_layers)
        self.width = int(config.hidden_size)
        self.heads: dict[str, Any] = {}  # drafters that read its hidden states, by name: each is loaded once
        self.kept: dict[str, Any] = {}  # what an engine keeps for the next text; freed with the model
        self.trims_logits = "logits_to_keep" in inspect.signature(network.forward).parameters

    @property
    def facts(self) -> ModelFacts:
        """Size and speed facts, computed from the config because packed weights cannot be counted."""
        config, device = self.network.config.get_text_config(), str(self.network.device.type)
        width, heads = config.hidden_size, getattr(config, "num_attention_heads", None) or 1
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        size, shared = getattr(config, "head_dim", None) or width // heads, width * kv_heads // heads
        inner = getattr(config, "intermediate_size", None) or 4 * width
        weights = config.num_hidden_layers * width * (2 * width + 2 * shared + 3 * inner) + config.vocab_size * width
        fused = isinstance(self.network, FusedLlama)
        cost = 0.01 if device == "cuda" else 0.05 if fused else 0.1
        cached = 2 * config.num_hidden_layers * kv_heads * size * self.network.dtype.itemsize
        return ModelFacts(int(weights), True, device, cost, int(cached), self.obstacle)

    @cached_property
    def default_sampling(self) -> Sampling:
        """The sampling controls that generation_config.json sets.

        Its `do_sample` is no control: a text is drawn from the model's law unless a temperature of 0 is asked for.
        """
        config = getattr(self.network, "generation_config", None)
        stated = stated_values(config)
        try:
            return Sampling(**{name: stated[name] for name in CONFIGURED if stated.get(name) is not None})
        except DraftproofError as error:
            raise DraftproofError(
                f"generation_config.json of {self.name!r} cannot be used ({error}): correct it, or leave it out with "
                "--no-generation-config or sampling=Sampling()"
            ) from error

    def session(self, rows: int, capacity: int, taps: Sequence[int] = ()) -> Session:
        """`taps`: hidden states to keep for a drafter that reads them, as transformers numbers them."""
        obstacle, longest = self.obstacle, architecture.longest_draftable(self.network)
        if longest is not None and capacity > longest:
            obstacle = (
                f"{self.name} scales its attention in texts of more than {longest} tokens, where drafts do not fit"
            )
        return PlainSession(self, rows, obstacle) if obstacle else HFSession(self, rows, capacity, taps)

    @property
    def has_fixed_masks(self) -> bool:
        """Whether its masks are those that a captured call can make: all that is cached, or a sliding window of it."""
        return not self.obstacle and "chunked_attention" not in self.windows


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
        self.tables: KernelTables | None = None  # where kernels do calls of few tokens
        if isinstance(model.network, FusedLlama) and model.network.device.type == "cuda":
            blocks, like = model.network.blocks, model.network.embed.weight
            self.cache.allocate(blocks.shape.shared, blocks.shape.size, like)
            self.tables = open_tables(blocks, self.cache)

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
        self._read_apart(rows)
        if any(self.pending[:rows]):
            self.extend(Tree.chain(0), np.zeros((rows, 1), dtype=np.int64), range(0))

    def prefill(self, row: int, count: int) -> bool:
        """Prefill up to `count` pending tokens of one row, in a call of its own."""
        late, start = self.pending[row][:count], int(self.length[row])
        if late:
            if not self.cache.is_allocated:
                self._call(np.zeros((1, 1), np.int64), *self._straight(-1, 0), self.cache, 1)  # padding, into slot 0
            self._call(np.array([late]), *self._straight(start, start + len(late)), self.cache.alone(row), 1)
            self.length[row] += len(late)
            self.pending[row] = self.pending[row][count:]
        return not self.pending[row]

    def _read_apart(self, rows: int) -> None:
        """Prefill prompts in calls of their own, where one call for all rows would compute more padding than that.

        On a GPU a call is short whatever is in it, and layers in C leave padding out: there, one call is faster.
        """
        network, unread = self.model.network, [len(late) for late in self.pending[:rows]]
        in_c = isinstance(network, FusedLlama) and network.blocks.stack is not None
        apart = sum(count + NARROW for count in unread if count)
        if network.device.type == "cpu" and not in_c and rows * max(unread) > apart:
            for row, count in enumerate(unread):
                self.prefill(row, count)

    def _straight(self, start: int, stop: int) -> tuple[Any, Any, dict[str, Mask]]:
        """Positions and slots [1, T] and masks of tokens `start` to `stop` of one row; token -1 is padding."""
        network, windows = self.model.network, self.model.windows.items()
        tokens = np.arange(start, stop)
        masks: dict[str, Mask] = {kind: Causal(window) for kind, window in windows}
        if not self._follows_rules:
            seen = np.arange(-1, stop)  # slot 0 holds no token of the text
            visible = (seen <= tokens[:, None]) & ((seen >= 0) | (tokens[:, None] < 0))
            for kind, window in windows:
                near = in_reach(kind, window, tokens[:, None], seen)
                masks[kind] = additive(torch.as_tensor(visible & near, device=network.device)[None], network.dtype)
        return np.maximum(tokens, 0)[None], tokens[None] + 1, masks

    @property
    def _follows_rules(self) -> bool:
        """Whether these are fused layers on a CPU: they need no causal mask written out, and skip padding."""
        return isinstance(self.model.network, FusedLlama) and self.model.network.device.type == "cpu"

    def _fits_kernels(self, slots: np.ndarray) -> bool:
        """Whether kernels can do a call of chains in these slots [B, T]: few tokens, without padding between them."""
        network = self.model.network
        if self.tables is None or not triton_ops.takes(network.blocks, slots.shape[1], network.dtype):
            return False
        return bool((np.diff(slots, axis=1) == 1).all())

    def extend(self, tree: Tree, tokens: Array, nodes: range) -> Array:
        if nodes.start == 0:
            self._read_apart(len(tokens))
        ids, positions, slots = self._layout(tree, np.asarray(tokens), nodes)
        masks = self._masks(tree, nodes, positions, slots)
        logits = self._call(ids, positions, slots, masks, self.cache, max(len(nodes), 1))
        if nodes.start == 0:
            for b in range(len(tokens)):
                self.length[b] += len(self.pending[b])
                self.pending[b] = []
        self.extended = nodes.stop
        return logits

    @torch.no_grad()
    def _call(self, ids: Any, positions: Any, slots: Any, masks: dict[str, Mask], cache: SlotCache, keep: int) -> Array:
        """Run the network; returns the logits [B, keep, V] of the last tokens."""
        network = self.model.network
        device = network.device
        last = int(slots.max())
        if last > self.capacity:
            raise DraftproofError(f"the text outgrew this session's {self.capacity} tokens: ask for a larger capacity")
        cache.writes(slots.max(axis=1))
        tables = self.tables if all(isinstance(mask, Causal) for mask in masks.values()) else None
        placement: Placement
        if tables is None:
            placement = placed(slots, device, padded=self._follows_rules)
        else:  # kernels read the slot of each token
            placement = Slots(torch.as_tensor(slots, device=device), last + 1)
        extra: dict[str, Any] = {"logits_to_keep": keep} if self.model.trims_logits else {}
        if self.taps:
            extra["output_hidden_states"] = self.taps if isinstance(network, FusedLlama) else True
        output = network(
            input_ids=torch.as_tensor(ids, device=device),
            position_ids=torch.as_tensor(np.minimum(positions, self.model.last), device=device),
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            past_key_values=cache_view(network, cache, placement, tables),
            use_cache=True,
            **extra,
        )
        if self.taps:
            cache.keep(torch.cat([output.hidden_states[tap] for tap in self.taps], dim=-1), placement)
        return output.logits[:, -keep:]

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
            slots[b, lead:] = np.where(drawn | (rows == 1), base[b] + 1 + np.arange(nodes.start, nodes.stop), 0)
        return ids, positions, slots

    def _masks(self, tree: Tree, nodes: range, positions: np.ndarray, slots: np.ndarray) -> dict[str, Mask]:
        """What every token of the next call sees, for each kind of attention: a rule, or a mask [B, 1, T, S]."""
        network, windows = self.model.network, self.model.windows
        if tree.is_chain and (self._follows_rules or self._fits_kernels(slots)):
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
            end = min(first + nodes.stop, slots.max() + 1)  # the last nodes may be drawn in no row
            visible[b, lead:, first:end] = above[:, : end - first]
            visible[b, :, end:] = False
            place[b, first:end] = base[b] + depth[: end - first]
        masks: dict[str, Mask] = {}
        for kind, window in windows.items():
            near = in_reach(kind, window, positions[:, :, None], place[:, None])
            masks[kind] = additive(torch.as_tensor(visible & near, device=network.device), network.dtype)
        return masks


def in_reach(kind: str, window: int | None, seer: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Whether a token at position `seer` may see one at `seen` before it, in layers of this kind of attention."""
    if window is None:
        return np.array(True)
    near = seen // window == seer // window if kind == "chunked_attention" else seer - seen < window
    return np.asarray(near)


def stated_values(generation_config: Any) -> dict[str, Any]:
    """What a generation_config.json says, without what transformers fills in by itself."""
    if generation_config is None or isinstance(generation_config, SimpleNamespace):  # read without transformers
        return {} if generation_config is None else vars(generation_config)
    return dict(generation_config.to_diff_dict())


def cache_view(network: Any, cache: SlotCache, placement: Placement, tables: KernelTables | None = None) -> Any:
    """The cache as one call of a network is given it."""
    if isinstance(network, FusedLlama):
        return cache.at(placement, tables)
    from draftproof.models.transformers_cache import TransformersCache  # importing transformers takes two seconds

    return TransformersCache(cache, placement)


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
