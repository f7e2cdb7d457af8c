# mypy: ignore-errors
"""Compile-time constants that several kernels share: the numbers of rules, faults and noise lanes."""

import triton.language as tl

from draftproof.kernels.types import ChainRule, Fault
from draftproof.noise import Lane

NO_TOKEN: tl.constexpr = tl.constexpr(2**31 - 1)  # larger than every token id, so that a minimum ignores it

BLOCK_RULE: tl.constexpr = tl.constexpr(int(ChainRule.BLOCK))
ONEHOT_RULE: tl.constexpr = tl.constexpr(int(ChainRule.ONEHOT))

TARGET_FAULT: tl.constexpr = tl.constexpr(int(Fault.TARGET))
TOKEN_FAULT: tl.constexpr = tl.constexpr(int(Fault.TOKEN))
DRAFT_FAULT: tl.constexpr = tl.constexpr(int(Fault.DRAFT))
IMPOSSIBLE_FAULT: tl.constexpr = tl.constexpr(int(Fault.IMPOSSIBLE))

DRAFT_LANE: tl.constexpr = tl.constexpr(int(Lane.DRAFT))
STOP_LANE: tl.constexpr = tl.constexpr(int(Lane.STOP))
NEXT_LANE: tl.constexpr = tl.constexpr(int(Lane.NEXT))
