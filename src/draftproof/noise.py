"""Counter-based random numbers without state (Philox4x32-10, Salmon et al., SC 2011).

A uniform is a function of (seed, request, step, lane, index), so none is used twice, and a text does not depend on what
else is in the batch. The step is among them because rules that look ahead (block verification) are wrong when a
position that is drafted again sees the same numbers again.
"""

from __future__ import annotations

from enum import IntEnum
from numbers import Integral

from array_api_compat import array_namespace

from draftproof.errors import DraftproofError
from draftproof.law import Array

WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


class Lane(IntEnum):
    """What a uniform is for; lanes never share numbers."""

    DRAFT = 0  # index = node that is drawn
    STOP = 1  # the last accepted node
    NEXT = 2  # the emitted token
    SELECT = 3  # a selector's inner choices
    RACE = 4  # the exponentials that drafter and target share; keyed by position, see `races`


def uniforms(seed: Array, request: Array, step: Array, lane: Lane, count: int) -> Array:
    """[B, count] float64 in [0, 1) with 53 random bits; seed, request and step are int64 arrays [B]."""
    high, low, _, _ = _words(seed, request, step, lane, count)
    return _fraction(high, low)


def races(seed: Array, request: Array, position: Array, size: int, streams: int = 1) -> Array:
    """[B, streams, size] standard exponentials, one for each token of a vocabulary, shared by drafter and target.

    Keyed by the absolute position in the output, not by the step: the token at that position is the only thing these
    numbers decide, however often the position is drafted, so seeing them again does no harm. The first `size` numbers
    stay the same when a vocabulary is padded.
    """
    xp = array_namespace(seed)
    a, b, c, d = _words(seed, request, position, Lane.RACE, (size * streams + 1) // 2)
    u = xp.stack([_fraction(a, b), _fraction(c, d)], axis=-1)  # a call yields four words: two uniforms
    u = xp.reshape(u, (u.shape[0], -1))[:, : size * streams]
    return -xp.log1p(-xp.permute_dims(xp.reshape(u, (u.shape[0], size, streams)), (0, 2, 1)))


def _words(seed: Array, request: Array, step: Array, lane: Lane, count: int) -> tuple[Array, Array, Array, Array]:
    """Four random 32-bit words for each index, [B, count] each."""
    xp = array_namespace(seed)
    index = xp.arange(count, dtype=xp.int64, **({} if str(seed.device) == "cpu" else {"device": seed.device}))
    zero = seed[:, None] * 0 + index[None, :] * 0
    counter = (zero + index, zero + int(lane), zero + step[:, None], zero + request[:, None])
    key = (zero + (seed[:, None] & WORD), zero + ((seed[:, None] >> 32) & WORD))
    return philox(counter, key)


def _fraction(high: Array, low: Array) -> Array:
    """53 of the bits of two words as a float64 in [0, 1)."""
    xp = array_namespace(high)
    return (xp.astype(high >> 5, xp.float64) * 2.0**26 + xp.astype(low >> 6, xp.float64)) * 2.0**-53


def philox(counter: tuple[Array, ...], key: tuple[Array, Array]) -> tuple[Array, Array, Array, Array]:
    """Ten rounds of Philox4x32 on int64 arrays that hold 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = _multiply(_MULTIPLIERS[0], c0)
        high1, low1 = _multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & WORD, (k1 + _WEYL[1]) & WORD
    return c0, c1, c2, c3


def _multiply(a: int, b: Array) -> tuple[Array, Array]:
    """High and low word of a 32 x 32 bit product; int64 wraps around to the same 64 bits."""
    product = a * b
    return (product >> 32) & WORD, product & WORD


def check_seed(seed: int) -> int:
    """Return the seed as an int, or raise if it does not fit the key."""
    if not isinstance(seed, Integral) or not 0 <= seed < 2**63:
        raise DraftproofError(f"seed must be an integer from 0 to 2**63 - 1, not {seed!r}")
    return int(seed)
