"""Compile a grammar for a model's tokens: by llguidance for text, by hand for an automaton over token ids.

The result is the state before the first token. A state is never changed: `after` makes another one, which takes
microseconds, so the nodes of a draft each have their own.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from draftproof.errors import DraftproofError, first_line
from draftproof.grammar import Grammar, State
from draftproof.models.base import Model
from draftproof.models.calendar_formats import with_patterns

KEPT = 256  # compiled grammars of a tokenizer
MASKS = 256  # masks that are kept for texts of one vocabulary: a byte for each token
FUEL = 2_000_000  # of llguidance, for reading a grammar: about 50,000 a millisecond
# All tokens that fit are allowed, not only those that the tokenizer would choose for the text that must follow.
EVERY_TOKEN = '%llguidance {"no_forcing": true}\n'

# JSON has its spaces as Python writes them: where they are left open, weak models write them without end.
SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# An entry of a tokenizer.json
END = {"content": "<|end of the grammar|>", "special": True} | dict.fromkeys(
    ("single_word", "lstrip", "rstrip", "normalized"), False
)

_lock = threading.Lock()
_tokenizers: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # tokenizer -> llguidance's view of it
_compiled: WeakKeyDictionary[Any, OrderedDict[Any, State]] = WeakKeyDictionary()  # tokenizer -> root states


def start(grammar: Grammar, model: Model, end_tokens: tuple[int, ...]) -> State:
    """The state before the first token of a text by this model, or an error that says what is wrong with the grammar.

    Compiled once for each tokenizer; the first grammar of a tokenizer takes longest, about half a second.
    """
    if grammar.kind == "tokens":
        return _automaton(grammar, model.vocabulary, end_tokens)
    if model.tokenizer is None:
        raise DraftproofError(f"{model.name!r} has no tokenizer: describe its texts by Grammar.tokens")
    key = grammar, model.vocabulary, end_tokens
    with _lock:
        known = _compiled.setdefault(model.tokenizer, OrderedDict())
        if key in known:
            known.move_to_end(key)
            return known[key]
    root = _compile(grammar, model, end_tokens)
    with _lock:
        known[key] = root
        while len(known) > KEPT:
            known.popitem(last=False)
    return root


def check(grammar: Grammar) -> Grammar:
    """The grammar, or an error if it is of no use for any model: before one is loaded."""
    if grammar.kind != "tokens":
        library = _library()
        found = library.LLMatcher.validate_grammar(_source(library, grammar), limits=_limits(library))
        if found:
            raise DraftproofError(f"{_NAMES[grammar.kind]} cannot be used: {_reason(found)}")
    return grammar


def is_known(grammar: Grammar, model: Model, end_tokens: tuple[int, ...]) -> bool:
    """Whether `start` would answer at once."""
    with _lock:
        return grammar.kind == "tokens" or (grammar, model.vocabulary, end_tokens) in _compiled.get(model.tokenizer, ())


class Mask:
    """Which tokens may come next: the same object wherever the same tokens may."""

    def __init__(self, allowed: np.ndarray, tokenizer: Any) -> None:
        allowed.flags.writeable = False  # texts share it
        self.allowed, self._tokenizer = allowed, tokenizer
        self._last: tuple[np.ndarray, np.ndarray] | None = None  # ids, and what is allowed of them

    @cached_property
    def only(self) -> int:
        """The only token that is allowed; -1 where there are several."""
        return only(self.allowed)

    @cached_property
    def forks(self) -> bool:
        """Whether two of the tokens begin differently, as far as three of them show: then no text must follow."""
        ids = np.flatnonzero(self.allowed)
        some = [int(ids[i]) for i in (0, len(ids) // 2, -1)] if len(ids) else []
        return len({self._tokenizer.decode_bytes([token])[:1] for token in some}) > 1

    def among(self, ids: np.ndarray) -> np.ndarray:
        """[D] whether each of these tokens is allowed; known where the last ones were asked for again."""
        last = self._last
        if last is None or last[0] is not ids:
            self._last = last = ids, self.allowed.take(ids)
        return last[1]


@lru_cache(maxsize=16)
def masks(tokenizer: Any, vocabulary: int, ends: tuple[int, ...]) -> Callable[[bytes, bool], Mask]:
    """Makes the masks of a model's texts from llguidance's bits and from whether the text may end there.

    A text comes to the same masks again and again, and other texts to the same.
    """

    @lru_cache(maxsize=MASKS)
    def mask(bits: bytes, may_end: bool) -> Mask:
        read = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), bitorder="little")
        return Mask(with_ends(read.view(bool)[:vocabulary], ends, may_end), tokenizer)

    return mask


def with_ends(allowed: np.ndarray, ends: Iterable[int], may_end: bool) -> np.ndarray:
    """The mask with end tokens where the text may end, and nowhere else."""
    allowed[list(ends)] = may_end
    return allowed


class Ended:
    """After the end of a text anything may follow, for nothing of it is used."""

    expected, is_over = -1, True

    def __init__(self, vocabulary: int) -> None:
        self.allowed = np.ones(vocabulary, dtype=bool)

    def among(self, ids: np.ndarray) -> np.ndarray:
        return self.allowed.take(ids)

    def after(self, token: int) -> State:
        return self


class Frame:
    """What the states of one text have in common: vocabulary, end tokens, and llguidance's view of the tokenizer."""

    def __init__(self, vocabulary: int, end_tokens: tuple[int, ...], tokenizer: Any = None) -> None:
        self.vocabulary, self.ended = vocabulary, Ended(vocabulary)
        self.ends = frozenset(end for end in end_tokens if end < vocabulary)
        self.masks = masks(tokenizer, vocabulary, tuple(sorted(self.ends)))


class Automaton:
    """A state of a finite automaton over token ids."""

    def __init__(self, frame: Frame, states: list[dict[int, int]], accepting: frozenset[int], place: int = 0) -> None:
        self.frame, self.states, self.accepting, self.place = frame, states, accepting, place

    @cached_property
    def allowed(self) -> np.ndarray:
        mask = np.zeros(self.frame.vocabulary, dtype=bool)
        mask[list(self.states[self.place])] = True
        return with_ends(mask, self.frame.ends, self.place in self.accepting)

    def among(self, ids: np.ndarray) -> np.ndarray:
        return self.allowed.take(ids)

    @property
    def expected(self) -> int:
        return only(self.allowed)

    @property
    def is_over(self) -> bool:
        return not self.allowed.any()

    def after(self, token: int) -> State | None:
        if not self.allowed[token]:
            return None
        if token in self.frame.ends:
            return self.frame.ended
        return Automaton(self.frame, self.states, self.accepting, self.states[self.place][token])


def _automaton(grammar: Grammar, vocabulary: int, end_tokens: tuple[int, ...]) -> State:
    try:
        read = json.loads(grammar.text)
        states = [{int(token): int(state) for token, state in one.items()} for one in read["states"]]
        accepting = frozenset(map(int, read["accepting"]))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DraftproofError(f"an automaton is states and accepting states: use Grammar.tokens ({error})") from error
    frame = Frame(vocabulary, end_tokens)
    for here, edges in enumerate(states):
        if not all(0 <= token < vocabulary and 0 <= state < len(states) for token, state in edges.items()):
            raise DraftproofError(f"state {here} of the grammar leads to an unknown state, or by an unknown token")
        if not edges.keys() - frame.ends and here not in accepting:
            raise DraftproofError(f"state {here} of the grammar is a dead end: let it be accepting, or lead on")
    if not states or not accepting <= set(range(len(states))):
        raise DraftproofError(
            f"the grammar has {len(states)} states and names others as accepting: {sorted(accepting)}"
        )
    return Automaton(frame, states, accepting)


class TextState:
    """A place in a text that llguidance follows."""

    def __init__(self, frame: Frame, matcher: Any, ahead: tuple[int, ...] = ()) -> None:
        self.frame, self.matcher = frame, matcher
        self._ahead = ahead  # what must follow, in tokens, as far as it was known before
        self._below: dict[int, ref[TextState]] = {}  # a draft's states serve its text

    @cached_property
    def mask(self) -> Mask:
        bits = self.matcher.compute_bitmask()
        if self.matcher.is_error():
            raise DraftproofError(f"the grammar is too large to follow here: {_reason(self.matcher.get_error())}")
        return self.frame.masks(bits, self.matcher.is_accepting())

    @property
    def allowed(self) -> np.ndarray:
        return self.mask.allowed

    def among(self, ids: np.ndarray) -> np.ndarray:
        return self.mask.among(ids)

    @cached_property
    def ahead(self) -> tuple[int, ...]:
        """The text that must follow, in the tokens that the tokenizer would cut it into."""
        if self._ahead or self.mask.forks:
            return self._ahead
        matcher = self.matcher.deep_copy()  # looking ahead must not change the mask
        return tuple(matcher.compute_ff_tokens()) if matcher.compute_ff_bytes() else ()

    @cached_property
    def expected(self) -> int:
        return self.ahead[0] if self.ahead and self.allowed[self.ahead[0]] else self.mask.only

    @property
    def is_over(self) -> bool:
        return not self.frame.ends and self.matcher.is_stopped() and not self.matcher.is_error()

    def after(self, token: int) -> State | None:
        if token in self.frame.ends:
            return self.frame.ended if self.matcher.is_accepting() else None
        known = self._below.get(token)
        below = None if known is None else known()
        if below is not None:
            return below
        matcher = self.matcher.deep_copy()
        if not matcher.try_consume_tokens([token]) and not matcher.is_error():
            return None
        ahead = vars(self).get("ahead", self._ahead)  # not looked for here: few of these states are asked
        state = TextState(self.frame, matcher, ahead[1:] if ahead[:1] == (token,) else ())
        self._below[token] = ref(state)
        return state


def only(allowed: np.ndarray) -> int:
    """The only token that is allowed; -1 where there are several."""
    first = int(allowed.argmax())
    return first if allowed[first] and not allowed[first + 1 :].any() else -1


def _compile(grammar: Grammar, model: Model, end_tokens: tuple[int, ...]) -> State:
    library = _library()
    tokenizer = _tokenizer(library, model)
    matcher = library.LLMatcher(tokenizer, _source(library, grammar), log_level=0, limits=_limits(library))
    if matcher.is_error():
        raise DraftproofError(f"{_NAMES[grammar.kind]} cannot be used: {_reason(matcher.get_error())}")
    root = TextState(Frame(model.vocabulary, end_tokens, tokenizer), matcher)
    try:
        is_empty = not root.allowed.any()
    except DraftproofError as error:
        raise DraftproofError(f"{_NAMES[grammar.kind]} cannot be used: {error}") from error
    if is_empty:
        raise DraftproofError(f"{_NAMES[grammar.kind]} allows no text at all: loosen it")
    return root


_NAMES = {
    "json_schema": "the JSON schema",
    "json": "JSON",
    "regex": "the regular expression",
    "choice": "the list of choices",
    "lark": "the grammar",
}


def _source(library: Any, grammar: Grammar) -> str:
    """The grammar in the notation of llguidance."""
    if grammar.kind == "lark":
        return EVERY_TOKEN + grammar.text
    if grammar.kind == "regex":
        made = json.loads(library.LLMatcher.grammar_from_regex(grammar.text))
        return f"{EVERY_TOKEN}{made['grammars'][0]['lark_grammar']}"
    if grammar.kind == "choice":
        options = (json.dumps(option, ensure_ascii=False) for option in json.loads(grammar.text))
        return f"{EVERY_TOKEN}start: {' | '.join(options)}"
    schema = with_patterns(json.loads(grammar.text or "{}"))
    if isinstance(schema, dict):
        own = schema.get("x-guidance", {})
        schema["x-guidance"] = own if own.get("whitespace_flexible") else SPACES | own
    return f"{EVERY_TOKEN}start: %json {json.dumps(schema, ensure_ascii=False)}"


def _limits(library: Any) -> Any:
    return library.LLParserLimits(initial_lexer_fuel=FUEL)


def _reason(message: str) -> str:
    """llguidance's message in one line: without the grammar that it repeats."""
    lines = [line.strip() for line in message.splitlines()]
    cause = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), None)
    return (cause or next(filter(None, lines), "no reason given"))[:300]


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise DraftproofError("a grammar needs llguidance: pip install 'draftproof[grammar]'") from error
    return llguidance


def _tokenizer(library: Any, model: Model) -> Any:
    """llguidance's view of the model's tokenizer, made once.

    It gets one token more than there are, which stands for the end of a text: which tokens end it, a request says.
    """
    with _lock:
        known = _tokenizers.setdefault(model.tokenizer, {})
        if model.vocabulary in known:
            return known[model.vocabulary]
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise DraftproofError(f"the tokenizer of {model.name!r} has no tokenizer.json, which grammars need")
    size = max(model.vocabulary, backend.get_vocab_size(with_added_tokens=True))
    state = json.loads(backend.to_str())
    state["added_tokens"].append(END | {"id": size})
    try:
        made = library.LLTokenizer(json.dumps(state), n_vocab=size + 1, eos_token=size)
    except Exception as error:  # the library's own kinds
        raise DraftproofError(
            f"the tokenizer of {model.name!r} is of no kind that fits: {first_line(error)}"
        ) from error
    with _lock:
        known[model.vocabulary] = made
    return made
