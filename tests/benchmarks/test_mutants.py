"""The mutation campaign: its mutants are programs, each changed in one place, the same for the same seed."""

from __future__ import annotations

import ast

from benchmarks.mutants.__main__ import ROOT
from benchmarks.mutants.areas import AREAS
from benchmarks.mutants.campaign import mutants
from benchmarks.mutants.mutant import PACKAGE
from benchmarks.mutants.operators import slips


def test_every_mutant_is_another_program():
    """Also that every patch still fits the source it changes, and every test it is run against is there."""
    made = mutants(ROOT, 1, list(AREAS))
    assert len({mutant.key for mutant in made}) == len({mutant.name for mutant in made}) == len(made) >= 300
    for mutant in made:
        original = (ROOT / PACKAGE / mutant.file).read_text(encoding="utf-8")
        assert mutant.text != original
        if mutant.file.endswith(".py"):
            ast.parse(mutant.text)
    for area in AREAS.values():
        assert all((ROOT / "tests" / path.partition("::")[0]).exists() for path in (*area.tests, *area.wider))


SOURCE = '''
def share(p, q, count: int = 3):
    """Not this: 1 < 2."""
    if p < q and count > 0:
        total = sum(p, q) - 1
    else:
        raise ValueError(f"not {count + 1}")
    return noise(Lane.STOP)[count] / total, xp.stack(p, axis=1)
'''


def test_operators_change_what_is_computed_and_nothing_else(tmp_path):
    (tmp_path / PACKAGE).mkdir(parents=True)
    (tmp_path / PACKAGE / "one.py").write_text(SOURCE)
    changed = {slip.says.removeprefix("share: ") for slip in slips(tmp_path, "one.py", 1)}
    assert changed == {
        "comparison, p < q -> p <= q",
        "comparison, count > 0 -> count >= 0",
        "boolean, p < q and count > 0 -> p < q or count > 0",
        "boolean, p < q and count > 0 -> not (p < q and count > 0)",
        "constant, 0 -> 1",
        "constant, 1 -> 2",
        "constant, 1 -> 0",
        "arithmetic, sum(p, q) - 1 -> sum(p, q) + 1",
        "dropped term, sum(p, q) - 1 -> sum(p, q)",
        "swapped arguments, sum(p, q) -> sum(q, p)",
        "arithmetic, noise(Lane.STOP)[count] / total -> noise(Lane.STOP)[count] * total",
        "dropped term, noise(Lane.STOP)[count] / total -> noise(Lane.STOP)[count]",
        "index, noise(Lane.STOP)[count] -> noise(Lane.STOP)[count - 1]",
        *(f"lane, Lane.STOP -> Lane.{lane}" for lane in ("DRAFT", "NEXT", "SELECT", "RACE")),
        "axis, xp.stack(p, axis=1) -> xp.stack(p, axis=0)",
    }
    once, again, other = ([slip.lot for slip in slips(tmp_path, "one.py", seed)] for seed in (1, 1, 2))
    assert once == again != other
    (one,) = (slip for slip in slips(tmp_path, "one.py", 1) if "p <= q" in slip.says)
    assert one.mutant(tmp_path, "law").text == SOURCE.replace("p < q and", "(p <= q) and")
