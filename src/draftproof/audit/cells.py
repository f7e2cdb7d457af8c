"""Learned alternatives: split the vocabulary into a few cells and compare how often each came with what was expected.

A table has one row for each key, something known before the token is drawn (the cell of the token before, whether that
was an accepted guess, the token of another sample of the same prompt), and one column for each cell. Its alternative is
p tilted by (observed + k) / (expected + k) in each entry, from earlier tokens alone, so it is a law given the past and
the bet on it is fair. Pairs and triples of tokens, dependence on the step and on other samples are all tables.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from array_api_compat import array_namespace

from draftproof.audit.alternatives import AuditRows
from draftproof.law import Array, at

RANKS, QUARTERS, RATIOS = 8, 4, (0.25, 0.5, 1.0, 2.0, 4.0)
SMALL = 32  # up to this many tokens, each is a cell of its own
STEP = 5  # keys for the position in the step: 0, 1, 2, 3 or more, unknown
BEFORE = 6  # keys for the accepted guesses of the step before: 0, 1, 2, 3, 4 or more, none


class Cells(NamedTuple):
    """One way of splitting the vocabulary into cells, at each of n tokens."""

    cell: np.ndarray  # [n] cell of the emitted token
    mass: np.ndarray  # [n, J] of each cell under p; a zero row where there is no bet


class Table(NamedTuple):
    """One learned alternative: which cells are counted by which key."""

    says: str
    cells: str  # name of a split
    key: str  # name of a key
    keys: int
    size: int  # number of cells


class Entries(NamedTuple):
    """Key, cell and cell masses of n tokens for one table."""

    key: np.ndarray  # [n]
    cell: np.ndarray  # [n]
    mass: np.ndarray  # [n, J]


def tables(vocabulary: int, draft: bool, steps: bool) -> tuple[Table, ...]:
    """The tables for a vocabulary of this size, with or without a draft's law and known steps."""
    token = vocabulary if vocabulary <= SMALL else 2
    listed = [
        Table("likely and unlikely tokens come in wrong shares", "rank", "none", 1, RANKS),
        Table("a token's rank depends on the rank before", "rank", "rank", RANKS + 1, RANKS),
        Table("consecutive tokens share their noise (pairs)", "quarter", "quarter", QUARTERS + 1, QUARTERS),
        Table("consecutive tokens share their noise (triples)", "quarter", "quarters", (QUARTERS + 1) ** 2, QUARTERS),
        Table("what was said before comes in wrong shares", "seen", "none", 1, 3),
        Table("some tokens come too often or too rarely", "token", "none", 1, token),
        Table("samples of one prompt are dependent (same tokens)", "twin", "twin", 3, 2),
        Table("samples of one prompt are dependent (same noise)", "quarter", "twin quarter", QUARTERS + 1, QUARTERS),
    ]
    if vocabulary <= SMALL:
        listed.append(Table("pairs of tokens come in wrong shares", "token", "token", vocabulary + 1, token))
    if vocabulary <= SMALL // 2:
        listed.append(Table("triples of tokens come in wrong shares", "token", "tokens", (vocabulary + 1) ** 2, token))
    if draft:
        size = len(RATIOS) + 1
        listed.append(Table("what the draft favours comes in wrong shares", "draft", "none", 1, size))
        listed.append(Table("the draft's favour depends on that before", "draft", "draft", size + 1, size))
    if steps:
        listed.append(Table("ranks depend on the position in the step", "rank", "step", STEP, RANKS))
        listed.append(Table("the noise depends on the position in the step", "quarter", "step quarter", 25, QUARTERS))
        listed.append(Table("repetition depends on the position in the step", "seen", "step", STEP, 3))
        if vocabulary <= SMALL:
            words = "tokens depend on the one before and on the position in the step"
            listed.append(Table(words, "token", "step token", STEP * (vocabulary + 1), token))
        if draft:
            listed.append(Table("the draft's favour depends on the position in the step", "draft", "step", STEP, size))
            words = "how often the draft's favourites come depends on the step before"
            listed.append(Table(words, "favourite", "two steps", STEP * BEFORE, 2))
    return tuple(listed)


# Ways of splitting: the cell of y, and the mass of every cell under p


def by_rank(rows: AuditRows) -> Cells:
    """Likeliest token, next two, next four, ... Of equals the smaller id comes first."""
    xp = array_namespace(rows.p)
    here = at(rows.p, rows.y)[:, None]
    tie = (rows.p == here) & (_columns(rows) < rows.y[:, None])
    rank = numbers(xp.sum(xp.astype((rows.p > here) | tie, xp.int64), axis=-1))
    edges = [2**b - 1 for b in range(RANKS)] + [rows.p.shape[-1]]
    mass = [xp.sum(rows.ordered[:, low:high], axis=-1) for low, high in pairwise(edges)]
    return Cells(np.minimum(np.log2(rank + 1).astype(int), RANKS - 1), _beside(mass))


def by_quarter(rows: AuditRows) -> Cells:
    """Quarter of the unit interval in which inverse transform sampling, in order of ids, finds the token.

    An engine that uses a random number twice draws tokens whose quarters are dependent.
    """
    xp = array_namespace(rows.p)
    middle = xp.cumulative_sum(rows.p, axis=-1) - rows.p / 2
    cell = sum(xp.astype(middle >= edge / QUARTERS, xp.int64) for edge in range(1, QUARTERS))
    return _cut(rows.p, cell, rows.y, QUARTERS)


def by_history(rows: AuditRows, last: Array) -> Cells:
    """New tokens, tokens of the text so far, or the last token [R] again."""
    xp = array_namespace(rows.p)
    same = _ids(rows) == last[:, None]
    return _cut(rows.p, xp.astype(rows.seen, xp.int64) + xp.astype(same, xp.int64), rows.y, 3)


def by_draft(rows: AuditRows) -> Cells:
    """Bins of q/p: how much likelier a token is under the draft than under the target."""
    xp = array_namespace(rows.p)
    cell = sum(xp.astype(rows.q > ratio * rows.p, xp.int64) for ratio in RATIOS)
    split = _cut(rows.p, cell, rows.y, len(RATIOS) + 1)
    guess = numbers(xp.sum(rows.q, axis=-1)) > 0
    return Cells(split.cell, split.mass * guess[:, None])


def by_favourite(draft: Cells) -> Cells:
    """Tokens that are likelier under the draft than under the target, against all others; from the bins of q/p."""
    edge = RATIOS.index(1.0) + 1
    mass = np.stack([draft.mass[:, :edge].sum(axis=1), draft.mass[:, edge:].sum(axis=1)], axis=1)
    return Cells((draft.cell >= edge).astype(int), mass)


def by_token(rows: AuditRows, ends: tuple[int, ...]) -> Cells:
    """Each token where there are few, else the end of the text against all others."""
    if rows.p.shape[-1] <= SMALL:
        return Cells(numbers(rows.y), numbers(rows.p))
    xp = array_namespace(rows.p)
    cell = xp.astype(_ids(rows) < 0, xp.int64)
    for end in ends:
        cell = cell + xp.astype(_ids(rows) == end, xp.int64)
    return _cut(rows.p, cell, rows.y, 2)


def by_twin(rows: AuditRows, twin: Array) -> Cells:
    """The token [R] that another sample of this prompt has here (-1 = none), against all others."""
    xp = array_namespace(rows.p)
    same = _ids(rows) == twin[:, None]
    split = _cut(rows.p, xp.astype(same, xp.int64), rows.y, 2)
    return Cells(split.cell, split.mass * numbers(xp.any(same, axis=-1))[:, None])


def _cut(p: Array, cell: Array, y: Array, size: int) -> Cells:
    xp = array_namespace(p)
    mass = [xp.sum(xp.where(cell == c, p, p * 0), axis=-1) for c in range(size)]
    return Cells(numbers(at(cell, y)), _beside(mass))


def _columns(rows: AuditRows) -> Array:
    xp = array_namespace(rows.p)
    return xp.arange(rows.p.shape[-1], dtype=xp.int64, device=rows.p.device)[None]


def _ids(rows: AuditRows) -> Array:
    """The token of each column."""
    return _columns(rows) if rows.ids is None else rows.ids


def _beside(arrays: list[Array]) -> np.ndarray:
    return np.stack([numbers(array) for array in arrays], axis=1)


def numbers(array: Array) -> np.ndarray:
    """Copy an array from any device to NumPy."""
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)
