"""The commands inside a chat, such as /retry: a line that begins with a slash."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from draftproof.commands.chat.conversation import Conversation
from draftproof.commands.chat.session import ChatSession
from draftproof.commands.chat.settings import NAMES
from draftproof.commands.showing import summarise
from draftproof.errors import DraftproofError, nearest

Run = Callable[[ChatSession, str], None]


class Command(NamedTuple):
    """What follows its name, what it does, and how."""

    argument: str
    help: str
    run: Run


KEYS = (
    ("//TEXT", "Send a message that begins with a slash."),
    ('"""', "Begin and end a message of several lines; or end a line with a backslash, or press Alt-Enter."),
    ("Ctrl-C", "Stop the answer and keep what it says; at the prompt clear the line."),
)
COMMANDS: dict[str, Command] = {}


def command(name: str, argument: str = "") -> Callable[[Run], Run]:
    """Register a function as a command; its docstring is the line in /help."""

    def register(run: Run) -> Run:
        COMMANDS[name] = Command(argument, inspect.getdoc(run) or "", run)
        return run

    return register


def run(session: ChatSession, line: str) -> None:
    """Run a line such as "/set temperature 0.7"."""
    name, _, argument = line.removeprefix("/").partition(" ")
    argument = argument.strip()
    if name not in COMMANDS:
        near = nearest(name, COMMANDS)
        hint = f"did you mean /{near}?" if near else "/help lists them."
        raise DraftproofError(f"unknown command /{name}: {hint} (// begins a message with a slash)")
    if argument and not COMMANDS[name].argument:
        raise DraftproofError(f"/{name} takes nothing after it, not {argument!r}")
    COMMANDS[name].run(session, argument)


def endings(line: str) -> Sequence[str]:
    """What a line may become with Tab."""
    if line.startswith("/set "):
        return [f"/set {name} " for name in NAMES if name.startswith(line.removeprefix("/set "))]
    return [f"/{name}{' ' * bool(c.argument)}" for name, c in COMMANDS.items() if f"/{name}".startswith(line or "?")]


@command("help")
def _help(session: ChatSession, argument: str) -> None:
    """Show this list."""
    rows = [(f"/{name} {command.argument}", command.help) for name, command in COMMANDS.items()]
    session.screen.table([*rows, *KEYS])


@command("retry")
def _retry(session: ChatSession, argument: str) -> None:
    """Answer the last message anew."""
    _check_said(session)
    session.retry()


@command("undo")
def _undo(session: ChatSession, argument: str) -> None:
    """Drop the last message and its answer."""
    _check_said(session)
    dropped = session.conversation.exchanges.pop()
    session.screen.note(f"dropped: {dropped.user.splitlines()[0]}")


@command("trim", "[N]")
def _trim(session: ChatSession, argument: str) -> None:
    """Drop the oldest exchange, or the N oldest, to make room in the context."""
    _check_said(session)
    said = session.conversation.exchanges
    if not (argument or "1").isdecimal() or not 1 <= int(argument or 1) <= len(said):
        raise DraftproofError(f"/trim takes a number from 1 to {len(said)}, not {argument!r}")
    del said[: int(argument or 1)]
    session.screen.note(f"{_count(len(said), 'exchange')} left")


@command("clear")
def _clear(session: ChatSession, argument: str) -> None:
    """Begin a new conversation; system text and settings stay."""
    session.conversation.exchanges = []
    session.screen.note("new conversation")


@command("system", "[TEXT]")
def _system(session: ChatSession, argument: str) -> None:
    """Set the system text, or show it; off removes it."""
    if argument:
        session.conversation.system = None if argument == "off" else argument
    session.screen.note(f"system: {session.conversation.system or 'none'}")


@command("set", "[NAME VALUE]")
def _set(session: ChatSession, argument: str) -> None:
    """Change a setting, as in /set temperature 0.7; alone it shows all."""
    name, _, value = argument.partition(" ")
    if name and not value:
        raise DraftproofError(f"/set {name} needs a value, as in /set temperature 0.7; /set alone shows all")
    if name:
        session.use(session.conversation.settings.changed(name, value.strip()))
    wanted = name.replace("-", "_")
    session.screen.table([row for row in session.conversation.settings.rows() if wanted in ("", row[0])])


@command("draft", "[NAME]")
def _draft(session: ChatSession, argument: str) -> None:
    """Change the drafter: head, ngram, cache, a model, none; alone it shows it."""
    if argument:
        session.use(session.conversation.settings.changed("draft", argument))
    names = " + ".join(model.name for model in session.drafts) or "none"
    session.screen.note(f"draft {names}")


@command("stats")
def _stats(session: ChatSession, argument: str) -> None:
    """Show how the last answer was drafted, verified and timed."""
    if session.last is None:
        raise DraftproofError("there are no statistics yet: send a message first")
    summarise(session.last.output, None, session.last.by_clock, session.own_controls)


@command("save", "FILE")
def _save(session: ChatSession, argument: str) -> None:
    """Write the conversation and its settings to a file."""
    path = _path("save", argument)
    if path.exists():
        Conversation.load(path)  # refuses to replace anything but a transcript
    session.conversation.save(path)
    session.screen.note(f"saved {_count(len(session.conversation.exchanges), 'exchange')} to {path}")


@command("load", "FILE")
def _load(session: ChatSession, argument: str) -> None:
    """Go on with a saved conversation and its settings; the model stays."""
    path = _path("load", argument)
    loaded = Conversation.load(path)
    loaded.settings.arguments()
    session.use(loaded.settings)
    session.conversation.system, session.conversation.exchanges = loaded.system, loaded.exchanges
    session.screen.resumed(path, loaded.exchanges)


@command("exit")
def _exit(session: ChatSession, argument: str) -> None:
    """Leave, as does Ctrl-D."""
    raise EOFError


def _check_said(session: ChatSession) -> None:
    if not session.conversation.exchanges:
        raise DraftproofError("nothing was said yet: send a message first")


def _path(name: str, argument: str) -> Path:
    if not argument:
        raise DraftproofError(f"/{name} needs a file, as in /{name} chat.json")
    return Path(argument).expanduser()


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
