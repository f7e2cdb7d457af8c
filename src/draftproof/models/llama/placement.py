"""Where a call writes its keys and values in a KV cache of numbered slots, and which slots it attends to."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import torch


class Range(NamedTuple):
    """The tokens of every row go to the same consecutive slots."""

    start: int  # first slot that is written
    end: int  # after the last one that is written, and read
    begin: int = 0  # first slot that is read; 1 leaves the padding out

    def write(self, buffer: torch.Tensor, states: torch.Tensor) -> None:
        """States [B, heads, T, width] of the call's tokens into their slots of a buffer [rows, heads, slots, width]."""
        buffer[: len(states), :, self.start : self.end] = states

    def read(self, buffer: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """The entries [B, heads, S, width] that may be attended to, the `states` just written among them."""
        return buffer[: len(states), :, self.begin : self.end]

    @property
    def slots(self) -> torch.Tensor:
        """[1, T], on a CPU."""
        return torch.arange(self.start, self.end)[None]

    @property
    def read_slots(self) -> torch.Tensor:
        """[S], on a CPU."""
        return torch.arange(self.begin, self.end)


class Slots(NamedTuple):
    """Each token goes to a slot of its own."""

    slots: torch.Tensor  # [B, T]
    end: int  # slots before this one are read: after the highest, or all where only the device knows the slots
    begin: int = 0
    padded: bool = False  # tokens in slot 0 are padding: nothing of them is used, so they need not be computed

    def write(self, buffer: torch.Tensor, states: torch.Tensor) -> None:
        """States [B, heads, T, width] of the call's tokens into their slots of a buffer [rows, heads, slots, width]."""
        each = torch.arange(len(states), device=buffer.device)[:, None]
        buffer[each, :, self.slots] = states.transpose(1, 2)

    def read(self, buffer: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """The entries [B, heads, S, width] that may be attended to, the `states` just written among them."""
        return buffer[: len(states), :, self.begin : self.end]

    @property
    def read_slots(self) -> torch.Tensor:
        """[S]."""
        return torch.arange(self.begin, self.end, device=self.slots.device)


class NodeSlots(NamedTuple):
    """Nodes of a draft tree: node n of every row goes to the slot n after the root's."""

    root: torch.Tensor  # [B] int64 slot of node 0
    number: torch.Tensor  # [T] int64 the nodes of this call, ascending
    end: int
    begin: int = 0

    @property
    def slots(self) -> torch.Tensor:
        """[B, T], computed each time: `by_slot` keeps them."""
        return self.root[:, None] + self.number

    @property
    def by_slot(self) -> Slots:
        """The same with the slot of each token."""
        return Slots(self.slots, self.end, self.begin)

    def write(self, buffer: torch.Tensor, states: torch.Tensor) -> None:
        """States [B, heads, T, width] of the call's tokens into their slots of a buffer [rows, heads, slots, width]."""
        self.by_slot.write(buffer, states)

    def read(self, buffer: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """The entries [B, heads, S, width] that may be attended to, the `states` just written among them."""
        return buffer[: len(states), :, self.begin : self.end]

    @property
    def read_slots(self) -> torch.Tensor:
        """[S]."""
        return torch.arange(self.begin, self.end, device=self.root.device)


class PackedSlots(NamedTuple):
    """Whole prompts side by side in one row [1, T]; each token goes to a slot of a row of its own."""

    rows: torch.Tensor  # [T] int64
    slots: torch.Tensor  # [T] int64

    @property
    def end(self) -> int:
        """How many entries are read: those of this call alone."""
        return len(self.rows)

    def write(self, buffer: torch.Tensor, states: torch.Tensor) -> None:
        """States [1, heads, T, width] of the call's tokens into their slots of a buffer [rows, heads, slots, width]."""
        buffer[self.rows, :, self.slots] = states[0].transpose(0, 1)

    def read(self, buffer: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """The `states` themselves: there is nothing before whole prompts."""
        return states


Placement: TypeAlias = Range | Slots | NodeSlots | PackedSlots


def placed(slots: np.ndarray, device: torch.device, padded: bool = False) -> Range | Slots:
    """The placement of slots [B, T] that the host knows; those of a single row must be consecutive."""
    end = int(slots.max()) + 1
    if len(slots) == 1:
        return Range(int(slots[0, 0]), end)
    return Slots(torch.as_tensor(slots, device=device), end, padded=padded and not slots.all())
