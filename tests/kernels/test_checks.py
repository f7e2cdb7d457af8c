"""What does not fit is refused by both backends, in one line that names it, before anything is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftproof import kernels
from draftproof.draft import Tree
from draftproof.errors import DraftproofError
from draftproof.kernels import Controls, NoiseKeys, Summary
from draftproof.sampling import Context, Sampling

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, SIZE, TREE = 2, 40, Tree.of(2, 1)  # nodes 0, 1 and 2 have children, 3 and 4 none
ELSEWHERE = "meta"  # a device without memory: whoever looks into a tensor there fails otherwise


def whole(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=DEVICE)


def controls(masks: int, sampling: Sampling | None = None) -> Controls:
    contexts = [Context((), ())] * BATCH
    return Controls.of([sampling or Sampling(banned=[3])] * BATCH, masks, SIZE, DEVICE, contexts)


def rows(count: int) -> torch.Tensor:
    return torch.zeros(BATCH, count, SIZE, device=DEVICE)


def summary(count: int) -> Summary:
    return Summary.empty(BATCH, count, torch.device(DEVICE), crest=True)


def sound(verb: str) -> dict[str, Any]:
    """Arguments that fit."""
    noise = NoiseKeys(whole(BATCH), whole(BATCH), whole(BATCH))
    every: dict[str, dict[str, Any]] = {
        "verify": {
            "target": rows(5), "draft": rows(4), "tokens": whole(BATCH, 4), "controls": controls(5),
            "rule": whole(BATCH).int(), "drafted": summary(4), "draft_controls": controls(4),
        },
        "sample": {
            "logits": rows(1)[:, 0], "node": 2, "tokens": whole(BATCH, 2), "controls": controls(3),
            "summary": summary(3).at(slice(2, 3)),
        },
        "pick": {
            "target": rows(5), "node": whole(BATCH), "draft": rows(3), "row": whole(BATCH), "tokens": whole(BATCH, 2),
            "controls": controls(5), "draft_controls": controls(3), "laws": summary(5), "drafted": summary(3),
        },
        "guess": {
            "logits": rows(2), "parents": [1, 2], "tree": TREE, "tokens": whole(BATCH, 5), "controls": controls(3),
            "summary": summary(3).at(slice(1, 3)),
        },
        "traverse": {
            "target": rows(5), "draft": rows(3), "tokens": whole(BATCH, 5), "tree": TREE, "controls": controls(5),
            "drafted": summary(3), "draft_controls": controls(3),
        },
    }  # fmt: skip
    return {**every[verb], "noise": noise}


def refuse(verb: str, match: str, **wrong: Any) -> None:
    for backend in ("torch", "triton"):
        with pytest.raises(DraftproofError, match=match):
            getattr(kernels, verb)(**{**sound(verb), **wrong}, backend=backend)


VERBS = ["verify", "sample", "pick", "guess", "traverse"]


@pytest.mark.parametrize("verb", VERBS)
def test_what_fits_is_taken(verb: str) -> None:
    getattr(kernels, verb)(**sound(verb), backend="torch")


@pytest.mark.parametrize("verb", VERBS)
def test_every_tensor_has_its_shape_type_and_device(verb: str) -> None:
    for name, part in sound(verb).items():
        if isinstance(part, torch.Tensor):
            logits = part.is_floating_point()
            refuse(verb, "logits must be" if logits else f"{name} must be", **{name: part[0]})
            refuse(verb, "must be", **{name: part[:1]})
            refuse(verb, "logits must be" if logits else f"{name} must be", **{name: part.double()})
            refuse(verb, f"on {ELSEWHERE}", **{name: part.to(ELSEWHERE)})


@pytest.mark.parametrize("verb", VERBS)
def test_every_part_of_noise_controls_and_summaries_too(verb: str) -> None:
    for name, parts in sound(verb).items():
        if isinstance(parts, tuple):
            for field, part in parts._asdict().items():
                if isinstance(part, torch.Tensor):
                    for wrong in (part[:1], part.to(torch.uint8), part.to(ELSEWHERE)):
                        refuse(verb, f"{field} must be", **{name: parts._replace(**{field: wrong})})
                    gaps = parts._replace(**{field: part[:1].expand_as(part)})
                    refuse(verb, "must be contiguous|must have strides", **{name: gaps})


@pytest.mark.parametrize(
    ("verb", "target", "draft"),
    [("verify", 5, 4), ("sample", 3, None), ("pick", 5, 3), ("guess", 3, None), ("traverse", 5, 3)],
)
def test_there_is_a_mask_for_every_row(verb: str, target: int, draft: int | None) -> None:
    refuse(verb, rf"allowed must be \[2, {target}, 2\]", controls=controls(target - 1))
    if draft is not None:
        refuse(verb, rf"allowed must be \[2, {draft}, 2\]", draft_controls=controls(draft - 1))


def test_masks_by_node_are_not_masks_by_draft_row() -> None:
    refuse("pick", r"allowed must be \[2, 3, 2\]", draft_controls=controls(5))


def test_penalties_have_their_counts_and_their_drafts() -> None:
    harsh = controls(5, Sampling(presence_penalty=1.0))
    refuse("verify", "penalties need counts", controls=harsh._replace(made=None))
    refuse("sample", r"tokens must be \[2, 2\]", controls=harsh, tokens=None)
    with pytest.raises(DraftproofError, match=r"tokens must be \[2, 4\]"):
        kernels.summarise(rows(5), harsh)
    with pytest.raises(DraftproofError, match=r"tokens must be \[2, 4\]"):
        kernels.summarise(rows(5), controls(5), whole(BATCH, 3))


@pytest.mark.parametrize("parents", [[], [3], [2, 1], [0, 1]])
def test_parents_are_the_nodes_of_a_level_that_have_children(parents: list[int]) -> None:
    refuse("guess", "must be the nodes of a level that have children", parents=parents, logits=rows(len(parents)))


def test_trees_have_as_many_rows() -> None:
    refuse("guess", "a row for each of 2 parents", logits=rows(1))
    refuse("guess", "tokens must be contiguous", tokens=whole(5, BATCH).T)
    refuse("traverse", "a row for each of the tree's 5 nodes", target=rows(4))


def test_a_workspace_serves_the_shape_it_was_made_for() -> None:
    for shape in ((1, 5, SIZE), (BATCH, 4, SIZE), (BATCH, 5, SIZE + 1)):
        with pytest.raises(DraftproofError, match=r"does not serve \[2, 5, 40\]"):
            kernels.verify(**sound("verify"), backend="triton", workspace=kernels.workspace(*shape, DEVICE))


def test_kernels_run_on_a_gpu_or_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    zero, here = torch.zeros(1, dtype=torch.int64), Controls.of([Sampling()], 1, SIZE)
    with pytest.raises(DraftproofError, match="needs logits on a GPU, not on cpu"):
        kernels.sample(torch.zeros(1, SIZE), here, NoiseKeys(zero, zero, zero), backend="triton")
