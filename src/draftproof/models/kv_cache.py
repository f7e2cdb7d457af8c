"""A KV cache of numbered slots: written where a call's placement says, rolled back by forgetting a length.

transformers' own caches grow by concatenation and forget what a sliding window has passed, so they cannot undo. Here
each layer owns one buffer of fixed size, and the cache remembers nothing of a call: every call brings its placement.
Slot 0 takes the padding of uneven rows, token t of a text lives in slot t + 1. A drafter that reads the model's hidden
states finds them in the same slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from draftproof.models.llama.call import LayerCall
from draftproof.models.llama.masks import Mask
from draftproof.models.llama.placement import Placement
from draftproof.models.llama.rotary import Positions, Rotation
from draftproof.models.zeros import zeros

if TYPE_CHECKING:
    from draftproof.models.llama.backends.tables import KernelTables


class SlotLayer:
    """Keys and values of one layer, [rows, heads, slots, size]; allocated when it is first written to."""

    is_sliding = is_compileable = is_croppable = supports_early_init = False  # what transformers asks of a layer
    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, rows: int, slots: int) -> None:
        self.rows, self.slots = rows, slots
        self.is_initialized = False

    def allocate(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Zeros for entries like these, [B, heads, T, size]."""
        self.hold(*(zeros(new, (self.rows, new.shape[1], self.slots, new.shape[3])) for new in (keys, values)))

    def hold(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Use these buffers."""
        self.keys, self.values, self.is_initialized = keys, values, True

    def alone(self, row: int) -> SlotLayer:
        """One row as a layer of its own in the same memory."""
        layer = SlotLayer(1, self.slots)
        layer.hold(self.keys[row : row + 1], self.values[row : row + 1])
        return layer

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, placement: Placement
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a call's entries [B, heads, T, size]; all that may be attended to."""
        if not self.is_initialized:
            self.allocate(keys, values)
        placement.write(self.keys, keys)
        placement.write(self.values, values)
        return placement.read(self.keys, keys), placement.read(self.values, values)


def allocate(layers: Sequence[SlotLayer], heads: int, size: int, like: torch.Tensor) -> None:
    """Make the buffers of layers that have none yet, in one piece."""
    new = [layer for layer in layers if not layer.is_initialized]
    if new:
        whole = zeros(like, (2 * len(new), new[0].rows, heads, new[0].slots, size))
        for layer, keys, values in zip(new, whole[::2], whole[1::2], strict=True):
            layer.hold(keys, values)


class SlotCache:
    """All layers' buffers, and hidden states for a drafter that reads them."""

    def __init__(self, layers: int, rows: int, capacity: int) -> None:
        self.rows, self.capacity = rows, capacity
        self.layers = [SlotLayer(rows, capacity + 1) for _ in range(layers)]
        self.used = np.zeros(rows, dtype=np.int64)  # of each row, how many slots are not zero at most: see `writes`
        self.features: torch.Tensor | None = None  # [rows, 1, slots, F] where hidden states are kept
        self.addresses: Any = None  # of all buffers, once a call in C has needed them

    def at(self, placement: Placement, tables: KernelTables | None = None) -> CacheView:
        """The cache as one call of a fused network is given it."""
        return CacheView(self, placement, tables)

    def alone(self, row: int) -> SlotCache:
        """One row as a cache of its own in the same memory, for a call of this row; all layers must be allocated."""
        cache = SlotCache(0, 1, self.capacity)
        cache.layers = [layer.alone(row) for layer in self.layers]
        cache.features = None if self.features is None else self.features[row : row + 1]
        cache.used = self.used[row : row + 1]
        return cache

    def writes(self, last: Sequence[int] | np.ndarray) -> None:
        """Note that the first rows are written up to these slots [B], so that `take` clears no others."""
        rows = slice(len(last))
        self.used[rows] = np.maximum(self.used[rows], np.asarray(last) + 1)

    @property
    def is_allocated(self) -> bool:
        return all(layer.is_initialized for layer in self.layers)

    def allocate(self, heads: int, size: int, like: torch.Tensor) -> None:
        """Make all buffers now, for so many heads of keys and of values: nothing is allocated in a call then."""
        allocate(self.layers, heads, size, like)
        self.addresses = None

    def make_features(self, width: int, network: Any) -> None:
        """Room for hidden states of this width, for a drafter that reads them; none for width 0."""
        if width:
            shape = (self.rows, 1, self.capacity + 1, width)
            self.features = zeros(torch.empty(0, dtype=network.dtype, device=network.device), shape)

    def keep(self, states: torch.Tensor, placement: Placement) -> None:
        """Write hidden states [B, T, F] of a call's tokens."""
        assert self.features is not None
        placement.write(self.features, states[:, None])

    def move(self, row: int, source: list[int], target: list[int]) -> None:
        """Copy slots of one row: how an accepted path of a tree becomes a straight text."""
        for buffer in self.buffers:
            buffer[row, :, target] = buffer[row, :, source]

    def compact(self, root: torch.Tensor, path: torch.Tensor, count: torch.Tensor) -> None:
        """The same for trees whose node n is in slot root + n, root [B]: the first count [B] nodes of each path [B, D]
        move to the slots after the root's."""
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
        """A text takes a row, of which it has written the first slots; what another text left in the others goes.

        A mask hides what is left there, but not if it is NaN.
        """
        if self.used[row] > length:
            for buffer in self.buffers:
                buffer[row, :, length : int(self.used[row])].zero_()  # assigning a number might make the device wait
        self.used[row] = length

    def clear_rows(self, rows: torch.Tensor) -> None:
        """Zeros in whole rows [n], one launch for each buffer: texts leave a batch many at a time."""
        for buffer in self.buffers:
            buffer.index_fill_(0, rows, 0)

    @property
    def buffers(self) -> list[torch.Tensor]:
        """What is allocated so far: keys and values of each layer, and hidden states where they are kept."""
        entries = [buffer for layer in self.layers if layer.is_initialized for buffer in (layer.keys, layer.values)]
        return entries if self.features is None else [*entries, self.features]

    @property
    def bytes(self) -> int:
        """Memory held, in bytes; fixed after the first call."""
        return sum(buffer.nelement() * buffer.element_size() for buffer in self.buffers)


class CacheView:
    """A SlotCache as one call of fused layers sees it, written where the placement says."""

    def __init__(self, cache: SlotCache, placement: Placement, tables: KernelTables | None = None) -> None:
        self.cache, self.placement, self.tables = cache, placement, tables

    def call(self, rotation: Rotation | Positions, masks: Mapping[str, Mask]) -> LayerCall:
        """A call of the layers that reads and writes it."""
        return LayerCall(rotation, masks, self.placement, self.cache.layers, self.tables)
