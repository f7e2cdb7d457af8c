"""Memory that drafting adds, in bytes, without the text's own KV cache."""

from __future__ import annotations

from draftproof.draft import Draft
from draftproof.law import Array


def draft_bytes(draft: Draft, p: Array) -> dict[str, int]:
    """Bytes of one step: its laws and its noise.

    Laws are logits and p beyond those of a plain step, and what the rule gets besides. Noise is a uniform for each
    draft token, one for the stop and one for the emitted token.
    """
    rows, nodes = draft.tokens.shape
    laws = 2 * p.nbytes * (nodes - 1) // nodes
    laws += sum(law.nbytes for law in (draft.p, draft.q, draft.own) if law is not None and law is not p)
    return {"laws": int(laws), "noise": 8 * rows * (nodes + 1)}
