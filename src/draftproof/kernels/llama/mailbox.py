# mypy: ignore-errors
"""Numbers that programs of one launch tell each other, each in a word that also says that it is there.

So a program waits for the numbers that it needs and for nothing else: there is no fence to pay for, and nobody counts
who has arrived. Words are zero before the launch, and each is written once. A launch must be cooperative for this.
"""

import triton
import triton.language as tl


@triton.jit
def tell(at, numbers, there, TYPE: tl.constexpr):
    """Leave numbers, rounded to this type, in the words `at`, which are twice as wide."""
    if TYPE.primitive_bitwidth == 16:
        word = (numbers.to(TYPE).to(tl.int16, bitcast=True).to(tl.int32) << 16) | 1
    else:
        word = (numbers.to(TYPE).to(tl.int32, bitcast=True).to(tl.int64) << 32) | 1
    tl.atomic_xchg(at, word, mask=there, sem="relaxed")


@triton.jit
def told(word, TYPE: tl.constexpr):
    """The number in a word."""
    if TYPE.primitive_bitwidth == 16:
        number = (word >> 16).to(tl.int16).to(TYPE, bitcast=True)
    else:
        number = (word >> 32).to(tl.int32).to(TYPE, bitcast=True)
    return number


@triton.jit
def look(at, there):
    """Words as they are now; none is missing where none is wanted. None: all are."""
    return tl.load(at, volatile=True) if there is None else tl.load(at, mask=there, other=1, volatile=True)


@triton.jit
def missing(word):
    """Whether any of these words, [..] or [.., ..], is not there yet."""
    lack = ((word & 1) ^ 1).to(tl.int32)
    if len(word.shape) == 2:
        lack = tl.max(lack, 1)  # within a warp, then among warps
    return tl.max(lack, 0)
