"""The campaign: which mutants there are, what is known of them already, and the tests that are still to be run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.mutants import operators
from benchmarks.mutants.areas import AREAS, EXACT, OWN, RULES
from benchmarks.mutants.equivalents import EQUIVALENT
from benchmarks.mutants.mutant import Mutant, patched
from benchmarks.mutants.patches import PATCHES
from benchmarks.mutants.runner import Outcome, Trial, Workers


class Result(NamedTuple):
    """A mutant's fate: "killed", "survived", or "open" as long as it has only survived the tests of its area."""

    key: str
    name: str
    area: str
    line: int
    operator: str
    fate: str
    by: str
    seconds: float  # of processor time
    tests: str  # hash of all tests when it was run


def mutants(root: Path, seed: int, areas: Sequence[str]) -> list[Mutant]:
    """The patches of each area, and as many mutants made by operators as the area asks for."""
    chosen = []
    for area in areas:
        found = [patched(root, area, patch) for patch in PATCHES.get(area, ())]
        slips = sorted(slip for file in AREAS[area].files for slip in operators.slips(root, file, seed))
        known = {mutant.key for mutant in found}
        drawn = [slip.mutant(root, area) for slip in slips[: AREAS[area].count]]
        chosen += found + [mutant for mutant in drawn if mutant.key not in known]
    return chosen


def paths(mutant: Mutant, wider: bool) -> list[str]:
    """The test files that a mutant is run against, in the order in which they are run."""
    area = AREAS[mutant.area]
    if is_named(mutant):
        return [*area.tests, *area.wider] if wider else [*RULES, *EXACT]
    first = OWN.get(mutant.file, area.tests)
    return [name for name in (*area.tests, *area.wider) if name not in first] if wider else list(first)


def is_named(mutant: Mutant) -> bool:
    """Whether the file is a rule's, so that at first only the tests with the rule's name are run."""
    return mutant.area == "rules" and "/_" not in mutant.file and mutant.file not in OWN


def words(mutant: Mutant, wider: bool) -> list[str]:
    """The tests as pytest is given them."""
    only = ["-k", Path(mutant.file).stem] if is_named(mutant) and not wider else []
    return [*(f"tests/{path}" for path in paths(mutant, wider)), *only]


def files_hash(place: Path) -> str:
    """Of a file, or of all sources in a folder."""
    whole = hashlib.sha256()
    inside = place.rglob("*") if place.is_dir() else [place]
    for path in sorted(path for path in inside if path.suffix in (".py", ".c", ".h", ".json")):
        whole.update(path.read_bytes())
    return whole.hexdigest()[:16]


class Campaign:
    """Results by key, kept in a file of JSON lines.

    A mutant that was killed stays killed while its file is the same; a survivor is tried again when a test has changed,
    unless it is known to compute the same.
    """

    def __init__(self, root: Path, journal: Path) -> None:
        self.root, self.journal, self.tests = root, journal, files_hash(root / "tests")
        self.results: dict[str, Result] = {}
        self.passed: dict[str, tuple[str, float]] = {}  # of each test file: when it passed last, and its seconds
        for line in journal.read_text(encoding="utf-8").splitlines() if journal.exists() else ():
            self._read(json.loads(line))

    def is_settled(self, mutant: Mutant) -> bool:
        """Whether nothing is to be run for this mutant."""
        known = self.results.get(mutant.key)
        if known is None or known.fate == "killed" or mutant.name in EQUIVALENT:
            return known is not None
        return (known.fate, known.tests) == ("survived", self.tests)

    def is_open(self, mutant: Mutant) -> bool:
        """Whether it is known to survive the tests of its area."""
        known = self.results.get(mutant.key)
        return known is not None and known.fate != "killed" and known.tests == self.tests

    def run(self, mutants: Sequence[Mutant], workers: Workers, wider: bool, tell: Callable[[Result], None]) -> None:
        """Run the area's tests against mutants that are not settled, or the wider tests against what is open."""
        left = [mutant for mutant in mutants if not self.is_settled(mutant) and self.is_open(mutant) == wider]
        self.check({path for mutant in left for path in paths(mutant, wider)}, workers)
        survived = "survived" if wider else "open"
        for mutant, outcome in self._round(left, workers, wider):
            tell(self._note(mutant, outcome if outcome.fate == "killed" else outcome._replace(fate=survived)))

    def check(self, paths: Collection[str], workers: Workers) -> None:
        """Run test files without a mutant, once: all must pass, and their time gives the limits of the trials."""
        shared = files_hash(self.root / "src") + files_hash(self.root / "tests/support")
        state = {path: f"{shared}{files_hash(self.root / 'tests' / path.partition('::')[0])}" for path in paths}
        left = [path for path in paths if self.passed.get(path, ("", 0.0))[0] != state[path]]
        trials = (Trial(None, [f"tests/{path}"], limit=1200) for path in left)
        for trial, outcome in workers.run(trials):
            if outcome.fate != "survived":
                raise SystemExit(f"{trial.tests[0]} must pass before anything is mutated: {outcome.by}")
            path = trial.tests[0].removeprefix("tests/")
            self._write({"path": path, "state": state[path], "seconds": outcome.seconds})

    def _round(self, left: Sequence[Mutant], workers: Workers, wider: bool) -> Iterator[tuple[Mutant, Outcome]]:
        def trials() -> Iterator[Trial]:
            for mutant in left:
                names = paths(mutant, wider)
                limit = 20 + 3 * sum(self.passed[name][1] for name in names)
                yield Trial(mutant, words(mutant, wider), limit)

        for trial, outcome in workers.run(trials()):
            assert trial.mutant is not None
            if outcome.fate == "broken":
                raise SystemExit(f"the tests of {trial.mutant.name} cannot be run: {outcome.by}")
            yield trial.mutant, outcome

    def _write(self, line: dict[str, Any]) -> None:
        self._read(line)
        self.journal.parent.mkdir(parents=True, exist_ok=True)
        with self.journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _read(self, line: dict[str, Any]) -> None:
        if "path" in line:
            self.passed[line["path"]] = line["state"], line["seconds"]
        else:
            self.results[line["key"]] = Result(**line)

    def _note(self, mutant: Mutant, outcome: Outcome) -> Result:
        about = (mutant.key, mutant.name, mutant.area, mutant.line, mutant.operator)
        result = Result(*about, *outcome, self.tests)
        self._write(result._asdict())
        return result
