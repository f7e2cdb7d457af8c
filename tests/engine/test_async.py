"""Texts for asyncio: who waits, who is cancelled, who fails, and that nobody else notices."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from contextlib import aclosing, suppress
from itertools import count

import pytest

import draftproof as dp
from draftproof.engine import async_engine
from tests.support import tiny
from tests.support.schedulers import table

TARGET, DRAFT = table(1), table(2)
HOW = {"max_new_tokens": 20, "seed": 1, "logprobs": 1}
ENDLESS = {"max_new_tokens": 10_000, "seed": 2}


def engine(**settings) -> dp.AsyncEngine:
    return dp.AsyncEngine(TARGET, **{"draft": DRAFT, "tree": "chain:3", "rows": 4, "length": 20_000, **settings})


def alone(**settings) -> dp.Output:
    return dp.generate(TARGET, [0], draft=DRAFT, tree="chain:3", **{**HOW, **settings})


class Gate:
    """A target whose calls wait until a test lets them through."""

    def __init__(self) -> None:
        self.model, self.permits, self.calls = table(1), threading.Semaphore(0), count(1)
        self.made = 0
        session = self.model.session

        def gated(rows, capacity):
            inner = session(rows, capacity)
            extend = inner.extend

            def slow(*given):
                self.permits.acquire()
                self.made = next(self.calls)
                return extend(*given)

            inner.extend = slow
            return inner

        self.model.session = gated

    def let(self, calls: int) -> None:
        self.permits.release(calls)


# One text


def test_a_text_is_the_one_that_generate_writes():
    async def main():
        one = await dp.agenerate(TARGET, [0], draft=DRAFT, tree="chain:3", **HOW)
        several = await dp.agenerate(TARGET, [0], n=3, draft=DRAFT, tree="chain:3", **HOW)
        writing = dp.astream(TARGET, [0], draft=DRAFT, tree="chain:3", **HOW)
        return one, several, "".join([piece.text async for piece in writing]), writing.output

    one, several, text, output = asyncio.run(main())
    assert text == output.text == one.text == alone().text
    assert (output.tokens, output.logprobs, output.finish) == (one.tokens, alone().logprobs, "length")
    samples = dp.generate(TARGET, [0], n=3, draft=DRAFT, tree="chain:3", **HOW)
    assert [sample.tokens for sample in several] == [sample.tokens for sample in samples]


def test_the_event_loop_goes_on_while_a_step_is_made():
    """The step waits for something that only the event loop does."""
    gate = Gate()

    async def main():
        writing = asyncio.ensure_future(dp.agenerate(gate.model, [0], draft=None, max_new_tokens=3))
        for _ in range(3):
            await asyncio.sleep(0)
            assert not writing.done()
            gate.let(1)
        return await writing

    assert len(asyncio.run(main()).tokens) == 3


def test_texts_side_by_side_share_one_thread_and_take_turns():
    """Each waits for the other's first piece."""

    async def write(seed, mine, other):
        async for _ in dp.astream(TARGET, [0], draft=None, max_new_tokens=5_000, seed=seed):
            mine.set()
            if other.is_set():
                return threading.active_count()
        raise AssertionError("the other has never had a turn")

    async def main():
        one, two = asyncio.Event(), asyncio.Event()
        before = threading.active_count()
        return before, await asyncio.gather(write(1, one, two), write(2, two, one))

    before, during = asyncio.run(main())
    assert max(during) <= before + 1


@pytest.mark.parametrize("wrong", [{"lossy": "nonsense"}, {"max_new_tokens": 0}, {"logprobs": -1}])
def test_a_wrong_setting_raises_where_the_text_is_awaited(wrong):
    async def read():
        async for _ in dp.astream(TARGET, [0], **wrong):
            pass

    for awaited in (read, lambda: dp.agenerate(TARGET, [0], **wrong)):
        with pytest.raises(dp.DraftproofError, match=next(iter(wrong))):
            asyncio.run(awaited())
    with pytest.raises(dp.DraftproofError, match="unknown setting 'verfy'"):
        dp.astream(TARGET, [0], verfy="block")


# Many


def test_many_tasks_get_the_texts_that_they_would_get_alone():
    async def main():
        async with engine() as serving:
            return await asyncio.gather(*(serving.generate([0], **{**HOW, "seed": seed}) for seed in range(12)))

    for seed, output in enumerate(asyncio.run(main())):
        assert output._replace(trace=None) == alone(seed=seed)._replace(trace=None)


def test_a_network_with_a_head_is_served_from_the_thread():
    target, draft = tiny.model(), tiny.model("llama", 1)

    async def main():
        async with dp.AsyncEngine(target, draft=draft, rows=2, length=60) as serving:
            return await asyncio.gather(*(serving.generate("abc", max_new_tokens=12, seed=s) for s in range(3)))

    for seed, output in enumerate(asyncio.run(main())):
        assert output.tokens == dp.generate(target, "abc", draft=draft, max_new_tokens=12, seed=seed).tokens


def test_updates_say_what_each_step_brought_to_which_sample():
    async def main():
        async with engine() as serving:
            handle = serving.add_request([0], n=3, **HOW)
            with pytest.raises(dp.DraftproofError, match=r"there are 3 samples: iterate over updates\(\)"):
                aiter(handle)
            return [update async for update in handle.updates()], handle.outputs

    updates, outputs = asyncio.run(main())
    samples = dp.generate(TARGET, [0], n=3, draft=DRAFT, tree="chain:3", **HOW)
    for number, (output, sample) in enumerate(zip(outputs, samples, strict=True)):
        mine = [update for update in updates if update.sample == number]
        assert [token for update in mine for token in update.tokens] == output.tokens == sample.tokens
        assert [one for update in mine for one in update.logprobs] == output.logprobs == sample.logprobs
        assert [step for update in mine for step in update.steps] == output.trace.steps
        assert "".join(piece.text for update in mine for piece in update.pieces) == output.text
        assert [update.finish for update in mine] == [""] * (len(mine) - 1) + ["length"]


def test_the_samples_of_a_request_share_its_prefill():
    target, joined = table(1), []
    session = target.session

    def spied(rows, capacity):
        inner = session(rows, capacity)
        join = inner.join
        inner.join = lambda row, tokens: (joined.append(tokens), join(row, tokens))
        return inner

    target.session = spied

    async def main():
        async with dp.AsyncEngine(target, draft=None, rows=4) as serving:
            return await serving.generate([0, 1], n=4, max_new_tokens=5, seed=1)

    assert len({tuple(output.tokens) for output in asyncio.run(main())}) > 1
    assert len(joined) == 1


def test_the_text_so_far_can_be_read_at_any_time():
    async def main():
        async with engine(rows=1) as serving:
            handle = serving.add_request([0], **ENDLESS, logprobs=0)
            assert handle.outputs == []
            with pytest.raises(dp.DraftproofError, match=r"not accepted yet: await accepted\(\)"):
                _ = handle.output
            await handle.accepted()
            text = ""
            async for update in handle.updates():
                text += "".join(piece.text for piece in update.pieces)
                output = handle.output
                assert output.finish == ""
                assert output.text.startswith(text)
                assert output.text == " ".join(map(str, output.tokens))
                assert [one.token for one in output.logprobs] == output.tokens
                assert output.trace.tokens == len(output.tokens)
                if len(text) > 50:
                    break
            handle.cancel()
            async for _ in handle.updates():
                pass
            return handle.output

    output = asyncio.run(main())
    assert output.finish == "cancelled"
    assert output.text == " ".join(map(str, output.tokens))


# Who leaves


async def by_cancel(serving, gate):
    handle = serving.add_request([0], **ENDLESS)
    gate.let(1)
    await anext(handle)
    handle.cancel()
    return handle._channel


async def by_dropping(serving, gate):
    handle = serving.stream([0], **ENDLESS)
    gate.let(1)
    async for _ in handle:
        break
    return handle._channel


async def by_with(serving, gate):
    async with serving.add_request([0], **ENDLESS) as handle:
        gate.let(1)
        await anext(handle)
        asyncio.get_running_loop().call_soon(gate.let, 1)  # once it waits for the step under way
    return handle._channel


async def by_closing(serving, gate):
    async with aclosing(serving.stream([0], **ENDLESS)) as handle:
        gate.let(1)
        await anext(handle)
        asyncio.get_running_loop().call_soon(gate.let, 1)  # once it waits for the step under way
    return handle._channel


async def by_cancelled_task(serving, gate):
    handle = serving.add_request([0], **ENDLESS)
    first = asyncio.Event()

    async def consume():
        async for _ in handle:
            first.set()

    task = asyncio.ensure_future(consume())
    gate.let(1)
    await first.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return handle._channel


async def by_cancelled_generate(serving, gate):
    task = asyncio.ensure_future(serving.generate([0], **ENDLESS))
    gate.let(1)
    while not serving._worker._watched:
        await asyncio.sleep(0)
    (watched,) = serving._worker._watched.values()
    while not watched.channel.outputs[0].tokens:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)  # it asks to be cancelled, and waits for the step under way
    gate.let(1)
    with pytest.raises(asyncio.CancelledError):
        await task
    return watched.channel


LEAVERS = [by_cancel, by_dropping, by_with, by_closing, by_cancelled_task, by_cancelled_generate]


@pytest.mark.parametrize("leaves", LEAVERS, ids=lambda leaves: leaves.__name__)
def test_who_leaves_is_cancelled_within_one_step(leaves):
    gate = Gate()

    async def main():
        async with dp.AsyncEngine(gate.model, draft=None, rows=2, length=20_000) as serving:
            channel = await leaves(serving, gate)
            gc.collect()
            gate.let(100)
            await serving.generate([0], max_new_tokens=3)
            return channel.outputs[0]

    output = asyncio.run(main())
    assert output.finish == "cancelled"
    assert 1 <= len(output.tokens) <= 2  # the step that was under way when it left


def test_a_consumer_that_never_reads_slows_nobody():
    async def main():
        async with engine() as serving:
            silent = serving.add_request([0], max_new_tokens=50, seed=3)
            await serving.generate([0], **HOW)
            return silent

    silent = asyncio.run(main())  # leaving the block finishes all texts
    assert silent.output._replace(trace=None) == alone(max_new_tokens=50, seed=3, logprobs=None)._replace(trace=None)


# What fails


def shy(ids, scores):
    if ids.shape[1] > 6:
        raise ZeroDivisionError("too long")
    return scores


def leaving(ids, scores):
    return sys.exit(3)


def test_what_a_request_raises_is_raised_to_its_consumer_alone():
    async def main():
        async with engine() as serving:
            wrong = serving.add_request([0], **{**HOW, "sampling": dp.Sampling(processors=[shy])})
            others = [serving.generate([0], **{**HOW, "seed": seed}) for seed in (1, 2)]
            refused = serving.generate([0], max_new_tokens=0)
            found = await asyncio.gather(wrong._finished(), refused, *others, return_exceptions=True)
            return found, wrong.output

    (error, refused, *others), output = asyncio.run(main())
    assert isinstance(error, ZeroDivisionError)
    assert "max_new_tokens" in str(refused)
    assert (output.finish, len(output.tokens) > 2) == ("failed", True)
    assert output.text == " ".join(map(str, output.tokens))
    assert [other.tokens for other in others] == [alone(seed=seed).tokens for seed in (1, 2)]


def test_a_request_that_is_not_accepted_says_so_before_it_is_read():
    async def main():
        async with engine() as serving:
            handle = serving.add_request([0], max_new_tokens=10**9)
            with pytest.raises(dp.DraftproofError, match="do not fit"):
                await handle.accepted()
            with pytest.raises(dp.DraftproofError, match="there are only 4 rows for 5 texts"):
                await serving.generate([0], n=5, max_new_tokens=3)
            with pytest.raises(dp.DraftproofError, match="n must be a whole number"):
                serving.add_request([0], n=0)

    asyncio.run(main())


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_model_that_fails_once_is_asked_again_and_one_that_fails_twice_is_not(times):
    target, calls = table(1), count(1)
    session = target.session

    def moody(rows, capacity):
        inner = session(rows, capacity)
        extend = inner.extend

        def sometimes(*given):
            if 3 <= next(calls) < 3 + times:
                raise MemoryError("for a moment")
            return extend(*given)

        inner.extend = sometimes
        return inner

    target.session = moody

    async def main():
        async with dp.AsyncEngine(target, draft=None, rows=2) as serving:
            texts = [serving.generate([0], max_new_tokens=9, seed=seed) for seed in (1, 2, 3)]  # the last one waits
            found = await asyncio.gather(*texts, return_exceptions=True)
            return found, await serving.generate([0], max_new_tokens=9, seed=4)

    found, later = asyncio.run(main())
    assert len(later.tokens) == 9
    if times == 1:
        plain = [dp.generate(TARGET, [0], draft=None, max_new_tokens=9, seed=seed).tokens for seed in (1, 2, 3)]
        assert [output.tokens for output in found] == plain
    else:
        assert {type(error) for error in found} == {MemoryError}


def test_who_would_end_the_thread_ends_its_text_and_those_beside_it_only():
    async def main():
        async with engine() as serving:
            with pytest.raises(dp.DraftproofError, match=r"SystemExit\(3\) ended the step"):
                await serving.generate([0], sampling=dp.Sampling(processors=[leaving]))
            return await serving.generate([0], **HOW)

    assert asyncio.run(main()).tokens == alone().tokens


# How it ends


def test_closing_finishes_or_aborts():
    async def main():
        serving = engine()
        drained = serving.add_request([0], **HOW)
        await serving.close()
        aborting = engine()
        aborted = aborting.add_request([0], **ENDLESS)
        await anext(aborted)
        await aborting.close(abort=True)
        await aborting.close()  # again: nothing happens
        left = engine()
        with suppress(ZeroDivisionError):
            async with left:
                cut = left.add_request([0], **ENDLESS)
                await anext(cut)
                raise ZeroDivisionError
        for one in (serving, aborting, left):
            one._worker._thread.join()  # or the test hangs
            with pytest.raises(dp.DraftproofError, match="the engine is closed: open another one"):
                one.add_request([0])
        return drained.output, aborted.output, cut.output

    drained, aborted, cut = asyncio.run(main())
    assert drained.tokens == alone().tokens
    assert [aborted.finish, cut.finish] == ["cancelled", "cancelled"]
    assert aborted.tokens


def test_an_engine_that_nobody_holds_ends_its_thread():
    async def main():
        serving = engine()
        handle, worker = serving.stream([0], **HOW), serving._worker
        del serving
        gc.collect()
        pieces = [piece async for piece in handle]  # holds its engine
        assert handle.output.finish == "length"
        del handle
        gc.collect()
        await asyncio.wait_for(asyncio.wrap_future(worker.stopped), 60)
        return pieces

    assert asyncio.run(main())


def test_without_work_no_step_is_made(monkeypatch):
    async def main():
        async with engine() as serving:
            await serving.generate([0], **HOW)
            made = []
            monkeypatch.setattr(serving._engine.scheduler, "step", lambda: made.append(None))
            await asyncio.sleep(0.05)
            assert made == []
            assert serving._worker._jobs.empty()
            monkeypatch.undo()

    asyncio.run(main())


def test_event_loops_in_several_threads_share_an_engine():
    serving, found = engine(), {}

    def thread(seed):
        async def main():
            text = [piece.text async for piece in serving.stream([0], **{**HOW, "seed": seed})]
            return "".join(text)

        found[seed] = asyncio.run(main())

    threads = [threading.Thread(target=thread, args=(seed,)) for seed in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    asyncio.run(serving.close())
    assert found == {seed: alone(seed=seed).text for seed in range(6)}


def test_the_shared_thread_is_opened_again_where_it_is_gone():
    """As after a fork."""

    async def main():
        await dp.agenerate(TARGET, [0], **HOW)
        first = async_engine._worker
        first.stop(abort=True)
        await asyncio.wrap_future(first.stopped)
        first._thread.join()
        await dp.agenerate(TARGET, [0], **HOW)
        return first is not async_engine._worker

    assert asyncio.run(main())
