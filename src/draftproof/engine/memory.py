"""What drafting adds to memory, in bytes, from the buffers that are there; not the text's own KV cache."""

from __future__ import annotations

from draftproof.draft import Draft
from draftproof.law import Array


def draft_bytes(draft: Draft, p: Array) -> dict[str, int]:
    """Of one step: laws of the nodes (logits and p beyond those of a plain step, and what the rule was given beside
    them), and a uniform for each draft token, one to stop and one to go on."""
    rows, nodes = draft.tokens.shape
    laws = 2 * p.nbytes * (nodes - 1) // nodes
    laws += sum(law.nbytes for law in (draft.p, draft.q, draft.own) if law is not None and law is not p)
    return {"laws": int(laws), "noise": 8 * rows * (nodes + 1)}
