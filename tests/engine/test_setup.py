"""What is chosen where the caller names nothing: the rule for a draft, and the sampling of a model."""

from __future__ import annotations

import json

import pytest

import draftproof as dp
from draftproof.engine.choices import PREFERRED, PREFERRED_ON_GPU, best_rule
from draftproof.engine.setup import Setup
from draftproof.models import load
from draftproof.models.memo import Memo
from draftproof.models.table import TableModel
from draftproof.verify import VERIFIERS
from tests.support import tiny

TARGET = TableModel(lambda context: [0.5, 0.3, 0.2])
DRAFT = TableModel(lambda context: [0.2, 0.3, 0.5])


@pytest.mark.parametrize(
    ("settings", "rule", "reason"),
    [
        ({}, "block", ""),
        ({"tree": "auto"}, "block", ""),
        ({"tree": "chain:3"}, "block", ""),
        ({"tree": dp.Tree.chain(3)}, "block", ""),
        ({"tree": "star:3"}, "csbv", "star:3"),
        ({"tree": "paths:2x3"}, "csbv", "paths:2x3"),
        ({"tree": "best:8x3"}, "traversal", "best:8x3"),
        ({"tree": dp.Tree.best(8, 3)}, "traversal", "best:8x3"),
        ({"tree": "of:2x2", "draw": "iid"}, "sbv", "of:2x2"),
        ({"tree": "of:2x2", "draw": "plan"}, "sbv_plan", "of:2x2"),
        ({"tree": "star:3", "draw": "top"}, "top_plus_one", "star:3"),
        ({"draw": "fixed"}, "match", "fixed draws"),
        ({"draft": [DRAFT, DRAFT], "tree": "star:2"}, "recursive", "several drafters"),
        ({"draft": None, "tree": "star:3"}, "block", ""),
        ({"tree": "best:8x3", "verify": "match"}, "match", ""),
    ],
)
def test_a_draft_without_a_named_rule_gets_one_that_takes_it(settings, rule, reason):
    output = dp.generate(TARGET, [0], **{"draft": DRAFT, **settings}, max_new_tokens=9, seed=1)
    assert (output.trace.verifier, output.trace.chosen_for) == (rule, reason)
    assert (f"verifier {rule}, chosen for {reason}: " in output.trace.summary()) is bool(reason)
    assert output.trace.as_dict()["chosen_for"] == reason


def test_the_engine_chooses_alike():
    engine = dp.Engine(TARGET, draft=DRAFT, tree="best:8x3", rows=1, length=64)
    request = engine.add_request([0], max_new_tokens=9, seed=1)
    while not engine.is_finished:
        engine.step()
    same = dp.generate(TARGET, [0], draft=DRAFT, verify="traversal", tree="best:8x3", max_new_tokens=9, seed=1)
    assert (request.output.tokens, request.trace.verifier) == (same.tokens, "traversal")


def test_every_way_of_drawing_has_a_preferred_rule():
    for draw in ("iid", "distinct", "plan", "top", "fixed"):
        for drafters in (1, 2):
            rule = best_rule(dp.Tree.of(2, 2), draw, drafters)
            assert rule.accepts(dp.Tree.of(2, 2))
            if draw != "fixed" or drafters == 1:
                assert draw in rule.draws
            assert drafters == 1 or rule.mixes
    assert set(PREFERRED) <= set(VERIFIERS)
    assert set(PREFERRED_ON_GPU) < set(PREFERRED)
    assert best_rule(dp.Tree.paths(2, 3), device="cuda").name == "traversal"  # what a CUDA graph can run


def test_a_rule_that_cannot_take_the_tree_fails_before_a_model_is_loaded():
    with pytest.raises(dp.DraftproofError, match="'block' works on chain drafts only"):
        Setup.of("no-such-model", "ngram", verify="block", tree="star:3")
    with pytest.raises(dp.DraftproofError, match="unknown tree 'bush'"):
        Setup.of("no-such-model", "ngram", tree="bush")


# The model's own sampling


@pytest.fixture
def configured(tmp_path):
    """A model folder whose generation_config.json says how to sample."""
    folder = tiny.save(tmp_path)
    path = folder / "generation_config.json"

    def write(**controls):
        path.write_text(json.dumps({"eos_token_id": 256, **controls}))
        return load(folder)

    return write


def test_sampling_follows_the_models_own_settings_unless_it_is_given(configured):
    model = configured(temperature=0.4, top_p=0.8, do_sample=True)
    assert model.default_sampling == dp.Sampling(temperature=0.4, top_p=0.8)  # no top_k of 50 from transformers
    asked = {"draft": "ngram", "max_new_tokens": 20, "seed": 3}
    own = dp.generate(model, "hello", **asked)
    assert own.tokens == dp.generate(model, "hello", sampling=dp.Sampling(temperature=0.4, top_p=0.8), **asked).tokens
    assert own.tokens != dp.generate(model, "hello", sampling=dp.Sampling(), **asked).tokens
    engine = dp.Engine(model, draft="ngram", rows=1)
    request = engine.add_request("hello", max_new_tokens=20, seed=3)
    while not engine.is_finished:
        engine.step()
    assert request.output.tokens == own.tokens
    assert Memo(model).default_sampling == model.default_sampling


def test_do_sample_is_no_control(configured):
    assert configured(do_sample=False).default_sampling == dp.Sampling()


def test_a_model_without_settings_keeps_its_law():
    assert load("tiny").default_sampling == dp.Sampling()
    assert tiny.model().default_sampling == dp.Sampling()


def test_a_wrong_setting_of_the_model_names_its_file(configured):
    model = configured(top_p=7.0)
    with pytest.raises(
        dp.DraftproofError, match=r"generation_config\.json of .* \(top_p must be .*--no-generation-conf"
    ):
        dp.generate(model, "hello")
    assert dp.generate(model, "hello", sampling=dp.Sampling(), max_new_tokens=3).tokens
