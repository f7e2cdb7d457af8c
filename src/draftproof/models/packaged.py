"""What comes with the package: models small enough to be there without a network.

Their tokenizer is kept compressed, at a sixth of its size; transformers does not read that, so it is read here.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

WEIGHTS = Path(__file__).resolve().parents[1] / "weights"
TOKENIZER = "tokenizer.json.gz"
TEMPLATE = "chat_template.jinja"


def folder(name: str) -> Path:
    """Where the package keeps the model of that name."""
    return WEIGHTS / name


def tokenizer(place: Path) -> Any:
    """The tokenizer that `save_tokenizer` wrote there."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer.from_str(gzip.decompress((place / TOKENIZER).read_bytes()).decode("utf-8"))
    names = json.loads((place / "tokenizer_config.json").read_text(encoding="utf-8"))
    made = PreTrainedTokenizerFast(tokenizer_object=core, **names)
    template = place / TEMPLATE
    made.chat_template = template.read_text(encoding="utf-8") if template.exists() else None
    return made


def save_tokenizer(tokenizer: Any, place: Path) -> None:
    """Vocabulary, special tokens and chat template, compressed; the same input gives the same bytes."""
    text = json.dumps(json.loads(tokenizer.backend_tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
    (place / TOKENIZER).write_bytes(gzip.compress(text.encode("utf-8"), 9, mtime=0))
    names = {name: str(token) for name, token in sorted(tokenizer.special_tokens_map.items()) if isinstance(token, str)}
    (place / "tokenizer_config.json").write_text(json.dumps(names, indent=1) + "\n", encoding="utf-8")
    if tokenizer.chat_template:
        (place / TEMPLATE).write_text(tokenizer.chat_template, encoding="utf-8")
