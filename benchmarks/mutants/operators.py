"""Operators over the syntax of Python: each changes one place as a slip of the hand would."""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.mutants.mutant import PACKAGE, Mutant

COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.Pow: ast.Mult,
}  # fmt: skip
OPPOSITES = {"min": "max", "argmin": "argmax", "minimum": "maximum", "any": "all", "left": "right"}
OPPOSITES |= {opposite: name for name, opposite in OPPOSITES.items()}
LANES = ("DRAFT", "STOP", "NEXT", "SELECT", "RACE")
# functions that take arguments in, report, or choose a shape
LEFT_ALONE = (
    "_draw",
    "_families",
    "__init__",
    "memory",
    "bytes",
    "learn",
    "_laws",
    "_shape",
    "grow",
    "best",
    "parse",
    "path",
)
SYMMETRIC = ("array_namespace", "min", "max", "maximum", "minimum", "result_type")  # in their arguments
MISUSED = ("isinstance", "getattr", "range", "zip")  # a call with swapped arguments would only raise
REPORTS = ("trace", "seconds", "_largest", "calls", "memo.rows")  # counted for people
MESSAGES = ("DraftproofError", "ValueError", "TypeError", "RuntimeError", "register", "Draw", "Table")


class Change(NamedTuple):
    """A node of the syntax and what takes its place; None removes a statement."""

    operator: str
    node: ast.expr | ast.stmt
    new: ast.AST | None


class Slip(NamedTuple):
    """A change and its lot: those with the smallest lots are taken."""

    lot: str
    file: str
    says: str
    change: Change

    def mutant(self, root: Path, area: str) -> Mutant:
        text = (root / PACKAGE / self.file).read_text(encoding="utf-8")
        node, operator = self.change.node, self.change.operator
        return Mutant(area, self.file, node.lineno, operator, self.says, _replaced(text, self.change))


def slips(root: Path, file: str, seed: int) -> list[Slip]:
    """All changes of a file.

    A lot depends on the seed and on the changed place alone, so that an edit elsewhere leaves the choice as it is.
    """
    seen: Counter[str] = Counter()
    found = []
    for scope, change in changes(ast.parse((root / PACKAGE / file).read_text(encoding="utf-8"))):
        old, new = ast.unparse(change.node), _new(change)
        if old == new:
            continue
        says = f"{scope}: {change.operator}, {_short(old)} -> {_short(new)}"
        seen[says] += 1
        says += f" ({seen[says]})" if seen[says] > 1 else ""
        found.append(Slip(hashlib.sha256(f"{seed} {file} {says}".encode()).hexdigest(), file, says, change))
    return found


def changes(tree: ast.Module) -> Iterator[tuple[str, Change]]:
    """Every change inside a function, with the function's name; what only words an error message is left alone."""
    for scope, function in _functions(tree, ""):
        for statement in function.body:
            for node in _own(statement):
                yield from ((scope, change) for change in _changes(node))


def _functions(tree: ast.AST, scope: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The outermost functions and methods, those inside being part of them."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef) and node.name in LEFT_ALONE:
            continue
        if isinstance(node, ast.FunctionDef):
            yield f"{scope}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{node.name}.")


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement that can change what is computed: no annotations, docstrings, errors or imports."""
    match statement:
        case ast.Expr(ast.Constant()) | ast.Raise() | ast.Assert() | ast.Import() | ast.ImportFrom():
            return
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop(0)
        match node:
            case (
                ast.Raise()
                | ast.Assert()
                | ast.Import()
                | ast.ImportFrom()
                | ast.Expr(ast.Constant())
                | ast.arguments()
            ):
                continue
            case ast.JoinedStr() | ast.keyword("axis" | "keepdims" | "copy" | "strict" | "dtype" | "device"):
                continue
            case ast.Call(ast.Name(name)) if name in MESSAGES:
                continue
            case ast.AnnAssign():
                yield node
                waiting += [node.value] if node.value is not None else []
                continue
        yield node
        waiting += ast.iter_child_nodes(node)


def _changes(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in COMPARED:
            if not (isinstance(right, ast.Constant) and isinstance(right.value, str)):
                yield Change("comparison", node, ast.Compare(left, [COMPARED[type(operator)]()], [right]))
        case ast.BoolOp(operator, values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield Change("boolean", node, ast.BoolOp(other, values))
        case ast.UnaryOp(ast.Not(), operand):
            yield Change("boolean", node, operand)
        case ast.UnaryOp(ast.USub(), operand) if not isinstance(operand, ast.Constant):
            yield Change("sign", node, operand)
        case ast.BinOp(left, operator, right) if type(operator) in COMPUTED:
            yield Change("dropped term", node, left)
            if not _is_zero(node) and not isinstance(left, ast.List):
                yield Change("arithmetic", node, ast.BinOp(left, COMPUTED[type(operator)](), right))
            if not (_is_zero(node) or _is_zero(left)) and not isinstance(operator, ast.Sub | ast.Div):
                yield Change("dropped term", node, right)
        case ast.Constant(bool(value)):
            yield Change("constant", node, ast.Constant(not value))
        case ast.Constant(int(value)):
            yield Change("constant", node, ast.Constant(value + 1))
            if value > 0:
                yield Change("constant", node, ast.Constant(value - 1))
        case ast.Constant(float(value)):
            yield Change("constant", node, ast.Constant(value / 2 if value else 0.5))
        case ast.Attribute(ast.Name("Lane"), lane):
            others = [name for name in LANES if name != lane]
            yield from (Change("lane", node, ast.Attribute(ast.Name("Lane"), other)) for other in others)
        case ast.Attribute(value, name) if name in OPPOSITES:
            yield Change("opposite", node, ast.Attribute(value, OPPOSITES[name]))
        case ast.Call():
            yield from _of_call(node)
        case ast.Subscript(value, ast.Name() | ast.Attribute() as index) if isinstance(node.ctx, ast.Load):
            less = ast.BinOp(index, ast.Sub(), ast.Constant(1))
            yield Change("index", node, ast.Subscript(value, less))
        case ast.If(test) | ast.While(test) if not isinstance(test, ast.UnaryOp):
            yield Change("boolean", test, ast.UnaryOp(ast.Not(), test))
        case ast.IfExp(test, body, orelse):
            yield Change("boolean", node, ast.IfExp(test, orelse, body))
        case ast.AugAssign() | ast.Expr(ast.Call()) | ast.Assign([ast.Subscript() | ast.Attribute()]):
            if not any(name in ast.unparse(node) for name in REPORTS):
                yield Change("removed statement", node, None)
        case ast.Continue() | ast.Break():
            yield Change("removed statement", node, None)


def _is_zero(node: ast.expr) -> bool:
    """x * 0: zeros of the kind that x is, where a plain zero would do as well."""
    return isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) and node.right.value == 0


def _of_call(call: ast.Call) -> Iterator[Change]:
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    if name in OPPOSITES and isinstance(call.func, ast.Name):
        yield Change("opposite", call.func, ast.Name(OPPOSITES[name]))
    if name in SYMMETRIC or name in MISUSED:
        return
    plain = [isinstance(argument, ast.Name | ast.Subscript | ast.BinOp | ast.Call) for argument in call.args]
    for i in range(len(call.args) - 1):
        if plain[i] and plain[i + 1]:
            swapped = copy.copy(call)
            swapped.args = [*call.args[:i], call.args[i + 1], call.args[i], *call.args[i + 2 :]]
            yield Change("swapped arguments", call, swapped)
    for i, keyword in enumerate(call.keywords):
        if keyword.arg == "axis":
            other = copy.copy(call)
            axis = 0 if ast.unparse(keyword.value) != "0" else -1
            other.keywords = [*call.keywords[:i], ast.keyword("axis", ast.Constant(axis)), *call.keywords[i + 1 :]]
            yield Change("axis", call, other)


def _new(change: Change) -> str:
    return "pass" if change.new is None else ast.unparse(change.new)


def _replaced(text: str, change: Change) -> str:
    """The text with a node's own letters exchanged. Columns of the syntax count bytes."""
    node, new = change.node, _new(change)
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    begin = starts[node.lineno - 1] + node.col_offset
    end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
    raw = text.encode()
    inside = f"({new})" if isinstance(node, ast.expr) and not new.replace("_", "a").isalnum() else new
    return (raw[:begin] + inside.encode() + raw[end:]).decode()


def _short(words: str) -> str:
    words = " ".join(words.split())
    return words if len(words) <= 80 else words[:60] + " ... " + words[-15:]
