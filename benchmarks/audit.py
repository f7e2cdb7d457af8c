"""Engines under audit: ours with six rules and five drafters; transformers' plain, assisted and lookup generation.

`python -m benchmarks.audit --tokens 200000` collects transcripts from SmolLM2, audits them and writes
benchmarks/results/audit.json, one row for each engine and setting. It runs on a GPU if there is one; on a CPU ask for a
few thousand tokens. `--target small` audits a random model of 32 tokens instead, for which a CPU is enough. `--only
lookup assisted` chooses engines; a row that is there already is replaced.
"""

from __future__ import annotations

import argparse
import copy
import json
import resource
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from draftproof.audit import audit, collect
from draftproof.audit.transcripts import Transcript
from draftproof.bench.rows import facts
from draftproof.draft import Tree
from draftproof.engine.arguments import encode
from draftproof.models import load
from draftproof.models.drafters.fallback import Fallback
from draftproof.models.drafters.head import HeadModel
from draftproof.models.drafters.head import find as find_head
from draftproof.models.drafters.ngram import NGram
from draftproof.models.drafters.recall import Recall
from draftproof.models.hf import HFModel
from draftproof.sampling import Sampling

SMALL = 32  # tokens of the small target: few enough that pairs of them are counted
LESSONS = 200  # steps of training for its head
RESULTS = Path(__file__).parent / "results" / "audit.json"
SETTINGS = {"T=1": Sampling(), "T=0.7, top-p 0.9": Sampling(temperature=0.7, top_p=0.9)}
RULES: dict[str, Tree] = {
    "token": Tree.chain(4),
    "block": Tree.chain(4),
    "gumbel": Tree.chain(4),
    "optimal": Tree.star(3),
    "nodeplan": Tree.star(3),
    "csbv": Tree.paths(2, 3),
}
THEIRS = ("transformers, plain", "transformers, prompt lookup", "transformers, assisted")
QUESTIONS = (
    "Write a short story about a lighthouse keeper and a curious seal.",
    "Explain why the sky is blue to a ten-year-old.",
    "List five things to pack for a week in the mountains, with a reason for each.",
    "Translate into French: The train leaves at nine, and the station is far away.",
    "Give me a recipe for lentil soup with what is usually in a kitchen.",
    "What is the difference between a list and a tuple in Python? Show an example of each.",
    "Summarise in two sentences: A cat sat on a mat. A dog came. The cat left the mat. The dog sat on the mat.",
    "A shop sells pens at 3 for 2 euros. How much do 12 pens cost? Think step by step.",
    "Write a polite letter to a neighbour about loud music.",
    "Repeat this list twice: red, green, blue, yellow, black, white.",
    "Describe the water cycle.",
    "Invent a name and a slogan for a bakery.",
)


def small() -> HFModel:
    """A random model, cheap enough for many tokens on a CPU, whose text repeats itself as real text does."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    network = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=SMALL,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            bos_token_id=None,
            eos_token_id=SMALL - 1,
        )
    )
    with torch.no_grad():
        for name, weight in network.named_parameters():
            weight.mul_(0.1 if "o_proj" in name else 5.0)  # laws far from flat, by the last token first of all
        network.lm_head.weight[-1] *= 0.2  # texts of some length
    return HFModel(network, None, "small")


def taught(target: HFModel, prompts: Sequence[Any]) -> HeadModel:
    """A head for a small target, from a few seconds' training on what the target says."""
    from draftproof.distill import head
    from draftproof.distill.data import Text
    from draftproof.distill.teacher import Library
    from draftproof.distill.train import Trainer, TrainSettings

    torch.manual_seed(0)
    texts = collect.engine(target, prompts, Sampling(), samples=1 + LESSONS // 16, seed=1)
    said = [token for text in texts for token in text.output]
    tokens = torch.tensor(said[: len(said) // 96 * 96]).reshape(-1, 96)
    student = head.student(target, torch.arange(target.vocabulary), 1, 3)
    library = Library(target, Text(tokens, tokens >= 0, torch.ones(len(tokens))), student.taps, student.tokens)
    Trainer(library, student, TrainSettings(steps=LESSONS, rows=16)).run(lambda progress: None)
    return HeadModel(target, student.network.eval())


def rounded(target: HFModel, bits: int) -> HFModel:
    """A draft for any target: its own weights, rounded to 2**bits levels a matrix row."""
    network = copy.deepcopy(target.network)
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim == 2 and weight.shape[0] != target.vocabulary:
                step = weight.abs().amax(dim=1, keepdim=True) / 2 ** (bits - 1)
                weight.copy_((weight / step).round() * step)
    return HFModel(network, target.tokenizer, f"{target.name}, rounded to {bits} bits")


class Drafters:
    """By name, each made when it is first asked for. A small target gets a copy of itself with rounded weights, and a
    head of its own."""

    NAMES = ("model", "ngram", "cache", "head", "ngram|head")

    def __init__(self, target: HFModel, prompts: Sequence[Any], lean: bool) -> None:
        self.target, self.prompts, self.lean = target, prompts, lean
        self.made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.made:
            self.made[name] = self._make(name)
        return self.made[name]

    def _make(self, name: str) -> Any:
        target, is_small = self.target, self.target.name == "small"
        match name:
            case "model":
                device = target.network.device.type
                return rounded(target, 4) if is_small else load("tiny", device=device, lean=self.lean)
            case "head":
                return taught(target, self.prompts) if is_small else find_head("head", target)
            case "ngram":
                return NGram(target.vocabulary)
            case "cache":
                return Recall(target.vocabulary)
        return Fallback([self[part] for part in name.split("|")])


def engines(target: HFModel, length: int, rows: int, lean: bool) -> dict[str, Any]:
    """Name -> function from settings and seed to transcripts and the draft whose law the audit is told."""
    words = [question if target.tokenizer else _bytes(question) for question in QUESTIONS]
    prompts = [encode(target, question) for question in words]
    known = Drafters(target, prompts, lean)

    def ours(verify: str, name: str | None) -> Any:
        def make(sampling: Sampling, seed: int) -> tuple[Iterator[Transcript], Any]:
            guesser = known[name] if name else None
            settings: dict[str, Any] = {"draft": guesser, "seed": seed, "rows": rows, "max_new_tokens": length}
            settings |= {"verify": verify, "tree": RULES[verify] if guesser else None}
            samples = max(rows // 3, 1)  # of each prompt: rows are filled four times
            made = collect.engine(target, prompts, sampling, samples=samples, **settings)
            return made, None if name == "cache" else guesser

        return make

    def theirs(name: str | None, samples: int = 1, **extra: Any) -> Any:
        def make(sampling: Sampling, seed: int) -> tuple[Iterator[Transcript], Any]:
            settings: dict[str, Any] = {"max_new_tokens": length, "seed": seed, "samples": samples, **extra}
            if name == "model":
                settings["assistant"] = known[name]
            return collect.transformers(target, prompts, sampling, **settings), known[name] if name else None

        return make

    made = dict(zip(THEIRS, (theirs(None, 64), theirs("ngram", lookup=5), theirs("model")), strict=True))
    made |= {f"draftproof, {rule}, {name}": ours(rule, name) for rule in RULES for name in Drafters.NAMES}
    return {**made, "draftproof, plain": ours("block", None)}


def _bytes(words: str) -> list[int]:
    return [byte % (SMALL - 1) for byte in words.encode()[:16]]


def enough(make: Any, sampling: Sampling, tokens: int, seed: int, seconds: float) -> tuple[list[Transcript], Any]:
    """Transcripts until there are so many tokens, or the time is over; and the draft's law."""
    kept: list[Transcript] = []
    count, end = 0, time.monotonic() + seconds
    while True:
        made, guesser = make(sampling, seed)
        for transcript in made:
            kept.append(transcript)
            count += len(transcript.output)
            if count >= tokens or time.monotonic() > end:
                return kept, guesser
        seed += 1


def accepted(transcripts: Sequence[Transcript]) -> float | None:
    """Share of the tokens that were accepted guesses, where that is known."""
    flags = [flag for transcript in transcripts for flag in transcript.accepted or ()]
    return round(sum(flags) / len(flags), 3) if flags else None


def watched(transcripts: Sequence[Transcript], device: str, memory: list[int]) -> Iterator[Transcript]:
    """The transcripts; memory notes the megabytes in use (the GPU's, or else the process's) after each tenth."""
    for i, transcript in enumerate(transcripts):
        yield transcript
        if (i + 1) * 10 // len(transcripts) > i * 10 // len(transcripts):
            usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            memory.append(round((torch.cuda.max_memory_allocated() if device == "cuda" else usage) / 1e6))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit", description=__doc__)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=1e9, help="collect for so long at most")
    parser.add_argument("--length", type=int, default=128, help="longest text")
    parser.add_argument("--rows", type=int, default=256, help="texts that draftproof writes side by side")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--only", nargs="*", default=[""], help="parts of the names; a name ends with a full stop")
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--pages", type=Path, help="folder for the HTML reports")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()

    def chosen(name: str) -> bool:
        return any(part in f"{name}." for part in options.only)

    theirs = any(map(chosen, THEIRS))  # who generate with their own networks
    target = small() if options.target == "small" else load(options.target, lean=not theirs)
    words = sys.argv[1:]
    if "--results" in words:  # a place on this machine
        del words[words.index("--results") : words.index("--results") + 2]
    device = target.network.device.type
    where = {**facts(device)._asdict(), "command": shlex.join(["python", "-m", "benchmarks.audit", *words])}
    everyone = engines(target, options.length, options.rows, not theirs)
    for number, (name, make) in enumerate(everyone.items()):
        seed = 1000 * number  # for a coupling's text depends on target and seed alone, not on the drafter
        for setting in options.settings if chosen(name) else ():
            clock = [time.perf_counter()]
            transcripts, guesser = enough(make, SETTINGS[setting], options.tokens, seed, options.seconds)
            clock.append(time.perf_counter())
            memory: list[int] = []
            found = audit(watched(transcripts, device, memory), target, draft=guesser, tolerance=options.tolerance)
            clock.append(time.perf_counter())
            seconds = dict(zip(("collect_s", "audit_s"), (round(b - a, 1) for a, b in pairwise(clock)), strict=True))
            print(f"{name}, {setting}: {found.verdict}, {seconds}", flush=True)
            row = {key: value for key, value in found.as_dict().items() if key not in ("curve", "families", "worst")}
            row |= {**seconds, "audit_mb": memory, "seed": seed, "accepted": accepted(transcripts), **where}
            keep(options.results, f"{target.name}: {name}, {setting}", row)
            if options.pages:
                from draftproof.audit.page import html

                options.pages.mkdir(parents=True, exist_ok=True)
                (options.pages / f"{name}, {setting}.html".replace(" ", "-")).write_text(html(found))


def keep(results: Path, name: str, row: dict[str, Any]) -> None:
    """One more row in the file, or a new one in its place."""
    rows = json.loads(results.read_text()) if results.exists() else {}
    results.write_text(json.dumps(dict(sorted({**rows, name: row}.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
