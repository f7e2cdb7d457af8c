"""What guessing adds to memory, in bytes, from the buffers that are there; the text's own cache is not part of it."""

from __future__ import annotations

from typing import Any

from draftproof.draft import Draft
from draftproof.law import Array


def of_draft(draft: Draft, p: Array) -> dict[str, int]:
    """Of one step: laws of the nodes (logits and p beyond those of a plain step, and what the rule was given beside
    them), and a uniform for each guess, one to stop and one to go on."""
    rows, nodes = draft.tokens.shape
    laws = 2 * p.nbytes * (nodes - 1) // nodes
    laws += sum(law.nbytes for law in (draft.p, draft.q, draft.own) if law is not None and law is not p)
    return {"laws": int(laws), "noise": 8 * rows * (nodes + 1)}


def of_slots(target: Any, room: int) -> int:
    """The slots of the target's cache that are there for drafts: `room` in each row."""
    while hasattr(target, "session"):  # a memory in front of the target
        target = target.session
    cache = getattr(target, "cache", None)
    return 0 if cache is None else int(cache.bytes * room // (cache.capacity + 1))


def of_drafter(session: Any) -> int:
    """What a drafter's session holds: its cache, or what a lookup has noted down."""
    if hasattr(session, "sessions"):
        return sum(map(of_drafter, session.sessions))
    cache = getattr(session, "cache", None)
    return int(cache.bytes if cache is not None else getattr(session, "bytes", 0))
