"""Triton's interpreter in less time, with the same results.

It looks through the whole language for builtins at every call, checks integers for overflow and drops the result,
builds a table of types for every load, and reduces and scans one element at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from triton import language as tl
from triton.language import core
from triton.language.core import is_builtin
from triton.runtime import interpreter


@cache
def builtins(package: Any) -> list[str]:
    """Which names are builtins does not change, only whether they are patched yet."""
    return [name for name, member in inspect.getmembers(package) if is_builtin(member)]


def unwrap_constant(value: Any, slow: Callable[[Any], Any] = core._unwrap_if_constexpr) -> Any:
    """core._unwrap_if_constexpr, asking for the frequent kinds first."""
    kind = type(value)
    return value if kind in PLAIN else value.value if kind is core.constexpr else slow(value)


PLAIN = {core.tensor, int, float, bool, str, type(None)}


def patch_builtin(package: Any, builder: Any, scope: Any) -> None:
    for name in builtins(package):
        if is_builtin(member := getattr(package, name)):
            scope.set_attr(package, name, interpreted(member))


CHECKING = core.builtin(lambda: None).__code__  # of the wrapper that asks whether there is a semantic


@cache
def interpreted(member: Callable[..., Any]) -> Callable[..., Any]:
    """The builtin with the interpreter's semantic."""
    plain, semantic = (
        inspect.unwrap(member, stop=lambda f: f.__code__ is not CHECKING),
        interpreter.interpreter_semantic,
    )

    def call(*arguments: Any, **named: Any) -> Any:
        named["_semantic"] = semantic
        return plain(*arguments, **named)

    return quick(OPERATORS[member], call) if member in OPERATORS else call


OPERATORS = {
    core.tensor.__add__: np.add,
    core.tensor.__sub__: np.subtract,
    core.tensor.__mul__: np.multiply,
    core.tensor.__lt__: np.less,
    core.tensor.__le__: np.less_equal,
    core.tensor.__gt__: np.greater,
    core.tensor.__ge__: np.greater_equal,
    core.tensor.__eq__: np.equal,
    core.tensor.__ne__: np.not_equal,
}
ARITHMETIC = (np.add, np.subtract, np.multiply)
NUMBERS = {"int32": (int,), "int64": (int,), "fp32": (int, float), "fp64": (int, float)}


def quick(operator: np.ufunc, slow: Callable[..., Any]) -> Callable[..., Any]:
    """The operator at once where there is nothing to cast: two numbers of one type, or a pointer and an offset, that
    have one shape or of which one is a scalar. Everything else goes the long way."""
    compares, builder = operator not in ARITHMETIC, interpreter.interpreter_builder

    def call(x: Any, y: Any) -> Any:
        y = unwrap_constant(y)
        dtype = x.dtype
        pointer = operator is np.add and dtype.is_ptr()
        if type(y) in (int, float) and type(y) in NUMBERS.get("int32" if pointer else dtype.name, ()):
            y = constant(y, core.int32 if pointer else dtype)
        if type(y) is not core.tensor or not (x.shape is y.shape or x.shape is SCALAR or y.shape is SCALAR):
            return slow(x, y)
        if pointer and y.dtype.name in ("int32", "int64"):
            handle = builder.create_addptr(x.handle, y.handle)
        elif dtype is y.dtype and dtype.name in NUMBERS:
            handle = builder.binary_op(x.handle, y.handle, operator)
        else:
            return slow(x, y)
        shape = x.type if y.shape is SCALAR else y.type
        if compares or (pointer and shape is not x.type):
            element = core.int1 if compares else dtype
            shape = core.block_type(element, shape.shape) if shape.is_block() else element
        return core.tensor(handle, shape)

    return call


@cache
def constant(value: float, dtype: Any) -> Any:
    return interpreter.interpreter_semantic.scalar_constant(value, dtype)


NUMPY = {
    element.name: interpreter._get_np_dtype(element)
    for element in vars(tl).values()
    if isinstance(element, tl.dtype) and element.name not in ("void", "fp4")
}  # fmt: skip


def numpy_type(dtype: Any) -> np.dtype[Any]:
    """interpreter._get_np_dtype, from a table that is made once."""
    element = dtype.element_ty if dtype.is_block() else dtype
    return np.dtype(np.uint64) if element.is_ptr() else NUMPY[element.name]


@cache
def extent(shape: tuple[int, ...]) -> tuple[Any, Any]:
    """A tensor's shape and number of elements as constants of the language."""
    return core.tuple([core.constexpr(size) for size in shape]), core.constexpr(int(np.prod(shape)))


SCALAR, _ = extent(())


def make_tensor(self: Any, handle: Any, type: Any) -> None:
    """tensor.__init__; tensors of one shape share what describes it."""
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = extent(tuple(type.shape) if type.is_block() else ())


def combined(operation: Any, types: list[Any], left: list[np.ndarray], right: list[np.ndarray]) -> list[np.ndarray]:
    """The combining function of a reduction or a scan, for many elements at once."""
    blocks = [
        operation.to_tensor(part, dtype) for side in (left, right) for part, dtype in zip(side, types, strict=True)
    ]
    result = operation.combine_fn.fn(*blocks)
    result = result if isinstance(result, tuple) else (result,)
    return [part.handle.data.astype(numpy_type(dtype)) for part, dtype in zip(result, types, strict=True)]


def reduce(self: Any, inputs: Any) -> list[Any]:
    """Neighbours are combined until one is left; sizes are powers of two."""
    blocks, axis = self.unravel(inputs, self.axis)
    types, parts = [block.dtype for block in blocks], [np.moveaxis(block.handle.data, axis, 0) for block in blocks]
    while len(parts[0]) > 1:
        parts = combined(self, types, [part[::2] for part in parts], [part[1::2] for part in parts])
    if self.keep_dims:
        rank = inputs[0].handle.data.ndim
        parts = [np.moveaxis(part, 0, axis) if self.axis is not None else part.reshape([1] * rank) for part in parts]
    else:
        parts = [part[0] for part in parts]
    return [self.to_tensor(part, dtype) for part, dtype in zip(parts, types, strict=True)]


def scan(self: Any, blocks: Any) -> list[Any]:
    """Each element is combined with what stands 1, 2, 4, ... before it."""
    types = [block.dtype for block in blocks]
    parts = [np.moveaxis(block.handle.data, self.axis, 0).copy() for block in blocks]
    step = 1
    while step < len(parts[0]):
        later = combined(self, types, [np.roll(part, step, 0) for part in parts], parts)
        for part, new in zip(parts, later, strict=True):
            part[step:] = new[step:]
        step *= 2
    return [self.to_tensor(np.moveaxis(part, 0, self.axis), dtype) for part, dtype in zip(parts, types, strict=True)]


@cache
def languages(function: Any) -> list[Any]:
    """The modules of the language that a function refers to."""
    return [value for value in function.__globals__.values() if value is tl or value is core]


def call_device_function(self: Any, *arguments: Any, **named: Any) -> Any:
    """InterpretedFunction.__call__, which would patch the language again where it is patched already."""
    if any(is_builtin(language.load) for language in languages(self.fn)):
        interpreter._patch_lang(self.fn)
    try:
        return self.rewrite()(*arguments, **named)
    except Exception as error:
        raise interpreter.InterpreterError(repr(error)) from error


def sort(x: Any, descending: bool) -> Any:
    """By numpy, not by dozens of steps on arrays of as many dimensions."""
    found = np.sort(x.handle.data)[:: -1 if descending else 1].copy()
    return tl.tensor(interpreter.TensorHandle(found, x.handle.dtype), x.type)


def hurry(patch: pytest.MonkeyPatch) -> None:
    """Put all of this in place."""
    options = interpreter.InterpreterOptions(sanitize_overflow=False)  # without `debug` nobody sees what it finds
    patch.setattr(interpreter.interpreter_builder, "options", options)
    patch.setattr(interpreter, "_patch_builtin", patch_builtin)
    patch.setattr(interpreter, "_get_np_dtype", numpy_type)
    patch.setattr(core.tensor, "__init__", make_tensor)
    patch.setattr(core, "_unwrap_if_constexpr", unwrap_constant)
    patch.setattr(interpreter.ReduceOps, "generic_reduce", reduce)
    patch.setattr(interpreter.ScanOps, "generic_scan", scan)
    patch.setattr(interpreter.InterpretedFunction, "__call__", call_device_function)
    patch.setattr(core, "_normalize_cache_policy", cache(core._normalize_cache_policy))
    patch.setattr(tl, "sort", sort)
