"""The package as a whole: the core needs no torch, and a verifier's file name is its name."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import draftproof
from draftproof import verify
from draftproof.draws import DRAWS
from draftproof.errors import DraftproofError
from draftproof.verify import VERIFIERS

SOURCE = Path(draftproof.__file__).parent

WITHOUT_TORCH = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())

import numpy as np
from draftproof import controls, draft, draws, errors, law, noise, sampling, verify
from draftproof.theory import enumerate

target, drafter = (lambda c: np.array([0.25, 0.75])), (lambda c: np.array([0.5, 0.5]))
chain, iid = draft.Tree.chain(1), draws.DRAWS["iid"]
emitted = enumerate.output_law(verify.get("block"), target, drafter, chain, iid, 1)
assert emitted == {(0,): 0.25, (1,): 0.75}, emitted
assert sampling.law(np.zeros((1, 2)), sampling.Sampling(temperature=0.5)).tolist() == [[0.5, 0.5]]
assert noise.uniforms(*np.zeros((3, 1), dtype=np.int64), noise.Lane.STOP, 1).shape == (1, 1)
assert "torch" not in sys.modules
"""


def test_core_runs_without_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_file_in_verify_registers_its_own_name() -> None:
    files = {m.name for m in pkgutil.iter_modules([str(SOURCE / "verify")]) if not m.name.startswith("_")}
    assert files == set(VERIFIERS)
    assert {"token", "block", "match", "onehot"} <= files
    for name, verifier in VERIFIERS.items():
        assert verifier.name == name


@pytest.mark.parametrize("name", sorted(VERIFIERS))
def test_a_verifier_says_what_it_is(name: str) -> None:
    verifier = VERIFIERS[name]
    assert verifier.draws
    assert verifier.draws <= set(DRAWS)
    assert verifier.dominates <= set(VERIFIERS) - {name}
    assert verifier.trees in ("chain", "star", "paths", "any")
    assert verifier.paper
    assert verifier.summary
    assert "\n" not in verifier.summary


def test_unknown_verifier_suggests_the_nearest() -> None:
    with pytest.raises(DraftproofError, match=r"^unknown verifier 'blok': did you mean 'block'\?$"):
        verify.get("blok")
    with pytest.raises(DraftproofError, match=r"^unknown verifier 'zzzzzz': `draftproof list` shows them all\.$"):
        verify.get("zzzzzz")


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_is_typed_and_has_a_version() -> None:
    assert (SOURCE / "py.typed").is_file()
    assert version("draftproof").count(".") == 2
