"""k-SEQ (SpecTr, Sun et al., arXiv 2310.15141): each candidate by one test, strict enough for K of them together.

A guess is kept with min(1, p / (rho q)). With beta = sum min(p / rho, q) that accepts 1 - (1 - beta)^K in all, which
must not be more than rho beta, or some token is emitted too often. Every rho from the smallest such one up is exact, so
the search for it keeps its upper end, and rounding costs speed alone.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from draftproof.law import Array, at, capped_ratio, divide, normalise, positive
from draftproof.verify import register
from draftproof.verify._topdown import siblings, top_down

HALVINGS = 40


def rho(p: Array, q: Array, count: Array) -> Array:
    """[B]: from above, the smallest rho in [1, K] that is exact for K = count [B] guesses."""
    xp = array_namespace(p, q)
    low = p[:, 0] * 0 + 1
    high = low * xp.where(count > 1, count, count * 0 + 1)
    for _ in range(HALVINGS if xp.any(count > 1) else 0):  # one guess is fair as it is
        middle = (low + high) / 2
        beta = _beta(p, q, middle)
        fair = 1 - (1 - beta) ** count <= middle * beta
        low, high = xp.where(fair, low, middle), xp.where(fair, middle, high)
    return high


def rule(p: Array, laws: list[Array], tokens: Array) -> tuple[Array, Array]:
    """The same test for each guess in turn; if all fail, p less what the tests emit of it."""
    return rule_with(rho(p, laws[0], siblings(tokens)), p, laws[0], tokens)


def rule_with(rho: Array, p: Array, q: Array, tokens: Array) -> tuple[Array, Array]:
    """The rule for a given rho [B]."""
    xp = array_namespace(tokens)
    accept, refused = [], rho * 0 + 1
    for k in range(tokens.shape[1]):
        ratio = capped_ratio(at(p, tokens[:, k]), rho * at(q, tokens[:, k]))
        kept = xp.where(tokens[:, k] >= 0, ratio, ratio * 0)
        accept.append(refused * kept)
        refused = refused * (1 - kept)
    beta, scaled = _beta(p, q, rho), p / rho[:, None]
    often = divide(1 - (1 - beta) ** siblings(tokens), beta)  # each token is emitted this often, times min(p / rho, q)
    left = positive(p - often[:, None] * xp.where(scaled < q, scaled, q))
    return xp.stack(accept, axis=1), normalise(xp.where(xp.sum(left, axis=-1, keepdims=True) > 0, left, p))


def _beta(p: Array, q: Array, rho: Array) -> Array:
    scaled = p / rho[:, None]
    xp = array_namespace(p, q)
    return xp.sum(xp.where(scaled < q, scaled, q), axis=-1)


stop, next = top_down(rule)

register(
    "kseq",
    summary="every candidate by one test that is strict enough for all of them together",
    paper="2310.15141",
    draws={"iid"},
    trees="any",
    stop=stop,
    next=next,
)
