"""Fused verification: one speculative step from raw logits in a few launches, token for token as the laws.

`sample` and `verify` are for chains of drafts, `pick` for several children of one node, `guess` and `traverse` for
trees; `summarise` and `workspace` prepare what lets them read and allocate less. Triton is imported only when a kernel
is to run.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from draftproof.draft import Tree
from draftproof.errors import DraftproofError
from draftproof.kernels import reference
from draftproof.kernels.checks import (
    check_controls,
    check_drafts,
    check_first_rows,
    check_noise,
    check_rows,
    check_summary,
    fits,
)
from draftproof.kernels.types import (
    ChainRule,
    Controls,
    Emitted,
    Fault,
    NoiseKeys,
    Picked,
    Ragged,
    Siblings,
    Summary,
    Walked,
    crest_pays,
    dense,
    first_row,
    pack,
    view,
)
from draftproof.law import sample as draw
from draftproof.noise import Lane, uniforms

if TYPE_CHECKING:
    from draftproof.kernels.chain.workspace import Workspace

__all__ = [
    "ChainRule", "Controls", "Emitted", "Fault", "NoiseKeys", "Picked", "Ragged", "Summary", "Walked",
    "crest_pays", "guess", "pack", "pick", "sample", "summarise", "traverse", "verify", "workspace",
]  # fmt: skip

BACKENDS = ("auto", "triton", "torch")
OLDEST = (8, 0)  # compute capability: GPUs before it lack bfloat16, and nobody has tried the kernels there


def verify(
    target: Tensor | Ragged,  # [B, N, V] raw logits after each node of the chain: bfloat16, float16 or float32
    draft: Tensor | Ragged | None,  # [B, N - 1, V] the drafter's raw logits; None where every rule is ONEHOT
    tokens: Tensor,  # [B, N - 1] int64, the drafts; -1 from the end of a shorter draft on
    controls: Controls,
    rule: Tensor,  # [B] int32, a ChainRule for each sequence
    noise: NoiseKeys,
    *,
    drafted: Summary | None = None,  # the draft rows' summaries by `sample`; without them the rows are read again
    draft_controls: Controls | None = None,  # of the drafter, where they differ from the target's
    logprobs: bool = False,  # whether to return those of the emitted tokens
    expected: bool = False,  # whether to return `Emitted.reach`
    backend: str = "auto",
    workspace: Workspace | None = None,
) -> Emitted:
    """Verify chains of drafts: how many tokens of each are accepted, and the token after them.

    For each sequence, with p = law(target, controls) and q = law(draft, draft_controls)::

        node  = sample(verifier.stop(Draft(chain, tokens, q, p)), uniform (noise, STOP))
        token = sample(verifier.next(draft, node),                uniform (noise, NEXT))

    Bad input never yields a token outside the vocabulary: `Emitted.fault` flags what was wrong, and `Fault` says what
    is emitted then. Without a `workspace` one is allocated.
    """
    rows, draft_rows = view(target), None if draft is None else view(draft)
    check_rows(rows)
    (batch, nodes, size), device = rows.shape, rows.device
    fits("tokens", tokens, (batch, nodes - 1), torch.int64, device)
    fits("rule", rule, (batch,), torch.int32, device, packed=True)
    check_noise(noise, rows)
    check_controls(controls, rows)
    if draft_rows is not None:
        check_rows(draft_rows)
        fits("draft", draft_rows, (batch, nodes - 1, size), draft_rows.dtype, device)
        if draft_controls is not None:
            check_controls(draft_controls, draft_rows)
    check_first_rows(target, draft)
    check_summary("drafted", drafted, rows[:, 1:])
    if not _fused(rows, backend):
        both = dense(target), None if draft is None else dense(draft)
        return reference.verify(*both, tokens, controls, rule, noise, draft_controls, logprobs, expected)
    from draftproof.kernels.chain import launch

    chain = launch.ChainRows(rows, tokens, controls, first_row=first_row(target))
    if nodes == 1:  # nothing is drafted
        return launch.verify(chain, noise, workspace=workspace, logprobs=logprobs)
    theirs = controls if draft_controls is None else draft_controls
    if draft is not None and drafted is None:
        drafted = summarise(draft, theirs, tokens, crest=crest_pays(batch, nodes, size))
    drafts = launch.ChainDraft(rule, draft_rows, drafted, theirs, first_row(draft))
    return launch.verify(chain, noise, draft=drafts, workspace=workspace, logprobs=logprobs, expected=expected)


def sample(
    logits: Tensor,  # [B, V] the drafter's raw logits after node `node`
    controls: Controls,
    noise: NoiseKeys,
    *,
    node: int = 0,
    index: int = 0,
    tokens: Tensor | None = None,  # [B, K] of which the first `node` are the drafts so far
    summary: Summary | None = None,  # memory for the summaries of [B, 1] rows, such as a column of a larger one
    backend: str = "auto",
    workspace: Workspace | None = None,
) -> tuple[Tensor, Summary | None]:
    """Draw a token [B] from each row's law, by the uniform (noise, DRAFT, index); and summarise it for `verify`."""
    rows = logits[:, None]
    check_rows(rows)
    check_noise(noise, rows)
    check_controls(controls, rows, masks=node + 1)
    if tokens is None:
        tokens = torch.zeros(len(rows), 0, dtype=torch.int64, device=rows.device)
    check_drafts(tokens, rows, node if controls.penalties is not None else 0)
    check_summary("summary", summary, rows)
    if not _fused(rows, backend):
        u = uniforms(*noise, Lane.DRAFT, index + 1)[:, index]
        return draw(reference.law(rows, controls, tokens, node)[:, 0], u), None
    from draftproof.kernels.chain import launch

    if summary is None:
        summary = Summary.empty(len(rows), 1, rows.device)
    chain = launch.ChainRows(rows, tokens, controls, node)
    out, summary = launch.sample(chain, noise, index, summary=summary, workspace=workspace)
    return out.tokens[:, 0], summary


def pick(
    target: Tensor,  # [B, N, V] raw logits after each node of a tree
    node: Tensor,  # [B] int64, the node whose children are verified
    draft: Tensor,  # [B, M, V] the drafter's raw logits
    row: Tensor,  # [B] int64, the draft row that the children were drawn from
    tokens: Tensor,  # [B, K] int64, the children, drawn i.i.d.; -1 for none
    controls: Controls,
    noise: NoiseKeys,
    *,
    laws: Summary | None = None,  # of the target's rows; without it all of them are read again
    drafted: Summary | None = None,  # of the draft rows; likewise
    draft_controls: Controls | None = None,  # where they differ: masks are by draft row
    backend: str = "auto",
) -> Picked:
    """Verify several children of one node (verify/optimal_binned.py): which is accepted, or the token instead.

    For each sequence, with p = law(target[node]) and q = law(draft[row])::

        child = sample(optimal_binned.stop(Draft(star, tokens, q, p)), uniform (noise, STOP))
        token = tokens[child - 1] if child else sample(optimal_binned.next(draft, 0), uniform (noise, NEXT))

    Bad input never yields a token outside the vocabulary: `Picked.fault` flags what was wrong. A child outside the
    vocabulary, or drawn from a broken row, counts as not drawn.
    """
    theirs = controls if draft_controls is None else draft_controls
    _no_penalties(controls, theirs)
    check_rows(target, draft)
    (batch, _, size), device = target.shape, target.device
    fits("draft", draft, (batch, draft.shape[1], size), draft.dtype, device)
    fits("node", node, (batch,), torch.int64, device)
    fits("row", row, (batch,), torch.int64, device)
    fits("tokens", tokens, (batch, tokens.shape[-1]), torch.int64, device)
    check_noise(noise, target)
    check_controls(controls, target, more=False)
    check_controls(theirs, draft, more=False)
    check_summary("laws", laws, target)
    check_summary("drafted", drafted, draft)
    siblings = Siblings(target, node, draft, row, tokens, controls, theirs)
    if not _fused(target, backend):
        return reference.pick(siblings, noise)
    from draftproof.kernels.chain import launch as chain
    from draftproof.kernels.star import launch as star

    laws = chain.summarise(target, controls) if laws is None else laws
    drafted = chain.summarise(draft, theirs) if drafted is None else drafted
    return star.pick(siblings, noise, laws, drafted)


def guess(
    logits: Tensor,  # [B, W, V] the drafter's raw logits after nodes of one level
    parents: Sequence[int],  # those nodes: all of the level that have children, ascending
    tree: Tree,
    tokens: Tensor,  # [B, N] int64, an entry for every node; the children's are written, that of node 0 is not read
    controls: Controls,
    noise: NoiseKeys,
    *,
    summary: Summary | None = None,  # memory for the summaries of [B, W] rows, such as columns of a larger one
    backend: str = "auto",
) -> Summary | None:
    """Draw the children of nodes without replacement; and summarise the laws they are drawn from for `traverse`.

    Child c is drawn by the uniform (noise, DRAFT, c), as `draws.DRAWS["distinct"]` does; it is -1 where the law
    has no token left, and below a node that was not drawn itself.
    """
    _no_penalties(controls)
    check_rows(logits)
    asked = tuple(parents)
    if not asked or asked not in [tuple(filter(tree.children, level)) for level in tree.levels]:
        raise DraftproofError(f"parents {asked} must be the nodes of a level that have children")
    if logits.shape[1] != len(asked):
        raise DraftproofError(f"logits {[*logits.shape]} must have a row for each of {len(asked)} parents")
    fits("tokens", tokens, (len(logits), tree.size), torch.int64, logits.device, packed=True)
    check_noise(noise, logits)
    check_controls(controls, logits, masks=asked[-1] + 1)
    check_summary("summary", summary, logits)
    if not _fused(logits, backend):
        reference.guess(logits, asked, tree, tokens, controls, noise)
        return None
    from draftproof.kernels.tree import launch

    return launch.guess(logits, asked, tree, tokens, controls, noise, summary)


def traverse(
    target: Tensor,  # [B, N, V] raw logits after each node of the tree
    draft: Tensor,  # [B, M, V] the drafter's raw logits after the nodes that have children, in node order
    tokens: Tensor,  # [B, N] int64, the draft tokens, drawn without replacement; -1 for none
    tree: Tree,
    controls: Controls,
    noise: NoiseKeys,
    *,
    drafted: Summary | None = None,  # the draft rows' summaries by `guess`; without them the rows are read again
    draft_controls: Controls | None = None,  # of the drafter, where they differ from the target's
    backend: str = "auto",
) -> Walked:
    """Verify a tree (verify/traversal.py): which path is accepted, and the token after it.

    For each sequence, with p = law(target, controls) and q = law(draft, draft_controls)::

        node  = sample(traversal.stop(Draft(tree, tokens, q, p)), uniform (noise, STOP))
        token = sample(traversal.next(draft, node),               uniform (noise, NEXT))

    Bad input never yields a token outside the vocabulary: `Walked.fault` flags what was wrong. A draft token outside
    the vocabulary, or drawn from a broken row, counts as not drawn, and so does everything below it.
    """
    theirs = controls if draft_controls is None else draft_controls
    _no_penalties(controls, theirs)
    check_rows(target, draft)
    (batch, nodes, size), device = target.shape, target.device
    if nodes != tree.size:
        raise DraftproofError(f"target {[*target.shape]} must have a row for each of the tree's {tree.size} nodes")
    fits("tokens", tokens, (batch, nodes), torch.int64, device)
    fits("draft", draft, (batch, len(tree.inner), size), draft.dtype, device)
    check_noise(noise, target)
    check_controls(controls, target)
    check_controls(theirs, draft, masks=max(tree.inner, default=-1) + 1)
    check_summary("drafted", drafted, draft)
    if not _fused(target, backend):
        return reference.traverse(target, draft, tokens, tree, controls, noise, draft_controls)
    from draftproof.kernels.tree import launch

    return launch.traverse(target, draft, tokens, tree, controls, theirs, noise, drafted)


def summarise(
    logits: Tensor | Ragged,
    controls: Controls,
    tokens: Tensor | None = None,  # [B, N - 1] or [B, N] the drafts, to leave out rows that no draft leads to
    crest: bool | None = None,  # whether to keep large tokens for `verify`; None: where that saves time
) -> Summary:
    """Summarise the laws of rows [B, N, V] by kernels."""
    rows = view(logits)
    check_rows(rows)
    check_controls(controls, rows)
    check_first_rows(logits)
    if tokens is None and controls.penalties is not None:  # their histories have no drafts then
        tokens = torch.zeros(len(rows), 0, dtype=torch.int64, device=rows.device)
    if tokens is not None:
        check_drafts(tokens, rows, rows.shape[1] - 1)
    from draftproof.kernels.chain import launch

    if crest is None:
        crest = crest_pays(rows.shape[0], rows.shape[1] + 1, rows.shape[2])
    return launch.summarise(rows, controls, tokens, crest=crest, first_row=first_row(logits))


def workspace(batch: int, nodes: int, vocabulary: int, device: str | torch.device) -> Workspace:
    """Scratch memory for target logits [batch, nodes, vocabulary], for many calls one after another."""
    from draftproof.kernels.chain.workspace import Workspace

    return Workspace.of(batch, nodes, vocabulary, torch.device(device))


def available(device: torch.device | None = None) -> bool:
    """Whether Triton can be imported and, if a device is given, whether that is no GPU too old for the kernels."""
    return not obstacle(device)


def obstacle(device: torch.device | None = None) -> str:
    """Why the kernels cannot run; empty where they can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if device is not None and device.type == "cuda" and torch.cuda.get_device_capability(device) < OLDEST:
        found, oldest = (".".join(map(str, one)) for one in (torch.cuda.get_device_capability(device), OLDEST))
        return f"it has compute capability {found}, below {oldest}"
    return ""


def _fused(logits: Tensor, backend: str) -> bool:
    if backend not in BACKENDS:
        raise DraftproofError(f"unknown backend {backend!r}: choose one of {', '.join(BACKENDS)}")
    if backend == "triton" and not available():
        raise DraftproofError("backend 'triton' needs Triton: install draftproof[gpu], or use backend='torch'")
    if backend == "triton" and not logits.is_cuda:
        from triton import knobs

        if not knobs.runtime.interpret:
            raise DraftproofError(f"backend 'triton' needs logits on a GPU, not on {logits.device}: use backend='auto'")
    return backend == "triton" or (backend == "auto" and logits.is_cuda and available(logits.device))


def _no_penalties(*controls: Controls) -> None:
    if any(control.penalties is not None for control in controls):
        raise DraftproofError(
            "penalties depend on the path to a node: use draftproof.sampling.law and draftproof.verify"
        )
