"""Drafters of other tokenizer families: which tokens are shared, how a text is read, what the engine makes of it."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import draftproof as dp
from draftproof.draft import Tree
from draftproof.law import normalise
from draftproof.models import drafter
from draftproof.models.drafters.shared_tokens import Shared, Translated, fit
from draftproof.models.drafters.text_draft import TextDrafter
from draftproof.models.drafters.token_bytes import LETTERS, TokenBytes, common, whole
from draftproof.models.hf import HFModel
from draftproof.models.table import TableModel
from draftproof.theory.enumerate import target_law
from tests.support import gof, tiny
from tests.support.tables import as_float, table

MERGES = [
    ("h", "e"),
    ("t", "he"),
    ("Ġ", "the"),
    ("i", "n"),
    ("a", "n"),
    ("an", "d"),
    ("Ġ", "a"),
    ("e", "r"),
    ("Ã", "¼"),
]


@cache
def merged(special: str = "<stop>") -> Any:
    """Bytes in another order than the plain tokenizer's, and some words."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True)
    vocabulary = {piece: i for i, piece in enumerate([*letters, *(a + b for a, b in MERGES)])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(special, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=special)


def model_of(tokenizer: Any, padding: int = 0, seed: int = 3) -> HFModel:
    torch.manual_seed(seed)
    shape = tiny.SHAPE | {"vocab_size": len(tokenizer) + padding, "eos_token_id": len(tokenizer) - 1}
    network = LlamaForCausalLM(LlamaConfig(**shape | {"pad_token_id": None}))
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(3)
    return HFModel(network, tokenizer, "merged")


# Which tokens are the same


def test_bytes_are_spelled_as_the_tokenizers_spell_them():
    assert set(LETTERS) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(LETTERS.values()) == list(range(256))
    spelling = TokenBytes.of(model_of(merged()))
    assert len(spelling.plain) == 256 + len(MERGES)
    assert spelling.special == {265: "<stop>"}
    for text in ("the inner band", "grün\n\t"):
        assert b"".join(spelling.plain[i] for i in merged()(text)["input_ids"]) == text.encode()


def test_marks_for_spaces_and_bytes_are_understood():
    vocabulary = {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3, "<0x0A>": 4, "<0xC3>": 5, "ü": 6}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True))
    core.normalizer = normalizers.Replace(" ", "▁")
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    model = TableModel(lambda context: [1 / 7] * 7)
    model.tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>")
    assert TokenBytes.of(model) == ({1: b" ", 2: b"a", 3: b" a", 4: b"\n", 5: b"\xc3", 6: "ü".encode()}, {0: "<unk>"})


def test_a_tokenizer_of_another_kind_is_refused():
    core = Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "a": 1, "##b": 2}))
    core.decoder = decoders.WordPiece()
    model = TableModel(lambda context: [1 / 3] * 3, name="pieces")
    model.tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    with pytest.raises(dp.DraftproofError, match="the tokenizer of 'pieces' is neither byte-level nor SentencePiece"):
        fit(tiny.model(), model)


def test_shared_tokens_spell_the_same_and_special_ones_are_not_shared():
    target, draft = model_of(merged()), tiny.model()
    shared = Shared.of(target, draft)
    ours, theirs = TokenBytes.of(target).plain, TokenBytes.of(draft).plain
    assert len(shared.ours) == 256
    assert all(ours[a] == theirs[b] for a, b in zip(shared.ours, shared.theirs, strict=True))
    assert np.any(shared.ours != shared.theirs)
    rows = torch.randn(2, 3, draft.vocabulary)
    carried = shared.carry(rows, -torch.inf)
    assert torch.equal(carried[..., shared.ours], rows[..., shared.theirs])
    assert int(torch.isinf(carried[0, 0]).sum()) == target.vocabulary - 256


def test_a_drafter_is_taken_as_it_is_translated_or_refused():
    plain, other = tiny.model(), model_of(merged())
    same = tiny.model("qwen3")
    assert fit(plain, same) is same
    assert fit(plain, other).name == "merged (256 shared tokens)"
    padded = model_of(tiny.tokenizer(), padding=6)
    assert fit(plain, padded).name == "merged"
    assert fit(padded, plain).vocabulary == padded.vocabulary
    large = TableModel(lambda context: [1 / 6000] * 6000, name="large")
    with pytest.raises(dp.DraftproofError, match="there is no tokenizer to match them"):
        fit(plain, large)
    large.tokenizer = merged("<else>")
    with pytest.raises(dp.DraftproofError, match=r"shares only 256 of the 6000 tokens of 'large': .* text:tiny-llama"):
        fit(large, plain)
    large.tokenizer = None
    with pytest.raises(dp.DraftproofError, match="text drafts need two tokenizers"):
        TextDrafter(plain, large)


def test_whole_characters_and_common_beginnings():
    assert all(map(whole, (b"", b"a", "ü".encode(), b"\xbc", b"\xc3a")))
    assert not any(map(whole, ("ü".encode()[:1], "€".encode()[:2], b"a" + "€".encode()[:1])))
    assert [common(*pair) for pair in (([], [1]), ([1, 2], [1, 2, 3]), ([1, 2], [1, 3]), ([2], [1]))] == [0, 2, 1, 0]


# How the text is read


PAIRS = {
    "words for bytes": lambda: (tiny.model(), model_of(merged())),
    "bytes for words": lambda: (model_of(merged()), tiny.model()),
    "padded": lambda: (tiny.model(), model_of(tiny.tokenizer(), padding=6)),
    "padded target": lambda: (model_of(tiny.tokenizer(), padding=6), tiny.model()),
}


def walk(session: Any, rows: int, size: int, seed: int, steps: int = 6):
    """Random steps: guesses of the session's own, a random part of them accepted, any token after it."""
    chance = np.random.default_rng(seed)
    tree = Tree((-1, 0, 0, 1))
    texts = [chance.integers(0, size, 5).tolist() for _ in range(rows)]
    for row, text in enumerate(texts):
        session.join(row, text)
    for _ in range(steps):
        tokens = np.full((rows, tree.size), -1)
        tokens[:, 0] = [text[-1] for text in texts]
        for level in tree.levels[:-1]:
            said = np.asarray(session.extend(tree, tokens, level))
            for i, node in enumerate(level):
                for child in tree.children(node):
                    free = np.where(np.isfinite(said[:, i]) & (said[:, i] != 0), chance.random(said[:, i].shape), -1)
                    tokens[:, child] = np.where(free.max(axis=1) > 0, free.argmax(axis=1), -1)
                    tokens[tokens[:, tree.parent[child]] < 0, child] = -1
        nodes = [int(chance.choice(np.flatnonzero(row >= 0))) for row in tokens]
        token = chance.integers(0, size, rows).tolist()
        session.commit(tree, tokens, nodes, token)
        for b, text in enumerate(texts):
            text += [*(int(tokens[b, n]) for n in tree.path(nodes[b])), token[b]]
        yield texts, tree


def fresh_logits(model: HFModel, view: list[int]) -> torch.Tensor:
    session = model.session(1, len(view) + 1)
    session.join(0, view)
    return session.extend(Tree.chain(0), np.array([[view[-1]]]), range(1))[0, 0]


@pytest.mark.parametrize("pair", PAIRS)
def test_a_translated_drafter_has_read_the_whole_text(pair):
    """After every step its scores are those of a drafter that reads its view from the start, and the view spells the
    text, or the drafter keeps silent until the text can be read."""
    target, draft = PAIRS[pair]()
    model = fit(target, draft)
    assert isinstance(model, Translated)
    session = model.session(2, 60)
    silent, spelled = 0, {**TokenBytes.of(draft).plain}
    for texts, _ in walk(session, 2, len(target.tokenizer), seed=5):
        rows = session.extend(Tree.chain(0), np.array([[text[-1]] for text in texts]), range(1))[:, 0]
        session.inner.extended = 0  # the call above was not part of a step
        for b, text in enumerate(texts):
            if not session.current[b]:
                silent += 1
                assert torch.isinf(rows[b]).all()
                continue
            if model.reader is not None:
                said = b"".join(spelled.get(i, b"") for i in session.views[b])
                assert said.decode(errors="ignore") == model.reader.spell(text).decode(errors="ignore")
            want = model.shared.carry(fresh_logits(draft, session.views[b]), -torch.inf)
            assert torch.allclose(rows[b], want, atol=1e-4)
    assert silent < 12


@pytest.mark.parametrize("pair", ["words for bytes", "bytes for words"])
def test_text_drafts_have_read_the_whole_text_and_are_the_targets_tokens(pair):
    target, draft = PAIRS[pair]()
    session = TextDrafter(target, draft).session(2, 90)
    guessed = 0
    for texts, _ in walk(session, 2, len(target.tokenizer), seed=6):
        session.extend(Tree.chain(2), np.array([[text[-1], -1, -1] for text in texts]), range(1))
        for b, text in enumerate(texts):
            view, written = session.views[b], session.written[b]
            assert session.model.reader.read(session.model.reader.spell(text))[0] == view
            for i in range(2):
                assert int(fresh_logits(draft, [*view, *written[:i]]).argmax()) == written[i]
            said = b"".join(session.model.retokenizer.written.get(i, b"") for i in written)
            told = b"".join(session.model.retokenizer.spelled.get(i, b"") for i in session.guesses[b])
            assert said.decode(errors="ignore").encode().startswith(told)
            guessed += bool(told)
        session.commit(Tree.chain(2), np.array([[0, -1, -1]] * 2), [0, 0], [5, 5])
        for text in texts:
            text.append(5)
    assert guessed


@pytest.mark.parametrize("pair", ["words for bytes", "bytes for words"])
def test_text_drafts_do_not_depend_on_how_long_a_neighbour_makes_them_write(pair):
    target, draft = PAIRS[pair]()
    chance, model, found = np.random.default_rng(1), TextDrafter(target, draft), 0
    for _ in range(40):
        mine, other = chance.integers(0, len(target.tokenizer), (2, 9)).tolist()
        guesses = []
        for depth, texts in ((1, [mine]), (2, [mine]), (5, [mine, other])):
            session, tree = model.session(2, 90), Tree.chain(depth)
            for row, text in enumerate(texts):
                session.join(row, text)
            session.extend(tree, np.array([[text[-1], *[-1] * depth] for text in texts]), range(1))
            guesses.append(session.guesses[0])
        assert guesses[0][:1] == guesses[1][:1]
        assert guesses[1][:2] == guesses[2][:2]
        found += len(guesses[1])
    assert found


def test_a_text_longer_than_the_drafter_can_hold_is_read_from_further_on():
    target, small = model_of(merged()), TableModel(lambda context: [1 / 258] * 258, context=24)
    small.tokenizer, target.end_tokens = tiny.tokenizer(), ()
    for model in (fit(target, small), TextDrafter(target, small)):
        out = dp.generate(target, "the inner band and the", draft=model, tree=Tree.chain(5), max_new_tokens=40, seed=1)
        assert len(out.tokens) == 40
        assert not out.trace.failures
        assert out.trace.drafted > 20


def test_where_a_text_is_shortened_does_not_depend_on_how_much_its_neighbours_guess():
    target, small = model_of(merged()), tiny.model()  # of 96 tokens
    for model in (fit(target, small), TextDrafter(target, small)):
        for length in range(40, 96, 3):
            views = []
            for depth in (1, 6):
                session, text = model.session(1, 200), merged()("x" * length)["input_ids"]
                session.join(0, text)
                session.extend(Tree.chain(depth), np.array([[text[-1], *[-1] * depth]]), range(1))
                views.append(session.views[0])
            assert views[0] == views[1]


def test_guesses_of_others_that_have_no_counterpart_silence_the_drafter_below_them():
    model = fit(model_of(merged()), tiny.model())
    session = model.session(1, 40)
    session.join(0, merged()("the band")["input_ids"])
    tree, word = Tree.of(2, 1), merged().convert_tokens_to_ids("Ġthe")
    tokens = np.array([[0, word, int(model.shared.ours[7]), -1, -1]])
    session.extend(tree, tokens, range(1))
    below = session.extend(tree, tokens, range(1, 3))[0]
    assert torch.isinf(below[0]).all()
    assert torch.isfinite(below[1]).any()
    session.commit(tree, tokens, [1], [int(model.shared.ours[9])])
    assert model.reader.read(session.texts[0])[0] == session.views[0]


# In the engine


@pytest.mark.parametrize(("pair", "n"), [*((pair, None) for pair in PAIRS), ("bytes for words", 3)])
def test_the_text_does_not_depend_on_who_drafts(pair, n):
    """Shared noise: the same text from a translated drafter, a text drafter and none, alone and in company."""
    target, draft = PAIRS[pair]()
    how = {"verify": "gumbel", "tree": Tree.chain(4), "max_new_tokens": 16, "seed": 3, "n": n}
    outs = [dp.generate(target, "and the", draft=d, **how) for d in (None, draft, TextDrafter(target, draft))]
    texts = [out.tokens if n is None else [one.tokens for one in out] for out in outs]
    assert texts[0] == texts[1] == texts[2]
    assert all((out if n is None else out[0]).trace.drafted > 0 for out in outs[1:])


def test_drafters_by_name(tmp_path):
    network, tokenizer = model_of(merged()).network, merged()
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert drafter(str(tmp_path), tiny.model()).name == f"{tmp_path} (256 shared tokens)"
    text = drafter(f"text:{tmp_path}", tiny.model())
    assert text.name == f"text:{tmp_path}"
    out = dp.generate(tiny.model(), "the", draft=f"text:{tmp_path}", max_new_tokens=12, seed=1)
    assert json.loads(json.dumps(out.trace.as_dict()))["drafter"] == f"text:{tmp_path}"


@pytest.mark.parametrize(("verify", "tree"), [("block", Tree.chain(2)), ("traversal", Tree.of(2, 1))])
def test_two_tokens_follow_the_targets_law(verify, tree):
    """A drafter that knows three of four tokens under other numbers: the pairs written are the target's pairs."""
    rows, other = as_float(table(1, 4)), as_float(table(2, 5))
    target, draft = TableModel(rows), TableModel(other)
    shared = Shared(np.array([0, 2, 3]), np.array([4, 1, 0]), 4)
    model = Translated(target, draft, shared, None)
    counts: Counter = Counter()
    for seed in range(320):
        out = dp.generate(target, [0], draft=model, verify=verify, tree=tree, max_new_tokens=2, seed=seed)
        counts[tuple(out.tokens)] += 1
    law = {text: mass for text, mass in target_law(rows, 2, (0,)).items() if mass > 0}
    gof.check(counts, law)
    assert np.isclose(normalise(shared.carry(other((4,)), 0.0)).sum(), 1)
