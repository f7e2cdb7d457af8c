"""A Llama layer by our kernels on one CUDA device: is it right at real sizes, and what is a step by it?

    python -m draftproof.bench.layer             # check, then time steps of an 8B-shaped target, 135M-shaped drafter
    python -m draftproof.bench.layer --calls     # the drafter alone: check its layers in one launch, and time its calls
    python -m draftproof.bench.layer --tune      # sizes of programs, one after another
    python -m draftproof.bench.layer --small     # the same on tiny shapes; with TRITON_INTERPRET=1 also without a GPU

Weights are random and texts stand still, so a step costs what it costs whatever is accepted. A line is one JSON row.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from json import dumps
from typing import Any, NamedTuple

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import draftproof as dp
from draftproof.engine.graph import GraphKind, GraphStepper
from draftproof.engine.request import Request, SampleKey
from draftproof.engine.tuning import Fixed
from draftproof.models.hf import HFModel
from draftproof.models.kv_cache import SlotCache
from draftproof.models.llama import cuda
from draftproof.models.llama.block import Block, Blocks, Rotation, Shape, frequencies
from draftproof.models.llama.rebuild import rebuild
from draftproof.models.static.session import StaticSession

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Sizes(NamedTuple):
    """Of a network."""

    shape: Shape
    layers: int
    vocabulary: int = 49152


SIZES = {
    "8b": Sizes(Shape(4096, 32, 8, 128, 14336), 32),
    "8b, heads of 64": Sizes(Shape(4096, 64, 16, 64, 14336), 32),
    "135m": Sizes(Shape(576, 9, 3, 64, 1536), 30),
}
SMALL = {name: Sizes(Shape(96, 6, 2, 16, 96), 1, 300) for name in SIZES}


def layer(shape: Shape, dtype: torch.dtype, rows: int, capacity: int, seed: int = 0) -> tuple[Block, SlotCache]:
    """Random weights and a cache that is full of random entries."""
    torch.manual_seed(seed)
    with torch.device(DEVICE):
        block = Block(shape).to(dtype).requires_grad_(False)
    cache = SlotCache(1, rows, capacity)
    entry = torch.zeros(1, shape.shared, 1, shape.size, dtype=dtype, device=DEVICE)
    cache.layers[0].lazy_initialization(entry, entry)
    for buffer in cache.buffers:
        buffer.normal_()
    return block, cache


@torch.no_grad()
def check(name: str, sizes: Sizes, dtype: torch.dtype, rows: int, tokens: int, longest: int) -> dict[str, Any]:
    """Largest errors against float32 of attention, new entries and the whole layer: torch's, and ours in three runs.

    What one run leaves behind, or does not wait for, would show in the next.
    """
    block, cache = layer(sizes.shape, dtype, rows, longest + tokens)
    base = torch.linspace(longest, 0, rows, device=DEVICE).long()
    own = base[:, None] + torch.arange(tokens, device=DEVICE)
    angles = Rotation.of((own - 1).clamp_min(0), frequencies(sizes.shape.size).to(DEVICE)).to(dtype)
    x = torch.randn(rows, tokens, sizes.shape.width, device=DEVICE).to(dtype)
    window = 100 if name == "135m" else None
    rule = cuda.Causal(own, window)
    mask = rule.over(torch.arange(longest + tokens + 1, device=DEVICE))[:, None]
    truth = say(block.float(), cache, x.float(), angles.to(torch.float32), own, mask)
    block.to(dtype)
    row: dict[str, Any] = {"check": name, "dtype": str(dtype), "rows": rows, "tokens": tokens, "fine": True}
    theirs = errors(say(block, cache, x, angles, own, mask), truth)
    ours = [errors(say(block, cache, x, angles, own, rule), truth) for _ in range(3)]
    for part, least, *three in zip(("attend", "entries", "layer"), theirs, *ours, strict=True):
        worst = max(three)
        row["fine"] &= worst <= 1.5 * least + (1e-4 if dtype == torch.float32 else 0)
        row[part] = [round(least, 7), round(worst, 7)]
    return row


def errors(said: list[torch.Tensor], truth: list[torch.Tensor]) -> list[float]:
    return [float((a.float() - b.float()).abs().max()) for a, b in zip(said, truth, strict=True)]


def say(
    block: Block, cache: SlotCache, x: torch.Tensor, angles: Rotation, own: torch.Tensor, mask: Any
) -> list[torch.Tensor]:
    """What is attended to, new entries, and the layer's output, from a copy of the cache."""
    shape, each = block.shape, torch.arange(len(own), device=DEVICE)[:, None]
    store = copied(cache, own, x.dtype)
    joint = block.qkv(block.norm_in(x))
    if isinstance(mask, cuda.Causal):
        seen = cuda.attend(joint, angles, mask, store, shape.heads, shape.shared)
    else:
        seen = block._attend(joint, angles, mask, store)
    entries = torch.stack([store.keys[each, :, own], store.values[each, :, own]])
    assert not store.arrived.any()
    return [seen, entries, block(x, angles, mask, copied(cache, own, x.dtype))]


def copied(cache: SlotCache, own: torch.Tensor, dtype: torch.dtype) -> Any:
    """The only layer of a cache, in this precision."""
    new = SlotCache(1, cache.rows, cache.capacity)
    old, store = cache.layers[0], new.layers[0]
    store.lazy_initialization(old.keys, old.values)
    store.keys, store.values = old.keys.to(dtype, copy=True), old.values.to(dtype, copy=True)
    new.place_on_device(own)
    return store


def model(sizes: Sizes, seed: int) -> HFModel:
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
    """A step of a batch, captured, on texts of this length that stand still."""
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
    """Layers are done this way; if small, where there may be no GPU."""
    fits, whole = cuda.fits, cuda.whole
    if way != WAYS[2]:
        cuda.whole = lambda *_: False
    elif small:
        cuda.whole = lambda x, shape, masks, stores: isinstance(masks[0], cuda.Rule)
    if way == WAYS[0] or small:
        cuda.fits = lambda *_: way != WAYS[0]
    try:
        yield
    finally:
        cuda.fits, cuda.whole = fits, whole


def compare(sizes: dict[str, Sizes], small: bool) -> Iterator[dict[str, Any]]:
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


def calls(sizes: dict[str, Sizes], small: bool) -> Iterator[dict[str, Any]]:
    """A drafter's call: all of it, from tokens to logits."""
    draft, text = model(sizes["135m"], 1), 20 if small else 200
    for rows, tokens in ((1, 1), (1, 2), (4, 1), (8, 1), (32, 1), (32, 2)):
        session = StaticSession(draft, rows, text + 60)
        ids = torch.randint(draft.vocabulary, (rows, tokens), device=DEVICE)
        base = torch.full((rows,), text, device=DEVICE)
        for way in WAYS:
            with by(way, small):
                took = _graphed(partial(session.forward, ids, base, keep=1), 10)
            yield {"call": way, "rows": rows, "tokens": tokens, "text": text, "us": took}


@torch.no_grad()
def whole(sizes: Sizes, dtype: torch.dtype, rows: int, tokens: int, longest: int, runs: int) -> dict[str, Any]:
    """Largest errors of all layers against float32, torch's and those of one launch; and whether runs are all equal."""
    made = [layer(sizes.shape, dtype, rows, longest + tokens, seed) for seed in range(sizes.layers)]
    blocks, cache = Blocks(block for block, _ in made), SlotCache(sizes.layers, rows, longest + tokens)
    for store, (_, old) in zip(cache.layers, made, strict=True):
        store.lazy_initialization(old.layers[0].keys, old.layers[0].values)
        store.keys, store.values = old.layers[0].keys, old.layers[0].values
    own = torch.linspace(longest, 0, rows, device=DEVICE).long()[:, None] + torch.arange(tokens, device=DEVICE)
    angles = Rotation.of((own - 1).clamp_min(0), frequencies(sizes.shape.size).to(DEVICE)).to(dtype)
    x = torch.randn(rows, tokens, sizes.shape.width, device=DEVICE).to(dtype)
    rule = cuda.Causal(own)
    mask = rule.over(torch.arange(longest + tokens + 1, device=DEVICE))[:, None]
    cache.place_on_device(own)
    ours = [cuda.network(x, blocks, angles, rule, cache.layers) for _ in range(runs)]
    entries = [buffer.clone() for buffer in cache.buffers]
    theirs = blocks(x, angles, [mask] * sizes.layers, cache.layers)[0]
    apart = max(errors(entries, cache.buffers))
    for store in cache.layers:
        store.keys, store.values = store.keys.float(), store.values.float()
    truth = blocks.float()(x.float(), angles.to(torch.float32), [mask] * sizes.layers, cache.layers)[0]
    row = {"network": str(dtype), "rows": rows, "tokens": tokens, "runs": runs, "entries": apart}
    row["equal"] = all(torch.equal(one, ours[0]) for one in ours)
    row["errors"] = [round(error, 5) for error in errors([theirs, ours[0]], [truth, truth])]
    return row


def tune(sizes: dict[str, Sizes], small: bool) -> Iterator[dict[str, Any]]:
    """Attention on one and on six tokens: microseconds by each size of program."""
    for name in ("8b", "135m"):
        for tokens, text in ((1, 200), (6, 200), (1, 4000), (6, 4000)):
            times = _attends(sizes[name].shape, tokens, text, small)
            yield {"tune": name, "tokens": tokens, "text": text, **times}


def _attends(shape: Shape, tokens: int, text: int, small: bool) -> dict[str, float]:
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float16
    _, cache = layer(shape, dtype, 1, 4100)
    own = text + torch.arange(tokens, device=DEVICE)[None]
    cache.place_on_device(own)
    rotation = Rotation.of(own - 1, frequencies(shape.size).to(DEVICE)).to(dtype)
    joint = torch.randn(1, tokens, (shape.heads + 2 * shape.shared) * shape.size, device=DEVICE).to(dtype)
    found = {}
    for setting in ((64, 128), (64, 256), (32, 64), (32, 256), (128, 256))[: 1 if small else None]:
        cuda.BLOCK, cuda.CHUNK = setting
        rule, store = cuda.Causal(own), cache.layers[0]
        found[str(setting)] = _graphed(partial(cuda.attend, joint, rotation, rule, store, shape.heads, shape.shared))
    return found


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
        few = Sizes(Shape(288, 9, 3, 32, 768), 4)  # float32 needs twice the memory
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
