"""The `draftproof` command through its real entry point, in this process."""

from __future__ import annotations

import sys

import pytest

from draftproof.commands import cli


def run(*words: str, monkeypatch, capsys):
    """Exit code, standard output, and what the program itself wrote to standard error."""
    monkeypatch.setattr(sys, "argv", ["draftproof", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr()
    return end.value.code, said.out, own(said.err)


def own(err: str) -> str:
    """What the program itself says on standard error; other packages may have a word to say on their first import."""
    start = ("error: ", "note: ", "compared ", "finished: ", "draft ", "accepted ", "time ", "tree ", "drafting ")
    start += ("sampling ",)
    lines = err.splitlines(keepends=True)
    assert not any(line.startswith("Traceback") for line in lines), err
    return "".join(line for line in lines if line.startswith(start) or " tokens in " in line or " texts " in line)
