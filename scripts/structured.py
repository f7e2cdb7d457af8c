"""Texts under JSON schemas, written by the target, for training a drafter beside other texts.

`python -m scripts.structured FILE --texts 4000` writes one shard of text for `draftproof distill --text`. Schemas are
drawn at random, from words of our own; every text is a chat of one question with the schema, or without, and an answer
that fits it. Tokens that the grammar makes sure of are marked as given: no drafter is asked for them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from draftproof import Engine, Grammar, Sampling, load
from draftproof.distill.data import Text
from draftproof.distill.run import HEAT
from draftproof.engine.arguments import encode
from draftproof.models import grammars
from scripts.prompts import TOPICS

EACH = 6  # texts of a schema, which share the reading of their question
ROWS = 32  # texts at once

THINGS = """recipe|house|train journey|planet|hotel|film|song|football match|bank account|weather station|patient
|museum|garden|laptop|restaurant|employee|city|animal|flight|painting|server|school class|order|concert|mountain
|meeting|insurance claim|phone|river|vehicle|newspaper article|language course|parcel|bicycle|experiment|holiday"""
WORDS = """title|summary|owner|label|category|street|comment|origin|brand|material|reason|result|status_text|author
|manager|headline|nickname|language|instrument|region|purpose|symptom|ingredient|method|note|feature|opinion|motto"""
COUNTS = "count|year|age|floor|rank|seats|pages|duration_minutes|score|quantity|level|distance_km|points|stock|goals"
AMOUNTS = "price|weight|height|rating|temperature|ratio|latitude|balance|speed|discount|area"
FLAGS = "available|verified|public|open|finished|urgent|paid|favourite|in_stock|recurring"
LISTS = "keywords|members|steps|options|materials|guests|colours|languages|skills|warnings|neighbours|topics"
PARTS = "address|details|contact|schedule|size|price_info|location|settings|statistics|manager_info"
CHOICES = """low|medium|high;red|green|blue|black;north|east|south|west;new|used|refurbished;draft|review|published
;monday|wednesday|friday;small|large;cash|card|invoice;easy|moderate|hard;spring|summer|autumn|winter;yes|no|unknown
;rock|jazz|classical|folk;beginner|intermediate|expert"""
FORMATS = "date|time|date-time|email|uri|uuid|ipv4"
PATTERNS = """^[A-Z][a-z]+$;^[A-Z]{2}[0-9]{6}$;^[a-z]+_[a-z]+$;^v[0-9]+[.][0-9]+$;^[0-9]{3}/[0-9]{2}$;^[a-z0-9]{12}$
;^(Mr|Ms|Dr) [A-Z][a-z]+$;^#[a-z]{3,10}$;^[0-9]+ (km|kg|m|h)$"""

ASKED = """Describe a {thing}.|Make up a {thing}.|I need the data of one {thing}.|Tell me about {topic}.
|Give an example of a {thing} that has to do with {topic}.|What should I know about {topic}?
|Invent a {thing} for a test.|Extract what matters about {topic}.|Fill in the form for a {thing}.
|Which {thing} would you recommend? Why?"""
WITH_SCHEMA = """{asked} Reply with JSON for this schema: {schema}|{asked}\nUse this JSON schema:\n{schema}
|{asked}\n\nThe answer must match the JSON schema {schema}|Schema: {schema}\n\n{asked}"""
WITHOUT = "{asked} Reply in JSON.|{asked} Give the answer as a JSON object.|{asked}"


def pick(rng: np.random.Generator, words: str, by: str = "|") -> str:
    return str(rng.choice([word.strip() for word in words.split(by)]))


def scalar(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """A key and the schema of its value."""
    low = int(rng.integers(0, 50))
    longest = {} if rng.random() < 0.4 else {"maxLength": int(rng.integers(2, 16)) * 10}
    bounds = {} if rng.random() < 0.4 else {"minimum": low, "maximum": low + int(rng.integers(1, 5000))}
    made: list[tuple[str, dict[str, Any]]] = [
        (pick(rng, WORDS), {"type": "string", **longest}),
        (pick(rng, WORDS), {"type": "string", **longest}),
        (pick(rng, WORDS), {"enum": pick(rng, CHOICES, ";").split("|")}),
        (pick(rng, WORDS), {"type": "string", "format": pick(rng, FORMATS)}),
        (pick(rng, COUNTS), {"type": "integer", **bounds}),
        (pick(rng, COUNTS), {"type": "integer", **bounds}),
        (pick(rng, AMOUNTS), {"type": "number", **bounds}),
        (pick(rng, FLAGS), {"type": "boolean"}),
        (pick(rng, WORDS), {"type": ["string", "null"], **longest}),
        (pick(rng, WORDS), {"type": "string", "pattern": pick(rng, PATTERNS, ";")}),
        (pick(rng, WORDS), {"anyOf": [{"type": "string", **longest}, {"type": "integer", **bounds}]}),
        (pick(rng, AMOUNTS), {"type": "number", "exclusiveMinimum": low}),
    ]
    return made[int(rng.integers(len(made)))]


def items(rng: np.random.Generator, value: dict[str, Any]) -> dict[str, Any]:
    few = int(rng.integers(1, 4))
    return {"type": "array", "items": value, "minItems": few, "maxItems": few + int(rng.integers(0, 4))}


def thing(rng: np.random.Generator, depth: int = 0) -> dict[str, Any]:
    """The schema of an object."""
    keys: dict[str, Any] = dict(scalar(rng) for _ in range(int(rng.integers(1, 5 - depth))))
    if rng.random() < 0.4:
        keys[pick(rng, LISTS)] = items(rng, scalar(rng)[1])
    if depth < 2 and rng.random() < 0.3:
        keys[pick(rng, PARTS)] = thing(rng, depth + 1)
    if depth < 1 and rng.random() < 0.2:
        keys["entries"] = items(rng, thing(rng, 2))
    names = list(keys)
    needed = names if rng.random() < 0.7 else names[: max(1, len(names) // 2)]
    return {"type": "object", "properties": keys, "required": needed, "additionalProperties": False}


def map_of(rng: np.random.Generator) -> dict[str, Any]:
    """Keys that are left open, with values of one kind."""
    few = int(rng.integers(1, 4))
    return {"type": "object", "additionalProperties": scalar(rng)[1], "minProperties": few, "maxProperties": few + 3}


def row(rng: np.random.Generator) -> dict[str, Any]:
    """A list with a kind for each place."""
    return {"type": "array", "prefixItems": [scalar(rng)[1] for _ in range(int(rng.integers(2, 5)))], "items": False}


def nested(rng: np.random.Generator) -> dict[str, Any]:
    """An object that holds others of its kind."""
    name, within = pick(rng, WORDS), {"type": "array", "items": {"$ref": "#/$defs/part"}, "maxItems": 3}
    keys = {name: {"type": "string"}, **dict([scalar(rng)]), "parts": within}
    part = {"type": "object", "properties": keys, "required": [name], "additionalProperties": False}
    return {"$defs": {"part": part}, "$ref": "#/$defs/part"}


def one_of(rng: np.random.Generator) -> dict[str, Any]:
    return {"anyOf": [thing(rng, 2), thing(rng, 2)]}


def anything(rng: np.random.Generator) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [{}, {"type": "object"}, {"type": "array"}, {"type": "string"}]
    return kinds[int(rng.integers(len(kinds)))]


def schema(rng: np.random.Generator) -> dict[str, Any]:
    kinds: list[Callable[[], dict[str, Any]]] = [lambda: thing(rng)] * 7
    kinds += [lambda: items(rng, thing(rng, 1)), lambda: items(rng, scalar(rng)[1]), lambda: scalar(rng)[1]]
    kinds += [lambda: scalar(rng)[1], *(partial(kind, rng) for kind in (map_of, row, nested, one_of, anything))]
    return kinds[int(rng.integers(len(kinds)))]()


def question(rng: np.random.Generator, asked: dict[str, Any]) -> str:
    form = WITH_SCHEMA if rng.random() < 0.6 else WITHOUT
    about = pick(rng, ASKED).format(thing=pick(rng, THINGS), topic=pick(rng, TOPICS))
    return pick(rng, form).format(asked=about, schema=json.dumps(asked))


def write(texts: int, length: int, seed: int) -> Iterator[tuple[list[int], list[bool], float]]:
    """Tokens, which of them were drawn, and the temperature, text by text."""
    model, rng = load("smollm2", dtype="int8"), np.random.default_rng(seed)
    engine = Engine(model, draft="none", rows=ROWS, length=length + 1)
    waiting: dict[Any, tuple[Grammar, list[int], float]] = {}
    made = 0
    while made < texts:
        while len(waiting) < 2 * ROWS:
            wanted = schema(rng)
            ids = encode(model, question(rng, wanted))
            if len(ids) > 2 * length // 3:
                continue
            heat, grammar = HEAT[int(rng.integers(len(HEAT)))], Grammar.json_schema(wanted)
            sampling = Sampling(temperature=heat, grammar=grammar)
            for _ in range(EACH):
                request = engine.add_request(
                    ids, sampling=sampling, max_new_tokens=length - len(ids), seed=int(rng.integers(2**31))
                )
                waiting[request] = grammar, ids, heat
        engine.step()
        for request in [request for request in waiting if request.finish]:
            grammar, ids, heat = waiting.pop(request)
            state, drawn = grammars.start(grammar, model, model.end_tokens), [False] * len(ids)
            for token in request.output.tokens:
                drawn.append(grammars.only(state.allowed) < 0)
                state = state.after(token)
            yield [*ids, *request.output.tokens], drawn, heat
            made += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--texts", type=int, default=4000)
    parser.add_argument("--length", type=int, default=321, help="tokens of a row")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = list(write(given.texts, given.length, given.seed))
    rows = len(found)
    tokens = torch.zeros(rows, given.length, dtype=torch.int32)
    drawn = torch.zeros(rows, given.length, dtype=torch.bool)
    for row, (ids, flags, _) in enumerate(found):
        tokens[row, : len(ids)], drawn[row, : len(ids)] = torch.tensor(ids), torch.tensor(flags)
    heat = torch.tensor([heat for *_, heat in found], dtype=torch.float32)
    Text(tokens, drawn, heat).save(given.file)
    print(f"{rows} texts, {int(drawn.sum()):,} tokens to learn from")


if __name__ == "__main__":
    main()
