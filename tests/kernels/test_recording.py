"""Calls whose launches are made again for other tensors."""

from __future__ import annotations

import ast
import gc
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from draftproof import kernels
from draftproof.kernels import ChainRule, Controls, Emitted, NoiseKeys, Ragged
from draftproof.kernels.lib.recording import Recordings, launch, record
from tests.support.marks import INTERPRETED

pytestmark = INTERPRETED

BATCH, NODES, SIZE = 2, 3, 300
DRAFTED, NOTHING = BATCH * (NODES - 1), torch.zeros(BATCH, dtype=torch.int64)
TRUNCATED = {"top_k": 20, "top_p": 0.9, "min_p": 0.0}


def tensors_of(seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Of a step: rows of the target and of the drafter, one after another, draft tokens, first rows and seeds."""
    torch.manual_seed(seed)
    target, draft = (torch.randn(rows, SIZE).mul(3).to(dtype) for rows in (BATCH * NODES, DRAFTED))
    tokens = torch.multinomial(draft.float().softmax(-1), 1).view(BATCH, NODES - 1)
    order = torch.randperm(BATCH)
    return [target, draft, tokens, order * NODES, order * (NODES - 1), torch.randint(0, 2**60, (BATCH,))]


def controls(top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Controls:
    columns = torch.full((BATCH,), 0.8), torch.full((BATCH,), top_k, dtype=torch.int32)
    nuclei = torch.full((BATCH,), top_p).double(), torch.full((BATCH,), min_p).double()
    return Controls(*columns, *nuclei, truncates=2 if top_k else 0, whole=not top_k)


def verifying(rule: ChainRule, asked: Controls, backend: str) -> Callable[[list[Tensor]], Emitted]:
    """Verification of steps, whose kernels share their memory."""
    rules = torch.full((BATCH,), rule, dtype=torch.int32)
    space = kernels.workspace(BATCH, NODES, SIZE, "cpu")

    def verify(tensors: list[Tensor]) -> Emitted:
        target, draft, tokens, first, draft_first, seed = tensors
        return kernels.verify(
            Ragged(target, first, NODES), Ragged(draft, draft_first, NODES - 1), tokens, asked, rules,
            NoiseKeys(seed, NOTHING, NOTHING), expected=True, backend=backend, workspace=space,
        )  # fmt: skip

    return verify


def outputs_of(out: Emitted) -> tuple[Tensor, ...]:
    assert out.reach is not None
    return out.tokens, out.accepted, out.fault, out.reach


@pytest.mark.parametrize("rule", [ChainRule.TOKEN, ChainRule.BLOCK])
@pytest.mark.parametrize("asked", [{}, TRUNCATED])
def test_from_the_third_step_on_launches_alone_verify(rule: ChainRule, asked: dict[str, Any]) -> None:
    verify, recordings, called = verifying(rule, controls(**asked), "triton"), Recordings(), []
    seen = set()
    for seed in range(5):
        given = tensors_of(seed)
        found = recordings(rule, lambda given=given: called.append(0) or outputs_of(verify(given)), given)
        expected = verifying(rule, controls(**asked), "torch")(given)
        assert torch.equal(found[0], expected.tokens)
        assert torch.equal(found[1], expected.accepted)
        torch.testing.assert_close(found[3], expected.reach, rtol=1e-4, atol=1e-6)
        seen.add(str(found[0].tolist()))
    assert len(called) == 2
    assert len(seen) == 5


def test_what_was_returned_before_stays() -> None:
    """A step's tokens may still be read while the next one is verified."""
    verify, recordings = verifying(ChainRule.BLOCK, controls(), "triton"), Recordings()
    steps = [tensors_of(seed) for seed in range(3)]
    found = [recordings(0, lambda given=given: outputs_of(verify(given)), given) for given in steps]
    again = [recordings(0, lambda: pytest.fail("not launched again"), given) for given in steps]
    for first, second in zip(found, again, strict=True):
        assert all(map(torch.equal, first, second))
        assert first[0].data_ptr() != second[0].data_ptr()


def test_other_tensors_are_recorded_anew() -> None:
    """What kernels are compiled for: types, shapes, and whether memory begins at a multiple of 16 bytes."""
    verify, recordings, called = verifying(ChainRule.TOKEN, controls(), "triton"), Recordings(), []
    plain, half = tensors_of(0), tensors_of(0, torch.bfloat16)
    shifted = torch.empty(BATCH * NODES * SIZE + 1)[1:].view(BATCH * NODES, SIZE).copy_(plain[0])
    wider = torch.zeros(BATCH * NODES, SIZE + 20).index_copy_(1, torch.arange(SIZE), plain[0])[:, :SIZE]
    for given in (plain, half, [shifted, *plain[1:]], [wider, *plain[1:]]):
        for _ in range(4):
            found = recordings(0, lambda given=given: called.append(0) or outputs_of(verify(given)), given)
            assert torch.equal(found[0], verifying(ChainRule.TOKEN, controls(), "torch")(given).tokens)
    assert len(called) == 8
    recordings("another key", lambda: called.append(0) or outputs_of(verify(plain)), plain)
    recordings.clear()
    recordings(0, lambda: called.append(0) or outputs_of(verify(plain)), plain)
    assert len(called) == 10


def test_what_launches_alone_would_not_do_is_called_every_time() -> None:
    verify, given = verifying(ChainRule.BLOCK, controls(), "triton"), tensors_of(0)
    tokens, seed = given[2], given[5]
    both = torch.stack([seed, seed])

    def refused(call: Callable[[], tuple[Tensor, ...]], inputs: list[Tensor]) -> bool:
        return record(call, inputs)[1] is None

    assert not refused(lambda: outputs_of(verify(given)), given)
    # it computes: an input, an output, anything
    assert refused(lambda: outputs_of(verify([*given[:5], seed + 1])), given)
    assert refused(lambda: (verify(given).tokens + 1,), given)
    assert refused(lambda: (torch.ones(2).neg(), outputs_of(verify(given)))[1], given)
    # it returns what no kernel wrote, or a part of something larger
    assert refused(lambda: (verify(given).tokens, torch.empty(3)), given)
    assert refused(lambda: (verify(given).tokens[:1],), given)
    # its kernels read a part of an input, or two inputs are one
    assert refused(lambda: outputs_of(verify([*given[:5], both[1]])), [*given[:5], both])
    assert refused(lambda: outputs_of(verify(given)), [*given, tokens])
    assert refused(lambda: outputs_of(verify(given)), [])


def test_copies_that_pass_for_views_in_inference_mode_are_noticed() -> None:
    verify, given = verifying(ChainRule.BLOCK, controls(), "triton"), tensors_of(0)
    spread = torch.randn(DRAFTED // 2, 4, SIZE)[:, :2]  # reshaping it copies
    with torch.inference_mode():
        assert (
            record(lambda: outputs_of(verify([given[0], spread.reshape(DRAFTED, SIZE), *given[2:]])), given)[1] is None
        )
        assert record(lambda: outputs_of(verify([given[0], given[1].reshape(DRAFTED, SIZE), *given[2:]])), given)[1]


def test_inputs_and_outputs_are_not_kept() -> None:
    """Rows of logits are hundreds of megabytes, and there are others in the next step."""
    verify, given = verifying(ChainRule.BLOCK, controls(), "triton"), tensors_of(0)
    outputs, recording = record(partial(lambda given: outputs_of(verify(given)), given), given)
    alive = [weakref.ref(each.untyped_storage()) for each in (*given[:3], *outputs)]
    assert recording is not None
    assert all(each() is not None for each in alive)
    del given, outputs
    gc.collect()
    assert not any(each() is not None for each in alive)
    again = tensors_of(1)
    assert torch.equal(recording(again)[0], verifying(ChainRule.BLOCK, controls(), "torch")(again).tokens)


class Compiled:
    """A compiled kernel, and how it was launched by position."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments: self.calls.append((grid, *arguments))


class Kernel:
    """A kernel as Triton's compiler makes it, without the device."""

    arg_names = ("pair", "out", "count", "BLOCK", "FLAG")

    def __init__(self) -> None:
        self.compiled = Compiled()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Compiled]:
        return lambda *_, **__: self.compiled


class Pair(NamedTuple):
    x: Any
    scratch: Any
    absent: Any
    size: Any


def test_a_compiled_kernel_gets_new_inputs_old_addresses_and_constants_by_position() -> None:
    kernel, x, scratch = Kernel(), torch.zeros(4), torch.zeros(8)

    def call() -> tuple[Tensor, ...]:
        out = torch.empty(4)
        launch(kernel, (3,), Pair(x, scratch, None, 8), out, 7, FLAG=True, BLOCK=16, num_warps=4)
        return (out,)

    _, recording = record(call, [x])
    assert recording is not None
    other = torch.ones(4)
    (out,) = recording([other])
    ((grid, pair, written, *rest),) = kernel.compiled.calls
    assert (grid, rest) == ((3, 1, 1), [7, 16, True])
    assert pair[0] is other
    assert pair[1:] == (scratch.data_ptr(), None, 8)
    assert written is out


def test_no_kernel_of_a_chain_is_launched_past_a_recording() -> None:
    folder = Path(kernels.__file__).parent
    for file in [*(folder / "chain").glob("*.py"), *(folder / "slots").glob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            direct = isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
            assert not (direct and isinstance(node.func.slice, ast.Tuple)), f"{file.name}: {ast.unparse(node.func)}"


def test_what_is_refused_still_runs() -> None:
    verify, recordings, called = verifying(ChainRule.TOKEN, controls(), "triton"), Recordings(), []
    for seed in range(3):
        given = tensors_of(seed)
        (found,) = recordings(0, lambda given=given: called.append(0) or (verify(given).tokens + 1,), given)
        assert torch.equal(found - 1, verifying(ChainRule.TOKEN, controls(), "torch")(given).tokens)
    assert len(called) == 3
