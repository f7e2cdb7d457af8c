"""The fused step says what the general engine says, token for token; here it runs eagerly, on a GPU as a graph."""

from __future__ import annotations

import pytest

import draftproof as dp
from draftproof import verify
from draftproof.engine.batch import Batch
from draftproof.engine.fused import FusedBatch
from draftproof.engine.generate import choose_draw
from draftproof.engine.laws import Member
from draftproof.engine.request import Request
from draftproof.engine.trace import Trace
from tests import tiny

LENGTH = 40


def requests(target, prompts, sampling, length=LENGTH):
    return [
        Request(target, tuple(prompt), sampling, sampling, length, (), Member(11, r), Trace())
        for r, prompt in enumerate(prompts)
    ]


def finish(batch):
    while not batch.is_finished:
        batch.step()


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize(
    "sampling",
    [
        dp.Sampling(),
        dp.Sampling(temperature=0.8, top_k=40, top_p=0.9),
        dp.Sampling(temperature=0),
        dp.Sampling(repetition_penalty=1.3, frequency_penalty=0.5, logit_bias={65: 2.0}),
    ],
    ids=["plain", "truncated", "greedy", "penalties"],
)
def test_same_tokens_as_the_general_engine(rule, sampling):
    target, draft = tiny.model(), tiny.model("llama", 1)
    prompts = [[65, 66, 67], [70] * 9, [80]]
    made = requests(target, prompts, sampling)
    batch = FusedBatch(target, draft, rule, 3, len(prompts), 60)
    for request in made:
        batch.add([request])
    finish(batch)
    # the general engine drafts less at the end of a text: ask it for more and compare the beginning
    longer = requests(target, prompts, sampling, LENGTH + 4)
    verifier, tree = verify.get(rule), dp.Tree.chain(3)
    general = Batch(target, [draft], verifier, tree, choose_draw(verifier, tree, None), len(prompts), 60)
    for request in longer:
        general.add([request])
    finish(general)
    assert [request.tokens for request in made] == [request.tokens[:LENGTH] for request in longer]


def test_plain_sampling_is_a_chain_of_length_zero():
    target = tiny.model("gpt2")
    (request,) = requests(target, [[65, 66]], dp.Sampling(temperature=0.9))
    batch = FusedBatch(target, None, "block", 5, 1, 60)
    batch.add([request])
    finish(batch)
    plain = dp.generate(
        target, [65, 66], draft=None, sampling=dp.Sampling(temperature=0.9), max_new_tokens=LENGTH, seed=11
    )
    assert request.tokens == plain.tokens


def test_rows_come_and_go():
    target, draft, sampling = tiny.model("mistral"), tiny.model("mistral", 1), dp.Sampling(temperature=0.9)
    first, second, third = requests(target, [[65, 66], [70, 71, 72], [80, 81]], sampling, length=12)
    batch = FusedBatch(target, draft, "block", 3, 2, 60)
    batch.add([first])
    batch.step()
    batch.add([second])
    while not first.finish:
        batch.step()
    batch.add([third])
    finish(batch)
    for request in (first, second, third):
        alone = Request(target, request.prompt, sampling, sampling, 12, (), request.member, Trace())
        single = FusedBatch(target, draft, "block", 3, 1, 60)
        single.add([alone])
        finish(single)
        assert request.tokens == alone.tokens


def test_samples_of_one_prompt_share_its_computation(monkeypatch):
    target = tiny.model()
    made = requests(target, [[65, 66, 67]] * 4, dp.Sampling(), length=10)
    batch = FusedBatch(target, tiny.model("llama", 1), "block", 3, 4, 40)
    read = []
    monkeypatch.setattr(
        batch.target, "prefill", lambda row, tokens, real=batch.target.prefill: (read.append(row), real(row, tokens))
    )
    batch.add(made)
    finish(batch)
    assert read == [0]
    assert len({tuple(request.tokens) for request in made}) == 4
