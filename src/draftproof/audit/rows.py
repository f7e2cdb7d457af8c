"""From transcripts to laws: the target scores whole texts at once, and gives its law at every output token."""

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

from draftproof.audit.alternatives import LAWS, AuditRows, condensed, derived
from draftproof.audit.transcripts import Transcript
from draftproof.controls import entropy
from draftproof.draft import Tree
from draftproof.engine.eager import unless_silent
from draftproof.grammar import State
from draftproof.law import Array, at, normalise
from draftproof.models.base import Model, draft_session, taps
from draftproof.models.drafters.fallback import Fallback
from draftproof.models.grammars import start
from draftproof.sampling import Context, Sampling, law

_OPEN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}
FEWEST = 1024  # a smaller vocabulary counts as this size: there, attention takes the memory
_FREE = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


class ReadTranscript(NamedTuple):
    """One transcript with the logits of the target and the law of the draft."""

    transcript: Transcript
    logits: Array  # [n, V] of the target
    draft: Array | None  # [n, V] law of the draft
    masks: np.ndarray | None = None  # [n, V] what its grammar allows, if it has one; nothing where a text is lost
    previous: tuple[int, ...] = ()  # output of the sample before it for the same prompt
    again: np.ndarray | None = None  # [n] whether a position was in a draft before, where steps are known


def batches(transcripts: Iterable[Transcript], vocabulary: int, room: int) -> Iterator[list[Transcript]]:
    """Batch consecutive transcripts so that their padded logits have at most `room` entries; at least one per batch."""
    batch: list[Transcript] = []
    width = max(vocabulary, FEWEST)
    for transcript in transcripts:
        longest = max(len(member.output) for member in (*batch, transcript))
        if batch and (len(batch) + 1) * longest * width > room:
            yield batch
            batch = []
        batch.append(transcript)
    if batch:
        yield batch


def read(batch: Sequence[Transcript], target: Model, draft: Model | None) -> Iterator[ReadTranscript]:
    """Each transcript of the batch with the target's logits and the draft's law at its output tokens."""
    host: Any = target
    hidden = taps(draft)
    room = len(batch), max(len(text.prompt) for text in batch) + max(len(text.output) for text in batch) + 1
    session = host.session(*room, *([hidden] if hidden else []))
    logits, guesses, speaks = _whole(session, batch), None, ""
    if draft is not None:
        guesser = draft_session(draft, session, *room)
        speaks = guesser.speaks
        at_once = speaks == "logits" and not hidden and not isinstance(draft, Fallback)
        guesses = _whole(guesser, batch) if at_once else _token_by_token(guesser, batch)
    for b, transcript in enumerate(batch):
        part = slice(len(transcript.output))
        masks = grammar_masks(transcript, target)
        q = None if guesses is None else _law(guesses[b, part], speaks, transcript, masks)
        yield ReadTranscript(transcript, logits[b, part], q, masks)


def _whole(session: Any, batch: Sequence[Transcript]) -> Array:
    """Rows [B, n, V] of a model after each prefix, in one call."""
    tokens = _tokens(batch)[:, :-1]
    for b, transcript in enumerate(batch):
        session.join(b, transcript.prompt)
    return session.extend(Tree.chain(tokens.shape[1] - 1), tokens, range(tokens.shape[1]))


def _token_by_token(session: Any, batch: Sequence[Transcript]) -> Array:
    """The same for a drafter that learns from the text, or that reads the hidden states of the target."""
    root, tokens, outputs = Tree.chain(0), _tokens(batch), []
    for b, transcript in enumerate(batch):
        session.join(b, transcript.prompt)
    for last, token in pairwise(tokens.T):
        outputs.append(session.extend(root, last[:, None], range(1)))
        session.commit(root, last[:, None], [0] * len(batch), token.tolist())
    return array_namespace(outputs[0]).concat(outputs, axis=1)


def _tokens(batch: Sequence[Transcript]) -> np.ndarray:
    """The prompt's last token and the output [B, n + 1], padded with 0."""
    tokens = np.zeros((len(batch), max(len(text.output) for text in batch) + 1), dtype=np.int64)
    for b, (prompt, output, *_) in enumerate(batch):
        tokens[b, : len(output) + 1] = [prompt[-1], *output]
    return tokens


def _law(rows: Array, speaks: str, transcript: Transcript, masks: np.ndarray | None) -> Array:
    """The draft's law [n, V]; a zero row where it has no guess."""
    if speaks == "law":
        return rows
    return unless_silent(rows, lambda scores: under(scores, transcript.sampling, _contexts(transcript), masks))


def grammar_masks(transcript: Transcript, target: Model) -> np.ndarray | None:
    """What the grammar allows at each output token [n, V]: nothing once a token came that it does not allow."""
    sampling, output = transcript.sampling, transcript.output
    if sampling.grammar is None:
        return None
    state: State | None = start(sampling.grammar, target, tuple(sampling.ends))
    masks = np.zeros((len(output), target.vocabulary), dtype=bool)
    for t, token in enumerate(output):
        if state is None:
            break
        masks[t] = state.allowed
        state = state.after(token)
    return masks


def under(logits: Array, sampling: Sampling, contexts: Any, masks: np.ndarray | None) -> Array:
    """The law [n, V] under the settings; a zero row where the text has left the grammar, for nothing is known there."""
    if masks is None:
        return law(logits, sampling, contexts)
    lost = ~masks.any(axis=-1, keepdims=True)
    xp = array_namespace(logits)
    return law(logits, sampling, contexts, masks | lost) * xp.asarray(~lost, device=logits.device)


def _contexts(transcript: Transcript, part: range | None = None) -> list[Context] | None:
    if not transcript.sampling.reads_history:
        return None
    return [Context(transcript.prompt, transcript.output[:t]) for t in part or range(len(transcript.output))]


Excerpt = tuple[ReadTranscript, range]  # a transcript and the range of its output tokens


def rows(excerpts: Sequence[Excerpt], tolerance: float) -> tuple[AuditRows, Array]:
    """The rows of excerpts that share their settings, and where nothing may be bet [R].

    With a tolerance nothing is bet on tokens at a truncation's edge.
    """
    sampling = excerpts[0][0].transcript.sampling
    logits = joined([text.logits[part.start : part.stop] for text, part in excerpts])
    xp = array_namespace(logits)
    tokens = [token for text, part in excerpts for token in text.transcript.output[part.start : part.stop]]
    y = xp.asarray(np.array(tokens), device=logits.device)
    contexts = [c for text, part in excerpts for c in _contexts(text.transcript, part) or ()] or None
    allowed = [text.masks[part.start : part.stop] for text, part in excerpts if text.masks is not None]
    masks = np.concatenate(allowed) if allowed else None
    opened, free = _differs(sampling, _OPEN), _differs(sampling, _FREE)
    if tolerance > 0 and (opened is not None or sampling.temperature == 0):
        p, edge = _between(logits, sampling, opened or sampling, contexts, masks, tolerance)
        void = at(edge, y)
    else:
        p, void = under(logits, sampling, contexts, masks), y < 0
    guesses = [text.draft[part.start : part.stop] for text, part in excerpts if text.draft is not None]
    audit_rows = AuditRows(
        p,
        y,
        joined([_seen(text.transcript, part, p) for text, part in excerpts]),
        xp.asarray(joined(guesses), device=logits.device) if guesses else None,
        None if opened is None else under(logits, opened, contexts, masks),
        None if free is None else under(logits, free, contexts, masks),
        _again(excerpts, p),
    )
    return audit_rows, void


def _again(excerpts: Sequence[Excerpt], p: Array) -> Array | None:
    """Whether each position [R] was in a draft before; None if that is not known."""
    known = [text.again[part.start : part.stop] for text, part in excerpts if text.again is not None]
    xp = array_namespace(p)
    return xp.asarray(np.concatenate(known), device=p.device) if len(known) == len(excerpts) else None


def joined(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else array_namespace(arrays[0]).concat(list(arrays), axis=0)


def stacked(parts: Sequence[AuditRows]) -> AuditRows:
    """Concatenate rows of several settings; a law that only some of them have is p for the others."""
    fields: dict[str, Array] = {}
    for name in AuditRows._fields:
        arrays = [getattr(part, name) for part in parts]
        if any(array is not None for array in arrays):
            missing = [part.y < 0 if name == "again" else part.p for part in parts]
            there = [other if array is None else array for array, other in zip(arrays, missing, strict=True)]
            fields[name] = joined(there)
    combined = condensed(AuditRows(**fields))
    doubles = {name: _double(getattr(combined, name)) for name in LAWS if name in fields}
    return derived(combined._replace(**doubles))


def _between(
    logits: Array, sampling: Sampling, opened: Sampling, contexts: Any, masks: np.ndarray | None, tolerance: float
) -> tuple[Array, Array]:
    """The law of the tokens that are kept whatever the rounding, and the edge [n, V] that rounding may keep or cut.

    The logits may be off by `tolerance`, so probabilities by a factor exp(2 tolerance) and their sums by `tolerance`.
    Wherever the true cut lies, a token that is not on the edge follows the first law.
    """
    xp = array_namespace(logits)
    scale = opened if sampling.temperature != 0 else dataclasses.replace(opened, temperature=1.0)
    whole = under(logits, scale, contexts, masks)
    variants = product((logits, _without_ties(logits)), _moved(sampling, tolerance))
    support = [under(scores, moved, contexts, masks) > 0 for scores, moved in variants]
    loose, tight = reduce(operator.or_, support), reduce(operator.and_, support)
    # typical_p keeps the most typical tokens, the others the likeliest; near-equals of the last kept one may swap
    order, factor, typical = whole, math.exp(2 * tolerance), sampling.typical_p != 1 and sampling.temperature != 0
    if typical:
        before = dataclasses.replace(sampling, typical_p=1.0, epsilon_cutoff=0.0, eta_cutoff=0.0)
        order, factor = _typicality(under(logits, before, contexts, masks), tolerance)
    lowest = xp.min(xp.where(loose & (order > 0), order, order * 0 + 1), axis=-1, keepdims=True)
    highest = xp.max(xp.where(tight, order * 0, order), axis=-1, keepdims=True)
    loose, tight = loose | (order * factor >= lowest), tight & (order > highest * factor)
    if typical:  # the last one is needed or not as its near-equals come before or after it
        last = tight & (order <= factor * xp.min(xp.where(tight, order, order * 0 + 1), axis=-1, keepdims=True))
        tight = tight & ~(last & (xp.sum(xp.astype(last, xp.int64), axis=-1, keepdims=True) > 1))
    return normalise(xp.where(tight, whole, whole * 0)), loose & ~tight


def _without_ties(logits: Array) -> Array:
    """The logits with ties broken by a negligible amount.

    top_k and floors keep all tokens that are equal, but rounding may separate them.
    """
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
    """All combinations of each truncation moved up and down: one that keeps more changes what the next one keeps."""
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
    """Whether each token occurs in the prompt or in the output before [R, V]."""
    first = np.full(p.shape[-1], len(transcript.output), dtype=np.int64)
    for t in reversed(range(len(transcript.output))):
        first[transcript.output[t]] = t + 1
    first[list(transcript.prompt)] = 0
    xp = array_namespace(p)
    place = xp.arange(part.start, part.stop, dtype=xp.int64, device=p.device)[:, None]
    return xp.asarray(first, device=p.device)[None] <= place


def _double(p: Array) -> Array:
    """Convert to float64 and normalise again."""
    xp = array_namespace(p)
    return normalise(xp.astype(p, xp.float64))
