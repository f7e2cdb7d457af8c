"""Sessions: every node's logits are those of running its path alone, whatever was guessed and undone before."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from draftproof import DraftproofError, Tree
from draftproof.models.base import forget
from draftproof.models.drafters.fallback import Fallback
from draftproof.models.drafters.ngram import NGram
from draftproof.models.drafters.shared_tokens import Shared, Translated
from draftproof.models.drafters.text_draft import TextDrafter
from draftproof.models.hf import HFModel
from draftproof.models.memo import Memo
from draftproof.models.table import TableModel
from tests.support import tiny

CHAIN = Tree.chain(0)

FAMILIES = ("llama", "qwen3", "gpt2", "mistral", "llama4")


def alone(network, path):
    with torch.no_grad():
        return network(torch.tensor([path])).logits[0, -1]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_node_of_a_tree_sees_its_own_path(family):
    rng = np.random.default_rng(1)
    model = tiny.model(family)
    session = model.session(rows=2, capacity=130)
    texts = [rng.integers(0, 256, 12).tolist(), rng.integers(0, 256, 5).tolist()]
    for row, text in enumerate(texts):
        session.join(row, text)
    trees = (
        Tree.of(2, 2),
        Tree.chain(3),
        Tree.paths(3, 4),
        Tree.chain(0),
        Tree.of(1, 3, 2),
        Tree.star(5),
        Tree.paths(9, 7),
    )
    for tree in trees:
        tokens = rng.integers(0, 256, (2, tree.size))
        tokens[:, 0] = [text[-1] for text in texts]
        in_levels = tree.levels if tree.is_chain else [range(tree.size)]  # one call, or node by node as a drafter does
        logits = torch.cat([session.extend(tree, tokens, nodes) for nodes in in_levels], dim=1)
        for row, text in enumerate(texts):
            for node in range(tree.size):
                path = text + [int(tokens[row, n]) for n in tree.path(node)]
                torch.testing.assert_close(logits[row, node], alone(model.network, path), atol=1e-4, rtol=0)
        last = [int(rng.integers(tree.size)) for _ in texts]
        session.commit(tree, tokens, last, [7, 9])
        for row, text in enumerate(texts):
            text += [int(tokens[row, n]) for n in tree.path(last[row])] + [[7, 9][row]]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_drafter_that_skipped_the_leaves_catches_up(family):
    model = tiny.model(family)
    session = model.session(rows=1, capacity=40)
    session.join(0, [1, 2, 3])
    tree, tokens = Tree.chain(2), np.array([[3, 4, 5]])
    for level in tree.levels[:-1]:
        session.extend(tree, tokens, level)
    session.commit(tree, tokens, [2], [6])  # the leaf was accepted though this session never read it
    logits = session.extend(Tree.chain(0), np.array([[6]]), range(1))
    torch.testing.assert_close(logits[0, 0], alone(model.network, [1, 2, 3, 4, 5, 6]), atol=1e-4, rtol=0)


class OfAllTokens(LlamaForCausalLM):
    """A network that cannot be told how many logits to make, as many were before it became usual."""

    def forward(self, input_ids, position_ids, attention_mask, past_key_values, use_cache):
        return super().forward(input_ids, attention_mask, position_ids, past_key_values, use_cache=use_cache)


def test_a_network_that_always_says_all_logits_is_read_as_others_are():
    network = copy.copy(tiny.network("llama"))
    network.__class__ = OfAllTokens
    session = HFModel(network).session(rows=2, capacity=40)
    texts = [[1, 2, 3, 4, 5], [6, 7]]
    for row, text in enumerate(texts):
        session.join(row, text)
    logits = session.extend(Tree.chain(1), np.array([[5, 8], [7, 9]]), range(2))
    assert logits.shape[:2] == (2, 2)
    for row, after in enumerate((8, 9)):
        expected = alone(tiny.network("llama"), [*texts[row], after])
        torch.testing.assert_close(logits[row, 1], expected, atol=1e-4, rtol=0)


def test_a_copied_row_goes_its_own_way():
    model = tiny.model()
    session = model.session(rows=2, capacity=40)
    session.join(0, [1, 2, 3])
    tree, tokens = Tree.of(2, 1), np.array([[3, 4, 5, 6, 7]])
    session.extend(tree, tokens, range(tree.size))
    session.copy(0, 1)
    session.commit(tree, tokens.repeat(2, axis=0), [3, 4], [8, 9])
    logits = session.extend(Tree.chain(0), np.array([[8], [9]]), range(1))
    torch.testing.assert_close(logits[0, 0], alone(model.network, [1, 2, 3, 4, 6, 8]), atol=1e-4, rtol=0)
    torch.testing.assert_close(logits[1, 0], alone(model.network, [1, 2, 3, 5, 7, 9]), atol=1e-4, rtol=0)


BYTES = np.arange(tiny.VOCABULARY)


@pytest.mark.parametrize(
    "model",
    [
        tiny.model,
        lambda: Memo(tiny.model()),
        lambda: Fallback([tiny.model(), NGram(tiny.VOCABULARY)]),
        lambda: Translated(tiny.model(), tiny.model(), Shared(BYTES, BYTES, tiny.VOCABULARY), None),
        lambda: TextDrafter(tiny.model(), tiny.model("llama", 1)),
    ],
    ids=["network", "memo", "mixed", "translated", "retold"],
)
def test_a_step_that_was_given_up_leaves_nothing_in_the_next_even_if_that_asks_nothing(model):
    session, fresh = (model().session(rows=2, capacity=40) for _ in range(2))
    texts = [[1, 2, 3], [4, 5]]
    for row, text in enumerate(texts):
        session.join(row, text)
    tree = Tree.paths(2, 3)
    session.extend(tree, np.array([[text[-1], *range(20, 26)] for text in texts]), range(tree.size))
    forget(session)
    chain, told = Tree.chain(2), np.array([[text[-1], 30, 31] for text in texts])
    session.commit(chain, told, [2, 1], [40, 41])
    texts = [[1, 2, 3, 30, 31, 40], [4, 5, 30, 41]]
    for row, text in enumerate(texts):
        fresh.join(row, text)
    asked = np.array([[text[-1], 50, 51] for text in texts])
    said, expected = (torch.as_tensor(one.extend(chain, asked, range(chain.size))) for one in (session, fresh))
    torch.testing.assert_close(said, expected, atol=1e-4, rtol=0)


def test_a_prompt_that_joins_others_is_read_apart():
    """In one call all rows would be as wide as the prompt, nearly all of it padding."""
    model, calls = tiny.model(), []
    session = model.session(4, 60)
    inner = session._call
    session._call = lambda ids, *rest: (calls.append(ids.shape), inner(ids, *rest))[1]
    for row in range(3):
        session.join(row, [5, 6 + row])
    tokens = np.array([[6 + row] for row in range(3)])
    session.extend(CHAIN, tokens, range(1))
    assert calls == [(3, 2)]  # they are as long as each other
    session.commit(CHAIN, tokens, [0] * 3, [9] * 3)
    prompt, calls[:] = list(range(1, 31)), []
    session.join(3, prompt)
    found = session.extend(CHAIN, np.array([[9], [9], [9], [30]]), range(1))
    assert calls == [(1, 29), (4, 1)]
    alone = model.session(1, 60)
    alone.join(0, prompt)
    np.testing.assert_allclose(found[3], alone.extend(CHAIN, np.array([[30]]), range(1))[0], atol=1e-4)


def test_what_a_text_left_in_a_row_goes_as_far_as_anything_was_written():
    session = tiny.model().session(2, 60)
    session.join(0, [5, 6, 7, 8])
    session.extend(CHAIN, np.array([[8]]), range(1))
    assert session.cache.used.tolist() == [5, 0]  # slot 0 is for padding
    untouched = [buffer[:, :, 5:].clone().fill_(3) for buffer in session.cache.buffers]
    for buffer, three in zip(session.cache.buffers, untouched, strict=True):
        buffer[:, :, 5:] = three
    session.join(0, [9, 9])
    for buffer in session.cache.buffers:
        assert not buffer[0, :, :5].any()
        assert (buffer[:, :, 5:] == 3).all()


def test_memory_is_fixed_after_the_first_call():
    session = tiny.model().session(rows=1, capacity=60)
    session.join(0, [1, 2, 3])
    session.extend(Tree.chain(0), np.array([[3]]), range(1))
    held = session.cache.bytes
    for token in range(40):
        session.commit(Tree.chain(0), np.array([[3]]), [0], [token])
        session.extend(Tree.chain(0), np.array([[token]]), range(1))
    assert session.cache.bytes == held > 0


def test_a_text_that_outgrows_its_session_is_an_error():
    session = tiny.model().session(rows=1, capacity=4)
    session.join(0, [1, 2, 3, 4, 5, 6])
    with pytest.raises(DraftproofError, match="outgrew this session's 4 tokens"):
        session.extend(Tree.chain(0), np.array([[6]]), range(1))


def test_ngram_guesses_what_followed_before_and_else_nothing():
    session = NGram(vocabulary=10, longest=3, shortest=2).session(rows=1, capacity=0)
    session.join(0, [1, 2, 3, 4, 9, 1, 2])
    tree = Tree.chain(3)
    laws = session.extend(tree, np.array([[2, 3, 4, 8]]), range(4))[0]
    assert [int(law.argmax()) for law in laws[:3]] == [3, 4, 9]
    assert laws[:3].sum(axis=1).tolist() == [1, 1, 1]
    assert laws[3].sum() == 0  # 3 4 8 never occurred
    session.commit(tree, np.array([[2, 3, 4, 8]]), [1], [7])
    assert session.texts[0] == [1, 2, 3, 4, 9, 1, 2, 3, 7]
    assert int(session.extend(Tree.chain(1), np.array([[3, 0]]), range(1))[0, 0].sum()) == 0


def test_a_table_session_follows_paths_and_commits():
    def rows(context):
        return [1 / 3, 2 / 3] if sum(context) % 2 else [0.25, 0.75]

    session = TableModel(rows).session(rows=1, capacity=0)
    session.join(0, [1, 0])
    tree, tokens = Tree.star(2), np.array([[0, 0, 1]])
    laws = np.exp(session.extend(tree, tokens, range(3)))[0]
    np.testing.assert_allclose(laws, [rows((1, 0)), rows((1, 0, 0)), rows((1, 0, 1))])
    session.commit(tree, tokens, [2], [1])
    np.testing.assert_allclose(
        np.exp(session.extend(Tree.chain(0), np.array([[1]]), range(1)))[0, 0], rows((1, 0, 1, 1))
    )
