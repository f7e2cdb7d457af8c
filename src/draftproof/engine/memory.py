"""Memory: what drafting adds, and what is said where a device has too little of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from draftproof.draft import Draft
from draftproof.engine.request import Request
from draftproof.errors import DraftproofError
from draftproof.law import Array
from draftproof.models.base import Model, facts

Opened = TypeVar("Opened")
OutOfMemory = torch.OutOfMemoryError  # of a GPU
SPARE = 0.9  # of what is free may go to the KV cache: a call needs memory too


def draft_bytes(draft: Draft, p: Array) -> dict[str, int]:
    """Bytes of one step, without the text's own KV cache: its laws and its noise.

    Laws are logits and p beyond those of a plain step, and what the rule gets besides. Noise is a uniform for each
    draft token, one for the stop and one for the emitted token.
    """
    rows, nodes = draft.tokens.shape
    laws = 2 * p.nbytes * (nodes - 1) // nodes
    laws += sum(law.nbytes for law in (draft.p, draft.q, draft.own) if law is not None and law is not p)
    return {"laws": int(laws), "noise": 8 * rows * (nodes + 1)}


def opened(opens: Callable[[], Opened], models: Sequence[Model], rows: int, length: int) -> Opened:
    """What `opens` returns; where the device has too little memory, one line says what was asked for and what fits."""
    try:
        return opens()
    except OutOfMemory:
        pass  # what was half open is freed with the error
    raise DraftproofError(_too_large(sum(facts(model).token_bytes for model in models), rows, length))


def _too_large(token_bytes: int, rows: int, length: int) -> str:
    asked = f"out of memory: {rows} rows of {length} tokens take {_size(rows * length * token_bytes)} of KV cache"
    free = _free()
    room = int(SPARE * free) // max(token_bytes, 1)  # tokens
    fitting = [f"{room // length} rows of that length fit"] if room >= length else []
    fitting += [f"{rows} rows of {room // rows} tokens fit"] if room >= rows else []
    remedy = ", or ".join(fitting) or "choose a smaller model or another dtype"
    return f"{asked} and {_size(free)} are free: {remedy}"


def too_long(request: Request, others: int) -> DraftproofError:
    """The error of a request for whose prompt there was no memory beside other texts."""
    return DraftproofError(
        f"out of memory: the prompt of {len(request.prompt)} tokens could not be read beside {others} other texts: "
        "shorten it, or open fewer rows or a smaller length"
    )


def _free() -> int:
    """Bytes of the current GPU that nobody has, and those that torch has and does not use."""
    return int(torch.cuda.mem_get_info()[0]) + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 10**9 else f"{count / 1e6:.0f} MB"
