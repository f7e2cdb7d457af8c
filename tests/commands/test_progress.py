"""Progress of long work: nothing that matters is cut off on a narrow terminal, and a pipe gets a few plain lines."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys

import pytest
from rich.console import Console

from draftproof.commands import progress, showing
from draftproof.commands.progress import PAUSE, Bars, compiling, stages

REMARK = "step 1180 overlap 0.731 0.612 0.555 0.503 loss 1.234"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def drawn(width: int, work) -> list[str]:
    """What a terminal of this width shows after some reports; a report comes every 100 seconds."""
    clock = Clock()
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    bars = Bars(console, clock)
    for stage, share, remark in work:
        bars.report(stage, share, remark)
        clock.now += 100
    with console.capture() as said:
        console.print(*bars.get_renderables())
    return said.get().splitlines()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_summary_breaks_between_words_on_a_terminal_only(monkeypatch, is_terminal):
    line = "accepted up to position 1: 0.84  2: 0.58  3: 0.46  4: 0.56  5: 0.55"
    said = io.StringIO()
    monkeypatch.setattr(said, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    showing._say([line], None)
    lines = re.sub(r"\x1b\[\d*m", "", said.getvalue()).splitlines()
    assert " ".join(" ".join(lines).split()) == " ".join(line.split())  # no word is torn
    assert (len(lines) > 1) == is_terminal


@pytest.mark.parametrize("width", [60, 80, 120])
def test_nothing_is_cut_off(width):
    work = [("writing shard-0000", 0.5, ""), ("writing shard-0000", 1.0, ""), ("training", 0.0, "")]
    lines = drawn(width, [*work, ("training", 0.25, REMARK), ("training", 0.5, REMARK)])
    assert len(lines) == 3
    assert all(len(line) <= width for line in lines)
    assert not any("…" in line for line in lines)
    assert lines[0].split()[:2] == ["writing", "shard-0000"]
    assert lines[0].rstrip().endswith(" 100% 0:01:40 done")
    assert lines[1].startswith("training ")
    assert lines[1].rstrip().endswith(" 50% 0:05:00 0:03:20 left")
    assert lines[2].rstrip() == REMARK
    assert all("━" * 6 in line for line in lines[:2])


def test_shards_share_one_bar():
    work = [(f"writing shard-{n:04}", share, "") for n in range(40) for share in (0.5, 1.0)]
    (line,) = drawn(80, work)
    assert line.startswith("writing shard-0039 ")


def test_a_pipe_gets_a_plain_line_now_and_then():
    clock, file = Clock(), io.StringIO()
    with stages(Console(file=file, width=40), clock) as report:
        for step in range(1, 101):
            clock.now += 1
            report("training", step / 100, REMARK)
        report("evaluating", 0.0, "")
        clock.now += 7
        report("evaluating", 1.0, "")
    assert PAUSE == 30
    assert file.getvalue().splitlines() == [
        f"training: 1%; {REMARK}",
        f"training: 31%, 0:01:07 left; {REMARK}",
        f"training: 61%, 0:00:38 left; {REMARK}",
        f"training: 91%, 0:00:09 left; {REMARK}",
        f"training: done in 0:01:39; {REMARK}",
        "evaluating: 0%",
        "evaluating: done in 0:00:07",
    ]


def test_a_terminal_gets_bars():
    file = io.StringIO()
    with stages(Console(file=file, width=80, force_terminal=True)) as report:
        report("training", 0.5, REMARK)
    assert "━" in file.getvalue()
    assert REMARK in file.getvalue()


def compiled(*hits: bool) -> None:
    """What Triton tells its listener after each kernel."""
    from triton import knobs

    for hit in hits:
        if knobs.compilation.listener is not None:
            knobs.compilation.listener(src=None, metadata={}, metadata_group={}, times=None, cache_hit=hit)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("gpu", [True, False])
def test_kernels_are_counted_until_the_first_text(terminal, gpu, monkeypatch):
    monkeypatch.setattr(progress, "_runs_kernels", lambda: gpu)
    console = Console(width=80, file=io.StringIO(), force_terminal=terminal, color_system=None)
    with compiling(console) as begin:
        compiled(True, True)  # found on disk
        assert console.file.getvalue() == ""
        compiled(False, True, False)
        begin()
        said = console.file.getvalue()
        compiled(False)
    assert ("compiling kernels, once for this model and GPU: 2 so far" in said) == (terminal and gpu)
    assert console.file.getvalue() == said  # nothing comes between pieces of text
    compiled(False)
    assert console.file.getvalue() == said


def test_triton_tells_of_a_kernel_that_it_compiles(tmp_path):
    """In a process of its own: here kernels may be interpreted."""
    program = tmp_path / "kernel.py"
    program.write_text(
        "import triton, triton.language as tl\n"
        "from triton.backends.compiler import GPUTarget\n"
        "from draftproof.kernels.lib.compiling import compilations\n"
        "@triton.jit\n"
        "def ones(x, n: tl.constexpr):\n"
        "    tl.store(x + tl.arange(0, n), 1.0)\n"
        "source = triton.compiler.ASTSource(ones, {'x': '*fp32', 'n': 'constexpr'}, {(1,): 64})\n"
        "told = []\n"
        "with compilations(lambda: told.append(1)):\n"
        "    for _ in range(2):\n"
        "        triton.compile(source, target=GPUTarget('cuda', 90, 32))\n"
        "print(len(told))\n"
    )
    settings = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    ran = subprocess.run([sys.executable, program], env=settings, capture_output=True, text=True, check=True)
    assert ran.stdout == "1\n"
