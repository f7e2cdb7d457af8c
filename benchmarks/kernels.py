"""Fused verification against its memory floor, plain PyTorch and torch.compile, on one CUDA device.

    python benchmarks/kernels.py --json benchmarks/results/kernels.jsonl     # measure, append rows
    python benchmarks/kernels.py --table benchmarks/results/kernels.jsonl    # rows as a table, into docs/kernels.md

Two times are taken of everything: `us` is one call in a CUDA graph of its own between two events, launch of the graph
included; `us_in_10` is a tenth of a graph of ten calls. The floor is the bytes that any method reads (target rows once
and one draft row a sequence) at the bandwidth of a large copy in the same run.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from draftproof import kernels
from draftproof.kernels import Controls, Names, Rule, Summary, agreement
from draftproof.sampling import Sampling

DRAFTS = 5
SEED = 1
MODES = {
    "temp": Sampling(temperature=0.8),
    "topk_topp": Sampling(temperature=0.8, top_k=50, top_p=0.9),
    "topp": Sampling(temperature=0.8, top_p=0.9),
    "minp": Sampling(temperature=0.8, min_p=0.05),
}


class Case(NamedTuple):
    """One step's input, drafted by the fused sampler."""

    target: Tensor
    draft: Tensor
    tokens: Tensor
    controls: Controls
    names: Names
    kept: Summary


def case(batch: int, size: int, sampling: Sampling, device: str) -> Case:
    """Logits like a language model's in spread, with a drafter that resembles the target."""
    generator = torch.Generator(device=device).manual_seed(SEED)
    target = torch.randn(batch, DRAFTS + 1, size, device=device, generator=generator) * 4
    draft = target[:, :-1] + torch.randn(batch, DRAFTS, size, device=device, generator=generator) * 0.7
    target, draft = target.to(torch.bfloat16), draft.to(torch.bfloat16)
    controls = Controls.of([sampling] * batch, DRAFTS + 1, size, device)
    b = torch.arange(batch, device=device)
    names = Names(b * 0 + SEED, b, b * 0)
    tokens = torch.full((batch, DRAFTS), -1, dtype=torch.int64, device=device)
    kept = Summary.empty(batch, DRAFTS, torch.device(device))
    for k in range(DRAFTS):
        column = Summary(*(part[:, k : k + 1] for part in kept))
        tokens[:, k], _ = kernels.sample(
            draft[:, k], controls, names, node=k, index=k + 1, tokens=tokens, summary=column, backend="triton"
        )
    return Case(target, draft, tokens, controls, names, kept)


def fused(data: Case, rule: Rule) -> Callable[[], Any]:
    """One verification, ready to be called again and again."""
    batch, nodes, size = data.target.shape
    rules = torch.full((batch,), rule, dtype=torch.int32, device=data.target.device)
    space = kernels.workspace(batch, nodes, size, data.target.device)
    target, draft, tokens, controls, names, kept = data

    def call() -> Any:
        return kernels.verify(
            target, draft, tokens, controls, rules, names, drafted=kept, backend="triton", workspace=space
        )

    return call


def eager(target: Tensor, q: Tensor, tokens: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """The token rule as it is commonly written in PyTorch, from logits and the draft's probabilities."""
    scores = target.float() / sampling.temperature
    if sampling.top_k or sampling.top_p < 1:
        ordered, ids = scores.sort(-1, descending=True)
        if sampling.top_k:
            ordered[..., sampling.top_k :] = float("-inf")
        share = ordered.softmax(-1)
        ordered = ordered.masked_fill(share.cumsum(-1) - share > sampling.top_p, float("-inf"))
        scores = torch.empty_like(scores).scatter_(-1, ids, ordered)
    p = scores.softmax(-1)
    if sampling.min_p:
        p = torch.where(p < sampling.min_p * p.amax(-1, keepdim=True), 0, p)
    ratio = p[:, :-1].gather(-1, tokens[..., None])[..., 0] / q.gather(-1, tokens[..., None])[..., 0]
    accepted = (torch.rand_like(ratio) < ratio).int().cumprod(-1).sum(-1)
    rows = torch.arange(len(tokens), device=tokens.device)
    last = torch.where((accepted < DRAFTS)[:, None], q[rows, accepted.clamp(max=DRAFTS - 1)], 0)
    rest = (p[rows, accepted] - last).clamp_min(0)
    return accepted, (rest / torch.empty_like(rest).exponential_()).argmax(-1)


def clock(call: Callable[[], Any], repeats: int = 30) -> float:
    """Median microseconds between two events around a call."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return sorted(times)[repeats // 2]


def graph(call: Callable[[], Any], calls: int) -> float:
    """Microseconds a call, of `calls` calls captured in one CUDA graph."""
    side = torch.cuda.Stream()
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
    """Bytes a microsecond that a large copy reads and writes."""
    source = torch.randn(2**29, device=device)
    target = torch.empty_like(source)
    for _ in range(50):
        target.copy_(source)
    return 2 * source.numel() * 4 / clock(lambda: target.copy_(source))


def measure(sizes: list[int], batches: list[int], device: str, compiled: bool) -> Iterator[dict[str, Any]]:
    """Rows, one for each method and shape."""
    speed = bandwidth(device)
    compiled_eager = torch.compile(eager, dynamic=False) if compiled else None
    for size in sizes:
        for batch in batches:
            floor = batch * (DRAFTS + 2) * size * 2 / speed
            for mode, sampling in MODES.items():
                data = case(batch, size, sampling, device)
                calls: dict[tuple[str, str], Callable[[], Any]] = {
                    ("fused", rule.name.lower()): fused(data, rule) for rule in (Rule.TOKEN, Rule.BLOCK)
                }
                q = torch.softmax(data.draft.float() / 0.8, -1) if size == 128256 else None
                if q is not None and mode in ("temp", "topk_topp"):
                    plain = (data.target, q, data.tokens, sampling)
                    calls["torch eager", "token"] = lambda plain=plain: eager(*plain)
                    if compiled_eager is not None and mode == "temp":
                        calls["torch.compile", "token"] = lambda plain=plain: compiled_eager(*plain)
                for (name, rule), call in calls.items():
                    yield {
                        "bench": "kernels", "name": name, "rule": rule, "mode": mode, "V": size, "B": batch,
                        "K": DRAFTS, "dtype": "bfloat16", "us": round(graph(call, 1), 2),
                        "us_in_10": round(graph(call, 10), 2), "floor_us": round(floor, 4),
                        "bandwidth_tb_s": round(speed / 1e6, 3),
                    }  # fmt: skip
                torch.cuda.empty_cache()


def check(device: str) -> Iterator[dict[str, Any]]:
    """Agreement with the float64 laws at full size, near-ties counted, and a goodness of fit over two million draws."""
    for mode, sampling in MODES.items():
        for rule in Rule:
            data = case(32, 128256, sampling, device)
            out = fused(data, rule)()
            rules = torch.full((len(data.tokens),), rule, dtype=torch.int32, device=device)
            found = agreement.compare(out, *data[:4], rules, data.names)
            yield {"bench": "kernels agreement", "mode": mode, "rule": rule.name.lower(), "B": 32, **found._asdict()}
    for rule in Rule:
        yield {"bench": "kernels fit", "rule": rule.name.lower(), **fit(rule, device)}


def fit(rule: Rule, device: str, batch: int = 1 << 17, rounds: int = 16) -> dict[str, float]:
    """Chi-square of the first two emitted tokens over two million steps, each with a draft of its own."""
    size = 6
    generator = torch.Generator(device=device).manual_seed(SEED)
    target = torch.randn(1, 2, size, device=device, generator=generator).repeat(batch, 1, 1)
    draft = torch.randn(1, 1, size, device=device, generator=generator).repeat(batch, 1, 1)
    controls = Controls.of([Sampling()], 2, size, device)
    controls = controls._replace(**{name: getattr(controls, name).repeat(batch) for name in Controls._fields[:4]})
    rules = torch.full((batch,), rule, dtype=torch.int32, device=device)
    b = torch.arange(batch, device=device)
    seen = torch.zeros(size * (size + 1), device=device, dtype=torch.int64)
    for step in range(rounds):
        names = Names(b * 0 + SEED, b, b * 0 + step)
        tokens, kept = kernels.sample(draft[:, 0], controls, names, index=1, backend="triton")
        out = kernels.verify(
            target, draft, tokens[:, None], controls, rules, names, drafted=kept, backend="triton"
        ).tokens
        seen += torch.bincount(out[:, 0] * (size + 1) + out[:, 1] + 1, minlength=len(seen))
    # the second token, where there is one, is a draw from the second row; the first always one from the first
    counts = seen.view(size, size + 1).double().cpu()
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
                found = [r for r in mine if (r["mode"], r["name"], r["rule"], r["B"]) == (mode, name, rule, b)]
                cells += [f"{r['us']:.1f} / {r['us_in_10']:.1f} ({r['us_in_10'] / floors[b]:.2f}x)" for r in found[-1:]]
                cells += ["-"] * (not found)
            lines.append(f"| {name}, {mode} | {rule} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def versions(commit: str) -> dict[str, str]:
    """What the numbers depend on."""
    import triton

    return {
        "machine": torch.cuda.get_device_name(),
        "versions": f"python {platform.python_version()}, torch {torch.__version__}, triton {triton.__version__}",
        "commit": commit,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Fused verification against its memory floor.")
    parser.add_argument("--json", type=Path, help="append the rows to this file")
    parser.add_argument("--table", type=Path, help="write the rows of this file into the docs and measure nothing")
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[32000, 128256, 151936])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--compile", action="store_true", help="time torch.compile as well")
    parser.add_argument("--commit", default="", help="name of the commit measured, by default what git says")
    arguments = parser.parse_args()
    if arguments.table:
        made = table([json.loads(line) for line in arguments.table.read_text().splitlines()])
        page = Path(__file__).parent.parent / "docs" / "kernels.md"
        before, mark, _ = page.read_text().partition("<!-- made by benchmarks/kernels.py -->\n")
        page.write_text(before + mark + "\n" + made)
        print(made)
        return
    commit = arguments.commit or subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip()
    about = {**versions(commit), "seed": SEED}
    for make in (
        lambda: measure(arguments.vocabulary, arguments.batch, "cuda", arguments.compile),
        lambda: check("cuda"),
    ):
        for row in make():
            print(json.dumps(row), flush=True)
            if arguments.json:
                with arguments.json.open("a") as file:
                    file.write(json.dumps({**row, **about}) + "\n")


if __name__ == "__main__":
    main()
