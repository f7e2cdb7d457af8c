"""Many settings at once, drawn at random: whole texts follow the law that the controls make of the target."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

import draftproof as dp
from draftproof import verify
from draftproof.models.table import TableModel
from draftproof.sampling import Context, law
from tests.support import gof

TOKENS, TEXTS = 4, 1000
RULES = [*verify.VERIFIERS, "gumbel", "gumbel_list"]
TREES = [
    *(dp.Tree.chain(n) for n in (1, 2, 4)),
    *(dp.Tree.paths(*size) for size in ((2, 2), (3, 1), (2, 3))),
    dp.Tree.of(2, 2),
    dp.Tree.best(6, 3),
]
CONTROLS: dict[str, list[Any]] = {
    "temperature": [0, 0.5, 1.7, dp.Anneal(2.0, 0.5, 2)],
    "top_k": [1, 2, 3],
    "top_p": [0.5, 0.8, dp.ByEntropy(0.5, 1.0)],
    "min_p": [0.3],
    "typical_p": [0.7],
    "repetition_penalty": [1.6],
    "presence_penalty": [0.9],
    "frequency_penalty": [-0.7],
    "logit_bias": [{1: 1.5}],
    "min_new_tokens": [1, 2],
    "end_tokens": [[0], [1, 3]],
}


def table(seed: int) -> TableModel:
    """Laws that depend on the last two tokens, some with zeros."""

    def rows(context):
        random = np.random.default_rng([seed, *(max(token, 0) for token in context[-2:])])
        weights = random.dirichlet(np.full(TOKENS, 0.8)) * (random.random(TOKENS) > 0.2)
        return weights / weights.sum() if weights.any() else np.eye(TOKENS)[0]

    return TableModel(rows)


def test_no_draft_is_deeper_than_the_text_has_room_for():
    """The token after it must fit, too: into the context, and into max_new_tokens where drafts are cut there."""
    target, seen = table(1), []

    class Seen(TableModel):
        def session(self, rows, capacity):
            session = super().session(rows, capacity)
            extend = session.extend
            session.extend = lambda tree, *asked: (seen.append(tree.size), extend(tree, *asked))[1]
            return session

    how = {"draft": TableModel(target.rows), "tree": dp.Tree.chain(5), "seed": 1}
    for rule, context, length in (("gumbel", None, 3), ("block", 6, 9)):
        seen.clear()
        model = Seen(target.rows)
        model.context = context
        output = dp.generate(model, [0, 1, 2], verify=rule, max_new_tokens=length, **how)
        assert len(output.tokens) == 3
        assert seen[0] == 3  # node 0, and two draft tokens before the last one
        assert max(seen) == 3


def texts(
    target: TableModel, prompt: tuple[int, ...], sampling: dp.Sampling, length: int
) -> dict[tuple[int, ...], float]:
    """The law of whole texts, one token after another."""
    found, open_ = {}, {(): 1.0}
    while open_:
        text, chance = open_.popitem()
        if len(text) == length or (text and text[-1] in (sampling.end_tokens or ())):
            found[text] = chance
            continue
        with np.errstate(divide="ignore"):
            scores = np.log(target.rows(prompt + text))[None]
        for token, p in enumerate(law(scores, sampling, [Context(prompt, text)])[0]):
            if p > 0:
                open_[(*text, token)] = chance * p
    return found


def fits(rule: str, tree: dp.Tree) -> bool:
    return rule not in verify.VERIFIERS or verify.get(rule).accepts(tree)


@pytest.mark.parametrize("case", range(24))
def test_the_law_of_whole_texts(case):
    chance = random.Random(case)
    rule = RULES[case % len(RULES)]
    how = {"verify": rule, "tree": chance.choice([None, *(tree for tree in TREES if fits(rule, tree))])}
    how["draft"] = chance.choice([table(1000 + case), table(2000 + case), "ngram", "cache"])
    sampling = dp.Sampling(**{name: chance.choice(few) for name, few in CONTROLS.items() if chance.random() < 0.3})
    guessing = chance.choice([None, dp.Sampling(temperature=2.0), dp.Sampling(temperature=0.5, top_k=2)])
    target, length = table(case), chance.randint(2, 4)
    prompt = tuple(chance.choices(range(TOKENS), k=chance.randint(1, 6)))
    how |= {"sampling": sampling, "draft_sampling": guessing, "max_new_tokens": length}
    if case % 2:
        outputs = [out for seed in range(TEXTS // 25) for out in dp.generate(target, prompt, n=25, seed=seed, **how)]
    else:
        outputs = [out.output for out in together(target, prompt, **how)]
    true = texts(target, prompt, sampling, length)
    seen = Counter(tuple(out.tokens) for out in outputs)
    assert seen.keys() <= true.keys()
    rare = {text for text, p in true.items() if p * TEXTS < 2 * gof.LEAST_EXPECTED}  # too rare to be counted one by one
    cells = Counter({text: p for text, p in true.items() if text not in rare})
    if sum(true[text] for text in rare) * TEXTS >= gof.LEAST_EXPECTED:
        cells["rare"] = sum(true[text] for text in rare)
    counts = Counter("rare" if text in rare else text for text in seen.elements())
    gof.check({cell: counts[cell] for cell in cells}, {cell: p / cells.total() for cell, p in cells.items()})


def together(target, prompt, *, verify, tree, draft, **order):
    """As requests of an engine, each with a seed of its own."""
    engine = dp.Engine(target, draft=draft, verify=verify, tree=tree, rows=50, length=40)
    requests = [engine.add_request(prompt, seed=seed, **order) for seed in range(TEXTS)]
    while not engine.is_finished:
        engine.step()
    return requests
