"""Top tokens plus one draw (Hu et al., arXiv 2502.18779; SpecHub, 2411.05289, for two): the best for its draft law.

All guesses but the last are the draft's most probable tokens and need no test. The last is drawn from the rest of q and
judged by the token rule against that rest; a corrected token among the top ones is accepted there.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.draws import rest
from draftproof.law import Array, at, capped_ratio, residual
from draftproof.verify import register
from draftproof.verify._topdown import siblings, top_down


def rule(p: Array, laws: list[Array], tokens: Array) -> tuple[Array, Array]:
    """The token rule for the last guess drawn."""
    xp = array_namespace(tokens)
    count = siblings(tokens)
    _, q = rest(laws[0], count - 1, tokens.shape[1])
    accept = []
    for k in range(tokens.shape[1]):
        ratio = capped_ratio(at(p, tokens[:, k]), at(q, tokens[:, k]))
        accept.append(xp.where(k == count - 1, ratio, ratio * 0))
    return xp.stack(accept, axis=1), residual(p, q)


stop, next = top_down(rule)

register(
    "top_plus_one",
    summary="the draft's top tokens without a test, and one draw from the rest by the token rule",
    paper="2502.18779",
    draws={"top"},
    trees="any",
    stop=stop,
    next=next,
)
