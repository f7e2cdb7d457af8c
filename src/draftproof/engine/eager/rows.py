"""Convert between sessions and rules: logits to laws, keys to noise, arrays to one device and dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, is_torch_array

from draftproof.draft import Tree
from draftproof.engine.request import SampleKey
from draftproof.grammar import State
from draftproof.law import Array, sample
from draftproof.native import step as native
from draftproof.noise import Lane, uniforms
from draftproof.sampling import Context, Sampling, law


class Row(NamedTuple):
    """One context, shared by all samples whose texts are the same so far."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    sampling: Sampling
    draft_sampling: Sampling
    members: tuple[SampleKey, ...]
    step: int
    depth: int  # how deep to draft
    top_logprobs: int | None = None  # how many of the likeliest tokens are reported for each token; None: no logprobs
    state: State | None = None  # of the grammar, after the output
    room: int = 0  # how deep a draft may go where the grammar says what follows
    least: float = 0.0  # how likely the next token of a chain must be to be reached, by its drafter, to be drafted

    @property
    def last(self) -> int:
        return (self.output or self.prompt)[-1]


Masks = Mapping[int, Sequence[np.ndarray | None]]  # row -> what its grammar allows after each node [V]; None: anything


def laws(
    logits: Array,
    rows: Sequence[Row],
    tree: Tree,
    tokens: np.ndarray,
    nodes: Sequence[int],
    samplings: Sequence[Sampling],
    masks: Masks | None = None,
) -> Array:
    """The laws [B, len(nodes), V] of each node's logits, with the node's own path as history."""
    return laws_in_place(as_numpy(logits, samplings, masks), rows, tree, tokens, nodes, samplings, masks)


def laws_in_place(
    logits: Array,
    rows: Sequence[Row],
    tree: Tree,
    tokens: np.ndarray,
    nodes: Sequence[int],
    samplings: Sequence[Sampling],
    masks: Masks | None = None,
) -> Array:
    """The same as arrays of the kind that the logits are."""
    xp = array_namespace(logits)
    alike: list[list[int]] = []  # rows whose laws are made in the same way share one call
    for b, sampling in enumerate(samplings):
        group = next((group for group in alike if _alike(samplings[group[0]], sampling)), None)
        if group is None:
            alike.append([b])
        else:
            group.append(b)
    parts = []
    for group in alike:
        sampling, size = samplings[group[0]], logits.shape[-1]
        contexts, allowed = None, None
        if sampling.reads_history:
            contexts = [_history(rows[b], tokens[b], tree.path(node)) for b in group for node in nodes]
        if masks is not None and any(b in masks for b in group):
            allowed = [mask for b in group for mask in masks.get(b, [None] * len(nodes))]
        scores = logits if len(alike) == 1 else logits[group]
        flat = xp.reshape(scores, (-1, size))
        parts.append(xp.reshape(_law(flat, sampling, contexts, allowed), scores.shape))
    if len(parts) == 1:
        return parts[0]
    place = np.argsort([b for group in alike for b in group])
    return xp.concat(parts, axis=0)[place.tolist()]


def _alike(one: Sampling, other: Sampling) -> bool:
    """Whether two rows may share a call; a grammar is known by its masks alone."""
    if one == other:
        return True
    return is_plain(one) and is_plain(other) and one.temperature == other.temperature


def is_plain(sampling: Sampling) -> bool:
    """Whether a law follows from scores, temperature and the grammar's masks."""
    return sampling.is_whole and not sampling.names_tokens


def _law(
    scores: Array, sampling: Sampling, contexts: list[Context] | None, masks: list[np.ndarray | None] | None
) -> Array:
    """Compute the laws, in C where they are plain."""
    if isinstance(scores, np.ndarray) and is_plain(sampling):
        laws = native.whole_laws(scores, float(sampling.temperature), masks)  # type: ignore[arg-type]
        if laws is not None:  # else the scores are invalid, and `law` raises the error
            return laws
    everything = np.ones(scores.shape[-1], dtype=bool)
    stacked = None if masks is None else np.stack([everything if mask is None else mask for mask in masks])
    return law(scores, sampling, contexts, stacked)


def unless_silent(scores: Array, law: Callable[..., Array], masks: Masks | None = None) -> Array:
    """The laws [..., V] of a drafter's scores; zero rows where all scores are minus infinity: no guess.

    With masks of a grammar, which `law` is then given too, only the scores of allowed tokens count.
    """
    xp = array_namespace(scores)
    allowed = xp.where(beside(dense(masks, scores.shape), scores), scores, -float("inf")) if masks else scores
    silent = xp.max(allowed, axis=-1, keepdims=True) == -float("inf")
    if not bool(xp.any(silent)):
        return law(scores, masks) if masks else law(scores)
    opened = {b: [None if silent[b, i] else mask for i, mask in enumerate(some)] for b, some in (masks or {}).items()}
    scores = xp.where(silent, 0.0, scores)
    q = law(scores, opened) if opened else law(scores)
    return xp.where(silent, q * 0, q)


def dense(masks: Masks, shape: tuple[int, ...]) -> np.ndarray:
    """The masks of all rows as one array [B, n, V]."""
    whole = np.ones(shape, dtype=bool)
    for b, some in masks.items():
        for i, mask in enumerate(some):
            if mask is not None:
                whole[b, i] = mask
    return whole


def drawn(law: Array, u: Array) -> Array:
    """A token [B] from each law [B, V] by a uniform [B]: `law.sample`, in C where that is possible."""
    tokens = native.draws(law, u) if isinstance(law, np.ndarray) else None
    return sample(law, u) if tokens is None else tokens


def as_numpy(logits: Array, samplings: Sequence[Sampling], masks: Masks | None = None) -> Array:
    """View CPU logits as NumPy, which runs the many small operations of rules with less overhead than torch.

    Logits for processors stay in torch, which processors expect. Those of a device without float64, in which tokens
    are drawn, come to the CPU; so do those of texts under a grammar, whose masks are there.
    """
    if is_torch_array(logits) and logits.device.type == "mps":
        logits = logits.cpu()
    if is_torch_array(logits) and logits.is_cuda and masks:
        logits = logits.float().cpu()
    if not is_torch_array(logits) or logits.device.type != "cpu" or logits.dtype == array_namespace(logits).bfloat16:
        return logits
    return logits if any(sampling.processors for sampling in samplings) else logits.numpy()


def _history(row: Row, tokens: np.ndarray, path: Sequence[int]) -> Context:
    """The history of a node; tokens that were not drawn are skipped (their rows are never used)."""
    return Context(row.prompt, row.output + tuple(int(tokens[n]) for n in path if tokens[n] >= 0))


def noise(names: Sequence[tuple[SampleKey, int]], lane: Lane, count: int) -> np.ndarray:
    """Uniforms [B, count], keyed by each sample's seed, request and step."""
    u = native.uniforms([(*member, step) for member, step in names], lane, count)
    if u is not None:
        return u
    seed, request, step = np.array([(*member, step) for member, step in names], dtype=np.int64).T
    return np.asarray(uniforms(seed, request, step, lane, count))


def beside(array: Array, like: Array) -> Array:
    """An array of any kind in the namespace, device and (for laws) precision of `like`."""
    xp = array_namespace(like)
    array = xp.asarray(array, device=like.device)
    return (
        xp.astype(array, like.dtype, copy=False)
        if array.ndim == 3 and xp.isdtype(array.dtype, "real floating")
        else array
    )


def together(p: Array, laws: Sequence[Array]) -> tuple[Array, list[Array]]:
    """p and the draft's laws on one device, in the widest of their precisions.

    A rule must see the very numbers that guesses were drawn from, so that comparisons, such as which token is on top,
    have the same result.
    """
    xp = array_namespace(p)
    moved = [xp.asarray(q, device=p.device) for q in laws]
    widest = xp.result_type(p, *moved)
    return xp.astype(p, widest, copy=False), [xp.astype(q, widest, copy=False) for q in moved]


def on_host(array: Array) -> np.ndarray:
    """An array of any kind as NumPy has it."""
    return np.asarray(array.cpu() if is_torch_array(array) else array)


def numbers(array: Array) -> Any:
    """Python numbers of an array on any device."""
    return array.tolist()
