"""How many threads a call in C gets, after some were held up by other programs."""

from __future__ import annotations

import platform

import pytest
import torch

from draftproof.native import build

FIRST, LONGEST, SHORT, SEVERAL = 512, 8192, 1024, 3


@pytest.fixture
def library():
    """One that no other test uses: what it has learned stays."""
    found = build.built("x86-64-v3") if platform.machine() == "x86_64" else None
    if found is None:
        pytest.skip("no C compiler, or another processor")
    before = torch.get_num_threads()
    torch.set_num_threads(SEVERAL)
    yield found
    while alone(found):
        pass
    torch.set_num_threads(before)


def alone(library):
    """How many parts of calls one thread computes alone, until several are tried again."""
    parts = 0
    while library.threads_for(1) == 1:
        library.learn(1, False)
        parts += 1
    return parts


def test_one_thread_works_alone_after_several_were_held_up(library):
    assert library.threads_for(1) == library.threads_for(10_000) == SEVERAL
    library.learn(SEVERAL, True)
    assert library.threads_for(1) == library.threads_for(SHORT) == 1
    assert library.threads_for(SHORT + 1) == SEVERAL  # what is long has few barriers for its work
    pauses = [alone(library)]
    while len(pauses) < 7:
        library.learn(SEVERAL, True)
        pauses.append(alone(library))
    assert pauses == [min(FIRST * 2**n, LONGEST) for n in range(7)]
    for _ in range(4):  # nothing was held up: pauses are short again
        library.learn(SEVERAL, False)
    library.learn(SEVERAL, True)
    assert alone(library) == FIRST


def test_one_thread_by_choice_learns_nothing(library):
    torch.set_num_threads(1)
    library.learn(1, True)
    torch.set_num_threads(SEVERAL)
    assert library.threads_for(1) == SEVERAL
