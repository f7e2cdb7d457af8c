"""The trained head in calls of fixed shape, beside its target's StaticSession: a drafter that a CUDA graph replays.

How many draft tokens were accepted is known on the device alone, so every step computes as many entries anew as may
have been; those that were there before get the same values again.
"""

from __future__ import annotations

import torch

from draftproof.models.drafters.head import HeadModel
from draftproof.models.kv_cache import SlotCache
from draftproof.models.llama.backends import triton_ops
from draftproof.models.llama.backends.tables import open_tables
from draftproof.models.llama.call import LayerCall
from draftproof.models.llama.masks import FULL, Causal, Packed, Rule
from draftproof.models.llama.placement import PackedSlots, Placement, Slots
from draftproof.models.static.session import StaticSession
from draftproof.models.static.tree_calls import NodeCall


class StaticHead:
    """B rows that draft `length` tokens ahead, or that draft a tree with `inner` nodes that have children."""

    def __init__(
        self, model: HeadModel, target: StaticSession, length: int, compiled: bool = False, inner: int = 0
    ) -> None:
        self.model, self.target = model, target
        self.device, rows = target.device, target.cache.rows
        layers = model.network.config.layers
        self.cache = SlotCache(layers, rows, target.capacity)
        shape, dtype = model.network.config.shape, target.model.network.dtype
        self.cache.allocate(shape.shared, shape.size, torch.empty(0, dtype=dtype, device=self.device))
        # entries of the target's states run all layers, those of draft tokens the last one alone
        self.tables = open_tables(model.network.blocks, self.cache, (0, layers - 1))
        self.rows = torch.arange(rows, device=self.device)[:, None]
        self.recent = torch.arange(
            -length - 1, 0, device=self.device
        )  # entries whose tokens the last step may have committed
        # minus infinity stays where nothing can be drafted
        room = (rows, max(length, inner), model.vocabulary)
        self.logits = torch.full(room, -torch.inf, dtype=dtype, device=self.device)
        self.states = torch.empty(0)  # [B, T, width] the head's own, after the draft tokens of the last call
        self.last = torch.empty(0)  # [B, 1] entry of the last committed token
        # dynamic=False: a call has one of two shapes, and each deserves code of its own
        self._fast = torch.compile(self._entries, dynamic=False) if compiled else self._entries
        self.compiled = compiled

    @torch.no_grad()
    def prefill(self, ids: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor) -> None:
        """Entries of texts that the target has read (see `packs`): of each token [T] and the state before it."""
        features = self._features()[rows, positions]
        call = self._layer_call(positions[None] - 1, Packed(), PackedSlots(rows, positions))
        self._entries(features[None], ids[None], call, True)

    def copy(self, sources: torch.Tensor, targets: torch.Tensor, length: int) -> None:
        """Make the entries of the first `length` tokens of some rows [n] the same as those of others [n]."""
        self.cache.copy(sources, targets, length + 1)

    @torch.no_grad()
    def start(self, text: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        """Logits [B, V] after the token at position base [B]; text [B, S] holds token t in slot t + 1."""
        entries = (base[:, None] + self.recent).clamp_min(-1)  # before the text there is entry -1, as often as needed
        slots = entries + 1
        features = self._features()[self.rows, slots]  # slot 0 is never written: zeros
        call = self._layer_call(entries, Causal(), self._slots(slots))
        states = self._run(features, text.gather(1, entries + 2), call, True)
        self.states, self.last = states[:, -1:], entries[:, -1:]
        return self._logits(0)[:, 0]

    @torch.no_grad()
    def go_on(self, token: torch.Tensor, base: torch.Tensor, count: int) -> torch.Tensor:
        """Logits [B, V] after `count` draft tokens, of which token [B] is the last."""
        entries = self.last + count
        call = self._layer_call(entries, Causal(), self._slots(entries + 1))
        self.states = self._run(self.states, token[:, None], call, False)
        return self._logits(count)[:, 0]

    @torch.no_grad()
    def branch(self, tokens: torch.Tensor, base: torch.Tensor, nodes: NodeCall) -> torch.Tensor:
        """Logits [B, T, V] after nodes of a tree of tokens [B, N], whose parents were those of the call before."""
        # the entry of node 0 is that of the token before it
        placement = nodes.placement(base, self.cache.capacity + 1)
        call = self._layer_call(self.last + nodes.depth, nodes.mask(), placement)
        self.states = self._run(self.states, tokens, call, False, nodes)
        return self._logits(nodes.first)

    def follow(self, base: torch.Tensor, path: torch.Tensor, count: torch.Tensor) -> None:
        """Nothing: entries of draft tokens are computed anew once the target has read them."""

    def _slots(self, slots: torch.Tensor) -> Slots:
        return Slots(slots, self.cache.capacity + 1)

    def _layer_call(self, entries: torch.Tensor, mask: Rule, placement: Placement) -> LayerCall:
        """The call of entries [B, T], which are also their positions."""
        rotation = self.model.network.rotary.at(entries)
        return LayerCall(rotation, {FULL: mask}, placement, self.cache.layers, self.tables)

    def _run(
        self, states: torch.Tensor, ids: torch.Tensor, call: LayerCall, known: bool, nodes: NodeCall | None = None
    ) -> torch.Tensor:
        """As `_entries`, compiled if it is to be: then torch does the call."""
        if self.compiled:
            call = call.written_out(self.logits.dtype)._replace(tables=None)
        return self._fast(states, ids, call, known, nodes)

    def _entries(
        self, states: torch.Tensor, ids: torch.Tensor, call: LayerCall, known: bool, nodes: NodeCall | None = None
    ) -> torch.Tensor:
        """Own states [B, T, width] after tokens [B, T]; those before them are own ones or, if known, the target's.

        nodes     of a tree: tokens are all of its, and states those of the call before
        """
        network = self.model.network
        if known:
            states = network.fuse(states)
        if call.tables is not None:
            norms = network.norm_state, network.norm_embedding
            inputs = triton_ops.head_inputs(states, ids, self.model.embed.weight, norms, nodes)
        else:
            if nodes is not None:
                states, ids = states.index_select(1, nodes.parent), ids.index_select(1, nodes.number).clamp_min(0)
            inputs = network.inputs(states, self.model.embed(ids))
        output: torch.Tensor = network(inputs, call, known)
        return output

    def _logits(self, first: int) -> torch.Tensor:
        """Logits [B, T, V] after the nodes of the last call, the first of which is so far down the list."""
        scores = self.model.scores(self.states)
        return self.logits[:, first : first + scores.shape[1]].index_copy_(2, self.model.network.tokens, scores)

    def _features(self) -> torch.Tensor:
        features = self.target.cache.features
        assert features is not None  # the target's session has the head's taps
        return features[:, 0]
