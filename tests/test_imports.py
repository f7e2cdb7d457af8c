"""Which folder may import which: the directions of docs/architecture.md, read from the syntax of every file.

Imports inside functions count like those at the top. Each direction is a function from files to violations, and a
file written to break it shows that it is caught.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = ("audit", "bench", "commands", "distill", "integrations", "limits", "server")
FOLDERS = (*TOOLS, "couple", "engine", "kernels", "lossy", "models", "native", "theory", "verify")
FRONT = ("__init__.py", "__main__.py")  # the package's face: hands on what others define


@dataclass(frozen=True)
class File:
    """A source file and its path: from the package's folder, or from the parent of tests."""

    path: str
    text: str = field(repr=False)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def folder(self) -> str:
        """The first folder of the path; "" for the modules at the root."""
        return self.path.partition("/")[0] if "/" in self.path else ""

    def within(self, *places: str) -> bool:
        """Is it one of these files or folders, or in one?"""
        return any(self.path.removesuffix(".py") == place or self.path.startswith(f"{place}/") for place in places)

    @cached_property
    def imports(self) -> list[str]:
        """Dotted names, of what is imported from a module too: draftproof.law.sample."""
        return list(self._imports())

    def _imports(self) -> Iterator[str]:
        for node in self.nodes:
            match node:
                case ast.Import(names):
                    yield from (alias.name for alias in names)
                case ast.ImportFrom(module, names, level):
                    above = ["draftproof", *self.path.split("/")][:-level] if level else []
                    yield from (".".join(filter(None, [*above, module, alias.name])) for alias in names)
                case ast.Call(ast.Name(called) | ast.Attribute(attr=called), [ast.Constant(str(name))]):
                    yield from [name] if called == "import_module" else []

    def imports_of(self, *packages: str) -> list[str]:
        return sorted({name for name in self.imports if any(f"{name}.".startswith(f"{p}.") for p in packages)})


def read(folder: Path, above: Path) -> list[File]:
    return [File(path.relative_to(above).as_posix(), path.read_text()) for path in sorted(folder.rglob("*.py"))]


PACKAGE = read(ROOT / "src" / "draftproof", ROOT / "src" / "draftproof")
TESTS = read(ROOT / "tests", ROOT)


def ours(file: File) -> list[tuple[str, str]]:
    """What a file imports of the package: the folder, "" for the root's modules, and the whole name."""
    names = [(name.split("."), name) for name in file.imports_of("draftproof")]
    return [(parts[1] if len(parts) > 1 and parts[1] in FOLDERS else "", name) for parts, name in names]


# The directions


def root_imports_root(files: list[File]) -> list[str]:
    """draft, law, noise, sampling and the others at the root import only each other."""
    core = [file for file in files if file.folder == "" and file.path not in FRONT]
    return [f"{file.path} imports {name}" for file in core for folder, name in ours(file) if folder]


def kernels_import_the_core(files: list[File]) -> list[str]:
    """kernels and native import the root and verify, and themselves."""
    return [
        f"{file.path} imports {name}"
        for file in files
        if file.folder in ("kernels", "native")
        for folder, name in ours(file)
        if folder not in ("", "verify", file.folder)
    ]


def backends_import_layers(files: list[File]) -> list[str]:
    """Only models/llama/backends imports layers in C or Triton; engine/eager imports laws and draws in C."""
    return [
        f"{file.path} imports {name}"
        for file in files
        if not file.within("models/llama/backends", "native", "kernels/llama")
        for name in file.imports_of("draftproof.native", "draftproof.kernels.llama")
        if not (file.within("engine/eager") and name == "draftproof.native.step")
    ]


GENERIC = ("dict", "list", "tuple")  # dict[str, int](...) is no launch


def launches_in_kernels(files: list[File]) -> list[str]:
    """`kernel[grid](...)` is written only inside kernels/."""
    kernels = {
        node.name
        for file in files
        for node in file.nodes
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(mark) for mark in node.decorator_list)
    }
    found = []
    for file in files:
        for node in file.nodes if not file.within("kernels") else ():
            match node:
                case ast.Call(ast.Subscript(ast.Name(name) | ast.Attribute(attr=name), grid)):
                    if name in kernels or (isinstance(grid, ast.Tuple) and name not in GENERIC):
                        found.append(f"{file.path} launches {name}")
    return found


def steppers_are_apart(files: list[File]) -> list[str]:
    """engine/eager and engine/graph never import each other, and of engine only graph imports kernels."""
    apart = {"engine/eager": "draftproof.engine.graph", "engine/graph": "draftproof.engine.eager"}
    found = [
        f"{file.path} imports {name}"
        for place, other in apart.items()
        for file in files
        if file.within(place)
        for name in file.imports_of(other)
    ]
    found += [
        f"{file.path} imports {name}"
        for file in files
        if file.within("engine") and not file.within("engine/graph")
        for name in file.imports_of("draftproof.kernels")
    ]
    return found


TOOL_OF = {"serve": "server"}  # commands that are not named like their tool


def tools_import_the_engine(files: list[File]) -> list[str]:
    """A tool uses public names of engine's own modules, or what a package inside engine exports, and no other tool.

    A command may import the tool that it is the command of. Nobody but the package's face imports a tool.
    """
    engine = {f"draftproof.engine.{name}": exported(files, f"engine/{name}") for name in ("eager", "graph", "tuning")}
    public = {f"{package}.{name}" for package, names in engine.items() for name in names}
    found = []
    for file in files:
        if file.folder in TOOLS:
            names = [name for name in file.imports_of("draftproof.engine") if "._" in name]
            names += [name for name in file.imports_of(*engine) if name not in public]
            found += [f"{file.path} imports {name}" for name in names]
        if file.path not in FRONT:
            stem = Path(file.path).stem
            mine = {file.folder, TOOL_OF.get(stem, stem) if file.folder == "commands" else file.folder}
            found += [f"{file.path} imports {name}" for folder, name in ours(file) if folder in {*TOOLS} - mine]
    return found


def exported(files: list[File], package: str) -> list[str]:
    """A package's __all__."""
    (init,) = (file for file in files if file.path == f"{package}/__init__.py")
    for node in init.nodes:
        match node:
            case ast.Assign([ast.Name("__all__")], names):
                return list(ast.literal_eval(names))
    return []


def package_imports_no_script(files: list[File]) -> list[str]:
    """src imports nothing of benchmarks, scripts or tests."""
    return [
        f"{file.path} imports {name}" for file in files for name in file.imports_of("benchmarks", "scripts", "tests")
    ]


# What is not ours: objects of transformers, and attributes of its networks and of arrays of either library.
FOREIGN = ("config", "processor", "tokenizer", "torch", "transformers", "warper")
FOREIGN_ATTRIBUTES = ("_is_stateful", "eos_token_id", "generation_config")
ARRAY_ATTRIBUTES = ("shape", "cpu", "device", "numpy", "tolist", "topk", "exp_")


def contracts_are_not_probed(files: list[File]) -> list[str]:
    """No hasattr, and no getattr with a default, on models or sessions outside models/base.py."""
    found = []
    for file in files:
        for node in file.nodes if file.path != "models/base.py" else ():
            match node:
                case ast.Call(ast.Name("hasattr"), [asked, name]) | ast.Call(ast.Name("getattr"), [asked, name, _]):
                    attribute = name.value if isinstance(name, ast.Constant) else ast.unparse(name)
                    foreign = attribute in (*FOREIGN_ATTRIBUTES, *ARRAY_ATTRIBUTES)
                    if not foreign and ast.unparse(asked).rpartition(".")[2] not in FOREIGN:
                        found.append(f"{file.path} asks {ast.unparse(asked)} for {attribute}")
    return found


def types_are_named_once(files: list[File]) -> list[str]:
    """No two public classes of the package have the same name."""
    names = [(node.name, file.path) for file in files for node in file.tree.body if isinstance(node, ast.ClassDef)]
    times = Counter(name for name, _ in names if not name.startswith("_"))
    return [f"{path} defines {name} again" for name, path in names if times[name] > 1]


def no_test_imports_another(files: list[File]) -> list[str]:
    """Test modules share helpers through tests/support and conftest.py, not through each other."""
    return [f"{file.path} imports {name}" for file in files for name in file.imports if f".{name}".count(".test_")]


Direction = Callable[[list[File]], list[str]]

# What breaks each direction: a path and its text.
BROKEN: list[tuple[Direction, str, str]] = [
    (root_imports_root, "law.py", "from draftproof.verify import token"),
    (root_imports_root, "draft.py", "def f():\n    from draftproof import engine"),
    (kernels_import_the_core, "kernels/lib/new.py", "from draftproof.models.base import Model"),
    (kernels_import_the_core, "native/new.py", "import draftproof.kernels.types"),
    (backends_import_layers, "models/hf.py", "from draftproof import native"),
    (backends_import_layers, "models/hf.py", "from draftproof.native import step"),
    (backends_import_layers, "engine/eager/new.py", "from draftproof.native import layers"),
    (backends_import_layers, "engine/graph/new.py", "def f():\n    from draftproof.kernels.llama.gemv import product"),
    (backends_import_layers, "models/static/new.py", "from draftproof.kernels import llama"),
    (launches_in_kernels, "models/static/new.py", "from draftproof.kernels.lib.timer import now\nnow[(1,)](x)"),
    (launches_in_kernels, "engine/graph/new.py", "def f(grid):\n    lib.now[grid](x)"),
    (steppers_are_apart, "engine/eager/new.py", "from draftproof.engine.graph import step"),
    (steppers_are_apart, "engine/graph/new.py", "from draftproof.engine import eager"),
    (steppers_are_apart, "engine/eager/new.py", "from draftproof import kernels"),
    (steppers_are_apart, "engine/new.py", "from draftproof.kernels.types import Fault"),
    (tools_import_the_engine, "audit/new.py", "from draftproof.engine.eager.rows import Row"),
    (tools_import_the_engine, "bench/new.py", "def f():\n    from draftproof.engine.eager import step"),
    (tools_import_the_engine, "limits/new.py", "from draftproof.engine.generate import _choose"),
    (tools_import_the_engine, "distill/new.py", "def f():\n    from draftproof.bench import rows"),
    (tools_import_the_engine, "commands/generate.py", "from draftproof.audit import read"),
    (tools_import_the_engine, "engine/new.py", "from draftproof.commands.options import numbers"),
    (package_imports_no_script, "bench/new.py", "import benchmarks.kernels"),
    (package_imports_no_script, "verify/new.py", "def f():\n    from tests.support import gof"),
    (package_imports_no_script, "bench/new.py", "import importlib\nimportlib.import_module('scripts.docs')"),
    (contracts_are_not_probed, "engine/eager/new.py", "if hasattr(session, 'chain'):\n    pass"),
    (contracts_are_not_probed, "models/new.py", "taps = getattr(draft, 'taps', ())"),
    (types_are_named_once, "verify/new.py", "class Tree: pass"),
    (no_test_imports_another, "tests/engine/test_new.py", "from tests.engine.test_generate import table"),
    (no_test_imports_another, "tests/engine/test_new.py", "def f():\n    from tests.engine import test_generate"),
]

DIRECTIONS = list(dict.fromkeys(direction for direction, _, _ in BROKEN))


def held_over(direction: Direction) -> list[File]:
    return TESTS if direction is no_test_imports_another else PACKAGE


@pytest.mark.parametrize("direction", DIRECTIONS, ids=lambda direction: direction.__name__)
def test_directions_hold(direction):
    assert direction(held_over(direction)) == []


@pytest.mark.parametrize(("direction", "path", "text"), BROKEN, ids=[f"{d.__name__}-{p}" for d, p, _ in BROKEN])
def test_a_violation_is_caught(direction, path, text):
    others = [file for file in held_over(direction) if file.path != path]
    assert set(direction([*others, File(path, text)])) - set(direction(others))
