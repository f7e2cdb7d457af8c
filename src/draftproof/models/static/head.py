"""The trained head in calls of fixed shape, beside its target's StaticSession: a drafter that a CUDA graph replays.

How many guesses were accepted is known on the device alone, so every step makes as many entries anew as it may have
been; those that were there before get the same values again.
"""

from __future__ import annotations

import torch

from draftproof.models.drafters.head import HeadModel
from draftproof.models.kv_cache import SlotCache
from draftproof.models.llama import cuda
from draftproof.models.llama.block import Mask, Rotation
from draftproof.models.static.packing import Texts
from draftproof.models.static.session import StaticSession
from draftproof.models.static.tree_calls import Nodes


class StaticHead:
    """B rows that draft `length` tokens ahead; after the nodes with children of a tree, if it has more of those."""

    def __init__(
        self, model: HeadModel, target: StaticSession, length: int, compiled: bool = False, inner: int = 0
    ) -> None:
        self.model, self.target = model, target
        self.device, rows = target.device, target.cache.rows
        self.cache = SlotCache(model.network.config.layers, rows, target.capacity)
        shape, dtype = model.network.config.shape, target.model.network.dtype
        entry = torch.zeros(1, shape.shared, 1, shape.size, dtype=dtype, device=self.device)
        for layer in self.cache.layers:  # here, as a short prompt's first call is one that may be compiled
            layer.lazy_initialization(entry, entry)
        self.angles = model.angles(target.capacity)
        self.frequencies = model.network.frequencies.to(self.device)
        self.rows = torch.arange(rows, device=self.device)[:, None]
        self.slots = torch.arange(target.capacity + 1, device=self.device)
        self.recent = torch.arange(-length - 1, 0, device=self.device)  # entries that a step may have made true
        # minus infinity stays where nothing can be guessed
        room = (rows, max(length, inner), model.vocabulary)
        self.logits = torch.full(room, -torch.inf, dtype=dtype, device=self.device)
        self.states = torch.empty(0)  # [B, T, width] the head's own, after the guesses of the last call
        self.last = torch.empty(0)  # [B, 1] entry of the last committed token
        self.compiled = compiled
        # dynamic=False: a call has one of two shapes, and each deserves code of its own
        self._fast = torch.compile(self._entries, dynamic=False) if compiled else self._entries

    @torch.no_grad()
    def prefill(self, ids: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor) -> None:
        """Entries of texts that the target has read (see `packs`): of each token [T] and the state before it."""
        self.cache.place_texts(rows, positions)
        entries, features = positions[None] - 1, self._features()[rows, positions]
        texts = Texts(positions[None], rows)
        mask = texts if cuda.fits(self.model.network.blocks, 1) else texts.among()[:, None]
        self._entries(features[None], ids[None], entries, mask, True)

    def copy(self, sources: torch.Tensor, targets: torch.Tensor, length: int) -> None:
        """Make the entries of the first `length` tokens of some rows [n] the same as those of others [n]."""
        self.cache.copy(sources, targets, length + 1)

    @torch.no_grad()
    def start(self, text: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        """Logits [B, V] after the token at position base [B]; text [B, S] holds token t in slot t + 1."""
        entries = (base[:, None] + self.recent).clamp_min(-1)  # before the text there is entry -1, as often as needed
        slots = entries + 1
        features = self._features()[self.rows, slots]  # slot 0 is never written: zeros
        made = self._fast(features, text.gather(1, entries + 2), entries, self._see(cuda.Causal(slots)), True)
        self.states, self.last = made[:, -1:], entries[:, -1:]
        return self._say(0)[:, 0]

    @torch.no_grad()
    def go_on(self, token: torch.Tensor, base: torch.Tensor, count: int) -> torch.Tensor:
        """Logits [B, V] after `count` guesses, of which token [B] is the last."""
        entries = self.last + count
        self.states = self._fast(self.states, token[:, None], entries, self._see(cuda.Causal(entries + 1)), False)
        return self._say(count)[:, 0]

    @torch.no_grad()
    def branch(self, tokens: torch.Tensor, base: torch.Tensor, nodes: Nodes) -> torch.Tensor:
        """Logits [B, T, V] after nodes of a tree of tokens [B, N], whose parents were those of the call before."""
        mask = self._see(nodes.rule(base))  # the entry of node 0 is that of the token before it
        self.states = self._fast(self.states, tokens, self.last + nodes.depth, mask, False, nodes)
        return self._say(nodes.first)

    def follow(self, base: torch.Tensor, path: torch.Tensor, count: torch.Tensor) -> None:
        """Nothing: entries of guesses are made anew once the target has read them."""

    def _entries(
        self,
        states: torch.Tensor,
        ids: torch.Tensor,
        entries: torch.Tensor,
        mask: Mask,
        known: bool,
        nodes: Nodes | None = None,
    ) -> torch.Tensor:
        """Own states [B, T, width] after tokens [B, T]; those before them are own ones or, if known, the target's.

        nodes     of a tree: tokens are all of its, and states those of the call before
        """
        network = self.model.network
        if known:
            states = network.fuse(states)
        parent, number = (None, None) if nodes is None else (nodes.parent, nodes.number)
        if isinstance(mask, cuda.Rule):
            rotation = Rotation(*cuda.angles(entries, self.frequencies, 1.0, states.dtype))
            norms = network.norm_state, network.norm_embedding
            read = cuda.enter(states, parent, ids, number, self.model.embed.weight, norms)
            return network.go_on(read, rotation, mask, self.cache.layers, known)
        places = entries.clamp_min(0)
        rotation = Rotation(*(part[places][:, None] for part in self.angles))
        if parent is not None and number is not None:
            states, ids = states.index_select(1, parent), ids.index_select(1, number).clamp_min(0)
        return self.model.run(states, ids, rotation, mask, self.cache, known)

    def _see(self, rule: cuda.Rule) -> Mask:
        """The rule itself, where kernels do the call; else what it says, and the cache is told where entries go."""
        if not self.compiled and cuda.fits(self.model.network.blocks, rule.tokens):
            return rule
        self.cache.place_on_device(rule.own)
        return rule.over(self.slots)[:, None]

    def _say(self, first: int) -> torch.Tensor:
        """Logits [B, T, V] after the nodes of the last call, the first of which is so far down the list."""
        scores = self.model.scores(self.states)
        return self.logits[:, first : first + scores.shape[1]].index_copy_(2, self.model.network.tokens, scores)

    def _features(self) -> torch.Tensor:
        features = self.target.cache.features
        assert features is not None  # the target's session has the head's taps
        return features[:, 0]
