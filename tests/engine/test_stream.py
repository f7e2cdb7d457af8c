"""A stream that is broken off: its text so far can be read, it can go on, and it can be cancelled."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest

import draftproof as dp
from draftproof.engine.graph.runner import GraphStepper
from tests.support import tiny
from tests.support.schedulers import table

TARGET, DRAFT = table(1), table(2)
HOW = {"draft": DRAFT, "tree": "chain:3", "max_new_tokens": 30, "seed": 1, "logprobs": 1}


def consistent(output: dp.Output) -> bool:
    """Whether tokens, text, logprobs and trace tell the same story."""
    traced = [token for step in output.trace.steps for token in step.tokens]
    said = [one.token for one in output.logprobs]
    return output.tokens == traced == said and output.text == " ".join(map(str, traced))


def test_a_stream_that_is_broken_off_has_its_text_so_far_and_can_go_on():
    whole = dp.generate(TARGET, [0], **HOW)
    writing = dp.stream(TARGET, [0], **HOW)
    assert (writing.output.text, writing.output.tokens, writing.output.finish) == ("", [], "cancelled")
    seen = []
    for piece in writing:
        seen.append(piece.text)
        if len(seen) == 7:
            break
    broken = writing.output
    assert (broken.finish, broken.seed) == ("cancelled", 1)
    assert consistent(broken)
    assert 7 <= len(broken.tokens) < 30
    assert broken.tokens == whole.tokens[: len(broken.tokens)]
    length = len(broken.tokens)
    seen += [piece.text for piece in writing]
    assert "".join(seen) == writing.output.text == whole.text
    assert writing.output.finish == "length"
    assert len(broken.tokens) == len(broken.logprobs) == broken.trace.tokens == length  # stays what it was


def test_what_a_stop_string_holds_back_is_text_so_far():
    target = tiny.model()
    whole = dp.generate(target, "abc", draft=None, max_new_tokens=30, seed=1, sampling=dp.Sampling(end_tokens=()))
    writing = dp.stream(
        target, "abc", draft=None, max_new_tokens=30, seed=1, stop=whole.text[-6:], sampling=dp.Sampling(end_tokens=())
    )
    for _ in writing:
        output = writing.output
        assert output.text == target.tokenizer.decode(output.tokens)
    assert writing.output.finish == "stop"


@pytest.mark.parametrize("how", ["cancel", "close", "with", "closing"])
def test_a_cancelled_stream_ends_and_frees_its_rows(how):
    writing = dp.stream(TARGET, [0], **HOW)
    if how in ("with", "closing"):
        with writing if how == "with" else closing(writing):
            next(writing)
    else:
        next(writing)
        getattr(writing, how)()
    output = writing.output
    assert output.finish == "cancelled"
    assert consistent(output)
    assert output.tokens
    assert list(writing) == []
    assert writing._scheduler.is_finished
    assert [stepper.rows for stepper in writing._scheduler._flights] == [[]]
    writing.cancel()  # again: nothing happens
    assert writing.output == output


def test_cancelling_a_finished_stream_changes_nothing():
    with dp.stream(TARGET, [0], **HOW) as writing:
        for _ in writing:
            pass
    assert writing.output.finish == "length"


def test_rows_of_captured_steps_are_free_for_the_next_text(monkeypatch):
    """With a step in flight too; else graphs would be captured anew for every text after it."""
    monkeypatch.setattr("draftproof.engine.graph.fits", lambda *given: True)
    target = tiny.model()
    with dp.stream(target, "abc", draft=None, max_new_tokens=30) as writing:
        next(writing)
    kept = target.kept["graph"]
    assert isinstance(kept, GraphStepper)
    assert not kept.is_busy
    assert not kept.in_flight
    dp.generate(target, "abc", draft=None, max_new_tokens=30)
    assert target.kept["graph"] is kept


def broken():
    raise KeyboardInterrupt


def test_an_interrupt_inside_a_step_keeps_what_was_written():
    calls = []

    def processor(ids, scores):
        calls.append(None)
        return broken() if len(calls) == 20 else scores

    writing = dp.stream(TARGET, [0], **HOW, sampling=dp.Sampling(processors=[processor]))
    seen = []
    with pytest.raises(KeyboardInterrupt):
        seen += [piece.text for piece in writing]
    output = writing.output
    assert output.finish == "cancelled"
    assert output.tokens
    assert consistent(output)
    assert list(writing) == []  # a step that is half done cannot go on


ENGINE = Path(sys.modules[dp.stream.__module__].__file__).parent
KEEPERS = {str(ENGINE / name) for name in ("generate.py", "scheduler.py", "request.py", "detokenize.py")}


def interrupted_at(place: int) -> dp.Output | None:
    """A text that is interrupted at that line of the code that keeps it; None if it ends before."""
    writing = dp.stream(TARGET, [0], **{**HOW, "max_new_tokens": 7})
    lines = 0

    def local(frame, event, _):
        nonlocal lines
        inside = frame.f_code.co_name not in ("__next__", "restore", "_begin")
        if event == "line" and inside:
            lines += 1
            if lines == place:
                sys.settrace(None)
                raise KeyboardInterrupt
        return local

    sys.settrace(lambda frame, event, _: local if frame.f_code.co_filename in KEEPERS else None)
    try:
        for _ in writing:
            pass
    except KeyboardInterrupt:
        return writing.output
    finally:
        sys.settrace(None)
    return None


def test_an_interrupt_at_any_line_leaves_a_text_that_can_be_read():
    whole = dp.generate(TARGET, [0], **{**HOW, "max_new_tokens": 7})
    lengths, place = set(), 1
    while (output := interrupted_at(place)) is not None:
        assert consistent(output)
        assert output.tokens == whole.tokens[: len(output.tokens)]
        assert output.finish in ("cancelled", "length")
        lengths.add(len(output.tokens))
        place += 1
    assert {0, len(whole.tokens)} < lengths


def test_an_error_of_the_model_can_be_over_with_the_next_piece():
    calls = []

    class OnceError(Exception):
        """Raised by the model itself, not by a row."""

    target = table(1)
    session = target.session

    def moody(rows, capacity):
        inner = session(rows, capacity)
        extend = inner.extend

        def once(*given):
            calls.append(None)
            if len(calls) == 3:
                raise OnceError
            return extend(*given)

        inner.extend = once
        return inner

    target.session = moody
    writing = dp.stream(target, [0], **HOW)
    seen = []
    with pytest.raises(OnceError):
        seen += [piece.text for piece in writing]
    assert writing.output.finish == "cancelled"
    rest = [piece.text for piece in writing]
    assert writing.output.finish == "length"
    assert writing.output.text == dp.generate(TARGET, [0], **HOW).text
    assert writing.output.text.endswith("".join(rest))
