"""Where a GPU has too little memory, one line says what fits; in the middle one request fails and the others go on."""

from __future__ import annotations

import pytest
import torch

import draftproof as dp
from draftproof import kernels
from draftproof.engine import memory
from draftproof.engine.setup import Setup
from draftproof.models import devices
from draftproof.models.base import facts
from draftproof.models.static.session import StaticSession
from tests.support import tiny
from tests.support.schedulers import finish, graph, requests

LONG = 40  # tokens that no memory is left for


def short_of_memory(*args, **named):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize(
    ("free", "fits"),
    [
        (1_000_000, "1 MB are free: 27 rows of that length fit, or 64 rows of 54 tokens fit"),
        (25_000, "0 MB are free: 64 rows of 1 tokens fit"),
        (1_000, "0 MB are free: choose a smaller model or another dtype"),
    ],
)
def test_what_does_not_fit_when_it_is_opened_is_said_in_one_line(free, fits, monkeypatch):
    target = tiny.model()
    assert facts(target).token_bytes == 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, size, float32
    monkeypatch.setattr(memory, "_free", lambda: free)
    monkeypatch.setattr(Setup, "_eager_stepper", short_of_memory)
    engine = dp.Engine(target, draft=None, rows=64, length=96)
    request = engine.add_request([65], max_new_tokens=4)
    with pytest.raises(dp.DraftproofError) as failed:
        engine.step()
    assert str(failed.value) == f"out of memory: 64 rows of 129 tokens take 2 MB of KV cache and {fits}"
    assert request.finish == "failed"


def crowded(extend):
    """A call that has no memory for a long prompt."""

    def call(self, tree, tokens, nodes):
        if max(map(len, self.pending[: len(tokens)])) >= LONG - 1:
            short_of_memory()
        return extend(self, tree, tokens, nodes)

    return call


@pytest.mark.parametrize("draft", [None, "ngram"])
def test_the_request_that_has_no_room_fails_and_the_others_go_on(draft, monkeypatch):
    target = tiny.model()
    alone = dp.generate(target, [65, 66], draft=draft, tree="chain:2", max_new_tokens=20, seed=1).tokens
    session = type(target.session(1, 8))
    monkeypatch.setattr(session, "extend", crowded(session.extend))
    monkeypatch.setattr("draftproof.engine.eager.stepper.FEW", LONG)  # else it is read alone
    engine = dp.Engine(target, draft=draft, tree="chain:2", rows=4, length=90, kept=0)
    first = engine.add_request([65, 66], max_new_tokens=20, seed=1)
    engine.step()
    long = engine.add_request([70] * LONG, max_new_tokens=20, seed=2)
    third = engine.add_request([65, 66], max_new_tokens=20, seed=1)
    with pytest.raises(dp.DraftproofError, match="the prompt of 40 tokens could not be read beside 2 other texts"):
        finish(engine)
    finish(engine)
    assert (long.finish, long.tokens) == ("failed", [])
    assert first.tokens == third.tokens == alone


def test_so_it_is_in_the_graph_stepper(monkeypatch):
    target = tiny.model()
    prompts = [[65, 66], [70] * LONG, [80, 81, 82]]
    texts, alone = (requests(target, prompts, dp.Sampling()) for _ in range(2))
    sound, batch = (graph(target, None, "block", dp.Tree.chain(0), 3, 90) for _ in range(2))
    for text in alone:
        sound.add([text])
    finish(sound)
    read = StaticSession.prefill

    def crowded(self, ids, rows, positions):
        return short_of_memory() if int(positions.max()) >= LONG - 1 else read(self, ids, rows, positions)

    monkeypatch.setattr(StaticSession, "prefill", crowded)
    batch.add([texts[0]])
    batch.step()
    for text in texts[1:]:
        batch.add([text])
    with pytest.raises(dp.DraftproofError, match="the prompt of 40 tokens could not be read beside 2 other texts"):
        finish(batch)
    finish(batch)
    assert [text.finish for text in texts] == ["length", "failed", "length"]
    assert [text.tokens for text in texts[::2]] == [text.tokens for text in alone[::2]]


@pytest.mark.parametrize("stepper", ["eager", "graph"])
def test_where_nobody_has_come_the_error_itself_is_raised(stepper, monkeypatch):
    """It may have been for a moment: nothing is lost, and the step can be made again."""
    target = tiny.model()
    (text,), (alone,) = (requests(target, [[65, 66]], dp.Sampling(), 9) for _ in range(2))
    batch, sound = (graph(target, None, "block", dp.Tree.chain(0), 1, 60) for _ in range(2))
    sound.add([alone])
    finish(sound)
    place, name = batch.stepper.device_step, "run"
    if stepper == "eager":
        batch = dp.Engine(target, draft=None, rows=1, length=40).scheduler
        place, name = type(target.session(1, 8)), "extend"
        text = Setup.of(target, None).request(text.prompt, (dp.Sampling(),) * 2, 9, text.key)
    batch.add([text])
    batch.step()
    with monkeypatch.context() as patch:
        patch.setattr(place, name, short_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            batch.step()
    finish(batch)
    assert text.tokens == alone.tokens


@pytest.mark.parametrize(
    ("capability", "triton", "why"),
    [((7, 5), True, "it has compute capability 7.5, below 8.0"), ((9, 0), False, "Triton is not installed")],
)
def test_a_gpu_without_our_kernels_is_named_once(capability, triton, why, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old GPU")
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: object() if triton else None)
    devices.note_missing_kernels.cache_clear()
    for _ in range(2):
        devices.note_missing_kernels("cuda")
        devices.note_missing_kernels("cpu")
    devices.note_missing_kernels.cache_clear()
    assert capsys.readouterr().err == f"note: torch runs every step on Old GPU ({why}): as exact, and slower\n"
    assert not kernels.available(torch.device("cuda"))
    assert kernels.available() == triton
