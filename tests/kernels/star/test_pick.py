"""Several guesses after one node, fused, against the law of verify/optimal_binned.py."""

from __future__ import annotations

import importlib
import math

import pytest
import torch

from draftproof import kernels
from draftproof.errors import DraftproofError
from draftproof.kernels import Controls, Fault, NoiseKeys, Picked, reference
from draftproof.kernels.types import Siblings
from draftproof.law import sample
from draftproof.noise import Lane, uniforms
from draftproof.sampling import Context, Sampling
from draftproof.verify import VERIFIERS
from tests.support.marks import INTERPRETED

pytestmark = INTERPRETED

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPSILON = 1e-4  # a ratio at the edge of a bin may fall on either side, which moves the plan by a part of its token


def scene(
    batch: int, size: int, guesses: int, control: Sampling, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Controls, NoiseKeys]:
    """Rows of a tree of three nodes, one of them at hand, and i.i.d. guesses after it."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(batch, 3, size, generator=generator) * 2
    draft = (target + torch.randn(batch, 3, size, generator=generator)).flip(1)
    node = torch.arange(batch) % 3
    controls = Controls.of([control] * batch, 3, size)
    q = reference.law(draft, controls, node[:, None][:, :0])[torch.arange(batch), 2 - node]
    tokens = torch.multinomial(q, guesses, replacement=True, generator=generator)
    b = torch.arange(batch)
    moved = [part.to(DEVICE) for part in (target.bfloat16(), node, draft.bfloat16(), 2 - node, tokens)]
    return (
        *moved,
        Controls.of([control] * batch, 3, size, DEVICE),
        NoiseKeys(*(part.to(DEVICE) for part in (b, b, b * 0))),
    )


def assert_lawful(out: Picked, data: tuple, noise: NoiseKeys) -> None:
    """Every outcome is the law's, or its uniform lies at the edge of the outcome's interval."""
    target, node, draft, row, tokens, controls, _ = data
    star, _ = reference.spread(Siblings(target.double(), node, draft.double(), row, tokens, controls, controls))
    verifier = VERIFIERS["optimal_binned"]
    for law, lane, found, matters in (
        (verifier.stop(star), Lane.STOP, out.child, out.child >= 0),
        (verifier.next(star, node * 0), Lane.NEXT, out.token, out.child == 0),
    ):
        u = uniforms(*noise, lane, 1)[:, 0]
        above = law.cumsum(1).gather(1, found[:, None])[:, 0]
        below = above - law.gather(1, found[:, None])[:, 0]
        assert ((u > below - EPSILON) & (u < above + EPSILON) | ~matters).all()
        assert ((sample(law, u) == found) | ~matters).float().mean() > 0.8  # ties are few
    guess = tokens.gather(1, (out.child - 1).clamp_min(0)[:, None])[:, 0]
    assert torch.equal(out.token[out.child > 0], guess[out.child > 0])


def test_outcomes_are_the_laws() -> None:
    data = scene(12, 1271, 4, Sampling(temperature=0.8), seed=1)
    accepted = set()
    for step in range(2):
        noise = data[-1]._replace(step=data[-1].step + step)
        out = kernels.pick(*data[:-1], noise, backend="triton")
        assert_lawful(out, data, noise)
        accepted |= set(out.child.tolist())
    assert 0 in accepted
    assert len(accepted) > 2  # several guesses are accepted here and there


def test_truncated_rows() -> None:
    data = scene(3, 150, 3, Sampling(top_k=20), seed=6)
    assert_lawful(kernels.pick(*data, backend="triton"), data, data[-1])


def test_equal_and_missing_guesses() -> None:
    """Equal guesses count as the first of them; -1 was not drawn; without any the token is the target's."""
    data = scene(6, 40, 3, Sampling(), seed=2)
    tokens = data[4]
    tokens[:, 1] = tokens[:, 0]
    tokens[1, 2] = -1
    tokens[2] = -1
    out = kernels.pick(*data, backend="triton")
    assert_lawful(out, data, data[-1])
    assert (out.child != 2).all()
    assert out.child[2] == 0


def test_the_other_backend_says_the_same() -> None:
    data = scene(8, 300, 3, Sampling(temperature=0.9), seed=3)
    fused, plain = (kernels.pick(*data, backend=backend) for backend in ("triton", "torch"))
    assert torch.equal(fused.child, plain.child)
    assert torch.equal(fused.token, plain.token)


def test_known_summaries_are_used() -> None:
    target, node, draft, row, tokens, controls, noise = scene(4, 300, 2, Sampling(), seed=4)
    laws, drafted = kernels.summarise(target, controls), kernels.summarise(draft, controls)
    made = kernels.pick(target, node, draft, row, tokens, controls, noise, backend="triton")
    given = kernels.pick(
        target, node, draft, row, tokens, controls, noise, laws=laws, drafted=drafted, backend="triton"
    )
    assert torch.equal(made.token, given.token)
    drafted.scale.mul_(0)  # no draft law: nothing was drawn, so every token is the target's
    other = kernels.pick(
        target, node, draft, row, tokens, controls, noise, laws=laws, drafted=drafted, backend="triton"
    )
    p = reference.law(target.double(), controls, tokens[:, :0])[torch.arange(4), node.cpu()]
    assert torch.equal(other.token, sample(p, uniforms(*noise, Lane.NEXT, 1)[:, 0]))
    assert not other.child.any()
    assert made.child.any()


def test_bad_input_is_flagged_and_bounded() -> None:
    """By both backends alike; what counts as not drawn might as well not be there, and others are as they were."""
    target, node, draft, row, tokens, controls, noise = scene(9, 40, 3, Sampling(), seed=5)
    sound = [target.clone(), node, draft.clone(), row, tokens.clone(), controls, noise]
    target[0, node[0], 3] = math.nan
    target[1, node[1], 3] = math.inf
    target[2, node[2]] = -math.inf
    tokens[3, 1], sound[4][3, 1] = 40, -1
    draft[4, row[4], 7], sound[4][4] = math.nan, -1
    draft[5, row[5], 7], sound[4][5] = math.inf, -1
    draft[6, row[6], tokens[6, 0]], sound[2][6, row[6], tokens[6, 0]] = -math.inf, -math.inf
    draft[7, row[7], 7], tokens[7, 0], sound[4][7] = math.nan, 40, -1
    target[8, (node[8] + 1) % 3], draft[8, (row[8] + 1) % 3] = math.nan, math.nan  # other rows than those at hand
    data = [target, node, draft, row, tokens, controls, noise]
    fused, plain = (kernels.pick(*data, backend=backend) for backend in ("triton", "torch"))
    lost, out, broken, zero = Fault.TARGET, Fault.TOKEN, Fault.DRAFT, Fault.IMPOSSIBLE
    assert fused.fault.tolist() == [lost, lost, lost, out, broken, broken, zero, out | broken, 0]
    assert all(torch.equal(a, b) for a, b in zip(fused, plain, strict=True))
    assert fused.child[:3].tolist() == fused.token[:3].tolist() == [0, 0, 0]
    other = kernels.pick(*sound, backend="triton")
    assert torch.equal(fused.child[3:], other.child[3:])
    assert torch.equal(fused.token[3:], other.token[3:])
    assert other.fault.tolist() == [0, 0, 0, 0, 0, 0, zero, 0, 0]


def test_neither_a_mask_nor_greed_hides_a_broken_row() -> None:
    target, node, draft, row, tokens, free, noise = scene(3, 40, 2, Sampling(), seed=5)
    samplings = [Sampling(banned=[3]), Sampling(allowed=[7]), Sampling(temperature=0)]
    target[0, node[0], 3], target[1, node[1], 7], target[2, node[2], 7] = math.nan, -math.inf, math.inf
    for backend in ("triton", "torch"):
        out = kernels.pick(
            target, node, draft, row, tokens, Controls.of(samplings, 3, 40, DEVICE), noise,
            draft_controls=free, backend=backend,
        )  # fmt: skip
        assert out.fault.tolist() == [Fault.TARGET] * 3
        assert out.token.tolist() == out.child.tolist() == [0, 0, 0]


def test_what_is_left_may_hit_a_guess() -> None:
    """All that p has was guessed, the most of it by a guess with q = 0: of its two equals the first is hit."""
    p, q = torch.tensor([0.3, 0.7, 0, 0]), torch.tensor([1.0, 0, 0, 0])
    target, draft = (law.log().expand(8, 1, -1).to(DEVICE) for law in (p, q))
    b = torch.arange(8, device=DEVICE)
    tokens = torch.tensor([[0, 1, 1]], device=DEVICE).expand(8, -1)
    controls, noise = Controls.of([Sampling()] * 8, 1, 4, DEVICE), NoiseKeys(b, b, b * 0)
    fused, plain = (
        kernels.pick(target, b * 0, draft, b * 0, tokens, controls, noise, backend=backend)
        for backend in ("triton", "torch")
    )
    assert all(torch.equal(a, b) for a, b in zip(fused, plain, strict=True))
    assert set(fused.child.tolist()) == {1, 2}
    assert (fused.fault == Fault.IMPOSSIBLE).all()


def test_bins_are_in_order_of_their_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Down to bins of very little mass, which must keep their ratio when it is counted in whole numbers."""
    launch, scratches = importlib.import_module("draftproof.kernels.star.launch"), []
    make = launch.PickScratch.of
    monkeypatch.setattr(launch.PickScratch, "of", lambda *shape: scratches.append(make(*shape)) or scratches[-1])
    generator = torch.Generator().manual_seed(9)
    target = torch.rand(1, 1, 2000, generator=generator) * 28
    draft = (target + torch.randn(target.shape, generator=generator)).to(DEVICE)
    zero = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    controls = Controls.of([Sampling()], 1, 2000, DEVICE)
    kernels.pick(
        target.to(DEVICE), zero, draft, zero, zero[:, None], controls, NoiseKeys(zero, zero, zero), backend="triton"
    )
    p, q = scratches[0].masses_ptr[0].cpu().double()
    ratio = (p[q > 0] / q[q > 0]).log()
    assert len(ratio) > 300
    assert (ratio.diff() > -1e-4).all()


def test_nothing_left_falls_back_to_the_target() -> None:
    """q above p everywhere that p is: only rounding leaves nothing, so it is forced by a summary."""
    target, node, _, _, _, controls, noise = scene(8, 40, 1, Sampling(), seed=8)
    target, node = target[:1].expand(8, -1, -1), node * 0
    laws, drafted = (kernels.summarise(target, controls, crest=False) for _ in range(2))
    drafted.scale.mul_(4)
    p = reference.law(target.double(), controls, node[:, None][:, :0])[:, 0]
    guess = p.argmax(1, keepdim=True)
    out = kernels.pick(
        target, node, target, node, guess, controls, noise, laws=laws, drafted=drafted, backend="triton"
    )  # fmt: skip
    none = out.child == 0
    token = sample(p, uniforms(*noise, Lane.NEXT, 1)[:, 0])
    assert torch.equal(out.token[none], token[none])
    assert (token[none] == guess[none, 0]).any()


@pytest.mark.skipif(DEVICE == "cpu", reason="a graph is captured on a GPU")
def test_nothing_waits_for_the_host() -> None:
    """A pick is captured in a graph, which gives the outcome of whatever stands in its input when it is replayed."""
    data = scene(8, 1271, 4, Sampling(temperature=0.8), seed=1)
    other = scene(8, 1271, 4, Sampling(temperature=0.8), seed=2)
    wanted = kernels.pick(*other, backend="triton")  # also compiles what the graph needs
    first = kernels.pick(*data, backend="triton")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.set_sync_debug_mode("error")
    try:
        kernels.pick(*data, backend="triton")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with torch.cuda.graph(graph):
        out = kernels.pick(*data, backend="triton")
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(out, first, strict=True))
    for old, new in zip(data[:5], other[:5], strict=True):
        old.copy_(new)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(out, wanted, strict=True))
    assert not torch.equal(first.token, wanted.token)


def test_penalties_are_refused() -> None:
    target, node, draft, row, tokens, _, noise = scene(1, 20, 2, Sampling(), seed=5)
    controls = Controls.of([Sampling(presence_penalty=1.0)], 3, 20, DEVICE, [Context((), ())])
    with pytest.raises(DraftproofError, match="penalties depend on the path"):
        kernels.pick(target, node, draft, row, tokens, controls, noise, backend="triton")
