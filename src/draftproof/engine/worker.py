"""A thread that owns schedulers and steps them, and the channels through which event loops get what it writes."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

from draftproof.engine.detokenize import Piece
from draftproof.engine.request import Output, Request
from draftproof.engine.scheduler import Scheduler
from draftproof.engine.trace import Step, TokenLogprob, Trace
from draftproof.errors import DraftproofError

Opened = tuple[Scheduler, Sequence[Request]]  # requests that were added to a scheduler


class Update(NamedTuple):
    """What a step brought to one sample of a request."""

    sample: int
    pieces: tuple[Piece, ...]
    steps: tuple[Step, ...]  # most often one; none where a text is ended between two steps
    finish: str  # why the text has ended; empty if it goes on

    @property
    def tokens(self) -> list[int]:
        return [token for step in self.steps for token in step.tokens]

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """Of each token, where they were asked for."""
        return [one for step in self.steps for one in step.logprobs]


@dataclass
class Sample:
    """A request, and what was told of it; the worker alone looks at a request that has not ended."""

    request: Request
    text: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    is_over: bool = False

    @property
    def output(self) -> Output:
        request = self.request
        if self.is_over:
            return request.output
        told, steps = request.trace, list(self.steps)
        whole = Update(0, (), tuple(steps), "")
        logprobs = None if request.top_logprobs is None else whole.logprobs
        trace = Trace(told.verifier, told.drafter, told.notice, steps=steps, reused=told.reused)
        return Output("".join(self.text), whole.tokens, "", request.key.seed, trace, logprobs)


class Channel:
    """Updates of a request on their way from the worker to its consumer, who may be in any event loop or thread.

    Nobody waits for a consumer: what is not read stays here.
    """

    def __init__(self) -> None:
        self.accepted: Future[None] = _promise()
        self._lock = threading.Lock()
        self._samples: list[Sample] = []
        self._mail: deque[Update | Exception] = deque()
        self._news: Future[None] | None = None  # that a consumer awaits
        self._is_closed = False
        self.is_given_up = False  # by its consumer

    # The worker's side

    def open(self, requests: Iterable[Request]) -> None:
        """The requests were accepted."""
        self._samples = [Sample(request) for request in requests]
        self.accepted.set_result(None)

    def refuse(self, error: Exception) -> None:
        """The request was not accepted."""
        self._post([error], closes=True)
        self.accepted.set_exception(error)

    def tell(self, number: int, pieces: Sequence[Piece]) -> None:
        """Pass on what is new of a sample, and its error if it has failed."""
        sample = self._samples[number]
        request = sample.request
        steps = request.trace.steps[len(sample.steps) :]
        mail: list[Update | Exception] = [Update(number, tuple(pieces), tuple(steps), request.finish)]
        mail += [] if request.error is None else [request.error]
        with self._lock:
            sample.text += [piece.text for piece in pieces]
            sample.steps += steps
            sample.is_over = bool(request.finish)
        self._post(mail, closes=all(one.is_over for one in self._samples))

    def _post(self, mail: Iterable[Update | Exception], closes: bool) -> None:
        with self._lock:
            self._mail += mail
            self._is_closed = closes
            news, self._news = self._news, None
        if news is not None:
            news.set_result(None)

    # The consumer's side

    async def get(self) -> Update | None:
        """Wait for the next update, or raise what its sample failed with; None after the last."""
        while True:
            with self._lock:
                if self._mail or self._is_closed:
                    found = self._mail.popleft() if self._mail else None
                    break
                self._news = news = self._news or _promise()
            await asyncio.wrap_future(news)
        if isinstance(found, Exception):
            raise found
        return found

    @property
    def outputs(self) -> list[Output]:
        with self._lock:
            return [sample.output for sample in self._samples]


class Watched(NamedTuple):
    """Where a request is written, and where to tell of it."""

    scheduler: Scheduler
    channel: Channel
    sample: int


class Worker:
    """One thread that makes all steps of its schedulers, in turns, and sleeps while there is nothing to do.

    Callers leave jobs for it, which it does between two steps.
    """

    def __init__(self) -> None:
        self.stopped: Future[None] = _promise()
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()  # of closing: no job may come after the last
        self._is_closed = False
        self._stops = False
        self._schedulers: dict[Scheduler, int] = {}  # that are not finished -> errors of the model in a row
        self._watched: dict[Request, Watched] = {}
        self._thread = threading.Thread(target=self._run, name="draftproof", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    # What callers ask for, from any thread

    def submit(self, opens: Callable[[], Opened], before: Callable[[], object] | None = None) -> Channel:
        """Add requests to a scheduler; `opens` does that, in the worker's thread.

        before    what must be done first and may take long, such as compiling a grammar: in a thread of its own, while
                  other texts go on
        """
        channel = Channel()
        if before is None:
            self._put(channel, opens)
        else:
            threading.Thread(target=self._after, args=(before, channel, opens), daemon=True).start()
        return channel

    def _after(self, before: Callable[[], object], channel: Channel, opens: Callable[[], Opened]) -> None:
        try:
            before()
            self._put(channel, opens)
        except BaseException as error:  # what is wrong with the request, or the engine was closed meanwhile
            channel.refuse(_exception(error))

    def _put(self, channel: Channel, opens: Callable[[], Opened]) -> None:
        with self._lock:
            if self._is_closed:
                raise DraftproofError("the engine is closed: open another one")
            self._jobs.put(partial(self._open, channel, opens))

    def cancel(self, channel: Channel) -> None:
        """Cancel the requests of a channel that have not ended; their text so far is kept."""
        channel.is_given_up = True
        self._jobs.put(partial(self._cancel, channel))

    def stop(self, abort: bool) -> None:
        """End the thread once all texts are finished, or cancel them first."""
        with self._lock:
            self._is_closed = True
            self._jobs.put(partial(self._stop, abort))

    # What the thread does

    def _run(self) -> None:
        try:
            while self._schedulers or not self._stops:
                self._do_jobs()
                for scheduler in list(self._schedulers):
                    self._step(scheduler)
        finally:
            self.stopped.set_result(None)

    def _do_jobs(self) -> None:
        """Do what was asked for meanwhile; wait for a job if there is nothing else to do."""
        if not self._schedulers:
            self._jobs.get()()
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return
            job()

    def _open(self, channel: Channel, opens: Callable[[], Opened]) -> None:
        try:
            scheduler, requests = opens()
        except BaseException as error:  # a wrong setting, a model that cannot be loaded
            channel.refuse(_exception(error))
            return
        self._schedulers.setdefault(scheduler, 0)
        self._watched |= {request: Watched(scheduler, channel, i) for i, request in enumerate(requests)}
        channel.open(requests)
        if channel.is_given_up:  # before it came here
            self._cancel(channel)

    def _cancel(self, channel: Channel | None = None, error: Exception | None = None) -> None:
        """Cancel the requests of one channel, or all."""
        for request, watched in list(self._watched.items()):
            if channel is None or watched.channel is channel:
                watched.scheduler.cancel(request, error)

    def _stop(self, abort: bool) -> None:
        self._stops = True
        if abort:
            self._cancel()

    def _step(self, scheduler: Scheduler) -> None:
        try:
            pieces, errors = scheduler.step(), 0
        except BaseException as error:
            pieces, errors = scheduler.take(), self._failed(scheduler, _exception(error))
        self._tell(scheduler, pieces)
        if scheduler.is_finished:
            del self._schedulers[scheduler]
        else:
            self._schedulers[scheduler] = errors

    def _failed(self, scheduler: Scheduler, error: Exception) -> int:
        """How often the model has failed in a row. Once may have been by chance; the second time ends its texts."""
        mine = [request for request, watched in self._watched.items() if watched.scheduler is scheduler]
        if any(request.error is error for request in mine):
            return 0  # the request has ended, the others go on
        if self._schedulers[scheduler]:
            for request in mine:
                scheduler.cancel(request, error)
        return self._schedulers[scheduler] + 1

    def _tell(self, scheduler: Scheduler, written: Iterable[tuple[Request, list[Piece]]]) -> None:
        news: dict[Request, list[Piece]] = {}
        for request, pieces in written:
            news.setdefault(request, []).extend(pieces)
        for request, watched in list(self._watched.items()):
            if watched.scheduler is scheduler and (request in news or request.finish):
                watched.channel.tell(watched.sample, news.get(request, ()))
                if request.finish:
                    del self._watched[request]


def _exception(error: BaseException) -> Exception:
    """What a consumer may raise: to end the thread, as by sys.exit() in a processor, would leave the others waiting."""
    return error if isinstance(error, Exception) else DraftproofError(f"{error!r} ended the step")


def _promise() -> Future[None]:
    """A future that cannot be cancelled by one of those who await it."""
    promise: Future[None] = Future()
    promise.set_running_or_notify_cancel()
    return promise
