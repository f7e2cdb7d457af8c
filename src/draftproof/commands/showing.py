"""Show texts as they are written, then a summary for people or JSON for programs."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from importlib.metadata import version
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from draftproof.commands.text_options import TextOptions
    from draftproof.engine.detokenize import Piece
    from draftproof.engine.generate import Stream
    from draftproof.engine.request import Output, Request
    from draftproof.engine.scheduler import Scheduler
    from draftproof.models.hf import HFModel
    from draftproof.sampling import Sampling

COLOURS = {"accepted": "green", "corrected": "yellow", "plain": ""}


def show(writing: Stream) -> Output:
    """Print pieces of text as they come, with colours if the terminal supports them.

    Ctrl-C ends the text, and what was written stays; before the first piece it ends the command.
    """
    console, begun = _console(), False
    try:
        with _until_the_first() as begin:
            for piece in writing:
                if not begun:
                    begin()
                with _whole():
                    _print(console, [piece])
                    begun = True
    except KeyboardInterrupt:
        if not begun:
            raise
    console.print()
    return writing.output


def finish(writing: Stream) -> Output:
    """Generate the text without showing it. Ctrl-C ends it as in `show`."""
    try:
        for _ in writing:
            pass
    except KeyboardInterrupt:
        if not writing.output.tokens:
            raise
    return writing.output


def samples(scheduler: Scheduler, requests: Sequence[Request], shown: bool) -> list[Output]:
    """Generate samples together and print them one below the other: the first as it comes, the others after it.

    On a terminal each has a header, elsewhere an empty line is between two. Ctrl-C ends them as in `show`.
    """
    console, turn = _console(), 0
    waiting: dict[Request, list[Piece]] = {request: [] for request in requests}
    try:
        if shown:
            _head(console, turn, len(requests))
        for made in _steps(scheduler):
            with _whole():
                for request, pieces in made:
                    waiting[request] += pieces
                while shown and turn < len(requests):
                    request = requests[turn]
                    _print(console, waiting[request])
                    waiting[request] = []
                    if not request.finish:
                        break
                    console.print()
                    turn += 1
                    if turn < len(requests):
                        _head(console, turn, len(requests))
    except KeyboardInterrupt:
        if not any(request.tokens for request in requests):
            raise
        for request in requests[turn:] if shown else ():
            if request is not requests[turn]:
                _head(console, requests.index(request), len(requests))
            _print(console, waiting[request])
            console.print()
    outputs = [request.output for request in requests]
    return [output if output.finish else output._replace(finish="cancelled") for output in outputs]


def summarise(output: Output, speeds: Any, by_clock: bool, own: dict[str, Any] | None = None) -> None:
    """Print a few lines to standard error, so that a pipe gets the text alone.

    own   sampling controls that the model's generation_config.json decided
    """
    seed = "no seed, so drafts were tuned by the clock" if by_clock else f"seed {output.seed}"
    _say(["", output.trace.summary(), *_own(own), f"finished: {output.finish}; {seed}"], speeds)


def summarise_samples(outputs: Sequence[Output], speeds: Any, by_clock: bool, own: dict[str, Any]) -> None:
    """The same for samples that were generated together, so that a target call serves several of them."""
    traces = [output.trace for output in outputs]
    tokens, drafted, accepted = (sum(getattr(t, name) for t in traces) for name in ("tokens", "drafted", "accepted"))
    longest = max(traces, key=lambda trace: len(trace.steps))  # it took part in every step
    seconds = sum(longest.seconds.values())
    speed = f", {tokens / seconds:.1f} tokens/s" if seconds else ""
    lines = ["", f"{len(outputs)} samples with {tokens} tokens in {len(longest.steps)} target calls{speed}"]
    if drafted:
        chosen = f", chosen for {longest.chosen_for}" if longest.chosen_for else ""
        share = f"{accepted} of {drafted} draft tokens accepted ({accepted / drafted:.0%})"
        lines.append(f"draft {longest.drafter}, verifier {longest.verifier}{chosen}: {share}")
    lines += [longest.notice] if longest.notice else []
    ends = ", ".join(f"{end} x {count}" for end, count in Counter(output.finish for output in outputs).most_common())
    seed = "no seed, so drafts were tuned by the clock" if by_clock else f"seed {outputs[0].seed}"
    _say([*lines, *_own(own), f"finished: {ends}; {seed}"], speeds)


def as_dict(output: Output) -> dict[str, Any]:
    """A text and its trace for JSON."""
    return {
        "text": output.text,
        "tokens": output.tokens,
        "finish": output.finish,
        "notice": output.notice,
        "seed": output.seed,
        "tokens_per_s": speed(output),
        "trace": output.trace.as_dict(),
        **logprobs_as_dict(output),
    }


def speed(output: Output) -> float:
    """Tokens a second, from the first step on."""
    return output.trace.tokens / max(sum(output.trace.seconds.values()), 1e-9)


def logprobs_as_dict(output: Output) -> dict[str, Any]:
    """Logprobs of each token for JSON, where they were asked for."""
    return {} if output.logprobs is None else {"logprobs": [one.as_dict() for one in output.logprobs]}


def settings_as_dict(options: TextOptions, model: HFModel, output: Output, sampling: Sampling) -> dict[str, Any]:
    """All that a text was written with, for JSON: enough to write it again."""
    ends = model.end_tokens if sampling.end_tokens is None else sampling.end_tokens
    controls = {**asdict(sampling), "end_tokens": list(ends)}
    del controls["processors"]  # functions, which no option names
    return {
        "target": options.target,
        "draft": output.trace.drafter,
        "verify": output.trace.verifier,
        "lossy": options.lossy,
        "tree": options.tree,
        "dtype": options.dtype,
        "device": str(model.network.device),
        "sampling": controls,
        "draft_sampling": options.draft_controls,
        "max_new_tokens": options.max_new_tokens,
        "stop": list(options.stop),
        "chat": options.chat,
        "system": options.system,
        "versions": {name: version(name) for name in ("draftproof", "torch", "transformers")},
    }


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def _steps(scheduler: Scheduler) -> Iterator[list[tuple[Request, list[Piece]]]]:
    """The pieces of every step."""
    with _until_the_first() as begin:
        while not scheduler.is_finished:
            pieces = scheduler.step()
            begin()
            yield pieces


def _until_the_first() -> AbstractContextManager[Callable[[], None]]:
    """Say while the first step compiles kernels, on standard error; the function ends that."""
    from rich.console import Console

    from draftproof.commands.progress import compiling

    return compiling(Console(stderr=True))


def _print(console: Console, pieces: Sequence[Piece]) -> None:
    """Print pieces as segments: rich's Text would drop tabs and carriage returns."""
    from rich.segment import Segment, Segments
    from rich.style import Style

    console.print(Segments([Segment(piece.text, Style.parse(COLOURS[piece.kind])) for piece in pieces]), end="")


@contextmanager
def _whole() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block: what it interrupts in rich is printed a second time."""
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        signal.raise_signal(signal.SIGINT)


def _head(console: Console, number: int, count: int) -> None:
    if console.is_terminal:
        console.print(f"── sample {number + 1} of {count} ──", style="dim")
    elif number:
        console.print()


def _own(controls: dict[str, Any] | None) -> list[str]:
    """The line about what the model's own file decided; none if that is nothing."""
    named = ", ".join(f"{name} {value:g}" for name, value in (controls or {}).items())
    return [f"sampling from generation_config.json: {named}"] if named else []


def _say(lines: Sequence[str], speeds: Any) -> None:
    from rich.console import Console

    console = Console(stderr=True, highlight=False, style="dim")
    console.soft_wrap = not console.file.isatty()  # a terminal's lines break between words, a file's not at all
    console.print("\n".join(lines), markup=False)
    if speeds is not None:
        parts = [f"{t:.2f}x {name} ({speeds.tokens_per_s[name]:.1f} tokens/s)" for name, t in speeds.times.items()]
        console.print(f"compared in turns, {speeds.rounds} rounds of {speeds.tokens} tokens: {', '.join(parts)}")
