"""The page docs/acceptance.md is what its benchmark recorded, and the record says what theory says it must."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.acceptance import Row, draw_paths, main, markdown
from draftproof.draft import Tree
from draftproof.theory.acceptance import ACCEPTANCE
from draftproof.verify import VERIFIERS

ROOT = Path(__file__).resolve().parents[2]
ROWS = [Row(**row) for row in json.loads((ROOT / "benchmarks/results/acceptance.json").read_text(encoding="utf-8"))]
PLACES = sorted({row[4:7] for row in ROWS if row.table == "one step"})


def value(rule: str, siblings: int, place: tuple[float, int, float], draw: str | None = None) -> float:
    (found,) = (
        row.value
        for row in ROWS
        if (row.table, row.rule, row.siblings, row[4:7]) == ("one step", rule, siblings, place)
        and draw in (None, row.draw)
    )
    return found


def test_page_is_not_stale() -> None:
    assert (ROOT / "docs/acceptance.md").read_text(encoding="utf-8") == markdown(ROWS)


@pytest.mark.parametrize("siblings", [2, 4])
def test_one_step_ranking(siblings: int) -> None:
    """In every column: who reaches which limit, and who is above whom."""
    for place in PLACES:
        limit = {draw: value("limit", siblings, place, draw) for draw in ("iid", "distinct", "top", "plan")}
        assert value("optimal", siblings, place) == limit["iid"]
        assert value("nodeplan", siblings, place) == limit["plan"]
        assert value("top_plus_one", siblings, place) == limit["top"]
        assert limit["plan"] > limit["distinct"] - 0.04
        for low, high in [("match", "naive"), ("naive", "recursive"), ("recursive", "kseq"), ("kseq", "optimal")]:
            assert value(low, siblings, place) <= value(high, siblings, place)
        for rule in ACCEPTANCE.keys() - {"onehot"}:
            draw = "iid" if "iid" in VERIFIERS[rule].draws else min(VERIFIERS[rule].draws)
            assert value(rule, siblings, place) <= value("limit", siblings, place, draw) + 1e-4


def test_several_steps_ranking() -> None:
    """A better drafter at temperature one: the order of the rules from one chain to carried ties."""
    found = {row.rule: row.value for row in ROWS if row.table == "several steps" and row[4:7] == (0.95, 50, 1.0)}
    order = ["match", "token", "block", "recursive", "kseq", "optimal", "traversal_iid", "sbv", "csbv"]
    assert sorted(order, key=found.__getitem__) == order


def test_equal_paths_have_equal_rows() -> None:
    draft = draw_paths(Tree.paths(3, 2), 20, (0.95, 3, 1.0))
    same = draft.tokens[:, 1] == draft.tokens[:, 2]
    assert same.any()
    np.testing.assert_array_equal(draft.p[same, 1], draft.p[same, 2])
    assert not np.array_equal(draft.p[~same, 1], draft.p[~same, 2])


def test_benchmark_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--pairs", "1", "--rounds", "2", "--root", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["acceptance", *options])
    main()
    assert (tmp_path / "docs/figures/acceptance.svg").stat().st_size > 10_000
    rows = [Row(**row) for row in json.loads((tmp_path / "benchmarks/results/acceptance.json").read_text())]
    assert [row[:7] for row in rows] == [row[:7] for row in ROWS]
