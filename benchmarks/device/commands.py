"""The commands of README and docs, run as a user types them, in a scratch folder and with short texts."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from draftproof.models.files.download import smollm2_folder

ROOT = Path(__file__).resolve().parents[2]
SHORT = {  # how long texts are here
    "generate": {"-n": "24"},
    "chat": {"-n": "12"},
    "limits": {"--tokens": "4"},
    "collect": {"-n": "8", "--samples": "1"},
}
# Beside what is documented: every precision with what a person with a GPU tries first.
FIRST_TRIES = [
    f'draftproof generate "Why is the sky blue?" --temperature 0.8 --dtype {dtype}{more}'
    for dtype in ("float32", "bfloat16", "float16")
    for more in ("", " --tree chain:5", " --draft none")
]
FIRST_TRIES += ["draftproof warm --dtype bfloat16", "draftproof bench engine --only draftproof -n 8 --repeat 1"]
LEFT_OUT = {  # a word of a command -> why it is not run
    "bench": "a measurement of its own",
    "distill": "trains for minutes",
    "int8": "runs on the CPU",
    "org/model": "a placeholder",
    "path/to/the/model": "a placeholder",
    "cuda:1": "needs a second GPU",
    "--resume": "goes on with an earlier chat",
}
PROMPTS = ["Why is the sky blue?", "Name a colour."]
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


class Command(NamedTuple):
    """A command, and why it is left out if it is."""

    words: tuple[str, ...]
    why_not: str = ""

    @property
    def name(self) -> str:
        return f"draftproof {shlex.join(self.words)}"


def documented(root: Path = ROOT) -> list[Command]:
    """Every different draftproof command in the blocks of README and docs, and the first tries."""
    found = [_command(shlex.split(line, comments=True)[1:]) for line in _lines(root)]
    found = [command._replace(why_not=_why_not(command.words)) for command in found]
    return list(dict.fromkeys([*found, *(_command(shlex.split(line)[1:]) for line in FIRST_TRIES)]))


def _lines(root: Path) -> Iterator[str]:
    for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        for body in re.findall(r"^```(?:sh|console)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S):
            for line in body.splitlines():
                if line.removeprefix("$ ").startswith("draftproof "):
                    yield line.removeprefix("$ ")


def _command(words: list[str]) -> Command:
    words = ["tiny" if word == "path/to/a/smaller/model" else word for word in words]
    for option, value in SHORT.get(words[0], {}).items():
        place = words.index(option) if option in words else len(words)
        words[place : place + 2] = [option, value]
    return Command(tuple(words))


def _why_not(words: tuple[str, ...]) -> str:
    return next((why for word, why in LEFT_OUT.items() if word in words), "")


def run(command: Command, device: str, scratch: Path | None = None) -> str:
    """Run a command; raises AssertionError unless it ends well and says something."""
    with tempfile.TemporaryDirectory() as folder:
        place = scratch or Path(folder)
        (place / "prompts.txt").write_text("\n".join(PROMPTS) + "\n")
        (place / "prompts.jsonl").write_text("".join(json.dumps({"prompt": one}) + "\n" for one in PROMPTS))
        (place / "person.json").write_text(json.dumps(SCHEMA))
        words = [*command.words, *_where(command.words, device)]
        if words[0] == "audit":
            engines = {"lookup": "lookup.jsonl"} | ({"transformers": "plain.jsonl"} if "--against" in words else {})
            for engine, texts in engines.items():
                sample = ("collect", engine, "prompts.txt", texts, "-n", "8", "--target", *_target(words))
                _ended([*sample, "--device", device], place)
        if words[0] == "serve":
            return _served(words, place)
        return _ended(words, place, said="Hello\n" if words[0] == "chat" else None)


def _target(words: list[str]) -> list[str]:
    return [words[words.index("--target") + 1]] if "--target" in words else ["smollm2"]


def _where(words: tuple[str, ...], device: str) -> list[str]:
    """The device, and the small model of the package where the default one is not there and cannot be fetched."""
    small = [] if smollm2_folder().is_dir() or "--target" in words or words[0] == "list" else ["--target", "tiny"]
    return small if words[0] == "list" else [*small, "--device", device]


def needs_default_model(command: Command) -> bool:
    """Whether it asks for the head, which only the default model has, and that is not there."""
    return "head" in command.words and not smollm2_folder().is_dir()


def _ended(words: list[str], folder: Path, said: str | None = None) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "draftproof", *words], cwd=folder, input=said, capture_output=True, text=True
    )
    expected = (0, 1) if words[0] == "audit" else (0,)  # 1: that engine is not exact, which lookup need not be
    said_back = ran.stdout.strip() or ran.stderr.strip()  # what is written to a file is reported on standard error
    if ran.returncode not in expected or not said_back or "Traceback" in ran.stderr:
        last = (ran.stderr.strip() or "it said nothing").splitlines()[-1]
        raise AssertionError(f"exit code {ran.returncode}: {last}")
    return f"{len(said_back.split())} words"


def _served(words: list[str], folder: Path) -> str:
    """Start a server, ask for a chat answer, and end it."""
    command = [sys.executable, "-m", "draftproof", *words, "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, text=True, **pipes) as server:  # type: ignore[call-overload]
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            if "http://" not in line:
                raise AssertionError(f"the server did not start: {server.communicate(timeout=30)[1].strip()[-200:]}")
            url = f"{line.split()[-1]}/v1/chat/completions"
            asked = {"messages": [{"role": "user", "content": PROMPTS[0]}], "max_tokens": 12}
            request = urllib.request.Request(url, json.dumps(asked).encode(), {"Content-Type": "application/json"})
            text = _answer(request)["choices"][0]["message"]["content"]
        finally:
            server.send_signal(signal.SIGTERM)
        if server.wait(60) != 0:
            raise AssertionError(f"the server ended with {server.returncode}")
    return f"{len(text.split())} words"


def _answer(request: urllib.request.Request, patience: float = 200.0) -> Any:
    """The answer of a server, which refuses with 503 until its model is loaded."""
    late = time.monotonic() + patience
    while True:
        try:
            with urllib.request.urlopen(request, timeout=patience) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > late:
                raise
        time.sleep(0.2)
