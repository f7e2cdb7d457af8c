"""Triton's interpreter in less time, with the same results.

It looks through the whole language for builtins at every call, checks integers for overflow and drops the result,
builds a table of types for every load, and reduces and scans one element at a time.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from triton import language as tl
from triton.language import core
from triton.language.core import is_builtin
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

# Types, shapes and constants: one object each, so that equal ones are the same


@cache
def extent(shape: tuple[int, ...]) -> tuple[Any, Any]:
    """A tensor's shape and number of elements as constants of the language."""
    return core.tuple([core.constexpr(size) for size in shape]), core.constexpr(int(np.prod(shape)))


SCALAR, _ = extent(())


def init_tensor(self: Any, handle: Any, type: Any) -> None:
    """tensor.__init__; tensors of one shape share what describes it."""
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = extent(tuple(type.shape) if type.is_block() else ())


BLOCKS: dict[tuple[str, tuple[int, ...]], Any] = {}


def new_block_type(cls: Any, element: Any, shape: Any) -> Any:
    """block_type.__new__; a block of the same elements and the same shape is the same type."""
    key = element.name, tuple(map(unwrap_constant, shape))
    if key not in BLOCKS:
        BLOCKS[key] = object.__new__(cls)
    return BLOCKS[key]


def init_block_type(self: Any, element: Any, shape: Any, slow: Any = core.block_type.__init__) -> None:
    if not vars(self):
        slow(self, element, shape)


PLAIN = {core.tensor, core.dtype, core.pointer_type, core.block_type, int, float, bool, str, type(None)}


def unwrap_constant(value: Any, slow: Any = core._unwrap_if_constexpr) -> Any:
    """core._unwrap_if_constexpr, asking for the frequent kinds first."""
    kind = type(value)
    return value if kind in PLAIN else value.value if kind is core.constexpr else slow(value)


def same_type(self: Any, other: Any, slow: Any = core.dtype.__eq__) -> bool:
    return self is other or slow(self, other)


def broadcast(self: Any, x: Any, y: Any, slow: Any = TritonSemantic.broadcast_impl_value) -> Any:
    return (x, y) if x.shape is y.shape else slow(self, x, y)


@cache
def constant(value: float, dtype: Any) -> Any:
    return interpreter.interpreter_semantic.scalar_constant(value, dtype)


# Builtins and operators


@cache
def builtins(package: Any) -> list[str]:
    """Which names are builtins does not change, only whether they are patched yet."""
    return [name for name, member in inspect.getmembers(package) if is_builtin(member)]


def patch_builtin(package: Any, builder: Any, scope: Any) -> None:
    for name in builtins(package):
        if is_builtin(member := getattr(package, name)):
            scope.set_attr(package, name, interpreted(member))


CHECKING = core.builtin(lambda: None).__code__  # of the wrapper that asks whether there is a semantic


@cache
def interpreted(member: Any) -> Callable[..., Any]:
    """The builtin with the interpreter's semantic."""
    semantic, plain = interpreter.interpreter_semantic, member.__wrapped__ if member.__code__ is CHECKING else member

    def call(*arguments: Any, **named: Any) -> Any:
        named["_semantic"] = semantic
        return plain(*arguments, **named)

    if member is core.where:
        return choose(call)
    return quick(*OPERATORS[member], call) if member in OPERATORS else call


FLOATS, INTEGERS = ("fp32", "fp64"), ("int32", "int64", "uint32", "uint64")
OPERATORS = {
    getattr(core.tensor, f"__{name}__"): (operator, kinds, False)
    for kinds, operators in (
        (INTEGERS + FLOATS, {"add": np.add, "sub": np.subtract, "mul": np.multiply}),
        (INTEGERS + FLOATS, {"lt": np.less, "le": np.less_equal, "eq": np.equal}),
        (INTEGERS + FLOATS, {"gt": np.greater, "ge": np.greater_equal, "ne": np.not_equal}),
        ((*INTEGERS, "int1"), {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}),
        (FLOATS, {"truediv": np.divide}),
    )
    for name, operator in operators.items()
} | {
    getattr(core.tensor, f"__r{name}__"): (operator, INTEGERS + FLOATS, True)
    for name, operator in {"add": np.add, "sub": np.subtract, "mul": np.multiply}.items()
}
COMPARISONS = (np.less, np.less_equal, np.equal, np.greater, np.greater_equal, np.not_equal)


def quick(operator: np.ufunc, kinds: tuple[str, ...], swapped: bool, slow: Callable[..., Any]) -> Callable[..., Any]:
    """The operator at once where there is nothing to cast: two numbers of one type, or a pointer and an offset, that
    have one shape or of which one is a scalar. Everything else goes the long way."""
    builder, compares, adds = interpreter.interpreter_builder, operator in COMPARISONS, operator is np.add

    def call(x: Any, y: Any) -> Any:
        dtype = x.dtype
        other = as_number(y, core.int32 if adds and dtype.is_ptr() else dtype)
        if type(other) is not core.tensor or not fits(x, other):
            return slow(x, y)
        if dtype is other.dtype and dtype.name in kinds:
            handles = (other.handle, x.handle) if swapped else (x.handle, other.handle)
            return made(builder.binary_op(*handles, operator), core.int1 if compares else dtype, x, other)
        if adds and dtype.is_ptr() and other.dtype.name in ("int32", "int64"):
            return made(builder.create_addptr(x.handle, other.handle), dtype, x, other)
        return slow(x, y)

    return call


def choose(slow: Callable[..., Any]) -> Callable[..., Any]:
    """`where` at once for a condition and values of one type and one shape, or of one shape and scalars."""

    def call(condition: Any, x: Any, y: Any) -> Any:
        first, second = unwrap_constant(x), unwrap_constant(y)
        if type(first) is core.tensor:
            second = as_number(second, first.dtype)
        elif type(second) is core.tensor:
            first = as_number(first, second.dtype)
        if not all(type(each) is core.tensor for each in (condition, first, second)):
            return slow(condition, x, y)
        alike = fits(condition, first) and fits(condition, second) and fits(first, second)
        if not alike or first.dtype is not second.dtype or condition.dtype is not core.int1:
            return slow(condition, x, y)
        handle = interpreter.interpreter_builder.create_select(condition.handle, first.handle, second.handle)
        return made(handle, first.dtype, first if second.shape is SCALAR else second, condition)

    return call


def as_number(value: Any, dtype: Any) -> Any:
    """A number of Python as a scalar of the type, where that is what the language makes of it."""
    value = unwrap_constant(value)
    if type(value) is int and dtype.name in INTEGERS + FLOATS and (value >= 0 or dtype.name[0] != "u"):
        return constant(value, dtype)
    if type(value) is float and dtype.name in FLOATS and (value or math.copysign(1, value) > 0):  # 0.0 == -0.0
        return constant(value, dtype)
    return value


def fits(x: Any, y: Any) -> bool:
    """Is there nothing to broadcast but a scalar?"""
    return x.shape is y.shape or x.shape is SCALAR or y.shape is SCALAR


def made(handle: Any, element: Any, x: Any, y: Any) -> Any:
    """The result of an operation on x and y."""
    shape = x.type if y.shape is SCALAR else y.type
    return core.tensor(handle, core.block_type(element, shape.shape) if shape.is_block() else element)


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


# Whole arrays


NUMPY = {
    element.name: interpreter._get_np_dtype(element)
    for element in vars(tl).values()
    if isinstance(element, tl.dtype) and element.name not in ("void", "fp4")
}


def numpy_type(dtype: Any) -> np.dtype[Any]:
    """interpreter._get_np_dtype, from a table that is made once."""
    element = dtype.element_ty if dtype.is_block() else dtype
    return np.dtype(np.uint64) if element.is_ptr() else NUMPY[element.name]


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
    patch.setattr(core.tensor, "__init__", init_tensor)
    patch.setattr(core.block_type, "__new__", new_block_type)
    patch.setattr(core.block_type, "__init__", init_block_type)
    patch.setattr(core.dtype, "__eq__", same_type)
    patch.setattr(core, "_unwrap_if_constexpr", unwrap_constant)
    patch.setattr(TritonSemantic, "broadcast_impl_value", broadcast)
    patch.setattr(interpreter.ReduceOps, "generic_reduce", reduce)
    patch.setattr(interpreter.ScanOps, "generic_scan", scan)
    patch.setattr(interpreter.InterpretedFunction, "__call__", call_device_function)
    patch.setattr(core, "_normalize_cache_policy", cache(core._normalize_cache_policy))
    patch.setattr(tl, "sort", sort)
