"""The three contracts of a rule, and the registry that finds one by its name.

A Verifier is a law and exact, a Coupling shares noise between drafter and target and is exact, a Lossy rule gives up
exactness and accounts for it. All of them declare which trees and draws they take, so that callers need not distinguish
the three kinds.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias, TypeVar

from draftproof.draft import Draft, Selection, Tree
from draftproof.errors import DraftproofError, nearest
from draftproof.law import Array


def accepts(trees: str, tree: Tree) -> bool:
    """Whether a tree has the shape that "chain", "star", "paths" or "any" stands for."""
    match trees:
        case "chain":
            return tree.is_chain
        case "star":
            return tree.is_star or tree.size == 1
        case "paths":
            return tree == Tree.paths(len(tree.children(0)), tree.depth[-1])
        case _:
            return True


class Verifier(NamedTuple):
    """A verification algorithm as a law: where the accepted path ends, and what is emitted after it.

    Most rules sum their inner randomness in closed form. Where that is impossible, `select` takes uniforms and reduces
    the tree to one path, and `stop` and `next` are then those of a chain rule on the selected path.
    """

    name: str
    summary: str
    paper: str
    draws: frozenset[str]  # ways of drawing siblings it is exact for (draftproof.draws)
    trees: str  # "chain", "star", "paths" or "any"
    stop: Callable[[Draft], Array]  # [B, N] law of the last accepted node; node 0 = nothing accepted
    next: Callable[[Draft, Array], Array]  # [B, V] law of the token emitted after node [B]
    dominates: frozenset[str] = frozenset()  # verifiers whose expected accepted length it never falls below
    select: Callable[[Draft, Array], Selection] | None = None  # (draft, u [B, uniforms(tree)]) -> Selection
    uniforms: Callable[[Tree], int] = lambda tree: 0  # how many numbers `select` needs
    cells: Callable[[Draft], list[tuple[Array, Any]]] | None = None  # (u, weight) that integrate `select` for one draft
    mixes: bool = False  # exact also where siblings come from several drafters (Draft.own)

    @property
    def exact(self) -> bool:
        return True

    @property
    def notice(self) -> str:
        return ""

    def accepts(self, tree: Tree) -> bool:
        """Whether the algorithm is defined on this shape of draft."""
        return accepts(self.trees, tree)


class Coupling(NamedTuple):
    """A way of drawing that guesses and emitted tokens share; noise [B, streams, V] comes from `noise.races`."""

    name: str
    summary: str
    paper: str
    streams: int  # independent races at each position; all of them shape the text, however many siblings are drafted
    draft: Callable[[Array, Array, int], Array]  # (q [B, V], noise, K siblings) -> tokens [B, K], -1 where none is left
    emit: Callable[[Array, Array], Array]  # (p [B, V], noise) -> token [B]

    @property
    def exact(self) -> bool:
        return True

    @property
    def notice(self) -> str:
        return ""

    @property
    def trees(self) -> str:
        return "any"

    @property
    def draws(self) -> frozenset[str]:
        """None: a coupling draws the guesses itself, from the shared noise."""
        return frozenset()

    @property
    def mixes(self) -> bool:
        return False

    def accepts(self, tree: Tree) -> bool:
        """Any shape: it changes how many target calls a text takes, never the text."""
        return True


class Lossy(NamedTuple):
    """A rule whose output does not follow the target's law. Chains only; tokens are drawn from q."""

    name: str
    setting: str  # its parameters as text
    stop: Callable[[Draft], Array]  # [B, N] law of the last kept node
    next: Callable[[Draft, Array], Array]  # [B, V] law of the token emitted after node [B]
    emitted: Callable[[Draft], Array]  # [B, N, V] law of the token after each node, kept or not
    account: Callable[[Draft], Array]  # [B, N] total variation between `emitted` and p: the cost of a token there

    @property
    def notice(self) -> str:
        """The warning that every output and trace made with this rule carries."""
        return f"not exact: {self.name} ({self.setting}) changes the target's law; its total variation is accounted for"

    @property
    def exact(self) -> bool:
        return False

    @property
    def trees(self) -> str:
        return "chain"

    @property
    def draws(self) -> frozenset[str]:
        """Tokens drawn from q itself."""
        return frozenset({"iid"})

    @property
    def mixes(self) -> bool:
        return False

    def accepts(self, tree: Tree) -> bool:
        """Chains only."""
        return tree.is_chain


Rule: TypeAlias = Verifier | Coupling | Lossy
Entry = TypeVar("Entry")


class Registry(dict[str, Entry]):
    """Entries by name; an unknown name raises an error that suggests the nearest one."""

    def __init__(self, kind: str, hint: str = "") -> None:
        """`hint`: where to look if no name is near; else all names are listed."""
        super().__init__()
        self.kind, self.hint = kind, hint

    def find(self, name: str) -> Entry:
        """The entry of that name, or an error that suggests the nearest."""
        if name in self:
            return self[name]
        near = nearest(str(name), self)
        hint = f"did you mean {near!r}?" if near else self.hint or f"choose from {', '.join(self)}."
        raise DraftproofError(f"unknown {self.kind} {name!r}: {hint}")


def import_all(package: str, folder: Iterable[str]) -> None:
    """Import all public modules of a package, so that each can register itself."""
    for module in sorted(m.name for m in pkgutil.iter_modules(folder) if not m.name.startswith("_")):
        import_module(f"{package}.{module}")
