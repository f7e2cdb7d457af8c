"""How many tokens a call heads bring, on the same texts: differences of one percent show within a minute.

`python -m benchmarks.heads head runs/new` compares the shipped head with the one in a folder, on texts that the
target has written under the schemas of `benchmarks.schemas` and, with `--prompts spec_bench.jsonl`, on first answers.
A text is gone through in chains of four of its own tokens. Because it follows p, the product of min(1, q / p) along a
chain is on average what it is for a drafted one, token by token: no draft is drawn, and all heads see the same texts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.grammar import about
from benchmarks.schemas import corpus
from draftproof import Engine, Grammar, Sampling, Tree, load
from draftproof.engine.arguments import encode
from draftproof.grammar import State
from draftproof.models import grammars
from draftproof.models.base import sessions
from draftproof.models.drafters.head import HeadModel, find
from draftproof.models.hf import HFModel
from draftproof.native import whole_laws
from draftproof.prompts import read

RESULTS = Path(__file__).parent / "results" / "heads.json"
TEMPERATURES = (1.0, 0.7)
LENGTH, CHAIN, ROWS = 110, 4, 32  # tokens of a text at most, of a chain, and texts that are written at once


class Text(NamedTuple):
    """A prompt, what the target wrote, and how."""

    prompt: tuple[int, ...]
    tokens: list[int]
    temperature: float
    start: State | None  # of the grammar


def written(model: HFModel, asked: Sequence[tuple[str, Grammar | None]], seed: int) -> Iterator[Text]:
    """A text for each question and temperature, by the target alone."""
    prompts = [tuple(encode(model, question)) for question, _ in asked]
    engine = Engine(model, draft="none", rows=ROWS, length=max(map(len, prompts)) + LENGTH + 1)
    requests = []
    for number, (prompt, (_, grammar)) in enumerate(zip(prompts, asked, strict=True)):
        for temperature in TEMPERATURES:
            sampling = Sampling(temperature=temperature, grammar=grammar)
            one = engine.add_request(prompt, sampling=sampling, max_new_tokens=LENGTH, seed=seed + number)
            requests.append((prompt, one, temperature, grammar))
    while not engine.is_finished:
        engine.step()
    for prompt, one, temperature, grammar in requests:
        start = None if grammar is None else grammars.start(grammar, model, model.end_tokens)
        yield Text(prompt, list(one.output.tokens), temperature, start)


def reached(head: HeadModel, text: Text) -> Iterator[float]:
    """Tokens that each call of a chain brings on average, with chains from every fourth token on."""
    model, tree, ids = head.target, Tree.chain(CHAIN), head.draft_tokens
    target, (drafter,) = sessions(model, [head], 1, len(text.prompt) + len(text.tokens) + CHAIN)
    session: Any = drafter.session
    for one in (target, session):
        one.join(0, text.prompt)
    states = [text.start]
    for token in text.tokens:
        states.append(None if states[-1] is None else states[-1].after(token))
    whole = [text.prompt[-1], *text.tokens]
    for first in range(0, len(text.tokens) - CHAIN + 1, CHAIN):
        tokens = np.array([whole[first : first + CHAIN + 1]])
        p = np.asarray(target.extend(tree, tokens, range(tree.size)))[0]
        session.forget()
        q = np.asarray(session.extend_reduced(tree, tokens, range(tree.size)))[0]
        chance, total = 1.0, 1.0
        for node, token in enumerate(tokens[0, 1:]):
            chance *= acceptance(p[node], q[node], ids, int(token), states[first + node], text.temperature)
            total += chance
        yield total
        for one in (target, session):
            one.commit(tree, tokens, [CHAIN - 1], [int(tokens[0, -1])])


def acceptance(
    p: np.ndarray, q: np.ndarray, ids: np.ndarray, token: int, state: State | None, temperature: float
) -> float:
    """min(1, q / p) of a token, from the scores of all tokens and of those that can be drafted."""
    if state is not None and state.expected >= 0:
        return float(state.expected == token)
    allowed = None if state is None else state.allowed
    place = int(np.searchsorted(ids, token))
    if place == len(ids) or ids[place] != token:
        return 0.0
    laws = [
        whole_laws(np.ascontiguousarray(scores[None]), temperature, None if mask is None else [mask])
        for scores, mask in ((p, allowed), (q, None if allowed is None else allowed[ids]))
    ]
    if laws[0] is None or laws[1] is None:
        raise SystemExit("laws are made in C: this needs a compiler")
    return min(1.0, float(laws[1][0, place]) / float(laws[0][0, token]))


def measure(head: HeadModel, texts: Sequence[Text]) -> dict[str, Any]:
    """Tokens a call, with its standard error, by temperature."""
    row: dict[str, Any] = {}
    for temperature in TEMPERATURES:
        found = np.array([one for text in texts if text.temperature == temperature for one in reached(head, text)])
        mean, error = float(found.mean()), float(found.std() / len(found) ** 0.5)
        row[f"temperature {temperature:g}"] = {"tokens_per_call": round(mean, 3), "error": round(error, 3)}
    return row


def table(root: Path) -> str:
    """The recorded rows as a table of docs/drafters.md, and how they were measured."""
    rows = json.loads((root / "benchmarks" / "results" / RESULTS.name).read_text(encoding="utf-8")).values()
    kinds = list(dict.fromkeys(row["texts"] for row in rows))
    names = [f"{kind}, {temperature:g}" for kind in kinds for temperature in TEMPERATURES]
    lines = [f"| head | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for head in dict.fromkeys(row["head"] for row in rows):
        own = {row["texts"]: row for row in rows if row["head"] == head}
        found = [own[kind][f"temperature {temperature:g}"] for kind in kinds for temperature in TEMPERATURES]
        cells = (f"{one['tokens_per_call']:.2f} ± {one['error']:.2f}" for one in found)
        lines.append(f"| {head.replace('-', ' ')} | {' | '.join(cells)} |")
    first = next(iter(rows))
    return "\n".join([*lines, "", f"`{first['command']}`, commit {first['commit']}, {first['date']}.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.heads", description=__doc__.splitlines()[0])
    parser.add_argument("heads", nargs="+", help="head, or folders of heads")
    parser.add_argument("--prompts", type=Path, help="a file of prompts, to be answered freely")
    parser.add_argument("--count", type=int, default=60, help="of these prompts")
    parser.add_argument("--longest", type=int, default=280, help="tokens of a prompt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    model: Any = load("smollm2", dtype="int8")
    asked: dict[str, list[tuple[str, Grammar | None]]] = {
        "schemas": [(case.question, Grammar.json_schema(case.schema)) for case in corpus()]
    }
    if given.prompts:
        asked["prompts"] = [(prompt, None) for prompt in read(given.prompts)]
    origin = about("heads")  # before it is measured: the checkout may change
    for kind, some in asked.items():
        short = [one for one in some if len(encode(model, one[0])) < given.longest]
        if kind == "prompts":
            order = np.random.default_rng(given.seed).permutation(len(short))
            short = [short[place] for place in order[: given.count]]
        texts = list(written(model, short, given.seed))
        for name in given.heads:
            row = {"texts": kind, "head": Path(name).name, **measure(find(name, model), texts), "seed": given.seed}
            print(row, flush=True)
            rows = json.loads(given.results.read_text()) if given.results.exists() else {}
            rows[f"{row['head']}, {kind}"] = row | origin
            given.results.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
