"""Drafts that cannot say everything: reduced and foreign vocabularies, and text cut anew, are exact."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from draftproof.draft import Draft, Tree
from draftproof.draws import Draw
from draftproof.engine.eager.reduced_vocabulary import Rest, merge
from draftproof.law import normalise
from draftproof.models.drafters.shared_tokens import Shared
from draftproof.models.drafters.text_draft import TextDrafter
from draftproof.models.table import TableModel
from draftproof.rule import Verifier
from draftproof.theory.enumerate import Context, output_law, target_law
from draftproof.verify import VERIFIERS
from tests.support.tables import Model, as_float, cases, table

CASES = [
    pytest.param(v, *case, id=f"{v.name}-{case[2].name}-{case[0].parent}")
    for v in VERIFIERS.values()
    for case in cases(v)
]


def equal(verifier: Verifier, target: Model, drafter: Model, tree: Tree, draw: Draw, length: int) -> bool:
    """Whether the output law is the target's: as fractions, or to 1e-12 where the rule solves an equation in floats."""
    law, truth = output_law(verifier, target, drafter, tree, draw, length), target_law(target, length)
    if all(isinstance(mass, Fraction) for mass in law.values()):
        return law == truth
    return all(abs(law.get(text, 0) - truth.get(text, 0)) < 1e-12 for text in law.keys() | truth.keys())


def cut(seed: int, size: int) -> Model:
    """A drafter of four tokens, of which the target knows all but one or two, under other numbers; and the target has a
    token that it cannot say. Its weights are cut to what both know, then made a law."""
    full, shared = table(seed, 4), Shared(np.arange(1, size), np.array([3, 1])[: size - 1], size)
    return lambda context: normalise(shared.carry(full(tuple(3 - token for token in context)), Fraction(0)))


@pytest.mark.parametrize(("verifier", "tree", "size", "draw"), CASES)
def test_output_law_with_a_cut_vocabulary(verifier: Verifier, tree: Tree, size: int, draw: Draw) -> None:
    """Every rule, on every shape: what the drafter cannot say comes from the residual alone."""
    target, drafter = table(6, size), cut(3, size)
    assert target(())[0] > 0 == drafter(())[0]
    assert equal(verifier, target, drafter, tree, draw, max(tree.depth[-1] + 1, 2))


def merged(verifier: Verifier, names: np.ndarray) -> Verifier:
    """The same rule on a smaller alphabet: the tokens that can be guessed, and one that stands for the rest."""

    def small(draft: Draft) -> tuple[Draft, Rest]:
        return merge(draft.tree, draft.tokens, draft.q[..., names], draft.p, names)

    def next(draft: Draft, node: np.ndarray) -> np.ndarray:
        made, rest = small(draft)
        return rest.spread(verifier.next(made, node), range(len(node)), node.tolist())

    return verifier._replace(stop=lambda draft: verifier.stop(small(draft)[0]), next=next)


@pytest.mark.parametrize(("verifier", "tree", "size", "draw"), [c for c in CASES if c.values[0].select is None])
def test_output_law_where_one_token_stands_for_the_rest(verifier: Verifier, tree: Tree, size: int, draw: Draw) -> None:
    """The rest are the first and the last token, and one of them may be all that p has left."""
    target, inner, names = table(6, size + 1), table(3, size - 1), np.arange(1, size)
    drafter: Model = lambda context: np.array([Fraction(0), *inner(context), Fraction(0)])  # noqa: E731
    assert equal(merged(verifier, names), target, drafter, tree, draw, max(tree.depth[-1] + 1, 2))


@pytest.mark.parametrize("verifier", [v for v in VERIFIERS.values() if v.select is None], ids=lambda rule: rule.name)
def test_the_first_token_may_be_among_those_that_can_be_guessed(verifier: Verifier) -> None:
    """The shortest draft of every rule, whose guesses are the tokens at both ends; the rest is between them."""
    tree, _, draw = min(cases(verifier), key=lambda case: case[0].size)
    target, inner = table(6, 4), table(3, 2)
    drafter: Model = lambda context: np.array([inner(context)[0], *[Fraction(0)] * 2, inner(context)[1]])  # noqa: E731
    assert equal(merged(verifier, np.array([0, 3])), target, drafter, tree, draw, max(tree.depth[-1] + 1, 2))


# Near misses


def first_token(verifier: Verifier, draft: Draft, chance: np.ndarray) -> np.ndarray:
    """[V] law of the first token from drafts of one guess, of which each has its chance."""
    stop = verifier.stop(draft)
    law = (chance * stop[:, 0]) @ verifier.next(draft, np.zeros(len(chance), dtype=int))
    for token, mass in zip(draft.tokens[:, 1], chance * stop[:, 1], strict=True):
        law[token] += mass
    return law


def guesses(target: Model, drawn: np.ndarray, verified: np.ndarray) -> tuple[Draft, np.ndarray]:
    """Drafts of one guess drawn from one law and verified against another; what `drawn` lacks to one is not guessed."""
    tokens = [[0, token] for token in np.flatnonzero(drawn)] + [[0, -1]]
    chance = np.array([*drawn[drawn > 0], 1 - drawn.sum()])
    none = verified * 0
    q = np.stack([*[np.stack([verified, none])] * (len(tokens) - 1), np.stack([none, none])])
    p = np.stack([np.stack([target(()), target((max(token, 0),))]) for _, token in tokens])
    return Draft(Tree.chain(1), np.array(tokens), q, p), chance


@pytest.mark.parametrize("name", ["token", "block", "recursive"])
def test_cutting_after_the_draw_is_caught(name: str) -> None:
    """Renormalised before drawing it is exact. Drawing first and dropping what is not shared is not, unless the law
    that is verified knows of it; neither is drawing from the cut law and verifying against the whole one."""
    found = Counter()
    for seed in range(8):
        target, full = table(2 * seed, 3), table(2 * seed + 1, 4)(())
        part = Shared(np.array([0, 2]), np.array([3, 1]), 3).carry(full, Fraction(0))
        if not 0 < part.sum() < 1:
            continue
        found["tables"] += 1
        for way, drawn, verified in (
            ("exact", normalise(part), normalise(part)),
            ("dropped", part, part),
            ("mixed up", normalise(part), part),
        ):
            law = first_token(VERIFIERS[name], *guesses(target, drawn, verified))
            found[way] += bool(np.all(law == target(())))
    assert found["exact"] == found["tables"] >= 4
    assert found["dropped"] < found["tables"]
    assert found["mixed up"] < found["tables"]


# Text as draft


def bpe(*pieces: str) -> Any:
    """A tokenizer of letters and of pieces, each made of the one before it and a letter, or of two letters."""
    letters = sorted(set("".join(pieces)))
    vocabulary = {piece: i for i, piece in enumerate([*letters, *pieces])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[(piece[:-1], piece[-1]) for piece in pieces]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken("<end>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>")


def spoken(rows: Model, tokenizer: Any) -> TableModel:
    model = TableModel(rows)
    model.tokenizer, model.end_tokens = tokenizer, (tokenizer.eos_token_id,)
    return model


@cache
def text_model(seed: int) -> tuple[Model, TextDrafter]:
    """A target with the tokens a, b, ab and an end, and a drafter that writes in a, b, ba, bab and an end."""
    target = table(2 * seed, 4)
    return target, TextDrafter(
        spoken(as_float(target), bpe("ab")), spoken(as_float(table(2 * seed + 1, 5)), bpe("ba", "bab"))
    )


def text_draft(target: Model, drafter: TextDrafter, tree: Tree, context: Context) -> Draft:
    """The one draft that there is after this context."""
    session = drafter.session(1, 64)
    session.join(0, context)
    tokens, rows = np.full((1, tree.size), -1), []
    for level in tree.levels[:-1]:
        laws = session.extend(tree, tokens, level)[0]
        for node, row in zip(level, laws, strict=True):
            rows.append(np.array([Fraction(mass) for mass in row]))
            if row.sum():
                tokens[0, list(tree.children(node))] = row.argmax()
    paths = [tuple(int(tokens[0, n]) for n in tree.path(node)) for node in range(tree.size)]
    p = np.stack([target(context if -1 in path else context + path) for path in paths])
    return Draft(tree, tokens, np.stack([*rows, *[p[0] * 0] * (tree.size - len(rows))])[None], p[None])


def text_law(
    verifier: Verifier, target: Model, drafter: TextDrafter, length: int, context: Context
) -> dict[Context, Any]:
    """Law of `length` tokens when steps with drafts of two guesses follow one another."""
    draft = text_draft(target, drafter, Tree.chain(2), context)
    law: Counter = Counter()
    for node, reach in enumerate(verifier.stop(draft)[0]):
        for token, mass in enumerate(verifier.next(draft, np.array([node]))[0]):
            text = (*(int(t) for t in draft.tokens[0, 1 : node + 1]), token)
            if reach * mass and len(text) >= length:
                law[text[:length]] += reach * mass
            elif reach * mass:
                for later, share in text_law(verifier, target, drafter, length - len(text), context + text).items():
                    law[text + later] += reach * mass * share
    return dict(law)


@pytest.mark.parametrize("name", ["match", "onehot", "token", "block", "traversal", "recursive"])
def test_text_drafts_are_exact(name: str) -> None:
    """Whatever the drafter writes and however the target's tokenizer cuts it, no rule's output law moves."""
    for seed in range(3):
        target, drafter = text_model(seed)
        assert text_law(VERIFIERS[name], target, drafter, 3, (0,)) == target_law(target, 3, (0,))


def test_text_drafts_guess_across_the_seams() -> None:
    """The drafter writes b and ab, the target reads ba|b as it would itself: guesses follow the target's tokenizer."""
    seen = {tuple(text_draft(*text_model(s), Tree.chain(2), (0,)).tokens[0, 1:].tolist()) for s in range(12)}
    assert any(-1 not in pair for pair in seen)
    assert any(2 in pair for pair in seen)  # "ab", which the drafter has no token for
    assert any(3 in pair for pair in seen)  # the end of the text in the target's own token
