"""Trees in the fused step say what they say in the eager stepper, token for token; here it runs eagerly."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch

import draftproof as dp
from draftproof import verify
from draftproof.engine.choices import choose_draw
from draftproof.engine.graph import runner as fused
from draftproof.engine.setup import Setup
from draftproof.engine.tuning.shapes import Auto
from draftproof.engine.tuning.tuner import Fixed
from draftproof.models.hf import HFModel
from draftproof.models.static.tree_calls import TreeCalls
from tests.support import tiny
from tests.support.heads import drafter
from tests.support.schedulers import Script, eager, finish, graph, requests

PROMPTS = [[65, 66, 67], [70] * 9, [80]]
TREE = dp.Tree.best(9, 3)


def near(family="llama"):
    """The target with noise: a drafter that is sometimes right, by its first guess and by others."""
    network = copy.deepcopy(tiny.network(family))
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(torch.randn_like(weight) * 0.15 * weight.std() if weight.ndim > 1 else 0)
    return HFModel(network, tiny.tokenizer(), "near")


def write(batch, made):
    for request in made:
        batch.add([request])
    finish(batch)
    return [request.tokens for request in made]


def general(target, draft, tree, prompts, sampling, length):
    """The eager stepper's texts."""
    texts = requests(target, prompts, sampling, length)
    return write(eager(target, [draft], verify.get("traversal"), tree, len(prompts), 90), texts)


def drafts(request):
    """What was drafted in each step of a text, before it all but ends; there less is of use."""
    steps, left = [], request.max_new_tokens
    for step in request.trace.steps:
        steps += [(step.drafted, step.depth)] if left > TREE.depth[-1] else []
        left -= len(step.tokens)
    return steps


@pytest.mark.parametrize("kind", ["head", "head, one tap", "llama", "mistral"])
@pytest.mark.parametrize(
    "sampling",
    [
        dp.Sampling(temperature=0.8),
        dp.Sampling(temperature=1.3, top_k=3, top_p=0.95),  # fewer tokens than siblings
        dp.Sampling(temperature=0),
        dp.Sampling(logit_bias={65: 2.0}, banned=[66, 67]),
    ],
    ids=["plain", "truncated", "greedy", "bias"],
)
def test_same_tokens_as_the_general_engine(kind, sampling):
    target = tiny.model("mistral" if kind == "mistral" else "llama")
    draft = drafter(kind, target) if "head" in kind else near(kind)
    batch = graph(target, draft, "traversal", TREE, len(PROMPTS), 60)
    made = requests(target, PROMPTS, sampling, 24)
    assert write(batch, made) == general(target, draft, TREE, PROMPTS, sampling, 24)
    steps = [step for request in made for step in request.trace.steps]
    drawn = 3 if sampling.temperature == 0 else TREE.size - 1  # of siblings one alone has mass then
    assert {each for request in made for each in drafts(request)} == {(drawn, 3)}
    assert "head" in kind or {step.accepted for step in steps} == {0, 1, 2, 3}


@pytest.mark.parametrize("kind", ["head", "llama"])
@pytest.mark.parametrize("name", ["star:3", "paths:3x2", "of:2x2x1", "best:63x5"])
def test_any_tree(kind, name):
    target, sampling = tiny.model(), dp.Sampling(temperature=0.9)
    draft, tree = drafter(kind, target), dp.Tree.parse(name)
    batch = graph(target, draft, "traversal", tree, len(PROMPTS), 50)
    texts = write(batch, requests(target, PROMPTS, sampling, 12))
    assert texts == general(target, draft, tree, PROMPTS, sampling, 12)


@pytest.mark.parametrize("kind", ["head", "llama"])
def test_depths_may_change_with_every_step(kind):
    target, sampling, depths = tiny.model(), dp.Sampling(temperature=0.8), [3, 0, 3, 0, 0, 2, 3, 1, 0, 2, 3, 0]
    draft, rule = drafter(kind, target) if kind == "head" else near(), verify.get("traversal")
    (made,) = requests(target, [[70] * 5], sampling, 24)
    texts = write(graph(target, draft, "traversal", TREE, 1, 60, tuner=Script(depths, TREE)), [made])
    batch = eager(target, [draft], rule, Script(depths, TREE), 1, 60)
    (expected,) = requests(target, [[70] * 5], sampling, 24)
    assert texts == write(batch, [expected])
    assert {"chain:0", "paths:3x1", "best:6x2", "best:9x3"} <= made.trace.shapes.keys()


@pytest.mark.parametrize(("rows", "name"), [(1, "best:63x5"), (2, "best:31x5"), (32, "best:5x5")])
def test_a_tree_that_is_tuned_is_as_large_as_a_call_allows(rows, name):
    target, draft = tiny.model(), tiny.model("llama", 1)

    def captured(verifier, tuner):
        rule = verify.get(verifier)
        return Setup(target, (draft,), rule, tuner, choose_draw(rule, tuner.example, None))._captured(rows)

    assert captured("traversal", Auto("any")) == dp.Tree.parse(name)
    assert captured("block", Auto("chain")) == dp.Tree.chain(5)
    assert captured("traversal", Fixed(TREE)) == TREE


def test_the_target_as_its_own_drafter_is_believed():
    """Each first guess is accepted, so keys and values of accepted paths are those of a straight text."""
    target, sampling = tiny.model(), dp.Sampling(temperature=0.8)
    made = requests(target, PROMPTS, sampling, 32)
    write(graph(target, tiny.model(), "traversal", TREE, len(PROMPTS), 60), made)
    for request in made:
        assert all(step.accepted == TREE.depth[-1] for step in request.trace.steps)


def test_rows_of_one_batch_are_sampled_each_in_its_own_way():
    target, draft = tiny.model(), near()
    samplings = [
        dp.Sampling(temperature=0.8, top_k=9),
        dp.Sampling(temperature=0),
        dp.Sampling(min_p=0.05),
        dp.Sampling(),
    ]
    made = [requests(target, PROMPTS[:1], sampling, 16)[0] for sampling in samplings]
    texts = write(graph(target, draft, "traversal", TREE, 4, 40), made)
    for text, sampling in zip(texts, samplings, strict=True):
        assert [text] == general(target, draft, TREE, PROMPTS[:1], sampling, 16)


@pytest.mark.parametrize("kind", ["head", "llama"])
def test_a_text_may_end_where_the_room_does(kind):
    """The last nodes of a tree stand beyond it, while a neighbour's text has long ended."""
    target, sampling, tree = tiny.model(), dp.Sampling(temperature=0.9, end_tokens=()), dp.Tree.best(20, 5)
    made = requests(target, [[65, 66], [70] * 10], sampling, 30)
    made[0].max_new_tokens = 3
    draft = drafter(kind, target)
    batch = graph(target, draft, "traversal", tree, 2, 40)
    assert [len(text) for text in write(batch, made)] == [3, 30]
    texts = []  # in the row of the short one, and where there is room
    for one in (batch, graph(target, draft, "traversal", tree, 1, 80)):
        texts += write(one, requests(target, [[65, 66]], sampling, 38))
    assert texts[0] == texts[1]


def test_leaves_are_not_drafted_after():
    tree = dp.Tree.best(20, 5)
    calls = TreeCalls.of(tree, torch.device("cpu"))
    assert [call.nodes for call in calls.drafter] == [(0,), (1, 2, 3), (5, 6, 8), (10, 11, 13, 14), (15,)]
    assert [call.first for call in calls.drafter] == [0, 1, 4, 7, 11]
    assert sum((call.nodes for call in calls.drafter), ()) == tree.inner
    for before, call in zip(calls.drafter, calls.drafter[1:], strict=False):
        assert [before.nodes[place] for place in call.parent] == [tree.parent[node] for node in call.nodes]
    assert calls.target.nodes == tuple(range(21))


def test_what_fits(monkeypatch):
    """Trees of a size, by traversal, with controls that do not look at the path; windows wider than they are deep."""
    target, draft, plain = tiny.model(), tiny.model("llama", 1), dp.Sampling()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    head = drafter("head", target)
    on_gpu = SimpleNamespace(device=torch.device("cuda"))
    target.network = on_gpu

    def fits(tree=TREE, rule="traversal", drafts=(draft,), target=target, sampling=plain):
        return fused.fits(target, drafts, rule, tree, (sampling, sampling))

    assert fits()
    assert fits(dp.Tree.best(63, 6))
    assert fits(dp.Tree.chain(5))
    assert fits(drafts=[head])
    assert fits(sampling=dp.Sampling(temperature=0.7, top_k=40, top_p=0.9, min_p=0.1, banned=[3]))
    assert not fits(dp.Tree.best(64, 6))
    assert not fits(rule="recursive_distinct")
    assert not fits(drafts=())
    assert not fits(sampling=dp.Sampling(repetition_penalty=1.2))
    windowed = tiny.model("mistral")
    windowed.network = on_gpu
    assert fits(dp.Tree.paths(2, tiny.WINDOW - 1), target=windowed)
    assert not fits(dp.Tree.paths(2, tiny.WINDOW), target=windowed)
