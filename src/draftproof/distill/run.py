"""Train a drafter for a target in three stages, text, training and evaluation, that resume after an interruption.

Everything that determines the result is in the folder's plan.json, the measured amounts too, so a resumed run writes
the same files as one that was never interrupted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from draftproof import models
from draftproof.distill import data, evaluate, head, model
from draftproof.distill.data import Source, Text
from draftproof.distill.evaluate import Quality
from draftproof.distill.job import Folder, Job
from draftproof.distill.student import Student
from draftproof.distill.teacher import Library
from draftproof.distill.train import Progress, Trainer, TrainSettings
from draftproof.errors import DraftproofError
from draftproof.models.base import check_drafts_fit
from draftproof.models.hf import HFModel
from draftproof.models.llama import head as headnet
from draftproof.prompts import read

WRITING = 0.3  # share of the minutes that go into text
HEAT = (1.0, 1.0, 0.7)  # temperatures of the text, and so of the laws to learn
HELD_HEAT = (1.0, 0.7)
ReportProgress = Callable[[str, float, str], object]  # stage, share done, remark
PromptPools = tuple[dict[str, list[str]], list[str]]  # of each source, and those held out


def distil(
    target: HFModel, name: str, out: Path, job: Job, report: ReportProgress, text: Path | None = None
) -> list[Quality]:
    """Train a drafter for the target into the folder; `text` may be the folder of another run's text."""
    check_drafts_fit(target)
    prompts = _prompts(job.check())  # unreadable files fail before anything is written
    if job.begin:
        headnet.load(Path(job.begin)) if job.kind == "head" else models.read(job.begin, torch.float32)
    folder = Folder(out, name, job, text)
    minutes = job.minutes if job.minutes is not None else 20.0
    written, held = _text(target, folder, job, prompts, minutes, report)
    student = _student(target, written, job)
    report("reading", 0.0, "")
    rows_read = 0

    def read_rows(rows: int) -> None:
        nonlocal rows_read
        rows_read += rows
        report("reading", rows_read / len(written.tokens), "")

    library = Library(target, written, student.taps, student.tokens, read_rows)
    settings = TrainSettings(100, job.batch, job.rate, job.seed)
    settings = settings._replace(turning=0.1) if job.begin else settings  # the drafter has been through the first phase
    trainer = Trainer(library, student, settings)
    seconds = 60 * minutes * (1 - WRITING)
    steps = folder.amount("steps", job.steps, lambda: int(seconds / trainer.rehearse()))
    trainer.settings = trainer.settings._replace(steps=steps, every=max(steps // 20, 1))
    checkpoint = out / "checkpoint.pt"
    if checkpoint.exists():
        trainer.load(checkpoint)

    def show(progress: Progress) -> None:
        if progress.step % 20 == 0 or progress.step + 1 == steps:
            overlap = " ".join(f"{value:.3f}" for value in progress.overlap.tolist())
            remark = f"step {progress.step} overlap {overlap} loss {progress.loss:.3f}"
            report("training", (progress.step + 1) / steps, remark)

    trainer.run(show, out)
    student.save(out)
    qualities: list[Quality] = []
    for temperature in HELD_HEAT:
        report("evaluating", len(qualities) / len(HELD_HEAT), "")
        qualities.append(evaluate.measure(target, student, held, temperature))
    report("evaluating", 1.0, "")
    (out / "evaluation.json").write_text(json.dumps([quality._asdict() for quality in qualities], indent=1) + "\n")
    return qualities


def _text(
    target: HFModel, folder: Folder, job: Job, prompts: PromptPools, minutes: float, report: ReportProgress
) -> tuple[Text, Text]:
    """Text to train on and text to evaluate on, from disk or written now."""
    pools, held_pool = prompts
    longest = min(data.LONGEST, job.length // 2)
    by_name = {name: Source.of(target, pool, job.chat, longest) for name, pool in pools.items()}
    sources = [by_name[name] for name in job.data]
    held_sources = [Source.of(target, held_pool, job.chat, longest)]

    def shard(path: Path, pool: list[Source], rows: int, heat: tuple[float, ...], number: int) -> None:
        if path.exists():
            return
        rng = np.random.default_rng([job.seed, 3, number])
        temperature = torch.from_numpy(rng.permutation(np.resize(np.array(heat, dtype=np.float32), rows)))
        given = data.scripts(pool, rows, rng)
        seed = int(rng.integers(2**31))
        steps = iter(range(1, job.length + 1))
        stage = f"writing {path.stem}"
        data.write(
            target, given, temperature, job.length, seed, lambda _: report(stage, next(steps) / job.length, "")
        ).save(path)

    shard(folder.text / "held.safetensors", held_sources, job.held_rows * len(HELD_HEAT), HELD_HEAT, 0)
    paths = [folder.text / "shard-0000.safetensors"]

    def measure() -> int:
        paths[0].unlink(missing_ok=True)
        start = time.perf_counter()
        shard(paths[0], sources, job.rows, HEAT, 1)
        return round(60 * minutes * WRITING / (time.perf_counter() - start))

    count = folder.amount("shards", job.shards, measure)
    for number in range(count):
        paths.append(folder.text / f"shard-{number:04}.safetensors")
        shard(paths[-1], sources, job.rows, HEAT, number + 1)
    return Text.load(paths[1:]), Text.load([folder.text / "held.safetensors"])


def _prompts(job: Job) -> PromptPools:
    """Prompts of each source (none for "self"), and those held out."""
    pools = {name: [] if name == "self" else read(Path(name)) for name in dict.fromkeys(job.data)}
    if job.held:
        return pools, read(Path(job.held))
    held = [prompt for pool in pools.values() for prompt in pool[::20]]
    for name, pool in pools.items():
        if len(pool) == 1:
            raise DraftproofError(f"{name} has only one prompt, which is held out to evaluate on: give more, or --held")
    return {name: [prompt for n, prompt in enumerate(pool) if n % 20] for name, pool in pools.items()}, held


def _student(target: HFModel, written: Text, job: Job) -> Student:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        if job.kind == "model":
            return model.student(target, job.width, job.layers or 6, job.begin)
        counts = written.tokens[written.drawn].long().bincount(minlength=target.vocabulary)
        size = min(job.vocabulary, target.vocabulary)
        frequent = counts.sort(descending=True, stable=True).indices[:size].sort().values
        if job.begin:
            return head.resume(target, Path(job.begin), job.unroll, job.layers, frequent)
        return head.student(target, frequent.to(written.tokens.device), job.layers or 1, job.unroll)
