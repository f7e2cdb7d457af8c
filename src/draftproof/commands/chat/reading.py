"""Read messages: from a terminal with line editing and history, or line by line from a pipe."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from draftproof.errors import DraftproofError

try:
    import readline
except ImportError:  # Windows, whose console edits lines itself
    readline = None  # type: ignore[assignment]

FIRST, MORE = "> ", ". "
QUOTES = '"""'
KEPT = 1000  # messages in the history
BINDINGS = ("set enable-bracketed-paste on", r'"\e\C-m": "\C-v\C-j"', "tab: complete")  # the second: Alt-Enter
LIBEDIT_BINDINGS = ("bind ^I rl_complete",)  # macOS may have another library under the same name


def message(next_line: Callable[[str], str]) -> str:
    r"""The next message: one line, lines joined by a backslash at their end, or a block between triple quotes.

    `next_line(prompt)` raises EOFError at the end of the input, which also ends a message.

    >>> lines = iter(['one', 'two \\', 'lines', '\"\"\"a', 'b\"\"\"'])
    >>> [message(lambda prompt: next(lines)) for _ in range(3)]
    ['one', 'two \nlines', 'a\nb']
    """
    line = next_line(FIRST)
    block = line.lstrip().startswith(QUOTES)
    lines = [line.lstrip().removeprefix(QUOTES) if block else line]
    try:
        while not lines[-1].rstrip().endswith(QUOTES) if block else lines[-1].endswith("\\"):
            lines.append(next_line(MORE))
    except EOFError:
        pass
    if block:
        return "\n".join(lines).rstrip().removesuffix(QUOTES).strip("\n")
    return "\n".join([line.removesuffix("\\") for line in lines[:-1]] + lines[-1:])


def piped_line(prompt: str) -> str:
    """The next line of standard input, without a prompt."""
    if sys.stdin is None:  # closed by the caller
        raise DraftproofError("there is no standard input to read messages from: give them in a file or by a pipe")
    try:
        line = sys.stdin.readline()
    except UnicodeDecodeError as error:
        raise DraftproofError(f"standard input is not {error.encoding} text: convert it") from error
    if not line:
        raise EOFError
    return line.removesuffix("\n")


class Keyboard:
    """Lines of a terminal: arrow keys edit them and recall earlier messages, Tab completes names."""

    def __init__(self, history: History | None, complete: Callable[[str], Sequence[str]], style: Sequence[str]) -> None:
        """`complete` gives the possible endings of a line; `style` are the codes before and after a prompt."""
        self._history, self._style = history, style
        if readline is None:
            return
        readline.set_auto_history(False)  # a message of several lines is one entry
        readline.set_completer(lambda text, i: [*complete(text), None][i])
        readline.set_completer_delims("\n")
        for binding in LIBEDIT_BINDINGS if "libedit" in (readline.__doc__ or "") else BINDINGS:
            readline.parse_and_bind(binding)
        for earlier in history.load() if history else ():
            readline.add_history(earlier)

    def line(self, prompt: str) -> str:
        before, after = (f"\x01{code}\x02" if readline and code else code for code in self._style)  # zero width
        try:
            return input(f"{before}{prompt}{after}")
        except EOFError:
            print()  # Ctrl-D leaves the cursor behind the prompt
            raise

    def remember(self, text: str) -> None:
        """Put a message into the history, unless it repeats the last one."""
        if readline is None:
            return
        size = readline.get_current_history_length()
        if size and readline.get_history_item(size) == text:
            return
        readline.add_history(text)
        history, self._history = self._history, None  # given up where it cannot be written
        if history:
            history.add(text)
        self._history = history

    @property
    def typed(self) -> str:
        """What stood in the line that Ctrl-C interrupted."""
        return readline.get_line_buffer() if readline else ""


class History:
    """The messages of earlier sessions, in a file that only its owner can read: a JSON string on each line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> list[str]:
        """The last messages; lines that are damaged are left out."""
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
        if len(lines) > 2 * KEPT:
            lines = lines[-KEPT:]
            self.path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return [text for line in lines if (text := _text(line))]

    def add(self, text: str) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(
            os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(json.dumps(text) + "\n")


def _text(line: str) -> str:
    try:
        text = json.loads(line)
    except ValueError:
        return ""
    return text if isinstance(text, str) else ""
