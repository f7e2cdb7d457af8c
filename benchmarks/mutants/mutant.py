"""A mutant: one small change of one source file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

PACKAGE = "src/draftproof"


class Patch(NamedTuple):
    """A fault written by hand: text of a file that occurs once, what takes its place, and what that changes."""

    file: str  # in the package
    old: str
    new: str
    says: str


class Mutant(NamedTuple):
    """A source file with one fault in it."""

    area: str
    file: str  # in the package
    line: int
    operator: str  # "patch" for those written by hand
    says: str  # what is changed; with the file it names the mutant
    text: str  # of the whole changed file

    @property
    def name(self) -> str:
        return f"{self.file}: {self.says}"

    @property
    def key(self) -> str:
        """The same as long as the changed file is the same to the last letter."""
        return hashlib.sha256(f"{self.file}\n{self.text}".encode()).hexdigest()[:16]


def patched(root: Path, area: str, patch: Patch) -> Mutant:
    """The mutant of a patch; raises if the text to change is not there exactly once."""
    text = (root / PACKAGE / patch.file).read_text(encoding="utf-8")
    if text.count(patch.old) != 1:
        raise SystemExit(f"{patch.file} has {text.count(patch.old)} times {patch.old!r}, not once: mend the patch")
    line = text[: text.index(patch.old)].count("\n") + 1
    return Mutant(area, patch.file, line, "patch", patch.says, text.replace(patch.old, patch.new))
