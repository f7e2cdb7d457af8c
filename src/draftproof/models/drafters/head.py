"""The trained head as drafter (EAGLE, Li et al. 2401.15077): it reads the hidden states in the target's own session.

Entry t of the head lives in slot t + 1 of its cache, as token t does in the target's, so both use the same numbers.
An entry computed from the target's states stays; entries of draft tokens, computed from the head's own states, are
forgotten when the step is committed, and computed anew once the target has read those tokens. Entry -1, which drafting
after a text of one token needs, has no state to read: it gets zeros, and slot 0, which no other entry sees.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from draftproof.draft import Tree
from draftproof.errors import DraftproofError
from draftproof.law import Array
from draftproof.models.base import ModelFacts, innermost
from draftproof.models.hf import NARROW, HFModel, HFSession, ancestry
from draftproof.models.kv_cache import SlotCache
from draftproof.models.llama import head as headnet
from draftproof.models.llama.backends import native_head, triton_ops
from draftproof.models.llama.backends.linear import PackedLinear, in_c
from draftproof.models.llama.backends.tables import KernelTables, open_tables
from draftproof.models.llama.call import LayerCall
from draftproof.models.llama.head import HeadConfig, HeadNetwork
from draftproof.models.llama.int8 import Int8Linear, quantise_linears
from draftproof.models.llama.masks import FULL, Causal, additive
from draftproof.models.llama.placement import Placement, Range, Slots, placed
from draftproof.models.llama.rebuild import pack
from draftproof.models.llama.rotary import Rotation
from draftproof.models.memo import Memo

SHIPPED = Path(__file__).resolve().parents[2] / "weights" / "smollm2-head"


class HeadModel:
    """A head bound to its target, whose embeddings and output rows it uses."""

    def __init__(self, target: HFModel, network: HeadNetwork, name: str = "head") -> None:
        check(target, network.config)
        rows = _output_matrix(target.network)
        self.target = target
        self.name, self.vocabulary, self.context = name, target.vocabulary, target.context
        self.end_tokens = target.end_tokens
        self.tokenizer = None  # its tokens are the target's by construction
        self.taps = network.config.taps
        self.kept: dict[str, Any] = {}  # what an engine has learned by drafting with it, for its next text
        self.draft_tokens = network.tokens.cpu().numpy()
        whole = target.network
        self.embed = whole.get_input_embeddings()
        output = nn.Linear(network.config.shape.width, len(network.tokens), bias=False)
        output.weight = nn.Parameter(rows[network.tokens.to(rows.device)].contiguous(), requires_grad=False)
        self.network = copy.deepcopy(network).to(whole.device, whole.dtype).eval().requires_grad_(False)
        self.norm: nn.Module = self.network.norm_out
        self.output: nn.Module = output
        like = whole.get_output_embeddings()
        if isinstance(like, Int8Linear) or (isinstance(like, PackedLinear) and in_c()):
            # also beside a target in float32: q may be any law, and integers are read four times as fast
            self.norm, self.output = nn.Identity(), Int8Linear(output, norm=self.network.norm_out)
            self.network = quantise_linears(self.network, {})
        elif isinstance(like, PackedLinear):
            self.network, self.output = pack(self.network), PackedLinear(output)
        self.in_c = native_head.open_head(self.network, self.embed.weight, self.output, self.norm)

    def session(self, rows: int, capacity: int) -> HeadSession:
        raise DraftproofError("a head reads its target's session: open both with draftproof.models.base.sessions")

    def beside(self, session: Any) -> HeadSession:
        """A session that reads the hidden states of this one, a session of the target with the head's taps."""
        main = innermost(session)
        if not isinstance(main, HFSession) or main.model is not self.target:
            raise DraftproofError(f"this head drafts for {self.target.name!r}: open it with the target it is to serve")
        return HeadSession(self, main)

    @property
    def facts(self) -> ModelFacts:
        """The last layer alone reads every guess, so its weights count."""
        shape = self.network.config.shape
        layer = shape.width * (2 * shape.width + 2 * shape.shared * shape.size + 3 * shape.inner)
        device = str(self.embed.weight.device.type)
        return ModelFacts(layer + len(self.network.tokens) * shape.width, trained=True, device=device)

    @torch.no_grad()
    def run(self, states: torch.Tensor, ids: torch.Tensor, call: LayerCall, known: bool) -> torch.Tensor:
        """States [B, T, width] and the tokens [B, T] after them -> the head's own states after those tokens."""
        output: torch.Tensor = self.network(self.network.inputs(states, self.embed(ids)), call, known)
        return output

    @torch.no_grad()
    def scores(self, states: torch.Tensor) -> torch.Tensor:
        """[..., D] logits of the tokens it can draft."""
        logits: torch.Tensor = self.output(self.norm(states))
        return logits

    def angles(self, capacity: int) -> Rotation:
        """Cosine and sine of positions 0 to `capacity`, a row each, to be looked up."""
        places = torch.arange(capacity + 1, device=self.embed.weight.device)[None]
        rotary, dtype = self.network.rotary, self.embed.weight.dtype
        table = (rotary.look_up(places).to if places.device.type == "cpu" else rotary.at(places).rotation)(dtype)
        return Rotation(*(part[0, 0] for part in table))


class HeadSession:
    """Drafts beside the rows of the target's session. Of row b, `known[b]` entries were computed from its states."""

    speaks: Literal["logits", "law"] = "logits"

    def __init__(self, model: HeadModel, target: HFSession) -> None:
        self.model, self.target = model, target
        self.cache = SlotCache(model.network.config.layers, target.cache.rows, target.capacity)
        self.angles = model.angles(target.capacity)
        self.texts: list[list[int]] = [[] for _ in range(target.cache.rows)]
        self.known = np.zeros(target.cache.rows, dtype=np.int64)
        self.tables: KernelTables | None = None  # where kernels do calls of few tokens
        if self.angles.cos.is_cuda:
            self._allocate()
            layers = len(self.cache.layers)  # draft tokens go through the last one alone
            self.tables = open_tables(model.network.blocks, self.cache, (0, layers - 1))
        self.states = torch.empty(0)  # [B, N, width] the head's own, after each node of the current tree
        self.followed: int | None = None  # draft tokens of the current step that `draw_after` has read

    def join(self, row: int, tokens: Sequence[int]) -> None:
        self.rejoin(row, tokens, kept=0)

    def rejoin(self, row: int, tokens: Sequence[int], kept: int) -> None:
        """Join again between two steps, with a text whose first `kept` tokens the row already has."""
        self.texts[row] = [int(token) for token in tokens]
        self.known[row] = min(int(self.known[row]), max(kept - 1, 0))  # an entry also reads the token after its own
        if not self.known[row]:  # another text
            self.cache.take(row)

    def prefill(self, row: int, count: int) -> bool:
        """Compute the entries of tokens that the target's row has read, in a call of its own."""
        start, stop = int(self.known[row]), int(self.target.length[row])
        if start < stop:
            self._straight(row, start, stop - 1)
            self.known[row] = stop
        return stop == len(self.texts[row]) - 1

    def copy(self, source: int, target: int) -> None:
        self.texts[target], self.known[target] = list(self.texts[source]), self.known[source]
        filled = int(self.known[source]) + 1
        self.cache.copy(source, target, filled)
        self.cache.take(target, filled)

    def extend(self, tree: Tree, tokens: Array, nodes: range) -> Array:
        return self._spread(self.extend_reduced(tree, tokens, nodes), -torch.inf)

    @property
    def draft_tokens(self) -> np.ndarray:
        """[D] the tokens it can draft, ascending."""
        return self.model.draft_tokens

    def extend_reduced(self, tree: Tree, tokens: Array, nodes: range) -> torch.Tensor:
        """The same for the tokens it can draft alone, [B, len(nodes), D]."""
        tokens = np.asarray(tokens)
        for level in tree.levels:
            part = range(max(level.start, nodes.start), min(level.stop, nodes.stop))
            if len(part):  # deeper nodes read the states of those above them
                self._deeper(tree, tokens, part) if part.start else self._first(len(tokens))
        return self.model.scores(self.states[:, nodes.start :])

    def chain(self, temperature: float, u: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray] | None:
        """Draft tokens after the only text, in one C call: see `ChainDrafter`."""
        if self.model.in_c is None or not 2 <= len(self.texts[0]) <= self.cache.capacity - len(u):
            return None
        self._first(1)
        entry, layer = int(self.known[0]), self.cache.layers[-1]
        entries = (layer.keys, layer.values)
        self.cache.writes([entry + len(u)])
        return native_head.guess(self.model.in_c, self.states, self.angles, entry, entries, temperature, u, least)

    def forget(self) -> None:
        self.followed = None

    def draw_after(
        self, path: Sequence[int], temperature: float, u: float, mask: np.ndarray
    ) -> tuple[int, np.ndarray] | None:
        """Draw what follows these draft tokens of the only text, in one C call: see `PathDrafter`."""
        if self.model.in_c is None or not 2 <= len(self.texts[0]) <= self.cache.capacity - len(path):
            return None
        if not mask.any():
            return -1, np.zeros(len(mask), dtype=np.float32)
        if self.followed is None:
            self._first(1)
            self.followed = 0
        layer, entry = self.cache.layers[-1], int(self.known[0]) + self.followed
        entries, unread = (layer.keys, layer.values), path[self.followed :]
        self.cache.writes([entry + len(unread)])
        found = native_head.follow(
            self.model.in_c, self.states, self.angles, entry, entries, unread, temperature, u, mask
        )
        if found is None:
            raise DraftproofError("the head returned non-finite scores: check its weights and dtype")
        self.followed, (self.states, place, law) = len(path), found
        return place, law

    def widen(self, q: Array) -> torch.Tensor:
        """A law over the tokens it can draft as one over all."""
        return self._spread(torch.as_tensor(q), 0.0)

    def _spread(self, some: torch.Tensor, rest: float) -> torch.Tensor:
        whole = some.new_full((*some.shape[:-1], self.model.vocabulary), rest)
        return whole.scatter_(-1, self.model.network.tokens.to(some.device).expand(some.shape), some)

    def commit(self, tree: Tree, tokens: Array, node: Sequence[int], token: Sequence[int]) -> None:
        for b, last in enumerate(node):
            self.texts[b] += [*(int(tokens[b][n]) for n in tree.path(int(last))), int(token[b])]
        self.followed = None

    def _first(self, rows: int) -> None:
        """Compute the entries that the cache lacks, the one of node 0 last."""
        self.target.read(rows)
        if rows == 1 and len(self.texts[0]) > 1:
            entry = len(self.texts[0]) - 2  # node 0's
            self.states = self._straight(0, min(int(self.known[0]), entry), entry)
            self.known[0] = entry + 1
            return
        last = np.array([len(text) - 2 for text in self.texts[:rows]])  # node 0's entry
        start = np.minimum(self.known[:rows], last)
        missing = last - start
        if rows * missing.max() > sum(count + NARROW for count in missing if count):
            for row in np.nonzero(missing)[0]:  # apart, because in one call more would be padding
                self._straight(int(row), int(start[row]), int(last[row]) - 1)
            start = last
        self.known[:rows] = last + 1
        width = int((last - start).max()) + 1  # columns are padding, then entries
        entries = np.arange(1 - width, 1) + last[:, None]  # [B, T]
        entries = np.where(entries < start[:, None], -1, entries)
        ids = np.array([[text[entry + 1] for entry in row] for text, row in zip(self.texts, entries, strict=False)])
        slots = torch.as_tensor(entries + 1, device=self.angles.cos.device)
        seen = torch.arange(int(last.max()) + 2, device=slots.device)
        mask = (seen <= slots[..., None]) & ((seen > 0) | (slots[..., None] == 0))
        features = self._features()[torch.arange(rows, device=slots.device)[:, None], slots]
        states = self._fuse(features * (slots > 0)[..., None])
        self.cache.writes(last + 1)
        call = self._call(entries, mask, placed(entries + 1, slots.device))
        self.states = self._run(states, ids, call, known=True)[:, -1:]

    def _straight(self, row: int, start: int, last: int) -> torch.Tensor:
        """Compute entries of one row from the target's states; its own state [1, 1, width] after the last one.

        Slots are ranges, and nothing is padded.
        """
        if not self.cache.is_allocated:
            self._allocate()
        features = self._features()[row, start + 1 : last + 2]
        tokens = np.array(self.texts[row][start + 1 : last + 2])
        cache = self.cache.alone(row) if row else self.cache
        cache.writes([last + 1])
        if self.model.in_c is not None:
            buffers = [(layer.keys, layer.values) for layer in cache.layers]
            return native_head.catch_up(self.model.in_c, features, tokens, self.angles, start, buffers)[None, None]
        count, entries = len(tokens), np.arange(start, last + 1)[None]
        if cache is self.cache and self._fits_kernels(count):
            call = self._kernel_call(entries)
        else:
            mask = None
            if count > 1:
                mask = torch.ones(count, last + 1, dtype=torch.bool, device=self.angles.cos.device).tril(start)[None]
            call = self._call(entries, mask, Range(start + 1, last + 2, begin=1), cache)
        return self._run(self._fuse(features[None]), tokens[None], call, known=True)[:, -1:]

    def _deeper(self, tree: Tree, tokens: np.ndarray, nodes: range) -> None:
        """Entries of the draft tokens of one level, from the head's own states after their parents."""
        base = self.known[: len(tokens), None]  # node 0's slot
        self.cache.writes(base[:, 0] + nodes.stop - 1)
        drawn = tokens[:, nodes.start : nodes.stop]
        entries = np.repeat(base - 1 + tree.depth[nodes.start], len(nodes), axis=1)
        above = tree.parent[nodes.start]
        alone = len(nodes) == 1  # then a view will do
        parents = self.states[:, above : above + 1] if alone else self.states[:, [tree.parent[node] for node in nodes]]
        if tree.is_chain and self._fits_kernels(1):
            call = self._kernel_call(entries)
        else:
            call = self._level_call(tree, nodes, base, entries)
        states = self._run(parents, np.maximum(drawn, 0), call, known=False)
        self.states = torch.cat([self.states, states], dim=1)

    def _level_call(self, tree: Tree, nodes: range, base: np.ndarray, entries: np.ndarray) -> LayerCall:
        """The call of the entries of one level, whose tokens see their ancestors; base [B, 1] are node 0's slots."""
        device = self.angles.cos.device
        seen_from = ancestry(tree)[nodes.start : nodes.stop, : nodes.stop]
        mask: np.ndarray | None = None
        placement: Placement
        if len(base) == 1 and base[0, 0] > 0:
            first = int(base[0, 0])
            placement = Range(first + nodes.start, first + nodes.stop, begin=1)
            if not seen_from.all():
                mask = np.pad(seen_from, ((0, 0), (first - 1, 0)), constant_values=True)[None]
        else:
            slots = base + np.arange(nodes.start, nodes.stop)
            placement = placed(slots, device)
            mask = np.repeat((np.arange(slots.max() + 1) <= base)[:, None], len(nodes), axis=1)
            for b, first in enumerate(base[:, 0]):
                mask[b, :, first : first + nodes.stop] = seen_from
            mask[:, :, 0] = False
        return self._call(entries, None if mask is None else torch.as_tensor(mask, device=device), placement)

    def _call(
        self, entries: np.ndarray, mask: torch.Tensor | None, placement: Placement, cache: SlotCache | None = None
    ) -> LayerCall:
        """The call of entries [B, T], which are also their positions; mask [B, T, S]."""
        bias = None if mask is None else additive(mask, self.angles.cos.dtype)
        return LayerCall(self._rotation(entries), {FULL: bias}, placement, (cache or self.cache).layers)

    def _kernel_call(self, entries: np.ndarray) -> LayerCall:
        """The same for kernels: entries that follow each other, each of which sees those up to itself."""
        slots = Slots(torch.as_tensor(entries + 1, device=self.angles.cos.device), int(entries.max()) + 2)
        return LayerCall(self._rotation(entries), {FULL: Causal()}, slots, self.cache.layers, self.tables)

    def _rotation(self, entries: np.ndarray) -> Rotation:
        first, last = int(entries[0, 0]), int(entries[0, -1])
        if len(entries) == 1 and last - first == entries.shape[1] - 1 and first >= 0:  # a range, so nothing is copied
            return Rotation(*(part[first : last + 1][None, None] for part in self.angles))
        places = torch.as_tensor(entries, device=self.angles.cos.device).clamp_min(0)
        return Rotation(*(part[places][:, None] for part in self.angles))

    def _fits_kernels(self, tokens: int) -> bool:
        """Whether kernels can read so many tokens of a text that follow each other."""
        network = self.model.network
        return self.tables is not None and triton_ops.takes(network.blocks, tokens, self.angles.cos.dtype)

    def _allocate(self) -> None:
        shape = self.model.network.config.shape
        self.cache.allocate(shape.shared, shape.size, self.angles.cos)

    def _run(self, states: torch.Tensor, ids: np.ndarray, call: LayerCall, known: bool) -> torch.Tensor:
        """Own states [B, T, width] after tokens [B, T]; known: `states` are the target's."""
        return self.model.run(states, torch.as_tensor(ids, device=states.device), call, known)

    def _features(self) -> torch.Tensor:
        features = self.target.cache.features
        assert features is not None  # allocated for the head's taps
        return features[:, 0]

    @torch.no_grad()
    def _fuse(self, features: torch.Tensor) -> torch.Tensor:
        return self.model.network.fuse(features)


def check(target: HFModel, config: HeadConfig) -> None:
    """A head works with the target it was trained for, or one that is the same function."""
    if config.shape.width != target.width:
        raise DraftproofError(
            f"this head reads states of width {config.shape.width} but {target.name!r} has {target.width}: "
            "train one for this target with `draftproof distill`"
        )
    if max(config.taps) > target.layers or config.draft_tokens > target.vocabulary:
        raise DraftproofError(f"this head was trained for a larger model than {target.name!r}: train one for it")
    origin = np.array(config.origin)
    if len(origin) and not np.allclose(headnet.fingerprint(_output_matrix(target.network)), origin, rtol=0.02):
        raise DraftproofError(
            f"this head was trained for another model than {target.name!r} (their output matrices differ): "
            "train one for this target with `draftproof distill`"
        )


def find(name: str, target: Any) -> HeadModel:
    """The head that comes with the package ("head") or the one in a folder, for this target."""
    while isinstance(target, Memo):
        target = target.model
    if not isinstance(target, HFModel):
        raise DraftproofError(f"a head reads hidden states and {target.name!r} has none: choose --draft ngram")
    if name not in target.heads:  # laying one out takes a moment, and it serves every text of its target
        folder = SHIPPED if name == "head" else Path(name).expanduser()
        check(target, headnet.describe(folder))  # before the weights are read
        target.heads[name] = HeadModel(target, headnet.load(folder), name)
    return target.heads[name]  # type: ignore[no-any-return]


def is_head(folder: Path) -> bool:
    """Whether a folder holds a head, and not a model of transformers."""
    try:
        described = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(described, dict) and described.get("kind") == headnet.KIND


def _output_matrix(network: Any) -> torch.Tensor:
    """[V, width] in float, also where the target has it in integers."""
    layer = network.get_output_embeddings()
    if network.config.get_text_config().tie_word_embeddings:
        layer = network.get_input_embeddings()
    if isinstance(layer, nn.Linear | nn.Embedding):
        return layer.weight.detach()
    with torch.no_grad():
        unit = torch.eye(network.config.get_text_config().hidden_size, device=network.device)
        return torch.as_tensor(layer(unit)).t()  # what a layer does to unit vectors is its matrix
