"""Tuners, which choose the shape of the next draft from the steps before."""

from draftproof.engine.tuning.estimates import LONGEST, Nominal
from draftproof.engine.tuning.lengths import LENGTHS, Pace
from draftproof.engine.tuning.shapes import Auto, assumed, hope, least, tuned
from draftproof.engine.tuning.tuner import Fixed, StepReport, Tuner

__all__ = [
    "LENGTHS",
    "LONGEST",
    "Auto",
    "Fixed",
    "Nominal",
    "Pace",
    "StepReport",
    "Tuner",
    "assumed",
    "hope",
    "least",
    "tuned",
]
