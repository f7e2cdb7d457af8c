"""Noise used again between steps: how many tokens an audit needs to find it in a vocabulary of any size.

`python -m benchmarks.reused_noise` reads laws of SmolLM2 and of its head (49,152 tokens, of which the likeliest keep a
column of their own), writes texts with them by block verification, and prints the log wealth of the bets that concern
the step. The fault: the test of a draft token has a uniform that is named by its position, so a position that is
drafted again after a rejection is tested with the same number again. In these texts the last token chooses the laws.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from draftproof import verify
from draftproof.audit.alternatives import Alternative, AuditRows, alternatives
from draftproof.audit.cells import Cells, Entries, by_draft, by_favourite, tables
from draftproof.audit.evidence import BLOCK, Evidence, Observed
from draftproof.audit.keys import DraftLength, keys
from draftproof.audit.payoffs import payoffs
from draftproof.audit.transcripts import Transcript
from draftproof.draft import Draft, Tree
from draftproof.law import residual, sample
from draftproof.sampling import Sampling

COLUMNS = 1024  # of a law; the last one is the rest of the vocabulary
CHUNK = 2000  # rows that are looked at together
ALARM = math.log(100 * 100)


class Laws(NamedTuple):
    """Laws of target and drafter [C, V]; after token y those of row y modulo C hold."""

    p: np.ndarray
    q: np.ndarray


def smollm2(texts: int, length: int) -> Laws:
    """Laws of SmolLM2 and its head at the tokens of a few texts."""
    from benchmarks.audit import QUESTIONS
    from draftproof.audit import collect
    from draftproof.audit.rows import read
    from draftproof.engine.arguments import encode
    from draftproof.models import drafter, load
    from draftproof.sampling import law

    target = load("smollm2", dtype="int8")
    prompts = [encode(target, question) for question in QUESTIONS[:texts]]
    made = list(collect.engine(target, prompts, Sampling(), max_new_tokens=length, seed=1))
    p, q = [], []
    for text in read(made, target, drafter("head", target)):
        wide = np.asarray(law(np.asarray(text.logits), Sampling())), np.asarray(text.draft)
        top = np.argsort(-wide[0] - wide[1], axis=1)[:, : COLUMNS - 1]
        narrow = [np.take_along_axis(some, top, axis=1).astype(float) for some in wide]
        for rows, some in zip((p, q), narrow, strict=True):
            rows.append(np.concatenate([some, np.maximum(1 - some.sum(axis=1, keepdims=True), 0)], axis=1))
    pair = (np.concatenate(rows) for rows in (p, q))
    return Laws(*(rows / rows.sum(axis=1, keepdims=True) for rows in pair))


def zipf(contexts: int, size: int, noise: float) -> Laws:
    """Laws in the manner of Zipf, each with another order of tokens; the draft's scores are off by `noise`."""
    chance = np.random.default_rng(0)
    rank = np.stack([chance.permutation(size) for _ in range(contexts)])
    p = -chance.uniform(1.0, 2.2, size=(contexts, 1)) * np.log(1 + rank)
    weights = (np.exp(scores) for scores in (p, p + noise * chance.normal(size=p.shape)))
    return Laws(*(rows / rows.sum(axis=1, keepdims=True) for rows in weights))


def written(laws: Laws, texts: int, length: int, guesses: int, seed: int, *, again: bool) -> list[Transcript]:
    """Texts by block verification; with `again` the test of a position has the same uniform whenever it is drafted."""
    rule, tree, chance = verify.get("block"), Tree.chain(guesses), np.random.default_rng(seed)
    named = chance.random((texts, length + guesses))
    output: list[list[int]] = [[] for _ in range(texts)]
    flags: list[list[bool]] = [[] for _ in range(texts)]
    going = np.arange(texts)
    while len(going):
        place = np.array([len(output[b]) for b in going])
        tokens = np.zeros((len(going), tree.size), dtype=np.int64)
        tokens[:, 0] = [(output[b] or [0])[-1] for b in going]
        for i in range(guesses):
            tokens[:, i + 1] = sample(laws.q[tokens[:, i] % len(laws.q)], chance.random(len(going)))
        context = tokens % len(laws.p)
        draft = Draft(tree, tokens, laws.q[context] * (np.arange(tree.size) < guesses)[None, :, None], laws.p[context])
        stop, u = rule.stop(draft), chance.random(tokens.shape)
        if again:
            u[:, 1:] = named[going[:, None], place[:, None] + np.arange(guesses)]
        taken = u * np.cumsum(stop, axis=1) < stop  # the scan from the back stops at a node, given that it comes there
        taken[:, 0] = True
        node = guesses - np.argmax(taken[:, ::-1], axis=1)
        emitted = sample(rule.next(draft, node), chance.random(len(going)))
        for b, row, last, token in zip(going, tokens, node, emitted, strict=True):
            output[b] += [*row[1 : last + 1].tolist(), int(token)]
            flags[b] += [True] * int(last) + [False]
        going = np.array([b for b in going if len(output[b]) < length])
    both = zip(output, flags, strict=True)
    return [Transcript((0,), tuple(o[:length]), Sampling(), tuple(f[:length])) for o, f in both]


class StepBets(NamedTuple):
    """The bets that concern the draft and the step, after some texts."""

    evidence: Evidence
    found: dict[str, int]  # tokens after which a bet would have raised the alarm with a hundredth of the capital

    @property
    def won(self) -> dict[str, float]:
        """Log wealth of the best bet of each description."""
        return best(self.evidence)


def best(evidence: Evidence) -> dict[str, float]:
    """Log wealth of the best bet of each description."""
    wealth: dict[str, float] = {}
    for bet, log in zip(evidence.bets, evidence.wealth, strict=True):
        wealth[bet.says] = max(wealth.get(bet.says, -np.inf), float(log))
    return wealth


def step_bets(laws: Laws, texts: Sequence[Transcript]) -> StepBets:
    """Make those bets, and no others, on these texts."""
    named = [a for a in alternatives(draft=True, steps=True) if a.family == "noise used again"]
    learned = [t for t in tables(laws.p.shape[1], draft=True, steps=True) if t.cells in ("draft", "favourite")]
    lengths, evidence = DraftLength(), Evidence(named, learned)
    again = np.concatenate([lengths.again(text) for text in texts])
    before = np.concatenate([[0, *text.output[:-1]] for text in texts]) % len(laws.p)
    rows = np.stack([before, np.concatenate([text.output for text in texts]), again])
    different, which = np.unique(rows, axis=1, return_inverse=True)
    parts = [_looked_at(laws, named, different[:, i : i + CHUNK]) for i in range(0, different.shape[1], CHUNK)]
    ratio, cell, mass = (np.concatenate(some)[which.ravel()] for some in zip(*parts, strict=True))
    splits = {"draft": Cells(cell, mass), "favourite": by_favourite(Cells(cell, mass))}
    starts = np.cumsum([0, *(len(text.output) for text in texts)])
    made = []
    for text, (start, stop) in zip(texts, pairwise(starts), strict=True):
        own = {name: Cells(*(array[start:stop] for array in split)) for name, split in splits.items()}
        made.append(keys(text, own, None))
    entries = [Entries(np.concatenate([k[table.key] for k in made]), *splits[table.cells]) for table in learned]
    observed = Observed(ratio, ratio * 0, entries, np.zeros(len(ratio), dtype=bool))
    found: dict[str, int] = {}
    for start in range(0, len(ratio), BLOCK):
        evidence.add(observed.part(start, start + BLOCK))
        for says, log in best(evidence).items():
            if log >= ALARM:
                found.setdefault(says, evidence.count)
    return StepBets(evidence, found)


def _looked_at(laws: Laws, named: Sequence[Alternative], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Payoffs, cells of q/p and their masses, for rows of context, token, and whether the position was drafted."""
    context, y, again = rows
    p, q = laws.p[context], laws.q[context]
    made = AuditRows(p, y, seen=p < 0, q=q, again=again > 0, rejected=residual(p, q))
    return np.stack([pay.ratio for pay in payoffs(named, made, 0.0)], axis=1), *by_draft(made)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reused_noise", description=__doc__)
    parser.add_argument("--laws", choices=("smollm2", "zipf"), default="smollm2")
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--length", type=int, default=100)
    parser.add_argument("--guesses", type=int, default=4)
    parser.add_argument("--exact", action="store_true", help="fresh noise at every step")
    options = parser.parse_args()
    laws = zipf(24, 2048, 1.0) if options.laws == "zipf" else smollm2(8, 48)
    texts = written(laws, options.texts, options.length, options.guesses, 1, again=not options.exact)
    flags = [flag for text in texts for flag in text.accepted or ()]
    made = step_bets(laws, texts)
    print(f"{len(flags)} tokens, {np.mean(flags):.0%} accepted; log wealth, tokens until found, bet:")
    for words, log in sorted(made.won.items(), key=lambda pair: -pair[1]):
        print(f"{log:8.1f} {made.found.get(words, '-'):>8}  {words}")


if __name__ == "__main__":
    main()
