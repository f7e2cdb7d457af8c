"""The options of every command in docs/command-line.md, from the command line itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from draftproof.commands.app import app


def sections() -> str:
    """For each command a heading, what it does, and a table of its arguments and options with their defaults."""
    return "\n".join(_section(name, command) for name, command in _commands("draftproof", typer.main.get_command(app)))


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The commands that can be called: those of a group instead of the group."""
    parts = getattr(command, "commands", None)
    if parts is None:
        yield name, command
        return
    for part, below in parts.items():
        yield from _commands(f"{name} {part}", below)


def _section(name: str, command: Any) -> str:
    rows = [_row(parameter) for parameter in command.params if parameter.name != "help"]
    table = "| option | default | meaning |\n| --- | --- | --- |\n" + "".join(rows)
    return f"### {name}\n\n{' '.join(command.help.split())}\n\n{table}"


def _row(parameter: Any) -> str:
    is_option = parameter.param_type_name == "option"
    names = [*parameter.opts, *parameter.secondary_opts] if is_option else [parameter.name.upper()]
    shown = parameter.show_default if is_option else None
    typed = names[0] if parameter.default is True else parameter.default
    default = "required" if parameter.required else shown if isinstance(shown, str) else _default(typed)
    meaning = parameter.help or ""
    if parameter.envvar:
        meaning = f"{meaning.removesuffix('.')} (or the variable {parameter.envvar})."
    if parameter.metavar and "|" in parameter.metavar:
        meaning = f"{meaning.removesuffix('.')} ({', '.join(parameter.metavar.split('|'))})."
    cells = (", ".join(f"`{name}`" for name in names), default, meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _default(value: Any) -> str:
    """As one would type it; nothing where an option is off or must be given."""
    if isinstance(value, list):
        return f"`{' '.join(map(str, value))}`" if value else ""
    typed = isinstance(value, str | int | float) and not isinstance(value, bool) and value != ""
    return f"`{value}`" if typed else ""
