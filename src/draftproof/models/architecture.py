"""What a network of transformers is: whether it continues a text, what its layers see, and whether drafts fit it."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from draftproof.errors import DraftproofError

# kinds of attention whose masks we write ourselves, for a whole draft tree in one call
MASKED = {"full_attention", "sliding_attention", "chunked_attention"}
RECURRENT = {"linear_attention", "conv", "hybrid", "hybrid_sliding", "mamba", "mamba2", "recurrent"}
CACHES = ("past_key_values", "cache_params", "state")  # what transformers' networks call what they keep of a text


def check_decoder(network: Any) -> None:
    """Refuse a network that does not continue a text from left to right."""
    name = network.config.get_text_config().model_type
    if network.config.is_encoder_decoder:
        raise DraftproofError(f"{name} is an encoder-decoder model: choose a decoder-only one")
    # most networks are decoders and nothing else; the others are asked
    doubtful = getattr(network.config, "is_decoder", None) is False or "position_ids" not in parameters(network)
    if doubtful and reads_ahead(network):
        raise DraftproofError(f"{name} reads a text in both directions, as masked models do: choose a decoder-only one")
    if not cache_name(network):
        raise DraftproofError(f"{name} has no KV cache, so every token would read the whole text: choose another model")


def is_pretrained(network: Any) -> bool:
    """Whether it is a PreTrainedModel of transformers, which need not be imported to find that out."""
    return any(kind.__module__ == "transformers.modeling_utils" for kind in type(network).__mro__)


def parameters(network: Any) -> set[str]:
    """The names that its forward takes; of a wrapper, such as an adapter, those of the network within."""
    return set(inspect.signature(within(network).forward).parameters)


def within(network: Any) -> Any:
    """The network of transformers in a wrapper; the network itself where there is none, as in a rebuilt one."""
    parts = network.modules() if isinstance(network, torch.nn.Module) else ()
    return next((part for part in parts if is_pretrained(part)), network)


def cache_name(network: Any) -> str | None:
    """The name under which it takes and returns what it keeps of a text."""
    taken = parameters(network)
    return next((name for name in CACHES if name in taken), None)


@torch.no_grad()
def reads_ahead(network: Any) -> bool:
    """Whether the logits after a token depend on the token after it, found out by trying."""
    last = network.config.get_text_config().vocab_size - 1
    one, other = network(torch.tensor([[last, last], [last, last - 1]], device=network.device)).logits[:, 0].float()
    return not torch.allclose(one, other, atol=1e-3, rtol=1e-3)


def attention_windows(network: Any) -> dict[str, int | None]:
    """How far each kind of attention in the network looks back (None: to the start); no kind if drafts do not fit it.

    A token of "chunked_attention" sees the tokens of its own chunk alone, of which its window is the size.
    """
    if obstacle(network):
        return {}
    config = network.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    reach = {
        "full_attention": None,
        "sliding_attention": getattr(config, "sliding_window", None),
        "chunked_attention": getattr(config, "attention_chunk_size", None),
    }
    if len(kinds) > 1 or "chunked_attention" in kinds:
        return {kind: reach[kind] for kind in reach if kind in kinds}
    if reach["sliding_attention"] is None or kinds == {"full_attention"}:
        return {"full_attention": None}
    return {"sliding_attention": reach["sliding_attention"]}


def obstacle(network: Any) -> str:
    """Why drafts for this network cannot be checked and rolled back; empty where they can."""
    config = network.config.get_text_config()
    name, taken = config.model_type, parameters(network)
    kinds = set(getattr(config, "layer_types", None) or ())
    other = sorted(kinds - MASKED)
    if kinds & RECURRENT or (getattr(within(network), "_is_stateful", False) and not other):
        return f"{name} keeps a recurrent state, so drafts cannot be rolled back"
    if other:
        return f"{name} has {other[0]} layers, so drafts cannot be rolled back"
    if "local" in (getattr(config, "attention_layers", None) or ()):  # gpt_neo: a window of slots, not of positions
        return f"{name} has local attention layers, so a draft cannot be checked in one call"
    if getattr(config, "alibi", False) or not {"position_ids", "past_key_values"} <= taken:
        return f"{name} takes no position ids, so a draft cannot be checked in one call"
    return ""


def longest_draftable(network: Any) -> int | None:
    """The longest text for which drafts fit a network that counts tokens itself; None where there is no such limit.

    Some layers of llama4 scale their queries from token `floor_scale` on. They count the slots of the KV cache and the
    call's tokens, at most twice the text, and not the positions that they are given.
    """
    config = network.config.get_text_config()
    if config.model_type == "llama4_text" and config.attn_temperature_tuning and not all(config.no_rope_layers):
        return int(config.floor_scale - 2) // 2
    return None
