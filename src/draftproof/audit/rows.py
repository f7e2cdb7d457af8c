"""From transcripts to laws: the target reads whole texts at once and says what it expected at every output token."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from draftproof.audit.alternatives import LAWS, Rows, condensed, derived
from draftproof.audit.transcripts import Transcript
from draftproof.controls import entropy
from draftproof.draft import Tree
from draftproof.engine.eager import unless_silent
from draftproof.law import Array, at, normalise
from draftproof.models.base import Model, draft_session, taps
from draftproof.models.drafters.fallback import Mixed
from draftproof.sampling import Context, Sampling, law

_OPEN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}
FEWEST = 1024  # tokens that a vocabulary counts for: where it is small, attention takes the memory
_FREE = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


class Read(NamedTuple):
    """One transcript with what the models say to it."""

    transcript: Transcript
    logits: Array  # [n, V] of the target
    draft: Array | None  # [n, V] law of the draft
    other: tuple[int, ...] = ()  # what the sample before it said to the same prompt


def batches(transcripts: Iterable[Transcript], vocabulary: int, room: int) -> Iterator[list[Transcript]]:
    """Consecutive transcripts whose logits, padded to the longest, have at most `room` entries; one at least."""
    batch: list[Transcript] = []
    width = max(vocabulary, FEWEST)
    for transcript in transcripts:
        longest = max(len(one.output) for one in (*batch, transcript))
        if batch and (len(batch) + 1) * longest * width > room:
            yield batch
            batch = []
        batch.append(transcript)
    if batch:
        yield batch


def read(batch: Sequence[Transcript], target: Model, draft: Model | None) -> Iterator[Read]:
    """Each transcript of the batch with the target's logits and the draft's law at its output tokens."""
    host: Any = target
    hidden = taps(draft)
    room = len(batch), max(len(one.prompt) for one in batch) + max(len(one.output) for one in batch) + 1
    session = host.session(*room, *([hidden] if hidden else []))
    logits, guesses, speaks = _whole(session, batch), None, ""
    if draft is not None:
        guesser = draft_session(draft, session, *room)
        speaks = guesser.speaks
        at_once = speaks == "logits" and not hidden and not isinstance(draft, Mixed)
        guesses = _whole(guesser, batch) if at_once else _token_by_token(guesser, batch)
    for b, transcript in enumerate(batch):
        part = slice(len(transcript.output))
        q = None if guesses is None else _law(guesses[b, part], speaks, transcript)
        yield Read(transcript, logits[b, part], q)


def _whole(session: Any, batch: Sequence[Transcript]) -> Array:
    """[B, n, V] what a model says after each prefix, in one call."""
    tokens = _tokens(batch)[:, :-1]
    for b, transcript in enumerate(batch):
        session.join(b, transcript.prompt)
    return session.extend(Tree.chain(tokens.shape[1] - 1), tokens, range(tokens.shape[1]))


def _token_by_token(session: Any, batch: Sequence[Transcript]) -> Array:
    """The same of a drafter that learns from the text as it goes, or guesses from the states of the target."""
    alone, tokens, said = Tree.chain(0), _tokens(batch), []
    for b, transcript in enumerate(batch):
        session.join(b, transcript.prompt)
    for last, token in pairwise(tokens.T):
        said.append(session.extend(alone, last[:, None], range(1)))
        session.commit(alone, last[:, None], [0] * len(batch), token.tolist())
    return array_namespace(said[0]).concat(said, axis=1)


def _tokens(batch: Sequence[Transcript]) -> np.ndarray:
    """[B, n + 1] the prompt's last token and the output; what stands after a text's end is not looked at."""
    made = np.zeros((len(batch), max(len(one.output) for one in batch) + 1), dtype=np.int64)
    for b, (prompt, output, *_) in enumerate(batch):
        made[b, : len(output) + 1] = [prompt[-1], *output]
    return made


def _law(said: Array, speaks: str, transcript: Transcript) -> Array:
    """[n, V] the draft's law; a zero row where it has no guess."""
    if speaks == "law":
        return said
    return unless_silent(said, lambda scores: law(scores, transcript.sampling, _contexts(transcript)))


def _contexts(transcript: Transcript, part: range | None = None) -> list[Context] | None:
    if not transcript.sampling.reads_history:
        return None
    return [Context(transcript.prompt, transcript.output[:t]) for t in part or range(len(transcript.output))]


Piece = tuple[Read, range]  # some tokens of a transcript


def rows(pieces: Sequence[Piece], tolerance: float) -> tuple[Rows, Array]:
    """The rows of pieces that share their settings, and where nothing may be bet [R]: at a truncation's edge, if noise
    is allowed for."""
    sampling = pieces[0][0].transcript.sampling
    logits = joined([one.logits[part.start : part.stop] for one, part in pieces])
    xp = array_namespace(logits)
    tokens = [token for one, part in pieces for token in one.transcript.output[part.start : part.stop]]
    y = xp.asarray(np.array(tokens), device=logits.device)
    contexts = [c for one, part in pieces for c in _contexts(one.transcript, part) or ()] or None
    opened, free = _differs(sampling, _OPEN), _differs(sampling, _FREE)
    if tolerance > 0 and (opened is not None or sampling.temperature == 0):
        p, edge = _between(logits, sampling, opened or sampling, contexts, tolerance)
        void = at(edge, y)
    else:
        p, void = law(logits, sampling, contexts), y < 0
    guesses = [one.draft[part.start : part.stop] for one, part in pieces if one.draft is not None]
    made = Rows(
        p,
        y,
        joined([_seen(one.transcript, part, p) for one, part in pieces]),
        xp.asarray(joined(guesses), device=logits.device) if guesses else None,
        None if opened is None else law(logits, opened, contexts),
        None if free is None else law(logits, free, contexts),
    )
    return made, void


def joined(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else array_namespace(arrays[0]).concat(list(arrays), axis=0)


def stacked(parts: Sequence[Rows]) -> Rows:
    """Rows of several settings under one another; a law that only some of them have is p for the others."""
    fields: dict[str, Array] = {}
    for name in Rows._fields:
        found = [getattr(part, name) for part in parts]
        if any(array is not None for array in found):
            found = [part.p if array is None else array for part, array in zip(parts, found, strict=True)]
            fields[name] = joined(found)
    made = condensed(Rows(**fields))
    doubles = {name: _double(getattr(made, name)) for name in LAWS if name in fields}
    return derived(made._replace(**doubles))


def _between(
    logits: Array, sampling: Sampling, opened: Sampling, contexts: Any, tolerance: float
) -> tuple[Array, Array]:
    """The law of the tokens that stay whatever the noise, and the edge [n, V]: tokens that noise may keep or cut.

    The logits may be off by `tolerance`, so probabilities by a factor exp(2 tolerance) and their sums by `tolerance`.
    Wherever the true cut lies, given that a token is not of the edge it follows the first law.
    """
    xp = array_namespace(logits)
    scale = opened if sampling.temperature != 0 else dataclasses.replace(opened, temperature=1.0)
    whole = law(logits, scale, contexts)
    ways = product((logits, _parted(logits)), _moved(sampling, tolerance))
    kept = [law(scores, moved, contexts) > 0 for scores, moved in ways]
    loose, tight = reduce(operator.or_, kept), reduce(operator.and_, kept)
    # typical_p keeps the most typical tokens, the others the likeliest; near-equals of the last kept one may swap
    order, factor, typical = whole, math.exp(2 * tolerance), sampling.typical_p != 1 and sampling.temperature != 0
    if typical:
        before = dataclasses.replace(sampling, typical_p=1.0, epsilon_cutoff=0.0, eta_cutoff=0.0)
        order, factor = _typicality(law(logits, before, contexts), tolerance)
    lowest = xp.min(xp.where(loose & (order > 0), order, order * 0 + 1), axis=-1, keepdims=True)
    highest = xp.max(xp.where(tight, order * 0, order), axis=-1, keepdims=True)
    loose, tight = loose | (order * factor >= lowest), tight & (order > highest * factor)
    if typical:  # the last one is needed or not as its near-equals come before or after it
        last = tight & (order <= factor * xp.min(xp.where(tight, order, order * 0 + 1), axis=-1, keepdims=True))
        tight = tight & ~(last & (xp.sum(xp.astype(last, xp.int64), axis=-1, keepdims=True) > 1))
    return normalise(xp.where(tight, whole, whole * 0)), loose & ~tight


def _parted(logits: Array) -> Array:
    """The same, but for too little to matter, without equals: of these top_k keeps all, and of the likeliest a floor
    keeps all, but noise parts them."""
    xp = array_namespace(logits)
    return xp.astype(logits, xp.float64) - 1e-12 * xp.arange(logits.shape[-1], device=logits.device)


def _typicality(law: Array, tolerance: float) -> tuple[Array, Array]:
    """exp(-|surprise - entropy|) [n, V], and the factor [n, 1] by which noise may move one token against another.

    A surprise may be off by 2 tolerance, the entropy by tolerance times the mean of |surprise - entropy|.
    """
    xp = array_namespace(law)
    even = law * xp.exp(entropy(law))
    nearness = xp.where(even > 1, 1 / xp.where(even > 1, even, even * 0 + 1), even)
    mean = -xp.sum(law * xp.log(xp.where(law > 0, nearness, nearness * 0 + 1)), axis=-1, keepdims=True)
    return nearness, xp.exp(2 * tolerance * (2 + mean))


def _moved(sampling: Sampling, by: float) -> list[Sampling]:
    """Truncations that keep a little more or less, each in its own way: one that keeps more leaves less to the next."""
    ways: list[list[tuple[str, Any]]] = []
    for name in ("top_p", "typical_p"):
        value = getattr(sampling, name)
        if not callable(value) and value < 1:
            ways.append([(name, min(max(value + move, 1e-9), 1.0)) for move in (by, -by)])
    for name, times in (("min_p", 2), ("epsilon_cutoff", 2), ("eta_cutoff", 8)):  # eta's floor: sqrt(eta) exp(-entropy)
        value = getattr(sampling, name)
        if not callable(value) and value > 0:
            moves = (value * math.exp(times * move) for move in (-by, by))
            ways.append([(name, min(moved, max(value, 0.999))) for moved in moves])
    return [dataclasses.replace(sampling, **dict(way)) for way in product(*ways)]


def _differs(sampling: Sampling, off: dict[str, Any]) -> Sampling | None:
    """The settings with these controls off, or None where they are off already."""
    return None if all(getattr(sampling, n) == v for n, v in off.items()) else dataclasses.replace(sampling, **off)


def _seen(transcript: Transcript, part: range, p: Array) -> Array:
    """[R, V] whether a token stood in the prompt or the output before."""
    first = np.full(p.shape[-1], len(transcript.output), dtype=np.int64)
    for t in reversed(range(len(transcript.output))):
        first[transcript.output[t]] = t + 1
    first[list(transcript.prompt)] = 0
    xp = array_namespace(p)
    place = xp.arange(part.start, part.stop, dtype=xp.int64, device=p.device)[:, None]
    return xp.asarray(first, device=p.device)[None] <= place


def _double(p: Array) -> Array:
    """float64, and summing to one in it."""
    xp = array_namespace(p)
    return normalise(xp.astype(p, xp.float64))
