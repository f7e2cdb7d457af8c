"""Batches: the texts of a file of prompts, each written to a .jsonl file as it ends; a batch that was stopped goes on.

A line has all that its text depends on, so that each text can be written again alone, and so that a second start can
tell what is done. Lines come in the order in which texts end; `index` numbers the prompts from 0.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer

from draftproof.commands.showing import logprobs_as_dict, settings_as_dict
from draftproof.errors import DraftproofError, first_line
from draftproof.paths import check_writable

if TYPE_CHECKING:
    from draftproof.commands.text_options import TextOptions
    from draftproof.engine.engine import Engine
    from draftproof.engine.request import Request
    from draftproof.models.hf import HFModel
    from draftproof.prompts import PromptEntry

ROWS = 16  # texts at once, as in an Engine, if the option is not given
USED = ("draft", "verify", "device", "sampling", "versions")  # what a line says beside the options


@dataclass(frozen=True)
class BatchText:
    """A text to write: a sample of a prompt, and what the options and the prompt's own line ask for."""

    index: int
    sample: int
    entry: PromptEntry
    settings: dict[str, Any]
    seed: int | None  # None: a random one

    @property
    def head(self) -> dict[str, Any]:
        """How its line begins."""
        return {
            "index": self.index,
            "sample": self.sample,
            "id": self.entry.id,
            "prompt": self.entry.prompt,
            "settings": self.settings,
        }


def run(
    options: TextOptions, prompts: Path, out: Path, *, samples: int = 1, rows: int = ROWS, overwrite: bool = False
) -> int:
    """Write the texts that are not in the file yet; returns the exit code."""
    from draftproof.prompts import read_entries

    entries = read_entries(prompts)
    texts = plan(options, entries, samples)
    _check_out(out, prompts)
    ignored = sorted({name for entry in entries for name in entry.ignored})
    if ignored:
        typer.echo(f"note: fields of {prompts} that are not read: {', '.join(ignored)}", err=True)
    done = set() if overwrite or not out.exists() else resume(out, texts)
    todo = [text for text in texts if (text.index, text.sample) not in done]
    if not todo:
        typer.echo(f"all {len(texts)} texts are in {out} already", err=True)
        return 0
    model, drafts = options.load()
    try:
        with out.open("w" if overwrite else "a", encoding="utf-8") as file, _bar(len(texts), len(done)) as advance:
            batch = Batch(options, model, drafts, file, rows)
            batch.write(todo, advance)
    except KeyboardInterrupt:  # it may come while a line is written, so the file itself says what it has
        ready = len(finished(out, texts))
        typer.echo(f"stopped: {ready} of {len(texts)} texts are in {out}; the same command goes on", err=True)
        return 130
    speed = f"{batch.tokens} tokens, {batch.tokens / max(batch.seconds, 1e-9):.1f} tokens/s"
    typer.echo(f"{batch.written + len(done)} of {len(texts)} texts are in {out}: {speed}", err=True)
    if batch.failed:
        typer.echo(f"{batch.failed} of {len(texts)} texts failed: their lines have the field error", err=True)
    return 1 if batch.failed else 0


def plan(options: TextOptions, entries: Sequence[PromptEntry], samples: int) -> list[BatchText]:
    """All texts of a batch. Seeds count up from the option's, or from that of the prompt's own line."""
    texts = []
    for index, entry in enumerate(entries):
        own = dict(entry.settings)
        start = own.pop("seed", None if options.seed is None else options.seed + index * samples)
        settings = json.loads(json.dumps(options.as_dict(**own)))  # as it will be read again
        for sample in range(samples):
            seed = None if start is None else (start + sample) % 2**63
            texts.append(BatchText(index, sample, entry, settings, seed))
    return texts


def resume(out: Path, texts: Sequence[BatchText]) -> set[tuple[int, int]]:
    """The texts that the file has already, by index and sample, or an error if they were written with other settings.

    A torn last line is dropped; so are lines with errors, because their texts are tried again.
    """
    kept = finished(out, texts)
    lines = b"".join(kept.values())
    if lines != out.read_bytes():
        scratch = out.with_name(out.name + ".part")
        scratch.write_bytes(lines)
        scratch.replace(out)
    return set(kept)


def finished(out: Path, texts: Sequence[BatchText]) -> dict[tuple[int, int], bytes]:
    """The whole lines of the file that have no error, by index and sample."""
    expected = {(text.index, text.sample): text for text in texts}
    kept: dict[tuple[int, int], bytes] = {}
    for number, line in enumerate(out.read_bytes().split(b"\n")[:-1], start=1):
        entry = _parsed(line)
        key = entry.get("index"), entry.get("sample")
        if key not in expected:
            raise DraftproofError(
                f"line {number} of {out} is no text of this batch: choose another --out or --overwrite"
            )
        if "error" in entry:
            continue
        _check_same(entry, expected[key], out)
        kept[key] = line + b"\n"
    return kept


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _check_same(entry: dict[str, Any], text: BatchText, out: Path) -> None:
    """Raise unless a line was written for this prompt with these settings."""
    remedy = "give the same again, --overwrite to start anew, or another --out"
    if entry.get("prompt") != text.entry.prompt:
        raise DraftproofError(f"{out} was written with another prompt {text.index} ({text.entry.place}): {remedy}")
    before, now = dict(entry.get("settings") or {}), dict(text.settings)
    if text.seed is not None:
        before["seed"], now["seed"] = entry.get("seed"), text.seed
    for name in [*now, *before]:
        if before.get(name) != now.get(name):
            raise DraftproofError(
                f"{out} was written with {name} {before.get(name)!r}, not {now.get(name)!r}: {remedy}"
            )


def _check_out(out: Path, prompts: Path) -> None:
    if out.suffix != ".jsonl":
        raise DraftproofError(f"--out must be a .jsonl file, not {out.name!r}: it gets one JSON object per line")
    check_writable(out, "texts")
    if out.exists() and out.samefile(prompts):
        raise DraftproofError(f"{out} contains the prompts: choose another file for the texts")


class Batch:
    """An engine that writes texts to a file, a line each."""

    def __init__(self, options: TextOptions, model: HFModel, drafts: list[Any], file: IO[str], rows: int) -> None:
        self.options, self.model, self.drafts, self.file, self.rows = options, model, drafts, file, rows
        self.written = self.failed = self.tokens = 0
        self.began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def write(self, texts: Sequence[BatchText], advance: Any) -> None:
        """Generate the texts; `advance` is told how many more are done, and the tokens a second."""
        pending = self._begin(texts)
        advance(self.failed, 0.0)
        engine = self.engine
        while pending:
            ended = self._step(engine, pending)
            for request in ended:
                self._end(request, pending.pop(request))
            writing = sum(len(request.tokens) for request in pending)
            advance(len(ended), (self.tokens + writing) / max(self.seconds, 1e-9))

    def _begin(self, texts: Sequence[BatchText]) -> dict[Request, BatchText]:
        """Requests for all texts that can be begun."""
        from draftproof.engine.engine import Engine

        prompts: dict[int, tuple[int, ...]] = {}
        ready = []
        for text in texts:
            try:
                if text.index not in prompts:
                    prompts[text.index] = self._encode(text)
                ready.append((text, prompts[text.index]))
            except DraftproofError as error:
                self._fail(text, error)
        longest = max((len(ids) + self._room(text, ids) for text, ids in ready), default=1)
        self.engine: Engine = Engine(
            self.model,
            draft=self.drafts,
            verify=self.options.verify,
            lossy=self.options.lossy,
            tree=None if self.options.tree == "auto" else self.options.tree,
            rows=max(min(self.rows, len(ready)), 1),
            length=longest,
        )
        self.began = time.monotonic()
        pending: dict[Request, BatchText] = {}
        for text, ids in ready:
            try:
                pending[self._request(text, ids)] = text
            except DraftproofError as error:
                self._fail(text, error)
        return pending

    def _encode(self, text: BatchText) -> tuple[int, ...]:
        from draftproof.engine.arguments import encode

        return encode(self.model, self.options.words(text.entry.prompt), self.options.chat)

    def _room(self, text: BatchText, ids: Sequence[int]) -> int:
        """How many tokens the text may have: those that are asked for, or what is left of the context."""
        wanted = int(text.settings["max_new_tokens"])
        return wanted if self.model.context is None else min(wanted, self.model.context - len(ids))

    def _request(self, text: BatchText, ids: tuple[int, ...]) -> Request:
        own = {name: text.entry.settings[name] for name in text.entry.settings.keys() - {"seed", "max_new_tokens"}}
        sampling, draft_sampling = self.options.samplings(self.model, **own)
        return self.engine.add_request(
            ids,
            sampling=sampling,
            draft_sampling=draft_sampling,
            max_new_tokens=self._room(text, ids),
            stop=self.options.stop,
            seed=text.seed,
            logprobs=self.options.logprobs,
        )

    @staticmethod
    def _step(engine: Engine, pending: dict[Request, BatchText]) -> list[Request]:
        """Make a step; returns the requests that have ended. An error that is no request's own is raised."""
        try:
            grown = [request for request, _ in engine.step()]
        except Exception as error:
            if all(request.error is not error for request in pending):
                raise
            grown = list(pending)
        return [request for request in dict.fromkeys(grown) if request.finish and request in pending]

    def _end(self, request: Request, text: BatchText) -> None:
        output = request.output
        if request.error is not None:
            self._fail(text, request.error)
            return
        full = output.finish == "length" and len(output.tokens) < text.settings["max_new_tokens"]
        used = settings_as_dict(self.options, self.model, output, request.sampling)
        self.written += 1
        self.tokens += len(output.tokens)
        self._line(
            {
                **text.head,
                "seed": output.seed,
                "text": output.text,
                "finish": "context" if full else output.finish,
                "notice": output.notice,
                "tokens": output.tokens,
                **logprobs_as_dict(output),
                "prompt_tokens": len(request.prompt),
                "used": {name: used[name] for name in USED},
            }
        )

    def _fail(self, text: BatchText, error: Exception) -> None:
        self.failed += 1
        self._line({**text.head, "seed": text.seed, "error": first_line(error)})

    def _line(self, line: dict[str, Any]) -> None:
        written = json.dumps(line, ensure_ascii=False)
        if any("\ud800" <= letter <= "\udfff" for letter in written):  # half a character, which UTF-8 cannot hold
            written = json.dumps(line)
        self.file.write(written + "\n")
        self.file.flush()


@contextmanager
def _bar(total: int, done: int) -> Iterator[Any]:
    """A progress bar on a terminal's standard error; yields a function of texts that ended and tokens a second."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (MofNCompleteColumn(), TextColumn("texts"), BarColumn(), TextColumn("{task.fields[speed]}"))
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=total, completed=done, speed="")

        def advance(texts: int, speed: float) -> None:
            bar.update(task, advance=texts, speed=f"{speed:.1f} tokens/s" if speed else "")

        yield advance
