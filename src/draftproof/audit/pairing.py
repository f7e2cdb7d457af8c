"""Put texts of the same prompt together that came with and without speculation, before anything is known about them.

A group has one text of one kind and one or more of the other: a pair, or more where one file has more samples of the
prompt. Which texts come together follows from the order of the lines alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from draftproof.audit.transcripts import InputError, Transcript
from draftproof.sampling import Sampling

Requests = dict[tuple[tuple[int, ...], int], list[Transcript]]  # by prompt, and number of the settings


class Group(NamedTuple):
    """Texts of one prompt: all but one of the same kind. Plain texts come first."""

    plain: tuple[Transcript, ...]
    speculative: tuple[Transcript, ...]

    @property
    def texts(self) -> tuple[Transcript, ...]:
        return self.plain + self.speculative


class Grouped(NamedTuple):
    """All groups in their order, and what was left out."""

    groups: tuple[Group, ...]
    alone: int  # texts whose prompt is only in one of the files


def grouped(speculative: Iterable[Transcript], plain: Iterable[Transcript]) -> Grouped:
    """Group the texts of two files, in the order of the speculative one; raise where they cannot be compared."""
    ours, others = list(speculative), list(plain)
    if not ours or not others:
        raise InputError(f"there are no {'plain' if ours else 'speculative'} transcripts: collect some first")
    _check_origin(ours, others)
    length = _common_length([*ours, *others])
    # which tokens were accepted is known of one kind only, so no bet may depend on it
    ours, others = ([t._replace(output=t.output[:length], accepted=None) for t in texts] for texts in (ours, others))
    settings: list[Sampling] = []
    mine, theirs = _by_request(ours, settings), _by_request(others, settings)
    both = [request for request in mine if request in theirs]
    _check_settings(mine, theirs, settings)
    if not both:
        raise InputError("the two files have no prompt in common: collect both from the same prompts")
    made = [group for request in both for group in _dealt(mine[request], theirs[request])]
    if all(len({text.output for text in group.texts}) == 1 for group in made) and ours[0].sampling.temperature != 0:
        raise InputError("each speculative text is the same as its plain one: collect them with different seeds")
    order = {id(text): place for place, text in enumerate(ours)}
    made.sort(key=lambda group: order[id(group.speculative[0])])
    kept = sum(len(texts[request]) for texts in (mine, theirs) for request in both)
    return Grouped(tuple(made), len(ours) + len(others) - kept)


def _check_origin(ours: Sequence[Transcript], others: Sequence[Transcript]) -> None:
    """Raise if the files are of different engines, or were made in different ways."""
    engines = [{text.engine for text in texts if text.engine} for texts in (ours, others)]
    if all(engines) and engines[0] != engines[1]:
        names = [", ".join(sorted(some)) for some in engines]
        raise InputError(f"the texts are of {names[0]}, the plain ones of {names[1]}: compare an engine with itself")
    if any(text.retokenised for text in ours) != any(text.retokenised for text in others):
        raise InputError("only one of the files was tokenised again from its text: collect both in the same way")


def _check_settings(mine: Requests, theirs: Requests, settings: Sequence[Sampling]) -> None:
    """Raise if a prompt is in both files, but with other settings in the plain one."""
    stated = dict(theirs.keys())
    for (prompt, number), texts in mine.items():
        if prompt not in stated or (prompt, number) in theirs:
            continue
        one, other = settings[number], settings[stated[prompt]]
        names = (field.name for field in dataclasses.fields(Sampling))
        name = next(name for name in names if getattr(one, name) != getattr(other, name))
        raise InputError(
            f"line {texts[0].line}: {name} is {getattr(one, name)!r}, but {getattr(other, name)!r} in the plain "
            "transcripts of this prompt: collect both with the same settings"
        )


def _common_length(texts: Sequence[Transcript]) -> int:
    """The length at which all texts are cut: that of the shortest one that does not end by itself.

    If the files were collected with different limits, their texts can be compared up to the smaller one. This length
    depends on all texts alike, so it tells nothing about which are plain.
    """
    cut = [len(text.output) for text in texts if text.output[-1] not in text.sampling.ends]
    return min(cut, default=max(len(text.output) for text in texts))


def _by_request(texts: Sequence[Transcript], settings: list[Sampling]) -> Requests:
    """The texts of each prompt under each of the settings; settings that are new are added to the list."""
    found: Requests = {}
    for text in texts:
        if text.sampling not in settings:
            settings.append(text.sampling)
        found.setdefault((text.prompt, settings.index(text.sampling)), []).append(text)
    return found


def _dealt(ours: Sequence[Transcript], others: Sequence[Transcript]) -> list[Group]:
    """As many groups as there are texts of the rarer kind; those of the other kind are dealt out one by one."""
    count = min(len(ours), len(others))
    return [Group(tuple(others[i::count]), tuple(ours[i::count])) for i in range(count)]
