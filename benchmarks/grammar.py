"""Texts that must fit a JSON schema: whether they do, and how fast they are, on 116 schemas of many kinds.

`python -m benchmarks.grammar` writes benchmarks/results/grammar.json, a row for each part:

    valid   every finished text of SmolLM2 in int8 with its head, checked by the jsonschema package
    speed   with the head beside our own plain sampling and transformers with xgrammar, in two precisions and at three
            temperatures
    masks   the share of the time that the grammar takes
    batch   how fast texts without a grammar are beside one that has one, and beside one that has none
    audit   texts of a small random model under a schema, with several rules and drafters, audited
    device  on a GPU, in bfloat16: texts under the schemas beside texts of the same prompts without a grammar

All sides of a comparison take turns. A ratio is the median over rounds of the ratio within a round. `--only speed`
measures some parts; the rows of the others stay.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from benchmarks.audit import RULES, Drafters, accepted, enough, small
from benchmarks.schemas import Case, corpus
from draftproof import Engine, Grammar, Sampling, generate, load
from draftproof.audit import audit, collect
from draftproof.bench.rows import facts
from draftproof.models.grammars import TextState
from draftproof.models.hf import HFModel
from draftproof.models.registry import read

RESULTS = Path(__file__).parent / "results" / "grammar.json"
LENGTH = 160  # of a text, at most
PARTS = ["valid", "speed", "masks", "batch", "audit", "device"]
ROWS = 4  # texts at once, where many are written
STEPS = 60  # of a batch
DTYPES = ("int8", "float32")
TEMPERATURES = (1.0, 0.7, 0.0)


class Written(NamedTuple):
    """What one side wrote, and in what time."""

    tokens: int
    seconds: float
    prompt: float = 0.0  # of these, until the prompt is read


def sampling_of(case: Case, temperature: float = 1.0) -> Sampling:
    return Sampling(temperature=temperature, grammar=Grammar.json_schema(case.schema))


# Valid


def valid(cases: Sequence[Case], samples: int, seed: int) -> dict[str, Any]:
    """Samples of every schema; a text that ended by itself must be valid."""
    engine = Engine(load("smollm2", dtype="int8"), draft="head", rows=ROWS, length=LENGTH + 768)
    asked = {}
    for case in cases:
        settings: dict[str, Any] = {"sampling": sampling_of(case), "max_new_tokens": LENGTH}
        for k in range(samples):
            asked[engine.add_request(case.question, seed=seed + k, **settings)] = case
    start, done = time.perf_counter(), 0
    while not engine.is_finished:
        engine.step()
        ended = sum(bool(request.finish) for request in asked)
        if ended >= done + 20:
            done = ended
            print(f"{done} of {len(asked)} texts, {time.perf_counter() - start:.0f} s", flush=True)
    seconds = time.perf_counter() - start
    outputs = [(case, request.output) for request, case in asked.items()]
    finished = [(case, output.text) for case, output in outputs if output.finish == "end"]
    faults = [{"schema": case.name, "text": text, "fault": case.fault(text)} for case, text in finished]
    return {
        "schemas": len(cases),
        "texts": len(outputs),
        "finishes": dict(Counter(output.finish for _, output in outputs)),
        "cut_off": dict(Counter(case.name for case, output in outputs if output.finish != "end")),
        "faults": [fault for fault in faults if fault["fault"]],
        "tokens": sum(len(output.tokens) for _, output in outputs),
        "tokens_per_call": round(
            sum(len(o.tokens) for _, o in outputs) / sum(len(o.trace.steps) for _, o in outputs), 2
        ),
        "seconds": round(seconds, 1),
    }


# Speed


def speed(
    dtype: str, cases: Sequence[Case], rounds: int, seed: int, every: int, temperature: float = 1.0
) -> dict[str, Any]:
    """Tokens a second over all schemas; transformers writes the texts of each `every`-th one."""
    ours, (network, _) = load("smollm2", dtype=dtype), read("smollm2", torch.float32)
    theirs = XGrammar(ours, network, cases[::every], temperature)

    def draftproof(draft: str) -> Callable[[Case, int], Written]:
        def write(case: Case, number: int) -> Written:
            start = time.perf_counter()
            how: dict[str, Any] = {"sampling": sampling_of(case, temperature), "max_new_tokens": LENGTH, "seed": number}
            made = generate(ours, case.question, draft=draft, **how)
            return Written(len(made.tokens), time.perf_counter() - start, made.trace.seconds["prompt"])

        return write

    sides = {"head": draftproof("head"), "plain": draftproof("none"), "transformers and xgrammar": theirs.write}
    for case in cases:  # grammars are compiled before the clock starts, on either side
        for name in ("head", "plain"):
            sides[name](case, seed)
    next(sides["transformers and xgrammar"](case, seed) for case in cases if case.name in theirs.compiled)
    spent: dict[str, list[list[Written | None]]] = {name: [] for name in sides}
    for number in range(rounds):
        written: dict[str, list[Written | None]] = {name: [] for name in sides}
        for case in cases:
            for name, write in sides.items():
                skipped = name not in ("head", "plain") and case.name not in theirs.compiled
                written[name].append(None if skipped else write(case, seed + number))
        for name, texts in written.items():
            spent[name].append(texts)
            print(dtype, name, f"{rate(texts):.1f} tokens/s", flush=True)
    return {
        "dtype": dtype,
        "temperature": temperature,
        "schemas": len(cases),
        "rounds": rounds,
        "schemas_of_xgrammar": len(theirs.compiled),
        "tokens_per_s": {name: round(median(map(rate, texts)), 1) for name, texts in spent.items()},
        "tokens_a_text": {name: round(median(map(mean_length, texts)), 1) for name, texts in spent.items()},
        "head_beside": {
            name: round(median(map(beside, spent["head"], spent[name])), 2) for name in sides if name != "head"
        },
        "head_beside_plain_after_the_prompt": round(
            median(map(beside, *([[without_prompts(texts) for texts in spent[name]] for name in ("head", "plain")]))), 2
        ),
    }


def without_prompts(texts: Sequence[Written | None]) -> list[Written | None]:
    return [text and Written(text.tokens, text.seconds - text.prompt) for text in texts]


def rate(texts: Sequence[Written | None]) -> float:
    """Tokens a second."""
    made = [text for text in texts if text is not None]
    return sum(text.tokens for text in made) / sum(text.seconds for text in made)


def mean_length(texts: Sequence[Written | None]) -> float:
    made = [text.tokens for text in texts if text is not None]
    return sum(made) / len(made)


def beside(ours: Sequence[Written | None], theirs: Sequence[Written | None]) -> float:
    """How many times as many tokens a second, on the schemas that both sides wrote."""
    return rate([a for a, b in zip(ours, theirs, strict=True) if b is not None]) / rate(theirs)


class XGrammar:
    """transformers' generate in float32, plain, with xgrammar's logits processor."""

    def __init__(self, ours: HFModel, network: Any, cases: Sequence[Case], temperature: float) -> None:
        import xgrammar

        self.network, self.ours = network, ours
        self.how = {"do_sample": True, "top_k": 0, "temperature": temperature} if temperature else {"do_sample": False}
        whole = ours.tokenizer._complete  # transformers' own tokenizer of the same files
        about = xgrammar.TokenizerInfo.from_huggingface(
            whole, vocab_size=ours.vocabulary, stop_token_ids=list(ours.end_tokens)
        )
        compiler = xgrammar.GrammarCompiler(about)
        self.compiled = {}
        for case in cases:
            with suppress(RuntimeError):  # it has no tuples, as in {"items": [...]}
                self.compiled[case.name] = compiler.compile_json_schema(json.dumps(case.schema), any_whitespace=False)

    @torch.no_grad()
    def write(self, case: Case, seed: int) -> Written:
        from xgrammar.contrib.hf import LogitsProcessor

        from draftproof.engine.arguments import encode

        torch.manual_seed(seed)
        ids = torch.tensor([encode(self.ours, case.question)])
        start = time.perf_counter()
        made = self.network.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            logits_processor=[LogitsProcessor(self.compiled[case.name])],
            **self.how,
            max_new_tokens=LENGTH,
            eos_token_id=list(self.ours.end_tokens),
            pad_token_id=self.ours.end_tokens[0],
        )
        return Written(made.shape[1] - ids.shape[1], time.perf_counter() - start)


# Masks


def masks(cases: Sequence[Case], seed: int) -> dict[str, Any]:
    """The share of the time of all texts that masks take, and all of the grammar: also states, and what is sure."""
    model = load("smollm2", dtype="int8")
    spent: Counter[str] = Counter()
    below: list[float] = []  # of each call that goes on, the seconds of those that it has made

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*arguments: Any) -> Any:
            start = time.perf_counter()
            below.append(0.0)
            try:
                return work(*arguments)
            finally:
                whole = time.perf_counter() - start
                spent[name] += whole - below.pop()
                if below:
                    below[-1] += whole

        return measured

    def write() -> float:
        start = time.perf_counter()
        for case in cases:
            generate(model, case.question, draft="head", sampling=sampling_of(case), max_new_tokens=LENGTH, seed=seed)
        return time.perf_counter() - start

    write()  # compiles the grammars
    kept = {name: vars(TextState)[name] for name in ("mask", "expected", "after")}
    try:
        for name, work in kept.items():
            is_method = not isinstance(work, cached_property)
            made: Any = timed(name, work) if is_method else cached_property(timed(name, work.func))
            setattr(TextState, name, made)
            if not is_method:
                made.__set_name__(TextState, name)
        seconds = write()
    finally:
        for name, work in kept.items():
            setattr(TextState, name, work)
    shares = {"masks": spent["mask"] / seconds, "all": sum(spent.values()) / seconds}
    return {"schemas": len(cases), "seconds": round(seconds, 2), "share": {k: round(v, 4) for k, v in shares.items()}}


# Batch


def batch(dtype: str, tree: str | None, cases: Sequence[Case], rounds: int, seed: int) -> dict[str, Any]:
    """Tokens a CPU second of three texts without a grammar, beside a fourth that has one or has none.

    CPU time is hardly changed by other load on the machine. Tokens are counted without the noise of verification: one
    for each step, and those of its draft that are accepted on average. Without a given tree the texts have no seeds, so
    that the engine chooses drafts by the clock, as it does in a server. No text ends while the clock runs.
    """
    model = load("smollm2", dtype=dtype)
    rates: dict[str, list[float]] = {"with a grammar": [], "without": []}
    entry = next(case for case in cases if case.name == "many keys").schema
    grammar = Sampling(grammar=Grammar.json_schema({"type": "array", "items": entry, "minItems": 20}))
    for number in range(rounds + 1):
        for name, found in rates.items():
            engine = Engine(model, draft="head", tree=tree, rows=ROWS, length=1024)
            fourth = grammar if name == "with a grammar" else Sampling(end_tokens=())
            seeds = [seed + number + i if tree else None for i in range(ROWS)]
            texts = [
                engine.add_request("Tell me a story.", sampling=one, max_new_tokens=400, seed=own)
                for own, one in zip(seeds, [Sampling(end_tokens=())] * (ROWS - 1) + [fourth], strict=True)
            ]
            engine.step()  # reads the prompts
            start = time.process_time()
            for _ in range(STEPS):
                engine.step()
            seconds = time.process_time() - start
            made = [1 + step.expected for text in texts[:-1] for step in text.output.trace.steps[1:]]
            found.append(sum(made) / seconds)
    kept = {name: found[1:] for name, found in rates.items()}  # the first round warms up
    slower = 1 - median(a / b for a, b in zip(kept["with a grammar"], kept["without"], strict=True))
    return {
        "dtype": dtype,
        "tree": tree or "chosen",
        "rounds": rounds,
        "tokens_per_cpu_s": {name: round(median(found), 1) for name, found in kept.items()},
        "slower": round(slower, 4),
    }


# Device


def on_device(cases: Sequence[Case], rounds: int, seed: int) -> dict[str, Any]:
    """Tokens a second of texts with and without a grammar, by the head and plainly; no text is written twice."""
    model = load("smollm2", dtype="bfloat16", device="cuda")
    sides = {f"{kind}, {draft}": (kind, draft) for kind, draft in product(("grammar", "free"), ("head", "none"))}
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, (kind, draft) in sides.items():
            texts: list[Written | None] = []
            for case in cases:
                sampling = sampling_of(case) if kind == "grammar" else Sampling(temperature=1.0)
                start, how = time.perf_counter(), dict[str, Any](max_new_tokens=LENGTH, seed=seed + number)
                made = generate(model, case.question, draft=draft, sampling=sampling, **how)
                texts.append(Written(len(made.tokens), time.perf_counter() - start))
            found[name].append(rate(texts))
            print(name, f"{found[name][-1]:.1f} tokens/s", flush=True)
    rates = {name: round(median(each[1:]), 1) for name, each in found.items()}  # the first round compiles
    return {"dtype": "bfloat16", "schemas": len(cases), "rounds": rounds, "tokens_per_s": rates}


# Audit

LETTERS = '{}[]":, 0123456789abcdeflnrstux'  # the tokens of the small model, but for the last, which ends a text
AUDITED = {
    "type": "object",
    "properties": {
        "data": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99999}, "maxItems": 12},
        "text": {"type": "string", "maxLength": 40},
        "case": {"enum": ["a", "ab", "abc", "cab", "cat"]},
        "true": {"type": ["boolean", "null"]},
    },
    "required": ["data", "text", "case"],
    "additionalProperties": False,
}
ENGINES = {"plain": ("block", None), "block, head": ("block", "head"), "block, ngram": ("block", "ngram")}
ENGINES |= {"gumbel, model": ("gumbel", "model"), "csbv, model": ("csbv", "model")}


def lettered() -> HFModel:
    """The small model of the audits, with a letter for every token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    spelled = [letter if letter != " " else "\u0120" for letter in LETTERS]  # as byte-level tokenizers write a space
    core = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(spelled)}, merges=[]))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.add_special_tokens([AddedToken("<end>", special=True)])
    return HFModel(small().network, PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>"), "small")


def audited(engine: str, tokens: int, seed: int) -> dict[str, Any]:
    """Collect and audit so many tokens of an engine of ours."""
    rule, drafter = ENGINES[engine]
    target = lettered()
    prompts = [tuple((7 * i + k) % 31 for k in range(12)) for i in range(12)]
    draft = Drafters(target, prompts, True)[drafter] if drafter else None
    sampling = Sampling(grammar=Grammar.json_schema(AUDITED))
    settings: dict[str, Any] = {"draft": draft, "rows": 48, "max_new_tokens": 128, "samples": 16}
    settings |= {"verify": rule, "tree": RULES[rule] if drafter else None}
    start = time.perf_counter()
    texts, _ = enough(
        lambda sampling, seed: (collect.engine(target, prompts, sampling, seed=seed, **settings), draft),
        *(sampling, tokens, seed, 1e9),
    )
    found = audit(texts, target, draft=draft)
    kept = ("exact", "verdict", "tokens", "transcripts", "evidence", "impossible", "alpha", "tolerance")
    row = {name: value for name, value in found.as_dict().items() if name in kept}
    return {**row, "accepted": accepted(texts), "seconds": round(time.perf_counter() - start, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grammar", description=__doc__)
    has_gpu = torch.cuda.is_available()
    parser.add_argument("--only", nargs="*", default=PARTS if has_gpu else PARTS[:-1], choices=PARTS)
    parser.add_argument("--samples", type=int, default=5, help="texts of each schema in `valid`")
    parser.add_argument("--tokens", type=int, default=50_000, help="of each engine in `audit`")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtypes", nargs="*", default=DTYPES, choices=DTYPES, help="in `speed` and `batch`")
    parser.add_argument("--stride", type=int, default=1, help="`speed` measures each so-many-th schema")
    parser.add_argument("--every", type=int, default=8, help="transformers writes the texts of each so-many-th schema")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if "speed" in options.only and not find_spec("xgrammar"):
        parser.error("'speed' compares with transformers and xgrammar: pip install xgrammar")
    cases, seed = corpus(), options.seed
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "valid": lambda: valid(cases, options.samples, seed),
        "masks": lambda: masks(cases[:: options.stride], seed),
    }
    for dtype, tree in product(options.dtypes, ("chain:4", None)):
        name = f"batch {dtype}, {tree or 'chosen lengths'}"
        parts[name] = partial(batch, dtype, tree, cases, 5 * options.rounds, seed)
    for dtype, temperature in product(options.dtypes, TEMPERATURES):
        arguments = (dtype, cases[:: options.stride], options.rounds, seed, options.every, temperature)
        parts[f"speed {dtype}, temperature {temperature:g}"] = partial(speed, *arguments)
    parts |= {f"audit {name}": partial(audited, name, options.tokens, seed) for name in ENGINES}
    parts["device"] = lambda: on_device(cases[:: options.stride], options.rounds, seed)
    for name, measure in parts.items():
        if name.split()[0].strip(",") in options.only:
            device = "cuda" if name == "device" else "cpu"
            origin = about(device=device)  # before it is measured: the checkout may change
            row = {**measure(), "seed": seed}
            print(name, row, flush=True)
            rows = json.loads(options.results.read_text()) if options.results.exists() else {}
            options.results.write_text(json.dumps({**rows, name: {**row, **origin}}, indent=1) + "\n", encoding="utf-8")


def about(benchmark: str = "grammar", device: str = "cpu") -> dict[str, Any]:
    """Machine, versions, commit and command."""
    found = facts(device)._asdict()
    packages = ("llguidance", "jsonschema", *(["xgrammar"] if find_spec("xgrammar") else []))
    found["versions"] |= {name: version(name) for name in packages}
    words = sys.argv[1:]
    if "--results" in words:  # a place on this machine
        del words[words.index("--results") : words.index("--results") + 2]
    return {**found, "command": shlex.join(["python", "-m", f"benchmarks.{benchmark}", *words])}


if __name__ == "__main__":
    main()
