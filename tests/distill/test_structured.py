"""Schemas for texts to train on: of many kinds, all of use for a grammar, the same from the same seed."""

from __future__ import annotations

import json

import numpy as np

from benchmarks.schemas import corpus
from draftproof import Grammar
from draftproof.models import grammars
from scripts.structured import question, schema


def test_every_schema_is_of_use_for_a_grammar():
    rng = np.random.default_rng(1)
    made = [schema(rng) for _ in range(400)]
    for one in made:
        grammars.check(Grammar.json_schema(one))
    assert len({json.dumps(one) for one in made}) > 350  # some kinds are one schema
    assert {str(one.get("type")) for one in made} >= {"object", "array", "string", "integer", "boolean"}


def test_the_same_seed_asks_the_same_and_often_shows_the_schema():
    asked = [[question(rng, schema(rng)) for _ in range(100)] for rng in map(np.random.default_rng, (3, 3))]
    assert asked[0] == asked[1]
    assert 40 < sum('{"' in one for one in asked[0]) < 80


def test_no_schema_with_keys_is_one_that_is_measured():
    rng = np.random.default_rng(2)
    measured = {json.dumps(case.schema) for case in corpus() if "properties" in case.schema}
    assert len(measured) > 30
    assert not measured & {json.dumps(schema(rng)) for _ in range(2000)}
