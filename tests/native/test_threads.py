"""How many threads a call in C gets, after some were held up by other programs."""

from __future__ import annotations

import platform
import threading

import pytest
import torch

from draftproof.native import build

FIRST, LONGEST, SHORT, SEVERAL = 0.25, 4, 1024, 3


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


class Calls:
    """Parts of calls with so many rows, one after another, by a clock of their own."""

    def __init__(self, library, rows=1):
        self.library, self.rows, self.now = library, rows, 100.0

    @property
    def threads(self):
        return self.library.threads_at(self.now, self.rows)

    def alone(self, cost):
        """For how long one thread works alone until several are tried again."""
        start = self.now
        while self.threads == 1:
            self.now += 0.01
            self.library.learn(self.now, self.rows, 1, cost, False)
        return self.now - start

    def held_up(self, cost, times=1):
        """Several threads are held up until one works alone; how often."""
        for n in range(times):
            self.library.learn(self.now, self.rows, SEVERAL, cost, True)
            if self.threads == 1:
                return n + 1
        return 0

    def undisturbed(self, cost, times=1):
        for _ in range(times):
            self.library.learn(self.now, self.rows, SEVERAL, cost, False)


def test_one_thread_works_alone_for_longer_and_longer_where_several_are_held_up(library):
    def test():
        calls = Calls(library)
        assert calls.threads == SEVERAL
        calls.undisturbed(1.0)
        assert calls.held_up(100.0) == 1
        assert library.threads_at(calls.now, SHORT) == 1
        assert library.threads_at(calls.now, SHORT + 1) == SEVERAL  # what is long has few barriers for its work
        pauses = [calls.alone(1.1)]
        for _ in range(5):
            assert calls.held_up(100.0) == 1
            pauses.append(calls.alone(1.1))
        assert pauses == pytest.approx([min(FIRST * 2**n, LONGEST) for n in range(6)], abs=0.011)
        calls.undisturbed(1.0, times=80)  # several are as fast again, and pauses short
        assert calls.held_up(100.0, times=5)
        assert calls.alone(1.1) == pytest.approx(FIRST, abs=0.011)

    in_new_thread(test)


def test_several_threads_go_on_where_one_alone_is_slower(library):
    """Short delays now and then do not decide; a long one does, for a short while."""

    def test():
        calls = Calls(library, rows=16)
        calls.undisturbed(1.0)
        assert calls.held_up(1.5) == 1
        calls.alone(2.5)
        for _ in range(50):
            assert calls.held_up(4.0) == 0
            calls.undisturbed(1.0, times=5)
        assert calls.held_up(100.0) == 1

    in_new_thread(test)


def test_one_thread_by_choice_stays_and_each_thread_learns_for_itself(library):
    found = []

    def chosen():
        calls = Calls(library)
        library.learn(calls.now, 1, 1, 1.0, True)
        found.append(calls.threads)
        torch.set_num_threads(SEVERAL)
        found.append(calls.threads)

    def crowded():
        calls = Calls(library)
        assert calls.held_up(100.0) == 1
        in_new_thread(lambda: found.append(Calls(library).threads))
        found.append(calls.threads)

    in_new_thread(chosen, threads=1)
    in_new_thread(crowded)
    assert found == [1, SEVERAL, SEVERAL, 1]
