"""Trees drawn and verified by kernels, against the laws of draws.py and verify/traversal.py."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from draftproof import kernels
from draftproof.bench import trees as bench
from draftproof.draft import Tree
from draftproof.errors import DraftproofError
from draftproof.kernels import ChainRule, Controls, Fault, NoiseKeys, Summary, Walked, agreement, reference
from draftproof.sampling import Context, Sampling
from tests.support.marks import INTERPRETED

pytestmark = INTERPRETED

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
UNEVEN = Tree((-1, 0, 0, 0, 1, 2, 1, 2, 3, 4, 4, 9))  # siblings that are not neighbours, lone children, leaves halfway
CONTROLS = [
    Sampling(temperature=0.7),
    Sampling(temperature=0),
    Sampling(top_k=3),
    Sampling(top_p=0.8),
    Sampling(min_p=0.05),
    Sampling(temperature=1.3, top_k=50, top_p=0.9, min_p=0.02),
    Sampling(logit_bias={3: 4.0, 299: -2.0, 5: -math.inf}),
    Sampling(allowed=range(0, 300, 3), banned=[3, 9], top_k=20),
]


@pytest.fixture(autouse=True)
def _garbage():
    """Memory that was not written holds NaN here, so that a kernel that reads it is seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def inner(tree: Tree) -> list[int]:
    return [node for node in range(tree.size) if tree.children(node)]


def rows(batch: int, tree: Tree, size: int, seed: int = 0, spread: float = 2.0, noise: float = 1.5):
    """Target logits [B, N, V], and the drafter's [B, M, V] that resemble them."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(batch, tree.size, size, generator=generator) * spread
    draft = target[:, inner(tree)] + torch.randn(batch, len(inner(tree)), size, generator=generator) * noise
    return target.bfloat16().to(DEVICE), draft.bfloat16().to(DEVICE)


def named(batch: int, step: int = 1) -> NoiseKeys:
    b = torch.arange(batch, device=DEVICE)
    return NoiseKeys((b + 5) * 0x123456789, b * 7 + 1, b * 0 + step)


def propose(draft: torch.Tensor, tree: Tree, controls: Controls, noise: NoiseKeys, backend: str = "triton"):
    """Guesses level by level, and what was kept of their rows."""
    batch, count, _ = draft.shape
    tokens = torch.full((batch, tree.size), -1, dtype=torch.int64, device=DEVICE)
    kept = Summary.empty(batch, count, draft.device)
    first = 0
    for level in tree.levels:
        parents = [node for node in level if node in inner(tree)]
        if parents:
            end = first + len(parents)
            room = kept.at(slice(first, end))
            kernels.guess(
                draft[:, first:end], parents, tree, tokens, controls, noise, summary=room, backend=backend
            )  # fmt: skip
            first = end
    return tokens, kept


def check(tree: Tree, size: int, samplings: list[Sampling], batch: int, seed: int = 0, cut: bool = False) -> Walked:
    """Draw and verify; both must agree with the laws but for near-ties, of which there is hardly one."""
    target, draft = rows(batch, tree, size, seed)
    controls = Controls.of([samplings[b % len(samplings)] for b in range(batch)], tree.size, size, DEVICE)
    noise = named(batch)
    tokens, kept = propose(draft, tree, controls, noise)
    guessed = agreement.compare_guesses(tokens, draft, tree, controls, noise)
    if cut:  # drafts end at different places: a later sibling is missing, or all of them, with what is below
        for b in range(batch):
            for node in range(1, tree.size):
                gone = tokens[b, max(tree.parent[node], 0)] < 0 if tree.parent[node] else node >= 3 - b % 3
                tokens[b, node] = -1 if gone or (b % 2 and node == 5) else tokens[b, node]
    out = kernels.traverse(target, draft, tokens, tree, controls, noise, drafted=kept, backend="triton")
    found = agreement.compare_tree(out, target, draft, tokens, tree, controls, noise)
    assert (guessed.wrong, found.wrong) == (0, 0)
    assert guessed.near_ties + found.near_ties <= 1
    assert not out.fault.any()
    return out


@pytest.mark.parametrize("tree", [Tree.star(4), Tree.paths(3, 2), Tree.of(2, 2, 1), UNEVEN], ids=str)
def test_every_shape_of_tree(tree: Tree) -> None:
    out = check(tree, 1271, [CONTROLS[0]], 4)
    assert len(set(map(tuple, out.path.tolist()))) > 1  # different nodes are taken


def test_every_control_in_one_launch() -> None:
    check(Tree((-1, 0, 0, 0, 1, 2, 1)), 300, CONTROLS, len(CONTROLS), seed=1)


@pytest.mark.parametrize("control", [1, 2, 3], ids=["greedy", "top_k", "top_p"])
def test_a_control_alone(control: int) -> None:
    """The law runs out of tokens here: the siblings that find none are -1."""
    check(Tree.of(4, 1), 300, [CONTROLS[control]], 2, seed=2)


def test_drafts_that_end_early() -> None:
    check(UNEVEN, 150, [Sampling(), Sampling(top_k=20)], 4, seed=3, cut=True)


@pytest.mark.parametrize("size", [2, 33, 50257])
def test_odd_vocabularies(size: int) -> None:
    check(Tree.of(2, 1), size, [CONTROLS[0]], 1 if size > 1000 else 4, seed=4)


def test_nothing_drafted() -> None:
    out = check(Tree.chain(0), 90, [CONTROLS[0], CONTROLS[2]], 2)
    assert out.tokens.shape == (2, 1)
    assert out.path.shape == (2, 0)


def test_a_chain_is_block_verification() -> None:
    tree, batch, size = Tree.chain(3), 8, 200
    target, draft = rows(batch, tree, size, seed=5)
    controls, noise = Controls.of([Sampling()] * batch, tree.size, size, DEVICE), named(batch)
    tokens, kept = propose(draft, tree, controls, noise)
    out = kernels.traverse(target, draft, tokens, tree, controls, noise, drafted=kept, backend="triton")
    block = torch.full((batch,), ChainRule.BLOCK, dtype=torch.int32, device=DEVICE)
    chain = kernels.verify(target, draft, tokens[:, 1:], controls, block, noise, drafted=kept, backend="triton")
    assert torch.equal(out.tokens, chain.tokens)
    assert torch.equal(out.accepted, chain.accepted)
    assert len(set(out.accepted.tolist())) > 2


def assert_same(one: Walked, other: Walked) -> None:
    """Equal outcomes; the law of the node to stop at, where there is one, but for rounding."""
    for mine, theirs in zip(one[:-1], other[:-1], strict=True):
        assert torch.equal(mine, theirs)
    sound = (one.fault & Fault.TARGET) == 0
    torch.testing.assert_close(one.stop[sound], other.stop[sound], atol=2e-5, rtol=0)


def test_the_other_backend_says_the_same() -> None:
    target, draft = rows(3, UNEVEN, 120, seed=6)
    controls, noise = Controls.of([Sampling()] * 3, UNEVEN.size, 120, DEVICE), named(3)
    theirs = Controls.of([Sampling(temperature=1.5)] * 3, UNEVEN.size, 120, DEVICE)
    made = []
    for backend in ("triton", "torch"):
        tokens, _ = propose(draft, UNEVEN, theirs, noise, backend)
        out = kernels.traverse(
            target, draft, tokens, UNEVEN, controls, noise, draft_controls=theirs, backend=backend
        )  # fmt: skip
        made.append((tokens, out))
    assert torch.equal(made[0][0], made[1][0])
    assert_same(made[0][1], made[1][1])


def test_masks_differ_from_node_to_node() -> None:
    """Node n allows tokens 0 to 9 + 10 n: a row that took another's mask would say or miss others."""
    tree, batch, size = UNEVEN, 2, 150
    target, draft = rows(batch, tree, size, seed=7, spread=0.3)
    mask = torch.arange(size) < 10 + 10 * torch.arange(tree.size)[:, None]
    allowed = kernels.pack(mask.expand(batch, -1, -1)).to(DEVICE)
    controls = Controls.of([Sampling()] * batch, tree.size, size, DEVICE)._replace(allowed=allowed)
    noise = named(batch)
    tokens, kept = propose(draft, tree, controls, noise)
    assert agreement.compare_guesses(tokens, draft, tree, controls, noise).wrong == 0
    out = kernels.traverse(target, draft, tokens, tree, controls, noise, drafted=kept, backend="triton")
    assert agreement.compare_tree(out, target, draft, tokens, tree, controls, noise).wrong == 0


@pytest.mark.parametrize(
    ("broken", "fault", "ends"),
    [
        ("nan", Fault.TARGET, True),
        ("inf", Fault.TARGET, True),
        ("none allowed", Fault.TARGET, True),
        ("outside", Fault.TOKEN, False),
        ("draft", Fault.DRAFT, False),
        ("impossible", Fault.IMPOSSIBLE, False),
        ("again", Fault.IMPOSSIBLE, False),
    ],
)
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_bad_input_is_flagged_and_bounded(backend: str, broken: str, fault: Fault, ends: bool) -> None:
    tree, batch, size = Tree.of(2, 2), 2, 40
    target, draft = rows(batch, tree, size, seed=8)
    tokens, _ = propose(draft, tree, Controls.of([Sampling()] * batch, tree.size, size, DEVICE), named(batch))
    sound = tokens.clone()
    if broken == "nan":
        target[1, 4, 3] = math.nan
    elif broken == "inf":
        target[1, 1, 3] = math.inf
    elif broken == "none allowed":
        target[1, 0] = -math.inf
    elif broken == "outside":
        tokens[1, 1], sound[1, [1, 3, 4]] = size + 5, -1  # what is below counts as not drawn either
    elif broken == "draft":
        draft[1, 1, 7], sound[1, 3:5] = math.nan, -1
    elif broken == "impossible":
        draft[1, 0, tokens[1, 1]] = -math.inf
    else:
        tokens[1, 2] = sound[1, 2] = tokens[1, 1]
    controls, noise = Controls.of([Sampling()] * batch, tree.size, size, DEVICE), named(batch)
    out = kernels.traverse(target, draft, tokens, tree, controls, noise, backend=backend)
    assert out.fault.tolist() == [0, fault]
    if ends:
        assert out.tokens[1].tolist() == [0, -1, -1]
        assert (out.accepted[1], out.path[1].tolist()) == (0, [0, 0])
    else:
        draft = draft.nan_to_num(0.0) if broken == "draft" else draft  # a row without drawn children is not read
        assert agreement.compare_tree(out, target, draft, sound, tree, controls, noise).wrong == 0
    alone = [part[:1] for part in (target, draft, tokens)]
    first = Controls.of([Sampling()], tree.size, size, DEVICE)
    other = kernels.traverse(*alone, tree, first, named(1), backend=backend)
    assert torch.equal(out.tokens[:1], other.tokens)  # the sequence beside it is as it was


def test_both_backends_bear_with_the_same_faults() -> None:
    """Random ones, several at a time."""
    tree, batch, size = Tree.of(3, 2, 1), 8, 60
    generator, flagged = torch.Generator().manual_seed(4), set()
    controls, noise = Controls.of([Sampling()] * batch, tree.size, size, DEVICE), named(batch)
    for seed in range(4):
        target, draft = rows(batch, tree, size, seed=seed)
        tokens, _ = propose(draft, tree, controls, noise)
        for logits in (target, draft):
            hit = (torch.rand(logits.shape[:2], generator=generator) < 0.04).to(DEVICE)
            logits[..., 3] = torch.where(hit, math.nan, logits[..., 3])
        draft[..., 5] = -math.inf
        for wrong in (-1, 5, size, 2**40):
            tokens[:, 1:][(torch.rand(batch, tree.size - 1, generator=generator) < 0.05).to(DEVICE)] = wrong
        both = [
            kernels.traverse(target, draft, tokens, tree, controls, noise, backend=backend)
            for backend in ("triton", "torch")
        ]
        assert_same(*both)
        flagged |= set(both[0].fault.tolist())
    assert {flag for fault in flagged for flag in Fault if flag & fault} == set(Fault)


def test_a_broken_row_draws_nothing() -> None:
    _, draft = rows(2, Tree.of(2, 1), 30)
    draft[0, 0, 5] = math.nan
    tokens, _ = propose(draft, Tree.of(2, 1), Controls.of([Sampling()] * 2, 5, 30, DEVICE), named(2))
    assert tokens[0].tolist() == [-1] * 5
    assert (tokens[1, 1:] >= 0).all()


def test_the_first_token_follows_the_target() -> None:
    """Chi-square over many noise keys: guesses and verification together leave the target's law."""
    tree, batch, size = Tree.star(2), 40 if DEVICE == "cpu" else 20_000, 3  # the interpreter is slow
    target, draft = rows(1, tree, size, seed=9, spread=1.0, noise=1.0)
    target, draft = target.expand(batch, -1, -1), draft.expand(batch, -1, -1)
    controls, noise = Controls.of([Sampling()] * batch, tree.size, size, DEVICE), named(batch)
    tokens, kept = propose(draft, tree, controls, noise)
    out = kernels.traverse(target, draft, tokens, tree, controls, noise, drafted=kept, backend="triton")
    law = reference.law(
        target[:1, :1].double(), controls._replace(temperature=controls.temperature[:1]), tokens[:1, :0]
    )
    seen = torch.bincount(out.tokens[:, 0], minlength=size)
    assert stats.chisquare(seen.cpu(), law[0, 0].cpu() * batch).pvalue > 1e-4
    assert {*out.path[:, 0].tolist()} == {0, 1, 2}


def test_the_benchmark_sees_what_is_wrong() -> None:
    data = bench.case(Tree.of(2, 1), 2, 60, "topk_topp", DEVICE)
    assert bench.compare(data)["wrong"] == 0
    data.draft[:, 0] = 0.0  # the guesses known as those of other rows
    assert agreement.compare_guesses(data.tokens, data.draft, data.tree, data.controls, data.noise).wrong > 0


def test_penalties_are_refused() -> None:
    tree = Tree.of(2, 1)
    target, draft = rows(1, tree, 20)
    tokens, noise = torch.full((1, 5), -1, dtype=torch.int64, device=DEVICE), named(1)
    harsh = Controls.of([Sampling(presence_penalty=1.0)], 5, 20, DEVICE, [Context((), ())])
    with pytest.raises(DraftproofError, match="penalties depend on the path"):
        kernels.traverse(target, draft, tokens, tree, harsh, noise)
    with pytest.raises(DraftproofError, match="penalties depend on the path"):
        kernels.guess(draft[:, :1], [0], tree, tokens, harsh, noise)
