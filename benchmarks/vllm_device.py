"""One step of sampling as vLLM's model runner V2 does it, and through the plug-in, conversions included.

    .venv-vllm/bin/python -m benchmarks.vllm_files build/vllm   # where vLLM is installed, in any version for any device
    export PYTHONPATH=src:build/vllm                            # or have vLLM itself in the environment
    python -m benchmarks.vllm_device --json benchmarks/results/vllm-h200.jsonl   # on a machine with an NVIDIA GPU
    TRITON_INTERPRET=1 python -m benchmarks.vllm_device --check                  # small shapes, without a GPU

The first command makes a folder of vLLM's kernels, 0.2 MB, to be carried to a machine that has torch and Triton but not
vLLM. Both sides get the same raw logits and draft tokens, and columns of controls by request slot, as vLLM keeps them.
vLLM's side is what its `RejectionSampler._verify` launches: logits in float32, temperature, top-k and top-p, then
`rejection_sample`. The plug-in's is what it puts in that place, from the call to the counters. `drafting` is the
drawing of all draft tokens of a step, where the plug-in also keeps their laws for verification. `us` is the median time
of one call between two events, so the time that the host takes to launch counts; `us_in_graph` is that of one of ten
calls in a CUDA graph. `--check` compares the plug-in's tokens with the laws instead, by the same kernels in Triton's
interpreter.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from draftproof.bench import kernels as bench
from draftproof.bench import peers, rows
from draftproof.integrations.vllm import drafting
from draftproof.integrations.vllm.verification import Verification
from draftproof.kernels import ChainRule, agreement, reference
from draftproof.sampling import Sampling

RESULTS = Path(__file__).with_name("results") / "vllm-h200.jsonl"
SIDES = ("vLLM", "plug-in")
NAMES = {"temp": "temperature", "topk_topp": "and top-k, top-p"}
DRAFTING = "drafting"
SIZES, BATCHES, MODES = (128_256, 151_936), (1, 64, 256), ("temp", "topk_topp")
SMALL = ((700, 3), (1200, 1))


def request(sampling: Sampling, rule: ChainRule) -> Any:
    """A request's parameters as vLLM has them."""
    off = {
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": None,
        "allowed_token_ids": None, "bad_words": None, "min_tokens": 0, "thinking_token_budget": None,
        "structured_outputs": None, "extra_args": {"draftproof": rule.name.lower()},
    }  # fmt: skip
    controls = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    return SimpleNamespace(**controls, **off)


def server(asked: Any, seeds: torch.Tensor, size: int, backend: str) -> Any:
    """The plug-in's part of a sampler whose slots all have the same request, with a seed each."""
    runner = importlib.import_module("draftproof.integrations.vllm.runner_v2")
    slots, device = len(seeds), seeds.device

    def column(value: float, dtype: torch.dtype) -> Any:
        return SimpleNamespace(gpu=torch.full((slots,), value, dtype=dtype, device=device))

    states = SimpleNamespace(
        max_num_reqs=slots, temperature=column(asked.temperature, torch.float32),
        top_k=column(asked.top_k or size, torch.int32), top_p=column(asked.top_p, torch.float32),
        min_p=column(asked.min_p, torch.float32), seeds=SimpleNamespace(gpu=seeds),
    )  # fmt: skip
    sampler = SimpleNamespace(
        sampling_states=states, use_fp64_gumbel=False, logits_processors=[None] * runner.VLLM_PROCESSORS,
        logprobs_mode="raw_logprobs", return_sampling_mask=False,
    )  # fmt: skip
    made = runner.SamplerServer(sampler, asked.extra_args["draftproof"], device, Verification(device, backend=backend))
    for slot in range(slots):
        made.slots.add_request(slot, asked)
    made.slots.apply_staged_writes()
    return made


def plugin(data: bench.KernelCase, mode: str, rule: ChainRule, backend: str, *before: bench.KernelCase) -> Any:
    """The plug-in's call for a batch whose requests sit in slots of their own, in another order.

    before   batches of the same shape that it has verified already
    """
    runner = importlib.import_module("draftproof.integrations.vllm.runner_v2")
    batch, nodes, size = data.target.shape
    device, asked = data.target.device, request(bench.MODES[mode], rule)
    serving = server(asked, data.noise.seed.flip(0).contiguous(), size, backend)
    slot = slots_of(batch, device)
    index = slot.cpu().numpy()
    counts = np.arange(0, batch * nodes + 1, nodes, dtype=np.int32)
    same = {
        "pos": torch.zeros(batch * nodes, dtype=torch.int64, device=device),
        "cu_num_logits": torch.from_numpy(counts).to(device), "idx_mapping": slot, "idx_mapping_np": index,
        "expanded_idx_mapping": slot.repeat_interleave(nodes),
        "expanded_local_pos": torch.arange(nodes, dtype=torch.int32, device=device).repeat(batch),
        "seq_lens_upper_bound_np": counts[1:],
    }  # fmt: skip

    def named(data: bench.KernelCase) -> dict[str, Any]:
        sampled = torch.nn.functional.pad(data.tokens, (1, 0)).reshape(-1).to(torch.int32)
        kept = torch.empty_like(data.draft)
        drafting.keep_laws(kept)
        draws(drafting.lawful(never), data, kept)()
        rows = {"logits": data.target.reshape(batch * nodes, size), "draft_logits": kept}
        return {**same, **rows, "draft_sampled": sampled, "verify_draft_sampled": sampled}

    def theirs(
        self: Any, logits: Any, draft_logits: Any, draft_sampled: Any, pos: Any, cu_num_logits: Any, idx_mapping: Any,
        idx_mapping_np: Any, expanded_idx_mapping: Any, expanded_local_pos: Any, seq_lens_upper_bound_np: Any,
        verify_draft_sampled: Any,
    ) -> Any:  # fmt: skip
        raise RuntimeError("the plug-in has left this batch to vLLM")

    verify = runner.install_verify(theirs, lambda _: serving)
    step = SimpleNamespace(cu_num_logits_np=counts, idx_mapping_np=index)
    this = SimpleNamespace(num_speculative_steps=nodes - 1)

    def call(arguments: dict[str, Any]) -> Any:
        serving.begin(step)
        _, tokens, count = verify(this, **arguments)
        return tokens, count

    for one in before:
        call(named(one))
    return partial(call, named(data))


def slots_of(batch: int, device: torch.device) -> torch.Tensor:
    """The slots of a batch: not in its order."""
    return torch.arange(batch - 1, -1, -1, dtype=torch.int32, device=device)


def never(
    logits: Any, expanded_idx_mapping: Any, temperature: Any, seed: Any, pos: Any, apply_temperature: Any,
    is_drafting: Any, logits_cache: Any = None, logits_cache_col: Any = None, use_fp64: Any = False,
) -> Any:  # fmt: skip
    """In the place of vLLM's `gumbel_sample`."""
    raise RuntimeError("the plug-in has left this draft to vLLM")


def draws(sampler: Callable[..., torch.Tensor], data: bench.KernelCase, kept: torch.Tensor) -> Callable[[], Any]:
    """The drawing of all draft tokens, as a speculator of vLLM calls `gumbel_sample`."""
    batch, depth, _ = data.draft.shape
    device = data.draft.device
    slot, position = slots_of(batch, device), torch.zeros(batch, dtype=torch.int64, device=device)
    temperature, seed = data.controls.temperature, data.noise.seed.flip(0).contiguous()
    rows = [each.contiguous() for each in data.draft.unbind(1)]  # a drafter makes one after another
    columns = [torch.tensor(k, device=device) for k in range(depth)]

    def call() -> list[torch.Tensor]:
        return [
            sampler(
                row, slot, temperature, seed, position, apply_temperature=True, is_drafting=True, logits_cache=kept,
                logits_cache_col=column,
            )
            for row, column in zip(rows, columns, strict=True)
        ]  # fmt: skip

    return call


def measure(shapes: Iterable[tuple[int, int, str]]) -> Iterator[dict[str, Any]]:
    """A row for each shape, control, rule and side."""
    for size, batch, mode in shapes:
        for rule, side, call in calls(size, batch, mode):
            out = call()
            accepted = {} if rule == DRAFTING else {"accepted": round(float(out[1].double().mean()) - 1, 2)}
            yield {
                "bench": "vllm device", "side": side, "rule": rule, "mode": mode, "V": size, "B": batch,
                "K": bench.DRAFTS, "dtype": "bfloat16", **accepted, "us": round(bench.clock(call), 2), **in_graph(call),
            }  # fmt: skip
        torch.cuda.empty_cache()


def calls(size: int, batch: int, mode: str) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Both sides' calls of one shape, by the rule; draft tokens are drawn by the temperature alone."""
    data = bench.case(batch, size, bench.MODES[mode], "cuda")
    none = torch.empty(0)  # vLLM reads the drafter's logits, not its laws
    theirs = peers.vllm(peers.Input(data.target, data.draft, none, data.tokens, bench.MODES[mode]))
    for rule in (ChainRule.TOKEN, ChainRule.BLOCK):
        yield rule.name.lower(), SIDES[0], theirs[rule.name.lower()]
        yield rule.name.lower(), SIDES[1], plugin(data, mode, rule, "auto")
    if mode == "temp":
        sampler = importlib.import_module("vllm.v1.worker.gpu.sample.gumbel").gumbel_sample
        kept = torch.empty_like(data.draft)
        yield DRAFTING, SIDES[0], draws(sampler, data, kept)
        drafting.keep_laws(kept)
        yield DRAFTING, SIDES[1], draws(drafting.lawful(sampler), data, kept)


def compile_all(shapes: Sequence[tuple[int, int, str]]) -> None:
    """Call everything once, each shape in a process of its own, so that what is compiled lies in Triton's cache."""
    words = [sys.executable, "-m", "benchmarks.vllm_device", "--shape"]
    started = [subprocess.Popen([*words, *map(str, shape)]) for shape in shapes]
    failed = [shape for shape, process in zip(shapes, started, strict=True) if process.wait()]
    if failed:
        print(f"note: not compiled ahead: {failed}", file=sys.stderr)


def call_once(size: str, batch: str, mode: str) -> None:
    for _, _, call in calls(int(size), int(batch), mode):
        call()
    torch.cuda.synchronize()


def in_graph(call: Callable[[], Any]) -> dict[str, Any]:
    """The time of a call in a CUDA graph, or what keeps it from being captured."""
    try:
        return {"us_in_graph": round(bench.graph(call, 10), 2)}
    except RuntimeError as error:
        torch.cuda.synchronize()
        return {"us_in_graph": None, "why": str(error).splitlines()[0]}


def check() -> Iterator[dict[str, Any]]:
    """Whether the plug-in's tokens are those of the laws, on shapes that the interpreter can bear."""
    for size, batch in SMALL:
        for mode in MODES:
            data = bench.case(batch, size, bench.MODES[mode], "cuda" if torch.cuda.is_available() else "cpu")
            plain = bench.case(batch, size, bench.MODES["temp"], data.target.device.type).controls
            for rule in (ChainRule.TOKEN, ChainRule.BLOCK):
                others = [bench.case(batch, size, bench.MODES[mode], data.target.device.type, seed=n) for n in (8, 9)]
                tokens, count = plugin(data, mode, rule, "triton", *others)()  # the third time launches are made again
                noise = data.noise._replace(request=data.noise.request * 0)
                rules = torch.full((batch,), rule, dtype=torch.int32, device=tokens.device)
                out = reference.Emitted(tokens, count - 1, count * 0, None)
                result = agreement.compare(out, *data[:4], rules, noise, plain)
                yield {
                    "bench": "vllm check",
                    "mode": mode,
                    "rule": rule.name.lower(),
                    "V": size,
                    "B": batch,
                    **result._asdict(),
                }


# For docs/vllm.md


def table(root: Path) -> str:
    """Both sides' times from the newest run that is recorded, and where they were taken."""
    path = root / RESULTS.relative_to(RESULTS.parents[2])
    if not path.exists():
        return "No run on a GPU is recorded.\n"
    found = [row for row in rows.read(path) if row["bench"] == "vllm device"]
    last = found[-1]
    found = [row for row in found if (row["commit"], row["date"]) == (last["commit"], last["date"])]
    times = {tuple(row[name] for name in ("V", "mode", "rule", "B", "side")): row for row in found}
    batches = sorted({row["B"] for row in found})
    heads = [f"B = {batch}{where}" for where in ("", ", launched") for batch in batches]
    lines = [["V", "controls", "rule", *heads], ["---"] * (3 + len(heads))]
    for size, mode, rule in dict.fromkeys(key[:3] for key in times):
        cells = [
            cell(*(times.get((size, mode, rule, batch, side), {}).get(name) for side in SIDES))
            for name in ("us_in_graph", "us")
            for batch in batches
        ]
        lines.append([f"{size:,}", NAMES[mode], rule if rule == DRAFTING else f"`{rule}`", *cells])
    stack = ", ".join(f"{name} {last['versions'][name]}" for name in ("vllm", "torch", "triton"))
    place = f"{last['machine']['gpu']}; {stack}; seed {last['seed']}; commit {last['commit']}, {last['date']}"
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n`{last['command']}`: {place}.\n"


def cell(theirs: float | None, ours: float | None) -> str:
    """Microseconds of vLLM and of the plug-in, and how many times as fast the latter is.

    >>> cell(1411.0, 204.1)
    '1411 / 204, 6.9x'
    >>> cell(None, 20.4)
    'not captured / 20'
    """
    shown = " / ".join("not captured" if us is None else f"{us:.0f}" for us in (theirs, ours))
    return shown if theirs is None or ours is None else f"{shown}, {theirs / ours:.1f}x"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time verification through vLLM's kernels and through the plug-in.")
    parser.add_argument("--check", action="store_true", help="compare tokens with the laws on small shapes instead")
    parser.add_argument("--json", type=Path, help="file to which rows are appended")
    parser.add_argument("--shape", nargs=3, metavar=("V", "B", "CONTROLS"), help="only compile for this one")
    options = parser.parse_args()
    if options.shape:
        return call_once(*options.shape)
    try:
        version = importlib.import_module("vllm").__version__
    except ModuleNotFoundError:
        sys.exit("vllm is not on the path: `python -m benchmarks.vllm_files build/vllm` copies what is needed of it")
    where = rows.facts("cuda" if torch.cuda.is_available() else "cpu")._asdict()
    where["versions"]["vllm"] = version
    where["command"] = shlex.join(["python", "-m", "benchmarks.vllm_device", *(["--check"] if options.check else [])])
    wrong, shapes = 0, list(product(SIZES, BATCHES, MODES))
    if not options.check:
        compile_all(shapes)
    for row in check() if options.check else measure(shapes):
        print(json.dumps(row), flush=True)
        wrong += row.get("wrong", 0)
        if options.json is not None:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**row, "seed": bench.SEED, **where}) + "\n")
    sys.exit(f"{wrong} outcomes differ from the laws" if wrong else 0)


if __name__ == "__main__":
    main()
