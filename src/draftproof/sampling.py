"""Sampling settings, and law(), the one function that turns logits into a law, for target and drafter alike.

Every control is applied to each node of a draft with that node's own path as its history, so all of them stay exact
under speculation. The order is transformers': bias, penalties, masks (that of the grammar last), user processors,
temperature, truncations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from draftproof import controls
from draftproof.errors import DraftproofError
from draftproof.grammar import as_grammar
from draftproof.law import Array

# A schedule gives a control's value for each row from the output position [R] and the row's evenness [R], which is
# entropy / log(number of tokens): 0 when one token is certain, 1 when all are equally likely.
Schedule = Callable[[Any, Any], Any]
Processor = Callable[[Any, Any], Any]  # (token ids [1, T], scores [1, V]) -> scores, as in transformers


@dataclass(frozen=True)
class Anneal:
    """From `start` at the first output token to `end` at output token `over`, in a straight line, then constant."""

    start: float
    end: float
    over: int

    def __post_init__(self) -> None:
        if not self.over >= 1:
            raise DraftproofError(f"Anneal needs at least one output token to run over, not over={self.over!r}")

    def __call__(self, position: Any, evenness: Any) -> Any:
        line = self.start + (self.end - self.start) * position / self.over  # divided last: whole numbers stay whole
        return array_namespace(position).where(position < self.over, line, position * 0 + self.end)


class ByEntropy(NamedTuple):
    """low + (high - low) * evenness: `low` where the model is certain, `high` where all tokens are equally likely.

    As `top_k=ByEntropy(5, 100)` or `top_p=ByEntropy(0.6, 1.0)`: less entropy, fewer tokens kept.
    """

    low: float
    high: float

    def __call__(self, position: Any, evenness: Any) -> Any:
        return self.low + (self.high - self.low) * evenness


class Context(NamedTuple):
    """History of one row: penalties, processors and schedules look at it."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Defaults leave the model's own law untouched; invalid values raise at once."""

    temperature: float | Schedule = 1.0  # 0 = greedy
    top_k: int | Schedule = 0  # 0 = off
    top_p: float | Schedule = 1.0
    min_p: float | Schedule = 0.0
    typical_p: float | Schedule = 1.0
    epsilon_cutoff: float | Schedule = 0.0
    eta_cutoff: float | Schedule = 0.0
    repetition_penalty: float = 1.0  # over prompt and output
    presence_penalty: float = 0.0  # over the output
    frequency_penalty: float = 0.0  # over the output
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed: Sequence[int] | None = None
    banned: Sequence[int] = ()
    min_new_tokens: int = 0
    end_tokens: Sequence[int] | None = None  # they end the text; None = the model's own, () = none does
    processors: Sequence[Processor] = ()
    grammar: Any = None  # a Grammar, or short for one: a dict is a JSON schema, a list of strings are choices, "json"

    def __post_init__(self) -> None:
        for name, (inside, words) in _RANGES.items():
            value = getattr(self, name)
            if not callable(value) and not (isinstance(value, Real) and inside(value)):
                raise DraftproofError(f"{name} must be {words}, not {value!r}")
            if isinstance(value, Real):  # Fractions and NumPy scalars would be taken for arrays later
                object.__setattr__(self, name, int(value) if isinstance(value, Integral) else float(value))
        for name in ("top_k", "min_new_tokens"):
            if not (callable(getattr(self, name)) or isinstance(getattr(self, name), Integral)):
                raise DraftproofError(f"{name} must be {_RANGES[name][1]}, not {getattr(self, name)!r}")
        for name in ("allowed", "banned", "end_tokens"):
            ids = getattr(self, name)
            if ids is not None and not _are_ids(ids):
                raise DraftproofError(f"{name} must be a list of token ids, not {ids!r}")
            if ids is not None:  # a tuple: arrays have no truth value and do not compare equal
                object.__setattr__(self, name, tuple(map(int, ids)))
        bias = self.logit_bias
        if not (isinstance(bias, Mapping) and _are_ids(bias) and all(isinstance(b, Real) for b in bias.values())):
            raise DraftproofError(f"logit_bias must be numbers by token id, as in {{7: -1.5}}, not {bias!r}")
        if not (isinstance(self.processors, Collection) and all(map(callable, self.processors))):
            raise DraftproofError(f"processors must be a list of functions (ids, scores), not {self.processors!r}")
        object.__setattr__(self, "grammar", as_grammar(self.grammar))
        if self.allowed is not None and not set(self.allowed) - set(self.banned):
            raise DraftproofError("no token is left to draw: `allowed` is empty or entirely banned")

    @cached_property
    def names_tokens(self) -> bool:
        """Whether a control depends on token ids; if not, the law over some tokens follows from their scores alone."""
        masks = self.logit_bias or self.allowed is not None or len(self.banned)
        return bool(masks or self.reads_history)

    @cached_property
    def is_whole(self) -> bool:
        """Whether no token is ever truncated: the law is a plain softmax, or the best token at temperature 0."""
        cuts = any(getattr(self, name) != off for name, (_, off) in _TRUNCATIONS.items())
        return not (cuts or callable(self.temperature))

    @property
    def ends(self) -> Sequence[int]:
        """The end tokens given here; none where the model's own apply."""
        return self.end_tokens or ()

    @cached_property
    def reads_history(self) -> bool:
        """Whether a row's law depends on the tokens before it in other ways than through the model."""
        return bool(
            self.repetition_penalty != 1
            or self.presence_penalty
            or self.frequency_penalty
            or self.min_new_tokens
            or self.processors
            or any(callable(getattr(self, name)) for name in _TRUNCATIONS)
            or callable(self.temperature)
        )


def _are_ids(tokens: Any) -> bool:
    """Whether these are whole numbers; `check_tokens` compares them with the vocabulary."""
    return isinstance(tokens, Collection) and all(isinstance(token, int | np.integer) for token in tokens)


_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    # below 1e-30 a score divided by the temperature overflows float32
    "temperature": (lambda v: v == 0 or 1e-30 <= v < math.inf, "0 (greedy) or a positive number of at least 1e-30"),
    "top_k": (lambda v: v >= 0, "0 (off) or a positive integer"),
    "top_p": (lambda v: 0 < v <= 1, "in (0, 1], 1 = off"),
    "min_p": (lambda v: 0 <= v <= 1, "in [0, 1], 0 = off"),
    "typical_p": (lambda v: 0 < v <= 1, "in (0, 1], 1 = off"),
    "epsilon_cutoff": (lambda v: 0 <= v < 1, "in [0, 1), 0 = off"),
    "eta_cutoff": (lambda v: 0 <= v < 1, "in [0, 1), 0 = off"),
    "repetition_penalty": (lambda v: 0 < v < math.inf, "a positive number, 1 = off"),
    "presence_penalty": (math.isfinite, "a finite number, 0 = off"),
    "frequency_penalty": (math.isfinite, "a finite number, 0 = off"),
    "min_new_tokens": (lambda v: v >= 0, "0 or a positive integer"),
}

# name -> (function, value at which it does nothing); in the order in which they apply
_TRUNCATIONS: dict[str, tuple[Callable[[Array, Any], Array], float]] = {
    "top_k": (controls.top_k, 0),
    "top_p": (controls.top_p, 1),
    "min_p": (controls.min_p, 0),
    "typical_p": (controls.typical_p, 1),
    "epsilon_cutoff": (controls.epsilon_cutoff, 0),
    "eta_cutoff": (controls.eta_cutoff, 0),
}


def check_tokens(sampling: Sampling, size: int) -> None:
    """Raise if a setting names a token that a vocabulary of this size does not have."""
    ends = sampling.ends if sampling.min_new_tokens else ()
    named = {"logit_bias": sampling.logit_bias, "allowed": sampling.allowed or (), "banned": sampling.banned}
    for name, tokens in (named | {"end_tokens": ends}).items():
        if tokens and not 0 <= min(tokens) <= max(tokens) < size:
            strange = next(token for token in tokens if not 0 <= token < size)
            raise DraftproofError(f"{name} names token {strange!r}, but the vocabulary has ids 0 to {size - 1}")


def law(
    logits: Array, sampling: Sampling, contexts: Sequence[Context] | None = None, masks: Array | None = None
) -> Array:
    """The law [R, V] that `sampling` makes of logits [R, V]; row r has history contexts[r].

    masks     [R, V] whether the grammar allows each token after that history (`grammar.State.allowed`)

    >>> law(np.array([[0.0, 0.0, -np.inf, 0.0]]), Sampling(top_k=2, banned=[3]))
    array([[0.5, 0.5, 0. , 0. ]])
    """
    xp = array_namespace(logits)
    scores = logits if logits.dtype == xp.float64 else xp.astype(logits, xp.float32)
    best = _check(scores, "the model returned", "check the model's weights and dtype")
    if contexts is None:
        if sampling.reads_history:
            raise DraftproofError("these controls need the text so far: pass `contexts`, one for each row of logits")
        contexts = [Context((), ())] * logits.shape[0]
    if len(contexts) != logits.shape[0]:
        raise DraftproofError(
            f"{logits.shape[0]} rows of logits came with {len(contexts)} contexts: pass one for each row"
        )
    if sampling.grammar is not None and masks is None:
        raise DraftproofError("a grammar needs to know where in the text each row is: pass `masks`, one for each row")
    check_tokens(sampling, logits.shape[-1])
    edited = _edit(scores, sampling, contexts, masks)
    if edited is not scores:
        scores = edited
        best = _check(scores, "bias, masks and processors left", "check `logit_bias`, the penalties and the processors")
    if sampling.is_whole and sampling.temperature:
        return controls.softmax(scores, sampling.temperature, best)  # type: ignore[arg-type]
    scores = controls.temperature(scores, _value("temperature", sampling, scores, contexts))
    for name, (truncate, off) in _TRUNCATIONS.items():
        value = _value(name, sampling, scores, contexts)
        if hasattr(value, "shape") or value != off:
            scores = truncate(scores, value)
    return controls.softmax(scores)


def _edit(scores: Array, sampling: Sampling, contexts: Sequence[Context], masks: Array | None) -> Array:
    """Bias, penalties, masks and user processors."""
    xp = array_namespace(scores)
    size = scores.shape[-1]
    if sampling.logit_bias:
        scores = controls.add_bias(scores, _like(_dense(sampling.logit_bias, size), scores))
    if sampling.repetition_penalty != 1:
        text_counts = _like(np.stack([_counts(c.prompt + c.output, size) for c in contexts]), scores)
        scores = controls.penalise_repetition(scores, text_counts, sampling.repetition_penalty)
    if sampling.presence_penalty or sampling.frequency_penalty:
        output_counts = _like(np.stack([_counts(c.output, size) for c in contexts]), scores)
        scores = controls.penalise_output(scores, output_counts, sampling.presence_penalty, sampling.frequency_penalty)
    if sampling.min_new_tokens and sampling.end_tokens:
        early = np.array([[len(c.output) < sampling.min_new_tokens] for c in contexts])
        ends = _dense(dict.fromkeys(sampling.end_tokens, 1.0), size) > 0
        if masks is not None:  # where the grammar has ended, the text ends, however short
            early = early & np.asarray((masks & ~ends).any(-1))[:, None]
        scores = controls.cut(scores, _like(early & ends, scores))
    if sampling.allowed is not None:
        keep = _dense(dict.fromkeys(sampling.allowed, 1.0), size) > 0
        scores = controls.cut(scores, _like(~keep, scores))
    if len(sampling.banned):
        out = _dense(dict.fromkeys(sampling.banned, 1.0), size) > 0
        scores = controls.cut(scores, _like(out, scores))
    if masks is not None:
        scores = controls.cut(scores, _like(~masks, scores))
    if sampling.processors:
        rows = []
        for r, context in enumerate(contexts):  # histories differ in length, so row by row
            row = scores[r : r + 1]
            for processor in sampling.processors:
                row = processor(_like(np.array([context.prompt + context.output], dtype=np.int64), scores), row)
                shape = getattr(row, "shape", None)  # a processor that works in place may forget to return them
                if shape != (1, size):
                    result = type(row).__name__ if shape is None else f"shape {tuple(shape)}"
                    raise DraftproofError(
                        f"processor {processor!r} returned {result}, not scores of shape (1, {size}): keep the shape"
                    )
            rows.append(row)
        scores = xp.concat(rows, axis=0)
    return scores


def _value(name: str, sampling: Sampling, scores: Array, contexts: Sequence[Context]) -> Any:
    """A control's number, or its schedule's value for each row as [R, 1]."""
    control = getattr(sampling, name)
    if not callable(control):
        return control
    xp = array_namespace(scores)
    position = xp.astype(_like(np.array([len(c.output) for c in contexts]), scores), scores.dtype)
    evenness = controls.entropy(controls.softmax(scores))[:, 0] / math.log(max(scores.shape[-1], 2))
    evenness = xp.where(evenness < 1, evenness, evenness * 0 + 1)  # a flat row's entropy may round above its maximum
    result, (inside, words) = control(position, evenness), _RANGES[name]
    try:
        value = result + position * 0
    except TypeError as error:
        raise DraftproofError(f"the schedule for {name} gave {result!r}; it must be {words}") from error
    for number in value:
        if not inside(float(number)):
            raise DraftproofError(f"the schedule for {name} gave {float(number)}; it must be {words}")
    if name == "top_k":
        value = xp.ceil(value)
        value = xp.where(value > 0, value, value * 0 + scores.shape[-1])
        value = xp.where(value < scores.shape[-1], value, value * 0 + scores.shape[-1])
    return value[:, None]


def _check(scores: Array, who: str, remedy: str) -> Array:
    """Each row's best score [R, 1], which must be finite; a maximum shows that, and NaN, in one pass."""
    xp = array_namespace(scores)
    best = xp.max(scores, axis=-1, keepdims=True)
    if bool(xp.all(abs(best) < math.inf)):  # NaN compares false
        return best
    if not bool(xp.all(best < math.inf)):
        raise DraftproofError(f"{who} non-finite scores (NaN or +inf): {remedy}")
    raise DraftproofError(
        f"{who} a row with no allowed token: loosen `allowed`, `banned`, the grammar or the processors"
    )


def _dense(values: Mapping[int, float], size: int) -> Any:
    """A sparse mapping as an array [V]."""
    dense = np.zeros(size)
    dense[list(values)] = list(values.values())
    return dense


def _counts(tokens: tuple[int, ...], size: int) -> Any:
    """How often each token occurs [V]."""
    return np.bincount(np.array(tokens, dtype=np.int64), minlength=size)[:size]


def _like(array: Any, like: Array) -> Array:
    """A NumPy array moved to the namespace and device of `like`; floats take its dtype."""
    xp = array_namespace(like)
    if array.dtype.kind == "f":
        array = array.astype(str(like.dtype).rsplit(".", 1)[-1])
    return xp.asarray(array, device=like.device)
