"""The target's laws after the nodes of a draft, where a text can come there.

A draft token may have probability zero under the target: its drafter need not know the target's controls. No text goes
on below it, so a user's processor must not be asked about what follows there: it may raise, for that history cannot
occur. The same holds below a token that ends the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from array_api_compat import array_namespace

from draftproof.draft import Tree
from draftproof.engine.eager.rows import Masks, Row, as_numpy, laws, laws_in_place
from draftproof.law import Array


def target_laws(logits: Array, rows: Sequence[Row], tree: Tree, tokens: np.ndarray, masks: Masks) -> Array:
    """The laws [B, N, V] of logits [B, N, V]; nodes that no text reaches have the law of node 0."""
    samplings = [row.sampling for row in rows]
    if not any(sampling.processors for sampling in samplings) or tree.size == 1:
        return laws(logits, rows, tree, tokens, range(tree.size), samplings, masks)
    logits = as_numpy(logits, samplings, masks)
    p = [laws_in_place(logits[:, :1], rows, tree, tokens, [0], samplings, _of(masks, [0]))[:, 0]]
    reached = np.zeros(tokens.shape, dtype=bool)
    reached[:, 0] = True
    for node in range(1, tree.size):
        parent, token = tree.parent[node], tokens[:, node]
        for b in range(len(rows)):
            possible = reached[b, parent] and token[b] >= 0 and token[b] not in samplings[b].ends
            reached[b, node] = possible and bool(p[parent][b, int(token[b])] > 0)
        some = np.nonzero(reached[:, node])[0].tolist()
        here = p[0] + 0
        if some:
            asked = [rows[b] for b in some], tree, tokens[some], [node], [samplings[b] for b in some]
            own = {i: masks[b] for i, b in enumerate(some) if b in masks}
            here[some] = laws_in_place(logits[some, node : node + 1], *asked, _of(own, [node]))[:, 0]
        p.append(here)
    return array_namespace(logits).stack(p, axis=1)


def _of(masks: Masks, nodes: Sequence[int]) -> Masks:
    return {b: [some[node] for node in nodes] for b, some in masks.items()}
