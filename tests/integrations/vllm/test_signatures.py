"""The newest versions of vLLM have what the plug-in relies on; a version that has not is declined in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftproof.integrations.vllm import signatures
from draftproof.integrations.vllm.signatures import Needed

RECORDED: dict[str, dict[str, list[str] | None]] = json.loads(
    (Path(__file__).parents[2] / "data" / "vllm_signatures.json").read_text()
)
RUNNERS = {"V1": signatures.V1, "V2": signatures.V2}


def finder(table: dict[str, list[str] | None]) -> signatures.Find:
    def find(name: str) -> tuple[str, ...] | None:
        found = table[name]
        return None if found is None else tuple(found)

    return find


@pytest.mark.parametrize("version", RECORDED)
@pytest.mark.parametrize("runner", RUNNERS)
def test_recorded_versions_fit(version: str, runner: str) -> None:
    assert signatures.complaint(RUNNERS[runner], finder(RECORDED[version])) == ""


def test_three_versions_are_recorded() -> None:
    assert sorted(RECORDED) == ["0.31.0", "0.32.0", "0.33.0"]


@pytest.mark.parametrize("runner", RUNNERS)
def test_any_name_that_goes_missing_is_noticed(runner: str) -> None:
    for name in RUNNERS[runner]:
        assert signatures.complaint(RUNNERS[runner], finder(RECORDED["0.32.0"] | {name: None})) == f"{name} is missing"


def test_a_renamed_or_moved_parameter_is_noticed() -> None:
    name = "vllm.v1.sample.rejection_sampler:RejectionSampler.forward"
    right = list(RECORDED["0.32.0"][name] or [])
    for wrong in ([*right[:-1], "sampling"], [*right, "more"], [right[0], right[2], right[1], *right[3:]]):
        assert signatures.complaint(signatures.V1, finder(RECORDED["0.32.0"] | {name: wrong})).startswith(
            f"{name} has ("
        )


def test_how_names_must_occur() -> None:
    assert Needed(("a", "b")).holds(("c", "b", "a"))
    assert not Needed(("a", "b"), "first").holds(("b", "a"))
    assert Needed(("a",), "first").holds(("a", "b"))
    assert not Needed(("a",), "all").holds(("a", "b"))


def test_names_are_found_in_installed_code() -> None:
    assert signatures.installed("draftproof.law:at") == ("rows", "tokens")
    assert signatures.installed("draftproof.draft:Draft") == ("tree", "tokens", "q", "p", "own")
    assert signatures.installed("draftproof.law:nothing") is None
    assert signatures.installed("draftproof.nowhere:at") is None
