"""A transformers network of the Llama family rebuilt from fused layers: the same function in far fewer operations.

One product makes queries, keys and values, one makes gate and up, and rotary angles are computed once a call. On the
CPU the weights are laid out so that a call of several tokens costs little more than one of a single token. `rebuild`
converts the networks that it knows and returns every other one as it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from draftproof.models.llama.backends.linear import PackedLinear, can_pack
from draftproof.models.llama.block import Block, Blocks, LayerShape, lay_out
from draftproof.models.llama.call import LayerCall
from draftproof.models.llama.masks import Mask
from draftproof.models.llama.rotary import Rotary
from draftproof.models.windows import attention_windows

FAMILIES = ("llama", "mistral", "qwen2")
ROTATIONS = ("default", "linear", "llama3", "yarn")  # frequencies that do not depend on the length of the text


class CausalOutput(NamedTuple):
    """What transformers' networks return, as far as it is used."""

    logits: torch.Tensor
    hidden_states: tuple[torch.Tensor, ...] | None = None  # embeddings, then after each layer; the last one normed


class FusedLlama(nn.Module):
    """The rebuilt network; it is called like a transformers network, and takes rules (masks.py) as masks too."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        inner = network.model
        self.config, self.generation_config = network.config, network.generation_config
        self.windows = attention_windows(network)
        self.embed = inner.embed_tokens
        count = len(inner.layers)
        kinds = network.config.layer_types if len(self.windows) > 1 else [*self.windows] * count
        self.blocks = Blocks((_fuse(layer, network.config) for layer in inner.layers), kinds)
        self.norm = _norm(inner.norm)
        self.head = network.lm_head
        self.rotary = Rotary(inner.rotary_emb.inv_freq, float(inner.rotary_emb.attention_scaling))

    def forward(
        self,
        input_ids: torch.Tensor,  # [B, T]
        attention_mask: Mask | dict[str, Mask] = None,
        position_ids: torch.Tensor | None = None,  # [B, T]
        past_key_values: Any = None,  # a kv_cache.CacheView
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        output_hidden_states: bool = False,
    ) -> CausalOutput:
        """Without mask and cache every token sees those before it; without a mask alone, all that is cached."""
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        masks = attention_mask if isinstance(attention_mask, dict) else dict.fromkeys(self.windows, attention_mask)
        if attention_mask is None and past_key_values is None:
            masks = self._causal(position_ids)
        rotation = self.rotary.at(position_ids)
        call = LayerCall(rotation, masks) if past_key_values is None else past_key_values.call(rotation, masks)
        x, states = self.blocks(self.embed(input_ids), call, keep=output_hidden_states)
        if output_hidden_states:
            x = self.norm(x)
            return CausalOutput(self.head(x[:, -logits_to_keep:]), (*states, x))
        return CausalOutput(self.head(self.norm(x[:, -logits_to_keep:])))

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype  # type: ignore[no-any-return]

    @property
    def base_model(self) -> FusedLlama:
        return self

    def get_input_embeddings(self) -> nn.Module:
        return self.embed  # type: ignore[no-any-return]

    def get_output_embeddings(self) -> nn.Module:
        return self.head  # type: ignore[no-any-return]

    def _causal(self, positions: torch.Tensor) -> dict[str, Mask]:
        """Masks of a text that is read in one call, by kind of layer."""
        apart = positions[:, None, :, None] - positions[:, None, None, :]
        return {kind: (apart >= 0) & (apart < (window or torch.inf)) for kind, window in self.windows.items()}


def pack(network: Any) -> Any:
    """Lay the linear layers of a float32 network on the CPU out for calls of few rows, one by one and in place."""
    if can_pack():
        for parent in list(network.modules()):
            for name, child in list(parent.named_children()):
                if type(child) is nn.Linear:
                    setattr(parent, name, PackedLinear(child))
        lay_out(network)
    return network


def rebuild(network: Any) -> Any:
    """The network made of fused layers, or the network itself where that is not known to be the same function.

    Weights are not copied twice: those of the old network become views of the new one's, and it still works.
    """
    return FusedLlama(network) if _known(network) else network


def _known(network: Any) -> bool:
    config = network.config
    if config.model_type not in FAMILIES or type(network).__name__.removesuffix("ForCausalLM").lower() not in FAMILIES:
        return False
    rope = getattr(config, "rope_parameters", None) or {}
    layer = network.model.layers[0]
    free = [layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj, network.lm_head]
    return (
        rope.get("rope_type") in ROTATIONS
        and 2 * len(network.model.rotary_emb.inv_freq) == layer.self_attn.head_dim
        and config.hidden_act == "silu"
        and all(type(linear) is nn.Linear and linear.bias is None for linear in free)
        and not getattr(config, "quantization_config", None)
    )


def _norm(old: Any) -> nn.RMSNorm:
    new = nn.RMSNorm(len(old.weight), old.variance_epsilon, device="meta")
    new.weight = old.weight
    return new


def _fuse(layer: Any, config: Any) -> Block:
    attention, mlp = layer.self_attn, layer.mlp
    size = attention.head_dim
    shape = LayerShape(
        width=config.hidden_size,
        heads=attention.q_proj.out_features // size,
        shared=attention.k_proj.out_features // size,
        size=size,
        inner=mlp.gate_proj.out_features,
        eps=config.rms_norm_eps,
        bias=attention.q_proj.bias is not None,
    )
    with torch.device("meta"):
        block = Block(shape)
    block.norm_in, block.norm_mlp = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
    _join(block.qkv, [attention.q_proj, attention.k_proj, attention.v_proj])
    _join(block.gate_up, [mlp.gate_proj, mlp.up_proj])
    block.out, block.down = attention.o_proj, mlp.down_proj
    return block


@torch.no_grad()
def _join(new: nn.Linear, old: list[nn.Linear]) -> None:
    """Stack the weights of several layers; the old layers keep views of their parts."""
    for name in ("weight", "bias") if old[0].bias is not None else ("weight",):
        parts = [getattr(linear, name) for linear in old]
        whole = torch.cat([part.data for part in parts])
        setattr(new, name, nn.Parameter(whole, requires_grad=parts[0].requires_grad))
        for part, piece in zip(parts, torch.split(whole, [len(part) for part in parts]), strict=True):
            part.data = piece
