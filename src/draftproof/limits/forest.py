"""One draft for all rules: the paths of every draw and every K, scored in a single target call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, to_device

from draftproof.draft import Draft, Tree
from draftproof.draws import DRAWS
from draftproof.engine.choices import choose_draw
from draftproof.engine.eager import Guesser, beside
from draftproof.law import Array, normalise
from draftproof.rule import Verifier
from draftproof.theory import bounds
from draftproof.theory.acceptance import judged
from draftproof.verify import VERIFIERS, block

NESTED = ("iid", "distinct", "fixed")  # draws whose first k of K siblings have the law of k siblings


class RuleCase(NamedTuple):
    """A rule, the draw it is used with, and the number K of paths."""

    rule: str
    draw: str
    siblings: int


def cases(siblings: Sequence[int]) -> list[RuleCase]:
    """Every rule for every K; for K = 1 only those that differ there.

    With one path a rule for trees is the same as one for chains, except for the rules that take fixed guesses: they do
    not depend on q.
    """
    listed = []
    for K in siblings:
        tree = Tree.paths(K, 2)
        for rule in VERIFIERS.values():
            if rule.accepts(tree) and (K > 1 or rule.trees == "chain" or "fixed" in rule.draws):
                listed.append(RuleCase(rule.name, choose_draw(rule, tree, None).name, K))
    return listed


class Forest(NamedTuple):
    """The assignment of `width` paths to draws and numbers of siblings."""

    width: int
    groups: dict[tuple[str, int], range]

    @staticmethod
    def of(rule_cases: Sequence[RuleCase]) -> Forest:
        """A forest with paths for all cases; small K share the paths of large K where the draw allows it."""
        sizes: dict[tuple[str, int], int] = {}
        for case in rule_cases:
            draw = "iid" if case.siblings == 1 else case.draw  # all draws are the same for one guess, or it is fixed
            key = (draw, 0 if draw in NESTED else case.siblings)
            sizes[key] = max(sizes.get(key, 0), case.siblings)
        groups, width = {}, 0
        for key, size in sizes.items():
            groups[key] = range(width, width + size)
            width += size
        return Forest(width, groups)

    def paths(self, case: RuleCase) -> range:
        """The paths of a case."""
        draw = "iid" if case.siblings == 1 else case.draw
        return self.groups[draw, 0 if draw in NESTED else case.siblings][: case.siblings]

    def guesser(self, u: np.ndarray) -> Guesser:
        """Draw first tokens by each group's own draw, the others one by one; u [B, N] has a number per node."""

        def guess(q: Array, children: list[int], depth: int) -> Array:
            if depth:
                return DRAWS["iid"].sample(q, beside(u[:, children], q))
            drawn = []
            for (draw, _), group in self.groups.items():
                drawn.append(DRAWS[draw].sample(q, beside(u[:, [children[j] for j in group]], q)))
            return array_namespace(q).concat(drawn, axis=1)

        return Guesser(guess, by_name=False)

    def part(self, draft: Draft, paths: range, length: int | None = None) -> Draft:
        """The draft of some paths of the forest, cut to their first `length` levels."""
        deepest = draft.tree.depth[-1]
        levels = deepest if length is None else min(length, deepest)
        nodes = [0, *(1 + level * self.width + j for level in range(levels) for j in paths)]
        tree = Tree.paths(len(paths), levels)
        q = draft.q[:, nodes]
        if levels < deepest:  # the last level has no children any more
            q = array_namespace(q).concat([q[:, : tree.levels[-1].start], q[:, tree.levels[-1].start :] * 0], axis=1)
        return Draft(tree, draft.tokens[:, nodes], q, draft.p[:, nodes])


def compact(draft: Draft) -> Draft:
    """The same draft in NumPy float64, with all tokens that the drafter cannot draw merged into one.

    `stop` is the same for both: a rule never accepts such a token, and whether it stops depends on their mass alone.
    """
    tokens, q, p = (np.asarray(to_device(array, "cpu")) for array in (draft.tokens, draft.q, draft.p))
    support = np.nonzero((q > 0).any(axis=(0, 1)))[0]
    inside = p[..., support].astype(np.float64)
    rest = np.clip(p.sum(axis=-1, dtype=np.float64) - inside.sum(axis=-1), 0, None)
    small_p = normalise(np.concatenate([inside, rest[..., None]], axis=-1))
    small_q = normalise(np.concatenate([q[..., support].astype(np.float64), rest[..., None] * 0], axis=-1))
    place = np.searchsorted(support, tokens)
    place = np.where(tokens < 0, -1, place)
    place[:, 0] = 0  # the last token of the text: no rule looks at it
    return Draft(draft.tree, place, small_q, small_p)


def reached(rule: Verifier, draft: Draft, u: Any, length: int) -> Any:
    """Probability [length] that the rule accepts at least 1, 2, ... guesses, averaged over the drafts [B].

    u [B or more, ...] is for rules that select a path. For block verification its weights are used: they have the same
    mean, without the noise of later guesses.
    """
    if rule.select is not None:
        draft = rule.select(draft, u[: len(draft.tokens), : rule.uniforms(draft.tree)]).chain
    if rule.stop is block.stop:
        chances = block.weights(draft)[:, 1:].mean(axis=0)
    else:
        stop, depth = rule.stop(draft).mean(axis=0), np.array(draft.tree.depth)
        chances = np.array([stop[depth >= i].sum() for i in range(1, draft.tree.depth[-1] + 1)])
    return np.concatenate([chances, np.zeros(length)])[:length]


class Position:
    """The laws and guesses at one position; what several rules need is computed once.

    first [R, K] and select [R, ...] are uniforms. First guesses are drawn anew R times, because that needs no model.
    """

    def __init__(self, forest: Forest, draft: Draft, first: Any, select: Any) -> None:
        self.forest, self.draft, self.first, self.select = forest, draft, first, select
        root = compact(forest.part(draft, range(1), 0)._replace(q=draft.q[:, :1]))
        self.rows = root.p[:, 0], root.q[:, 0]  # [1, V] both laws after the text so far
        self._cache: dict[Any, Any] = {}

    def whole(self, case: RuleCase) -> Draft:
        """The paths of a case."""
        draft: Draft = self._once(("whole", case.draw, case.siblings), lambda: self._paths(case))
        return draft

    def limit(self, case: RuleCase) -> float:
        """The largest acceptance of any rule with the draw of the case."""
        return float(self._cut(case).limit[0])

    def judged(self, case: RuleCase) -> tuple[float, float]:
        """How often the rule of a case accepts a first guess, and what it falls short of the limit, on average."""
        stars = self._once(("stars", case.draw, case.siblings), lambda: self._stars(case))
        inside = np.repeat(self._cut(case).inside, len(self.first), axis=0)
        rule = VERIFIERS[case.rule]
        found = judged(rule, stars, inside, self.select[: len(self.first), : rule.uniforms(stars.tree)])
        return float(found.accepted.mean()), float(found.shortfall.mean())

    def _cut(self, case: RuleCase) -> bounds.Cut:
        p, q = self.rows
        cut: bounds.Cut = self._once(
            ("cut", case.draw, case.siblings), lambda: bounds.CUTS[case.draw](p, q, case.siblings)
        )
        return cut

    def _paths(self, case: RuleCase) -> Draft:
        return compact(self.forest.part(self.draft, self.forest.paths(case)))

    def _stars(self, case: RuleCase) -> Draft:
        """A batch of R drafts of K guesses for one token."""
        p, q = (np.repeat(row, len(self.first), axis=0) for row in self.rows)
        guesses = DRAWS[case.draw].sample(q, self.first[:, : case.siblings])
        tokens = np.concatenate([guesses[:, :1] * 0, guesses], axis=1)
        q = np.stack([q, *[q * 0] * case.siblings], axis=1)
        return Draft(Tree.star(case.siblings), tokens, q, np.stack([p] * (case.siblings + 1), axis=1))

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]
