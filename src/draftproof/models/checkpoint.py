"""Refuse model folders and Hub ids that hold no decoder-only language model, with a line that says what they hold."""

from __future__ import annotations

import re
from typing import Any

from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from draftproof.errors import DraftproofError

OTHER_HEADS = re.compile(r"For(Sequence|Token)Classification|ForQuestionAnswering|ForMultipleChoice|Reward")


def check_config(name: str, config: Any) -> None:
    """Refuse, before its weights are read, a model that a decoder cannot be made of."""
    kind = config.model_type
    if config.is_encoder_decoder:
        raise DraftproofError(f"{name} is an encoder-decoder model ({kind}): choose a decoder-only one")
    head = next(iter(getattr(config, "architectures", None) or ()), "")
    if OTHER_HEADS.search(head):
        raise DraftproofError(f"{name} gives scores or labels, not text ({head}): choose a language model")
    # a model that comes with code of its own says by itself how it is loaded
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or getattr(config, "auto_map", None):
        return
    if kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        raise DraftproofError(f"{name} is a vision-language model ({kind}): choose one for text alone")
    if kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        raise DraftproofError(f"{name} fills in masked words and cannot continue a text ({kind}): choose a decoder")
    raise DraftproofError(f"{name} is no language model ({kind}): choose a decoder-only one")


def check_weights(name: str, missing: Any) -> None:
    """Refuse a model some of whose weights are not in its files: transformers fills them in at random."""
    if missing:
        first, more = sorted(missing)[0], f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise DraftproofError(
            f"{name} has no weights for {first}{more}: choose a language model, or copy or fetch it again"
        )
