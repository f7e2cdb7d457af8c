"""The sampling controls as functions from scores to scores; a token that is cut gets minus infinity.

They follow transformers' processors to the letter, ties included, with two additions: a value may differ from row to
row (schedules), and penalties on the output alone (presence, frequency) follow the OpenAI definition. `scores` is
[R, V]; a control's value is a number or an array [R, 1].
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from draftproof.law import Array, at, one_hot


def softmax(scores: Array, temperature: float = 1.0, best: Array | None = None) -> Array:
    """The law proportional to exp(scores / temperature); `best` [R, 1] are the largest scores, if they are known."""
    xp = array_namespace(scores)
    weights = scores - (xp.max(scores, axis=-1, keepdims=True) if best is None else best)
    if temperature != 1:
        weights /= temperature
    weights = weights.exp_() if hasattr(weights, "exp_") else xp.exp(weights)  # torch: in place, no new memory
    weights /= xp.sum(weights, axis=-1, keepdims=True)  # more exact than torch's own softmax in float32
    return weights


def entropy(law: Array) -> Array:
    """Entropy of each row [R, 1] in nats."""
    xp = array_namespace(law)
    return -xp.sum(
        xp.where(law > 0, law * xp.log(xp.where(law > 0, law, law * 0 + 1)), law * 0), axis=-1, keepdims=True
    )


def cut(scores: Array, remove: Array) -> Array:
    """The scores with minus infinity where `remove` is true."""
    return array_namespace(scores).where(remove, float("-inf"), scores)


def add_bias(scores: Array, bias: Array) -> Array:
    """A constant added to chosen tokens; minus infinity bans one."""
    return scores + bias


def penalise_repetition(scores: Array, counts: Array, penalty: Any) -> Array:
    """Keskar et al. 1909.05858: scores of tokens seen in prompt or output, divided if positive, else multiplied."""
    xp = array_namespace(scores)
    return xp.where(counts > 0, xp.where(scores < 0, scores * penalty, scores / penalty), scores)


def penalise_output(scores: Array, counts: Array, presence: float, frequency: float) -> Array:
    """OpenAI's penalties: `presence` once for a token of the output, `frequency` for each time it occurs there."""
    xp = array_namespace(scores)
    counts = xp.astype(counts, scores.dtype)
    return scores - presence * xp.astype(counts > 0, scores.dtype) - frequency * counts


def temperature(scores: Array, value: Any) -> Array:
    """scores / value; 0 keeps the largest score alone (the first of equals)."""
    xp = array_namespace(scores)
    if not hasattr(value, "shape") and value > 0:
        return scores if value == 1 else scores / value
    greedy = cut(scores, one_hot(xp.argmax(scores, axis=-1), like=scores) == 0)
    if not hasattr(value, "shape"):
        return greedy
    return xp.where(value > 0, scores / xp.where(value > 0, value, value * 0 + 1), greedy)


def top_k(scores: Array, k: Any) -> Array:
    """The k largest scores; everything equal to the k-th stays."""
    xp = array_namespace(scores)
    if hasattr(k, "shape"):
        ordered = xp.sort(scores, axis=-1, descending=True)
        return cut(scores, scores < at(ordered, xp.astype(k[:, 0], xp.int64) - 1)[:, None])
    k = min(k, scores.shape[-1])
    if hasattr(scores, "topk"):  # torch: a selection, where the array standard offers only a full sort
        return cut(scores, scores < scores.topk(k, dim=-1).values[:, -1:])
    return cut(scores, scores < xp.sort(scores, axis=-1, descending=True)[:, k - 1 : k])


def top_p(scores: Array, mass: Any) -> Array:
    """Holtzman et al. 1904.09751: the fewest likeliest tokens that hold `mass`.

    Of equals those stay that the backend's plain sort puts last: transformers asks the same of torch, so both agree.
    """
    xp = array_namespace(scores)
    order = xp.argsort(scores, axis=-1, stable=False)
    below = xp.cumulative_sum(softmax(xp.take_along_axis(scores, order, axis=-1)), axis=-1)
    tail = below <= 1 - mass
    tail[:, -1] = False  # one token always stays
    rows = xp.cumulative_sum(order[:, :1] * 0 + 1, axis=0) - 1  # [R, 1] 0, 1, 2, ... on the device of the scores
    remove = tail & False
    remove[rows, order] = tail
    return cut(scores, remove)


def min_p(scores: Array, share: Any) -> Array:
    """Nguyen et al. 2407.01082: tokens at least `share` times as likely as the likeliest."""
    xp = array_namespace(scores)
    law = softmax(scores)
    return cut(scores, law < share * xp.max(law, axis=-1, keepdims=True))


def typical_p(scores: Array, mass: Any) -> Array:
    """Meister et al. 2202.00666: tokens whose surprise is nearest the row's entropy, until they hold `mass`."""
    xp = array_namespace(scores)
    law = softmax(scores)
    surprise = xp.where(law > 0, -xp.log(xp.where(law > 0, law, law * 0 + 1)), law * 0 + float("inf"))
    distance = abs(surprise - entropy(law))
    order = xp.argsort(distance, axis=-1, stable=True)
    inside = xp.cumulative_sum(xp.take_along_axis(law, order, axis=-1), axis=-1)
    last = xp.sum(xp.astype(inside < mass, xp.int64), axis=-1)
    last = xp.where(last < scores.shape[-1] - 1, last, last * 0 + scores.shape[-1] - 1)
    furthest = at(xp.take_along_axis(distance, order, axis=-1), last)[:, None]
    return cut(scores, (distance > furthest) & (mass < 1))  # 1 means off: sums may round up to it too soon


def epsilon_cutoff(scores: Array, floor: Any) -> Array:
    """Hewitt et al. 2210.15191: tokens of probability at least `floor`; the likeliest always stays."""
    return cut(scores, (softmax(scores) < floor) & _below_best(scores))


def eta_cutoff(scores: Array, floor: Any) -> Array:
    """Hewitt et al. 2210.15191: as epsilon_cutoff, with the floor lowered to sqrt(floor) exp(-entropy) in flat rows."""
    xp = array_namespace(scores)
    law = softmax(scores)
    flat = floor**0.5 * xp.exp(-entropy(law))
    return cut(scores, (law < xp.where(flat < floor, flat, flat * 0 + floor)) & _below_best(scores))


def _below_best(scores: Array) -> Array:
    xp = array_namespace(scores)
    return scores < xp.max(scores, axis=-1, keepdims=True)
