"""Ten thousand requests come, go, stop and are cancelled: nothing is lost, repeated or left behind."""

from __future__ import annotations

import random

import pytest

import draftproof as dp
from draftproof import verify
from draftproof.engine.eager.batch import Batch
from draftproof.engine.eager.rows import Member
from draftproof.engine.generate import choose_draw
from draftproof.engine.graph.runner import FusedBatch
from draftproof.engine.request import Request
from draftproof.engine.trace import Trace
from tests.support import tiny
from tests.support.batches import table

REQUESTS = 10_000
ROWS = 128


def order(target, number: int) -> Request:
    chance = random.Random(number)
    prompt = tuple(chance.randrange(5) for _ in range(chance.randrange(1, 6)))
    stop = (" ".join(str(chance.randrange(5)) for _ in range(2)),) if chance.random() < 0.3 else ()
    length = chance.randrange(1, 12)
    return Request(target, prompt, dp.Sampling(), dp.Sampling(), length, stop, Member(1, number), Trace())


def test_nothing_is_lost_repeated_or_left_behind():
    chance = random.Random(1)
    target, draft = table(1, floor=0.02), table(2, floor=0.02)
    verifier, tree = verify.get("block"), dp.Tree.chain(3)
    batch = Batch(target, [draft], verifier, tree, choose_draw(verifier, tree, None), ROWS, capacity=0)
    waiting = [order(target, number) for number in range(REQUESTS)]
    done, said, running = list(waiting), {}, []
    while waiting or not batch.is_finished:
        while waiting and batch.room:
            running.append(waiting.pop())
            batch.add([running[-1]])
        for request, pieces in batch.step():
            said[id(request)] = said.get(id(request), "") + "".join(piece.text for piece in pieces)
        running = [request for request in running if not request.finish]
        if running and chance.random() < 0.2:
            batch.cancel(chance.choice(running))
    for request in done:
        out = request.output
        assert out.finish in ("length", "stop", "cancelled")
        assert out.text == said.get(id(request), "")  # every character was handed out once
        assert out.trace.tokens == len(out.tokens)
        assert len(out.tokens) <= request.max_new_tokens
        whole = " ".join(map(str, out.tokens))
        assert whole.startswith(out.text)
        assert out.finish != "length" or (len(out.tokens) == request.max_new_tokens and out.text == whole)
    assert {request.finish for request in done} == {"length", "stop", "cancelled"}
    assert batch.rows == []
    assert batch.room == ROWS
    # and a request's text is the one it has alone
    for number in chance.sample(range(REQUESTS), 40):
        if done[number].finish == "cancelled":
            continue
        again = order(target, number)
        alone = Batch(target, [draft], verifier, tree, choose_draw(verifier, tree, None), 1, capacity=0)
        alone.add([again])
        while not alone.is_finished:
            alone.step()
        assert again.tokens == done[number].tokens


@pytest.mark.parametrize("kind", ["general", "fused"])
def test_a_full_batch_says_so_and_a_cancelled_row_is_free(kind):
    target, verifier, tree = tiny.model(), verify.get("block"), dp.Tree.chain(2)
    if kind == "general":
        batch = Batch(target, [target], verifier, tree, choose_draw(verifier, tree, None), 2, capacity=60)
    else:
        batch = FusedBatch(target, target, "block", dp.Tree.chain(2), 2, 60)
    texts = [
        Request(target, (65, 66 + r), dp.Sampling(), dp.Sampling(), 30, (), Member(1, r), Trace()) for r in range(3)
    ]
    batch.add(texts[:1])
    batch.add(texts[1:2])
    with pytest.raises(dp.DraftproofError, match="room for 0 more texts, not 1: step first"):
        batch.add(texts[2:])
    batch.step()
    batch.cancel(texts[0])
    assert batch.room == 1
    batch.add(texts[2:])
    while not batch.is_finished:
        batch.step()
    assert [text.finish for text in texts] == ["cancelled", "length", "length"]
