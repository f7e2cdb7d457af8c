"""What a step does beside calls of the target, in C: laws and draws, the guesses of a head, and what becomes of them.

A law of 50,000 tokens takes microseconds to make and to draw from; a dozen operations on arrays take ten times that.
Each function says None where it is not for the case at hand, and the laws and rules of the core do the work.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
import torch

from draftproof.native import build
from draftproof.native.build import Sizes
from draftproof.native.layers import Layer, Linear, Stack, absorb


def whole_laws(scores: np.ndarray, temperature: float) -> np.ndarray | None:
    """[..., V] exp(scores / temperature), scaled; None where a score is not fit for it, or without a compiler."""
    if scores.dtype != np.float32 or not scores.flags.c_contiguous or build.compiled() is None:
        return None
    made, size = np.empty_like(scores), scores.shape[-1]
    bad = build.compiled().laws(scores.ctypes.data, scores.size // size, size, temperature, made.ctypes.data)
    return None if bad else made


def draws(law: np.ndarray, u: np.ndarray) -> np.ndarray | None:
    """As `law.sample`: laws [..., V] and uniforms [...] in float64 -> tokens [...], -1 where a law is zero."""
    if law.dtype != np.float32 or not law.flags.c_contiguous or build.compiled() is None:
        return None
    tokens, size = np.empty(law.shape[:-1], dtype=np.int64), law.shape[-1]
    u = np.ascontiguousarray(u)  # by name: a copy has to outlive the call
    build.compiled().draws(law.ctypes.data, law.size // size, size, u.ctypes.data, tokens.ctypes.data)
    return tokens


class Verdict(NamedTuple):
    """What became of a chain of guesses."""

    stop: list[float]  # [N] law of the last accepted node
    node: int  # the last accepted one
    token: int  # emitted after it


CHAINS = ("token", "block")  # rules that `verify` knows


def verify(
    rule: str, p: np.ndarray, q: np.ndarray, names: np.ndarray, tokens: np.ndarray, u: tuple[float, float]
) -> Verdict | None:
    """A chain of guesses tokens [N], drawn from laws q [N, D] of the tokens with these names, against p [N, V], by one
    uniform to stop and one to go on: as the rule's `stop` and `next` say; None where that is not for this function."""
    fit = all(law.dtype == np.float32 and law.flags.c_contiguous for law in (p, q)) and build.compiled() is not None
    if rule not in CHAINS or not fit:
        return None
    (nodes, size), known = p.shape, len(names)
    places, stop, made = np.searchsorted(names, tokens), np.empty(nodes), np.zeros(2, dtype=np.int64)
    names, room = np.ascontiguousarray(names, dtype=np.int64), np.empty(size, dtype=np.float32)
    build.compiled().verify(
        *(array.ctypes.data for array in (p, q, names, places)),
        *(nodes, size, known, CHAINS.index(rule)),
        *u,
        *(stop.ctypes.data, made.ctypes.data, made[1:].ctypes.data, room.ctypes.data),
    )
    return Verdict(stop.tolist(), *made.tolist())


class Head(ctypes.Structure):
    """A trained head, as step.c has it."""

    _fields_ = (
        ("layer", ctypes.c_void_p),
        *((name, Linear) for name in ("join", "output")),
        *((name, ctypes.c_void_p) for name in ("embeddings", "norm_state", "norm_embedding")),
        ("eps", ctypes.c_float),
        ("names", ctypes.c_void_p),
    )


class Guesser(NamedTuple):
    """A head that guesses in C, and what keeps it in memory."""

    plan: Head
    kept: tuple[Any, ...]
    stack: Stack
    known: int  # tokens that it can guess
    width: int


def guesser(network: Any, embeddings: torch.Tensor, output: Any, norm: Any) -> Guesser | None:
    """A HeadNetwork with the target's embeddings [V, width] and its output rows, if all is laid out; else None."""
    stack, join, rows = network.blocks.laid_out, getattr(network.join, "layer", None), getattr(output, "layer", None)
    if stack is None or not isinstance(join, Layer) or not isinstance(rows, Layer) or embeddings.dtype != torch.float32:
        return None
    last, gain = len(stack.layers) - 1, None
    plan = Linear.from_buffer_copy(rows.plan)
    if isinstance(norm, torch.nn.RMSNorm):
        gain = absorb(norm, plan)
    norms = [network.norm_state.weight, network.norm_embedding.weight]
    words = (embeddings, *norms)
    made = Head(
        ctypes.addressof(stack.layers[last]),
        join.plan,
        plan,
        *(one.data_ptr() for one in words),
        network.norm_state.eps,
        network.tokens.data_ptr(),
    )
    return Guesser(made, (stack, join, rows, gain, *words, network.tokens), stack, plan.outputs, join.plan.outputs)


def guess(
    head: Guesser, state: torch.Tensor, angles: Any, entry: int, store: Any, temperature: float, u: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """A guess for each u, one after another, as places among the tokens that the head knows [L], and a row more than
    that of the laws they were drawn from [L + 1, D], zero at last; None where a law is none.

    state     [..., width] after the last committed token
    entry     of the first guess: it goes to slot entry + 1 of the store, and turns by that row of the angles
    """
    count, (_, shared, room, size) = len(u), store.keys.shape
    states, laws = state.new_empty((count, head.width)), np.zeros((count + 1, head.known), dtype=np.float32)
    states[0], u = state.flatten(), np.ascontiguousarray(u)
    places, widest = np.empty(count, dtype=np.int64), max(head.stack.width, 2 * head.width)
    work = state.new_empty(3 * widest + head.width + 2)
    made = build.compiled().guess(
        ctypes.byref(head.plan),
        Sizes(1, 1, head.stack.heads, shared, size, room, 0, entry + 1, 1, entry + 2, 0, 0),
        count,
        temperature,
        u.ctypes.data,
        angles.cos[entry:].data_ptr(),
        angles.sin[entry:].data_ptr(),
        store.keys.data_ptr(),
        store.values.data_ptr(),
        states.data_ptr(),
        laws.ctypes.data,
        places.ctypes.data,
        work.data_ptr(),
        widest,
        work.data_ptr() + 4 * (2 * widest + head.width),
    )
    return (places, laws) if made == count else None
