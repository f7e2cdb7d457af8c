"""A network of the Llama family made of fused layers, called like a transformers network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from draftproof.models.llama.backends import native_network
from draftproof.models.llama.block import Block, Blocks
from draftproof.models.llama.call import LayerCall
from draftproof.models.llama.masks import Mask
from draftproof.models.llama.placement import Slots
from draftproof.models.llama.rotary import Rotary

MOSTLY = 0.8  # a larger share of tokens that are no padding is not worth copying their logits


class CausalOutput(NamedTuple):
    """What transformers' networks return, as far as it is used."""

    logits: torch.Tensor
    hidden_states: Any = None  # embeddings, then after each layer, the last one normed; by number where only some are


class NetworkSettings(NamedTuple):
    """What a network knows about itself beside its weights."""

    config: Any  # of transformers, or llama.config.FolderConfig, which has the same attributes
    generation_config: Any
    windows: Mapping[str, int | None]  # of each kind of attention; None is unlimited


class FusedLlama(nn.Module):
    """Embedding, fused layers, norm and output matrix; masks may be rules (masks.py) too."""

    def __init__(
        self,
        settings: NetworkSettings,
        embed: nn.Embedding,
        blocks: Sequence[Block],
        norm: nn.RMSNorm,
        head: nn.Module,
        rotary: Rotary,
    ) -> None:
        super().__init__()
        self.config, self.generation_config, windows = settings
        self.windows = dict(windows)
        kinds = self.config.layer_types if len(self.windows) > 1 else [*self.windows] * len(blocks)
        self.embed, self.blocks, self.norm, self.head, self.rotary = embed, Blocks(blocks, kinds), norm, head, rotary

    @cached_property
    def whole(self) -> native_network.NativeNetwork | None:
        """The same for C, once the weights stay as they are."""
        return native_network.open_network(self)

    def forward(
        self,
        input_ids: torch.Tensor,  # [B, T]
        attention_mask: Mask | dict[str, Mask] = None,
        position_ids: torch.Tensor | None = None,  # [B, T]
        past_key_values: Any = None,  # a kv_cache.CacheView
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        output_hidden_states: bool | Sequence[int] = False,  # all, or the ones of these numbers
    ) -> CausalOutput:
        """Without mask and cache every token sees those before it; without a mask alone, all that is cached."""
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        masks = attention_mask if isinstance(attention_mask, dict) else dict.fromkeys(self.windows, attention_mask)
        if attention_mask is None and past_key_values is None:
            masks = self._causal(position_ids)
        wanted = range(len(self.blocks) + 1) if output_hidden_states is True else output_hidden_states or ()
        run: Callable[..., tuple[torch.Tensor, dict[int, torch.Tensor]]] = self._in_layers
        if self.blocks.stack is not None and native_network.fits(self, input_ids, masks, past_key_values):
            run = partial(native_network.run, self)
        logits, states = run(input_ids, masks, position_ids, past_key_values, logits_to_keep, wanted)
        if not wanted:
            return CausalOutput(logits)
        return CausalOutput(logits, tuple(states.values()) if output_hidden_states is True else states)

    def _in_layers(
        self, ids: torch.Tensor, masks: Any, positions: torch.Tensor, view: Any, keep: int, wanted: Sequence[int]
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """The logits of the last `keep` tokens, or of all for 0, and the hidden states of the wanted numbers."""
        rotation, layers = self.rotary.at(positions), range(len(self.blocks))
        call = LayerCall(rotation, masks) if view is None else view.call(rotation, masks)
        x, states = self.blocks(self.embed(ids), call, keep=[number for number in wanted if number in layers])
        if not wanted:
            return self._logits(self.norm(x[:, -keep:]), call), {}
        x = self.norm(x)
        found = {number: states[number] if number in layers else x for number in wanted}
        return self._logits(x[:, -keep:], call), found

    def _logits(self, x: torch.Tensor, call: LayerCall) -> torch.Tensor:
        """The logits [B, T, V] of states [B, T, width] of a call's last tokens; zeros for much padding."""
        placement, head = call.placement, self.head
        if not isinstance(placement, Slots) or not placement.padded:
            return cast("torch.Tensor", head(x))
        used = placement.slots[:, -x.shape[1] :] > 0
        if used.float().mean() > MOSTLY:
            return cast("torch.Tensor", head(x))
        some: torch.Tensor = head(x[used])
        return some.new_zeros((*used.shape, some.shape[-1])).masked_scatter_(used[..., None], some)

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    @property
    def base_model(self) -> FusedLlama:
        return self

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def _causal(self, positions: torch.Tensor) -> dict[str, Mask]:
        """Masks of a text that is read in one call, by kind of layer."""
        apart = positions[:, None, :, None] - positions[:, None, None, :]
        return {kind: (apart >= 0) & (apart < (window or torch.inf)) for kind, window in self.windows.items()}
