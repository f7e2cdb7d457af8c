"""The head as drafter: its laws are those of running it entry by entry on true hidden states, whatever came before."""

from __future__ import annotations

import collections
import copy

import numpy as np
import pytest
import torch

import draftproof as dp
from draftproof import DraftproofError, Tree, verify
from draftproof.draws import DRAWS
from draftproof.engine.choices import choose_draw
from draftproof.engine.eager.propose import by_draw, propose
from draftproof.engine.eager.rows import Row
from draftproof.engine.request import SampleKey
from draftproof.models import drafter, grammars
from draftproof.models.base import sessions
from draftproof.models.drafters.head import HeadModel
from draftproof.models.hf import HFModel
from draftproof.models.llama import head as headnet
from draftproof.models.llama.block import LayerShape
from draftproof.models.llama.call import LayerCall
from draftproof.models.llama.head import HeadConfig, HeadNetwork
from draftproof.models.llama.int8 import quantise
from draftproof.models.llama.masks import FULL
from draftproof.models.llama.rebuild import pack, rebuild
from draftproof.models.memo import Memo
from draftproof.native import build
from tests.support import gof, tiny
from tests.support.heads import network
from tests.support.schedulers import ask, eager, graph


def head(**settings):
    return HeadModel(tiny.model(), network(**settings))


def pair(model, rows, capacity):
    """A session of the target, and one of the head beside it."""
    target, (drafter,) = sessions(model.target, [model], rows, capacity)
    return target, drafter.session


def assert_counted(session):
    """All that was written is in slots that are cleared when another text takes the row."""
    for buffer in session.cache.buffers:
        for row, used in zip(buffer, session.cache.used, strict=True):
            assert not row[:, used:].any()


class Stored:
    """Keys and values, one after the other."""

    def __init__(self):
        self.kept = []

    def update(self, keys, values, placement, /):
        self.kept.append((keys, values))
        return tuple(torch.cat(part, dim=2) for part in zip(*self.kept, strict=True))


@torch.no_grad()
def alone(model, text, path=()):
    """Logits after text + path: true entries in one call, then guesses one by one, keys and values side by side."""
    whole, net = model.target.network, model.network
    said = whole(torch.tensor([text]), output_hidden_states=True)
    states = net.fuse(torch.cat([said.hidden_states[tap] for tap in model.taps], dim=-1))[:, : len(text) - 1]
    words, first, stores = list(text[1:]), 0, [Stored() for _ in net.blocks]
    for token in (*path, None):
        count = first + states.shape[1]
        rotation = net.rotary.at(torch.arange(first, count)[None])
        mask = torch.ones(count, count).tril().bool()[None, None, first:]
        embedded = whole.get_input_embeddings()(torch.tensor([words]))
        call = LayerCall(rotation, {FULL: mask}, cache=stores)
        made = net(net.inputs(states, embedded), call, known=first == 0)
        states, words, first = made[:, -1:], [token], count
    rows = whole.get_output_embeddings().weight[net.tokens]
    logits = torch.full((model.vocabulary,), -torch.inf)
    logits[net.tokens] = net.logits(made[0, -1], rows)
    return logits


def assert_laws(model, session, texts, tree, tokens):
    """Drafts a tree level by level as the engine does, and compares every node."""
    levels = [session.extend(tree, tokens, level) for level in tree.levels]
    assert_counted(session)
    for row, text in enumerate(texts):
        for node, logits in enumerate(torch.cat(levels, dim=1)[row]):
            expected = alone(model, text, [int(tokens[row, n]) for n in tree.path(node)])
            torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("layers", "sizes"), [(1, (12, 2, 5)), (2, (12, 2, 5)), (1, (12,)), (2, (1,))])
def test_laws_are_those_of_running_it_without_a_cache(layers, sizes):
    """Steps with acceptance, refusal and without a draft; chains and trees; rows of different lengths."""
    rng = np.random.default_rng(1)
    model = head(layers=layers)
    target, session = pair(model, len(sizes), 120)
    texts = [rng.integers(0, 256, size).tolist() for size in sizes]
    for row, text in enumerate(texts):
        for one in (target, session):
            one.join(row, text)
    shapes = (Tree.chain(3), Tree.of(2, 2), Tree.chain(0), Tree.paths(3, 3), Tree.of(1, 3, 2), Tree.chain(1))
    for step, tree in enumerate(shapes):
        tokens = rng.integers(0, 256, (len(sizes), tree.size))
        tokens[:, 0] = [text[-1] for text in texts]
        if step != 2 and min(map(len, texts)) > 1:  # else a step in which nobody asks the drafter
            assert_laws(model, session, texts, tree, tokens)
        target.extend(tree, tokens, range(tree.size))
        last = [int(rng.integers(tree.size)) for _ in texts]
        for one in (target, session):
            one.commit(tree, tokens, last, [7, 9, 8][: len(sizes)])
        for row, text in enumerate(texts):
            text += [int(tokens[row, n]) for n in tree.path(last[row])] + [[7, 9, 8][row]]


def draft_once(target, session, tree, tokens):
    """A text of three tokens, guessed on and looked at; nothing is committed."""
    for one in (target, session):
        one.join(0, [1, 2, 3])
    for level in tree.levels[:-1]:
        session.extend(tree, tokens, level)
    target.extend(tree, tokens, range(tree.size))


def test_what_a_step_leaves_is_what_a_fresh_session_has():
    model = head()
    target, session = pair(model, 1, 60)
    tree, tokens = Tree.of(2, 2), np.array([[3, 4, 5, 6, 7, 8, 9]])
    draft_once(target, session, tree, tokens)
    for one in (target, session):
        one.commit(tree, tokens, [5], [30])
    text = [1, 2, 3, 5, 8, 30]
    fresh_target, fresh = pair(model, 1, 60)
    for one in (fresh_target, fresh):
        one.join(0, text)
    chain = Tree.chain(0)
    torch.testing.assert_close(
        session.extend(chain, np.array([[30]]), range(1)), fresh.extend(chain, np.array([[30]]), range(1))
    )
    used = len(text)  # slots of the tokens before the last one, and slot 0
    for cached, new in ((target.cache, fresh_target.cache), (session.cache, fresh.cache)):
        assert len(cached.buffers) == len(new.buffers) == (5 if cached is target.cache else 2)
        for one, other in zip(cached.buffers, new.buffers, strict=True):
            torch.testing.assert_close(one[:, :, 1:used], other[:, :, 1:used], atol=1e-5, rtol=1e-5)


def test_a_law_over_the_tokens_it_can_guess_is_the_law():
    """Controls that name no token need not see the others; where a token is named, all are looked at."""
    model = head()
    for sampling in (dp.Sampling(), dp.Sampling(temperature=0.7, top_k=9, top_p=0.8), dp.Sampling(banned=[66, 70])):
        opened = [sessions(model.target, [model], 1, 40) for _ in range(2)]
        for target, (one,) in opened:
            target.join(0, [1, 2, 3])
            one.session.join(0, [1, 2, 3])
        row = Row((1, 2, 3), (), sampling, sampling, (SampleKey(1, 0),), 0, 3)
        tree = Tree.of(2, 1)
        guess = by_draw([row], tree, choose_draw(verify.get("traversal"), tree, None))
        made = propose([row], opened[0][1], tree, guess, tiny.VOCABULARY)
        logits = opened[1][1][0].session.extend(tree, made.tokens, range(3))
        expected = dp.sampling.law(logits[0], sampling)
        law = torch.as_tensor(made.wide(opened[0][1])[0])
        torch.testing.assert_close(law[0, :3], expected, atol=1e-6, rtol=0)
        assert law.shape[-1] == tiny.VOCABULARY
        assert (law[0, :3].sum(-1) - 1).abs().max() < 1e-5


def test_guesses_drawn_from_a_law_over_some_tokens_are_those_drawn_from_the_law():
    """They are drawn among the tokens the head knows and named afterwards; a bias of nothing makes it look at all."""
    model = head()
    sampling = dp.Sampling(temperature=0.9)
    for tree, draw in ((Tree.chain(3), "iid"), (Tree.of(3, 2), "distinct"), (Tree.of(3, 1), "plan")):
        found = []
        for drafting in (sampling, dp.Sampling(temperature=0.9, logit_bias={0: 0.0})):
            target, drafters = sessions(model.target, [model], 1, 40)
            for one in (target, *(each.session for each in drafters)):
                one.join(0, [1, 2, 3])
            row = Row((1, 2, 3), (), sampling, drafting, (SampleKey(1, 0),), 0, 3)
            made = propose([row], drafters, tree, by_draw([row], tree, DRAWS[draw]), tiny.VOCABULARY)
            found.append((made.tokens.tolist(), torch.as_tensor(made.wide(drafters)[0])))
        (some, law), (all_of_them, expected) = found
        assert some == all_of_them
        torch.testing.assert_close(law, expected, atol=1e-6, rtol=0)


def test_a_text_of_one_token_can_be_drafted_for():
    """There is no hidden state before it; what follows must not see the entry that stands in."""
    model = head()
    target, session = pair(model, 2, 40)
    for row, text in enumerate(([65], [66, 67, 68])):
        for one in (target, session):
            one.join(row, text)
    tree, tokens = Tree.chain(2), np.array([[65, 70, 71], [68, 70, 71]])
    first = torch.cat([session.extend(tree, tokens, level) for level in tree.levels], dim=1)
    assert torch.isfinite(first[:, :, ::2]).all()
    torch.testing.assert_close(first[1, 2], alone(model, [66, 67, 68], [70, 71]), atol=1e-4, rtol=0)
    target.extend(tree, tokens, range(3))
    for one in (target, session):
        one.commit(tree, tokens, [2, 0], [72, 73])
    later = session.extend(tree, np.array([[72, -1, -1], [73, -1, -1]]), range(1))
    torch.testing.assert_close(later[0, 0], alone(model, [65, 70, 71, 72]), atol=1e-4, rtol=0)
    torch.testing.assert_close(later[1, 0], alone(model, [66, 67, 68, 73]), atol=1e-4, rtol=0)


def test_rows_part_within_a_step():
    model = head()
    target, session = pair(model, 2, 40)
    tree, tokens = Tree.of(2, 1), np.array([[3, 4, 5, 6, 7]])
    draft_once(target, session, tree, tokens)
    for one in (target, session):
        one.copy(0, 1)
        one.commit(tree, tokens.repeat(2, axis=0), [3, 4], [8, 9])
    texts = [[1, 2, 3, 4, 6, 8], [1, 2, 3, 5, 7, 9]]
    assert_laws(model, session, texts, Tree.chain(1), np.array([[8, 20], [9, 21]]))


@pytest.mark.parametrize(
    ("rule", "tree"),
    [
        ("token", Tree.chain(3)),
        ("block", Tree.chain(3)),
        ("csbv", Tree.paths(2, 2)),
        ("traversal", Tree.of(2, 2)),
    ],
)
def test_text_drafted_by_a_head_follows_the_targets_law(rule, tree):
    model = head()
    sampling = dp.Sampling(temperature=4.0, top_k=3)
    with torch.no_grad():
        first = dp.sampling.law(model.target.network(torch.tensor([[65, 66]])).logits[0, -1:], sampling)[0]
        law = {}
        for a in first.nonzero()[:, 0].tolist():
            second = dp.sampling.law(model.target.network(torch.tensor([[65, 66, a]])).logits[0, -1:], sampling)[0]
            law |= {(a, b): float(first[a] * second[b]) for b in second.nonzero()[:, 0].tolist()}
    samples = 1500
    verifier = verify.get(rule)
    batch = eager(model.target, [model], verifier, tree, samples, 20)
    requests = [ask(model.target, (65, 66), sampling, sampling, 2 + tree.depth[-1], (3, r)) for r in range(samples)]
    for request in requests:
        batch.add([request])  # each in a row of its own: its guesses are its own
    while not batch.is_finished:
        batch.step()
    counts = collections.Counter(tuple(request.tokens[:2]) for request in requests)
    gof.check(counts, law)
    assert sum(request.trace.accepted for request in requests) > 0


@pytest.mark.parametrize(
    ("rule", "sampling"),
    [
        ("block", dp.Sampling()),
        ("token", dp.Sampling(temperature=0.8, top_k=40, top_p=0.9, repetition_penalty=1.2)),
        ("token", dp.Sampling(temperature=0)),
    ],
    ids=["plain", "controls", "greedy"],
)
def test_the_fused_step_drafts_the_same(rule, sampling):
    """Prompts of several lengths, one of a single token, in one batch; two of them join later."""
    model = head(layers=2, seed=6)
    prompts = [[65, 66, 67], [70] * 9, [80], [65, 66, 67]]

    def texts(batch):
        made = [ask(model.target, prompt, sampling, sampling, 30, (11, r)) for r, prompt in enumerate(prompts)]
        for first, request in enumerate(made):
            if first == 2:
                batch.step()
            batch.add([request])
        while not batch.is_finished:
            batch.step()
        return [request.tokens for request in made], sum(request.trace.accepted for request in made)

    verifier, tree = verify.get(rule), Tree.chain(3)
    fused, accepted = texts(graph(model.target, model, rule, dp.Tree.chain(3), 4, 60))
    general, _ = texts(eager(model.target, [model], verifier, tree, 4, 60))
    assert fused == general
    assert accepted > 0


def test_samples_of_one_prompt_share_the_heads_entries():
    """A prompt longer than what a step makes anew."""
    model = head(layers=2, seed=6)

    def requests():
        sampling, prompt = dp.Sampling(), tuple(range(65, 85))
        return [ask(model.target, prompt, sampling, sampling, 8, (4, r)) for r in range(3)]

    def finish(batch):
        while not batch.is_finished:
            batch.step()

    together, alone = requests(), requests()
    shared = graph(model.target, model, "block", dp.Tree.chain(3), 3, 40)
    shared.add(together)
    finish(shared)
    for request in alone:
        single = graph(model.target, model, "block", dp.Tree.chain(3), 1, 40)
        single.add([request])
        finish(single)
    assert [request.tokens for request in together] == [request.tokens for request in alone]
    assert len({tuple(request.tokens) for request in together}) == 3


def test_independent_samples_and_a_tree_that_tunes_itself():
    model = head()
    settings = {"draft": model, "max_new_tokens": 30, "seed": 5}
    outputs = dp.generate(model.target, "hello", n=3, **settings)
    assert len({tuple(output.tokens) for output in outputs}) == 3
    assert not any(output.trace.failures for output in outputs)
    tuned = dp.generate(model.target, "hello", tree="auto", **settings)
    assert len(tuned.tokens) == 30 or tuned.finish == "end"
    assert not tuned.trace.failures


@pytest.mark.parametrize("moved", [True, False])
def test_states_that_are_not_numbers_do_not_outlive_their_text(monkeypatch, moved):
    monkeypatch.setattr(build, "compiled", lambda: None)  # what is in C does not even read what is hidden
    whole = copy.deepcopy(tiny.network("llama"))
    with torch.no_grad():
        whole.get_input_embeddings().weight[200] = torch.nan
    model = HeadModel(HFModel(whole, tiny.tokenizer()), network())
    target, session = pair(model, 3, 60)
    texts = [list(range(60, 90)), [65, 200, *range(66, 80)], [70, 71]]
    for each in (target, session):
        for row, text in enumerate(texts):
            each.join(row, text)
    said = session.extend(Tree.chain(0), np.array([[text[-1]] for text in texts]), range(1))
    assert said.isnan().any(dim=-1)[:, 0].tolist() == [False, True, False]
    for each in (target, session):
        each.copy(2, 1) if moved else each.join(1, texts[2])
    tree = Tree.chain(2)
    assert_laws(model, session, [texts[0], texts[2]], tree, np.array([[89, 3, 4], [71, 5, 6]]))


@pytest.mark.parametrize(
    "way", [rebuild, lambda whole: pack(rebuild(whole)), lambda whole: quantise(rebuild(whole), [65, 66])]
)
def test_what_torch_makes_unless_told_otherwise_does_not_matter(way):
    model = HeadModel(HFModel(way(copy.deepcopy(tiny.network("llama"))), tiny.tokenizer()), network())
    settings = {"draft": model, "max_new_tokens": 20, "tree": Tree.chain(3), "seed": 5}
    plain = dp.generate(model.target, [65, 66], **settings)
    usual = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert dp.generate(model.target, [65, 66], **settings).tokens == plain.tokens
    finally:
        torch.set_default_dtype(usual)


def test_a_memory_in_front_of_the_target_changes_nothing():
    """Where it answers, the target has not read what the head needs, and reads it then."""
    model = head()
    settings = {"draft": model, "max_new_tokens": 20, "tree": Tree.chain(3), "seed": 5}
    plain = dp.generate(model.target, [65, 66], **settings)
    memo = Memo(model.target)
    for _ in range(2):
        output = dp.generate(memo, [65, 66], **settings)
        assert output.tokens == plain.tokens
        assert not output.trace.failures


def test_a_head_in_integers_stays_close():
    """An int8 target has an int8 head, with output rows made from the target's own."""
    whole = quantise(copy.deepcopy(tiny.network("llama")), list(range(40, 90)))
    model, plain = HeadModel(HFModel(whole, tiny.tokenizer()), network()), head()
    assert not any(isinstance(layer, torch.nn.Linear) for layer in model.network.modules())
    laws = []
    for one in (model, plain):
        target, session = pair(one, 1, 40)
        for each in (target, session):
            each.join(0, list(range(50, 70)))
        laws.append(session.extend(Tree.chain(0), np.array([[69]]), range(1))[0, 0].softmax(-1))
    assert 0 < (laws[0] - laws[1]).abs().sum() / 2 < 0.25
    settings = {"sampling": dp.Sampling(temperature=0), "max_new_tokens": 20}
    drafted = dp.generate(model.target, "abcabc", draft=model, **settings)
    assert drafted.tokens == dp.generate(model.target, "abcabc", draft=None, **settings).tokens
    assert not drafted.trace.failures


def test_a_foreign_head_is_refused(tmp_path):
    origin = headnet.fingerprint(tiny.network("llama").get_output_embeddings().weight)
    headnet.save(network(origin=origin), tmp_path)
    assert drafter(str(tmp_path), tiny.model()).name == str(tmp_path)
    with pytest.raises(DraftproofError, match=r"another model than 'tiny-llama'.*train one"):
        drafter(str(tmp_path), tiny.model("llama", 1))
    with pytest.raises(DraftproofError, match="a larger model than 'tiny-llama'"):
        HeadModel(tiny.model(), network(taps=(1, 7)))
    wide = HeadNetwork(HeadConfig(LayerShape(64, 8, 8, 8, 64), 1, (1, 2), 10000.0, 20))
    with pytest.raises(DraftproofError, match="width 64 but 'tiny-llama' has 32"):
        HeadModel(tiny.model(), wide)
    with pytest.raises(DraftproofError, match="drafts for 'tiny-llama': open it with the target"):
        dp.generate(tiny.model(), [65], draft=head())
    with pytest.raises(DraftproofError, match="draftproof distill"):
        drafter("head", tiny.model())


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_chain_guessed_in_one_go_is_the_chain_guessed_level_by_level(precision, layers):
    """Guesses and laws of several steps, in C and from Python."""
    lean = rebuild(copy.deepcopy(tiny.network("llama")))
    lean = pack(lean) if precision == "float32" else quantise(lean, list(range(40, 90)))
    model = HeadModel(HFModel(lean, tiny.tokenizer()), network(layers=layers))
    in_c, made = model.in_c, []
    assert (in_c is not None) == (build.compiled() is not None)
    for model.in_c in (in_c, None):
        target, drafters = sessions(model.target, [model], 1, 60)
        for one in (target, *(each.session for each in drafters)):
            one.join(0, [65, 66, 67])
        sampling, tree, last = dp.Sampling(temperature=0.7), Tree.chain(4), [67]
        for step, node in enumerate([2, 0, 4, 1]):
            row = Row((65, 66, 67), tuple(last), sampling, sampling, (SampleKey(3, 0),), step, 3 + step)
            said = propose([row], drafters, tree, by_draw([row], tree, DRAWS["iid"]), tiny.VOCABULARY)
            assert said.failure is None
            made.append((said.tree, said.tokens.tolist(), said.laws[0]))
            target.extend(said.tree, said.tokens, range(said.tree.size))
            for one in (target, *(each.session for each in drafters)):
                one.commit(said.tree, said.tokens, [min(node, said.tree.size - 1)], [70 + step])
            last = [70 + step]
        assert_counted(drafters[0].session)
    for here, there in zip(made[:4], made[4:], strict=True):
        assert here[:2] == there[:2]
        np.testing.assert_allclose(here[2], there[2], atol=1e-6)
    assert [tree.size for tree, *_ in made[:4]] == [4, 5, 5, 5]  # as deep as the text has use for


def grammar_of(seed):
    """An automaton over the first tokens, of which the head knows the even ones; half of its states have one way on."""
    chance = np.random.default_rng(seed)
    edges = [chance.choice(40, int(chance.choice([1, 1, 2, 30])), replace=False) for _ in range(6)]
    return dp.Grammar.tokens([{int(token): int(chance.integers(6)) for token in some} for some in edges], [5])


def drafted(model, seed, follows):
    """Tokens, laws and masks of several drafts of one text under a grammar, of which parts are accepted."""
    grammar = grammar_of(seed)
    target, (drafter,) = sessions(model.target, [model], 1, 90)
    drafter = drafter if follows else drafter._replace(path=None)
    for one in (target, drafter.session):
        one.join(0, [65, 66, 67])
    sampling, here = dp.Sampling(temperature=1.5, grammar=grammar), grammars.start(grammar, model.target, (3,))
    tree, text, made = Tree.chain(4), [], []
    for step, (depth, room, node) in enumerate([(4, 40, 2), (2, 40, 0), (4, 7, 9), (0, 5, 1), (4, 1, 3)]):
        row = Row((65, 66, 67), tuple(text), sampling, sampling, (SampleKey(seed, 0),), step, depth, None, here, room)
        drafter.forget()
        said = propose([row], [drafter], tree, by_draw([row], tree, DRAWS["iid"]), tiny.VOCABULARY)
        assert said.failure is None
        laws = [q.tolist() for q in said.wide([drafter]) if said.tree.size > 1]
        masks = said.constraints.masks(range(said.tree.size))[0]
        made.append((said.tokens.tolist(), laws, [None if mask is None else mask.tolist() for mask in masks]))
        last = min(node, said.tree.size - 1)
        accepted = [int(said.tokens[0, n]) for n in said.tree.path(last)]
        for token in accepted:
            here = here.after(token)
        if here.is_over:
            break
        emitted = int(np.flatnonzero(here.allowed)[step % here.allowed.sum()])
        here = here.after(emitted)
        if here.is_over:
            break
        target.extend(said.tree, said.tokens, range(said.tree.size))
        for one in (target, drafter.session):
            one.commit(said.tree, said.tokens, [last], [emitted])
        text += [*accepted, emitted]
    assert_counted(drafter.session)
    return made


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_under_a_grammar_a_chain_is_followed_as_it_is_drafted_level_by_level(precision):
    """Tokens that are sure, before and after guesses, also such as the head does not know; and ends of texts."""
    lean = rebuild(copy.deepcopy(tiny.network("llama")))
    lean = pack(lean) if precision == "float32" else quantise(lean, list(range(40, 90)))
    model, lengths = HeadModel(HFModel(lean, tiny.tokenizer()), network()), set()
    for seed in range(16):
        ours, theirs = (drafted(model, seed, follows) for follows in (True, False))
        for (tokens, laws, masks), (their_tokens, their_laws, their_masks) in zip(ours, theirs, strict=True):
            assert (tokens, masks) == (their_tokens, their_masks)
            np.testing.assert_allclose(laws, their_laws, atol=1e-6)
            lengths.add(len(tokens[0]) - 1)
    assert {0, 1, 2, 4, 7} < lengths  # and more: what is sure before the first guess costs nothing


def test_two_texts_under_grammars_are_drafted_each_as_it_is_alone():
    lean = pack(rebuild(copy.deepcopy(tiny.network("llama"))))
    model, tree = HeadModel(HFModel(lean, tiny.tokenizer()), network()), Tree.chain(4)
    texts, some = [(65, 66, 67), (70, 71)], [grammar_of(seed) for seed in (3, 7)]
    rows = []
    for b, (text, grammar) in enumerate(zip(texts, some, strict=True)):
        sampling, state = dp.Sampling(grammar=grammar), grammars.start(grammar, model.target, (3,))
        rows.append(Row(text, (), sampling, sampling, (SampleKey(5, b),), 0, 4, None, state, 30))

    def guesses(*chosen):
        target, drafters = sessions(model.target, [model], len(chosen), 90)
        for b, row in enumerate(chosen):
            for one in (target, drafters[0].session):
                one.join(b, row.prompt)
        made = propose(chosen, drafters, tree, by_draw(chosen, tree, DRAWS["iid"]), tiny.VOCABULARY)
        return [[token for token in row if token >= 0] for row in made.tokens.tolist()]

    alone = [guesses(row)[0] for row in rows]
    assert guesses(*rows) == alone
    assert all(len(tokens) > 2 for tokens in alone)


@pytest.mark.parametrize("constrained", [False, True], ids=["free", "under a grammar"])
def test_a_chain_ends_where_the_head_has_no_law(constrained):
    """In C as level by level: what was drawn before stays, and nothing is drawn from scores that are not numbers."""
    model = HeadModel(HFModel(pack(rebuild(copy.deepcopy(tiny.network("llama")))), tiny.tokenizer()), network())
    with torch.no_grad():
        model.embed.weight[::2] = torch.nan  # all that it can draft, and nothing of the text
    anything = dp.Grammar.tokens([dict.fromkeys(range(tiny.VOCABULARY), 0)], [0])
    state = grammars.start(anything, model.target, ()) if constrained else None
    sampling = dp.Sampling(temperature=0.7, grammar=anything if constrained else None)
    in_c, tree = model.in_c, Tree.chain(4)
    made = []
    for model.in_c in (in_c, None):
        target, drafters = sessions(model.target, [model], 1, 60)
        for one in (target, *(each.session for each in drafters)):
            one.join(0, [65, 67, 69])
        row = Row((65, 67, 69), (), sampling, sampling, (SampleKey(3, 0),), 0, 9, state=state, room=9)
        made.append(propose([row], drafters, tree, by_draw([row], tree, DRAWS["iid"]), tiny.VOCABULARY))
    for said in made:
        assert said.tree == Tree.chain(1)
        assert said.tokens.tolist() == made[0].tokens.tolist()
        assert "non-finite" in said.failure
