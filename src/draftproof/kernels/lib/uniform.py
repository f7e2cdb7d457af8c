# mypy: ignore-errors
"""The uniforms of draftproof.noise on the device: Philox numbers of the same keys."""

import triton
import triton.language as tl


@triton.jit
def uniform(noise, b, lane, index):
    """The float64 in [0, 1) that draftproof.noise gives these keys of sequence b, this lane and index."""
    return uniform_of(tl.load(noise.seed + b), tl.load(noise.request + b), tl.load(noise.step + b), lane, index)


@triton.jit
def uniform_of(seed, request, step, lane, index):
    """The same of keys that are numbers."""
    word = tl.zeros((), dtype=tl.uint32)
    high, low, _, _ = tl.philox(
        seed, (word + index).to(tl.uint32), (word + lane).to(tl.uint32), step.to(tl.uint32), request.to(tl.uint32)
    )
    return ((high >> 5).to(tl.float64) * 67108864.0 + (low >> 6).to(tl.float64)) * 1.1102230246251565e-16
