"""Llama layers by our kernels on one CUDA device: errors at real sizes, and the time of a step.

    python -m draftproof.bench.layer             # check, then time steps of an 8B-shaped target, 135M-shaped drafter
    python -m draftproof.bench.layer --calls     # the drafter alone: check its layers in one launch, and time its calls
    python -m draftproof.bench.layer --tune      # attention with several block sizes
    python -m draftproof.bench.layer --small     # the same on tiny shapes; with TRITON_INTERPRET=1 also without a GPU

Weights are random and texts do not grow, so the time of a step does not depend on what is accepted. A line is one JSON
row.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from json import dumps
from typing import Any, NamedTuple, cast

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import draftproof as dp
from draftproof.engine.graph import GraphKind, GraphStepper
from draftproof.engine.request import Request, SampleKey
from draftproof.engine.tuning import Fixed
from draftproof.models.hf import HFModel
from draftproof.models.kv_cache import SlotCache
from draftproof.models.llama.backends import megakernel, torch_ops, triton_ops
from draftproof.models.llama.backends.tables import KernelTables
from draftproof.models.llama.block import Block, Blocks, LayerShape
from draftproof.models.llama.call import LayerCall
from draftproof.models.llama.masks import FULL, Causal
from draftproof.models.llama.placement import Slots
from draftproof.models.llama.rebuild import rebuild
from draftproof.models.llama.rotary import Rotation, frequencies
from draftproof.models.static.session import StaticSession

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class NetworkSizes(NamedTuple):
    """Sizes of a network."""

    shape: LayerShape
    layers: int
    vocabulary: int = 49152


SIZES = {
    "8b": NetworkSizes(LayerShape(4096, 32, 8, 128, 14336), 32),
    "8b, heads of 64": NetworkSizes(LayerShape(4096, 64, 16, 64, 14336), 32),
    "135m": NetworkSizes(LayerShape(576, 9, 3, 64, 1536), 30),
}
SMALL = {name: NetworkSizes(LayerShape(96, 6, 2, 16, 96), 1, 300) for name in SIZES}


def layers(sizes: NetworkSizes, dtype: torch.dtype, rows: int, capacity: int, count: int) -> tuple[Blocks, SlotCache]:
    """Random weights and a cache that is full of random entries."""
    torch.manual_seed(0)
    shape = sizes.shape
    with torch.device(DEVICE):
        blocks = Blocks(Block(shape) for _ in range(count)).to(dtype).requires_grad_(False)
    cache = SlotCache(count, rows, capacity)
    cache.allocate(shape.shared, shape.size, torch.empty(0, dtype=dtype, device=DEVICE))
    for buffer in cache.buffers:
        buffer.normal_()
    return blocks, cache


@torch.no_grad()
def check(name: str, sizes: NetworkSizes, dtype: torch.dtype, rows: int, tokens: int, longest: int) -> dict[str, Any]:
    """Largest errors against float32 of attention, new entries and the whole layer: torch's, and ours in three runs.

    What one run leaves behind, or does not wait for, would show in the next.
    """
    blocks, cache = layers(sizes, dtype, rows, longest + tokens, 1)
    base = torch.linspace(longest, 0, rows, device=DEVICE).long()
    slots = base[:, None] + torch.arange(tokens, device=DEVICE)
    rotation = Rotation.of((slots - 1).clamp_min(0), frequencies(sizes.shape.size).to(DEVICE)).to(dtype)
    x = torch.randn(rows, tokens, sizes.shape.width, device=DEVICE).to(dtype)
    placement = Slots(slots, longest + tokens + 1)
    rule = Causal(100 if name == "135m" else None)
    mask = rule.visible(placement)[:, None]
    truth = parts(blocks.float(), cache, x.float(), LayerCall(rotation.to(torch.float32), {FULL: mask}, placement))
    blocks.to(dtype)
    row: dict[str, Any] = {"check": name, "dtype": str(dtype), "rows": rows, "tokens": tokens, "fine": True}
    theirs = errors(parts(blocks, cache, x, LayerCall(rotation, {FULL: mask}, placement)), truth)
    ours = [errors(parts(blocks, cache, x, LayerCall(rotation, {FULL: rule}, placement)), truth) for _ in range(3)]
    for part, least, *three in zip(("attend", "entries", "layer"), theirs, *ours, strict=True):
        worst = max(three)
        row["fine"] &= worst <= 1.5 * least + (1e-4 if dtype == torch.float32 else 0)
        row[part] = [round(least, 7), round(worst, 7)]
    return row


def errors(results: list[torch.Tensor], truth: list[torch.Tensor]) -> list[float]:
    return [float((a.float() - b.float()).abs().max()) for a, b in zip(results, truth, strict=True)]


def parts(blocks: Blocks, cache: SlotCache, x: torch.Tensor, call: LayerCall) -> list[torch.Tensor]:
    """Attention output, new entries and the output of a layer, each from a copy of the cache."""
    placement: Any = call.placement
    each, block = torch.arange(len(x), device=DEVICE)[:, None], cast(Block, blocks[0])
    mine = copied(cache, x.dtype)
    placed_call = call._replace(cache=mine.layers, tables=KernelTables.of(blocks, mine))
    assert placed_call.tables is not None
    qkv, rotation, layer, mask = block.qkv(block.norm_in(x)), call.angles(x.dtype), mine.layers[0], call.masks[FULL]
    if isinstance(mask, Causal):
        attended = triton_ops.attend(qkv, rotation, mask, placed_call, 0)
    else:
        attended = torch_ops.attend(*block.split(qkv, rotation), cast(Any, mask), layer, placement)
    entries = torch.stack([layer.keys[each, :, placement.slots], layer.values[each, :, placement.slots]])
    assert not placed_call.tables.arrivals.any()
    again = copied(cache, x.dtype)
    backend: Any = triton_ops if isinstance(mask, Causal) else torch_ops
    output = backend.run(blocks, x, call._replace(cache=again.layers, tables=KernelTables.of(blocks, again)), 0, ())
    return [attended, entries, output[0]]


def copied(cache: SlotCache, dtype: torch.dtype) -> SlotCache:
    """A cache in this precision."""
    new = SlotCache(len(cache.layers), cache.rows, cache.capacity)
    for old, layer in zip(cache.layers, new.layers, strict=True):
        layer.allocate(old.keys.to(dtype), old.values.to(dtype))
        layer.keys.copy_(old.keys)
        layer.values.copy_(old.values)
    return new


def model(sizes: NetworkSizes, seed: int) -> HFModel:
    """In bfloat16, with random weights."""
    shape = sizes.shape
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=sizes.vocabulary, hidden_size=shape.width, intermediate_size=shape.inner,
        num_hidden_layers=sizes.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.shared,
        head_dim=shape.size, max_position_embeddings=16384, tie_word_embeddings=shape.width < 1024,
        eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    with torch.device(DEVICE):
        network = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16 if DEVICE == "cuda" else torch.float16)
    return HFModel(rebuild(network.eval().requires_grad_(False)), None, "random")


def steps(target: HFModel, draft: HFModel | None, rows: int, length: int, text: int) -> Callable[[], object]:
    """A captured step of a batch, on texts of this length that do not grow."""
    sampling = dp.Sampling(temperature=1.0)
    tree = dp.Tree.chain(length)
    stepper = GraphStepper(target, GraphKind(draft, "block", tree, rows), text + 64, Fixed(tree))
    prompt = tuple(token % target.vocabulary for token in range(10, 10 + text))
    stepper.join([Request(prompt, sampling, sampling, 32, SampleKey(5, row)) for row in range(rows)])
    stepper.collect(stepper.launch())
    stepper.state.limit.copy_(stepper.state.base)
    return lambda: stepper.device_step.run(stepper.tree)


def milliseconds(call: Callable[[], object], count: int) -> float:
    """Of a call, on the device; the least of three means."""
    if DEVICE == "cpu":
        call()
        return 0.0
    call()
    best = float("inf")
    for _ in range(3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(count):
            call()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / count)
    return best


WAYS = ("torch", "eight launches a layer", "one launch where small")


@contextmanager
def by(way: str, small: bool) -> Iterator[None]:
    """Layers are run this way; if small, where there may be no GPU."""
    kept = megakernel.is_small, triton_ops.supports
    if way != WAYS[2]:
        megakernel.is_small = lambda *_: False
    elif small:
        megakernel.is_small = lambda *_: True
    if way == WAYS[0] or small:
        triton_ops.supports = lambda *_: way != WAYS[0]
    try:
        yield
    finally:
        megakernel.is_small, triton_ops.supports = kept


def compare(sizes: dict[str, NetworkSizes], small: bool) -> Iterator[dict[str, Any]]:
    """Plain steps and chains of five, by torch and by the kernels."""
    target, draft = model(sizes["8b"], 0), model(sizes["135m"], 1)
    cases = [(1, 0, 20), (1, 5, 20)] if small else [(1, 0, 200), (1, 5, 200), (1, 5, 4000), (32, 0, 200), (32, 5, 200)]
    for rows, length, text in cases:
        for way in WAYS:
            with by(way, small):
                start = time.perf_counter()
                step = steps(target, draft if length else None, rows, length, text)
                ready, took = time.perf_counter() - start, milliseconds(step, 20)
            yield {"step": way, "rows": rows, "drafts": length, "text": text, "ms": took, "ready_s": round(ready, 1)}
            del step


def calls(sizes: dict[str, NetworkSizes], small: bool) -> Iterator[dict[str, Any]]:
    """A drafter's call: all of it, from tokens to logits."""
    draft, text = model(sizes["135m"], 1), 20 if small else 200
    for rows, tokens in ((1, 1), (1, 2), (4, 1), (8, 1), (32, 1), (32, 2)):
        ids = torch.randint(draft.vocabulary, (rows, tokens), device=DEVICE)
        base = torch.full((rows,), text, device=DEVICE)
        for way in WAYS:
            with by(way, small):
                session = StaticSession(draft, rows, text + 60)
                took = _graphed(partial(session.forward, ids, base, keep=1), 10)
            yield {"call": way, "rows": rows, "tokens": tokens, "text": text, "us": took}


@torch.no_grad()
def whole(sizes: NetworkSizes, dtype: torch.dtype, rows: int, tokens: int, longest: int, runs: int) -> dict[str, Any]:
    """Largest errors of all layers against float32, torch's and those of one launch; and whether runs are all equal."""
    blocks, cache = layers(sizes, dtype, rows, longest + tokens, sizes.layers)
    slots = torch.linspace(longest, 0, rows, device=DEVICE).long()[:, None] + torch.arange(tokens, device=DEVICE)
    rotation = Rotation.of((slots - 1).clamp_min(0), frequencies(sizes.shape.size).to(DEVICE)).to(dtype)
    x = torch.randn(rows, tokens, sizes.shape.width, device=DEVICE).to(dtype)
    placement = Slots(slots, longest + tokens + 1)
    tables = KernelTables.of(blocks, cache)
    call = LayerCall(rotation, {FULL: Causal()}, placement, cache.layers, tables)
    ours = [megakernel.run(blocks, x, call, 0, ())[0] for _ in range(runs)]
    entries = [buffer.clone() for buffer in cache.buffers]
    theirs = torch_ops.run(blocks, x, call, 0, ())[0]
    apart = max(errors(entries, cache.buffers))
    exact = call._replace(rotation=rotation.to(torch.float32), cache=copied(cache, torch.float32).layers)
    truth = torch_ops.run(blocks.float(), x.float(), exact, 0, ())[0]
    row = {"network": str(dtype), "rows": rows, "tokens": tokens, "runs": runs, "entries": apart}
    row["equal"] = all(torch.equal(one, ours[0]) for one in ours)
    row["errors"] = [round(error, 5) for error in errors([theirs, ours[0]], [truth, truth])]
    return row


def tune(sizes: dict[str, NetworkSizes], small: bool) -> Iterator[dict[str, Any]]:
    """Attention on one and on six tokens: microseconds with each block and chunk size."""
    for name in ("8b", "135m"):
        for tokens, text in ((1, 200), (6, 200), (1, 4000), (6, 4000)):
            times = _attention_times(sizes[name], tokens, text, small)
            yield {"tune": name, "tokens": tokens, "text": text, **times}


def _attention_times(sizes: NetworkSizes, tokens: int, text: int, small: bool) -> dict[str, float]:
    dtype, shape = torch.bfloat16 if DEVICE == "cuda" else torch.float16, sizes.shape
    blocks, cache = layers(sizes, dtype, 1, 4100, 1)
    slots = text + torch.arange(tokens, device=DEVICE)[None]
    rotation = Rotation.of(slots - 1, frequencies(shape.size).to(DEVICE)).to(dtype)
    tables, mask = KernelTables.of(blocks, cache), Causal()
    call = LayerCall(rotation, {FULL: mask}, Slots(slots, 4101), cache.layers, tables)
    qkv = torch.randn(1, tokens, (shape.heads + 2 * shape.shared) * shape.size, device=DEVICE).to(dtype)
    limits: Any = vars(triton_ops)["limits"]  # the sizes that kernels are launched with
    times = {}
    for setting in ((64, 128), (64, 256), (32, 64), (32, 256), (128, 256))[: 1 if small else None]:
        limits.BLOCK, limits.CHUNK = setting
        times[str(setting)] = _graphed(partial(triton_ops.attend, qkv, rotation, mask, call, 0))
    return times


@torch.no_grad()
def _graphed(call: Callable[[], object], count: int = 40) -> float:
    """Microseconds of a call, of many in a graph."""
    call()
    if DEVICE == "cpu":
        return 0.0
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    return round(milliseconds(graph.replay, 5) * 1e3 / count, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    sizes = SMALL if options.small else SIZES
    if options.tune:
        for row in tune(sizes, options.small):
            print(dumps(row), flush=True)
        return
    longest, half = 300 if options.small else 4000, torch.bfloat16 if DEVICE == "cuda" else torch.float16
    if options.calls:
        for rows, tokens in ((1, 1), (1, 2), (4, 1), (7, 2), (32, 1), (32, 2)):
            runs = 2 if options.small else 1000
            print(dumps(whole(sizes["135m"], half, rows, tokens, longest // 10, runs)), flush=True)
        few = NetworkSizes(LayerShape(288, 9, 3, 32, 768), 4)  # float32 needs twice the memory
        for rows in (1, 8):
            print(dumps(whole(SMALL["135m"] if options.small else few, torch.float32, rows, 2, longest, 2)), flush=True)
        for row in calls(sizes, options.small):
            print(dumps(row), flush=True)
        return
    for name in sizes:
        for dtype, rows, tokens in ((half, 1, 1), (half, 1, 6), (half, 7, 6), (torch.float32, 3, 2)):
            print(dumps(check(name, sizes[name], dtype, rows, tokens, longest)), flush=True)
    for row in compare(sizes, options.small):
        print(dumps(row), flush=True)


if __name__ == "__main__":
    main()
