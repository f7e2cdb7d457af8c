"""The eager step, for any model and any rule, and its parts for tools that measure single steps."""

from draftproof.engine.eager.decide import decide
from draftproof.engine.eager.propose import Guesser, by_draw, propose
from draftproof.engine.eager.rows import Row, beside, laws, noise, numbers, together, unless_silent

__all__ = [
    "Guesser",
    "Row",
    "beside",
    "by_draw",
    "decide",
    "laws",
    "noise",
    "numbers",
    "propose",
    "together",
    "unless_silent",
]
