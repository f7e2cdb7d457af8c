# mypy: ignore-errors
"""Numbers passed between the programs of one launch: value and ready bit in one atomic word.

Consumers spin on the data they need and on nothing else, so there is no fence and no arrival counter. Words are zero
before the launch and each is written once. All programs must run at once: the launch has to be cooperative.
"""

import triton
import triton.language as tl


@triton.jit
def post(at, numbers, mask, TYPE: tl.constexpr):
    """Write numbers, rounded to TYPE, with the ready bit into the words `at`, which are twice as wide as TYPE."""
    if TYPE.primitive_bitwidth == 16:
        word = (numbers.to(TYPE).to(tl.int16, bitcast=True).to(tl.int32) << 16) | 1
    else:
        word = (numbers.to(TYPE).to(tl.int32, bitcast=True).to(tl.int64) << 32) | 1
    tl.atomic_xchg(at, word, mask=mask, sem="relaxed")


@triton.jit
def unpack(word, TYPE: tl.constexpr):
    """The number in a word."""
    if TYPE.primitive_bitwidth == 16:
        number = (word >> 16).to(tl.int16).to(TYPE, bitcast=True)
    else:
        number = (word >> 32).to(tl.int32).to(TYPE, bitcast=True)
    return number


@triton.jit
def peek(at, mask):
    """Words as they are now, ready or not; masked ones count as ready. A mask of None reads all."""
    return tl.load(at, volatile=True) if mask is None else tl.load(at, mask=mask, other=1, volatile=True)


@triton.jit
def missing(word):
    """1 if any of these words, [..] or [.., ..], is not ready yet, else 0."""
    lack = ((word & 1) ^ 1).to(tl.int32)
    if len(word.shape) == 2:
        lack = tl.max(lack, 1)  # within a warp, then among warps
    return tl.max(lack, 0)
