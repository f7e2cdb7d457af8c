"""Audit the engines that people run: `python -m benchmarks.engines` makes a row for each engine and mode.

For each engine it makes an environment with pinned versions, collects texts of plain sampling and of each speculative
mode, and audits them: plain sampling first, which sets the tolerance of the others; these are also compared with it by
the paired test. An alarm is followed by a second, independent check, histograms of one prompt's samples beside those of
plain sampling. Rows go to
benchmarks/results/engines.json; what is there already, and transcripts that are there, are not made again. `--only
vLLM` chooses engines, `--only "vLLM, ngram"` modes.
"""

from __future__ import annotations

import argparse
import json
import shlex
import time
from pathlib import Path
from typing import Any

from benchmarks.engines import jobs, judge
from draftproof.bench.rows import facts
from draftproof.paths import cache_folder

RESULTS = Path(__file__).parents[1] / "results" / "engines.json"
MEAN = 100  # tokens of a text, about
SHORT = 4  # tokens of the texts in histograms


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[""], help='parts of "engine, mode"; a name ends with a full stop')
    parser.add_argument("--tokens", type=int, default=50_000, help="at least so many for each mode")
    parser.add_argument("--again", action="store_true", help="judge anew what has a row already")
    parser.add_argument("--home", type=Path, default=cache_folder() / "engines", help="environments and transcripts")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    (options.home / "transcripts").mkdir(parents=True, exist_ok=True)
    toy, table = jobs.toy_model(options.home), jobs.table_model(options.home)
    for engine, mode in jobs.find(options.only):
        model = table if engine.format == "table" else toy
        control = f"{engine.name}, {engine.control}, {model.name}"
        for each in dict.fromkeys((engine.control, mode)):  # plain sampling comes first
            name = f"{engine.name}, {each}, {model.name}"
            rows = read(options.results)
            enough = rows.get(name, {}).get("tokens", 0) >= options.tokens
            if enough and not (options.again and each == mode):
                continue
            made = audited(engine, each, model, options, rows.get(control, {}).get("tolerance"))
            keep(options.results, name, made)
            print(f"{name}: {made['verdict']}, evidence e^{made['evidence']}, {made['tokens']} tokens", flush=True)


def audited(engine: jobs.Engine, mode: str, model: jobs.Model, options: Any, tolerance: float | None) -> dict[str, Any]:
    """Collect and judge one mode; without a tolerance it is the control, which sets one."""
    begun = time.perf_counter()
    texts, told = collected(engine, mode, model, options.tokens, options.home)
    between = time.perf_counter()
    draft = str(model.draft) if engine.modes[mode] == "model" else engine.modes[mode]
    if tolerance is None or mode == engine.control:
        report, beside = judge.calibrated(texts, model.target), None
    else:
        plain, _ = collected(engine, engine.control, model, options.tokens, options.home)
        report = judge.judged(texts, model.target, draft, tolerance)
        beside = judge.paired(texts, plain, model.target, draft)
    clock = {"collect_s": round(between - begun, 1), "audit_s": round(time.perf_counter() - between, 1)}
    checked = checked_again(engine, mode, model, options.home) if judge.alarm(report, beside) else None
    with texts.open(encoding="utf-8") as file:
        version = json.loads(next(file))["engine"].removeprefix(f"{engine.name} ")
    only = f"{engine.name}, {mode}."
    command = shlex.join(["python", "-m", "benchmarks.engines", "--only", only, "--tokens", str(options.tokens)])
    about = {
        "engine": engine.name,
        "version": version,
        "mode": mode,
        "model": model.name,
        "draft": engine.modes[mode],
        "sampling": model.sampling,
        **told,
    }
    where = {**facts("cuda" if engine.gpu else "cpu")._asdict(), "command": command}
    return {**about, **judge.row(report, beside, checked), **clock, "seed": seed(engine, mode), **where}


def collected(
    engine: jobs.Engine, mode: str, model: jobs.Model, tokens: int, home: Path
) -> tuple[Path, dict[str, Any]]:
    """The file with this mode's transcripts, collected unless it is there with enough tokens."""
    out = home / "transcripts" / f"{slug(engine, mode, model)}.jsonl"
    told = out.with_suffix(".told.json")
    if not out.exists() or length(out) < tokens:
        samples = -(-tokens // (min(MEAN, model.longest) * len(model.prompts)))
        while True:
            found = jobs.collect(engine, jobs.job(engine, mode, model, samples, seed(engine, mode)), out, home)
            if length(out) >= tokens:
                break
            samples = samples * 3 // 2
        told.write_text(json.dumps(found))
    return out, json.loads(told.read_text())


def checked_again(engine: jobs.Engine, mode: str, model: jobs.Model, home: Path) -> judge.Compared:
    """Histograms of many short samples of one prompt: plain sampling beside this mode, by the same engine."""
    short = model._replace(prompts=model.prompts[:1], longest=SHORT)
    files = []
    for each in (engine.control, mode):
        out = home / "transcripts" / f"{slug(engine, each, model)}-histogram.jsonl"
        if not out.exists():
            jobs.collect(engine, jobs.job(engine, each, short, model.checked, seed(engine, each) + 100), out, home)
        files.append(out)
    return judge.compared(*files)


def seed(engine: jobs.Engine, mode: str) -> int:
    """Another one for each mode: some engines write the same text for the same seed, whatever the draft."""
    return 1 + list(engine.modes).index(mode)


def slug(engine: jobs.Engine, mode: str, model: jobs.Model) -> str:
    return f"{engine.name}-{mode}-{model.name}".replace(",", "").replace(" ", "-").lower()


def length(transcripts: Path) -> int:
    with transcripts.open(encoding="utf-8") as file:
        return sum(len(json.loads(line)["output_token_ids"]) for line in file)


def read(results: Path) -> dict[str, Any]:
    return dict(json.loads(results.read_text(encoding="utf-8"))) if results.exists() else {}


def keep(results: Path, name: str, made: dict[str, Any]) -> None:
    """One more row in the file, or a new one in its place."""
    rows = {**read(results), name: made}
    results.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
