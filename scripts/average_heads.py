"""Average the weights of two heads of one training: often a better drafter on all kinds of text than either.

`python -m scripts.average_heads BEFORE AFTER OUT --share 0.6` takes 0.6 of the weights of AFTER, which was trained from
BEFORE on, and its draft tokens.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from draftproof.models.llama import head


@torch.no_grad()
def average(before: head.HeadNetwork, after: head.HeadNetwork, share: float) -> head.HeadNetwork:
    """`after`, with so large a share of its own weights and the rest of those before."""
    for mine, other in zip(after.parameters(), before.parameters(), strict=True):
        mine.copy_(share * mine + (1 - share) * other)
    return after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("before", "after", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--share", type=float, default=0.5, help="of the head after training")
    given = parser.parse_args()
    head.save(average(head.load(given.before), head.load(given.after), given.share), given.out)


if __name__ == "__main__":
    main()
