"""Ten thousand requests come, go, stop and are cancelled: nothing is lost, repeated or left behind."""

from __future__ import annotations

import random

import pytest

import draftproof as dp
from draftproof import verify
from draftproof.engine.request import Request
from tests.support import tiny
from tests.support.schedulers import ask, eager, graph, table

REQUESTS = 10_000
ROWS = 128


def order(target, number: int) -> Request:
    chance = random.Random(number)
    prompt = tuple(chance.randrange(5) for _ in range(chance.randrange(1, 6)))
    stop = (" ".join(str(chance.randrange(5)) for _ in range(2)),) if chance.random() < 0.3 else ()
    length = chance.randrange(1, 12)
    return ask(target, prompt, dp.Sampling(), dp.Sampling(), length, (1, number), stop=stop)


def test_nothing_is_lost_repeated_or_left_behind():
    chance = random.Random(1)
    target, draft = table(1, floor=0.02), table(2, floor=0.02)
    verifier, tree = verify.get("block"), dp.Tree.chain(3)
    batch = eager(target, [draft], verifier, tree, ROWS, capacity=0)
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
    assert batch.stepper.rows == []
    assert batch.room == ROWS
    # and a request's text is the one it has alone
    for number in chance.sample(range(REQUESTS), 40):
        if done[number].finish == "cancelled":
            continue
        again = order(target, number)
        alone = eager(target, [draft], verifier, tree, 1, capacity=0)
        alone.add([again])
        while not alone.is_finished:
            alone.step()
        assert again.tokens == done[number].tokens


@pytest.mark.parametrize("kind", ["general", "fused"])
def test_a_full_batch_says_so_and_a_cancelled_row_is_free(kind):
    target, verifier, tree = tiny.model(), verify.get("block"), dp.Tree.chain(2)
    if kind == "general":
        batch = eager(target, [target], verifier, tree, 2, capacity=60)
    else:
        batch = graph(target, target, "block", dp.Tree.chain(2), 2, 60)
    texts = [ask(target, (65, 66 + r), dp.Sampling(), dp.Sampling(), 30, (1, r)) for r in range(4)]
    with pytest.raises(dp.DraftproofError, match="there are only 2 rows for 3 texts: open more rows"):
        batch.add(texts[:3])
    assert batch.room == 2
    batch.add(texts[:1])
    batch.add(texts[1:2])
    assert batch.room == 0
    batch.step()
    batch.cancel(texts[0])
    assert batch.room == 1
    batch.add(texts[2:3])
    assert batch.room == 0
    batch.add(texts[3:])  # waits until one of the others has ended
    while not batch.is_finished:
        batch.step()
        assert not texts[3].tokens or any(text.finish for text in texts[1:3])
    assert [text.finish for text in texts] == ["cancelled", "length", "length", "length"]
