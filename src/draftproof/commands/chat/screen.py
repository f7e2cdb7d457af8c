"""What a chat shows: coloured text that breaks between words in a terminal, plain text in a pipe."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftproof.commands.chat.conversation import Conversation, Exchange
from draftproof.commands.chat.wrapping import wrapped
from draftproof.commands.showing import show, speed

if TYPE_CHECKING:
    from draftproof.engine.detokenize import Piece
    from draftproof.engine.generate import Stream
    from draftproof.engine.request import Output

SHORT = 200  # characters of a message that is only recalled


class Screen:
    """Shows answers, and one dim line about each of them."""

    def __init__(self, interactive: bool) -> None:
        self.interactive = interactive
        # in a pipe the text is alone on standard output
        self.console = Console(highlight=False, soft_wrap=not interactive, markup=False, stderr=not interactive)

    @property
    def prompt_style(self) -> tuple[str, str]:
        """The codes before and after a prompt."""
        return ("", "") if self.console.is_dumb_terminal else ("\x1b[1m", "\x1b[0m")

    @contextmanager
    def loading(self, target: str) -> Iterator[None]:
        """Say what takes a moment, in a terminal."""
        if not self.interactive:
            yield
            return
        with self.console.status(f"loading {target}"):
            yield

    def greet(self, conversation: Conversation, draft: str) -> None:
        self.console.print(f"{conversation.target} ({conversation.dtype}), draft {draft}", style="bold")
        self.note("/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves")

    def space(self) -> None:
        self.console.print()

    def note(self, text: str) -> None:
        self.console.print(text, style="dim")

    def table(self, rows: Iterable[Sequence[str]]) -> None:
        """Two dim columns; the second one is wrapped beside the first."""
        table = Table.grid("", "", padding=(0, 2))
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self.console.print(table, style="dim")

    def error(self, text: str) -> None:
        self.console.print(text, style="red")

    def answer(self, writing: Stream) -> str:
        """Show an answer as it is written, in a terminal until Ctrl-C; returns the text that was shown."""
        if self.interactive:
            return self._in_colour(writing)
        for piece in writing:
            sys.stdout.write(piece.text)
            sys.stdout.flush()
        print(flush=True)
        return writing.output.text

    def result(self, output: Output) -> None:
        """One line about an answer: its speed, and why it ended if the model did not end it."""
        trace = output.trace
        ended = {
            "length": "cut there (/set max_new_tokens)",
            "context": "the context is full (/trim, /clear)",
            "cancelled": "stopped",
            "stop": "ended by a stop text",
        }
        parts = [f"{trace.tokens} tokens", f"{trace.tokens_per_call:.2f} a call", f"{speed(output):.1f} tokens/s"]
        self.note(", ".join(parts) + "".join(f"; {why}" for why in (ended.get(output.finish), output.notice) if why))

    def resumed(self, path: Path, exchanges: Sequence[Exchange]) -> None:
        """Show how much was said before, and the last exchange shortly."""
        many = "1 exchange" if len(exchanges) == 1 else f"{len(exchanges)} exchanges"
        self.note(f"{many} from {path}")
        for exchange in exchanges[-1:]:
            self.note(f"> {_short(exchange.user)}\n{_short(exchange.answer)}")

    def _in_colour(self, writing: Stream) -> str:
        shown = _Shown(writing, lambda: self.console.width)
        try:
            with _first_ctrl_c(shown.stop):
                show(cast("Stream", shown))
        except KeyboardInterrupt:  # the second: do not wait for the end of the step
            print()
        return shown.text


class _Shown:
    """A stream as a terminal shows it: until it is stopped, with line breaks between words."""

    def __init__(self, writing: Stream, width: Callable[[], int]) -> None:
        self.writing, self.width = writing, width
        self.text = ""
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True

    def __iter__(self) -> Iterator[Piece]:
        return wrapped(self._until_stopped(), self.width)

    def _until_stopped(self) -> Iterator[Piece]:
        for piece in self.writing:
            if self.stopped:
                return
            self.text += piece.text
            yield piece

    @property
    def output(self) -> Output:
        return self.writing.output


@contextmanager
def _first_ctrl_c(stop: Callable[[], None]) -> Iterator[None]:
    """Let the first Ctrl-C call `stop`, so that no step is torn; the second one interrupts."""

    def stop_once(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        stop()

    before = signal.signal(signal.SIGINT, stop_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= SHORT else text[: SHORT - 3] + "..."
