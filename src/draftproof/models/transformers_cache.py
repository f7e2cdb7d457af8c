"""A SlotCache as the networks of transformers take it."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Cache

from draftproof.models.kv_cache import CacheView, SlotCache, SlotLayer
from draftproof.models.llama.placement import Placement


class TransformersCache(CacheView, Cache):  # type: ignore[misc]
    """The cache as one call sees it: transformers' networks only know `update`."""

    def __init__(self, cache: SlotCache, placement: Placement) -> None:
        Cache.__init__(self, layers=cache.layers)
        CacheView.__init__(self, cache, placement)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        layer: SlotLayer = self.layers[layer_idx]
        return layer.update(key_states, value_states, self.placement)

    def get_seq_length(self, *args: Any, **kwargs: Any) -> int:
        return self.placement.end

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        return self.placement.end, 0

    def get_max_length(self, *args: Any, **kwargs: Any) -> int:
        layer: SlotLayer = self.layers[0]
        return layer.slots

    get_max_cache_shape = get_max_length  # its older name
