"""The settings of a run, and the folder that stores them with what was measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from draftproof.errors import DraftproofError


class Job(NamedTuple):
    """The settings of a run; the same job in the same folder is the same run."""

    kind: str = "head"  # or "model"
    data: tuple[str, ...] = ("self",)  # files of prompts, or "self"; each gets the same share of the questions
    held: str = ""  # a file of prompts to evaluate on; by default every 20th of the data
    minutes: float | None = None
    shards: int | None = None  # these two override the minutes
    steps: int | None = None
    rows: int = 256  # of text in a shard
    held_rows: int = 64  # of text to evaluate on, per temperature
    length: int = 513  # of a row
    batch: int = 32  # rows per training step
    rate: float = 3e-3
    vocabulary: int = 8192  # of a head
    layers: int | None = None  # by default 1 for a head, 6 for a model, or those of `begin`
    width: int = 96  # of a model
    unroll: int = 4  # draft steps in a row that a head is trained for
    seed: int = 0
    chat: bool = True
    begin: str = ""  # a drafter of the same kind to start from

    def check(self) -> Job:
        if self.kind not in ("head", "model"):
            raise DraftproofError(f"unknown kind {self.kind!r}: use head or model")
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
    """The folder of a run on disk."""

    def __init__(self, out: Path, target: str, job: Job, text: Path | None = None) -> None:
        self.out = out
        self.text = text or out / "text"
        for place in (self.out, self.text):
            try:
                place.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise DraftproofError(
                    f"the folder {place} cannot be created ({error.strerror}): choose another one"
                ) from error
        self.requested = {"target": target, **json.loads(json.dumps(job._asdict()))}
        self.measured: dict[str, int] = {}
        if self.plan.exists():
            stored = json.loads(self.plan.read_text())
            if stored["asked"] != self.requested:
                changed = next(name for name in self.requested if stored["asked"].get(name) != self.requested[name])
                raise DraftproofError(
                    f"{out} contains a run with another {changed}: choose another folder, or empty this one"
                )
            self.measured = stored["measured"]
        self._write()

    @property
    def plan(self) -> Path:
        return self.out / "plan.json"

    def amount(self, name: str, requested: int | None, measure: Callable[[], int]) -> int:
        """An amount of text or training: as requested, as measured before, or as measured now."""
        if requested is None and name not in self.measured:
            self.measured[name] = max(measure(), 1)
            self._write()
        return requested if requested is not None else self.measured[name]

    def _write(self) -> None:
        scratch = self.plan.with_suffix(".part")
        scratch.write_text(json.dumps({"asked": self.requested, "measured": self.measured}, indent=1) + "\n")
        scratch.replace(self.plan)
