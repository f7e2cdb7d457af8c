"""Record the launches of a call, and make them again for other tensors.

Triton looks at every argument of every launch, and before it the host checks, plans and allocates: for a small batch
that takes longer than the kernels do. A recording keeps the compiled kernels and their arguments instead. Unlike a CUDA
graph it needs no copies: where an argument was an input of the call, it is the new input when the launches are made
again. Tensors that only the call knows stay as they are, so that a call must not rely on what an earlier one left in
them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from draftproof.kernels.lib import launching

Inputs = Sequence[Tensor | None]
Outputs = tuple[Tensor, ...]

MOST = 16  # recordings of one object; each holds the memory that its call allocated
MEMORY = ("empty", "empty_like", "empty_strided", "new_empty")  # what a call may do besides launches and views


class Launch(NamedTuple):
    """One launch of a kernel."""

    kernel: Any
    compiled: Any  # None in Triton's interpreter
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]  # by position, constants included
    options: dict[str, Any]  # what the compiler was told besides


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **named: Any) -> None:
    """`kernel[grid](...)`, in a way that can be recorded: pointers and numbers by position, constants by name."""
    if (recorder := _recorder.get()) is None:
        kernel[grid](*arguments, **named)
        return
    with recorder.paused():  # Triton's interpreter computes with PyTorch
        compiled = kernel[grid](*arguments, **named)
    constants = kernel.arg_names[len(arguments) :]
    options = {name: value for name, value in named.items() if name not in constants}
    every = (*arguments, *(named[name] for name in constants))
    recorder.launches.append(Launch(kernel, compiled, (*grid, 1, 1)[:3], every, options))


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of PyTorch's
    """Takes the launches of a call, and notices what PyTorch computes, which they alone would leave out."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches: list[Launch] = []
        self.computes = False
        self._paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self._paused and func.overloadpacket.__name__ not in MEMORY:
            self.computes |= not (func.is_view and _shares_memory(out, args[0]))
        return out

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._paused = True
        try:
            yield
        finally:
            self._paused = False


def _shares_memory(out: Any, tensor: Tensor) -> bool:
    """Whether tensors are views of this one; in inference mode `reshape` and the like call themselves views always."""
    each = (out,) if isinstance(out, Tensor) else out
    return all(one.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr() for one in each)


_recorder: ContextVar[_Recorder | None] = ContextVar("of the call that is being recorded", default=None)


class Recordings:
    """Calls that have been recorded, by what their launches depend on."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Recording | None] = {}
        self._once: set[Hashable] = set()  # called once: recording takes time, so only what comes again is recorded

    def __call__(self, key: Hashable, call: Callable[[], Outputs], inputs: Inputs) -> Outputs:
        """What the call returns. It depends on nothing but these inputs and `key`."""
        full = (key, *map(_kind, inputs))
        if (recording := self._known.get(full)) is not None:
            return recording(inputs)
        if full in self._known or full not in self._once:
            out = call()
            self._once.add(full)  # after the call, which may clear
            return out
        if len(self._known) == MOST:
            self.clear()
        out, self._known[full] = record(call, inputs)
        return out

    def clear(self) -> None:
        """Forget them, as when the memory is given back that they write to."""
        self._known.clear()
        self._once.clear()


def _kind(tensor: Tensor | None) -> Hashable:
    """What Triton compiles for, and more: multiples of 16 bytes are loaded in other ways."""
    if tensor is None:
        return None
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.data_ptr() % 16


class Recording(NamedTuple):
    """The launches of a call."""

    device: torch.device
    launches: list[tuple[Callable[..., object], Nested]]
    outputs: list[tuple[torch.Size, torch.dtype]]
    kept: list[Tensor]  # the memory behind the pointers that stay

    def __call__(self, inputs: Inputs) -> Outputs:
        """Make them again."""
        made = tuple(torch.empty(shape, dtype=dtype, device=self.device) for shape, dtype in self.outputs)
        given = (*inputs, *made)
        with launching.current(self.device):
            for run, arguments in self.launches:
                run(*arguments.filled(given))
        return made


def record(call: Callable[[], Outputs], inputs: Inputs) -> tuple[Outputs, Recording | None]:
    """What the call returns, and its recording; None where launches alone would not do the same again."""
    recorder = _Recorder()
    token = _recorder.set(recorder)
    try:
        with recorder:
            outputs = call()
    finally:
        _recorder.reset(token)
    places = _Places(inputs, outputs)
    known = [each for each in inputs if each is not None]
    again = [(_run(each), places.nested(each.arguments, each.compiled is not None)) for each in recorder.launches]
    if recorder.computes or places.unclear or not known or not places.written:
        return outputs, None
    return outputs, Recording(known[0].device, again, [(each.shape, each.dtype) for each in outputs], places.kept)


def _run(launch: Launch) -> Callable[..., object]:
    """Launches with arguments by position."""
    if launch.compiled is not None:
        run: Callable[..., object] = launch.compiled[launch.grid]
        return run
    return partial(launch.kernel[launch.grid], **launch.options)


class Nested(NamedTuple):
    """Arguments, of which some are tensors of the call at hand."""

    kind: Callable[[Any], Any]  # of tuple
    parts: list[Any]
    changes: list[tuple[int, int | Nested]]  # where, and which tensor or which parts in turn

    def filled(self, given: Sequence[Tensor | None]) -> Any:
        """With these tensors."""
        parts = self.parts.copy()
        for place, what in self.changes:
            parts[place] = given[what] if isinstance(what, int) else what.filled(given)
        return self.kind(parts)


class _Places:
    """Finds the inputs and outputs of a call among the arguments of its launches."""

    def __init__(self, inputs: Inputs, outputs: Outputs) -> None:
        given = list(enumerate([*inputs, *outputs]))
        tensors = [(number, each) for number, each in given if each is not None and each.numel()]
        self._numbers = {(each.data_ptr(), each.dtype): number for number, each in tensors}
        self._memory = {each.untyped_storage().data_ptr() for _, each in tensors}
        self._missing = set(range(len(inputs), len(given)))  # the outputs that no launch was given
        self.unclear = len(self._numbers) < len(tensors) or any(not _alone(each) for each in outputs)
        self.kept: list[Tensor] = []

    @property
    def written(self) -> bool:
        """Whether all outputs are arguments of a launch."""
        return not self._missing

    def nested(self, arguments: Any, compiled: bool) -> Nested:
        """Arguments as they are found again."""
        parts: list[Any] = list(arguments)
        changes: list[tuple[int, int | Nested]] = []
        for place, each in enumerate(parts):
            if isinstance(each, tuple):
                inner = self.nested(each, compiled)
                parts[place] = inner.kind(inner.parts)
                if inner.changes:
                    changes.append((place, inner))
            elif isinstance(each, Tensor):
                number = self._numbers.get((each.data_ptr(), each.dtype))
                if number is not None:
                    parts[place] = None  # a recording must not keep the inputs
                    changes.append((place, number))
                    self._missing.discard(number)
                    continue
                self.unclear |= each.untyped_storage().data_ptr() in self._memory
                self.kept.append(each)
                parts[place] = each.data_ptr() if compiled else each
        plain = compiled or type(arguments) is tuple  # the interpreter needs the names of named tuples
        return Nested(tuple if plain else type(arguments)._make, parts, changes)


def _alone(tensor: Tensor) -> bool:
    """Whether a tensor has its memory to itself."""
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize
