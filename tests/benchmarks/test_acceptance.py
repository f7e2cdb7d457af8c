"""The page docs/acceptance.md is what its benchmark recorded, and the record says what theory says it must."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.acceptance import Row, draw_paths, likely_tree, main, markdown, models
from draftproof.draft import Tree
from draftproof.draws import DRAWS
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


def test_every_limit_is_named_for_its_draws() -> None:
    names = re.findall(r"^\| \d \| (\w+) \| \*(.*?)\* \|", markdown(ROWS), flags=re.MULTILINE)
    assert names == [(draw, f"limit of {draw} draws") for _ in (2, 4) for draw in DRAWS]


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
        for row in ROWS:
            if (row.table, row.siblings, row[4:7]) == ("one step", siblings, place):
                assert row.value <= value("limit", siblings, place, row.draw), row


def accepted(siblings: int, place: tuple[float, int, float]) -> dict[str, float]:
    """Accepted tokens of the rules on paths; of `match` on the likely tree under its own name."""
    rows = [row for row in ROWS if row.table == "several steps" and row[4:7] == place]
    rows = [row for row in rows if row.siblings == siblings or row.rule in ("token", "block")]
    return {"likely tree" if row.draw == "fixed" else row.rule: row.value for row in rows}


def test_several_steps_ranking() -> None:
    """A good drafter at temperature one, four guesses: the order of the rules from a fixed tree to carried ties."""
    found = accepted(4, (0.95, 50, 1.0))
    order = ["match", "likely tree", "token", "block", "recursive", "kseq", "traversal_iid", "optimal", "sbv", "csbv"]
    assert sorted(order, key=found.__getitem__) == order
    assert found["recursive"] < found["gbv"] < found["traversal_iid"]
    assert found["kseq"] < found["sbv_plan"] < found["optimal"]
    poor = accepted(4, (0.8, 50, 1.0))
    assert max(poor, key=poor.__getitem__) == "sbv_plan"


def test_likely_tree_is_what_it_says() -> None:
    """Its nodes are the most probable paths, and what is accepted is their mass under the target."""
    (model,) = models(1, (0.95, 4, 1.0))
    draft = likely_tree(model, 6, 3)
    tree, tokens = draft.tree, draft.tokens[0]
    paths = [tuple(int(tokens[n]) for n in tree.path(node)) for node in range(1, tree.size)]

    def mass(path: tuple[int, ...], which: int) -> float:
        return float(np.prod([model(path[:i])[which][x] for i, x in enumerate(path)]))

    every = [path for n in (1, 2, 3) for path in itertools.product(range(4), repeat=n)]
    assert sorted(paths) == sorted(sorted(every, key=lambda path: -mass(path, 1))[:6])
    stop = VERIFIERS["match"].stop(draft)[0]
    assert stop @ np.array(tree.depth) == pytest.approx(sum(mass(path, 0) for path in paths), abs=1e-12)


def test_equal_paths_have_equal_rows() -> None:
    draft = draw_paths(Tree.paths(3, 2), "iid", models(20, (0.95, 3, 1.0)))
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
