"""LayerCall: everything a call of the layers needs beside its input; nothing is remembered from call to call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from draftproof.models.llama.masks import RULES, Mask, additive
from draftproof.models.llama.placement import NodeSlots, Placement
from draftproof.models.llama.rotary import Positions, Rotation

if TYPE_CHECKING:
    from draftproof.models.llama.backends.tables import KernelTables


class KVLayer(Protocol):
    """Keys and values of one layer."""

    def update(self, keys: torch.Tensor, values: torch.Tensor, placement: Any, /) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the call's entries [B, heads, T, size]; all that may be attended to."""
        ...


class LayerCall(NamedTuple):
    """Rotary positions, what each token may attend to, and where its keys and values go."""

    rotation: Rotation | Positions
    masks: Mapping[str, Mask]  # by kind of layer, as transformers names them
    placement: Placement | None = None  # None where nothing is cached
    cache: Sequence[Any] = ()  # a KVLayer for each layer; of kv_cache.SlotCache, where there is a placement
    tables: KernelTables | None = None  # where kernels are to do the call: addresses of weights and cache

    def angles(self, dtype: torch.dtype) -> Rotation:
        """Cosine and sine, computed by torch unless they are given."""
        return self.rotation.rotation(dtype)

    def angles_on_host(self) -> Rotation:
        """The same in float32 on a CPU, looked up where there is a table."""
        rotation = self.rotation
        if isinstance(rotation, Positions) and rotation.look_up is not None:
            return rotation.look_up(rotation.positions)
        return self.angles(torch.float32)

    def written_out(self, dtype: torch.dtype) -> LayerCall:
        """The same call with every rule as an additive mask."""
        if not any(isinstance(mask, RULES) for mask in self.masks.values()):
            return self
        masks, placement = written_out(self.masks, self.placement, dtype)
        return self._replace(masks=masks, placement=placement)


def written_out(
    masks: Mapping[str, Mask], placement: Any, dtype: torch.dtype
) -> tuple[dict[str, torch.Tensor | None], Any]:
    """Masks with every rule as an additive mask [B, 1, T, S], and the placement with every slot computed once."""
    dense = {
        kind: mask if mask is None or isinstance(mask, torch.Tensor) else additive(mask.visible(placement), dtype)
        for kind, mask in masks.items()
    }
    return dense, placement.by_slot if isinstance(placement, NodeSlots) else placement
