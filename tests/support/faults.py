"""Engines with one deliberate fault each, on small Markov tables: what an audit must find, and what it must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from draftproof import verify
from draftproof.audit.rows import ReadTranscript, grammar_masks, under
from draftproof.audit.run import Auditor
from draftproof.audit.transcripts import Transcript
from draftproof.draft import Draft, Tree
from draftproof.law import sample
from draftproof.models.table import TableModel
from draftproof.sampling import Context, Sampling


class World(NamedTuple):
    """A target and a draft that look one token back."""

    p: np.ndarray  # [V, V] logits of the target
    q: np.ndarray  # [V, V] of the draft

    @property
    def size(self) -> int:
        return len(self.p)


def world(seed: int, size: int, closeness: float = 1.0) -> World:
    """Normal scores; the draft's are the target's with noise added."""
    chance = np.random.default_rng(seed)
    p = chance.normal(size=(size, size)) * 1.5
    return World(p, p + chance.normal(size=(size, size)) * closeness)


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def draw(weights: np.ndarray, u: float) -> int:
    """Inverse transform in the order of ids."""
    total = np.cumsum(weights)
    return int(min(np.searchsorted(total, u * total[-1], side="right"), len(weights) - 1))


def auditor(world: World, draft: bool = True, steps: bool = False, tolerance: float = 0.0) -> Auditor:
    return Auditor(_table(world), draft, steps, tolerance)


def _table(world: World) -> TableModel:
    return TableModel(lambda context: np.full(world.size, 1 / world.size))


def rows_of(world: World, transcript: Transcript, draft: bool = True) -> ReadTranscript:
    """What both models of the world say to a transcript."""
    before = np.array([transcript.prompt[-1], *transcript.output[:-1]])
    history = None
    if transcript.sampling.reads_history:
        history = [Context(transcript.prompt, transcript.output[:t]) for t in range(len(transcript.output))]
    masks = grammar_masks(transcript, _table(world))
    q = under(world.q[before], transcript.sampling, history, masks) if draft else None
    return ReadTranscript(transcript, world.p[before], q, masks)


def feed(book: Auditor, world: World, *transcripts: Transcript, draft: bool = True) -> np.ndarray:
    """Audit transcripts with the world's own rows; what each token added."""
    return book.add([rows_of(world, transcript, draft) for transcript in transcripts])


# Engines


class Rule(NamedTuple):
    """Token verification in four parts, so that a test can spoil one of them."""

    target: Callable[[np.ndarray, np.ndarray, bool], np.ndarray] = lambda scores, counts, tested: softmax(scores)
    guess: Callable[[np.ndarray, float], int] = draw
    accept: Callable[[float, float], float] = lambda p, q: p / q
    replace: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda p, q: np.maximum(p - q, 0)


def penalised(scores: np.ndarray, counts: np.ndarray, tested: bool) -> np.ndarray:
    """Presence and frequency penalties, forgotten where a guess is tested."""
    return softmax(scores if tested else scores - 0.3 * (counts > 0) - 0.02 * counts)


PENALTIES = Sampling(presence_penalty=0.3, frequency_penalty=0.02)


def plain(world: World, length: int, seed: int, heat: float = 1.0, laws: np.ndarray | None = None) -> Transcript:
    """No draft: p itself, at another temperature if asked, or other laws altogether."""
    laws = softmax(world.p / heat) if laws is None else laws
    u = np.random.default_rng(seed).random(length)
    text = [0]
    for t in range(length):
        text.append(draw(laws[text[-1]], u[t]))
    return Transcript((0,), tuple(text[1:]), Sampling())


EXACT, DEFAULT = Rule(), Sampling()


def chain(
    world: World, length: int, seed: int, rule: Rule = EXACT, sampling: Sampling = DEFAULT, guesses: int = 4
) -> Transcript:
    """One guess after another by `rule`, the text ending at `length`."""
    chance = np.random.default_rng(seed)
    counts = np.zeros(world.size)
    q_laws = softmax(world.q)
    last, output, flags = 0, [], []
    while len(output) < length:
        accepted = True
        for left in range(guesses, -1, -1):
            p = rule.target(world.p[last], counts, left > 0)
            if left:
                q = q_laws[last]
                x = rule.guess(q, chance.random())
                accepted = chance.random() < rule.accept(p[x], q[x])
                last = x if accepted else draw(rule.replace(p, q), chance.random())
            else:
                accepted, last = False, draw(p, chance.random())
            output.append(last)
            flags.append(accepted)
            counts[last] += 1
            if not accepted:
                break
    return Transcript((0,), tuple(output[:length]), sampling, tuple(flags[:length]))


def blocks(
    world: World, texts: int, length: int, seed: int, *, by_position: bool, guesses: int = 3
) -> list[Transcript]:
    """Block verification of many texts side by side; a guess's noise is named by its position alone, or is fresh."""
    rule, tree = verify.get("block"), Tree.chain(guesses)
    chance = np.random.default_rng(seed)
    p_laws, q_laws = softmax(world.p), softmax(world.q)
    named = chance.random((texts, length + guesses + 1))
    output: list[list[int]] = [[] for _ in range(texts)]
    flags: list[list[bool]] = [[] for _ in range(texts)]
    going = np.arange(texts)
    while len(going):
        tokens = np.zeros((len(going), tree.size), dtype=np.int64)
        tokens[:, 0] = [(output[b] or [0])[-1] for b in going]
        place = np.array([len(output[b]) for b in going])
        for i in range(guesses):
            u = named[going, place + i] if by_position else chance.random(len(going))
            tokens[:, i + 1] = sample(q_laws[tokens[:, i]], u)
        q = q_laws[tokens] * (np.arange(tree.size) < guesses)[None, :, None]
        draft = Draft(tree, tokens, q, p_laws[tokens])
        node = sample(rule.stop(draft), chance.random(len(going)))
        emitted = sample(rule.next(draft, node), chance.random(len(going)))
        for b, row, last, token in zip(going, tokens, node, emitted, strict=True):
            output[b] += [*row[1 : last + 1].tolist(), int(token)]
            flags[b] += [True] * int(last) + [False]
        going = np.array([b for b in going if len(output[b]) < length])
    return [
        Transcript((0,), tuple(o[:length]), Sampling(), tuple(f[:length])) for o, f in zip(output, flags, strict=True)
    ]
