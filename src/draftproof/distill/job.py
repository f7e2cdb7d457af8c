"""What a run is asked to do and what it has measured, as its folder keeps it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from draftproof.errors import DraftproofError


class Job(NamedTuple):
    """What is asked for; the same job in the same folder is the same run."""

    kind: str = "head"  # or "model"
    data: tuple[str, ...] = ("self",)  # files of prompts and "self", each with the same share of the questions
    held: str = ""  # a file of prompts to evaluate on; by default every 20th of the data
    minutes: float | None = None
    shards: int | None = None  # these two override the minutes
    steps: int | None = None
    rows: int = 256  # of text in a shard
    held_rows: int = 64  # of text to evaluate on, for each temperature
    length: int = 513  # of a row
    batch: int = 32  # rows in a step of training
    rate: float = 3e-3
    vocabulary: int = 8192  # of a head
    layers: int | None = None  # of either; by default 1 for a head, 6 for a model, or as many as before
    width: int = 96  # of a model
    unroll: int = 4  # steps of its own that a head is trained for
    seed: int = 0
    chat: bool = True
    begin: str = ""  # a drafter of the same kind to go on from

    def check(self) -> Job:
        if self.kind not in ("head", "model"):
            raise DraftproofError(f"unknown kind {self.kind!r}: a drafter is a head or a model")
        if not self.data:
            raise DraftproofError("no prompts: give --data self, or a file")
        for name in ("rows", "held_rows", "batch", "vocabulary", "width", "unroll"):
            if getattr(self, name) < 1:
                raise DraftproofError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("minutes", "shards", "steps", "layers"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise DraftproofError(f"{name} must be positive, not {getattr(self, name)}")
        if self.width % 8:
            raise DraftproofError(f"width must be a multiple of 8, not {self.width}")
        if not self.rate > 0:
            raise DraftproofError(f"rate must be positive, not {self.rate}")
        if self.length < 16:
            raise DraftproofError(f"rows of {self.length} tokens are too short to learn from: use 16 or more")
        return self


class Folder:
    """A run on disk."""

    def __init__(self, out: Path, target: str, job: Job, text: Path | None = None) -> None:
        self.out = out
        self.text = text or out / "text"
        for place in (self.out, self.text):
            try:
                place.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise DraftproofError(f"no folder can be made at {place} ({error.strerror}): choose another") from error
        self.asked = {"target": target, **json.loads(json.dumps(job._asdict()))}
        self.measured: dict[str, int] = {}
        if self.plan.exists():
            known = json.loads(self.plan.read_text())
            if known["asked"] != self.asked:
                other = next(name for name in self.asked if known["asked"].get(name) != self.asked[name])
                raise DraftproofError(
                    f"{out} holds a run with another {other}: choose another folder, or empty this one"
                )
            self.measured = known["measured"]
        self._write()

    @property
    def plan(self) -> Path:
        return self.out / "plan.json"

    def amount(self, name: str, asked: int | None, measure: Callable[[], int]) -> int:
        """How much of something: as asked, as measured before, or as measured now."""
        if asked is None and name not in self.measured:
            self.measured[name] = max(measure(), 1)
            self._write()
        return asked if asked is not None else self.measured[name]

    def _write(self) -> None:
        scratch = self.plan.with_suffix(".part")
        scratch.write_text(json.dumps({"asked": self.asked, "measured": self.measured}, indent=1) + "\n")
        scratch.replace(self.plan)
