"""Time fused verification on one CUDA device, beside its memory floor and its peers.

    draftproof bench kernels --json benchmarks/results/kernels.jsonl            # measure, append rows
    python -m draftproof.bench.kernels --table benchmarks/results/kernels.jsonl  # rows as a table in docs/kernels.md

Two times are taken of everything: `us` is one call in a CUDA graph of its own between two events, launch of the graph
included; `us_in_10` is a tenth of a graph of ten calls. The floor is the bytes that any method reads (target rows once
and one draft row a sequence) at the bandwidth of a large copy in the same run.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from json import dumps, loads
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from draftproof import kernels
from draftproof.bench import peers
from draftproof.errors import DraftproofError
from draftproof.kernels import ChainRule, Controls, NoiseKeys, Summary, agreement, reference
from draftproof.law import sample as draw
from draftproof.noise import Lane, uniforms
from draftproof.sampling import Sampling

DRAFTS = 5
GUESSES = 4  # of a pick
SEED = 1
MODES = {
    "temp": Sampling(temperature=0.8),
    "topk_topp": Sampling(temperature=0.8, top_k=50, top_p=0.9),
    "topp": Sampling(temperature=0.8, top_p=0.9),
    "minp": Sampling(temperature=0.8, min_p=0.05),
}


class KernelCase(NamedTuple):
    """One step's input, and the summary of the drafter's rows."""

    target: Tensor
    draft: Tensor
    tokens: Tensor
    controls: Controls
    noise: NoiseKeys
    kept: Summary


def case(batch: int, size: int, sampling: Sampling, device: str, seed: int = SEED) -> KernelCase:
    """Logits like a language model's in spread, with a drafter whose laws overlap the target's by about 0.7."""
    generator = torch.Generator(device=device).manual_seed(seed)
    target = torch.randn(batch, DRAFTS + 1, size, device=device, generator=generator) * 4
    draft = target[:, :-1] + torch.randn(batch, DRAFTS, size, device=device, generator=generator) * 0.7
    target, draft = target.to(torch.bfloat16), draft.to(torch.bfloat16)
    controls = Controls.of([sampling] * batch, DRAFTS + 1, size, device)
    b = torch.arange(batch, device=device)
    noise = NoiseKeys(b * 0 + SEED, b, b * 0)
    tokens = draw(reference.law(draft, controls, b[:, None][:, :0]), uniforms(*noise, Lane.DRAFT, DRAFTS))
    return KernelCase(target, draft, tokens, controls, noise, kernels.summarise(draft, controls, tokens))


def fused(data: KernelCase, rule: ChainRule) -> Callable[[], Any]:
    """A verification call that can be repeated."""
    batch, nodes, size = data.target.shape
    rules = torch.full((batch,), rule, dtype=torch.int32, device=data.target.device)
    space = kernels.workspace(batch, nodes, size, data.target.device)
    target, draft, tokens, controls, noise, kept = data

    def call() -> Any:
        return kernels.verify(
            target, draft, tokens, controls, rules, noise, drafted=kept, backend="triton", workspace=space
        )

    return call


def clock(call: Callable[[], Any], repeats: int = 30) -> float:
    """Median microseconds between two events around a call."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    times: list[float] = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return sorted(times)[repeats // 2]


def graph(call: Callable[[], Any], calls: int) -> float:
    """Microseconds per call, for `calls` calls captured in one CUDA graph."""
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(calls):
            call()
    return clock(captured.replay) / calls


def bandwidth(device: str) -> float:
    """Bytes per microsecond that a large copy reads and writes."""
    source = torch.randn(2**29, device=device)
    target = torch.empty_like(source)
    for _ in range(50):
        target.copy_(source)
    return 2 * source.numel() * 4 / clock(lambda: target.copy_(source))


def measure(shapes: Sequence[tuple[int, int]], modes: Sequence[str], beside: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for each method, mode and shape (V, B); with `beside`, peers too."""
    device = "cuda"
    speed = bandwidth(device)
    for size, batch in shapes:
        floor = batch * (DRAFTS + 2) * size * 2 / speed
        for mode in modes:
            data = case(batch, size, MODES[mode], device)
            calls = {("fused", rule.name.lower()): fused(data, rule) for rule in (ChainRule.TOKEN, ChainRule.BLOCK)}
            if beside:
                q = reference.law(data.draft, data.controls, data.tokens)
                calls |= peers.calls(peers.Input(data.target, data.draft, q, data.tokens, MODES[mode]), compiled=True)
            for (name, rule), call in calls.items():
                yield {
                    "bench": "kernels", "name": name, "rule": rule, "mode": mode, "V": size, "B": batch,
                    "K": DRAFTS, "dtype": "bfloat16", "us": round(graph(call, 1), 2),
                    "us_in_10": round(graph(call, 10), 2), "floor_us": round(floor, 4),
                    "bandwidth_tb_s": round(speed / 1e6, 3),
                }  # fmt: skip
            torch.cuda.empty_cache()


def check(device: str) -> Iterator[dict[str, Any]]:
    """Check agreement with the float64 laws at full size, and the goodness of fit over two million draws."""
    for mode, sampling in MODES.items():
        for rule in ChainRule:
            data = case(64, 128256, sampling, device)
            out = fused(data, rule)()
            rules = torch.full((len(data.tokens),), rule, dtype=torch.int32, device=device)
            result = agreement.compare(out, *data[:4], rules, data.noise)
            yield {"bench": "kernels agreement", "mode": mode, "rule": rule.name.lower(), "B": 64, **result._asdict()}
    for batch in (1, 64):
        yield {
            "bench": "kernels pick",
            "V": 128256,
            "B": batch,
            "K": GUESSES,
            "us": round(graph(pick(batch, device), 1), 2),
            "us_in_10": round(graph(pick(batch, device), 10), 2),
        }
    for rule in ChainRule:
        yield {"bench": "kernels fit", "rule": rule.name.lower(), **fit(rule, device)}


def pick(batch: int, device: str) -> Callable[[], Any]:
    """One pick among several guesses after the first node of each sequence."""
    data = case(batch, 128256, MODES["temp"], device)
    first = torch.zeros(batch, dtype=torch.int64, device=device)
    law = reference.law(data.draft[:, :1], data.controls, data.tokens[:, :0])[:, 0]
    tokens = torch.multinomial(law, GUESSES, replacement=True)
    laws = kernels.summarise(data.target, data.controls, data.tokens, crest=False)
    return lambda: kernels.pick(
        data.target, first, data.draft, first, tokens, data.controls, data.noise, laws=laws, drafted=data.kept,
        backend="triton",
    )  # fmt: skip


def fit(rule: ChainRule, device: str, batch: int = 1 << 17, rounds: int = 16) -> dict[str, float]:
    """Chi-square of the first two emitted tokens over two million steps, each with a draft of its own."""
    size = 6
    generator = torch.Generator(device=device).manual_seed(SEED)
    target = torch.randn(1, 2, size, device=device, generator=generator).repeat(batch, 1, 1)
    draft = torch.randn(1, 1, size, device=device, generator=generator).repeat(batch, 1, 1)
    controls = Controls.of([Sampling()], 2, size, device)
    controls = controls._replace(**{name: getattr(controls, name).repeat(batch) for name in Controls._fields[:4]})
    rules = torch.full((batch,), rule, dtype=torch.int32, device=device)
    b = torch.arange(batch, device=device)
    counts_by_pair = torch.zeros(size * (size + 1), device=device, dtype=torch.int64)
    for step in range(rounds):
        noise = NoiseKeys(b * 0 + SEED, b, b * 0 + step)
        tokens, kept = kernels.sample(draft[:, 0], controls, noise, index=1, backend="triton")
        out = kernels.verify(
            target, draft, tokens[:, None], controls, rules, noise, drafted=kept, backend="triton"
        ).tokens
        counts_by_pair += torch.bincount(out[:, 0] * (size + 1) + out[:, 1] + 1, minlength=len(counts_by_pair))
    # the second token, where there is one, is a draw from the second row; the first always one from the first
    counts = counts_by_pair.view(size, size + 1).double().cpu()
    p = target[0].double().softmax(-1).cpu()
    first = ((counts.sum(1) - counts.sum() * p[0]) ** 2 / (counts.sum() * p[0])).sum()
    pairs = counts[:, 1:].sum(0)
    second = ((pairs - pairs.sum() * p[1]) ** 2 / (pairs.sum() * p[1])).sum()
    return {
        "draws": int(counts.sum()), "degrees": size - 1,
        "chi_square_first": round(float(first), 3), "chi_square_second": round(float(second), 3),
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: times in microseconds and, in brackets, their ratio to the floor."""
    rows = [row for row in rows if row["bench"] == "kernels"]
    batches = sorted({row["B"] for row in rows})
    lines = []
    for size in sorted({row["V"] for row in rows}):
        lines += [f"| V = {size:,} | rule |" + "".join(f" B={b} |" for b in batches), "|---" * (2 + len(batches)) + "|"]
        mine = [row for row in rows if row["V"] == size]
        floors = {row["B"]: row["floor_us"] for row in mine}
        lines.append("| bytes floor | |" + "".join(f" {floors[b]:.1f} |" if b in floors else " - |" for b in batches))
        for mode, name, rule in dict.fromkeys((row["mode"], row["name"], row["rule"]) for row in mine):
            cells = []
            for b in batches:
                matches = [r for r in mine if (r["mode"], r["name"], r["rule"], r["B"]) == (mode, name, rule, b)]
                for r in matches[-1:]:
                    times = r["us_in_10"] / r["floor_us"]
                    cells.append(f"{r['us']:.1f} / {r['us_in_10']:.1f} ({times:.2f}x)")
                cells += ["-"] * (not matches)
            lines.append(f"| {name}, {mode} | {rule} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def about() -> dict[str, Any]:
    """Machine, versions and commit; DRAFTPROOF_COMMIT names the commit where git is not available."""
    import triton

    commit = (
        os.environ.get("DRAFTPROOF_COMMIT")
        or subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            text=True,
            capture_output=True,
            check=False,
            cwd=Path(__file__).parent,
        ).stdout.strip()
    )
    return {
        "machine": torch.cuda.get_device_name(),
        "versions": f"python {platform.python_version()}, torch {torch.__version__}, triton {triton.__version__}",
        "commit": commit, "seed": SEED,
    }  # fmt: skip


def run(
    sizes: Sequence[int], batches: Sequence[int], modes: Sequence[str], beside: bool, checked: bool, json: Path | None
) -> list[dict[str, Any]]:
    """Measure, append the rows to a file as they come, and return them."""
    if not (torch.cuda.is_available() and kernels.available()):
        raise DraftproofError(
            "bench kernels needs a CUDA device and Triton: install draftproof[gpu] on a machine with a GPU"
        )
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise DraftproofError(f"unknown mode {unknown[0]!r}: choose from {', '.join(MODES)}")
    results = []
    shapes = [(size, batch) for size in sizes for batch in batches]
    for rows in (measure(shapes, modes, beside), check("cuda") if checked else ()):
        for row in rows:
            print(dumps(row), file=sys.stderr, flush=True)
            results.append({**row, **about()})
            if json is not None:
                with json.open("a") as file:
                    file.write(dumps(results[-1]) + "\n")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="Write measured rows into docs/kernels.md as a table.")
    parser.add_argument("--table", type=Path, required=True, help="file of rows that `draftproof bench kernels` wrote")
    markdown = table([loads(line) for line in parser.parse_args().table.read_text().splitlines()])
    page = Path(__file__).resolve().parents[3] / "docs" / "kernels.md"
    before, mark, _ = page.read_text().partition("<!-- made by src/draftproof/bench/kernels.py -->\n")
    page.write_text(before + mark + "\n" + markdown)


if __name__ == "__main__":
    main()
