"""Record what the plug-in relies on in versions of vLLM, from their wheels, without installing them.

    pip download --no-deps vllm==0.33.0 vllm==0.32.0 vllm==0.31.0 ...   # hundreds of MB each, one at a time
    python -m scripts.vllm_signatures vllm-0.33.0-*.whl ...

Each wheel's names go into tests/data/vllm_signatures.json; tests/integrations/vllm compares them with the plug-in's.
"""

from __future__ import annotations

import argparse
import ast
import json
import zipfile
from pathlib import Path

from draftproof.integrations.vllm import signatures

DATA = Path(__file__).parents[1] / "tests" / "data" / "vllm_signatures.json"


def found(source: str, path: str) -> list[str] | None:
    """The parameters of a function, or the fields of a class, in a module's source."""
    nodes: list[ast.stmt] = ast.parse(source).body
    node: ast.stmt | None = None
    for part in path.split("."):
        named = [each for each in nodes if isinstance(each, ast.FunctionDef | ast.ClassDef) and each.name == part]
        if not named:
            return None
        node = named[-1]
        nodes = node.body
    if isinstance(node, ast.ClassDef):
        return [
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        ]
    assert isinstance(node, ast.FunctionDef)
    arguments = node.args
    return [each.arg for each in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]


def signatures_of(wheel: Path) -> dict[str, list[str] | None]:
    """All names that the plug-in needs, in one wheel."""
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
        table = {}
        for name in signatures.V1 | signatures.V2:
            module, _, path = name.partition(":")
            stem = module.replace(".", "/")
            file = f"{stem}.py" if f"{stem}.py" in names else f"{stem}/__init__.py"
            table[name] = found(files.read(file).decode(), path) if file in names else None
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="Record signatures of vLLM from its wheels.")
    parser.add_argument("wheels", nargs="+", type=Path)
    table = {wheel.name.split("-")[1]: signatures_of(wheel) for wheel in parser.parse_args().wheels}
    DATA.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
