"""Audit the engines that people run: `python -m benchmarks.engines` makes a row for each engine and mode.

For each engine it makes an environment with pinned versions, collects texts of plain sampling and of each speculative
mode, and audits them: plain sampling first, which sets the tolerance of the others; these are also compared with it by
the paired test. An alarm is followed by a second, independent check, histograms of one prompt's samples beside those of
plain sampling. Rows go to
benchmarks/results/engines.json; what is there already, and transcripts that are there, are not made again. `--only
vLLM` chooses engines, `--only "vLLM, ngram"` modes. `--collect` leaves the judging of a GPU's texts to another machine,
which needs the folder of `--home`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import time
from pathlib import Path
from typing import Any

import torch

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
    parser.add_argument("--collect", action="store_true", help="make no rows, only the texts that they are made from")
    parser.add_argument("--home", type=Path, default=cache_folder() / "engines", help="environments and transcripts")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    (options.home / "transcripts").mkdir(parents=True, exist_ok=True)
    for engine, mode in jobs.find(options.only):
        model = jobs.model_of(engine, options.home)
        if not can_judge(engine, mode, model, options.home):
            continue
        if options.collect:
            collected(engine, mode, model, options.tokens, options.home)
            short_texts(engine, mode, model, options.home)
            continue
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
    texts, told = collected(engine, mode, model, options.tokens, options.home)
    begun = time.perf_counter()
    draft = str(model.draft) if engine.modes[mode] == "model" else engine.modes[mode]
    if tolerance is None or mode == engine.control:
        report, beside = judge.calibrated(texts, model.target), None
    else:
        plain, _ = collected(engine, engine.control, model, options.tokens, options.home)
        report = judge.judged(texts, model.target, draft, tolerance)
        beside = judge.paired(texts, plain, model.target, draft)
    seconds = round(time.perf_counter() - begun, 1)
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
    origin = {"seed": seed(engine, mode), **({} if engine.gpu else facts("cpu")._asdict()), "command": command}
    return {**about, **judge.row(report, beside, checked), "audit_s": seconds, **origin}


def collected(
    engine: jobs.Engine, mode: str, model: jobs.Model, tokens: int, home: Path
) -> tuple[Path, dict[str, Any]]:
    """The file with this mode's transcripts, collected unless it is there with enough tokens, and what it tells."""
    out = transcripts(engine, mode, model, home)
    told = out.with_suffix(".told.json")
    if not out.exists() or length(out) < tokens:
        begun = time.perf_counter()
        samples = -(-tokens // (min(MEAN, model.longest) * len(model.prompts)))
        while True:
            found = jobs.collect(engine, jobs.job(engine, mode, model, samples, seed(engine, mode)), out, home)
            if length(out) >= tokens:
                break
            samples = samples * 3 // 2
        found["collect_s"] = round(time.perf_counter() - begun, 1)
        where = facts("cuda")._asdict() if engine.gpu else {}  # the machine that judges may be another one
        told.write_text(json.dumps({**found, **where}))
    return out, json.loads(told.read_text())


def checked_again(engine: jobs.Engine, mode: str, model: jobs.Model, home: Path) -> judge.Compared:
    """Histograms of many short samples of one prompt: plain sampling beside this mode, by the same engine."""
    return judge.compared(*(short_texts(engine, each, model, home) for each in (engine.control, mode)))


def short_texts(engine: jobs.Engine, mode: str, model: jobs.Model, home: Path) -> Path:
    """The file with many short samples of one prompt, collected unless it is there."""
    out = transcripts(engine, mode, model, home, "-histogram")
    if not out.exists():
        short = model._replace(prompts=model.prompts[:1], longest=SHORT)
        jobs.collect(engine, jobs.job(engine, mode, short, model.checked, seed(engine, mode) + 100), out, home)
    return out


def seed(engine: jobs.Engine, mode: str) -> int:
    """Another one for each mode: some engines write the same text for the same seed, whatever the draft."""
    return 1 + list(engine.modes).index(mode)


def can_judge(engine: jobs.Engine, mode: str, model: jobs.Model, home: Path) -> bool:
    """Texts of a GPU are collected where one is; elsewhere they can be judged if they were brought there."""
    return not engine.gpu or torch.cuda.is_available() or transcripts(engine, mode, model, home).exists()


def transcripts(engine: jobs.Engine, mode: str, model: jobs.Model, home: Path, kind: str = "") -> Path:
    name = f"{engine.name}-{mode}-{model.name}".replace(",", "").replace(" ", "-").lower()
    return home / "transcripts" / f"{name}{kind}.jsonl"


def length(texts: Path) -> int:
    with texts.open(encoding="utf-8") as file:
        return sum(len(json.loads(line)["output_token_ids"]) for line in file)


def read(results: Path) -> dict[str, Any]:
    return dict(json.loads(results.read_text(encoding="utf-8"))) if results.exists() else {}


def keep(results: Path, name: str, made: dict[str, Any]) -> None:
    """One more row in the file, or a new one in its place."""
    rows = {**read(results), name: made}
    results.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
