"""The contracts of models and sessions: what the engine may ask, and what some of them can do besides.

A session is a model with a KV cache, or whatever else it keeps of the text so far. It serves B rows of text at once. In
each row, node 0 of a draft tree is the last committed token; `extend` asks what follows some nodes, `commit` keeps the
accepted path and drops the rest. Target, draft model, n-gram lookup and table are all sessions.

What only some of them can do is a Protocol of its own here. `opened` looks once, when a session is opened, which of
these it has; nobody else looks for methods by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from draftproof.draft import Tree
from draftproof.errors import DraftproofError
from draftproof.law import Array
from draftproof.sampling import Sampling


class Session(Protocol):
    """What the engine asks of target and drafter alike."""

    speaks: Literal["logits", "law"]  # what `extend` returns; a zero row of a law means: no draft token here

    def join(self, row: int, tokens: Sequence[int]) -> None:
        """Start a row with a text of at least one token, whatever the row held before."""
        ...

    def copy(self, source: int, target: int) -> None:
        """Make row `target` the same as row `source`, within a step too."""
        ...

    def extend(self, tree: Tree, tokens: Array, nodes: range) -> Array:
        """[B, len(nodes), V] for what follows each of these nodes; tokens [B, N] are known up to the last of them.

        The first B rows of the session are meant. Within a step, calls go through the tree from node 0 on, each node
        once.
        """
        ...

    def commit(self, tree: Tree, tokens: Array, node: Sequence[int], token: Sequence[int]) -> None:
        """Row b keeps the path to node[b]; token[b] becomes its last committed token."""
        ...


class Model(Protocol):
    """What sessions are made from."""

    name: str
    vocabulary: int
    context: int | None  # longest text, in tokens
    end_tokens: tuple[int, ...]
    tokenizer: Any  # of transformers or like one of its own; None for a model of bare token ids

    def session(self, rows: int, capacity: int) -> Session:
        """Room for `rows` texts of up to `capacity` tokens each, a draft tree included."""
        ...


# What a session may offer besides.


class Forgets(Protocol):
    """Keeps something of an unfinished step, and drops it when told to."""

    def forget(self) -> None:
        """Drop what a step that was given up left behind; a session of other sessions passes it on."""
        ...


class PointDrafter(Protocol):
    """Drafts one token with certainty, such as a phrase found again, so its law need not be written out."""

    def guess(self, tree: Tree, tokens: Array, nodes: range) -> np.ndarray:
        """[B, len(nodes)]: the token that has all the mass of each law; -1 where there is none."""
        ...


class ReducedVocabulary(Protocol):
    """Drafts among some tokens only, and can answer with laws over those alone."""

    @property
    def draft_tokens(self) -> np.ndarray:
        """[D] the tokens it can draft, ascending."""
        ...

    def extend_reduced(self, tree: Tree, tokens: Array, nodes: range) -> Array:
        """As `extend`, for the tokens it can draft alone: [B, len(nodes), D]."""
        ...

    def widen(self, q: Array) -> Array:
        """A law [..., D] over the tokens it can draft as one over all tokens."""
        ...


class ChainDrafter(ReducedVocabulary, Protocol):
    """Draws a whole chain of draft tokens for one text in one call."""

    def chain(self, temperature: float, u: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray] | None:
        """A draft token for each u, one after another, as long as the next is likely enough to be reached: places among
        `draft_tokens` [L], and the laws [L + 1, D] that they were drawn from, a zero row after them; None where that
        cannot be done."""
        ...


class PathDrafter(ReducedVocabulary, Protocol):
    """Drafts for one text token by token, with no tree to look at."""

    def draw_after(
        self, path: Sequence[int], temperature: float, u: float, mask: np.ndarray
    ) -> tuple[int, np.ndarray] | None:
        """What follows a path of draft tokens, by u among those that the mask [D] allows: its place among
        `draft_tokens`, -1 where it allows none, and the law [D] that it was drawn from. A path of a step continues the
        one before it. None where that cannot be done, in a whole step."""
        ...


class LearnsFromTarget(Protocol):
    """A drafter that remembers what the target says."""

    def learn(self, tree: Tree, tokens: Array, logits: Array) -> None:
        """The target's logits [B, N, V] after the nodes of a draft."""
        ...


class Rejoins(Protocol):
    """Can start a row anew from a text that it has already read in part."""

    def rejoin(self, row: int, tokens: Sequence[int], kept: int) -> None:
        """Join again between two steps, with a text whose first `kept` tokens the row holds already."""
        ...


class Prefills(Protocol):
    """Can read a text into its cache in parts, in calls that concern no other row."""

    def prefill(self, row: int, count: int) -> bool:
        """Read up to `count` more tokens of a row between two steps; whether all but the last token are read then."""
        ...


class TakesPredictions(Protocol):
    """Drafts what the caller says that a text will be much like."""

    def predict(self, row: int, tokens: Sequence[int]) -> None:
        """After `join`: the text that is expected in this row."""
        ...


class Wraps(Protocol):
    """Stands in front of another session, such as a prefix memo in front of the target's."""

    session: Session


class Combines(Protocol):
    """Made of several sessions."""

    sessions: Sequence[Session]


class HasCache(Protocol):
    """Keeps a KV cache."""

    cache: Any  # models.kv_cache.SlotCache


class HasBytes(Protocol):
    """Says how much memory it takes."""

    @property
    def bytes(self) -> int: ...


class SamplesPlainly(Protocol):
    """Can be asked about one token a step, with no draft after it."""

    obstacle: str  # why


class OpenSession(NamedTuple):
    """A drafter's session with what it can do, found out once; None where it cannot."""

    session: Session
    forget: Callable[[], None]
    point: PointDrafter | None
    reduced: ReducedVocabulary | None
    chain: ChainDrafter | None
    path: PathDrafter | None
    learner: LearnsFromTarget | None


# What a model may offer besides.


class ModelFacts(NamedTuple):
    """What is known of a model without running it."""

    weights: int = 0  # about how many a call reads; 0 where there is no network
    trained: bool = False  # whether it is a network of its own
    device: str = "cpu"
    token_cost: float = 0.1  # what one more token adds to a call, in units of a call with one token
    token_bytes: int = 0  # of a token in the KV cache; 0 where there is none
    obstacle: str = ""  # why it can be sampled plainly alone, with no draft to check or to roll back


class KnowsItself(Protocol):
    """Can say what kind of model it is."""

    @property
    def facts(self) -> ModelFacts: ...


class HasSampling(Protocol):
    """Comes with sampling settings of its own, such as those of a generation_config.json."""

    @property
    def default_sampling(self) -> Sampling: ...


class ReadsHiddenStates(Protocol):
    """A drafter whose session reads hidden states of the target's session."""

    taps: Sequence[int]  # which of transformers' `hidden_states`; none where it happens to read none

    def beside(self, session: Any) -> Session:
        """A session beside this one of the target, which keeps those hidden states."""
        ...


class Keeps(Protocol):
    """Has a place for what an engine wants to find again with the next text; it is freed with the model."""

    kept: dict[str, Any]


Contract = TypeVar("Contract")


def offers(thing: object, contract: Callable[..., Contract]) -> Contract | None:
    """The thing itself if it has everything that a contract names, else None."""
    return thing if all(hasattr(thing, name) for name in _members(contract)) else None  # type: ignore[return-value]


@cache
def _members(contract: Any) -> tuple[str, ...]:
    """Names of the methods and attributes of a Protocol."""
    parts = [part for part in contract.__mro__ if part not in (object, Protocol, Generic)]
    names = [name for part in parts for name in (*vars(part), *part.__annotations__)]
    return tuple(dict.fromkeys(name for name in names if not name.startswith("_")))


def facts(model: object) -> ModelFacts:
    """What is known of a model without running it."""
    known = offers(model, KnowsItself)
    return ModelFacts() if known is None else known.facts


def check_drafts_fit(model: object, role: str = "target") -> None:
    """Refuse a model that can be sampled plainly alone, where drafts are asked of it or for it."""
    obstacle = facts(model).obstacle
    if obstacle:
        raise DraftproofError(f"{obstacle}: " + ("use --draft none" if role == "target" else "choose another draft"))


def default_sampling(model: object) -> Sampling:
    """What a model is sampled with where the caller names no sampling; most have none, and their law stays as it is."""
    own = offers(model, HasSampling)
    return Sampling() if own is None else own.default_sampling


def taps(model: object) -> tuple[int, ...]:
    """The hidden states of the target that a drafter reads; none for most drafters."""
    reader = offers(model, ReadsHiddenStates)
    return () if reader is None else tuple(reader.taps)


def kept(model: object) -> dict[str, Any] | None:
    """What an engine keeps with a model from one text to the next, where the model has a place for it."""
    keeper = offers(model, Keeps)
    return None if keeper is None else keeper.kept


def sessions(target: Model, drafts: Sequence[Model], rows: int, capacity: int) -> tuple[Session, list[OpenSession]]:
    """A session of the target and one of each drafter; some drafters read hidden states in the target's session."""
    needed = {read for one in drafts if (read := taps(one))}
    if len(needed) > 1:
        raise DraftproofError(f"these drafters read different layers of the target ({sorted(needed)}): use one of them")
    host: Any = target
    main = _checked(target, host.session(rows, capacity, *needed))
    if drafts and offers(innermost(main), SamplesPlainly) is not None:
        raise DraftproofError(f"{innermost(main).obstacle}: use --draft none")
    if main.speaks != "logits":
        raise DraftproofError(f"{target.name!r} speaks in laws, as drafters may: a target must give logits")
    return main, draft_sessions(main, drafts, rows, capacity)


def draft_sessions(main: Session, drafts: Sequence[Model], rows: int, capacity: int) -> list[OpenSession]:
    """A session of each drafter, for the texts of the target's session `main`."""
    return [opened(_checked(one, draft_session(one, main, rows, capacity))) for one in drafts]


def draft_session(draft: Model, main: Session, rows: int, capacity: int) -> Session:
    """A drafter's session, beside the target's where it reads hidden states there."""
    reader = offers(draft, ReadsHiddenStates) if taps(draft) else None
    return draft.session(rows, capacity) if reader is None else reader.beside(main)


def opened(session: Session) -> OpenSession:
    """Find out, once, what a session can do beyond the contract."""
    forgets = offers(session, Forgets)
    return OpenSession(
        session,
        forget=_nothing if forgets is None else forgets.forget,
        point=offers(session, PointDrafter),
        reduced=offers(session, ReducedVocabulary),
        chain=offers(session, ChainDrafter),
        path=offers(session, PathDrafter),
        learner=offers(session, LearnsFromTarget),
    )


def _nothing() -> None:
    """Of a session that keeps nothing of a step there is nothing to drop."""


def forget(session: Session) -> None:
    """Drop what an unfinished step left in a session. A session that is asked in every step does so by itself, at node
    0; one that may be left out would take those nodes for the ones that it is told to commit."""
    forgets = offers(session, Forgets)
    if forgets is not None:
        forgets.forget()


def rejoin(session: Session, row: int, tokens: Sequence[int], kept: int) -> None:
    """Give a row another text; a session that can go back keeps what it has read of the beginning."""
    again = offers(session, Rejoins)
    if again is None:
        session.join(row, tokens)
    else:
        again.rejoin(row, tokens, kept)


def prefill(session: Session, row: int, count: int) -> bool:
    """Read up to `count` tokens of a row ahead; true where nothing is left to read, or it is left to the next step."""
    reader = offers(session, Prefills)
    return True if reader is None else reader.prefill(row, count)


def predict(session: Session, row: int, tokens: Sequence[int]) -> None:
    """Tell a drafter what text is expected in a row, if it can make use of that."""
    drafter = offers(session, TakesPredictions)
    if drafter is not None:
        drafter.predict(row, tokens)


def innermost(session: Any) -> Any:
    """The session behind those that stand in front of it, such as a prefix memo."""
    while offers(session, Wraps) is not None:
        session = session.session
    return session


def cache_bytes(session: Any) -> int:
    """What a drafter's session holds: its KV cache, or what a lookup has noted down."""
    if offers(session, Combines) is not None:
        return sum(map(cache_bytes, session.sessions))
    if offers(session, HasCache) is not None:
        return int(session.cache.bytes)
    return int(session.bytes) if offers(session, HasBytes) is not None else 0


def slot_bytes(session: Any, slots: int) -> int:
    """How much of a target's KV cache so many slots of each row take."""
    session = innermost(session)
    if offers(session, HasCache) is None:
        return 0
    return int(session.cache.bytes * slots // (session.cache.capacity + 1))


def check_model(model: Any, what: str) -> None:
    """Refuse what is no model, such as a bare network, or lacks a part of one."""
    if not hasattr(model, "session"):
        raise DraftproofError(
            f"{what} must be a name or a model, not {type(model).__name__}: "
            "a network of transformers becomes one as draftproof.models.hf.HFModel(network, tokenizer)"
        )
    missing = [name for name in Model.__annotations__ if not hasattr(model, name)]
    if missing:
        raise DraftproofError(
            f"{what} {type(model).__name__} has no {', '.join(missing)}: write it as draftproof.models.base says"
        )


def _checked(model: Model, session: Any) -> Any:
    """The session, if it has all that will be asked of it: some of that only when texts part or end."""
    missing = [name for name in ("speaks", "join", "copy", "extend", "commit") if not hasattr(session, name)]
    if missing:
        raise DraftproofError(
            f"the session of {model.name!r} has no {', '.join(missing)}: write it as draftproof.models.base says"
        )
    return session
