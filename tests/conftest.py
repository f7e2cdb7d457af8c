"""Settings for all tests: deterministic, and one thread, because the arrays are small."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton looks once, when it is imported, by whomever

torch.set_num_threads(1)
settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("fixed")
# A background job of a script starts with Ctrl-C ignored, and so would the commands that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
gc.set_threshold(50_000)  # batches of thousands of requests would be searched for garbage hundreds of times


@pytest.fixture
def draftproof(monkeypatch, capsys):
    """The command: words in; exit code, standard output and standard error out."""
    from tests.support import command

    return lambda *words: command.run(*words, monkeypatch=monkeypatch, capsys=capsys)


@pytest.fixture(scope="session")
def fast_interpreter() -> Iterator[None]:
    """For kernels that are run by Triton's interpreter, where there is no GPU."""
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            from tests.support import interpreter

            interpreter.hurry(patch)
        yield
