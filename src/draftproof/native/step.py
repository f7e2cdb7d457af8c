"""What a step does beside calls of the target, in C: softmax and sampling, a head's draft tokens, verification.

In C the softmax of 50,000 scores and a draw from it take microseconds; a dozen array operations take ten times that.
Each function returns None where it does not apply, and the laws and rules of the core do the work.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import RMSNorm

from draftproof.native import build
from draftproof.native.build import Sizes
from draftproof.native.layers import LinearStruct, NativeLinear, Stack, absorb, addresses, parts, workspace


def prepare() -> None:
    """Compile and load the C functions now, so that no step waits for it."""
    build.compiled()


def whole_laws(
    scores: np.ndarray, temperature: float, masks: Sequence[np.ndarray | None] | None = None
) -> np.ndarray | None:
    """softmax(scores / temperature) [..., V], or the best token at temperature 0.

    masks     [V] which tokens may be drawn, of each of the rows one after another; None: all of them

    None where a score is not finite enough, where a mask allows nothing, or without a compiler.
    """
    if scores.dtype != np.float32 or not scores.flags.c_contiguous or build.compiled() is None:
        return None
    laws, size = np.empty_like(scores), scores.shape[-1]
    rows, pointers = scores.size // size, None
    if masks is not None:
        pointers = (ctypes.c_void_p * rows)(*(None if mask is None else mask.ctypes.data for mask in masks))
    bad = build.compiled().laws(scores.ctypes.data, pointers, rows, size, temperature, laws.ctypes.data)
    return None if bad else laws


def draws(law: np.ndarray, u: np.ndarray) -> np.ndarray | None:
    """As `law.sample`: laws [..., V] and uniforms [...] in float64 -> tokens [...], -1 where a law is zero."""
    if law.dtype != np.float32 or not law.flags.c_contiguous or build.compiled() is None:
        return None
    tokens, size = np.empty(law.shape[:-1], dtype=np.int64), law.shape[-1]
    u = np.ascontiguousarray(u)  # bound to a name, because a copy has to outlive the call
    build.compiled().draws(law.ctypes.data, law.size // size, size, u.ctypes.data, tokens.ctypes.data)
    return tokens


def uniforms(names: Sequence[tuple[int, int, int]], lane: int, count: int) -> np.ndarray | None:
    """As `noise.uniforms`, [B, count], for each seed, request and step."""
    if build.compiled() is None:
        return None
    keys, u = np.array(names, dtype=np.int64), np.empty((len(names), count))
    build.compiled().uniforms(keys.ctypes.data, len(names), lane, count, u.ctypes.data)
    return u


class ChainOutcome(NamedTuple):
    """The outcome of verifying a chain of draft tokens."""

    stop: list[float]  # [N] law of the last accepted node
    node: int  # the last accepted node
    token: int  # emitted after it


CHAINS = ("token", "block")  # rules that `verify` knows


def verify(
    rule: str, p: np.ndarray, q: np.ndarray, ids: np.ndarray, tokens: np.ndarray, u: tuple[float, float]
) -> ChainOutcome | None:
    """Verify a chain of draft tokens [N], drawn from laws q [N, D] over the tokens `ids` [D], against p [N, V].

    u     one uniform for the rule's `stop`, one for its `next`

    None where the rule or the arrays are not for this function.
    """
    fit = all(law.dtype == np.float32 and law.flags.c_contiguous for law in (p, q)) and build.compiled() is not None
    if rule not in CHAINS or not fit:
        return None
    (nodes, size), drafted = p.shape, len(ids)
    places, stop, outcome = np.searchsorted(ids, tokens), np.empty(nodes), np.zeros(2, dtype=np.int64)
    ids, scratch = np.ascontiguousarray(ids, dtype=np.int64), np.empty(size, dtype=np.float32)
    build.compiled().verify(
        *(array.ctypes.data for array in (p, q, ids, places)),
        *(nodes, size, drafted, CHAINS.index(rule)),
        *u,
        *(stop.ctypes.data, outcome.ctypes.data, outcome[1:].ctypes.data, scratch.ctypes.data),
    )
    return ChainOutcome(stop.tolist(), *outcome.tolist())


class HeadStruct(ctypes.Structure):
    """A trained head, as step.c has it."""

    _fields_ = (
        ("layers", ctypes.c_void_p),
        ("count", ctypes.c_long),
        *((name, LinearStruct) for name in ("fusion", "join", "output")),
        *((name, ctypes.c_void_p) for name in ("tap_scale", "embeddings", "norm_state", "norm_embedding")),
        ("eps", ctypes.c_float),
        ("tokens", ctypes.c_void_p),
    )


class NativeHead(NamedTuple):
    """A trained head that drafts chains in C, and what keeps its weights in memory."""

    struct: HeadStruct
    kept: tuple[Any, ...]
    heads: int  # of queries, in its layers
    drafted: int  # tokens that it can draft
    width: int  # of its states
    widest: int  # of the widest thing a token becomes


def lay_out_head(
    stack: Stack,
    heads: int,
    linears: tuple[NativeLinear, NativeLinear, NativeLinear],
    norms: tuple[RMSNorm, RMSNorm, RMSNorm | None],
    tap_scale: torch.Tensor,
    embeddings: torch.Tensor,
    tokens: torch.Tensor,
) -> NativeHead:
    """A head for `catch_up`, `follow` and `guess`: its layers, of which draft tokens use the last.

    linears     that fuse the target's hidden states, that join a state and an embedding, and the output rows of the
                draft tokens
    norms       of states, of embeddings, and before the output rows if that is not part of them
    tap_scale   [taps, width] of the target's hidden states, once each has unit norm
    embeddings  [V, width] of the target
    tokens      [D] int64 ids that it can draft
    """
    (fusion, join, output), (norm_state, norm_embedding, norm_out) = linears, norms
    struct = LinearStruct.from_buffer_copy(output.struct)
    gain = None if norm_out is None else absorb(norm_out, struct)
    inputs = (tap_scale, embeddings, norm_state.weight, norm_embedding.weight)
    head = HeadStruct(
        ctypes.addressof(stack.layers),
        len(stack.layers),
        fusion.struct,
        join.struct,
        struct,
        *(tensor.data_ptr() for tensor in inputs),
        norm_state.eps,
        tokens.data_ptr(),
    )
    width = join.struct.outputs
    kept = (stack, fusion, join, output, gain, *inputs, tokens)
    return NativeHead(head, kept, heads, struct.outputs, width, max(stack.width, fusion.struct.width, 2 * width))


def _sizes(head: NativeHead, keys: torch.Tensor, entry: int, tokens: int) -> Sizes:
    """Of a call that computes some entries of the first row of a cache with these keys, from this one on."""
    _, kv_heads, room, size = keys.shape
    return Sizes(1, tokens, head.heads, kv_heads, size, room, entry + 1, 1, entry + tokens + 1, 0, 0)


def _work(head: NativeHead, like: torch.Tensor, tokens: int) -> torch.Tensor:
    """Memory for the intermediate results of a call."""
    return workspace(like, tokens, head.widest, head.width)


def _parts(head: NativeHead, work: torch.Tensor) -> tuple[int, int, int]:
    """The same as C takes it."""
    return parts(work, head.widest, head.width)


def catch_up(
    head: NativeHead,
    features: torch.Tensor,
    tokens: np.ndarray,
    angles: tuple[torch.Tensor, torch.Tensor],
    entry: int,
    entries: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> torch.Tensor:
    """Compute consecutive entries from what the target has read; the states after them [T, width].

    features  the target's hidden states [T, taps * width], contiguous
    tokens    [T] int64, after those that the states belong to
    entry     the first of them
    entries   keys and values [rows, kv_heads, slots, size] of each layer

    What is not said here is as `guess` has it.
    """
    count, (cos, sin) = len(tokens), angles
    states, work = features.new_empty((count, head.width)), _work(head, features, count)
    build.compiled().catch_up(
        ctypes.byref(head.struct),
        _sizes(head, entries[0][0], entry, count),
        features.data_ptr(),
        tokens.ctypes.data,
        cos[entry:].data_ptr(),
        sin[entry:].data_ptr(),
        addresses(entries),
        states.data_ptr(),
        *_parts(head, work),
    )
    return states


def guess(
    head: NativeHead,
    state: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor],
    entry: int,
    entries: tuple[torch.Tensor, torch.Tensor],
    temperature: float,
    u: np.ndarray,
    least: float = 0.0,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Draft a token for each u, one after another; None where a law is not finite.

    state     [..., width] after the last committed token
    angles    cosine and sine of every position, a row each
    entry     of the first guess: it goes to slot entry + 1 of the entries, and is rotated by that row of the angles
    entries   keys and values [rows, kv_heads, slots, size] of the head's last layer
    least     how likely the next token must be to be reached; where it is less likely, the chain ends

    Returns indices among the head's draft tokens [L], and the laws [L + 1, D] they were drawn from, the last row zero.
    """
    count, (keys, values), (cos, sin) = len(u), entries, angles
    states, laws = state.new_empty((count, head.width)), np.empty((count + 1, head.drafted), dtype=np.float32)
    states[0], u = state.flatten(), np.ascontiguousarray(u)
    places, work = np.empty(count, dtype=np.int64), _work(head, state, 1)
    drawn = build.compiled().guess(
        ctypes.byref(head.struct),
        _sizes(head, keys, entry, 1),
        count,
        *(temperature, least),
        u.ctypes.data,
        cos[entry:].data_ptr(),
        sin[entry:].data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        states.data_ptr(),
        laws.ctypes.data,
        places.ctypes.data,
        *_parts(head, work),
    )
    laws[drawn] = 0
    return (places[:drawn], laws[: drawn + 1]) if drawn >= 0 else None


def follow(
    head: NativeHead,
    state: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor],
    entry: int,
    entries: tuple[torch.Tensor, torch.Tensor],
    tokens: Sequence[int],
    temperature: float,
    u: float,
    mask: np.ndarray,
) -> tuple[torch.Tensor, int, np.ndarray] | None:
    """Read draft tokens that are given after a state, and draw the next; None where its law is not finite.

    mask      [D] which draft tokens may come after them

    The other arguments are those of `guess`. Returns the state after the tokens, the next one's index among the head's
    draft tokens, and the law [D] that it was drawn from.
    """
    count, (keys, values), (cos, sin) = len(tokens), entries, angles
    states, law = state.new_empty((count + 1, head.width)), np.empty(head.drafted, dtype=np.float32)
    states[0], ids = state.flatten(), np.array(tokens, dtype=np.int64)
    mask, work = np.ascontiguousarray(mask), _work(head, state, 1)
    drawn = build.compiled().follow(
        ctypes.byref(head.struct),
        _sizes(head, keys, entry, 1),
        count,
        ids.ctypes.data,
        temperature,
        u,
        mask.ctypes.data,
        cos[entry:].data_ptr(),
        sin[entry:].data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        states.data_ptr(),
        law.ctypes.data,
        *_parts(head, work),
    )
    return (states[count], drawn, law) if drawn >= 0 else None
