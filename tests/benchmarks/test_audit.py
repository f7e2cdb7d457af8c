"""The benchmark of engines under audit: every drafter of the small target, and what a row says."""

from __future__ import annotations

import json
import sys

from benchmarks import audit as bench


def test_a_row_says_what_was_audited_and_how(tmp_path, monkeypatch):
    engine = "draftproof, block, ngram|head."
    monkeypatch.setattr(bench, "LESSONS", 2)
    words = ["--target", "small", "--tokens", "300", "--rows", "6", "--length", "24", "--only", engine]
    monkeypatch.setattr(sys, "argv", ["audit", *words, "--results", str(tmp_path / "rows.json")])
    bench.main()
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert sorted(rows) == [f"small: {engine[:-1]}, {setting}" for setting in sorted(bench.SETTINGS)]
    for row in rows.values():
        assert row["exact"]
        assert 300 <= row["tokens"] < 324
        assert len(row["audit_mb"]) == 10
        assert 0 < row["accepted"] < 1
        assert row["command"] == " ".join(["python -m benchmarks.audit", *words[:-1], f"'{engine}'"])
