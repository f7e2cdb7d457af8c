"""How far the layers of a transformers network see."""

from __future__ import annotations

from typing import Any

from draftproof.errors import DraftproofError


def attention_windows(network: Any) -> dict[str, int | None]:
    """Window of each kind of attention in the model (None: unlimited), or an error if it cannot be rolled back."""
    config = network.config.get_text_config()
    name = config.model_type
    kinds = set(getattr(config, "layer_types", None) or ())
    if getattr(network, "_is_stateful", False) or kinds - {"full_attention", "sliding_attention"}:
        raise DraftproofError(
            f"{name} models keep a recurrent state that cannot be rolled back, so rejected drafts could not be undone: "
            "choose a model whose layers are all attention"
        )
    if network.config.is_encoder_decoder or getattr(config, "alibi", False) or name in ("bloom", "mpt"):
        raise DraftproofError(f"{name} models are not supported: choose a decoder-only model with position ids")
    window = getattr(config, "sliding_window", None)
    if kinds == {"full_attention", "sliding_attention"}:
        return {"full_attention": None, "sliding_attention": window}
    if window is None or kinds == {"full_attention"}:
        return {"full_attention": None}
    return {"sliding_attention": window}
