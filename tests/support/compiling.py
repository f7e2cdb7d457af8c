"""Compile every kernel to Triton IR for a GPU that need not exist, for controls of every kind.

Run by test_compile in a process of its own: Triton decides when it is imported whether it interprets.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import triton.compiler
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from draftproof import kernels
from draftproof.draft import Tree
from draftproof.integrations.vllm import launches
from draftproof.integrations.vllm.counters import WIDTH
from draftproof.integrations.vllm.layout import SlotColumns
from draftproof.kernels import Controls, NoiseKeys, Ragged, Summary
from draftproof.kernels.chain.plan import Tiling
from draftproof.kernels.chain.workspace import Workspace
from draftproof.kernels.lib import launching
from draftproof.models.kv_cache import SlotCache
from draftproof.models.llama.backends import megakernel
from draftproof.models.llama.backends.tables import KernelTables
from draftproof.models.llama.block import Block, Blocks, LayerShape
from draftproof.models.llama.call import LayerCall
from draftproof.models.llama.masks import FULL, Branching, Causal
from draftproof.models.llama.placement import NodeSlots, Slots
from draftproof.models.llama.rotary import Rotation, frequencies
from draftproof.sampling import Sampling

BATCH, NODES, SIZE = 3, 4, 1271
CONTROLS = {
    "greedy": Sampling(temperature=0),
    "whole": Sampling(temperature=0.8),
    "truncated": Sampling(top_k=50, top_p=0.9),
    "masked": Sampling(min_p=0.1, banned=[3], logit_bias={1: 2.0}),
}
NETWORKS = {"few rows": 2, "many rows": 3}


class Absent:
    """A stand-in for the CUDA driver: as much of it as the compiler uses."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def translate(source: Any, target: GPUTarget, options: dict[str, Any]) -> object:
    """The first stage of a compilation, which finds wrong types and missing arguments; the others take far longer.

    The result stands for the kernel, so that a launch with the same types and constants does not translate it again.
    """
    backend = make_backend(target)
    parsed = backend.parse_options(options)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source.make_ir(target, parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), context)
    return object()


def pretend() -> None:
    """Make launches compile and then do nothing."""
    driver.set_active(Absent())
    triton.compiler.compile = translate
    run = JITFunction.run

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return run(self, *args, grid=grid, warmup=True, **options)

    JITFunction.run = compiled
    torch.Tensor.is_cuda = property(lambda tensor: True)
    launching.may_overlap = lambda device: True
    launching.current = lambda device: nullcontext()
    torch.cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=132)


def logits(rows: int) -> torch.Tensor:
    return torch.zeros(BATCH, rows, SIZE, dtype=torch.bfloat16)


def compile_all(sampling: Sampling) -> None:
    """Draft sampling, a chain, what vLLM's steps take beside it, several children of one node, and a tree."""
    controls = Controls.of([sampling] * BATCH, NODES, SIZE)
    noise = NoiseKeys(*(torch.zeros(BATCH, dtype=torch.int64),) * 3)
    chain, tree = torch.zeros(BATCH, NODES - 1, dtype=torch.int64), Tree.of(1, 2)
    kernels.sample(logits(1)[:, 0], controls, noise, node=1, index=2, tokens=chain[:, :1], backend="triton")
    rule = torch.zeros(BATCH, dtype=torch.int32)
    for crest, ranks in ((False, NODES), (True, 1)):
        kept = Summary.empty(BATCH, NODES - 1, torch.device("cpu"), crest)
        kernels.sample(logits(1)[:, 0], controls, noise, summary=kept.at(slice(0, 1)), backend="triton")
        tiling = Tiling.of(BATCH, NODES, SIZE)._replace(ranks=ranks)
        kernels.verify(
            logits(NODES), logits(NODES - 1), chain, controls, rule, noise, drafted=kept, backend="triton",
            workspace=Workspace.of(BATCH, NODES, SIZE, torch.device("cpu"), tiling),
        )  # fmt: skip
    node = torch.zeros(BATCH, dtype=torch.int64)
    step = launches.slot_step(
        SlotColumns(*controls[:4], noise.seed, rule), node, torch.arange(BATCH + 1), node, node,
        nodes=NODES, depth=NODES - 1, vocabulary=SIZE, truncates=bool(controls.truncates), processed=False,
    )  # fmt: skip
    target, draft = (Ragged(logits(n).flatten(0, 1), step.first, n) for n in (NODES, NODES - 1))
    out = kernels.verify(target, draft, step.tokens, controls, rule, noise, expected=True, backend="triton")
    launches.add_up(torch.zeros(3, WIDTH, dtype=torch.float64), rule, step.tokens, out.accepted, out.reach, out.fault)
    theirs = controls.at([0])
    kernels.pick(logits(NODES), node, logits(1), node, chain, controls, noise, draft_controls=theirs, backend="triton")
    tokens = torch.zeros(BATCH, NODES, dtype=torch.int64)
    kernels.guess(logits(1), [0], tree, tokens, controls, noise, backend="triton")
    kernels.traverse(logits(NODES), logits(2), tokens, tree, controls, noise, backend="triton")


def compile_network(rows: int) -> None:
    """All layers of a small drafter: its first call, and a level of a tree."""
    shape, dtype = LayerShape(48, 4, 2, 16, 80, bias=True), torch.bfloat16
    blocks, cache = Blocks([Block(shape)]).to(dtype), SlotCache(1, rows, 20)
    own = torch.full((rows, 1), 5)
    rotation = Rotation.of(own, frequencies(shape.size)).to(dtype)
    x = torch.zeros(rows, 1, shape.width, dtype=dtype)
    cache.allocate(shape.shared, shape.size, x)
    tree = Branching(own[0] - 4, own[0]), NodeSlots(own[:, 0], own[0] - 3, 21)
    for mask, placement in ((Causal(), Slots(own, 21)), tree):
        call = LayerCall(rotation, {FULL: mask}, placement, cache.layers, KernelTables.of(blocks, cache))
        megakernel.run(blocks, x, call, 0, ())


if __name__ == "__main__":
    pretend()
    for name, sampling in CONTROLS.items():
        compile_all(sampling)
        print(name, flush=True)
    for name, rows in NETWORKS.items():
        compile_network(rows)
        print(name, flush=True)
