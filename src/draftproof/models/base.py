"""Session: a model with a memory of the text so far. Target, small model, n-gram and table are all Sessions.

A session serves B rows of text at once. In each, node 0 of a draft tree is the last committed token; `extend` asks for
what follows some nodes, `commit` keeps the accepted path and drops the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from draftproof.draft import Tree
from draftproof.errors import DraftproofError
from draftproof.law import Array


class Session(Protocol):
    """What the engine asks of target and drafter alike."""

    speaks: Literal["logits", "law"]  # what `extend` returns; a zero row of a law means: no guess here

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
    tokenizer: Any  # of transformers, or None for a model of bare token ids

    def session(self, rows: int, capacity: int) -> Session:
        """Room for `rows` texts of up to `capacity` tokens each, a draft tree included."""
        ...


def sessions(target: Model, drafts: Sequence[Model], rows: int, capacity: int) -> tuple[Session, list[Session]]:
    """A session of the target and one of each drafter; one with `taps` reads hidden states in the target's session."""
    taps = {tuple(found) for one in drafts if (found := getattr(one, "taps", ()))}
    if len(taps) > 1:
        raise DraftproofError(f"these drafters read different layers of the target ({sorted(taps)}): use one of them")
    host: Any = target
    main = _checked(target, host.session(rows, capacity, *taps))
    if main.speaks != "logits":
        raise DraftproofError(f"{target.name!r} speaks in laws, as drafters may: a target must give logits")
    return main, guests(main, drafts, rows, capacity)


def guests(main: Session, drafts: Sequence[Model], rows: int, capacity: int) -> list[Session]:
    """A session of each drafter, for the texts of the target's session `main`."""
    some: list[Any] = list(drafts)
    opened = (one.beside(main) if getattr(one, "taps", ()) else one.session(rows, capacity) for one in some)
    return [_checked(one, session) for one, session in zip(some, opened, strict=True)]


def forget(session: Any) -> None:
    """Drop what a step that was given up left in a session; one that keeps nothing of a step need not know of this.

    A session that is asked in every step does so by itself, at node 0. Whoever may leave it out calls this: else it
    would take the nodes of the step that was given up for those of the step that it is told to commit. A session of
    other sessions passes it on.
    """
    drop = getattr(session, "forget", None)
    if drop is not None:
        drop()


def _checked(model: Model, session: Any) -> Any:
    """The session, if it has all that will be asked of it: some of that only when texts part or end."""
    missing = [name for name in ("speaks", "join", "copy", "extend", "commit") if not hasattr(session, name)]
    if missing:
        raise DraftproofError(
            f"the session of {model.name!r} has no {', '.join(missing)}: write it as draftproof.models.base says"
        )
    return session
