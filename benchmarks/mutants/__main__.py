"""Mutate what exactness hangs on and count what the tests notice.

`python -m benchmarks.mutants` makes the mutants of every area, runs the area's tests against each, and the wider tests
against what survives. It can be stopped at any time: what is known is in build/mutants.jsonl, and the next run goes on
from there. A run of all areas ends with a row for each mutant in benchmarks/results/mutants.json, from which
docs/exactness.md has its numbers. `--only law noise` runs some areas, `--list` runs nothing and shows the mutants.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.mutants import runner
from benchmarks.mutants.areas import AREAS
from benchmarks.mutants.campaign import Campaign, Result, mutants
from benchmarks.mutants.report import record, summary

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results/mutants.json"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description="Run the mutation campaign.")
    parser.add_argument("--only", nargs="+", choices=AREAS, default=list(AREAS), metavar="AREA", help="run these areas")
    parser.add_argument("--match", default="", help="run mutants whose names contain this")
    parser.add_argument("--patches", action="store_true", help="run only mutants that were written by hand")
    parser.add_argument("--fast", action="store_true", help="run only the tests of each mutant's own area")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of mutants that operators make")
    parser.add_argument("--workers", type=int, default=2, help="mutants at a time")
    parser.add_argument("--journal", type=Path, default=ROOT / "build/mutants.jsonl", help="what is known so far")
    parser.add_argument("--scratch", type=Path, default=ROOT / "build/mutants", help="for copies of the repository")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where a run of all areas is recorded")
    parser.add_argument("--record", action="store_true", help="run nothing and record what is known")
    parser.add_argument("--list", action="store_true", help="show the mutants and what is known of them")
    options = parser.parse_args()
    chosen = [mutant for mutant in mutants(ROOT, options.seed, options.only) if options.match in mutant.name]
    chosen = [mutant for mutant in chosen if not options.patches or mutant.operator == "patch"]
    campaign = Campaign(ROOT, options.journal)
    if options.list:
        for mutant in chosen:
            known = campaign.results.get(mutant.key)
            print(f"{known.fate if known else 'not run':10} {mutant.area:9} {mutant.name} ({mutant.line})")
    elif not options.record and any(not campaign.is_settled(mutant) for mutant in chosen):
        runner.import_slow()
        workers = runner.Workers(ROOT, options.scratch, options.workers)
        for wider in (False,) if options.fast else (False, True):
            campaign.run(chosen, workers, wider, tell)
    results = [campaign.results[mutant.key] for mutant in chosen if mutant.key in campaign.results]
    print(summary(results))
    whole = len(chosen) == len(mutants(ROOT, options.seed, list(AREAS)))
    if whole and (options.record or all(map(campaign.is_settled, chosen))):
        options.results.write_text(json.dumps(record(results, options.seed), indent=1) + "\n", encoding="utf-8")


def tell(result: Result) -> None:
    """One line for a mutant that was run."""
    print(f"{result.fate:9} {result.seconds:6.1f} s  {result.name} ({result.line})  {result.by}", flush=True)


if __name__ == "__main__":
    main()
