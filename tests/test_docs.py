"""The docs are code: blocks run and print what the page says, commands parse, links resolve, nothing is stale."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import inspect
import io
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import typer

import draftproof
from draftproof.commands.cli import app
from draftproof.engine import generate as engine
from draftproof.sampling import Sampling
from draftproof.verify import VERIFIERS
from scripts import docs, figure

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")),
    *sorted((ROOT / "docs").glob("*.md")),
]
pages = pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])


class Block(NamedTuple):
    info: str  # the words after the fence: "python", "python no-run" (needs the model), "text output", "sh", ...
    body: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```(.*)\n((?:.*\n)*?)```$", text, flags=re.MULTILINE)
    return [Block(m[1].strip(), m[2], text[: m.start()].count("\n") + 2) for m in found]


# Python


@pages
def test_python_blocks_run_and_print_what_is_shown(page: Path) -> None:
    """The blocks of a page share one namespace; `text output` after a block is what that block prints."""
    namespace: dict[str, Any] = {"__name__": "page"}
    printed = None
    with mock.patch.dict(VERIFIERS):  # a page may register a verifier of its own
        for block in blocks(page):
            if block.info == "python":
                code = compile("\n" * (block.line - 1) + block.body, str(page), "exec")
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(code, namespace)
                printed = out.getvalue()
            elif block.info == "text output":
                assert printed is not None, f"line {block.line}: output without a block that prints it"
                assert block.body.splitlines() == [line.rstrip() for line in printed.splitlines()], f"line {block.line}"
                printed = None


@pages
def test_python_blocks_that_do_not_run_are_sound(page: Path) -> None:
    """What needs a fetched model is at least Python, its imports exist, and its calls take the settings given."""
    for block in blocks(page):
        if block.info == "python no-run":
            for node in ast.walk(ast.parse(block.body)):
                if isinstance(node, ast.ImportFrom):
                    module = importlib.import_module(node.module or "")
                    assert all(hasattr(module, name.name) for name in node.names)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
                    assert {keyword.arg for keyword in node.keywords} <= CALLS[node.func.id]


def keywords(*functions: Callable[..., Any]) -> set[str]:
    return {name for function in functions for name in inspect.signature(function).parameters}


SETTINGS = keywords(*(value for value in vars(engine).values() if inspect.isfunction(value)))  # they pass them on
CALLS = {"generate": SETTINGS, "stream": SETTINGS, "load": keywords(draftproof.load), "Sampling": keywords(Sampling)}


def test_few_blocks_are_left_out() -> None:
    kinds = [block.info for page in PAGES for block in blocks(page)]
    assert kinds.count("python no-run") < kinds.count("python") / 4
    assert {k for k in kinds if k.startswith("python")} == {"python", "python no-run"}


# Commands and links


def commands(page: Path) -> Iterator[list[str]]:
    for block in blocks(page):
        if block.info in ("sh", "console"):
            for line in block.body.splitlines():
                if block.info == "sh" or line.startswith("$ "):
                    yield shlex.split(line.removeprefix("$ "), comments=True)


@pages
def test_commands_parse(page: Path) -> None:
    subcommands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for words in commands(page):
        match words:
            case ["draftproof", name, *rest]:
                subcommands[name].make_context(name, rest)
            case ["make", *names]:
                assert set(names) <= set(targets), words
            case ["python", "-m", module, *_]:
                assert find_spec(module), words


def anchor(heading: str) -> str:
    """GitHub's name for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pages
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not link.startswith("https://"):
            path, _, place = link.partition("#")
            goal = (page.parent / path).resolve() if path else page
            assert goal.exists(), link
            if place:
                headings = re.findall(r"^#+ (.+)$", goal.read_text(encoding="utf-8"), flags=re.MULTILINE)
                assert place in map(anchor, headings), link


def test_every_page_can_be_reached_from_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    assert all(f"]({page.name})" in index for page in PAGES if page.parent == ROOT / "docs" and page.name != "index.md")


def test_sampling_page_has_every_control_with_its_default() -> None:
    shown = dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \|", (ROOT / "docs/sampling.md").read_text(), flags=re.MULTILINE))
    default = Sampling()
    assert shown == {field.name: repr(getattr(default, field.name)) for field in dataclasses.fields(Sampling)}


# What is derived

TEXT = (".py", ".md", ".svg", ".json", ".jsonl")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The repository's text files in a scratch folder, with everything derived up to date."""
    for folder in filter(lambda folder: (ROOT / folder).exists(), (*docs.FOLDERS, "docs")):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=_all_but_text)
    shutil.copy(ROOT / "README.md", tmp_path)
    docs.write(tmp_path)
    return tmp_path


def _all_but_text(folder: str, names: list[str]) -> list[str]:
    return [n for n in names if (Path(folder) / n).is_file() and Path(n).suffix not in TEXT]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def faster(root: Path) -> tuple[str, str]:
    """The demo's speculative row, and the same with another speed."""
    lines = (root / "benchmarks/results/engine-cpu.jsonl").read_text(encoding="utf-8").splitlines()
    found = [line for line in lines if '"bench": "demo"' in line and '"name": "draftproof block"' in line][-1]
    return found, re.sub(r'"(tokens_per_s|median)": [\d.]+', r'"\1": 987.0', found)


EDITS: dict[str, tuple[str, Callable[[Path], object]]] = {
    # what happens: (the files that are then stale, the edit)
    "a row is edited by hand": (
        "docs/algorithms.md",
        lambda root: edit(root / "docs/algorithms.md", "`block`", "`bloc`"),
    ),
    "a folder's docstring changes": (
        "docs/files.md README.md",
        lambda root: edit(root / "src/draftproof/verify/__init__.py", '"""', '"""Really, '),
    ),
    "a docstring changes": (
        "docs/files.md",
        lambda root: edit(root / "src/draftproof/verify/block.py", '"""', '"""Really, '),
    ),
    "a file is added": (
        "docs/files.md",
        lambda root: (root / "src/draftproof/verify/new.py").write_text('"""New."""\n'),
    ),
    "an audit is recorded anew": (
        "docs/audit.md",
        lambda root: edit(root / "benchmarks/results/audit.json", '"exact": true', '"exact": false'),
    ),
    "an engine is audited anew": (
        "docs/engines.md docs/engine-cards.html",
        lambda root: edit(root / "benchmarks/results/engines.json", '"exact so far"', '"not exact"'),
    ),
    "a speed is recorded anew": (
        "docs/performance.md README.md docs/figures/speed.svg",
        lambda root: edit(root / "benchmarks/results/engine-cpu.jsonl", *faster(root)),
    ),
    "a text is recorded anew": (
        "docs/figures/text.svg",
        lambda root: edit(root / "benchmarks/results/text.json", '"corrected"', '"accepted"'),
    ),
    "an option is edited by hand": (
        "docs/command-line.md",
        lambda root: edit(root / "docs/command-line.md", "`--draft-length`", "`--length-of-draft`"),
    ),
    "a metric is edited by hand": (
        "docs/metrics.md",
        lambda root: edit(root / "docs/metrics.md", "| `draftproof_rows`", "| `draftproof_lines`"),
    ),
    "a page is added": ("docs/index.md", lambda root: (root / "docs/new.md").write_text("# New\n\nA new page.\n")),
    "the table is lost": ("docs/algorithms.md", lambda root: (root / "docs/algorithms.md").unlink()),
    "the figure shows other numbers": (figure.PATH, lambda root: edit(root / figure.PATH, '"1/4"', '"1/5"')),
    "the figure is lost": (figure.PATH, lambda root: (root / figure.PATH).unlink()),
}


def test_what_is_stale_is_found_and_mended(copy: Path) -> None:
    assert docs.stale(copy) == []
    for name, (stale, change) in EDITS.items():
        change(copy)
        assert docs.stale(copy) == [copy / page for page in stale.split()], name
        docs.write(copy)
        assert docs.stale(copy) == [], name


def test_every_algorithm_has_its_row() -> None:
    rows = re.findall(r"^\| \[?`(\w+)`", docs.algorithms(), flags=re.MULTILINE)
    assert sorted(rows) == sorted([*VERIFIERS, *docs.DRAWS, *docs.COUPLINGS, *docs.LOSSY])


def test_check_names_the_file_and_writes_nothing(copy: Path) -> None:
    page = copy / "docs/algorithms.md"
    edit(page, "`block`", "`bloc`")
    before = page.read_text()
    command = [sys.executable, "-m", "scripts.docs", "--check", "--root", str(copy)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stderr.strip() == "docs/algorithms.md is stale: run `make docs`"
    assert page.read_text() == before


def test_lost_markers_are_named(copy: Path) -> None:
    edit(copy / "README.md", "<!-- /tree -->", "")
    with pytest.raises(SystemExit, match=r"README\.md has lost its markers"):
        docs.stale(copy)


def test_capture_records_what_the_command_prints(copy: Path) -> None:
    readme = copy / "README.md"
    text = readme.read_text(encoding="utf-8")
    command = f"{Path(sys.executable).name} -c \"print('a text')\""
    readme.write_text(re.sub(r"(?<=```console\n)\$ .+", lambda _: f"$ {command}", text), encoding="utf-8")
    docs.capture(readme)
    run = docs.filled(readme, {"run": f"```console\n$ {command}\na text\n```\n"})
    assert readme.read_text(encoding="utf-8") == run
    assert docs.stale(copy) == []


def test_figure_is_the_same_every_time() -> None:
    assert figure.draw() == figure.draw()


def test_the_changelog_names_modules_that_exist() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    moved = re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|$", text, flags=re.MULTILINE)
    assert moved
    for _, now in moved:
        assert (ROOT / "src" / now.replace(".", "/")).with_suffix(".py").is_file(), now
