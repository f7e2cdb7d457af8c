"""The engine end to end: its law, its noise, its ends, and what happens when the drafter fails."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch

import draftproof as dp
from draftproof import verify
from draftproof.engine.choices import choose_rule
from draftproof.engine.tuning.tuner import Fixed
from draftproof.models.table import TableModel, TableSession
from draftproof.native import build
from draftproof.theory.enumerate import target_law
from tests.support import gof, tiny
from tests.support.schedulers import PROMPT, SAMPLES, ask, eager, samples, table


def shape(verifier: dp.Verifier) -> dp.Tree:
    """A small draft of a kind the verifier takes."""
    shapes = (dp.Tree.of(2, 1), dp.Tree.paths(2, 2), dp.Tree.star(2), dp.Tree.chain(2))
    return next(tree for tree in shapes if verifier.accepts(tree))


@pytest.mark.parametrize("name", sorted(verify.VERIFIERS))
def test_the_joint_law_of_three_tokens_is_the_targets(name):
    verifier = verify.get(name)
    wide = name in ("token", "block", "match", "onehot")  # rules that plan row by row get a table they can finish
    size, floor, count = (5, 0.1, SAMPLES) if wide else (3, 0.2, 2500)
    target = table(1, size, floor)
    counts, requests = samples(target, table(2, size, floor), verifier, shape(verifier), count=count)
    gof.check(counts, target_law(target.rows, 3, PROMPT))
    assert sum(request.trace.accepted for request in requests) > count / 4  # it did speculate


@pytest.mark.parametrize("name", ["recursive", "importance", "match"])
def test_several_drafters_side_by_side(name):
    target = table(1, size=3, floor=0.2)
    counts, _ = samples(target, [table(2, 3), table(3, 3)], verify.get(name), dp.Tree.of(2, 1), count=2500)
    gof.check(counts, target_law(target.rows, 3, PROMPT))
    with pytest.raises(dp.DraftproofError, match="'optimal' takes one drafter only: for several use recursive"):
        dp.generate(target, [0], draft=[target, target], verify="optimal", tree=dp.Tree.star(2))


def test_controls_that_look_back_stay_exact_along_a_draft():
    """Penalties, a schedule, bias and a processor: the law of each token depends on the drafted ones before it."""

    def no_double(ids, scores):
        scores = scores.copy()
        scores[0, ids[0, -1]] -= 1.0
        return scores

    sampling = dp.Sampling(
        temperature=dp.Anneal(0.8, 1.6, over=2),
        repetition_penalty=1.3,
        frequency_penalty=0.4,
        logit_bias={1: 0.3},
        processors=[no_double],
    )
    target = table(4, size=3, floor=0.2)

    def rows(context):
        history = dp.sampling.Context(context[:1], context[1:])
        logits = np.log(target.rows(context))[None]
        return dp.sampling.law(logits, sampling, [history])[0]

    counts, _ = samples(target, table(5, size=3), verify.get("block"), dp.Tree.chain(2), sampling=sampling)
    gof.check(counts, target_law(rows, 3, PROMPT))


def test_the_drafts_own_sampling_leaves_the_text_alone():
    """A draft that is hotter and cut to two tokens guesses otherwise; the text follows the target all the same."""
    target = table(6)
    guess = dp.Sampling(temperature=1.3, top_k=2)
    counts, _ = samples(target, table(7), verify.get("token"), dp.Tree.chain(3), draft_sampling=guess)
    gof.check(counts, target_law(target.rows, 3, PROMPT))


class Ending(Fixed):
    """A chain that ends where the next token is unlikely to be reached."""

    least = 0.5


@pytest.mark.parametrize("rule", ["token", "block", "match", "gumbel"])
def test_a_draft_may_end_after_a_token_that_its_drafter_did_not_expect(rule):
    """At least 0.35 + 0.6 q must remain of each token's q. The text follows the target all the same."""
    target, draft = table(1, size=3, floor=0.2), table(2, size=3)
    counts, requests = samples(target, draft, choose_rule(rule, None), Ending(dp.Tree.chain(3)), length=4)
    gof.check(counts, target_law(target.rows, 4, PROMPT))
    steps = [request.trace.steps[0] for request in requests]
    assert {step.drafted for step in steps} == {1, 2, 3}
    goes_on = sum(q for q in draft.rows(PROMPT) if 0.35 + 0.6 * q >= Ending.least)
    share = np.mean([step.drafted > 1 for step in steps])
    assert abs(share - goes_on) < 5 * (goes_on * (1 - goes_on) / len(steps)) ** 0.5


def test_expected_acceptance_is_the_mean_of_the_accepted():
    _, requests = samples(table(1), table(2), verify.get("block"), dp.Tree.chain(2), length=3, count=4000)
    first = [request.trace.steps[0] for request in requests]
    expected, accepted = np.mean([s.expected for s in first]), np.array([s.accepted for s in first])
    assert abs(expected - accepted.mean()) < 5 * accepted.std() / len(first) ** 0.5
    assert all(0 <= s.expected <= 2 and len(s.reached) == s.depth == 2 for s in first)


def test_no_uniform_is_used_twice(names):
    dp.generate(table(1), [0], n=3, draft=table(2), tree=dp.Tree.chain(3), max_new_tokens=20, seed=1)
    assert len(names) > 100
    assert set(names.values()) == {1}


def test_same_seed_same_text_and_other_seed_other_text():
    def text(seed, **settings):
        return dp.generate(
            tiny.model(), "hello", draft=tiny.model("llama", 1), max_new_tokens=24, seed=seed, **settings
        )

    assert text(1).tokens == text(1).tokens
    assert text(1).tokens != text(2).tokens
    fresh = dp.generate(tiny.model(), "hello", max_new_tokens=24)
    assert text(1).seed == 1
    assert fresh.tokens == dp.generate(tiny.model(), "hello", max_new_tokens=24, seed=fresh.seed).tokens


def test_a_row_does_not_depend_on_its_neighbours():
    """The same request alone and in company of others that start and end at other times."""
    target, draft, verifier, tree = tiny.model(), tiny.model("llama", 1), verify.get("block"), dp.Tree.chain(3)

    def requests(lengths):
        return [
            ask(target, (65 + i,) * (i + 1), dp.Sampling(), dp.Sampling(), length, (7, i))
            for i, length in enumerate(lengths)
        ]

    def run(chosen):
        batch = eager(target, [draft], verifier, tree, len(chosen), 60)
        for request in chosen:
            batch.add([request])
        while not batch.is_finished:
            batch.step()
        return [request.tokens for request in chosen]

    together = run(requests([20, 5, 33]))
    apart = [run([request])[0] for request in requests([20, 5, 33])]
    assert together == apart


@pytest.mark.parametrize("draft", [None, "model", "ngram"])
def test_greedy_text_is_the_same_with_and_without_a_draft(draft):
    target = tiny.model("qwen3")
    settings = {"sampling": dp.Sampling(temperature=0), "max_new_tokens": 30, "seed": 0}
    guesser = tiny.model("qwen3", 1) if draft == "model" else draft
    out = dp.generate(target, "abcabcabc", draft=guesser, **settings)
    ids = torch.tensor([target.tokenizer("abcabcabc").input_ids])
    with torch.no_grad():
        whole = target.network.generate(ids, do_sample=False, max_new_tokens=30, attention_mask=torch.ones_like(ids))
    assert out.tokens == whole[0, ids.shape[1] :].tolist()


def test_a_perfect_draft_is_always_accepted():
    out = dp.generate(table(1), [0], draft=table(1), tree=dp.Tree.chain(4), max_new_tokens=25, seed=1)
    assert out.trace.tokens_per_call == 5
    assert out.trace.acceptance == [1, 1, 1, 1]
    assert out.trace.histogram == {4: 5}


# How a text ends


def chain_model(text: str, model=None) -> TableModel:
    """A target that says one thing, byte by byte, then ends; with the byte tokenizer of the tests."""
    ids = tiny.tokenizer()(text).input_ids

    def rows(context):
        place = len(context) - 1
        law = np.zeros(tiny.VOCABULARY)
        law[ids[place] if place < len(ids) else 256] = 1
        return law

    said = TableModel(rows)
    said.tokenizer, said.end_tokens = tiny.tokenizer(), (256,)
    return said


def test_the_models_end_token_ends_the_text_and_is_not_shown():
    target = chain_model("héllo ✓")
    out = dp.generate(target, [0], draft=chain_model("héllo ✓✓✓"), tree=dp.Tree.chain(4), max_new_tokens=50)
    assert (out.text, out.finish) == ("héllo ✓", "end")
    assert out.tokens[-1] == 256


def test_a_text_that_nothing_ends_goes_on_through_the_models_end_token():
    target, endless = chain_model("hello"), dp.Sampling(end_tokens=())
    out = dp.generate(target, [0], draft=target, sampling=endless, tree=dp.Tree.chain(4), max_new_tokens=12)
    assert (out.text, out.finish, out.tokens[5:]) == ("hello", "length", [256] * 7)


def test_min_new_tokens_puts_the_end_off():
    target = table(1)
    target.end_tokens = (0, 1)
    for seed in range(30):
        sampling = dp.Sampling(min_new_tokens=6)
        out = dp.generate(target, [2], draft=table(2), sampling=sampling, max_new_tokens=30, seed=seed)
        assert out.finish == "end"
        assert len(out.tokens) > 6
        assert not {0, 1} & set(out.tokens[:6])


def test_max_new_tokens_is_kept_to_the_token():
    for length in (1, 2, 7):
        out = dp.generate(table(1), [0], draft=table(1), max_new_tokens=length, seed=1)
        assert (len(out.tokens), out.finish, out.trace.tokens) == (length, "length", length)


@pytest.mark.parametrize("stop", ["wor", "o w", ["zzz", "lo wo"], "ld"])
def test_stop_strings_may_span_tokens(stop):
    target = chain_model("hello world")
    pieces = []
    writing = dp.stream(target, [0], draft=target, tree=dp.Tree.chain(3), stop=stop, max_new_tokens=50)
    pieces = [piece.text for piece in writing]
    first = min("hello world".find(s) for s in ([stop] if isinstance(stop, str) else stop) if s in "hello world")
    assert writing.output.text == "".join(pieces) == "hello world"[:first]
    assert writing.output.finish == "stop"


def test_half_a_stop_string_at_the_end_is_text():
    out = dp.generate(chain_model("hello"), [0], draft=None, stop="lot", max_new_tokens=50)
    assert (out.text, out.finish) == ("hello", "end")


def test_a_full_context_ends_the_text():
    target = tiny.model("gpt2")  # learned positions: one too many would crash
    out = dp.generate(target, [5] * 90, draft=tiny.model("gpt2", 1), max_new_tokens=50, seed=1)
    assert out.finish in ("context", "end")
    assert len(out.tokens) <= 96 - 90
    ends = {dp.generate(target, [5] * 90, draft="ngram", max_new_tokens=50, seed=s).finish for s in range(5)}
    assert "context" in ends


def test_a_drafter_may_have_less_room_than_the_text():
    target, draft = tiny.model("gpt2"), tiny.model("gpt2", 1)
    draft.context, draft.last = 24, 23
    seen = []
    spy = draft.network.transformer.wpe.register_forward_pre_hook(lambda _, ids: seen.append(int(ids[0].max())))
    out = dp.generate(target, [5] * 20, draft=draft, max_new_tokens=30, tree="chain:3", seed=1)
    spy.remove()
    assert (max(seen), out.trace.failures) == (23, {})
    assert out.trace.steps[-2].drafted > 0


def test_no_drafter_has_a_name_too():
    """It is the one of the command line, and the one that a trace gives."""
    asked = {"prompt": "hello", "max_new_tokens": 9, "seed": 3}
    named, plain = (dp.generate(tiny.model(), draft=draft, **asked) for draft in ("none", None))
    assert named.tokens == plain.tokens
    assert named.trace.drafter == plain.trace.drafter == "none"


def test_a_stream_is_an_iterator():
    writing = dp.stream(chain_model("hello"), [0], draft=None, max_new_tokens=50)
    assert next(writing).text == "h"
    assert "".join(piece.text for piece in writing) == "ello"
    assert writing.output.text == "hello"


def test_pieces_tell_where_they_come_from():
    text = "abcabcabcabc"
    kinds = Counter()
    for piece in dp.stream(chain_model(text), [0], draft=chain_model("abcabcXbcabc"), tree=dp.Tree.chain(3)):
        kinds[piece.kind] += len(piece.text)
    assert kinds["accepted"] + kinds["corrected"] + kinds["plain"] == len(text)
    assert kinds["corrected"] >= 1
    assert {p.kind for p in dp.stream(chain_model(text), [0], draft=None)} == {"plain"}


def test_the_output_of_an_unfinished_stream_is_the_text_so_far():
    writing = dp.stream(chain_model("hello"), [0], draft=None, max_new_tokens=50)
    next(writing)
    assert (writing.output.text, writing.output.finish) == ("h", "cancelled")
    assert "".join(piece.text for piece in writing) == "ello"  # reading it has not ended the text
    assert (writing.output.text, writing.output.finish) == ("hello", "end")


# When the drafter fails


MISSHAPEN = {
    "fewer tokens": lambda logits: logits[..., :-1],
    "more tokens": lambda logits: np.concatenate([logits, logits[..., :2]], axis=2),
    "more nodes": lambda logits: np.concatenate([logits, logits], axis=1),  # these were verified against wrong rows
    "more rows": lambda logits: np.concatenate([logits, logits], axis=0),
    "no nodes": lambda logits: logits[:, 0],
}


class Broken(TableModel):
    """A drafter that goes wrong in a chosen way once the context ends with a chosen token."""

    def __init__(self, rows, how: str, after: int) -> None:
        super().__init__(rows)
        self.how, self.after = how, after

    def session(self, rows, capacity):
        return BrokenSession(self, rows)


class BrokenSession(TableSession):
    def extend(self, tree, tokens, nodes):
        logits = super().extend(tree, tokens, nodes)
        wrong = tokens[:, nodes.start : nodes.stop] == self.model.after
        if self.model.how in MISSHAPEN:
            return MISSHAPEN[self.model.how](logits)
        if wrong.any() and self.model.how == "raise":
            raise RuntimeError("out of memory\nwith details")
        if self.model.how == "law":
            self.speaks = "law"
            return np.where(wrong[..., None], 0.7, 1.0) * np.exp(logits)
        if self.model.how in ("learn", "commit"):
            return logits
        return np.where(wrong[..., None], np.nan if self.model.how == "nan" else np.inf, logits)

    def learn(self, tree, tokens, logits):
        if self.model.how == "learn" and self.model.after in tokens:
            raise RuntimeError("no room to learn")

    def commit(self, tree, tokens, node, token):
        if self.model.how == "commit" and self.model.after in token:
            raise RuntimeError("no room to keep it")
        super().commit(tree, tokens, node, token)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raise", "out of memory"),
        ("nan", "non-finite"),
        ("inf", "non-finite"),
        ("law", "does not sum to one"),
        ("learn", "no room to learn"),
        ("commit", "no room to keep"),
        ("fewer tokens", "has shape (1, 1, 4), not (1, 1, 5)"),
        ("more tokens", "has shape (1, 1, 7), not (1, 1, 5)"),
        ("more nodes", "has shape (1, 2, 5), not (1, 1, 5)"),
        ("more rows", "has shape (2, 1, 5), not (1, 1, 5)"),
        ("no nodes", "has shape (1, 5), not (1, 1, 5)"),
    ],
)
def test_a_failing_drafter_costs_speed_and_nothing_else(how, reason):
    target = table(1)
    out = dp.generate(target, [0], draft=Broken(table(2).rows, how, after=3), max_new_tokens=60, seed=5)
    assert (len(out.tokens), out.finish, out.trace.tokens) == (60, "length", 60)
    assert [reason in failure for failure in out.trace.failures] == [True]
    assert list(out.trace.failures.values()) == [1]
    assert "\n" not in next(iter(out.trace.failures))
    assert "went on by plain sampling" in out.trace.summary()
    assert out.trace.steps[-1].drafted == 0  # plain to the end


@pytest.mark.parametrize(
    ("guesses", "reason"), [([[5]], "guessed token 5 of a vocabulary of 5"), ([3], "has shape (1,), not (1, 1)")]
)
def test_a_guess_that_is_no_token_is_the_drafters_failure(guesses, reason):
    class Sure(TableSession):
        def guess(self, tree, tokens, nodes):
            return np.array(guesses)

    draft = table(2)
    draft.session = lambda rows, capacity: Sure(draft, rows)
    out = dp.generate(table(1), [0], draft=draft, tree="chain:2", max_new_tokens=9, seed=5)
    assert (len(out.tokens), [reason in failure for failure in out.trace.failures]) == (9, [True])


def test_a_name_that_is_no_token_is_the_drafters_failure():
    class Few(TableSession):
        draft_tokens = np.array([1, 7])

        def extend_reduced(self, tree, tokens, nodes):
            return np.zeros((len(tokens), len(nodes), 2))

        def widen(self, q):
            return q

    draft = table(2)
    draft.session = lambda rows, capacity: Few(draft, rows)
    out = dp.generate(table(1), [0], draft=draft, tree="chain:2", max_new_tokens=9, seed=5)
    assert (len(out.tokens), list(out.trace.failures)) == (9, ["the drafter names token 7 of a vocabulary of 5"])


def test_the_law_survives_a_drafter_that_fails_depending_on_what_it_drew():
    """Dropping the guesses drawn before the failure would bias the text: it depends on them."""
    target = table(1)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(2500):
        draft = Broken(table(2).rows, "raise", after=3)
        out = dp.generate(target, PROMPT, draft=draft, max_new_tokens=2, seed=seed, verify="token")
        counts[tuple(out.tokens)] += 1
    gof.check(counts, target_law(target.rows, 2, PROMPT))


def test_what_was_drawn_before_a_failure_is_verified():
    rule, seen = verify.get("token"), []
    spy = rule._replace(stop=lambda draft: (seen.append(draft.tokens[0, 1:].tolist()), rule.stop(draft))[1])
    target, sampling = table(1), dp.Sampling()
    for seed in range(20):
        batch = eager(target, [Broken(table(2).rows, "raise", after=3)], spy, dp.Tree.chain(3), 1, 0)
        batch.add([ask(target, PROMPT, sampling, sampling, 3, (seed, 0))])
        batch.step()
    assert len(seen) == 20
    assert {len(drawn) for drawn in seen} == {1, 2, 3}
    assert all(drawn[-1] == 3 for drawn in seen if len(drawn) < 3)  # after which the drafter fails


# Bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": []}, "prompt is empty"),
        ({"prompt": [999]}, "999 is outside the vocabulary"),
        ({"prompt": [1] * 96}, "prompt has 96 tokens but the context .* has 96: shorten"),
        ({"verify": "blok"}, "unknown verifier 'blok': did you mean 'block'"),
        ({"max_new_tokens": 0}, "max_new_tokens must be a whole number of at least 1"),
        ({"seed": -1}, "seed must be"),
        ({"tree": dp.Tree.star(3), "verify": "block"}, r"'block' works on chain .* this tree \(csbv, traversal, sbv\)"),
        ({"tree": dp.Tree.star(3), "lossy": "typical"}, "'typical' works on chain drafts only"),
        ({"verify": "block", "lossy": "typical"}, "name different rules"),
        ({"draw": "fixed", "verify": "block"}, "'block' is not exact for 'fixed' draws: use iid"),
        ({"n": 0}, "n must be a whole number of at least 1, not 0"),
        ({"n": 1.5}, "n must be a whole number of at least 1, not 1.5"),
        ({"n": True}, "n must be a whole number of at least 1, not True"),
        ({"temperature": 0.7}, r"temperature is a sampling control: pass sampling=Sampling\(temperature=...\)"),
        ({"max_tokens": 7}, "unknown setting 'max_tokens': did you mean 'max_new_tokens'"),
        ({"draft": "ngrm"}, "unknown draft 'ngrm': did you mean 'ngram'"),
        ({"prompt": b"hello"}, "a prompt is text, chat messages or token ids, not bytes"),
        ({"tree": "chain:x"}, "unknown tree 'chain:x': use chain:5"),
        ({"tree": 5}, "unknown tree 5: use a Tree"),
        ({"draft": "no-such-model"}, "unknown model 'no-such-model'"),
        ({"draft": tiny.network("llama")}, r"draft must be .* not LlamaForCausalLM: .*HFModel\(network, tokenizer\)"),
        ({"sampling": {"top_k": 3}}, r"sampling must be a Sampling, .* not \{'top_k': 3\}"),
        ({"draft_sampling": 0.8}, "sampling must be a Sampling, .* not 0.8"),
        ({"max_new_tokens": 2.5}, "max_new_tokens must be a whole number of at least 1, not 2.5"),
        ({"stop": [3]}, "stop must be text, not 3"),
        ({"stop": 3}, "stop must be text, not 3"),
        ({"stop": ["x", ""]}, "stop must be text, not '': give strings of at least one character"),
        ({"tree": dp.Tree((-1, 0, 1, 0)), "verify": "match"}, "is not numbered level by level"),
        ({"tree": dp.Tree((-1, 0, 1, 0)), "verify": "gumbel"}, "is not numbered level by level"),
        ({"verify": None}, "verify must be the name of a rule, such as 'block', not None"),
        ({"verify": ["block"]}, "verify must be the name of a rule"),
        ({"lossy": 0.8}, "lossy must be the name of a rule, such as 'lenience:0.8', not 0.8"),
        ({"verify": "token", "lossy": "typical"}, "verify='token' and lossy='typical' name different rules"),
        ({"sampling": dp.Sampling(logit_bias={999: 1.0})}, "logit_bias names token 999"),
        (
            {"sampling": dp.Sampling(processors=[lambda ids, scores: scores[:, :3]])},
            r"returned shape \(1, 3\), not scores of shape \(1, 258\)",
        ),
        (
            {"sampling": dp.Sampling(processors=[lambda ids, scores: None])},
            r"returned NoneType, not scores of shape \(1, 258\)",
        ),
    ],
)
def test_bad_input_is_one_line_with_a_remedy(change, message):
    settings = {"prompt": "hello", "draft": "ngram", **change}
    with pytest.raises(dp.DraftproofError, match=message) as error:
        dp.generate(tiny.model(), **settings)
    assert "\n" not in str(error.value)


def test_numbers_and_names_as_other_libraries_give_them():
    asked = {"prompt": [np.int64(104), np.int64(105)], "seed": np.int64(3), "max_new_tokens": np.int32(6), "stop": None}
    sampling = dp.Sampling(temperature=np.float32(0.5), top_k=np.int64(7), presence_penalty=Fraction(1, 4))
    made = dp.generate(tiny.model(), **asked, draft="ngram", tree="chain:3", sampling=sampling)
    plain = dp.Sampling(temperature=0.5, top_k=7, presence_penalty=0.25)
    like = {"prompt": [104, 105], "seed": 3, "max_new_tokens": 6, "tree": dp.Tree.chain(3), "sampling": plain}
    assert made.tokens == dp.generate(tiny.model(), **like, draft="ngram").tokens


@pytest.mark.parametrize("name", ["allowed", "banned", "end_tokens"])
def test_token_ids_may_come_in_arrays(name):
    texts = []
    for kind in (list, np.array):
        engine = dp.Engine(table(1), draft=table(2), rows=2)
        samplings = [dp.Sampling(**{name: kind([1, 2])}) for _ in range(2)]  # equal ones are sampled in one call
        asked = [engine.add_request([0], max_new_tokens=9, seed=i, sampling=one) for i, one in enumerate(samplings)]
        while not engine.is_finished:
            engine.step()
        texts.append([request.tokens for request in asked])
    assert texts[0] == texts[1]


def test_messages_that_a_template_does_not_take_are_told():
    target = chain_model("hello")
    target.tokenizer = copy.copy(tiny.tokenizer())
    target.tokenizer.chat_template = "{{ raise_exception('a system message comes first') }}"
    parts = [{"role": "user", "content": "hi"}]
    with pytest.raises(dp.DraftproofError, match="the chat template of 'table' does not take these messages"):
        dp.generate(target, parts, draft=None)


def test_a_rule_sees_the_very_numbers_that_guesses_were_drawn_from():
    """Two guesses are on top, nearly equal: in the target's precision the other would come first."""
    close = np.full(tiny.VOCABULARY, 0.1 / (tiny.VOCABULARY - 2))
    close[[5, 9]] = 0.45 - 1e-10, 0.45 + 1e-10
    assert close.argmax() == 9
    assert close.astype(np.float32).argmax() == 5
    rule, seen = verify.get("nodeplan"), []
    spy = rule._replace(stop=lambda draft: (seen.append(draft), rule.stop(draft))[1])
    target, tree, sampling = tiny.model(), dp.Tree.star(2), dp.Sampling()
    batch = eager(target, [TableModel(lambda context: close)], spy, tree, 1, 20)
    batch.add([ask(target, (65,), sampling, sampling, 8, (1, 0))])
    batch.step()
    (draft,) = seen
    assert draft.tokens[0, 1] == 9 == draft.q[0, 0].argmax()


class Rough(TableModel):
    """A drafter that states its laws in half precision, in which they do not sum to one."""

    def session(self, rows, capacity):
        return RoughSession(self, rows)


class RoughSession(TableSession):
    speaks = "law"

    def extend(self, tree, tokens, nodes):
        return np.exp(super().extend(tree, tokens, nodes)).astype(np.float16)


def test_a_law_that_is_stated_roughly_is_verified_as_it_is_drawn_from():
    rule, seen = verify.get("token"), []
    spy = rule._replace(stop=lambda draft: (seen.append(draft.q), rule.stop(draft))[1])
    target, tree, sampling = table(1), dp.Tree.chain(3), dp.Sampling()
    batch = eager(target, [Rough(table(2).rows)], spy, tree, 1, 20)
    batch.add([ask(target, (0,), sampling, sampling, 12, (1, 0))])
    while not batch.is_finished:
        batch.step()
    sums = np.concatenate([q.sum(axis=-1).ravel() for q in seen])
    assert abs(sums[sums > 0] - 1).max() < 1e-6


def test_vocabularies_must_agree():
    with pytest.raises(dp.DraftproofError, match=r"5 tokens but target 'tiny-llama' has 258.*--draft ngram"):
        dp.generate(tiny.model(), "hello", draft=table(1))
    other = tiny.model()
    other.tokenizer = dataclasses.make_dataclass("Other", ["get_vocab"])(lambda: {"a": 1})
    with pytest.raises(dp.DraftproofError, match="is neither byte-level nor SentencePiece: choose a model"):
        dp.generate(tiny.model(), "hello", draft=other)


def test_words_need_a_tokenizer():
    with pytest.raises(dp.DraftproofError, match="no tokenizer: give the prompt as token ids"):
        dp.generate(table(1), "hello")


def test_a_target_with_non_finite_logits_is_an_error_not_a_text():
    target = TableModel(lambda context: [0.5, float("nan")] if len(context) > 3 else [0.5, 0.5])
    with pytest.raises(dp.DraftproofError, match="non-finite"):
        dp.generate(target, [0], draft=None, max_new_tokens=20)


# Many samples of one prompt


def test_samples_of_one_prompt_follow_the_law_and_are_independent():
    target, draft = table(1, size=3, floor=0.15), table(2, size=3, floor=0.15)
    pairs: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    singles: Counter[tuple[int, ...]] = Counter()
    for seed in range(1250):
        texts = [
            tuple(out.tokens) for out in dp.generate(target, PROMPT, n=16, draft=draft, max_new_tokens=2, seed=seed)
        ]
        singles.update(texts)
        pairs.update(zip(texts[::2], texts[1::2], strict=True))
    law = target_law(target.rows, 2, PROMPT)
    assert sum(singles.values()) == 20_000
    gof.check(singles, law)
    gof.check(pairs, {(a, b): p * q for a, p in law.items() for b, q in law.items()})


def test_samples_share_every_context_they_have_in_common():
    asked: Counter[tuple[int, ...]] = Counter()
    model = table(1, size=3)

    def rows(context):
        asked[context] += 1
        return model.rows(context)

    counted = TableModel(rows)
    asked.clear()
    outs = dp.generate(counted, PROMPT, n=64, draft=None, max_new_tokens=4, seed=1)
    contexts = {PROMPT + tuple(out.tokens[:i]) for out in outs for i in range(4)}
    assert set(asked) == contexts
    assert set(asked.values()) == {1}


# Text that depends on target and seed alone


def test_requests_with_one_prompt_read_it_once_if_nothing_is_guessed():
    """Added one by one; each text is what it would be alone. Guesses are not shared between requests."""
    target, sampling = table(1), dp.Sampling()

    def texts(drafts, groups):
        made = []
        for prompts in groups:
            batch = eager(target, drafts, verify.get("block"), dp.Tree.chain(2), 4, capacity=0)
            requests = [ask(target, (prompt,), other, other, 6, (4, number)) for number, prompt, other in prompts]
            for request in requests:
                batch.add([request])
            batch.admit()
            rows = len(batch.stepper.rows)
            while not batch.is_finished:
                batch.step()
            made += [(request.tokens, rows) for request in requests]
        return [tokens for tokens, _ in made], [rows for _, rows in made]

    several = [(0, 2, sampling), (1, 2, sampling), (2, 3, sampling), (3, 2, dp.Sampling(temperature=0.5))]
    for drafts, rows in (([], 3), ([table(2)], 4)):
        together, used = texts(drafts, [several])
        assert used == [rows] * 4
        assert together == texts(drafts, [[one] for one in several])[0]
    assert len(set(map(tuple, together))) > 1


@pytest.mark.parametrize("name", ["gumbel", "gumbel_list"])
def test_a_coupling_gives_the_same_text_whatever_the_draft(name):
    target = tiny.model()
    drafts = [tiny.model("llama", 1), tiny.model("llama", 0), "ngram"]
    trees = [dp.Tree.chain(1), dp.Tree.chain(6), dp.Tree.of(3, 2), dp.Tree.paths(2, 3), dp.Tree.star(8)]
    settings = {"verify": name, "max_new_tokens": 25, "seed": 3, "sampling": dp.Sampling(temperature=0.9, top_p=0.9)}
    plain = dp.generate(target, "abcabcabc", draft=None, **settings)
    for draft in drafts:
        for tree in trees:
            assert dp.generate(target, "abcabcabc", draft=draft, tree=tree, **settings).tokens == plain.tokens
    assert dp.generate(target, "abcabcabc", draft=None, **{**settings, "seed": 4}).tokens != plain.tokens


def test_a_perfect_draft_wins_every_race():
    out = dp.generate(table(1), [0], draft=table(1), verify="gumbel", tree=dp.Tree.chain(4), max_new_tokens=25, seed=1)
    assert out.trace.tokens_per_call == 5


def test_a_coupling_follows_the_law_and_its_samples_are_independent():
    target, draft = table(1, size=3, floor=0.15), table(2, size=3, floor=0.15)
    pairs: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for seed in range(400):
        outs = dp.generate(target, PROMPT, n=16, draft=draft, verify="gumbel", max_new_tokens=2, seed=seed)
        texts = [tuple(out.tokens) for out in outs]
        pairs.update(zip(texts[::2], texts[1::2], strict=True))
    law = target_law(target.rows, 2, PROMPT)
    singles: Counter[tuple[int, ...]] = Counter()
    for (a, b), count in pairs.items():
        singles.update({a: count, b: count})
    gof.check(singles, law)
    firsts: Counter[tuple[int, int]] = Counter()
    for (a, b), count in pairs.items():
        firsts[a[0], b[0]] += count
    first = target.rows(PROMPT)
    gof.check(firsts, {(a, b): first[a] * first[b] for a in range(3) for b in range(3)})


def test_the_start_is_no_part_of_the_steps(monkeypatch):
    asked = []
    monkeypatch.setattr(build, "compiled", lambda: asked.append("compiled"))
    writing = dp.stream(tiny.model(), "abc", draft=None, max_new_tokens=2, seed=1)
    assert asked  # whatever is to be compiled is compiled before the first step
    for _ in writing:
        pass
    trace = writing.output.trace
    assert trace.start_seconds > 0
    assert trace.as_dict()["start_seconds"] == trace.start_seconds
    assert "start" not in trace.seconds
    assert f"start {trace.start_seconds:.1f} s, before the first target call" in trace.summary().splitlines()


# Rules that give up exactness


def test_a_lossy_rule_says_so_and_accounts_for_it():
    settings = {"draft": table(2), "tree": dp.Tree.chain(3), "max_new_tokens": 40, "seed": 1}
    out = dp.generate(table(1), [0], lossy="lenience:0.5", **settings)
    assert "not exact" in out.trace.summary()
    assert "not exact" in out.notice
    assert out.trace.as_dict()["exact"] is False
    assert out.trace.cost > 0
    assert [len(step.cost) for step in out.trace.steps] == [len(step.tokens) for step in out.trace.steps]
    exact = dp.generate(table(1), [0], **settings)
    assert exact.trace.cost == 0
    assert exact.trace.as_dict()["exact"] is True
    assert "not exact" not in exact.trace.summary()
    with pytest.raises(dp.DraftproofError, match="unknown lossy rule 'lenient': did you mean 'lenience'"):
        dp.generate(table(1), [0], lossy="lenient")
