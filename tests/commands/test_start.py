"""What a command imports before its first token: only what it needs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("transformers", "scipy", "matplotlib", "gguf", "accelerate", "sympy", "torch._dynamo", "huggingface_hub")

RUN = """
import sys
from draftproof.commands.cli import main
try:
    main()
finally:
    print([name for name in {names} if name in sys.modules], file=sys.stderr)
"""


def run(*words: str, names: tuple[str, ...]) -> tuple[str, str]:
    """What a command prints, and which of the names it has imported."""
    command = [sys.executable, "-c", RUN.format(names=names), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr.splitlines()[-1]


@pytest.mark.parametrize("words", [["--help"], ["generate", "--help"], ["list"], ["--version"]])
def test_what_only_prints_needs_no_torch(words):
    shown, imported = run(*words, names=("torch", *HEAVY))
    assert shown.strip()
    assert imported == "[]"


@pytest.mark.parametrize("more", [["--draft", "tiny"], ["--dtype", "int8"]])
def test_text_of_the_packaged_model_needs_no_transformers(more):
    shown, imported = run("generate", "Hello", "--target", "tiny", "-n", "3", "--json", *more, names=HEAVY)
    written = json.loads(shown)
    assert len(written["tokens"]) == 3
    assert written["trace"]["start_seconds"] > 0.1  # torch at least was imported
    assert imported == "[]"


def test_a_head_is_loaded_without_a_compiler():
    """Making layers on "meta" can import one, which takes longer than all the rest."""
    load = "from draftproof.models.drafters.head import SHIPPED; from draftproof.models.llama.head import load"
    code = f"import sys; {load}; load(SHIPPED); print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
