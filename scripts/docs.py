"""Everything in the docs that can be derived is derived: `python -m scripts.docs` writes it, `--check` finds it stale.

Derived are docs/algorithms.md (from the registries), docs/performance.md, docs/engine-cards.html, tables in
docs/audit.md, drafters.md, engines.md, exactness.md, gpu.md and vllm.md and the speeds in the README (from the rows of
the benchmarks), the options in docs/command-line.md (from the command line), the table of docs/metrics.md (from the
metrics), docs/files.md and the folders in the README (from the modules' docstrings), the list of pages in docs/index.md
(from their first lines), and the figures. `--capture` runs the README's command again and records what it printed; no
check does that, because it needs the model and its timings are never the same twice.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks import drafters, heads, vllm_device, vllm_engine
from benchmarks.device import table as device_table
from benchmarks.load import peers
from draftproof.couple import COUPLINGS
from draftproof.draws import DRAWS
from draftproof.lossy import LOSSY
from draftproof.server.metrics import Metrics
from draftproof.verify import VERIFIERS
from scripts import (
    audit,
    command_line,
    engines,
    figure,
    figure_limits,
    grammar,
    mutants,
    performance,
    picture_speed,
    picture_text,
)

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 120
FOLDERS = ("src/draftproof", "tests", "benchmarks", "scripts")
FIGURES = (figure, figure_limits)  # of numbers that the library computes
PICTURES = (picture_text, picture_speed)  # of recorded rows
FILES = (
    "# Files\n\nEvery Python file with code in it and what it is about, from the first line of its docstring. C is in "
    "`src/draftproof/native`,\nthe JavaScript of the server's page in `src/draftproof/server/page`.\n\n"
)
PAGES = (
    "how-it-works python command-line chat server models gpu troubleshooting sampling drafters algorithms metrics "
    "exactness audit engines limits acceptance performance kernels vllm architecture files"
)
READING_ORDER = tuple(f"{name}.md" for name in PAGES.split())  # as in mkdocs.yml
SHAPES = {
    "chain": "One path",
    "star": "Several candidates for one token",
    "paths": "Several separate paths",
    "any": "Any tree",
}


LEFT_OUT = (
    ("greedy block verification", "2403.10444", "accepts more in one step, but the next steps must follow a changed "
     "target: over a whole text it yields fewer tokens per call than `block`"),
    ("hierarchical verification (HSD)", "2601.05724", "with capped ratios it is `block`; in its authors' code the "
     "ratios are not capped over the whole block, and it is not exact"),
    ("SpecHub", "2411.05289", "its pair of candidates is that of `top_plus_one` with two candidates"),
    ("Global Resolution", "2511.15898", "reaches the optimum that `optimal` has in closed form"),
    ("trees grown by the drafter's probabilities", "2406.16858, 2406.17276, 2410.11744", "exact with `match`, or with "
     "`traversal` if every draw is kept; here all texts of a step share one tree"),
    ("draft probabilities summed over tokenisations (SLRS)", "2502.05202", "needs all spellings of a token in the "
     "drafter's vocabulary; `text:MODEL` and shared tokens do not"),
    ("arithmetic sampling", "2210.15458", "its samples are more diverse, and therefore not independent"),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.docs", description="Write the derived parts of the docs.")
    parser.add_argument("--check", action="store_true", help="write nothing; name what is stale and exit with 1")
    parser.add_argument("--capture", action="store_true", help="also run the README's command and record its output")
    parser.add_argument("--root", type=Path, default=ROOT, help="repository to work on")
    options = parser.parse_args()
    if options.capture:
        capture(options.root / "README.md")
    old = stale(options.root)
    if options.check:
        for path in old:
            print(f"{path.relative_to(options.root)} is stale: run `make docs`", file=sys.stderr)
        sys.exit(1 if old else 0)
    write(options.root)


def stale(root: Path) -> list[Path]:
    """The files that are not what they would be if written now."""
    old = [path for path, text in pages(root) if not path.exists() or path.read_text(encoding="utf-8") != text]
    for picture, numbers, _ in pictures(root):
        if not picture.exists() or figure.numbers_in(picture.read_text(encoding="utf-8")) != numbers:
            old.append(picture)
    return old


def write(root: Path) -> None:
    """Bring every derived file up to date."""
    for path, text in pages(root):
        path.write_text(text, encoding="utf-8")
    for picture, _, draw in pictures(root):
        picture.parent.mkdir(exist_ok=True)
        picture.write_text(draw(), encoding="utf-8")


def pages(root: Path) -> Iterator[tuple[Path, str]]:
    """Each derived page and its text."""
    docs = root / "docs"
    yield docs / "algorithms.md", algorithms()
    yield docs / "performance.md", performance.page(root)
    commands = {"commands": command_line.sections()}
    yield docs / "command-line.md", filled(docs / "command-line.md", commands)
    tables = {"measured": drafters.table(root), "same texts": heads.table(root)}
    yield docs / "drafters.md", filled(docs / "drafters.md", tables)
    yield docs / "gpu.md", filled(docs / "gpu.md", {"device": device_table.page_table(root)})
    yield docs / "audit.md", filled(docs / "audit.md", {"engines": audit.table(root)})
    yield docs / "exactness.md", filled(docs / "exactness.md", {"mutants": mutants.score(root)})
    yield docs / "engines.md", filled(docs / "engines.md", {"engines": engines.table(root)})
    yield docs / engines.PAGE, engines.page(root)
    in_vllm = {"measured": vllm_engine.table(root), "device": vllm_device.table(root)}
    yield docs / "vllm.md", filled(docs / "vllm.md", in_vllm)
    yield docs / "server.md", filled(docs / "server.md", {"vllm": peers.table(root)})
    yield docs / "sampling.md", filled(docs / "sampling.md", {"measured": grammar.measured(root)})
    yield docs / "metrics.md", filled(docs / "metrics.md", {"metrics": metrics()})
    yield docs / "files.md", FILES + tree(root)
    yield (
        docs / "architecture.md",
        filled(docs / "architecture.md", {"step": source_of(root, "engine/eager/step.py", "step")}),
    )
    yield docs / "index.md", filled(docs / "index.md", {"pages": contents(docs)})
    parts = {"speed": performance.headline(root), "tree": tree(root, FOLDERS[:1], deep=False)}
    yield root / "README.md", filled(root / "README.md", parts)


def pictures(root: Path) -> Iterator[tuple[Path, Any, Callable[[], str]]]:
    """Each figure, the numbers it shows, and how it is drawn."""
    for figured in FIGURES:
        yield root / figured.PATH, figured.numbers(), figured.draw
    for pictured in PICTURES:
        yield root / pictured.PATH, pictured.numbers(root), partial(pictured.draw, root)


def source_of(root: Path, file: str, name: str) -> str:
    """A function's own code, as a block of a page."""
    text = (root / "src/draftproof" / file).read_text(encoding="utf-8")
    (function,) = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name)
    lines = text.splitlines()[function.lineno - 1 : function.end_lineno]
    return "\n".join(["```python no-run", *lines, "```", ""])


def filled(page: Path, parts: Mapping[str, str]) -> str:
    """The page's text with each part between its markers `<!-- name -->` and `<!-- /name -->`."""
    text = page.read_text(encoding="utf-8")
    for name, body in parts.items():
        head, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, tail = rest.partition(f"<!-- /{name} -->\n")
        if not begin or not end:
            raise SystemExit(f"{page.name} has lost its markers <!-- {name} --> and <!-- /{name} -->: put them back")
        text = head + begin + body + end + tail
    return text


# The table of algorithms


def algorithms() -> str:
    """docs/algorithms.md: what the registries hold, and nothing else."""
    parts = [
        "# Algorithms\n",
        "Every verification rule in draftproof, with its paper. `make docs` writes this page from the registries in "
        "the code.\n",
        "## Verifiers\n",
        "Exact: the text follows the target's law, whatever the drafter. The name is the value of `--verify`. *Draws* "
        "are the [ways of drawing](#draws) for which the rule is exact. That it *never accepts less than* another rule "
        "is tested. p is the target's law, q the drafter's, K the number of candidates for one token.\n",
    ]
    for shape, title in SHAPES.items():
        group = [v for v in VERIFIERS.values() if v.trees == shape]
        if group:
            rows = (
                (_source("verify", v.name), _paper(v.paper), _names(v.draws), _names(v.dominates), v.summary)
                for v in group
            )
            parts += [f"### {title}\n", _table(("name", "paper", "draws", "never accepts less than", "rule"), rows)]
    parts += [
        "## Draws\n",
        "How the children of a node are drawn from the drafter's law q; see [draws.py](../src/draftproof/draws.py).\n",
        _table(("name", "children are drawn"), ((f"`{d.name}`", d.summary) for d in DRAWS.values())),
        "## Couplings\n",
        "Exact, and the text is a function of target and seed alone. They are values of `--verify` too, with any tree. "
        "Drafter and target share their noise, so drafter, "
        "draft length and tree change how many target calls a text takes, but not the text.\n",
        _table(
            ("name", "paper", "rule"),
            ((_source("couple", c.name), _paper(c.paper), c.summary) for c in COUPLINGS.values()),
        ),
        "## Lossy rules\n",
        "Not exact, and kept apart: values of `--lossy`, with settings after a colon, such as `lenience:0.8`, for "
        "chains only. H is the entropy. No verifier uses a lossy rule, no lossy rule uses a verifier, and each reports "
        "the total variation it costs at every token.\n",
        _table(
            ("name", "origin", "settings", "rule"),
            (
                (
                    _source("lossy", f.name),
                    _paper(f.paper),
                    ", ".join(f"`{setting}={value}`" for setting, value in f.settings.items()),
                    f.summary.removeprefix("not exact: "),
                )
                for f in LOSSY.values()
            ),
        ),
        "## Left out\n",
        "Published methods that are not here, and why.\n",
        _table(("what", "paper", "why"), ((what, _paper(paper), why) for what, paper, why in LEFT_OUT)),
    ]
    return "\n".join(parts)


def _source(folder: str, name: str) -> str:
    return f"[`{name}`](../src/draftproof/{folder}/{name}.py)"


def _paper(paper: str) -> str:
    """Every arXiv number in the text made a link."""
    return re.sub(r"(?:arXiv )?\b(\d{4}\.\d{4,5})\b", r"[\1](https://arxiv.org/abs/\1)", paper)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


# The table of metrics


def metrics() -> str:
    """What a server exports, as it describes itself."""
    rows = (
        (f"`{one.name}`", one.kind, _names(one.labels), one.help, ", ".join(f"`{name}`" for name in one.vllm))
        for one in Metrics().families.described()
    )
    return _table(("name", "kind", "labels", "what it counts", "in vLLM"), rows)


# The map and the tree


def contents(docs: Path) -> str:
    """The pages of the docs in reading order, each with its first sentence."""
    found = {page.name: page for page in sorted(docs.glob("*.md")) if page.name != "index.md"}
    for name in ("algorithms.md", "files.md"):
        found[name] = docs / name  # also when it is about to be written for the first time
    order = [name for name in READING_ORDER if name in found] + [name for name in found if name not in READING_ORDER]
    lines = []
    for name in order:
        fresh = {"algorithms.md": algorithms, "files.md": lambda: FILES}
        text = fresh[name]() if name in fresh else found[name].read_text(encoding="utf-8")
        title, first = re.findall(r"^# (.+)\n+((?:.+\n)+)", text)[0]
        sentence = re.split(r"(?<=[.:])\s", " ".join(first.split()))[0].rstrip(".:")
        lines.append(f"- [{title}]({name}): {sentence[0].lower()}{sentence[1:]}.\n")
    return "".join(lines)


def tree(root: Path, folders: Iterable[str] = FOLDERS, deep: bool = True) -> str:
    """The files with code in them, folder by folder, each with what its docstring says first.

    If not deep, of folders within folders only their own line.
    """
    return "```text\n" + "".join(line + "\n" for folder in folders for line in _branch(root, folder, deep)) + "```\n"


def _branch(root: Path, folder: str, deep: bool) -> Iterator[str]:
    """A line for the folder and for everything in it, files before folders."""
    found = [file for file in (root / folder).rglob("*.py") if file.stat().st_size]
    entries: list[tuple[str, Path]] = []
    for home in sorted({file.parent for file in found}, key=lambda home: home.parts):
        depth = len(home.relative_to(root / folder).parts)
        entries.append(("  " * depth + (home.name if depth else folder) + "/", home / "__init__.py"))
        files = sorted(file for file in found if file.parent == home and file.name != "__init__.py")
        entries += [("  " * (depth + 1) + file.name, file) for file in files if deep or not depth]
    column = max((len(name) for name, _ in entries), default=0) + 2
    for name, file in entries:
        yield f"{name:<{column}}{_gist(file, WIDTH - column)}".rstrip()


def _gist(module: Path, room: int) -> str:
    """As much of the first line of a module's docstring as fits; papers are left to docs/algorithms.md."""
    if not module.exists():
        return ""
    said = re.sub(r" \([^()]*\d{4}[^()]*\)", "", _docstring(module.read_text(encoding="utf-8"))).removesuffix(".")
    if len(said) <= room:
        return said
    for end in (r"(?<!\(\))[:;] |\. (?=[A-Z])", r", "):  # better a whole clause than half a sentence
        stops = [stop.start() for stop in re.finditer(end, said[: room + 1]) if stop.start() >= 24]
        if stops:
            return said[: stops[-1]]
    return said[: room - 1].rsplit(" ", 1)[0] + "…"


@cache
def _docstring(source: str) -> str:
    """The first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(source)) or "").split("\n")[0]


# The README's example run


def capture(readme: Path) -> None:
    """Run the command after `$` between the README's run markers and put what it prints in place of what is there."""
    text = readme.read_text(encoding="utf-8")
    command = re.findall(r"<!-- run -->\n```console\n\$ (.+)\n", text)[0]
    words = shlex.split(command)
    words[0] = str(Path(sys.executable).with_name(words[0]))
    ran = subprocess.run(
        words, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": str(WIDTH), "NO_COLOR": "1"}
    )
    said = f"{ran.stdout.rstrip()}\n{ran.stderr}".rstrip()
    body = f"```console\n$ {command}\n{said}\n```\n"
    readme.write_text(filled(readme, {"run": body}), encoding="utf-8")


if __name__ == "__main__":
    main()
