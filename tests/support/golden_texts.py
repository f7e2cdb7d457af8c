"""Texts that must not change: settings with a seed, and what was written with them when they were recorded.

`CONFIGURATIONS` maps a name to a function that writes texts and returns them as a list that JSON can hold. It calls
nothing but what users call, so it runs on any version of the package; tests/test_golden_texts.py compares its results
with tests/data/golden_texts.json. A name says what is in it: the target first, then who guesses, then what is asked
for. An entry for a text is [finish, text, tokens] and, except where shapes follow the clock, what its trace counts.

    python -m tests.support.golden_texts --check             what differs from the record, if anything
    python -m tests.support.golden_texts --record            write the record anew: only if texts are meant to change
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from draftproof import Anneal, ByEntropy, Engine, Sampling, Tree, custom_generate, generate, stream
from draftproof.models import load
from draftproof.models.table import TableModel

RECORD = Path(__file__).resolve().parents[1] / "data" / "golden_texts.json"
WORDS = "The sea is blue and the sky is blue. The sea is wide and the sky is wide. The sea is"
CHAT = [{"role": "system", "content": "Answer in one line."}, {"role": "user", "content": "Name a colour."}]
TABLE_LENGTH, LENGTH, SHORT = 20, 16, 10  # tokens of a text

Configuration = Callable[[], list[Any]]


# What is kept of a text


def told(output: Any, counted: bool = True, fine: bool = False) -> list[Any]:
    """A text as the record has it; `fine` adds the means that a trace reports, which only tables give to all digits."""
    entry = [output.finish, output.text, output.tokens]
    if not counted:
        return entry
    trace = output.trace.as_dict()
    counts = {name: trace[name] for name in ("drafted", "accepted", "target_calls")}
    counts["acceptance_by_position"] = [round(share, 6) for share in trace["acceptance_by_position"]]
    if trace["shapes"]:
        counts["shapes"] = trace["shapes"]
    if fine:
        counts |= {name: round(trace[name], 6) for name in ("expected_tokens_per_call", "total_variation")}
    return [*entry, counts]


def texts(target: Any, prompt: Any, counted: bool = True, **settings: Any) -> list[Any]:
    """What `generate` writes; models are given by their names and loaded once."""
    made = generate(_model(target), prompt, **{**settings, "draft": _drafts(settings.get("draft", "auto"))})
    fine = isinstance(target, TableModel)
    return [told(one, counted, fine) for one in (made if isinstance(made, list) else [made])]


@cache
def loaded(name: str, dtype: str = "float32", lean: bool = True) -> Any:
    return load(name, dtype=dtype, device="cpu", lean=lean)


def _model(name: Any) -> Any:
    """A model by name, with its dtype after a space."""
    return loaded(*name.split()) if isinstance(name, str) else name


def _drafts(draft: Any) -> Any:
    """Drafters by name, the small model as one that is loaded already."""
    if isinstance(draft, list):
        return [_drafts(one) for one in draft]
    return loaded("tiny") if draft == "tiny" else draft


# Every rule, on tables


def table(name: str, like: TableModel | None = None, share: float = 0.0) -> TableModel:
    """Laws of 9 tokens that depend on the last two, with zeros in them; so much of each is the law of `like`."""

    @cache
    def row(last: tuple[int, ...]) -> list[float]:
        chance = random.Random(f"{name} {last}")
        weights = [chance.choice((0, 0, 1, 2, 9)) for _ in range(9)]
        weights[chance.randrange(9)] += 1
        own = [weight / sum(weights) for weight in weights]
        return own if like is None else [share * a + (1 - share) * b for a, b in zip(like.rows(last), own, strict=True)]

    return TableModel(lambda context: row(tuple(context[-2:])), name)


P = table("p")
Q, R = table("q", P, 0.6), table("r", P, 0.4)
ANY = ("chain:4", "star:3", "paths:2x3", "of:2x2", "best:8x3")
ALL_DRAWS = ("distinct", "fixed", "iid", "plan", "top")
SHAPES = {  # trees that a rule is tried on
    **dict.fromkeys(("block", "token"), ("chain:1", "chain:4")),
    **dict.fromkeys(("csbv", "gbv"), ("chain:4", "star:3", "paths:2x3", "paths:3x2")),
    **dict.fromkeys(("importance", "kseq", "match", "naive", "nodeplan", "onehot", "optimal", "optimal_binned"), ANY),
    **dict.fromkeys(("recursive", "recursive_distinct", "sbv", "sbv_plan", "top_plus_one"), ANY),
    **dict.fromkeys(("traversal", "traversal_iid"), ANY),
}
DRAWS = {"match": ALL_DRAWS, "onehot": ALL_DRAWS, "naive": ("distinct", "iid")}  # the others have one
LOSSY = ("clipped:1.25", "lenience:0.8", "skip:0.9", "typical:0.09,0.3", "mentored:0.02")


def on_tables() -> Iterator[tuple[str, Configuration]]:
    """Two texts for each rule and shape; for each way of drawing; couplings, lossy rules and several drafters."""
    write = partial(texts, P, [0], draft=Q, max_new_tokens=TABLE_LENGTH, n=2, seed=5)
    for rule, shapes in SHAPES.items():
        for shape in shapes:
            yield f"table, {rule}, {shape}", partial(write, verify=rule, tree=shape)
    for rule, ways in DRAWS.items():
        for draw in ways:
            yield f"table, {rule}, {draw} draws", partial(write, verify=rule, tree=Tree.of(2, 2), draw=draw)
    for rule in ("gumbel", "gumbel_list"):
        for shape in ("chain:4", "paths:2x3"):
            yield f"table, {rule}, {shape}", partial(write, verify=rule, tree=shape)
        yield f"table, {rule}, auto", partial(write, verify=rule, counted=False)  # its shapes follow the clock
    for rule in LOSSY:
        yield f"table, lossy {rule}", partial(write, lossy=rule, tree="chain:4")
    for rule in ("recursive", "importance"):
        for shape in (Tree.star(2), Tree.of(2, 2)):
            yield f"table, two drafters, {rule}, {shape.parent}", partial(write, draft=[Q, R], verify=rule, tree=shape)
    for rule in ("block", "token"):
        yield f"table, {rule}, auto", partial(write, verify=rule, tree="auto")
    uneven = Tree((-1, 0, 0, 1))
    yield "table, traversal, uneven tree", partial(write, verify="traversal", tree=uneven)
    yield "table, rules that take trees have a chain by default", partial(write, verify="traversal")
    yield "table, nobody guesses", partial(write, draft=None)
    yield "table, ngram", partial(write, draft="ngram")
    yield "table, ends with the context", partial(texts, TableModel(P.rows, "short", 12), [0], draft=Q, seed=1)
    yield "table, an end token", partial(write, sampling=Sampling(end_tokens=(3,)), n=4)
    controls = {"temperature": 0.7, "top_p": 0.9, "frequency_penalty": 0.4, "min_new_tokens": 6, "end_tokens": (3, 5)}
    yield "table, controls", partial(write, sampling=Sampling(**controls), verify="traversal", tree="best:8x3")


# Every control and drafter, on the small model that comes with the package


def unlike_the_last(ids: Any, scores: Any) -> Any:
    """A processor: no token twice in a row."""
    scores = scores + 0
    scores[0, int(ids[0, -1])] = -math.inf
    return scores


CONTROLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 20},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.05},
    "typical_p": {"typical_p": 0.7},
    "epsilon_cutoff": {"epsilon_cutoff": 0.004},
    "eta_cutoff": {"eta_cutoff": 0.004},
    "repetition_penalty": {"repetition_penalty": 1.4},
    "presence_penalty": {"presence_penalty": 1.5, "temperature": 0.7},
    "frequency_penalty": {"frequency_penalty": 0.8, "temperature": 0.7},
    "logit_bias": {"logit_bias": {260: 4.0, 28: -math.inf}},
    "allowed": {"allowed": range(200, 3000)},
    "banned": {"banned": range(200, 300)},
    "min_new_tokens": {"min_new_tokens": 8, "end_tokens": range(200, 500)},
    "no end": {"end_tokens": (), "temperature": 1.2},
    "Anneal": {"temperature": Anneal(1.2, 0.3, over=10)},
    "ByEntropy": {"top_k": ByEntropy(3, 60), "top_p": ByEntropy(0.6, 1.0)},
    "schedule": {"temperature": lambda position, evenness: 0.4 + evenness},
    "processor": {"processors": [unlike_the_last], "temperature": 0.5},
    "several": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.2, "banned": [260]},
}
HOTTER = Sampling(temperature=1.3, top_k=100)  # else the small model would guess what it says itself
GUESSERS: dict[str, dict[str, Any]] = {
    "tiny": {"draft": "tiny", "draft_sampling": HOTTER, "tree": "chain:3"},
    "ngram": {"draft": "ngram", "tree": "chain:3"},
}


def on_tiny() -> Iterator[tuple[str, Configuration]]:
    write = partial(texts, target="tiny", prompt=WORDS, chat=False, max_new_tokens=LENGTH, seed=3)
    hot = partial(write, **GUESSERS["tiny"])
    for guesser, settings in GUESSERS.items():
        for control, values in CONTROLS.items():
            yield f"tiny, {guesser}, {control}", partial(write, **settings, sampling=Sampling(**values))
    for rule, shapes in SHAPES.items():
        rest = {"verify": rule, "tree": shapes[-1], "max_new_tokens": SHORT}
        yield f"tiny, tiny, {rule}, {shapes[-1]}", partial(hot, **rest, sampling=Sampling(temperature=0.8))
    for rule in ("gumbel", "gumbel_list"):
        yield f"tiny, tiny, {rule}, paths:2x3", partial(hot, verify=rule, tree="paths:2x3", max_new_tokens=SHORT)
        for guesser in ("ngram", None):
            name = f"tiny, {guesser}, {rule}, auto"
            yield name, partial(write, draft=guesser, verify=rule, max_new_tokens=SHORT, counted=False)
    for rule in LOSSY[:-1]:  # the last one takes long
        yield f"tiny, tiny, lossy {rule}", partial(hot, lossy=rule, max_new_tokens=SHORT)
    for guesser, settings in GUESSERS.items():
        cool = {"max_new_tokens": 48, "sampling": Sampling(temperature=0.3), "tree": "auto"}
        yield f"tiny, {guesser}, auto", partial(write, **{**settings, **cool})
        yield f"tiny, {guesser}, token, auto", partial(write, **{**settings, **cool, "verify": "token"})
    for draft in ("auto", "none", "cache", "ngram|tiny", "ngram|cache", "text:tiny"):
        yield f"tiny, {draft}", partial(write, draft=draft, sampling=Sampling(temperature=0.5))
    for rule in ("recursive", "importance"):
        mixed = {"draft": ["tiny", "ngram"], "verify": rule, "tree": Tree.paths(2, 3), "draft_sampling": HOTTER}
        yield f"tiny, tiny and ngram, {rule}", partial(write, **mixed)
    yield "tiny, tiny, its own sampling", partial(write, draft="tiny", tree="auto", sampling=Sampling(temperature=0.9))
    yield "tiny, tiny, four samples", partial(hot, n=4)
    yield "tiny, ngram, four samples", partial(write, draft="ngram", n=4, sampling=Sampling(temperature=0.6))
    tree = {"verify": "traversal", "tree": "best:12x4"}
    yield "tiny, tiny, four samples of a tree", partial(hot, **tree, n=4, max_new_tokens=SHORT)
    yield "tiny, tiny, stop strings", partial(hot, stop=[" wind", "sea", "\n"], max_new_tokens=60)
    yield "tiny, tiny, a large seed", partial(hot, seed=2**62 + 1)
    yield "tiny, tiny, seed 0", partial(hot, seed=0)
    prompts = {"words": "Name a colour.", "messages": CHAT, "token ids": [504, 3270, 314, 4461], "one token": [504]}
    for kind, prompt in prompts.items():
        yield f"tiny, tiny, prompt of {kind}", partial(hot, prompt=prompt, chat=True)
    for dtype in ("bfloat16", "int8"):
        for name, settings in {"none": {"draft": None}, **GUESSERS}.items():
            yield f"tiny {dtype}, {name}", partial(write, target=f"tiny {dtype}", **settings)
        yield f"tiny {dtype}, tiny, traversal", partial(hot, target=f"tiny {dtype}", **tree)


def on_smollm2() -> Iterator[tuple[str, Configuration]]:
    """The default model, with the head that was trained for it."""
    cool, asked = Sampling(temperature=0.7), "Why is the sky blue?"
    write = partial(texts, prompt=asked, max_new_tokens=16, sampling=cool, seed=1)
    yield "smollm2, head", partial(write, "smollm2", draft="head")
    yield "smollm2, head, a tree", partial(write, "smollm2", draft="head", verify="traversal", tree="best:12x4")
    several = {"draft": ["head", "tiny"], "verify": "recursive", "tree": "paths:2x3"}
    yield "smollm2, head and tiny", partial(write, "smollm2", **several)
    yield "smollm2 int8, auto", partial(write, "smollm2 int8", max_new_tokens=24)
    yield "smollm2 int8, ngram|head", partial(write, "smollm2 int8", draft="ngram|head", sampling=Sampling())
    yield "smollm2 int8, head, four samples", partial(write, "smollm2 int8", draft="head", n=4, max_new_tokens=8)


# Streams, engines, transformers' generate and the command line


def streamed(**settings: Any) -> list[Any]:
    """Pieces as they come, then the text."""
    writing = stream(loaded("tiny"), WORDS, **{**settings, "draft": _drafts(settings["draft"])}, chat=False)
    pieces = [[piece.text, piece.kind] for piece in writing]
    return [pieces, told(writing.output)]


def shy(ids: Any, scores: Any) -> Any:
    """A processor that bears no long text."""
    if ids.shape[1] > 30:
        raise ZeroDivisionError("too long")
    return scores


def served(**settings: Any) -> list[Any]:
    """Requests that come, wait, end, fail and are cancelled, two rows for all; what was said in each step, then texts.

    The first two have the same seed; the fourth is cancelled while it waits, the third once it has said something.
    """
    engine = Engine(loaded("tiny"), **{**settings, "draft": _drafts(settings["draft"])}, rows=2, length=160)
    add = partial(engine.add_request, chat=False)
    hot = {"draft_sampling": HOTTER}
    requests = [
        add(WORDS, max_new_tokens=14, seed=9, **hot),
        add("The sea", max_new_tokens=9, seed=9, sampling=Sampling(temperature=0.5, top_k=30)),
        add(WORDS, max_new_tokens=100, seed=3, stop="zebra", **hot),
        add(WORDS, max_new_tokens=10, seed=4),
        add([504, 3270, 314], max_new_tokens=8, seed=5, sampling=Sampling(temperature=0)),
        add(WORDS, max_new_tokens=20, seed=6, sampling=Sampling(processors=[shy], end_tokens=())),
    ]
    engine.cancel(requests[3])
    steps: list[Any] = []
    while not engine.is_finished:
        try:
            made = engine.step()
        except ZeroDivisionError as error:
            steps.append(str(error))
            continue
        steps.append([[requests.index(one), *([piece.text, piece.kind] for piece in said)] for one, said in made])
        if len(requests[2].tokens) > 4 and not requests[2].finish:
            engine.cancel(requests[2])
            requests.append(add(WORDS, max_new_tokens=10, seed=7, sampling=Sampling(repetition_penalty=1.3), **hot))
    return [steps, *(told(request.output) for request in requests)]


def dropped_in(how: dict[str, Any], prompts: Sequence[str] = (WORDS,), **settings: Any) -> list[Any]:
    """Token ids that transformers' own `generate` returns with our loop in it."""
    network, tokenizer = loaded("tiny", lean=False).network, loaded("tiny").tokenizer
    padding = {"padding": True, "padding_side": "left"} if len(prompts) > 1 else {}
    inputs = tokenizer(list(prompts), return_tensors="pt", **padding)
    guessed = {**how, "draft": network} if how.get("draft") == "tiny" else how
    torch.manual_seed(11)
    given = {"input_ids": inputs.input_ids, "attention_mask": inputs.attention_mask, "max_new_tokens": LENGTH}
    found = network.generate(**given, **settings, custom_generate=custom_generate(**guessed))
    return found[:, inputs.input_ids.shape[1] :].tolist()  # type: ignore[no-any-return]


def typed(*words: str) -> list[Any]:
    """`draftproof generate ... --json` as a user types it."""
    from typer.testing import CliRunner

    from draftproof.commands.cli import app

    with patch("torch.cuda.is_available", return_value=False):
        said = CliRunner().invoke(app, ["generate", *words, "--target", "tiny", "--json"], catch_exceptions=False)
    report = json.loads(said.stdout)
    trace = {name: report["trace"][name] for name in ("drafted", "accepted", "target_calls", "verifier", "drafter")}
    return [*(report[name] for name in ("finish", "text", "tokens", "seed", "notice")), trace]


def by_other_doors() -> Iterator[tuple[str, Configuration]]:
    tree = {"verify": "traversal", "tree": Tree.best(8, 3)}
    paths = {"verify": "csbv", "tree": "paths:2x3"}
    coupled = {"verify": "gumbel", "tree": "chain:4"}
    for draft in ("tiny", "ngram", None):
        settings = {"draft": draft, "max_new_tokens": LENGTH, "seed": 8, "sampling": Sampling(temperature=0.7)}
        yield f"stream, {draft}", partial(streamed, **settings)
        yield f"engine, {draft}", partial(served, draft=draft)
    yield "stream, tiny, a tree", partial(streamed, draft="tiny", draft_sampling=HOTTER, seed=8, **tree, stop=["\n"])
    yield "engine, cache", partial(served, draft="cache")
    yield "engine, tiny, a tree", partial(served, draft="tiny", **tree)
    yield "engine, tiny, paths", partial(served, draft="tiny", **paths)
    yield "engine, tiny, gumbel", partial(served, draft="tiny", **coupled)
    yield "engine, tiny, lossy", partial(served, draft="tiny", lossy="lenience:0.7")
    drawn = {"do_sample": True, "temperature": 0.8, "top_k": 50}
    mine = {"draft": "tiny", "draft_temperature": 1.4}
    yield "transformers, greedy", partial(dropped_in, {"draft": "ngram"}, do_sample=False, repetition_penalty=1.2)
    yield "transformers, ngram", partial(dropped_in, {"draft": "ngram"}, **drawn)
    yield "transformers, nobody guesses", partial(dropped_in, {"draft": None}, **drawn, min_p=0.02)
    yield "transformers, tiny", partial(dropped_in, mine, **drawn, bad_words_ids=[[260], [282, 260]])
    yield "transformers, tiny, a tree", partial(dropped_in, {**mine, **tree}, **drawn, num_return_sequences=3)
    yield "transformers, tiny, its own layers", partial(dropped_in, {**mine, "lean": False}, **drawn)
    yield "transformers, two prompts", partial(dropped_in, mine, ("The sea", WORDS), **drawn, no_repeat_ngram_size=2)
    line = ("-n", "16", "--seed", "4")
    yield "command line, ngram", partial(typed, WORDS, *line, "--draft", "ngram", "--raw", "--temperature", "0.6")
    hotter = ("--draft", "tiny", "--draft-temperature", "1.4", "--draft-top-k", "200")
    yield "command line, tiny", partial(typed, "Name a colour.", *line, *hotter, "--top-p", "0.9", "--ignore-eos")
    yield "command line, tiny, a tree", partial(typed, WORDS, *line, *hotter, "--verify", "gbv", "--tree", "paths:2x3")
    lossy = ("--lossy", "typical", "--draft-length", "3")
    yield "command line, tiny, lossy", partial(typed, WORDS, *line, *hotter, *lossy)
    yield "command line, nobody guesses", partial(typed, WORDS, *line, "--draft", "none", "--top-k", "9")
    yield "command line, int8", partial(typed, WORDS, *line, *hotter, "--dtype", "int8", "--min-p", "0.02")


CONFIGURATIONS: dict[str, Configuration] = {
    name: write for group in (on_tables, on_tiny, on_smollm2, by_other_doors) for name, write in group()
}
# What is rounded coarsely after every layer may fall on the other side where a processor adds in another order. With
# int8 all processors add in the same order.
ROUNDED = {name for name in CONFIGURATIONS if "bfloat16" in name}
FETCHED = {name for name in CONFIGURATIONS if "smollm2" in name}  # from PyPI, once


# The record


def processor() -> str:
    """What decides how sums are rounded here: what the processor can do, what torch makes of it, a C compiler."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.is_file() else []
    flags = sorted(next((line for line in lines if line.startswith("flags")), "").partition(":")[2].split())
    known = hashlib.sha256(" ".join(flags).encode()).hexdigest()[:16]
    compiler = "cc" if shutil.which("cc") else "no cc"
    return f"{known}, {torch.backends.cpu.get_cpu_capability()}, {compiler}"


def written(name: str) -> list[Any]:
    """What a configuration writes now, as JSON would give it back."""
    return json.loads(json.dumps(CONFIGURATIONS[name]()))  # type: ignore[no-any-return]


def record(made: dict[str, list[Any]], path: Path = RECORD) -> None:
    """A line for each configuration, so that a change shows where it is."""
    lines = [f"{json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in made.items()]
    body = ",\n".join(lines)
    path.write_text(f'{{"processor": {json.dumps(processor())}, "texts": {{\n{body}\n}}}}\n', encoding="utf-8")


def main() -> int:
    asked = argparse.ArgumentParser(description="Texts that must not change.")
    way = asked.add_mutually_exclusive_group(required=True)
    way.add_argument("--record", action="store_true", help="write the record anew")
    way.add_argument("--check", action="store_true", help="compare with the record")
    asked.add_argument("--path", type=Path, default=RECORD, help="of the record")
    asked.add_argument("--reverse", action="store_true", help="the last first: no text depends on those before it")
    asked.add_argument("--times", action="store_true", help="say what each takes of the processor")
    given = asked.parse_args()
    torch.set_num_threads(1)
    names, made = list(CONFIGURATIONS), {}
    for name in reversed(names) if given.reverse else names:
        start = time.process_time()
        made[name] = written(name)
        if given.times:
            print(f"{time.process_time() - start:6.2f} s  {name}")
    if given.record:
        record({name: made[name] for name in names}, given.path)
        print(f"{len(made)} configurations recorded in {given.path}")
        return 0
    wanted = json.loads(given.path.read_text(encoding="utf-8"))
    different = sorted(made.keys() ^ wanted["texts"].keys())
    different += [name for name in names if name in wanted["texts"] and made[name] != wanted["texts"][name]]
    for name in different:
        other = " (may round differently here)" if name in ROUNDED and wanted["processor"] != processor() else ""
        print(f"different: {name}{other}")
    print(f"{len(different)} of {len(made)} configurations differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
