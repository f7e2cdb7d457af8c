"""Node plan: some top tokens without a test, the others i.i.d. from the rest and picked optimally (bound: 2502.18779).

It joins top_plus_one and optimal: the rule of draftproof.draws says from q alone how many guesses are fixed, hull and
peel picks among the others, and a corrected token among the fixed ones is accepted there. No rule accepts more under
this way of drawing.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.draws import rest, tops
from draftproof.law import Array
from draftproof.verify import register
from draftproof.verify._merge import apart
from draftproof.verify._topdown import judge, siblings, top_down
from draftproof.verify.optimal import choose


def rule(p: Array, laws: list[Array], tokens: Array) -> tuple[Array, Array]:
    """The optimal pick among the guesses that were drawn; the fixed ones count as not drawn until a token hits them."""
    xp = array_namespace(tokens)
    free, drawn = [], []
    for b, many in enumerate(siblings(tokens).tolist()):
        count = tops(laws[0][b : b + 1], many)
        free.append(rest(laws[0][b : b + 1], count, many)[1] if many else laws[0][b : b + 1])
        drawn.append(xp.concat([tokens[b, : int(count[0])] * 0 - 1, tokens[b, int(count[0]) :]]))
    q, left = xp.concat(free, axis=0), xp.stack(drawn, axis=0)
    a, chosen = choose(p, q, left)
    return judge(p, a, chosen, tokens)


# Of two equal guesses each has its own fixed ones below it, so they stay apart.
stop, next = top_down(rule, merge=apart)

register(
    "nodeplan",
    summary="as many top tokens as the draft's law suggests without a test, the other candidates picked optimally",
    paper="2502.18779",
    draws={"plan"},
    trees="any",
    stop=stop,
    next=next,
)
