"""Memory of ended texts is used again, cleared, and never while somebody holds it."""

import gc

import pytest
import torch

from draftproof.models import zeros as memory
from draftproof.models.zeros import zeros

LIKE = torch.empty(0)
SIZE = 1 << 18  # floats: a megabyte


@pytest.fixture(autouse=True)
def _nothing_left(monkeypatch):
    gc.collect()
    monkeypatch.setattr(memory, "_left", [])


def written(size=SIZE):
    """Where zeros were that were written to, and are gone."""
    tensor = zeros(LIKE, (size,))
    tensor.fill_(float("nan"))
    return tensor.data_ptr()


def places_of_new(count):
    """Where so many zeros are that live together."""
    held = [zeros(LIKE, (SIZE,)) for _ in range(count)]
    return {one.data_ptr() for one in held}


def test_memory_that_was_written_to_is_used_again_as_zeros():
    place = written()
    again = zeros(LIKE, (2, SIZE // 2))
    assert (again.data_ptr(), again.shape) == (place, (2, SIZE // 2))
    assert not again.any()


@pytest.mark.parametrize("view", [lambda whole: whole[5:6], lambda whole: whole.view(2, -1)[1], torch.Tensor.numpy])
def test_it_is_not_used_again_while_a_part_of_it_is_held(view):
    tensor = zeros(LIKE, (SIZE,))
    place, part = tensor.data_ptr(), view(tensor)
    del tensor
    assert zeros(LIKE, (SIZE,)).data_ptr() != place
    part[:] = 1
    del part
    assert place in places_of_new(2)


def test_two_that_live_together_have_memory_of_their_own():
    written()
    one, other = zeros(LIKE, (SIZE,)), zeros(LIKE, (SIZE,))
    one.fill_(1)
    assert not other.any()


def test_memory_may_serve_less_than_it_did_but_not_much_less_nor_more():
    place = written()
    assert zeros(LIKE, (SIZE // memory.SPARE,)).data_ptr() == place
    for size in (SIZE // memory.SPARE - 1, SIZE + 1):
        assert zeros(LIKE, (size,)).data_ptr() != place


def test_the_smallest_that_fits_is_used():
    large, small = zeros(LIKE, (SIZE,)), zeros(LIKE, (SIZE * 3 // 4,))
    place = small.data_ptr()
    del large, small
    assert zeros(LIKE, (SIZE * 2 // 3,)).data_ptr() == place


def test_only_so_much_is_kept(monkeypatch):
    monkeypatch.setattr(memory, "KEPT", 10 * SIZE)  # two and a half of these
    held = [zeros(LIKE, (SIZE,)) for _ in range(3)]
    places = [one.data_ptr() for one in held]
    for _ in range(3):
        del held[0]
    assert len(memory._left) == 2
    assert places_of_new(2) == set(places[1:])
    monkeypatch.setattr(memory, "KEPT", SIZE)
    written()
    assert sum(map(len, memory._left)) <= SIZE


def test_kinds_are_those_of_the_tensor():
    half = zeros(torch.empty(0, dtype=torch.bfloat16), (3, 5))
    assert (half.dtype, half.shape) == (torch.bfloat16, (3, 5))
    assert not half.any()
    assert zeros(LIKE, (0, 4)).shape == (0, 4)
