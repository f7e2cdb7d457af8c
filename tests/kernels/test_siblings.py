"""Several guesses after one node, fused, against the law of verify/optimal_binned.py."""

from __future__ import annotations

import pytest
import torch

from draftproof import kernels
from draftproof.errors import DraftproofError
from draftproof.kernels import Controls, Names, Picked, reference
from draftproof.kernels.types import Siblings
from draftproof.law import sample
from draftproof.noise import Lane, uniforms
from draftproof.sampling import Context, Sampling
from draftproof.verify import VERIFIERS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPSILON = 1e-4  # a ratio at the edge of a bin may fall on either side, which moves the plan by a part of its token


def scene(
    batch: int, size: int, guesses: int, control: Sampling, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Controls, Names]:
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
    return *moved, Controls.of([control] * batch, 3, size, DEVICE), Names(*(part.to(DEVICE) for part in (b, b, b * 0)))


def assert_lawful(out: Picked, data: tuple, names: Names) -> None:
    """Every outcome is the law's, or its uniform lies at the edge of the outcome's interval."""
    target, node, draft, row, tokens, controls, _ = data
    star = reference.spread(Siblings(target.double(), node, draft.double(), row, tokens, controls, controls))
    verifier = VERIFIERS["optimal_binned"]
    for law, lane, found, matters in (
        (verifier.stop(star), Lane.STOP, out.child, out.child >= 0),
        (verifier.next(star, node * 0), Lane.NEXT, out.token, out.child == 0),
    ):
        u = uniforms(*names, lane, 1)[:, 0]
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
        names = data[-1]._replace(step=data[-1].step + step)
        out = kernels.pick(*data[:-1], names, backend="triton")
        assert_lawful(out, data, names)
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
    target, node, draft, row, tokens, controls, names = scene(4, 300, 2, Sampling(), seed=4)
    laws, drafted = kernels.summarise(target, controls), kernels.summarise(draft, controls)
    made = kernels.pick(target, node, draft, row, tokens, controls, names, backend="triton")
    given = kernels.pick(
        target, node, draft, row, tokens, controls, names, laws=laws, drafted=drafted, backend="triton"
    )
    assert torch.equal(made.token, given.token)
    drafted.scale.mul_(0)  # no draft law: nothing was drawn, so every token is the target's
    other = kernels.pick(
        target, node, draft, row, tokens, controls, names, laws=laws, drafted=drafted, backend="triton"
    )
    p = reference.law(target.double(), controls, tokens[:, :0])[torch.arange(4), node.cpu()]
    bare = p.scatter(1, tokens, 0)
    u = uniforms(*names, Lane.NEXT, 1)[:, 0]
    assert torch.equal(other.token[other.child == 0], sample(bare, u)[other.child == 0])
    assert not torch.equal(made.child, other.child)


def test_a_broken_target_row_is_refused() -> None:
    target, node, draft, row, tokens, controls, names = scene(2, 20, 2, Sampling(), seed=5)
    target[1, node[1], 3] = float("nan")
    with pytest.raises(DraftproofError, match="a target row holds NaN"):
        kernels.pick(target, node, draft, row, tokens, controls, names, backend="triton")


def test_penalties_are_refused() -> None:
    target, node, draft, row, tokens, _, names = scene(1, 20, 2, Sampling(), seed=5)
    controls = Controls.of([Sampling(presence_penalty=1.0)], 3, 20, DEVICE, [Context((), ())])
    with pytest.raises(DraftproofError, match="penalties depend on the path"):
        kernels.pick(target, node, draft, row, tokens, controls, names, backend="triton")
