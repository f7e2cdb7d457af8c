"""How many threads a call in C gets, after some were held up by other programs."""

from __future__ import annotations

import platform
import threading

import pytest
import torch

from draftproof.native import build

FIRST, LONGEST, TRIAL, SHORT, SEVERAL = 512, 8192, 10, 1024, 3


@pytest.fixture
def library():
    found = build.built("x86-64-v3") if platform.machine() == "x86_64" else None
    if found is None:
        pytest.skip("no C compiler, or another processor")
    return found


def in_new_thread(test, threads=SEVERAL):
    """Run a test in a thread of its own: what one has learned is its own."""
    failures = []

    def run():
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            test()
        except BaseException as error:
            failures.append(error)
        torch.set_num_threads(before)

    worker = threading.Thread(target=run)
    worker.start()
    worker.join()
    if failures:
        raise failures[0]


def alone(library, cost, rows=1):
    """How many parts of calls one thread computes alone, until several are tried again."""
    parts = 0
    while library.threads_for(rows) == 1:
        library.learn(rows, 1, cost, False)
        parts += 1
    return parts


def held_up(library, cost, times=1, rows=1):
    """Several threads are held up until one works alone; how often."""
    for n in range(times):
        library.learn(rows, SEVERAL, cost, True)
        if library.threads_for(rows) == 1:
            return n + 1
    return 0


def test_one_thread_works_alone_for_longer_and_longer_where_several_are_held_up(library):
    def test():
        assert library.threads_for(1) == library.threads_for(10_000) == SEVERAL
        library.learn(1, SEVERAL, 1.0, False)
        assert held_up(library, 100.0) == 1
        assert library.threads_for(SHORT) == 1
        assert library.threads_for(SHORT + 1) == SEVERAL  # what is long has few barriers for its work
        assert alone(library, 1.1) == TRIAL  # how long it takes was not known
        pauses = []
        for _ in range(6):
            assert held_up(library, 100.0, times=5)
            pauses.append(alone(library, 1.1))
        assert pauses == [min(FIRST * 2**n, LONGEST) for n in range(6)]
        for _ in range(40):  # nothing is held up: several are as fast again, and pauses short
            library.learn(1, SEVERAL, 1.0, False)
        assert held_up(library, 100.0, times=5)
        assert alone(library, 1.1) == FIRST

    in_new_thread(test)


def test_several_threads_go_on_where_one_alone_is_slower(library):
    """A rare delay does not decide, nor one at calls of another size."""

    def test():
        library.learn(16, SEVERAL, 1.0, False)
        assert held_up(library, 1.5, rows=16) == 1
        assert alone(library, 2.5, rows=16) == TRIAL
        assert held_up(library, 1.5, times=100, rows=16) == 0
        assert held_up(library, 100.0, rows=16) == 0  # once
        assert held_up(library, 100.0, times=3, rows=16)

    in_new_thread(test)


def test_one_thread_by_choice_stays_and_each_thread_learns_for_itself(library):
    def chosen():
        library.learn(1, 1, 1.0, True)
        assert library.threads_for(1) == 1
        torch.set_num_threads(SEVERAL)
        assert library.threads_for(1) == SEVERAL

    def crowded():
        assert held_up(library, 100.0) == 1
        in_new_thread(lambda: check(library.threads_for(1) == SEVERAL))
        assert library.threads_for(1) == 1

    def check(holds):
        assert holds

    in_new_thread(chosen, threads=1)
    in_new_thread(crowded)
