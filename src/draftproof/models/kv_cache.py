"""A key-value cache of numbered slots: written where we say, rolled back by length, compacted along an accepted path.

transformers' own caches grow by concatenation and forget what a sliding window has passed, so they cannot undo. Here
each layer owns one buffer of fixed size; undoing is forgetting a length. Slot 0 takes the padding of uneven rows, token
t of a text lives in slot t + 1. A drafter that reads the model's hidden states finds them in the same slots.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from draftproof.models.llama import cuda


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values; the cache tells it where to write."""

    is_sliding = False

    def __init__(self, cache: SlotCache) -> None:
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        for name, states in (("keys", key_states), ("values", value_states)):
            _, heads, _, width = states.shape
            setattr(self, name, states.new_zeros((self.cache.rows, heads, self.cache.capacity + 1, width)))
        # programs of cuda.attend
        self.arrived = states.new_zeros(self.cache.rows * heads * cuda.PARTS, dtype=torch.int32)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.cache.only is not None:  # whole texts: there is nothing before these tokens
            self.cache.write(self.keys, key_states)
            self.cache.write(self.values, value_states)
            return key_states, value_states
        rows = slice(self.cache.first, self.cache.first + key_states.shape[0])
        read = slice(self.cache.begin, self.cache.used)
        self.cache.write(self.keys, key_states)
        self.cache.write(self.values, value_states)
        return self.keys[rows, :, read], self.values[rows, :, read]

    def get_mask_sizes(self, *args: Any) -> tuple[int, int]:
        return self.cache.used, 0

    def get_seq_length(self, *args: Any) -> int:
        return self.cache.used

    def get_max_cache_shape(self) -> int:
        return self.cache.capacity + 1

    def get_max_length(self) -> int:
        return self.cache.capacity + 1


class SlotCache(Cache):  # type: ignore[misc]
    """All layers' buffers, made at the first call; `place` says where the next call writes and how far it reads."""

    def __init__(self, layers: int, rows: int, capacity: int) -> None:
        self.rows = rows
        self.capacity = capacity
        self.first = 0  # the call's first row
        self.only: torch.Tensor | None = None  # rows of the call's tokens, where whole texts stand side by side
        self.taken: set[int] = set()  # rows that texts have stood in
        self.begin, self.used = 0, 1  # slots that are read
        self.start: int | None = None
        self.slots: torch.Tensor | None = None
        self.features: torch.Tensor | None = None  # [rows, 1, slots, F] where hidden states are kept
        # of cuda.network and of cuda.follow, on the host and on the device
        self.addresses: tuple[Any, torch.Tensor] | None = None
        self.places: tuple[Any, torch.Tensor] | None = None
        super().__init__(layers=[SlotLayer(self) for _ in range(layers)])

    def place(self, slots: np.ndarray, device: torch.device, first: int = 0) -> None:
        """Write the next call's tokens to these slots [B, T] of rows from `first` on, and read up to the highest."""
        self.first, self.only = first, None
        self.begin, self.used = 0, int(slots.max()) + 1
        self.start = int(slots[0, 0]) if len(slots) == 1 else None
        self.slots = None if len(slots) == 1 else torch.as_tensor(slots, device=device)

    def place_range(self, start: int, count: int, begin: int = 0) -> None:
        """The same where every row's tokens go to the same slots; with begin=1 the padding is not even read."""
        self.first, self.only, self.start, self.slots = 0, None, start, None
        self.begin, self.used = begin, start + count

    def place_texts(self, rows: torch.Tensor, slots: torch.Tensor) -> None:
        """Write the next call's tokens, [1, T], to these slots [T] of these rows [T], and read nothing else."""
        self.only, self.start, self.slots = rows, None, slots
        self.begin, self.used = 0, len(rows)

    def place_on_device(self, slots: torch.Tensor) -> None:
        """The same where the host does not know the slots: read everything."""
        self.first, self.only, self.start, self.slots = 0, None, None, slots
        self.begin, self.used = 0, self.capacity + 1

    def write(self, buffer: torch.Tensor, states: torch.Tensor) -> None:
        """States [B, heads, T, width] of this call's tokens into their slots."""
        if self.only is not None:
            buffer[self.only, :, self.slots] = states[0].transpose(0, 1)
        elif self.start is not None:  # one row, or all alike: the slots are a range
            buffer[self.first : self.first + len(states), :, self.start : self.start + states.shape[2]] = states
        else:
            each = torch.arange(self.first, self.first + len(states), device=buffer.device)[:, None]
            buffer[each, :, self.slots] = states.transpose(1, 2)

    def make_features(self, width: int, network: Any) -> None:
        """Room for hidden states of this width, for a drafter that reads them; none for width 0."""
        if width:
            shape = (self.rows, 1, self.capacity + 1, width)
            self.features = torch.zeros(shape, dtype=network.dtype, device=network.device)

    def keep(self, states: torch.Tensor) -> None:
        """Hidden states [B, T, F] of this call's tokens."""
        assert self.features is not None
        self.write(self.features, states[:, None])

    def move(self, row: int, source: list[int], target: list[int]) -> None:
        """Copy slots of one row: how an accepted path of a tree becomes a straight text."""
        for buffer in self.buffers:
            buffer[row, :, target] = buffer[row, :, source]

    def follow(self, root: torch.Tensor, path: torch.Tensor, count: torch.Tensor) -> None:
        """The same for trees whose node 0 is in slot root [B] and node n of it in slot root + n: the first count [B]
        nodes of each path [B, D] move to the slots after the root's."""
        if cuda.follows(self.buffers):
            cuda.follow(self, root, path, count)
            return
        deep = torch.arange(1, path.shape[1] + 1, device=path.device)
        rows = torch.arange(len(path), device=path.device)[:, None]
        source, target = root[:, None] + torch.where(deep <= count[:, None], path, deep), root[:, None] + deep
        for buffer in self.buffers:
            buffer[rows, :, target] = buffer[rows, :, source]

    def copy(self, source: int | torch.Tensor, target: int | torch.Tensor, length: int) -> None:
        """Make the first slots of one row, or of several, the same as those of another, or of as many others."""
        for buffer in self.buffers:
            buffer[target, :, :length] = buffer[source, :, :length]

    def take(self, row: int, length: int = 0) -> None:
        """A text takes a row, of which it has written the first slots; what another left in the others goes."""
        if row in self.taken:
            self.clear(row, length)
        self.taken.add(row)

    def clear(self, row: int, length: int = 0) -> None:
        """Zeros after the first slots of a row: a mask hides what another text left there, but not if it is NaN."""
        for buffer in self.buffers:
            buffer[row, :, length:].zero_()  # assigning a number might make the device wait

    @property
    def buffers(self) -> list[torch.Tensor]:
        """What has been made so far: keys and values of each layer, and hidden states where they are kept."""
        made = [buffer for layer in self.layers if layer.is_initialized for buffer in (layer.keys, layer.values)]
        return made if self.features is None else [*made, self.features]

    @property
    def bytes(self) -> int:
        """Memory held, in bytes; fixed after the first call."""
        return sum(buffer.nelement() * buffer.element_size() for buffer in self.buffers)
