"""Typical faults of engines as laws: each alternative is the law of the next token if the engine had that fault.

An alternative is a probability law a(. | past) over the vocabulary. If the engine is exact, the token y follows p, and
a(y) / p(y) has mean sum_y p(y) a(y) / p(y) = 1 given everything before it: a bet on the alternative is a fair game. How
well `a` describes the fault only decides how much is won when the engine is not exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from array_api_compat import array_namespace

from draftproof.law import Array, at, divide, normalise, one_hot, positive, residual

TINY = 1e-300
WIDE = 4096  # tokens of a large vocabulary that keep a column of their own
EMPTY = -4  # in place of an id: the column stands for no token
LAWS = ("p", "q", "untruncated", "unpenalised")
# Starting capital of a family, if it is not 1. More capital detects a fault log(capital) nats earlier. That helps with
# faults that take long to detect, and costs the others, detected within a few thousand tokens, next to nothing.
CAPITAL = {"acceptance": 8.0, "temperature": 3.0, "noise used again": 3.0}


class AuditRows(NamedTuple):
    """Tokens under audit, each with the laws it could follow. `condensed` and `derived` fill the last four fields."""

    p: Array  # [R, V] the target's law under the stated settings; a zero row where it is unknown
    y: Array  # [R] the token that was emitted
    seen: Array  # [R, V] whether a token occurs in the text before
    q: Array = None  # [R, V] the draft's law; a zero row where it has no guess
    untruncated: Array = None  # [R, V] without top-k, top-p and the like, where the settings have them
    unpenalised: Array = None  # [R, V] without penalties, where the settings have them
    again: Array = None  # [R] whether a draft of the step before reached this position and was rejected before it
    ids: Array = None  # [R, V] the token of each column; None where column i is token i
    ordered: Array = None  # [R, V] p, largest first
    logs: Array = None  # [R, V] log p
    rejected: Array = None  # [R, V] (p - q)+ as a law


def condensed(rows: AuditRows) -> AuditRows:
    """Reduce a large vocabulary to its likeliest tokens and two columns for the rest: possible and impossible ones.

    If a token follows p, its column follows the columns' masses. So bets on columns are fair too, at a tenth of the
    work. Which tokens have columns of their own depends on the past alone.
    """
    if rows.p.shape[-1] <= 2 * WIDE:
        return rows
    xp = array_namespace(rows.p)
    laws = {name: getattr(rows, name) for name in LAWS if getattr(rows, name) is not None}
    weight = sum(laws.values()) + xp.astype(rows.seen, rows.p.dtype)
    ids = xp.sort(_largest(weight, WIDE), axis=-1)
    possible = rows.p > 0
    own = xp.take_along_axis(possible, ids, axis=-1)
    columns = {}
    for name, law in laws.items():
        single = xp.astype(xp.take_along_axis(law, ids, axis=-1), xp.float64)
        rest = [_sum(law * some) - _sum(single * mine) for some, mine in ((possible, own), (~possible, ~own))]
        columns[name] = xp.concat([single, *(positive(mass) for mass in rest)], axis=-1)
    # counted, because a difference of rounded sums cannot tell whether any token is left
    remain = xp.concat([_sum(possible) > _sum(own), _sum(~possible) > _sum(~own)], axis=-1)
    mass = columns["p"][:, WIDE : WIDE + 1]
    possible_rest = xp.where(remain[:, :1], mass + TINY, mass * 0)
    columns["p"] = xp.concat([columns["p"][:, :WIDE], possible_rest, mass * 0], axis=-1)
    none = xp.zeros_like(ids[:, :1])
    names = xp.where(remain, xp.concat([none - 2, none - 3], axis=-1), EMPTY)
    match = ids == rows.y[:, None]
    elsewhere = xp.where(at(rows.p, rows.y) > 0, WIDE, WIDE + 1)
    y = xp.where(xp.any(match, axis=-1), xp.argmax(xp.astype(match, xp.int8), axis=-1), elsewhere)
    seen = xp.concat([xp.take_along_axis(rows.seen, ids, axis=-1), none > 0, none > 0], axis=-1)
    return rows._replace(y=y, seen=seen, ids=xp.concat([ids, names], axis=-1), **columns)


def _largest(weight: Array, count: int) -> Array:
    """Indices [R, count] of the largest entries of each row, in any order: much faster than a full sort."""
    if hasattr(weight, "topk"):
        return weight.topk(count, dim=-1, sorted=False).indices
    return np.argpartition(-weight, count, axis=-1)[:, :count]


def _sum(entries: Array) -> Array:
    xp = array_namespace(entries)
    return xp.sum(entries, axis=-1, keepdims=True, dtype=xp.float64)


def derived(rows: AuditRows) -> AuditRows:
    """Add to the rows what several alternatives need, computed once."""
    xp = array_namespace(rows.p)
    drawable = rows.p > 0
    return rows._replace(
        ordered=xp.sort(rows.p, axis=-1, descending=True),
        logs=xp.where(drawable, xp.log(xp.where(drawable, rows.p, 1.0)), -math.inf),
        rejected=None if rows.q is None else residual(rows.p, rows.q),
    )


def rows_at(rows: AuditRows, places: np.ndarray) -> AuditRows:
    """Some of the rows."""
    return AuditRows(*(None if array is None else array[places] for array in rows))


class Alternative(NamedTuple):
    """One fault: the law it would produce, and the shares of tokens on which it may happen."""

    family: str
    says: str  # "the outputs look like ..."
    law: Callable[[AuditRows], Array]  # [R, V]
    shares: tuple[float, ...] = (0.999,)  # below one: a single token must not be able to lose everything
    cap: Callable[[float], float] = lambda tolerance: tolerance**-0.25  # of the ratio, where noise is allowed for
    factor: float = 1.0  # of a temperature: by how much it is off
    stake: float = 1.0  # its part of the family's capital


def scaled(weights: Array) -> Array:
    """Like `normalise`, with fewer passes over the vocabulary."""
    total = array_namespace(weights).sum(weights, axis=-1, keepdims=True)
    return weights / (total + (total == 0))


# Temperature, truncation, repetition


def heated(factor: float) -> Callable[[AuditRows], Array]:
    """The law at `factor` times its temperature."""
    return lambda rows: scaled(array_namespace(rows.p).exp(rows.logs / factor))


def _kept(rows: AuditRows, threshold: Array) -> Array:
    return scaled(array_namespace(rows.p).where(rows.p >= threshold, rows.p, rows.p * 0))


def top_k(k: int) -> Callable[[AuditRows], Array]:
    return lambda rows: rows.p if k >= rows.p.shape[-1] else _kept(rows, rows.ordered[:, k - 1 : k])


def top_p(mass: float) -> Callable[[AuditRows], Array]:
    def law(rows: AuditRows) -> Array:
        xp = array_namespace(rows.p)
        before = xp.cumulative_sum(rows.ordered, axis=-1) - rows.ordered
        count = xp.sum(xp.astype(before < mass, xp.int64), axis=-1)
        return _kept(rows, at(rows.ordered, count - 1)[:, None])

    return law


def min_p(share: float) -> Callable[[AuditRows], Array]:
    return lambda rows: _kept(rows, share * rows.ordered[:, :1])


def repeated(pressure: float) -> Callable[[AuditRows], Array]:
    """Tokens of the text so far become exp(pressure) times as likely."""

    def law(rows: AuditRows) -> Array:
        return scaled(array_namespace(rows.p).where(rows.seen, rows.p * math.exp(pressure), rows.p))

    return law


def impossible(rows: AuditRows) -> Array:
    """A uniform law over the tokens that the settings forbid."""
    xp = array_namespace(rows.p)
    forbidden = xp.where(rows.p > 0, rows.p * 0, rows.p * 0 + 1)
    if rows.ids is not None:
        forbidden = xp.where(rows.ids == EMPTY, rows.p * 0, forbidden)
    return normalise(xp.where(xp.sum(forbidden, axis=-1, keepdims=True) > 0, forbidden, rows.p))


def untruncated(rows: AuditRows) -> Array:
    return rows.p if rows.untruncated is None else rows.untruncated


def unpenalised(rows: AuditRows) -> Array:
    return rows.p if rows.unpenalised is None else rows.unpenalised


# The draft. Every law is p where the draft has no guess: q is a zero row there.


def leaked(rows: AuditRows) -> Array:
    """Draft tokens are emitted unverified."""
    xp = array_namespace(rows.p)
    return xp.where(xp.sum(rows.q, axis=-1, keepdims=True) > 0, rows.q, rows.p)


def guessed(rows: AuditRows) -> Array:
    """The draft's best guess is emitted unverified."""
    xp = array_namespace(rows.p)
    best = one_hot(xp.argmax(rows.q, axis=-1), like=rows.p)
    return xp.where(xp.sum(rows.q, axis=-1, keepdims=True) > 0, best, rows.p)


def _verified(accepted: Array, rest: Array) -> Array:
    """The emitted law when the mass `accepted` is kept and the remainder is drawn from `rest`."""
    xp = array_namespace(accepted)
    return accepted + positive(1 - xp.sum(accepted, axis=-1, keepdims=True)) * rest


def _smaller(a: Array, b: Array) -> Array:
    return array_namespace(a).where(a < b, a, b)


def eager(factor: float) -> Callable[[AuditRows], Array]:
    """A guess is kept with factor * p / q instead of p / q."""
    return lambda rows: _verified(_smaller(rows.q, factor * rows.p), rows.rejected)


def careless(rows: AuditRows) -> Array:
    """After a rejection the token is drawn from p instead of (p - q)+."""
    return _verified(_smaller(rows.q, rows.p), rows.p)


def refused(rows: AuditRows) -> Array:
    """No guess is accepted where a position is drafted again: its test has failed once with the same noise."""
    return rows.p if rows.again is None else array_namespace(rows.p).where(rows.again[:, None], rows.rejected, rows.p)


def preferred(rows: AuditRows) -> Array:
    """Only accepted guesses are emitted where a position is drafted again."""
    if rows.again is None:
        return rows.p
    xp = array_namespace(rows.p)
    accepted = _smaller(rows.q, rows.p)
    usable = rows.again[:, None] & (xp.sum(accepted, axis=-1, keepdims=True) > 0)
    return xp.where(usable, scaled(accepted), rows.p)


def mistaken(factor: float) -> Callable[[AuditRows], Array]:
    """Guesses from q are verified as if they came from q at another temperature."""

    def law(rows: AuditRows) -> Array:
        believed = scaled(rows.q ** (1 / factor))
        accepted = rows.q * divide(_smaller(believed, rows.p), believed)
        return _verified(accepted, residual(rows.p, believed))

    return law


def best_as_drawn(rows: AuditRows) -> Array:
    """The draft's best guess is verified as if it had been drawn from q."""
    best = one_hot(array_namespace(rows.p).argmax(rows.q, axis=-1), like=rows.p)
    return _verified(best * divide(_smaller(rows.q, rows.p), rows.q), rows.rejected)


def alternatives(draft: bool, steps: bool = False) -> tuple[Alternative, ...]:
    """All alternatives; those about the draft only where its law is known, those about steps where these are too."""
    often, rarely = (0.03, 0.3, 0.999), (0.003, 0.01, 0.03, 0.1, 0.3)
    listed = [
        Alternative("truncation ignored", "the truncation were ignored", untruncated, often),
        Alternative("penalties ignored", "the penalties were ignored", unpenalised, often),
    ]
    for size in (0.01, 0.02, 0.04, 0.08, 0.16, 0.32):
        for factor in (1 - size, 1 + size):
            words = f"the temperature were {factor:.2f} times the stated one"
            listed.append(Alternative("temperature", words, heated(factor), factor=factor))
    for k in (10, 40, 100):
        listed.append(Alternative("truncation added", f"top-k {k} were added to the settings", top_k(k), often))
    for mass in (0.8, 0.9, 0.95, 0.99):
        listed.append(Alternative("truncation added", f"top-p {mass} were added to the settings", top_p(mass), often))
    for share in (0.02, 0.1):
        listed.append(Alternative("truncation added", f"min-p {share} were added to the settings", min_p(share), often))
    for pressure in (-0.4, -0.1, 0.1, 0.4):
        words = f"tokens of the text so far were {math.exp(pressure):.2f} times as likely"
        listed.append(Alternative("repetition", words, repeated(pressure)))
    if draft:
        listed += [
            Alternative("draft leaks", "draft tokens went unchecked", leaked, rarely),
            Alternative("best guess leaks", "the draft's most probable token went unchecked", guessed, rarely),
            Alternative("rejection", "p instead of (p - q)+ were drawn after a rejection", careless, often),
            Alternative("wrong q", "the draft's top token were verified as a draw from q", best_as_drawn, often),
            Alternative("wrong q", "draft tokens were verified with a q that is too hot", mistaken(1.4), often),
            Alternative("wrong q", "draft tokens were verified with a q that is too cold", mistaken(0.7), often),
        ]
        for factor, stake in ((0.9, 1.0), (1.02, 6.0), (1.1, 1.0), (1.5, 1.0)):  # a small bias takes longest to detect
            words = f"draft tokens were accepted {factor} times as often as they should"
            listed.append(Alternative("acceptance", words, eager(factor), stake=stake))
    if draft and steps:
        again, shares = "where a position is drafted again, draft tokens were accepted too", (0.01, 0.03, 0.1, 0.3)
        listed.append(Alternative("noise used again", f"{again} rarely", refused, shares, stake=2.0))
        listed.append(Alternative("noise used again", f"{again} often", preferred, shares))
    forbidden = Alternative(
        "impossible tokens", "tokens came that the settings forbid", impossible, (0.001, 0.03), lambda noise: 1 / noise
    )
    return (*listed, forbidden)
