"""An audit of texts that follow a grammar: silent on exact ones, an alarm where draft positions are masked wrongly."""

from __future__ import annotations

import json

import numpy as np
import pytest

from draftproof import Grammar
from draftproof.audit import Transcript, audit, collect, read, write
from draftproof.draft import Tree
from draftproof.engine.eager.constraints import Constraints
from draftproof.models.drafters.ngram import NGram
from draftproof.models.grammars import start
from draftproof.models.table import TableModel
from draftproof.sampling import Sampling
from tests.support import tiny
from tests.support.faults import World, auditor, draw, feed, softmax, world

PROMPTS = [(65, 66, 65, 66), (70, 71)]
PAIRS = Grammar.regex("([a-f]{1,3}[0-9]{2},){1,20}[xyz]")
SCHEMA = Grammar.json_schema(
    {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"type": "integer"}, "maxItems": 4},
            "b": {"enum": ["x", "yes"]},
        },
        "required": ["a", "b"],
        "additionalProperties": False,
    }
)
SETTINGS = {
    "regex": Sampling(grammar=PAIRS),
    "schema": Sampling(grammar=SCHEMA, temperature=0.7),
    "regex, top-p": Sampling(grammar=PAIRS, top_p=0.9, repetition_penalty=1.2),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("verify", ["block", "gumbel", "csbv"])
def test_our_engine_is_exact_under_a_grammar(verify, name):
    target, draft = tiny.model(), tiny.model("llama", 1)
    tree = Tree.paths(2, 2) if verify == "csbv" else Tree.chain(3)
    settings = {"samples": 12, "max_new_tokens": 40, "seed": 1, "draft": draft, "verify": verify, "tree": tree}
    made = list(collect.engine(target, PROMPTS, SETTINGS[name], **settings))
    assert any(flag for text in made for flag in text.accepted)
    found = audit(made, target, draft=draft)
    assert found.exact, found.text()
    assert found.impossible == 0


def test_the_grammar_is_kept_in_the_file(tmp_path):
    target = tiny.model()
    made = list(collect.engine(target, PROMPTS, SETTINGS["schema"], samples=3, max_new_tokens=40, draft=NGram(258)))
    write(tmp_path / "t.jsonl", made)
    line = json.loads((tmp_path / "t.jsonl").read_text().splitlines()[0])
    assert line["sampling"]["grammar"] == SCHEMA.as_dict
    again = list(read(tmp_path / "t.jsonl", target))
    assert [text.sampling for text in again] == [text.sampling for text in made]
    assert audit(again, target).final == pytest.approx(audit(made, target).final)


def test_texts_said_to_follow_a_grammar_that_they_do_not():
    target = tiny.model()
    made = list(collect.engine(target, PROMPTS, Sampling(), samples=3, max_new_tokens=30, seed=2))
    found = audit([text._replace(sampling=SETTINGS["regex"]) for text in made], target)
    assert not found.exact
    assert "tokens came that the settings forbid" in found.verdict


def test_our_engine_with_the_wrong_history_raises_the_alarm(monkeypatch):
    """What the grammar forbade before the draft stays forbidden at every draft position, unless nothing is left."""
    right = Constraints.masks

    def stale(self, nodes, *rest):
        found = {}
        for b, own in right(self, nodes, *rest).items():
            (before,) = right(self, [0], *rest)[b]
            found[b] = [mask if mask is None or not (mask & before).any() else mask & before for mask in own]
        return found

    target, draft, turns = tiny.model(), tiny.model("llama", 1), Grammar.regex("([a-d][a-z]){20}")
    settings = {"samples": 16, "max_new_tokens": 40, "seed": 1, "draft": draft, "tree": Tree.chain(3)}
    assert audit(collect.engine(target, PROMPTS, Sampling(grammar=turns), **settings), target, draft=draft).exact
    monkeypatch.setattr(Constraints, "masks", stale)
    found = audit(collect.engine(target, PROMPTS, Sampling(grammar=turns), **settings), target, draft=draft)
    assert not found.exact
    assert found.impossible == 0


# Faults on tables

SIZE = 20
AUTOMATON = Grammar.tokens(
    [dict.fromkeys(range(SIZE), 1), dict.fromkeys(range(10), 2), dict.fromkeys(range(5, 15), 0)], []
)
MASKS = {  # of a draft position, from the grammar's states before the draft and after each of its tokens
    "its own": lambda states: states[-1].allowed,
    "the one before the draft": lambda states: states[0].allowed,
    "the one before the last token": lambda states: states[-2:][0].allowed,
    "all since the draft began": lambda states: np.all([state.allowed for state in states], axis=0),
}


def masked(here: World, mask: str, length: int, seed: int) -> Transcript:
    """Token verification of two guesses, with draft positions masked like this."""
    chance = np.random.default_rng(seed)
    state = start(AUTOMATON, TableModel(lambda context: np.full(SIZE, 1 / SIZE)), ())
    last, output, flags = 0, [], []
    while len(output) < length:
        states = [state]
        for left in range(2, -1, -1):
            closed = np.where(MASKS[mask](states), 0, -np.inf)
            p, q = softmax(here.p[last] + closed), softmax(here.q[last] + closed)
            x, accepted = draw(q if left else p, chance.random()), False
            if left:
                accepted = chance.random() < p[x] / q[x]
                x = x if accepted else draw(np.maximum(p - q, 0), chance.random())
            last, state = x, state.after(x) or state
            states.append(state)
            output.append(x)
            flags.append(accepted)
            if not accepted:
                break
    return Transcript((0,), tuple(output[:length]), Sampling(grammar=AUTOMATON), tuple(flags[:length]))


@pytest.mark.parametrize("mask", MASKS)
def test_draft_positions_that_are_masked_with_the_wrong_history_are_found(mask):
    here, seed = world(1, SIZE, 0.7), 0
    book = auditor(here)
    while book.evidence.count < 5_000 and book.evidence.peak < np.log(100):
        feed(book, here, *(masked(here, mask, 50, seed + k) for k in range(10)))
        seed += 10
    found = book.report(0.01)
    assert found.exact is (mask == "its own"), found.text()
    if mask != "all since the draft began":  # which forbids too much, and nothing that came is forbidden
        assert (found.impossible == 0) is found.exact
