"""A transformers network of the Llama family, rebuilt from fused layers: the same function in far fewer operations.

One product makes queries, keys and values, one makes gate and up, and positions are turned once a call. On the CPU the
weights are laid out so that a call of several tokens costs little more than one of a single token. `rebuild` takes the
layers apart that it knows and leaves every other network as it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from draftproof import native
from draftproof.models.hf import attention_windows
from draftproof.models.llama import cuda
from draftproof.models.llama.block import Block, Blocks, Mask, Rotation, Shape, lay_out
from draftproof.models.static.packing import Texts
from draftproof.native import build

FAMILIES = ("llama", "mistral", "qwen2")
ROTATIONS = ("default", "linear", "llama3", "yarn")  # frequencies that do not depend on the length of the text


class Said(NamedTuple):
    """What transformers' networks return, as far as it is used."""

    logits: torch.Tensor
    hidden_states: tuple[torch.Tensor, ...] | None = None  # embeddings, after each layer; the last one normed


class Lean(nn.Module):
    """Called as a transformers network is."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        inner = network.model
        self.config, self.generation_config = network.config, network.generation_config
        self.embed = inner.embed_tokens
        self.blocks = Blocks(_fuse(layer, network.config) for layer in inner.layers)
        self.norm = _norm(inner.norm)
        self.head = network.lm_head
        # no buffer: a network in bfloat16 still needs its angles in float32
        self.frequencies, self.scale = inner.rotary_emb.inv_freq.float(), float(inner.rotary_emb.attention_scaling)
        self.windows = attention_windows(network)
        self.kinds = getattr(network.config, "layer_types", None) or [None] * len(self.blocks)

    def forward(
        self,
        input_ids: torch.Tensor,  # [B, T]
        attention_mask: Mask | dict[str, Mask] = None,
        position_ids: torch.Tensor | None = None,  # [B, T]
        past_key_values: Any = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        output_hidden_states: bool = False,
    ) -> Said:
        """Without mask and cache every token sees those before it; without a mask alone, all that is stored."""
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        if self.frequencies.device != input_ids.device:
            self.frequencies = self.frequencies.to(input_ids.device)
        if attention_mask is None and past_key_values is None:
            attention_mask = self._causal(position_ids)
        x = self.embed(input_ids)
        masks = attention_mask.values() if isinstance(attention_mask, dict) else [attention_mask]
        if any(isinstance(mask, cuda.Rule | Texts) for mask in masks):
            rotation = Rotation(*cuda.angles(position_ids, self.frequencies, self.scale, x.dtype))
        else:
            rotation = Rotation.of(position_ids, self.frequencies, self.scale).to(x.dtype)
        stores = [None] * len(self.blocks) if past_key_values is None else past_key_values.layers
        each = [attention_mask[kind] if isinstance(attention_mask, dict) else attention_mask for kind in self.kinds]
        x, states = self.blocks(x, rotation, each, stores, keep=output_hidden_states)
        if output_hidden_states:
            x = self.norm(x)
            return Said(self.head(x[:, -logits_to_keep:]), (*states, x))
        return Said(self.head(self.norm(x[:, -logits_to_keep:])))

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype  # type: ignore[no-any-return]

    @property
    def base_model(self) -> Lean:
        return self

    def get_input_embeddings(self) -> nn.Module:
        return self.embed  # type: ignore[no-any-return]

    def get_output_embeddings(self) -> nn.Module:
        return self.head  # type: ignore[no-any-return]

    def _causal(self, positions: torch.Tensor) -> dict[str, Mask] | Mask:
        """Masks of a text that is read at once."""
        apart = positions[:, None, :, None] - positions[:, None, None, :]
        seen: dict[str, Mask] = {
            kind: (apart >= 0) & (apart < (window or torch.inf)) for kind, window in self.windows.items()
        }
        return seen if len(seen) > 1 else next(iter(seen.values()))


class Packed(nn.Module):
    """A linear layer in float32 whose weight is laid out for calls of few rows: by our own function, or by oneDNN."""

    LEAST = 4  # rows, below which oneDNN is slower than on four

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, bias = linear.weight.detach(), None if linear.bias is None else linear.bias.detach()
        self.bias = bias
        self.layer = native.lay_out_floats(weight, bias)
        self.laid_out: Any = None if self.layer else torch.ops.mkldnn._reorder_linear_weight(weight, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.layer is not None:
            return native.linear(x, self.layer)
        rows = x.reshape(-1, x.shape[-1])
        count = len(rows)
        if count < self.LEAST:
            rows = F.pad(rows, (0, 0, 0, self.LEAST - count))
        out = torch.ops.mkldnn._linear_pointwise.default(rows, self.laid_out, self.bias, "none", [], "")
        return out[:count].view(*x.shape[:-1], -1)  # type: ignore[no-any-return]

    @property
    def weight(self) -> torch.Tensor:
        """[out, in], made anew."""
        return self.laid_out.to_dense() if self.layer is None else self.layer.dense


def pack(network: Any) -> Any:
    """Lay the linear layers of a float32 network on the CPU out for calls of few rows, one by one and in place."""
    if torch._C._has_mkldnn or build.compiled() is not None:
        for parent in list(network.modules()):
            for name, child in list(parent.named_children()):
                if type(child) is nn.Linear:
                    setattr(parent, name, Packed(child))
        lay_out(network)
    return network


def rebuild(network: Any) -> Any:
    """The network made of fused layers, or the network itself where that is not known to be the same function.

    The weights are not doubled: those of the old network become parts of the new one's, and it still works.
    """
    return Lean(network) if _known(network) else network


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
    shape = Shape(
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
    """Weights one under the other; the old layers keep views of their parts."""
    for name in ("weight", "bias") if old[0].bias is not None else ("weight",):
        parts = [getattr(linear, name) for linear in old]
        whole = torch.cat([part.data for part in parts])
        setattr(new, name, nn.Parameter(whole, requires_grad=parts[0].requires_grad))
        for part, piece in zip(parts, torch.split(whole, [len(part) for part in parts]), strict=True):
            part.data = piece
