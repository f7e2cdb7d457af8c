"""Rules that give up exactness for speed, kept apart from `verify`; each reports what it costs.

A rule decides from the rows p and q of a context how likely each guess is kept, and the law of the token when it is
not. That fixes the law of the emitted token, so the cost at every token is known, not estimated: the total variation
from p. Added up over a text, it bounds (in the mean) the total variation of the whole text's law.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from array_api_compat import array_namespace

from draftproof.draft import Draft
from draftproof.errors import DraftproofError
from draftproof.law import Array, at, row, total_variation
from draftproof.rule import Lossy, Registry, import_all

# (p [..., V], q [..., V]) -> (chance [..., V] to keep a guess, law [..., V] of the token when it is not kept)
TokenRule = Callable[[Array, Array], tuple[Array, Array]]


class LossyFamily(NamedTuple):
    """A lossy rule before its parameters are chosen."""

    name: str
    summary: str
    paper: str
    settings: Mapping[str, float]  # name -> default, in order
    make: Callable[..., Lossy]


LOSSY: Registry[LossyFamily] = Registry("lossy rule")


def register(name: str, *, summary: str, paper: str, settings: Mapping[str, float], make: Callable[..., Lossy]) -> None:
    """Enter a family under its name."""
    LOSSY[name] = LossyFamily(name, f"not exact: {summary}", paper, settings, make)


def get(text: str) -> Lossy:
    """The rule that "name" or "name:number,number" describes; numbers left out take their defaults.

    >>> get("lenience:0.8").notice
    "not exact: lenience (factor = 0.8) changes the target's law; its total variation is accounted for"
    """
    name, _, numbers = text.partition(":")
    family = LOSSY.find(name)
    values = [_number(number, text) for number in numbers.split(",") if number]
    if len(values) > len(family.settings):
        raise DraftproofError(f"{text!r} has {len(values)} numbers, but {name} takes only {', '.join(family.settings)}")
    return family.make(*values, *list(family.settings.values())[len(values) :])


def _number(number: str, text: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise DraftproofError(f"{number!r} in {text!r} is not a number: write name:number,number") from None


def on_chain(name: str, setting: str, rule: TokenRule) -> Lossy:
    """A rule for one token, applied from left to right and stopped where a guess is not kept."""

    def stop(draft: Draft) -> Array:
        xp = array_namespace(draft.tokens)
        keep, _ = rule(draft.p[:, :-1], draft.q[:, :-1])
        guess = draft.tokens[:, 1:]
        kept = xp.where(guess < 0, draft.p[:, :-1, 0] * 0, at(keep, guess))  # [B, N - 1]
        reach, law = draft.p[:, 0, 0] * 0 + 1, []
        for i in range(kept.shape[1]):
            law.append(reach * (1 - kept[:, i]))
            reach = reach * kept[:, i]
        return xp.stack([*law, reach], axis=1)

    def next(draft: Draft, node: Array) -> Array:
        return rule(row(draft.p, node), row(draft.q, node))[1]

    def emitted(draft: Draft) -> Array:
        keep, rest = rule(draft.p, draft.q)
        kept = draft.q * keep
        return kept + (1 - array_namespace(kept).sum(kept, axis=-1, keepdims=True)) * rest

    def account(draft: Draft) -> Array:
        return total_variation(emitted(draft), draft.p)

    return Lossy(name, setting, stop, next, emitted, account)


import_all(__name__, __path__)
