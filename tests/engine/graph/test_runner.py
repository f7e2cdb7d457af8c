"""The fused step says what the eager stepper says, token for token; here it runs eagerly, on a GPU as a graph."""

from __future__ import annotations

from collections import Counter
from itertools import count
from types import SimpleNamespace

import pytest
import torch

import draftproof as dp
from draftproof import verify
from draftproof.engine.graph import capture
from draftproof.engine.graph import runner as fused
from draftproof.engine.graph import step as resident
from draftproof.engine.graph.capture import PromptReader, Stopwatch
from draftproof.kernels.types import Fault
from draftproof.models.drafters.head import HeadModel
from draftproof.models.static import packing
from draftproof.models.static.head import StaticHead
from draftproof.models.static.session import StaticSession
from tests.support import tiny
from tests.support.heads import drafter, network
from tests.support.schedulers import LENGTH, Script, ask, eager, finish, graph, requests


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize(
    "sampling",
    [
        dp.Sampling(),
        dp.Sampling(temperature=0.8, top_k=40, top_p=0.9),
        dp.Sampling(temperature=0),
        dp.Sampling(repetition_penalty=1.3, frequency_penalty=0.5, logit_bias={65: 2.0}),
    ],
    ids=["plain", "truncated", "greedy", "penalties"],
)
def test_same_tokens_as_the_general_engine(rule, sampling):
    target, draft = tiny.model(), tiny.model("llama", 1)
    prompts = [[65, 66, 67], [70] * 9, [80]]
    made = requests(target, prompts, sampling)
    batch = graph(target, draft, rule, dp.Tree.chain(3), len(prompts), 60)
    for request in made:
        batch.add([request])
    finish(batch)
    expected = requests(target, prompts, sampling)
    verifier, tree = verify.get(rule), dp.Tree.chain(3)
    general = eager(target, [draft], verifier, tree, len(prompts), 60)
    for request in expected:
        general.add([request])
    finish(general)
    assert [request.tokens for request in made] == [request.tokens for request in expected]
    assert list(map(steps, made)) == list(map(steps, expected))


def steps(request):
    """What was drafted and accepted in each step of a text: also at its end, where there is less to draft."""
    return [(step.tokens, step.drafted, step.depth, step.accepted) for step in request.trace.steps]


def test_plain_sampling_is_a_chain_of_length_zero():
    target = tiny.model("gpt2")
    (request,) = requests(target, [[65, 66]], dp.Sampling(temperature=0.9))
    batch = graph(target, None, "block", dp.Tree.chain(5), 1, 60)
    batch.add([request])
    finish(batch)
    plain = dp.generate(
        target, [65, 66], draft=None, sampling=dp.Sampling(temperature=0.9), max_new_tokens=LENGTH, seed=11
    )
    assert request.tokens == plain.tokens


@pytest.mark.parametrize("kind", ["llama", "head", "head, one tap"])
def test_lengths_may_change_with_every_step(kind):
    """However long it has not been asked, a drafter knows the whole text."""
    target, sampling, lengths = tiny.model(), dp.Sampling(temperature=0.8), [3, 0, 3, 0, 0, 0, 3, 1, 0, 0, 2, 3, 0]
    draft = drafter(kind, target)
    (made,) = requests(target, [[70] * 5], sampling)
    batch = graph(target, draft, "block", dp.Tree.chain(3), 1, 60, tuner=Script(lengths))
    batch.add([made])
    finish(batch)
    (expected,) = requests(target, [[70] * 5], sampling)
    verifier = verify.get("block")
    general = eager(target, [draft], verifier, Script(lengths), 1, 60)
    general.add([expected])
    finish(general)
    assert len(made.tokens) == LENGTH
    assert made.tokens == expected.tokens
    assert sum(made.trace.shapes.values()) == len(made.trace.steps)
    assert made.trace.accepted


def test_a_plain_step_leaves_no_hole_in_what_the_drafter_has_read():
    """The target as its own drafter: each guess is accepted, if it has read all of the text."""
    target, sampling = tiny.model(), dp.Sampling(temperature=0.8)
    made = requests(target, [[70] * 5, [71, 72]], sampling)
    batch = graph(
        target, tiny.model(), "block", dp.Tree.chain(3), 2, 60, tuner=Script([3, 0, 3, 3, 0, 0, 3, 0, 3, 0, 3])
    )
    for request in made:
        batch.add([request])
    finish(batch)
    for step in (step for request in made for step in request.trace.steps):
        assert step.accepted == step.drafted


def test_a_step_that_was_for_nobody_teaches_nothing():
    """The text ends with a step that is still in flight when the drafter is to be asked again."""
    target = tiny.model()
    (made,) = requests(target, [[70] * 5], dp.Sampling())
    made.stopping = lambda tokens: len(tokens) == 4  # an end that is not in sight
    batch = graph(target, tiny.model("llama", 1), "block", dp.Tree.chain(3), 1, 60, tuner=Script([0] * 4 + [3]))
    batch.add([made])
    finish(batch)
    assert made.trace.shapes == {"chain:0": 4}


def busy(*args):
    raise RuntimeError("for a moment")


@pytest.mark.parametrize("what", ["prompts", "controls"])
def test_what_was_not_ready_when_a_step_raised_is_made_ready_before_the_next(what, monkeypatch):
    """Else texts would be written after no prompt, or by the controls of those that were in their rows before."""
    target, prompts, sampling = tiny.model(), [[65, 66], [70, 71], [65, 66]], dp.Sampling(temperature=0.3, top_k=5)
    made, expected = (requests(target, prompts, sampling) for _ in range(2))
    batch, sound = (graph(target, None, "block", dp.Tree.chain(0), len(prompts), 60) for _ in range(2))
    first, other = (requests(target, [[80]], dp.Sampling(), length=3) for _ in range(2))
    for one, before, texts in ((batch, first, made), (sound, other, expected)):
        one.add(before)
        finish(one)
        for text in texts:
            one.add([text])
    finish(sound)
    stepper = batch.stepper
    place, name = (stepper.device_step, "read") if what == "prompts" else (stepper, "_set_controls")
    with monkeypatch.context() as patch:
        patch.setattr(place, name, busy)
        with pytest.raises(RuntimeError):
            batch.step()
    finish(batch)
    assert [request.tokens for request in made] == [request.tokens for request in expected]


@pytest.mark.parametrize(
    ("sampling", "why"),
    [(dp.Sampling(), "non-finite scores"), (dp.Sampling(banned=(65,)), "non-finite scores, or no token is allowed")],
    ids=["plain", "masked"],
)
def test_a_text_that_cannot_go_on_costs_the_others_nothing(sampling, why):
    """The device has written on in every row when a fault is read."""
    target, prompts, said = tiny.model(), [[65, 66], [70, 71], [80]], Counter()
    made, expected = (requests(target, prompts, sampling) for _ in range(2))
    batch, sound = (graph(target, target, "block", dp.Tree.chain(3), len(prompts), 60) for _ in range(2))
    for request, other in zip(made, expected, strict=True):
        batch.add([request])
        sound.add([other])
    finish(sound)
    run, steps, fault = batch.stepper.device_step.run, count(), torch.tensor([0, int(Fault.TARGET), 0])
    batch.stepper.device_step.run = lambda tree: run(tree)._replace(fault=fault * (next(steps) == 2))

    def listen():
        while not batch.is_finished:
            for request, pieces in batch.step():
                said[request] += sum(len(piece.text) for piece in pieces)

    with pytest.raises(dp.DraftproofError, match=why):
        listen()
    listen()
    assert [request.finish for request in made] == ["length", "failed", "length"]
    assert [request.tokens for request in made[::2]] == [request.tokens for request in expected[::2]]
    assert all(said[request] == len(request.output.text) for request in made)  # nothing was kept back


@pytest.mark.parametrize("rows", [1, 3])
def test_no_step_is_in_vain_where_the_end_is_in_sight(rows, monkeypatch):
    """Steps of plain texts are as many as their tokens; with guesses none follows the step that ends the last text."""
    target = tiny.model()
    for draft, length in ((None, 0), (tiny.model("llama", 1), 3)):
        batch = graph(target, draft, "block", dp.Tree.chain(3), rows, 60)
        begun = []
        monkeypatch.setattr(
            batch.stepper.device_step,
            "run",
            lambda k, run=batch.stepper.device_step.run, begun=begun: begun.append(k) or run(k),
        )
        made = requests(target, [[65, 66 + r] for r in range(rows)], dp.Sampling(end_tokens=()), 12)
        for request in made:
            batch.add([request])
        finish(batch)
        assert begun == [dp.Tree.chain(length)] * max(len(request.trace.steps) for request in made)
        assert draft is not None or len(begun) == 12


@pytest.mark.parametrize(
    ("kind", "tree"), [("mistral", dp.Tree.chain(3)), ("llama", dp.Tree.best(9, 3)), ("head", dp.Tree.best(9, 3))]
)
def test_rows_come_and_go(kind, tree):
    target, sampling = tiny.model("mistral" if kind == "mistral" else "llama"), dp.Sampling(temperature=0.9)
    draft = drafter(kind, target)
    first, second, third = requests(target, [[65, 66], [70, 71, 72], [80] * 7], sampling, length=12)
    batch = graph(target, draft, "traversal", tree, 2, 60)
    batch.add([first])
    batch.step()
    batch.add([second])
    while not first.finish:
        batch.step()
    batch.add([third])
    finish(batch)
    for request in (first, second, third):
        alone = ask(target, request.prompt, sampling, sampling, 12, request.key)
        single = graph(target, draft, "traversal", tree, 1, 60)
        single.add([alone])
        finish(single)
        assert request.tokens == alone.tokens


@pytest.mark.parametrize("tree", [dp.Tree.chain(5), dp.Tree.best(9, 3)])
def test_a_text_may_fill_the_context(tree):
    """Guesses after its last tokens would have positions that are not in the model's table."""
    target, draft, sampling = tiny.model("gpt2"), tiny.model("gpt2", 1), dp.Sampling(end_tokens=())
    batch = graph(target, draft, "traversal", tree, 1, 100)
    (request,) = requests(target, [[5] * 80], sampling, 50)
    batch.add([request])
    finish(batch)
    assert (request.finish, len(request.tokens)) == ("context", 16)
    rule = verify.get("traversal")
    general = eager(target, [draft], rule, tree, 1, 110)
    (slow,) = requests(target, [[5] * 80], sampling, 50)
    general.add([slow])
    finish(general)
    assert request.tokens == slow.tokens


def prefills(batch, monkeypatch):
    """Rows and how much of each is read, for every call that reads prompts, as the sessions of a batch make them."""
    made = []
    for session in batch.stepper.device_step.sessions:

        def spy(ids, rows, positions, real=session.prefill):
            assert len(ids) == packing.STEP
            made.append({row: int(positions[rows == row].max()) + 1 for row in rows.tolist()})
            real(ids, rows, positions)

        monkeypatch.setattr(session, "prefill", spy)
    return made


def test_samples_of_one_prompt_share_its_computation(monkeypatch):
    target = tiny.model()
    made = requests(target, [[65, 66, 67]] * 4, dp.Sampling(), length=10)
    batch = graph(target, tiny.model("llama", 1), "block", dp.Tree.chain(3), 4, 40)
    read = prefills(batch, monkeypatch)
    batch.add(made)
    finish(batch)
    assert read == [{0: 3}] * 2  # target and drafter
    assert len({tuple(request.tokens) for request in made}) == 4


PROMPTS = [[65, 66, 67], [70] * 9, [80], [65, 66, 67], list(range(90, 110))]


@pytest.mark.parametrize("kind", ["llama", "mistral", "head", "none"])
def test_prompts_that_came_together_are_read_together(kind, monkeypatch):
    """The tokens are those of requests that were each alone."""
    target = tiny.model("mistral" if kind == "mistral" else "llama")
    draft, sampling = drafter(kind, target), dp.Sampling(temperature=0.9)
    made = requests(target, PROMPTS, sampling, length=12)
    batch = graph(target, draft, "block", dp.Tree.chain(3), len(PROMPTS), 40)
    read = prefills(batch, monkeypatch)
    for request in made:
        batch.add([request])
    assert batch.room == 0
    assert read == []
    finish(batch)
    # the fourth prompt is the first again
    assert read == [{4: 20, 1: 9, 0: 3, 2: 1}] * len(batch.stepper.device_step.sessions)
    for request in made:
        alone = ask(target, request.prompt, sampling, sampling, 12, request.key)
        single = graph(target, draft, "block", dp.Tree.chain(3), 1, 40)
        single.add([alone])
        finish(single)
        assert request.tokens == alone.tokens


def test_there_may_be_more_texts_than_tokens_in_each():
    target, sampling = tiny.model(), dp.Sampling(temperature=0.9)
    made = requests(target, [[65 + row, 66] for row in range(16)], sampling, length=2)
    batch = graph(target, drafter("head", target), "block", dp.Tree.chain(1), len(made), 4)
    for request in made:
        batch.add([request])
    finish(batch)
    assert all(len(request.tokens) == 2 for request in made)


@pytest.mark.parametrize("kind", ["llama", "head", "none"])
def test_a_width_that_comes_again_is_recorded(kind, monkeypatch):
    """Once, by every session; and later texts are read by that record, as if each had been read as it came."""
    monkeypatch.setattr(packing, "STEP", 8)
    target, recorded = tiny.model(), []
    draft = drafter(kind, target)

    def record(call):
        recorded.append(call)
        return SimpleNamespace(replay=call), None

    plain, recording = (graph(target, draft, "block", dp.Tree.chain(3), 2, 60) for _ in range(2))
    recording.stepper.device_step.readers = [
        PromptReader(session, record, Stopwatch()) for session in recording.stepper.device_step.sessions
    ]
    counts = []
    for prompts in ([[65] * 3], [[66] * 5, [67]], [[68] * 9], [[69] * 7], [[70, 71] * 5, [72] * 3], [[73]]):
        said = []
        for batch in (plain, recording):
            made = requests(target, prompts, dp.Sampling(temperature=0.9), length=5)
            for request in made:
                batch.add([request])
            finish(batch)
            said.append([request.tokens for request in made])
        assert said[0] == said[1]
        counts.append(len(recorded) // len(recording.stepper.device_step.sessions))
    assert counts == [0, 1, 1, 1, 2, 2]  # widths 8, 8, 16, 8, 16, 8


def test_prompts_read_together_leave_what_they_leave_alone(monkeypatch):
    """Keys, values and hidden states, to float32 rounding; in rows that are no neighbours."""
    target = tiny.model()
    head, texts = HeadModel(target, network()), {3: [65, 66, 67], 1: [70, 71, 72, 73, 74]}

    def read(texts, step):
        monkeypatch.setattr(packing, "STEP", step)
        session = StaticSession(target, 4, 8, taps=head.taps)
        beside = StaticHead(head, session, 2)
        (pack,) = packing.packs(texts.items())
        for one in (session, beside):
            one.prefill(*pack)
        return [*session.cache.buffers, *beside.cache.buffers], session.cache.features

    together, features = read(texts, 16)
    assert (features[:, :, 0] == 0).all()  # a head reads zeros there
    for row, text in texts.items():
        for both, alone in zip(together, read({row: text}, 1)[0], strict=True):
            # a step makes anew what the last token leaves
            torch.testing.assert_close(both[row, :, 1 : len(text) - 1], alone[row, :, 1 : len(text) - 1])
            assert both[row, :, 1 : len(text) - 1].any()


@pytest.mark.parametrize("kind", ["llama", "mistral", "head"])
def test_prompts_are_read_the_same_however_they_are_packed(kind, monkeypatch):
    """By one call each, by calls that hold two of them, and a prompt by itself that is too long for any."""
    target = tiny.model("mistral" if kind == "mistral" else "llama")
    draft, texts = drafter(kind, target), []
    for step, widest in ((1, 1), (8, 16), (128, 1024)):
        monkeypatch.setattr(packing, "STEP", step)
        monkeypatch.setattr(packing, "WIDEST", widest)
        made = requests(target, PROMPTS, dp.Sampling(temperature=0.9), length=12)
        batch = graph(target, draft, "block", dp.Tree.chain(3), len(PROMPTS), 40, tuner=Script([3, 0, 3]))
        for request in made:
            batch.add([request])
        finish(batch)
        texts.append([request.tokens for request in made])
    assert texts[0] == texts[1] == texts[2]


def test_a_queued_request_can_be_cancelled_and_its_row_taken(monkeypatch):
    target, sampling = tiny.model(), dp.Sampling(temperature=0.9)
    first, second, third, late = requests(target, [[65, 66], [70, 71, 72], [80] * 5, [90, 91]], sampling, length=10)
    batch = graph(target, tiny.model("llama", 1), "block", dp.Tree.chain(3), 2, 40)
    read = prefills(batch, monkeypatch)
    batch.add([first])
    batch.step()
    batch.add([second])
    batch.admit()  # while a step is in flight
    batch.cancel(second)
    assert batch.room == 1
    batch.step()
    assert read == [{0: 2}] * 2
    batch.add([third])
    batch.step()
    batch.cancel(first)
    batch.add([late])
    finish(batch)
    assert (second.finish, second.tokens) == ("cancelled", [])
    for request in (third, late):
        alone = ask(target, request.prompt, sampling, sampling, 10, request.key)
        single = graph(target, tiny.model("llama", 1), "block", dp.Tree.chain(3), 1, 40)
        single.add([alone])
        finish(single)
        assert request.tokens == alone.tokens
    only = graph(target, None, "block", dp.Tree.chain(0), 1, 40)
    for admit in (only.admit, lambda: None):  # whether it has a row or waits for one
        (early,) = requests(target, [[65, 66]], sampling)
        only.add([early])
        admit()
        only.cancel(early)
        assert only.is_finished


PENALTIES = {"repetition_penalty": 3.0, "frequency_penalty": 2.0}


@pytest.mark.parametrize("before", [PENALTIES, {}], ids=["same", "other"])
def test_penalties_of_a_row_are_counted_anew_for_its_next_text(before):
    """While a neighbour's text goes on, and whatever the penalties of the text before."""
    likely = dict.fromkeys((0, 80, 81, 82), 6.0)  # whether one of them was there before decides what is written
    target, sampling = tiny.model(), dp.Sampling(**PENALTIES, logit_bias=likely)
    short, long, last = requests(target, [[65, 66], [70, 71, 72], [80, 81, 82]], sampling, length=9)
    short.sampling, long.max_new_tokens = dp.Sampling(**before, logit_bias=likely), 30
    batch = graph(target, tiny.model("llama", 1), "block", dp.Tree.chain(3), 2, 60)
    for request in (short, long):
        batch.add([request])
    while not short.finish:
        batch.step()
    assert not long.finish
    batch.add([last])
    finish(batch)
    for request in (long, last):
        alone = ask(target, request.prompt, sampling, sampling, request.max_new_tokens, request.key)
        single = graph(target, tiny.model("llama", 1), "block", dp.Tree.chain(3), 1, 60)
        single.add([alone])
        finish(single)
        assert request.tokens == alone.tokens


def test_controls_are_set_only_where_they_change(monkeypatch):
    target = tiny.model()
    batch = graph(target, None, "block", dp.Tree.chain(0), 4, 40)
    calls = []
    real = batch.stepper._set_controls
    monkeypatch.setattr(batch.stepper, "_set_controls", lambda new: (calls.append(1), real(new)))
    for sampling, expected in ((dp.Sampling(), 1), (dp.Sampling(), 1), (dp.Sampling(top_k=5), 2)):
        for request in requests(target, [[65], [66, 67], [68]], sampling, length=3):
            batch.add([request])
        finish(batch)
        assert len(calls) == expected


def test_time_is_the_devices_or_the_hosts(monkeypatch):
    """Reading prompts takes 100 on this clock, a target call 10, and taking in what it said 1."""
    clock = [0.0]

    def takes(seconds, real):
        def timed(*args, **named):
            clock[0] += seconds
            return real(*args, **named)

        return timed

    target = tiny.model()
    made = requests(target, [[65, 66], [67]], dp.Sampling(), length=4)
    batch = graph(target, None, "block", dp.Tree.chain(0), 2, 40)
    for module in (fused, resident):
        ours = SimpleNamespace(perf_counter=lambda: clock[0], perf_counter_ns=lambda: int(clock[0] * 1e9))
        monkeypatch.setattr(module, "time", ours)
    session = batch.stepper.device_step.target
    monkeypatch.setattr(session, "forward", takes(10, session.forward))
    monkeypatch.setattr(session, "prefill", takes(100, session.prefill))
    monkeypatch.setattr(made[0], "absorb", takes(1, made[0].absorb))
    for request in made:
        batch.add([request])
    clock[0] += 1000  # before anything begins
    finish(batch)
    # the first step is read after the second, which here does not run beside it; the last right after the one before
    assert made[0].trace.seconds == {"prompt": 110, "draft": 0, "target": 40, "verify": 0, "overhead": 2}


def test_compiling_is_start_up_and_not_prefill(monkeypatch):
    """Capturing takes 500 on this clock, reading a prompt 100."""
    clock = [0.0]
    for module in (fused, resident, capture):
        ours = SimpleNamespace(perf_counter=lambda: clock[0], perf_counter_ns=lambda: int(clock[0] * 1e9))
        monkeypatch.setattr(module, "time", ours)
    target = tiny.model()
    (made,) = requests(target, [[65, 66]], dp.Sampling(), length=4)
    batch = graph(target, None, "block", dp.Tree.chain(0), 1, 40)
    batch.add([made])
    step = batch.stepper.device_step
    run, read = step.run, step.read

    def captured(tree):
        with step.start.running():
            clock[0] += 500 * (not made.trace.steps)
        return run(tree)

    def prefilled(texts):
        clock[0] += 100
        read(texts)

    monkeypatch.setattr(step, "run", captured)
    monkeypatch.setattr(step, "read", prefilled)
    finish(batch)
    # two steps are launched before the first is collected
    assert made.trace.start_seconds == 1000
    assert made.trace.seconds == {"prompt": 100, "draft": 0, "target": 0, "verify": 0, "overhead": 0}
    assert "start 1000.0 s, before the first target call" in made.trace.summary()


def test_a_text_is_written_where_the_last_one_was(monkeypatch):
    """So nothing is recorded anew; but only where nobody writes, there is room, and the kind of batch is the same."""
    monkeypatch.setattr("draftproof.engine.graph.fits", lambda *asked: True)
    monkeypatch.setattr(fused, "ROOM", 16)
    target, draft = tiny.model(), tiny.model("llama", 1)
    settings = {"draft": draft, "tree": dp.Tree.chain(3), "seed": 5, "chat": False}

    def write(prompt, **changed):
        asked = {**settings, "max_new_tokens": 20, **changed}
        text = dp.generate(target, prompt, **asked)
        assert (text.trace.drafted > 0) == (asked["draft"] is not None)
        return text.tokens, target.kept["graph"]

    alone, first = write([65, 66])
    write([70] * 5, sampling=dp.Sampling(temperature=0.7, top_k=9))
    assert write([65, 66]) == (alone, first)
    stream = dp.stream(target, [65, 66], max_new_tokens=20, **settings)
    next(iter(stream))
    assert write([65, 66])[0] == alone  # elsewhere, as the stream is not at its end
    assert target.kept["graph"] is not first
    for changed in ({"verify": "token"}, {"draft": None}, {"max_new_tokens": 50}, {"seed": None, "tree": None}):
        _, before = write([65, 66])
        assert write([65, 66], **changed)[1] is not before
    assert write([65, 66])[0] == alone


def test_what_fits(monkeypatch):
    """On a GPU, plain sampling and chains; a coupling draws with noise of its own, with and without a drafter."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    target, draft = tiny.model(), tiny.model("llama", 1)
    target.network = SimpleNamespace(device=torch.device("cuda"))
    samplings = (dp.Sampling(), dp.Sampling())

    def fits(drafts, rule, tree, samplings=samplings):
        return fused.fits(target, drafts, rule, tree, samplings)

    assert fits([draft], "block", dp.Tree.chain(5))
    assert fits([], "match", dp.Tree.chain(0))
    assert not fits([], "gumbel", dp.Tree.chain(0))
    assert not fits([draft], "gumbel", dp.Tree.chain(5))
    assert not fits([draft], "block", dp.Tree.star(2))
    assert not fits([], "block", dp.Tree.chain(0), (dp.Sampling(typical_p=0.9),) * 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not fits([draft], "block", dp.Tree.chain(5))
    target.network = SimpleNamespace(device=torch.device("cpu"))
    assert not fits([draft], "block", dp.Tree.chain(5))
