"""What is chosen where the caller leaves it open: the rule for a draft, the tuner of its shape, how it is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from draftproof import couple
from draftproof import lossy as lossy_rules
from draftproof import verify as verifiers
from draftproof.draft import Tree
from draftproof.draws import DRAWS, Draw
from draftproof.engine.trace import shape_name
from draftproof.engine.tuning import LONGEST, Auto, Fixed, Tuner, tuned
from draftproof.errors import DraftproofError
from draftproof.rule import Rule
from draftproof.sampling import Sampling

CHAIN = Tree.chain(5)  # where no tuner chooses the length

# Where no rule is named, the first of these that takes the draft verifies it. Of one path block verification accepts
# the most, of separate paths csbv does, and traversal takes any tree (docs/acceptance.md). The others are for ways of
# drawing, and for several drafters, that these three do not take.
PREFERRED = ("block", "csbv", "traversal", "sbv", "sbv_plan", "top_plus_one", "recursive", "match")
PREFERRED_ON_GPU = ("block", "traversal", *PREFERRED[3:])  # csbv does not fit into a CUDA graph


def asked_shape(tree: Tree | Auto | str | None) -> Tree | None:
    """The shape that the caller asks for; None where it is tuned."""
    if isinstance(tree, Auto):
        return tree.example
    if isinstance(tree, str) and tree != "auto":
        return Tree.parse(tree)
    return tree if isinstance(tree, Tree) else None


def chosen_reason(tree: Tree | Auto | str | None, draw: str | None, drafters: int) -> str:
    """What of a draft the default rule does not take, as the summary names it."""
    if drafters > 1:
        return "several drafters"
    if isinstance(tree, Tree):
        return shape_name(tree)
    return tree if isinstance(tree, str) and tree != "auto" else f"{draw} draws" if draw else "trees"


def choose_rule(verify: str, lossy: str | None) -> Rule:
    """The exact rule of that name, or the lossy one if given; for "auto" the default rule."""
    if not isinstance(verify, str):
        raise DraftproofError(f"verify must be the name of a rule, such as 'block', not {verify!r}")
    if not isinstance(lossy, str | None):
        raise DraftproofError(f"lossy must be the name of a rule, such as 'lenience:0.8', not {lossy!r}")
    if lossy is not None:
        if verify != "auto":
            raise DraftproofError(f"verify={verify!r} and lossy={lossy!r} name different rules: give only one of them")
        return lossy_rules.get(lossy)
    name = PREFERRED[0] if verify == "auto" else verify
    return couple.COUPLINGS[name] if name in couple.COUPLINGS else verifiers.get(name)


def best_rule(shape: Tree | None, draw: str | None = None, drafters: int = 1, device: str = "cpu") -> Rule:
    """The preferred rule for drafts of this shape (None: tuned), so drawn, by so many drafters.

    >>> best_rule(Tree.chain(5)).name, best_rule(Tree.paths(4, 5)).name, best_rule(Tree.best(20, 5)).name
    ('block', 'csbv', 'traversal')
    """
    order = PREFERRED_ON_GPU if device == "cuda" else PREFERRED
    return next(_taking(order, shape or CHAIN, draw, drafters), verifiers.get(PREFERRED[0]))


def _taking(order: Sequence[str], shape: Tree, draw: str | None = None, drafters: int = 1) -> Iterator[Rule]:
    """The rules that take such drafts."""
    for rule in map(verifiers.get, order):
        if rule.accepts(shape) and (draw is None or draw in rule.draws) and (drafters < 2 or rule.mixes):
            yield rule


def choose_tuner(
    rule: Rule, drafts: Sequence[Any], tree: Tree | Auto | str | None, repeatable: bool, tempers: bool
) -> tuple[Tuner, bool]:
    """The tuner for a tree or "auto", and whether each request tunes its own length within it.

    To be repeatable, a text must not depend on the clock or on its neighbours. A chain's nodes have the same noise
    however long it is, so requests may cut it as they like; shapes of other kinds are then fixed unless "auto" is
    given. The text of a coupling does not depend on the shape at all.
    """
    if not drafts:
        return Fixed(Tree.chain(0)), False
    if isinstance(tree, str) and tree != "auto":
        tree = Tree.parse(tree)
    if isinstance(tree, Tree):
        return Fixed(tree), False
    if isinstance(tree, Auto):
        return tree, False
    if tree not in (None, "auto"):
        raise DraftproofError(f"unknown tree {tree!r}: use a Tree, such as Tree.chain(5), or 'auto'")
    if repeatable and rule.trees == "chain":
        return Fixed(Tree.chain(LONGEST)), True
    if repeatable and tree is None and rule.name not in couple.COUPLINGS:
        return Fixed(CHAIN), False
    return tuned(rule.trees, drafts, tempers), False


def may_temper(rule: Rule, sampling: Sampling) -> bool:
    """Whether the draft's temperature may be tuned: exact rules allow it, and there is a temperature to change."""
    return rule.exact and not callable(sampling.temperature) and sampling.temperature > 0


def choose_draw(rule: Rule, tree: Tree, name: str | None) -> Draw:
    """The named draw, or the one with the most acceptance among those the rule is exact for."""
    tree.check()
    if rule.name in couple.COUPLINGS:
        if name is not None:
            raise DraftproofError(f"{rule.name!r} draws its draft tokens from shared noise: leave `draw` out")
        return DRAWS["iid"]  # not used: the coupling draws
    if not rule.accepts(tree):
        others = ", ".join([other.name for other in _taking(PREFERRED, tree, name)][:3])
        raise DraftproofError(
            f"verifier {rule.name!r} works on {rule.trees} drafts only: choose such a tree, or leave the rule out or "
            f"name one for this tree ({others})"
        )
    if name is None:
        order = ("iid", "distinct", "plan", "top", "fixed")  # all but the last are the same on a chain
        order = order if tree.is_chain else ("plan", "distinct", "top", "iid", "fixed")
        name = next(draw for draw in order if draw in rule.draws)
    if name not in rule.draws:
        exact = ", ".join(sorted(rule.draws))
        raise DraftproofError(f"verifier {rule.name!r} is not exact for {name!r} draws: use {exact}")
    return DRAWS[name]
