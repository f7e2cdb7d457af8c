"""Which engines are audited, in which modes, and what a collector is asked for.

A collector is a small script that runs in the engine's own environment: it reads a job from one file and writes
transcripts to another. Those of other engines need nothing of draftproof. A job has the model's and the draft's paths,
the prompts as token ids, how many samples of each, the longest text, the end tokens, the sampling settings, the mode
and a seed.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.engines import environments, toy

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RULES = ("token", "block", "gumbel", "optimal", "nodeplan", "csbv")
TABLE = {"target": [[0.59, 0.41], [0.51, 0.49]], "draft": [[0.06, 0.94], [0.18, 0.82]]}


class Engine(NamedTuple):
    """An engine: its collector, the environment it runs in, its file format, and what each mode's draft is."""

    name: str
    collector: str
    environment: str | None  # None: the one that draftproof is installed in
    format: str  # folder, gguf or table
    modes: dict[str, str]  # mode -> draft that the audit is told: none, ngram or model
    control: str = "plain"  # the mode whose audit sets the tolerance of the others
    gpu: bool = False  # whether it runs on a GPU; without one it is left out, unless its texts are there


ENGINES = (
    Engine(
        "transformers",
        "from_transformers.py",
        None,
        "folder",
        {"plain": "none", "prompt lookup": "ngram", "assisted": "model"},
    ),
    Engine("draftproof", "from_draftproof.py", None, "folder", {"plain": "none", **dict.fromkeys(RULES, "model")}),
    Engine("draftproof serve", "from_server.py", None, "folder", {"plain": "none", "ngram": "ngram", "model": "model"}),
    Engine(
        "vLLM",
        "from_vllm.py",
        "vllm",
        "folder",
        {
            "plain": "none",
            "ngram": "ngram",
            "draft_model": "model",
            "draft_model, probabilistic": "model",
            "suffix": "ngram",
        },
    ),
    Engine(
        "OpenVINO GenAI",
        "from_openvino.py",
        "openvino",
        "gguf",
        {"plain": "none", "lookup": "ngram", "draft": "model"},
    ),
    Engine(
        "llama.cpp",
        "from_llamacpp.mjs",
        "llamacpp",
        "gguf",
        {"plain": "none", "lookup": "ngram", "draft": "model"},
    ),
    Engine(
        "vLLM kernels",
        "from_vllm_kernels.py",
        "vllm-kernels",
        "table",
        {"plain": "none", "token": "none", "block": "none"},
    ),
    Engine(
        "vLLM kernels on a GPU",
        "from_vllm_kernels.py",
        None,
        "table",
        {"plain": "none", **dict.fromkeys(("token", "block", "token, draftproof", "block, draftproof"), "none")},
        gpu=True,
    ),
)


class Model(NamedTuple):
    """A model under audit and its drafter, with the prompts, lengths and settings that suit them."""

    name: str
    target: Path  # that the audit reads
    draft: Path | None
    files: dict[str, Any]  # format -> what a job says of target and draft
    prompts: list[list[int]]
    context: int
    longest: int
    end_tokens: list[int]
    sampling: dict[str, float]
    checked: int  # texts of each histogram after an alarm


def model_of(engine: Engine, home: Path) -> Model:
    """What an engine is audited on."""
    return table_model(home) if engine.format == "table" else toy_model(home)


@cache
def toy_model(home: Path) -> Model:
    """The toy, for which tokens are cheap."""
    target, draft = toy.made(home / "models")
    files = {
        name: {"model": str(getattr(target, name)), "draft": str(getattr(draft, name))} for name in ("folder", "gguf")
    }
    prompts = toy.prompts(toy.network())
    return Model("toy", target.folder, draft.folder, files, prompts, 256, 128, [toy.END], {"temperature": 0.7}, 4000)


@cache
def table_model(home: Path) -> Model:
    """Two tokens whose chances depend on the last one: faults show here soon, and an interpreter is slow."""
    path = home / "models" / "table.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(TABLE))
    return Model("table", path, None, {"table": {"tables": TABLE}}, [[0], [1]], 256, 64, [], {"temperature": 1.0}, 1200)


def job(engine: Engine, mode: str, model: Model, samples: int, seed: int) -> dict[str, Any]:
    """What the collector of this engine is asked for."""
    return {
        "mode": mode,
        **model.files[engine.format],
        "prompts": model.prompts,
        "samples": samples,
        "max_new_tokens": model.longest,
        "context": model.context,
        "end_tokens": model.end_tokens,
        "sampling": model.sampling,
        "seed": seed,
    }


def collect(engine: Engine, task: dict[str, Any], out: Path, home: Path) -> dict[str, Any]:
    """Run the collector; returns what it tells: its settings, how many draft tokens were made and accepted."""
    asked = out.with_suffix(".job.json")
    asked.write_text(json.dumps(task))
    words = [*environments.interpreter(engine.environment, home), str(HERE / "collectors" / engine.collector)]
    where = ROOT if engine.environment is None else environments.made(engine.environment, home)
    partial = out.with_suffix(".part")
    hidden = {} if engine.gpu else {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*words, str(asked.resolve()), str(partial.resolve())],
        cwd=where,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": _path(engine), "OMP_NUM_THREADS": "1", **hidden},
    )
    if done.returncode:
        raise RuntimeError(f"{engine.name}, {task['mode']}: the collector failed:\n{_end(done.stdout + done.stderr)}")
    partial.rename(out)
    told = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return dict(json.loads(told[-1])) if told else {}


def _path(engine: Engine) -> str:
    """Our own collectors import this repository; those of others must not see it."""
    given = os.environ.get("PYTHONPATH", "") if engine.environment is None else ""
    return os.pathsep.join(filter(None, [str(ROOT) if engine.environment is None else "", given]))


def _end(words: str, lines: int = 15) -> str:
    return "\n".join(words.splitlines()[-lines:])


def find(names: Sequence[str]) -> list[tuple[Engine, str]]:
    """The engines and modes whose "engine, mode." contains one of these names."""
    every = [(engine, mode) for engine in ENGINES for mode in engine.modes]
    return [(engine, mode) for engine, mode in every if any(name in f"{engine.name}, {mode}." for name in names)]
