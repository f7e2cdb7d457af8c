"""Text that must fit a grammar: its law, its ends, what is sure to follow, and what is refused."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import re
import threading
from collections import Counter
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import draftproof as dp
from draftproof.models import grammars
from draftproof.models.table import TableModel
from tests.support import gof, heads, tiny
from tests.support.automata import restricted, state

SIZE, END, TEXTS = 5, 4, 1500
# "a b* (c d | d) end": after c only d may come, after d only the end
WORDS = dp.Grammar.tokens([{0: 1}, {1: 1, 2: 2, 3: 3}, {3: 3}, {}], accepting=[3])


def table(seed: int, size: int = SIZE, floor: float = 0.1) -> TableModel:
    """Laws that depend on the whole text, with no entry below the floor."""

    @cache
    def rows(context):
        law = np.random.default_rng([seed, *(token + 1 for token in context)]).dirichlet(np.full(size, 0.6))
        return floor + (1 - size * floor) * law

    return TableModel(rows, name=f"table{seed}")


def law_of_texts(target, prompt, grammar, length, ends=(END,)):
    """The law of whole texts by the definition, one token after another."""
    found, open_ = {}, {(): 1.0}
    while open_:
        text, chance = open_.popitem()
        here = state(grammar, target.vocabulary, text, ends)
        if len(text) == length or here.is_over:
            found[text] = chance
            continue
        for token, p in enumerate(restricted(target.rows(prompt + text), here)):
            if p > 0:
                open_[(*text, token)] = chance * p
    return found


def fits(seen: Counter, true: dict) -> None:
    """Compare counts with a law; texts that are too rare to be counted one by one are one cell."""
    assert seen.keys() <= true.keys()
    total = seen.total()
    rare = {text for text, p in true.items() if p * total < 2 * gof.LEAST_EXPECTED}
    cells = Counter({text: p for text, p in true.items() if text not in rare})
    if sum(true[text] for text in rare) * total >= gof.LEAST_EXPECTED:
        cells["rare"] = sum(true[text] for text in rare)
    counts = Counter("rare" if text in rare else text for text in seen.elements())
    gof.check({cell: counts[cell] for cell in cells}, {cell: p / cells.total() for cell, p in cells.items()})


def finished(engine: dp.Engine, requests: list) -> list:
    while not engine.is_finished:
        engine.step()
    return [request.output for request in requests]


def in_engine(target, seeds=range(TEXTS), prompt=(0,), length=6, grammar=WORDS, **settings):
    """Texts of an engine, each with a seed of its own."""
    engine = dp.Engine(target, rows=50, length=40, **settings)
    sampling = dp.Sampling(grammar=grammar, end_tokens=[END])
    how = {"sampling": sampling, "max_new_tokens": length}
    return finished(engine, [engine.add_request(prompt, seed=seed, **how) for seed in seeds])


CASES = [
    ("token", dp.Tree.chain(2)),
    ("block", None),
    ("traversal", dp.Tree.of(2, 2)),
    ("csbv", dp.Tree.paths(2, 3)),
    ("importance", dp.Tree.star(3)),
    ("gumbel", dp.Tree.chain(3)),
]


@pytest.mark.parametrize(("rule", "tree"), CASES, ids=[rule for rule, _ in CASES])
def test_the_law_of_whole_texts(rule, tree):
    target = table(1)
    outputs = in_engine(target, draft=table(2), verify=rule, tree=tree)
    fits(Counter(tuple(out.tokens) for out in outputs), law_of_texts(target, (0,), WORDS, 6))
    assert sum(out.trace.accepted for out in outputs) > TEXTS  # it did speculate


@pytest.mark.parametrize("draft", ["ngram", "cache"])
def test_drafters_that_look_up_what_was_written(draft):
    target, prompt = table(3), (0, 1, 2, 3, 0, 1, 2, 3, 0)
    outputs = in_engine(target, draft=draft, prompt=prompt)
    fits(Counter(tuple(out.tokens) for out in outputs), law_of_texts(target, prompt, WORDS, 6))
    assert sum(out.trace.accepted for out in outputs) > TEXTS / 2


def test_samples_of_one_prompt_share_what_they_can():
    target = table(5)
    sampling, seen = dp.Sampling(grammar=WORDS, end_tokens=[END]), Counter()
    for seed in range(TEXTS // 25):
        how = {"n": 25, "seed": seed, "sampling": sampling, "max_new_tokens": 6}
        seen.update(tuple(out.tokens) for out in dp.generate(target, [0], draft=table(6), **how))
    fits(seen, law_of_texts(target, (0,), WORDS, 6))


def test_a_draft_may_be_sampled_otherwise_and_knows_the_grammar():
    target = table(7)
    sampling = dp.Sampling(grammar=WORDS, end_tokens=[END])
    how = {"sampling": sampling, "draft_sampling": dp.Sampling(temperature=2.0), "max_new_tokens": 6}
    outputs = [dp.generate(target, [0], draft=table(8), seed=seed, **how) for seed in range(200)]
    assert all(out.finish in ("end", "length") for out in outputs)
    with pytest.raises(dp.DraftproofError, match="draft_sampling has another grammar"):
        dp.generate(target, [0], sampling=sampling, draft_sampling=dp.Sampling(grammar=["a"]))


def test_a_text_does_not_depend_on_its_neighbours():
    """Constrained and free texts in one batch: each is the text that it is alone."""
    target, draft = table(9), table(10)
    kinds = [{"grammar": WORDS, "end_tokens": [END]}, {}, {"temperature": 0.7}]

    def asked(engine, i):
        return engine.add_request([0], seed=i, max_new_tokens=8, sampling=dp.Sampling(**kinds[i % 3]))

    both = dp.Engine(target, draft=draft, rows=6, length=40)
    together = finished(both, [asked(both, i) for i in range(12)])
    for i, output in enumerate(together):
        engine = dp.Engine(target, draft=draft, rows=1, length=40)
        assert finished(engine, [asked(engine, i)])[0].tokens == output.tokens


def test_what_is_sure_is_drafted_at_no_cost_and_always_accepted():
    """Twenty tokens of which each leaves one successor: one call writes them, and the drafter is not asked."""
    target = table(11)

    class Unasked(TableModel):
        def session(self, rows, capacity):
            session = super().session(rows, capacity)
            session.extend = None
            return session

    grammar = dp.Grammar.tokens([{n % 4: n + 1} for n in range(20)] + [{}], accepting=[20])
    sampling = dp.Sampling(grammar=grammar, end_tokens=[END])
    how = {"sampling": sampling, "max_new_tokens": 40, "seed": 1, "logprobs": 2}
    output = dp.generate(target, [0], draft=Unasked(target.rows), **how)
    assert output.tokens == [n % 4 for n in range(20)] + [END]
    assert (output.finish, len(output.trace.steps), output.trace.failures) == ("end", 1, {})
    assert all(one.logprob == 0.0 and one.top == ((one.token, 0.0),) for one in output.logprobs)
    plain = dp.generate(target, [0], draft=None, **how)
    assert (plain.tokens, len(plain.trace.steps)) == (output.tokens, 21)


def test_without_end_tokens_a_text_ends_where_its_grammar_does():
    target = table(12)
    grammar = dp.Grammar.tokens([{0: 1, 1: 1}, {2: 2, 3: 0}, {}], accepting=[1, 2])
    for draft in (None, table(13)):
        how = {"sampling": dp.Sampling(grammar=grammar), "max_new_tokens": 9, "n": 30}
        texts = [out for seed in range(20) for out in dp.generate(target, [0], draft=draft, seed=seed, **how)]
        fits(Counter(tuple(out.tokens) for out in texts), law_of_texts(target, (0,), grammar, 9, ends=()))


def test_the_end_of_a_text_is_length_where_it_is_cut():
    sampling = dp.Sampling(grammar=WORDS, end_tokens=[END])
    for seed in range(20):
        output = dp.generate(table(14), [0], draft=table(15), seed=seed, sampling=sampling, max_new_tokens=2)
        assert output.finish == "length"
        assert state(WORDS, SIZE, tuple(output.tokens), (END,)) is not None


@pytest.mark.parametrize("draft", [None, table(17)], ids=["plain", "drafted"])
def test_min_new_tokens_gives_way_where_the_grammar_has_ended(draft):
    """The end is put off where the text may go on, and not where nothing else is left."""
    grammar = dp.Grammar.tokens([{0: 1}, {1: 1, 2: 2}, {}], accepting=[1, 2])
    sampling = dp.Sampling(grammar=grammar, end_tokens=[END], min_new_tokens=4)
    for seed in range(40):
        tokens = dp.generate(table(16), [0], draft=draft, seed=seed, sampling=sampling, max_new_tokens=12).tokens
        if END in tokens:
            assert len(tokens) > 4 or tokens[-2] == 2


def test_other_controls_act_beside_the_grammar():
    """The grammar's mask comes before temperature and truncation: what they keep is among the allowed tokens."""
    target, sampling = table(18), dp.Sampling(grammar=WORDS, end_tokens=[END], temperature=0.5, top_k=1, banned=[1])
    output = dp.generate(target, [0], draft=table(19), seed=1, sampling=sampling, max_new_tokens=9)
    text = tuple(output.tokens)
    for n, token in enumerate(text):
        row = restricted(target.rows((0, *text[:n])) * (np.arange(SIZE) != 1), state(WORDS, SIZE, text[:n], (END,)))
        assert token == int(row.argmax())
    stuck = dp.Sampling(grammar=WORDS, end_tokens=[END], banned=[0])
    with pytest.raises(dp.DraftproofError, match="no allowed token: loosen `allowed`, `banned`, the grammar"):
        dp.generate(target, [0], sampling=stuck)


@pytest.mark.parametrize("rule", ["block", "traversal"])
def test_a_processor_is_not_asked_where_no_text_comes(rule):
    """Its drafter does not know that the target never writes token 1 after 0: the node below is drafted, never asked.

    A processor that raises for such a history would otherwise end the text, and the texts that are left would not
    follow the law.
    """
    target, asked = table(20, 3, 0.2), []

    def strict(ids, scores):
        history = ids[0].tolist()
        asked.append(history)
        if any(pair == (0, 1) for pair in pairwise(history)) or 2 in history[1:-1]:
            raise ValueError(f"{history} cannot be")
        return np.where((np.arange(3) == 1) & (history[-1] == 0), -np.inf, scores)

    sampling = dp.Sampling(processors=[strict], end_tokens=[2])
    tree = dp.Tree.chain(3) if rule == "block" else dp.Tree.of(2, 2)
    engine = dp.Engine(target, draft=table(21, 3, 0.2), verify=rule, tree=tree, rows=50, length=20)
    how = {"sampling": sampling, "draft_sampling": dp.Sampling(), "max_new_tokens": 3}
    outputs = finished(engine, [engine.add_request([0], seed=seed, **how) for seed in range(TEXTS)])

    def rows(context):
        law = target.rows(context) * ~((np.arange(3) == 1) & (context[-1] == 0))
        return law / law.sum()

    true, open_ = {}, {(): 1.0}
    while open_:
        text, chance = open_.popitem()
        if len(text) == 3 or 2 in text:
            true[text] = chance
            continue
        open_ |= {(*text, token): chance * p for token, p in enumerate(rows((0, *text))) if p > 0}
    fits(Counter(tuple(out.tokens) for out in outputs), true)
    assert asked


# Text


@cache
def wordy() -> TableModel:
    """A table whose tokens are bytes and some pieces of words; the law falls with the id."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["na", "me", "name", '":', '{"', "ye", "yes"]
    merges = [("n", "a"), ("m", "e"), ("na", "me"), ('"', ":"), ("{", '"'), ("y", "e"), ("ye", "s")]
    core = Tokenizer(models.BPE({piece: i for i, piece in enumerate([*letters, *pieces])}, merges))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.add_special_tokens(["<end>"])
    size = core.get_vocab_size()

    def rows(context):
        law = np.random.default_rng([len(context), max([0, *context[-1:]])]).dirichlet(np.full(size, 0.3))
        return (law + 1e-3) / (law + 1e-3).sum()

    made = TableModel(rows, name="wordy")
    made.tokenizer, made.end_tokens = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>"), (size - 1,)
    return made


def spelled(*pieces: str) -> tuple[int, ...]:
    return tuple(wordy().tokenizer.convert_tokens_to_ids(list(pieces)))


NAMED = {"type": "object", "properties": {"name": {"type": "boolean"}}, "required": ["name"]}
NAMED |= {"additionalProperties": False}


def test_every_token_that_fits_is_allowed_not_only_the_tokenizers_own():
    """After {" the text goes on as name, which the tokenizer writes as one token and the model may write as four."""
    start = grammars.start(dp.Grammar.json_schema(NAMED), wordy(), wordy().end_tokens)
    here = start.after(*spelled('{"'))
    assert set(np.nonzero(here.allowed)[0]) == {*spelled("n", "na", "name")}
    assert here.expected == spelled("name")[0]
    assert start.after(*spelled("n")) is None
    only_way = here.after(*spelled("na")).after(*spelled("m"))
    assert (only_way.expected, only_way.allowed.sum()) == (spelled("e")[0], 1)


@pytest.mark.parametrize(("text", "fits"), [("2022-02-28", True), ("2022-02-29", False), ("2024-02-29", True)])
def test_a_date_is_a_day_of_the_calendar(text, fits):
    place = grammars.start(dp.Grammar.json_schema({"type": "string", "format": "date"}), wordy(), wordy().end_tokens)
    for letter in spelled(*f'"{text}"'):
        place = None if place is None else place.after(letter)
    assert (place is not None) == fits


def test_places_where_the_same_may_follow_share_a_mask():
    """Also of two grammars, and never where one text may end and the other may not."""
    model = wordy()
    one, other, longer = (
        grammars.start(dp.Grammar.regex(pattern), model, model.end_tokens) for pattern in ("[0-3]{2}", "[0-3]{3}", "a*")
    )
    below = other.after(*spelled("1"))
    assert below.allowed is one.allowed
    assert below.allowed is not longer.allowed
    assert not below.allowed.flags.writeable
    last = one.after(*spelled("1")).after(*spelled("2"))
    assert np.nonzero(last.allowed)[0].tolist() == list(model.end_tokens)
    some, others = np.array([0, 3, 7]), np.array([1, 2])
    for place, ids in ((one, some), (below, some), (below, others), (one, some), (last, some)):
        assert place.among(ids).tolist() == place.allowed[ids].tolist()


GRAMMARS = [
    (NAMED, lambda text: set(json.loads(text)) == {"name"}),
    ("json", lambda text: json.loads(text) is not ...),
    (["yes", "yesterday", "no"], lambda text: text in ("yes", "yesterday", "no")),
    (dp.Grammar.regex(r"[0-9]{3}/[a-c]+"), lambda text: re.fullmatch(r"[0-9]{3}/[a-c]+", text)),
    (dp.Grammar.lark('start: "a" pair+\npair: /[0-9]/ "b"'), lambda text: re.fullmatch("a([0-9]b)+", text)),
]


@pytest.mark.parametrize("draft", ["none", "ngram", "table"])
@pytest.mark.parametrize(("grammar", "valid"), GRAMMARS, ids=["schema", "json", "choice", "regex", "lark"])
def test_texts_fit_their_grammar(grammar, valid, draft):
    target = wordy()
    drafter, ended = (TableModel(target.rows), 0) if draft == "table" else (draft, 0)
    for seed in range(6):
        sampling = dp.Sampling(grammar=grammar)
        output = dp.generate(target, "yes name", draft=drafter, sampling=sampling, max_new_tokens=60, seed=seed)
        assert not output.trace.failures
        if output.finish == "end":
            assert valid(output.text)
            ended += 1
        else:
            here = grammars.start(sampling.grammar, target, target.end_tokens)
            for token in output.tokens:
                here = here.after(token)
            assert here is not None
    assert ended or grammar == "json"


def test_the_law_of_a_choice():
    """Of all ways to write a choice in tokens, each has the probability that the model gives it."""
    target = wordy()
    grammar, end = dp.Grammar.choice(["yes", "no"]), target.end_tokens[0]
    sampling, seen = dp.Sampling(grammar=grammar), Counter()
    for seed in range(60):
        texts = dp.generate(target, [5], n=25, sampling=sampling, draft=TableModel(target.rows), seed=seed)
        seen.update(tuple(out.tokens) for out in texts)
    true, open_ = {}, {(): (1.0, grammars.start(grammar, target, (end,)))}
    while open_:
        text, (chance, here) = open_.popitem()
        if here.is_over:
            true[text] = chance
            continue
        row = restricted(target.rows((5, *text)), here)
        open_ |= {(*text, t): (chance * row[t], here.after(t)) for t in np.nonzero(row)[0].tolist()}
    fits(seen, true)
    assert len(true) == 4  # yes, ye s, y e s and n o, each with the end token


@pytest.mark.parametrize("kind", ["none", "llama", "head"])
def test_a_network_under_a_grammar(kind):
    """Real code paths: the head drafts even tokens only, so what is sure may be a token that it does not have."""
    target = tiny.model()
    grammar = dp.Grammar.regex("(ab|ac|b)!(x|y)?")
    engine = dp.Engine(target, draft=heads.drafter(kind, target) or "none", rows=20, length=40)
    how = {"sampling": dp.Sampling(grammar=grammar), "max_new_tokens": 8}
    outputs = finished(engine, [engine.add_request([1, 2], seed=seed, **how) for seed in range(300)])
    fits(Counter(tuple(out.tokens) for out in outputs), network_law(target, (1, 2), grammar))
    assert not any(out.trace.failures for out in outputs)


def network_law(target, prompt, grammar):
    """The law of whole texts from the network's logits, one call a text."""
    found, open_ = {}, {(): (1.0, grammars.start(grammar, target, target.end_tokens))}
    while open_:
        text, (chance, here) = open_.popitem()
        if here.is_over:
            found[text] = chance
            continue
        session = target.session(1, 40)
        session.join(0, (*prompt, *text))
        logits = session.extend(dp.Tree.chain(0), np.array([[(*prompt, *text)[-1]]]), range(1))[0, 0].double().numpy()
        weights = np.where(here.allowed, np.exp(logits - logits.max()), 0)
        row = weights / weights.sum()
        open_ |= {(*text, t): (chance * row[t], here.after(t)) for t in np.nonzero(row)[0].tolist()}
    return found


BAD = [
    ({"type": "objekt"}, "the JSON schema cannot be used: .*Invalid type: objekt"),
    ({"not": {}}, 'the JSON schema cannot be used: .*Unimplemented keys: \\["not"\\]'),
    ({"type": "string", "pattern": "(?=a)b"}, "the JSON schema cannot be used: look-around"),
    (dp.Grammar.regex("(a|b"), "the regular expression cannot be used: unclosed group"),
    (dp.Grammar.lark("start: foo"), 'the grammar cannot be used: .*unknown name: "foo"'),
]


@pytest.mark.parametrize(("grammar", "message"), BAD, ids=[message[-20:] for _, message in BAD])
def test_a_grammar_that_cannot_be_used_is_refused_in_one_line(grammar, message):
    sampling = dp.Sampling(grammar=grammar)
    with pytest.raises(dp.DraftproofError, match=message) as error:
        dp.generate(wordy(), "yes", sampling=sampling)
    assert "\n" not in str(error.value)
    engine = dp.Engine(wordy(), draft="none", length=80)
    with pytest.raises(dp.DraftproofError, match=message):
        engine.add_request("yes", sampling=sampling, max_new_tokens=9)


WRONG = [
    ("yes", "unknown grammar 'yes': use \"json\", or Grammar.regex"),
    ([], "choices are a list of at least one text"),
    (["a", 1], "choices are a list of at least one text"),
    (7, "grammar must be a Grammar, a JSON schema or a list of choices, not 7"),
    ({"type": {1, 2}}, "a grammar must be made of JSON values"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_what_is_no_grammar_is_refused(given, message):
    with pytest.raises(dp.DraftproofError, match=re.escape(message)):
        dp.Sampling(grammar=given)


def test_descriptions_are_values():
    schema = dp.Grammar.json_schema('{"type": "object", "properties": {"b": {}, "a": {}}}')
    assert schema == dp.Grammar.json_schema({"type": "object", "properties": {"b": {}, "a": {}}})
    assert dp.Grammar(**schema.as_dict) == schema
    assert len({schema, dp.Grammar.choice(["a"]), dp.Grammar.choice(("a",)), dp.Sampling(grammar=["a"]).grammar}) == 2
    with pytest.raises(dp.DraftproofError, match="a JSON schema must be JSON"):
        dp.Grammar.json_schema("{type: object}")
    with pytest.raises(dp.DraftproofError, match="a JSON schema is an object"):
        dp.Grammar.json_schema("[1]")
    with pytest.raises(dp.DraftproofError, match="unknown kind of grammar 'ebnf'"):
        dp.Grammar("ebnf", "x")
    with pytest.raises(dp.DraftproofError, match="has no tokenizer: describe its texts by Grammar"):
        dp.generate(table(1), [0], sampling=dp.Sampling(grammar=["a"]))
    with pytest.raises(dp.DraftproofError, match="state 0 of the grammar is a dead end"):
        dp.generate(table(1), [0], sampling=dp.Sampling(grammar=dp.Grammar.tokens([{}], [])))
    ends_only = dp.Grammar.tokens([{0: 1}, {END: 0}], [])  # an end token leads nowhere, and here no text may end
    with pytest.raises(dp.DraftproofError, match="state 1 of the grammar is a dead end"):
        dp.generate(table(1), [0], sampling=dp.Sampling(grammar=ends_only, end_tokens=[END]))


def test_a_grammar_that_grows_too_large_ends_its_own_text_only(monkeypatch):
    """It may be in the middle of a draft that its library gives up; the other texts are those that they are alone."""

    class Large(grammars.Automaton):
        @property
        def allowed(self):
            if self.place == 2:
                raise dp.DraftproofError("the grammar is too large to follow here")
            return super().allowed

        def after(self, token):
            below = super().after(token)
            return Large(*vars(below).values()) if isinstance(below, grammars.Automaton) else below

    read = grammars._automaton
    monkeypatch.setattr(
        grammars,
        "_automaton",
        lambda *how: Large(*(vars(read(*how))[name] for name in ("frame", "states", "accepting"))),
    )
    grammar = dp.Grammar.tokens([{0: 1}, {1: 2}, {2: 2}], accepting=[2])
    engine = dp.Engine(table(22), draft=table(23), rows=2, length=40)
    large = engine.add_request([0], sampling=dp.Sampling(grammar=grammar, end_tokens=[END]), seed=1, max_new_tokens=9)
    free = engine.add_request([0], seed=2, max_new_tokens=9)
    with pytest.raises(dp.DraftproofError, match="too large to follow"):
        finished(engine, [])
    assert (large.finish, str(large.error)) == ("failed", "the grammar is too large to follow here")
    finished(engine, [])
    assert free.output.tokens == dp.generate(table(22), [0], draft=table(23), seed=2, max_new_tokens=9).tokens


def test_reading_a_grammar_has_a_limit(monkeypatch):
    monkeypatch.setattr(grammars, "FUEL", 10)
    with pytest.raises(dp.DraftproofError, match="the regular expression cannot be used: "):
        dp.generate(wordy(), "yes", sampling=dp.Sampling(grammar=dp.Grammar.regex("(abc|abd|[x-z]{4,9})+z")))


def test_an_engine_compiles_in_the_background(monkeypatch):
    """While one request waits for its grammar, another is written; what was given up meanwhile ends at once."""
    compile_it, gate = grammars._compile, threading.Event()

    def slow(*described):
        assert gate.wait(60)
        return compile_it(*described)

    monkeypatch.setattr(grammars, "_compile", slow)
    target = copy.copy(wordy())
    target.tokenizer = copy.copy(wordy().tokenizer)  # nothing is compiled for this one

    async def main():
        async with dp.AsyncEngine(target, draft="none", rows=4, length=80) as engine:
            waits = engine.add_request("yes", sampling=dp.Sampling(grammar=["yes", "no"]), seed=1, max_new_tokens=9)
            left = engine.add_request("yes", sampling=dp.Sampling(grammar=["no"]), seed=1, max_new_tokens=9)
            bad = engine.add_request("yes", sampling=dp.Sampling(grammar={"type": "objekt"}), max_new_tokens=9)
            left.cancel()
            free = await engine.generate("yes", seed=1, max_new_tokens=5)
            gate.set()
            with pytest.raises(dp.DraftproofError, match="Invalid type"):
                await bad.accepted()
            return free, await waits._finished(), await left._finished()

    free, [chosen], [given_up] = asyncio.run(main())
    assert len(free.tokens) == 5
    assert chosen.text in ("yes", "no")
    assert (given_up.finish, given_up.tokens) == ("cancelled", [])


def test_a_law_under_a_grammar_needs_masks():
    sampling, logits = dp.Sampling(grammar=["a"]), np.zeros((1, 4))
    with pytest.raises(dp.DraftproofError, match="pass `masks`"):
        dp.sampling.law(logits, sampling)
    law = dp.sampling.law(logits, sampling, masks=np.array([[True, False, True, False]]))
    assert law.tolist() == [[0.5, 0.0, 0.5, 0.0]]
    assert math.isclose(law.sum(), 1)


def test_a_tree_that_is_given_is_kept_where_the_grammar_makes_sure_of_more():
    """Other texts of the batch would wait for a longer draft; where the length is chosen, it may be longer."""
    target = table(13)
    grammar = dp.Grammar.tokens([{n % 4: n + 1} for n in range(20)] + [{}], accepting=[20])
    how = {"sampling": dp.Sampling(grammar=grammar, end_tokens=[END]), "max_new_tokens": 40, "seed": 1}
    given = dp.generate(target, [0], draft=target, tree="chain:3", **how)
    assert [step.drafted for step in given.trace.steps] == [3] * 5 + [1]  # the last one is the end token
    assert given.tokens == dp.generate(target, [0], draft=target, **how).tokens
    assert len(dp.generate(target, [0], draft=target, **how).trace.steps) == 1


@pytest.mark.parametrize("seed", [None, 3])
def test_texts_that_are_tuned_together_do_not_wait_for_what_a_grammar_is_sure_of(seed):
    """On a CPU; one with a seed is tuned alone, and is the text that it is without neighbours."""
    target, steps = table(13), []
    grammar = dp.Grammar.tokens([{n % 4: n + 1} for n in range(20)] + [{}], accepting=[20])
    engine = dp.Engine(target, draft=table(14), rows=2, length=80)
    free = engine.add_request([0], sampling=dp.Sampling(end_tokens=()), max_new_tokens=40)
    sure = engine.add_request(
        [0], sampling=dp.Sampling(grammar=grammar, end_tokens=[END]), seed=seed, max_new_tokens=40
    )
    while not sure.finish:
        engine.step()
        steps.append([request.trace.steps[-1].depth for request in (free, sure)])
    assert sure.output.tokens == [n % 4 for n in range(20)] + [END]
    if seed is None:
        assert all(of_sure <= of_free for of_free, of_sure in steps)
        assert len(steps) > 1
    else:
        assert len(steps) == 1


def test_a_guess_comes_no_deeper_than_without_a_grammar():
    """What is sure counts, too: after two sure tokens, a draft of three has room for one guess."""
    target = table(14)
    grammar = dp.Grammar.tokens([{0: 1}, {1: 2}, {2: 3, 3: 3}, {0: 4, 1: 4}, {0: 4, 1: 4}], accepting=[4])
    how = {"sampling": dp.Sampling(grammar=grammar, end_tokens=[END]), "max_new_tokens": 20, "seed": 1}
    made = dp.generate(target, [0], draft=target, tree="chain:3", **how)
    assert made.trace.steps[0].drafted == 3
    assert made.tokens[:2] == [0, 1]


def test_texts_of_different_temperatures_beside_each_other_are_those_that_they_are_alone():
    """Drafts of rows with a grammar are masked together, each at its own temperature."""
    target, draft = tiny.model(), tiny.model("llama", 1)
    grammar = dp.Grammar.regex("[a-p]{20}")
    settings = [{"sampling": dp.Sampling(temperature=t, grammar=grammar), "seed": 5} for t in (0.4, 1.6, 0.4)]
    alone = [dp.generate(target, [1, 2], draft=draft, tree="chain:3", max_new_tokens=12, **how) for how in settings]
    engine = dp.Engine(target, draft=draft, tree="chain:3", rows=3, length=40)
    together = finished(engine, [engine.add_request([1, 2], max_new_tokens=12, **how) for how in settings])
    for ours, own in zip(together, alone, strict=True):
        assert [(step.tokens, step.drafted) for step in ours.trace.steps] == [
            (step.tokens, step.drafted) for step in own.trace.steps
        ]
