"""The fused kernels against the laws of verify/: every rule, control, dtype and odd shape."""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING

import pytest
import torch

from draftproof import kernels, sampling
from draftproof.errors import DraftproofError
from draftproof.kernels import ChainRule, Controls, Emitted, Fault, NoiseKeys, Summary, agreement, reference
from draftproof.law import sample
from draftproof.noise import Lane, uniforms
from draftproof.sampling import Context, Sampling
from tests.support.marks import INTERPRETED

if TYPE_CHECKING:
    from draftproof.kernels.chain.workspace import Workspace

pytestmark = INTERPRETED

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RULES = list(ChainRule)
CONTROLS = {
    "temperature": Sampling(temperature=0.7),
    "greedy": Sampling(temperature=0),
    "top_k": Sampling(top_k=7),
    "top_k beyond the groups": Sampling(top_k=200),
    "top_p": Sampling(top_p=0.8),
    "min_p": Sampling(min_p=0.05),
    "all truncations": Sampling(temperature=1.3, top_k=50, top_p=0.9, min_p=0.02),
    "bias": Sampling(logit_bias={3: 4.0, 699: -2.0, 5: -math.inf}),
    "masks": Sampling(allowed=range(0, 700, 3), banned=[3, 9], top_k=20),
    "penalties": Sampling(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2, top_p=0.95),
}


@pytest.fixture(autouse=True)
def _garbage():
    """Memory that was not written holds NaN here, so that a kernel that reads it is seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def logits(batch: int, nodes: int, size: int, dtype: torch.dtype, seed: int = 0, spread: float = 3.0):
    """Target logits [B, N, V] and drafter's logits [B, N - 1, V] that resemble them."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(batch, nodes, size, generator=generator) * spread
    draft = target[:, :-1] + torch.randn(batch, nodes - 1, size, generator=generator) * 0.7
    return target.to(dtype).to(DEVICE), draft.to(dtype).to(DEVICE)


def keys(batch: int, step: int = 1) -> NoiseKeys:
    """Different keys for each sequence, with a seed that fills both words of the key."""
    b = torch.arange(batch, device=DEVICE)
    return NoiseKeys((b + 5) * 0x123456789, b * 7 + 1, b * 0 + step)


def workspace(batch: int, nodes: int, size: int, **tiling: int) -> Workspace:
    """Scratch memory of a shape that is divided among programs in another way than by default."""
    space = kernels.workspace(batch, nodes, size, DEVICE)
    return type(space).of(batch, nodes, size, torch.device(DEVICE), space.tiling._replace(**tiling))


def propose(draft: torch.Tensor, controls: Controls, noise: NoiseKeys) -> tuple[torch.Tensor, Summary]:
    """Drafts by the fused sampler, and what it kept of each row."""
    batch, drafts, _ = draft.shape
    tokens = torch.full((batch, drafts), -1, dtype=torch.int64, device=draft.device)
    kept = Summary.empty(batch, drafts, draft.device, crest=True)
    for k in range(drafts):
        column = kept.at(slice(k, k + 1))
        tokens[:, k], _ = kernels.sample(
            draft[:, k], controls, noise, node=k, index=k + 1, tokens=tokens, summary=column, backend="triton"
        )
    return tokens, kept


def check(
    samplings: list[Sampling], rules: list[ChainRule], shape: tuple[int, int, int], dtype: torch.dtype = torch.bfloat16,
    contexts: list[Context] | None = None, lengths: list[int] | None = None, seed: int = 0, spread: float = 3.0,
) -> Emitted:  # fmt: skip
    """Draft and verify; assert agreement with the laws but for near-ties, at most one in fifty sequences."""
    batch, nodes, size = shape
    target, draft = logits(batch, nodes, size, dtype, seed, spread)
    controls = Controls.of([samplings[b % len(samplings)] for b in range(batch)], nodes, size, DEVICE, contexts)
    rule = torch.tensor([rules[b % len(rules)] for b in range(batch)], dtype=torch.int32, device=DEVICE)
    noise = keys(batch)
    tokens, kept = propose(draft, controls, noise)
    for b, length in enumerate(lengths or []):
        tokens[b, length:] = -1
    out = kernels.verify(target, draft, tokens, controls, rule, noise, drafted=kept, backend="triton")
    found = agreement.compare(out, target, draft, tokens, controls, rule, noise)
    assert found.wrong == 0
    assert found.near_ties <= 1 + batch // 50
    assert not out.fault.any()
    return out


@pytest.mark.parametrize("control", CONTROLS)
def test_each_control_alone(control: str) -> None:
    contexts = [Context((1, 2, 3, 3), (4, 4, 699)), Context((9,), ()), Context((0, 1), (7,))]
    check([CONTROLS[control]], RULES, (3, 3, 1271), contexts=contexts)


def test_every_control_and_rule_in_one_launch() -> None:
    contexts = [Context((b, b + 1), (b,)) for b in range(10)]
    check(list(CONTROLS.values()), RULES, (10, 3, 700), contexts=contexts, lengths=[2, 1, 0, 2, 2] * 2, seed=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_every_type(dtype: torch.dtype) -> None:
    """A search goes over the bits that scores of the type have."""
    controls = [CONTROLS[name] for name in ("top_k", "top_p", "min_p", "temperature")]
    check(controls, RULES, (4, 2, 300), dtype, seed=1)


@pytest.mark.parametrize("shape", [(3, 5, 1271), (1, 1, 2), (3, 4, 33), (1, 2, 50257)], ids=str)
def test_odd_shapes(shape: tuple[int, int, int]) -> None:
    check([CONTROLS["temperature"]], RULES, shape, seed=2)


@pytest.mark.parametrize("shape", [(1, 1, 2), (3, 2, 33), (1, 2, 50257)], ids=str)
def test_odd_shapes_truncated(shape: tuple[int, int, int]) -> None:
    check([CONTROLS["all truncations"]], RULES, shape, seed=2)


def test_a_flat_row_is_cut_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many candidates that their list overflows: rows are then searched group by group, more slowly."""
    monkeypatch.setattr(importlib.import_module("draftproof.kernels.chain.plan"), "CAPACITY", 100)
    check([Sampling(top_p=0.6), Sampling(top_k=90, top_p=0.7)], RULES, (3, 2, 700), spread=0.05, seed=4)
    check([Sampling(top_k=200), Sampling(top_k=9)], RULES, (4, 3, 700), spread=0.05, seed=4)  # lists alone, or not even


@pytest.mark.parametrize("control", [Sampling(top_k=4), Sampling(top_p=0.5), Sampling(top_k=6, top_p=0.45)], ids=str)
def test_equal_scores_are_kept_and_cut_as_the_law_does(control: Sampling) -> None:
    rows = torch.tensor([[2, 1, 2, 0, 1, 1, 2, 0, 1, 0.5], [0] * 10, [-0.0, 0, 0, -1, 0, 0, 3, 3, 3, 3]])
    rows = rows.to(torch.bfloat16).to(DEVICE)
    controls = Controls.of([control] * 3, 1, 10, DEVICE)
    law = reference.law(rows[:, None].double(), controls, torch.zeros(3, 0, dtype=torch.int64, device=DEVICE))[:, 0]
    _, kept = kernels.sample(rows, controls, keys(3), backend="triton")
    score, ids = rows.float(), torch.arange(10, device=DEVICE)
    stays = (score > kept.cutoff) | ((score == kept.cutoff) & (ids >= kept.first))
    assert torch.equal(stays, law > 0)
    weight = torch.where(stays, torch.exp2(score * math.log2(math.e) - kept.shift) * kept.scale, 0)
    torch.testing.assert_close(weight.double(), law, rtol=1e-6, atol=1e-7)
    noise = keys(30)
    drawn, _ = kernels.sample(rows.repeat(10, 1), Controls.of([control] * 30, 1, 10, DEVICE), noise, backend="triton")
    assert torch.equal(drawn, sample(law.repeat(10, 1), uniforms(*noise, Lane.DRAFT, 1)[:, 0]))


def test_truncation_laws_are_those_of_sampling() -> None:
    rows = torch.randn(4, 1, 61, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    context = Context((1, 5, 5), (7, 8))
    empty = torch.zeros(4, 0, dtype=torch.int64)
    for control in CONTROLS.values():
        bias = {t: v for t, v in control.logit_bias.items() if t < 61}
        settings = {name: getattr(control, name) for name in control.__dataclass_fields__}
        settings["allowed"] = None if control.allowed is None else range(0, 61, 3)
        control = Sampling(**{**settings, "logit_bias": bias})
        fused = reference.law(rows, Controls.of([control] * 4, 1, 61, contexts=[context] * 4), empty)[:, 0]
        torch.testing.assert_close(fused, sampling.law(rows[:, 0], control, [context] * 4), rtol=1e-6, atol=1e-8)


def test_history_of_a_node_holds_its_path() -> None:
    controls = Controls.of([Sampling(presence_penalty=30.0)], 3, 5, DEVICE, [Context((), ())])
    target = torch.zeros(1, 3, 5, device=DEVICE)
    tokens = torch.tensor([[2, 4]], device=DEVICE)
    for step in range(8):
        out = kernels.verify(target, None, tokens, controls, _rules(ChainRule.ONEHOT), keys(1, step), backend="triton")
        emitted = [t for t in out.tokens[0].tolist() if t >= 0]
        assert len(set(emitted)) == len(emitted)


def test_drafter_draws_the_laws_tokens() -> None:
    _, draft = logits(6, 2, 1271, torch.bfloat16)
    controls = Controls.of([CONTROLS[c] for c in list(CONTROLS)[:6]], 2, 1271, DEVICE)
    noise = keys(6)
    tokens, _ = kernels.sample(draft[:, 0], controls, noise, index=4, backend="triton")
    law = reference.law(draft.double(), controls, torch.zeros(6, 0, dtype=torch.int64, device=DEVICE))[:, 0]
    assert torch.equal(tokens, sample(law, uniforms(*noise, Lane.DRAFT, 5)[:, 4]))
    same, none = kernels.sample(draft[:, 0], controls, noise, index=4, backend="torch")
    assert none is None
    assert torch.equal(same, tokens)


def test_summaries_are_made_when_they_are_missing() -> None:
    target, draft = logits(4, 3, 300, torch.bfloat16)
    controls = Controls.of([Sampling(top_k=9), Sampling()] * 2, 3, 300, DEVICE)
    noise, rule = keys(4), _rules(ChainRule.TOKEN, ChainRule.BLOCK, ChainRule.BLOCK, ChainRule.TOKEN)
    tokens, kept = propose(draft, controls, noise)
    given = kernels.verify(target, draft, tokens, controls, rule, noise, drafted=kept, backend="triton")
    made = kernels.verify(target, draft, tokens, controls, rule, noise, backend="triton")
    assert torch.equal(given.tokens, made.tokens)


@pytest.mark.parametrize("rule", [ChainRule.TOKEN, ChainRule.BLOCK])
def test_the_drafter_may_have_controls_of_its_own(rule: ChainRule) -> None:
    """Greedy, truncated and plain drafters for plain, truncated and greedy targets."""
    target, draft = logits(4, 3, 300, torch.bfloat16, seed=11)
    ours = Controls.of([Sampling(), Sampling(top_k=9), Sampling(temperature=0), Sampling(top_p=0.9)], 3, 300, DEVICE)
    theirs = Controls.of(
        [Sampling(temperature=0), Sampling(temperature=0.5), Sampling(min_p=0.1), Sampling(top_k=5)], 3, 300, DEVICE
    )
    noise, rules = keys(4), _rules(*[rule] * 4)
    tokens, kept = propose(draft, theirs, noise)
    out = kernels.verify(
        target, draft, tokens, ours, rules, noise, drafted=kept, draft_controls=theirs, backend="triton"
    )
    assert agreement.compare(out, target, draft, tokens, ours, rules, noise, theirs) == (0, 0)
    for controls in (ours, None):  # the drafter's controls matter: with the target's own the outcome differs
        made = kernels.verify(
            target, draft, tokens, ours, rules, noise, draft_controls=controls or theirs, backend="triton"
        )
        assert torch.equal(made.tokens, out.tokens) == (controls is None)


def test_logprobs_are_the_targets() -> None:
    target, draft = logits(4, 3, 1271, torch.bfloat16, seed=6)
    controls = Controls.of([Sampling(temperature=0.9, top_p=0.9)] * 4, 3, 1271, DEVICE)
    noise, rule = keys(4), _rules(ChainRule.TOKEN, ChainRule.BLOCK, ChainRule.BLOCK, ChainRule.TOKEN)
    tokens, kept = propose(draft, controls, noise)
    out = kernels.verify(target, draft, tokens, controls, rule, noise, drafted=kept, logprobs=True, backend="triton")
    right = reference.verify(target.double(), draft.double(), tokens, controls, rule, noise, logprobs=True)
    torch.testing.assert_close(out.logprob, right.logprob, rtol=1e-5, atol=1e-6)


def test_a_workspace_serves_many_calls() -> None:
    target, draft = logits(2, 2, 300, torch.bfloat16)
    controls = Controls.of([Sampling(top_k=9), Sampling()], 2, 300, DEVICE)
    space = kernels.workspace(2, 2, 300, DEVICE)
    rule = _rules(ChainRule.TOKEN, ChainRule.BLOCK)
    for step in range(2):
        noise = keys(2, step)
        tokens, kept = propose(draft, controls, noise)
        again = [
            kernels.verify(target, draft, tokens, controls, rule, noise, drafted=kept, backend="triton", workspace=w)
            for w in (space, None)
        ]
        assert torch.equal(again[0].tokens, again[1].tokens)


@pytest.mark.parametrize(
    "control",
    [Sampling(), Sampling(top_k=5), Sampling(top_p=0.9), Sampling(temperature=0)],
    ids=["plain", "top_k", "top_p", "greedy"],
)
def test_a_row_in_several_spans(control: Sampling) -> None:
    """Spans of several tiles, and several programs that sum a sequence's excess: the same tokens."""
    launch = importlib.import_module("draftproof.kernels.chain.launch")
    target, draft = logits(3, 3, 700, torch.bfloat16, seed=7)
    controls = Controls.of([control] * 3, 3, 700, DEVICE)
    rule = _rules(ChainRule.TOKEN, ChainRule.BLOCK, ChainRule.ONEHOT)
    space = workspace(3, 3, 700, span=256, tile=128, group=64, parts=2, ranks=2)
    rows = workspace(3, 2, 700, span=256, tile=128, group=64, parts=2, ranks=2)
    noise = keys(3)
    tokens, kept = propose(draft, controls, noise)
    laws = launch.summarise_rows(launch.ChainRows(draft, tokens, controls), workspace=rows)
    assert torch.allclose(laws.scale, kept.scale, rtol=1e-6)
    out = kernels.verify(target, draft, tokens, controls, rule, noise, drafted=laws, backend="triton", workspace=space)
    assert agreement.compare(out, target, draft, tokens, controls, rule, noise) == (0, 0)


def test_a_row_cut_by_the_program_that_reads_it() -> None:
    """As with a few hundred rows: the laws that a kernel of their own gives, those of broken rows too."""
    launch = importlib.import_module("draftproof.kernels.chain.launch")
    target, draft = logits(6, 2, 700, torch.bfloat16, seed=9)
    few = [Sampling(top_k=5), Sampling(temperature=0), Sampling(top_k=40, top_p=0.8, min_p=0.1)]
    controls, rule, noise = Controls.of(few * 2, 2, 700, DEVICE), _rules(*RULES * 2), keys(6)
    tokens, kept = propose(draft, controls, noise)
    assert not kernels.workspace(6, 2, 700, DEVICE).tiling.fuse_truncation
    spaces = [workspace(6, 2, 700, fuse_truncation=fused) for fused in (False, True)]
    out = kernels.verify(
        target, draft, tokens, controls, rule, noise, drafted=kept, backend="triton", workspace=spaces[1]
    )
    assert agreement.compare(out, target, draft, tokens, controls, rule, noise) == (0, 0)
    target[2, 0, 7], target[3, 1, 5], target[4, 1] = math.nan, math.inf, -math.inf
    rows = launch.ChainRows(target, tokens, controls)
    apart, at_once = (launch.summarise_rows(rows, workspace=space) for space in spaces)
    assert (~(apart.scale > 0)).sum() == 3
    for one, other in zip(apart, at_once, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_a_few_tokens_narrow_block_verification_down() -> None:
    """The largest tokens of the parts of a draft row; their bounds settle some sequences and leave others open."""
    target, draft = logits(9, 4, 270, torch.bfloat16, seed=3)
    ours, theirs = (Controls.of([s] * 9, 4, 270, DEVICE) for s in (Sampling(), Sampling(top_k=40)))
    noise, rule = keys(9), _rules(*[ChainRule.BLOCK] * 9)
    rows = []
    for controls, crest in ((theirs, True), (ours, False), (ours, True)):
        space = workspace(9, 4, 270, span=256, tile=128, group=32, parts=2, ranks=1)
        law = reference.law(draft, controls, torch.zeros(9, 0, dtype=torch.int64, device=DEVICE))
        tokens = sample(law, uniforms(*noise, Lane.DRAFT, 3))
        kept = kernels.summarise(draft, controls, tokens, crest)
        out = kernels.verify(
            target, draft, tokens, ours, rule, noise, drafted=kept, draft_controls=controls, backend="triton",
            workspace=space,
        )  # fmt: skip
        assert agreement.compare(out, target, draft, tokens, ours, rule, noise, controls) == (0, 0)
        rows.append(9 + int(space.state.overflow_ptr[0]))  # one a sequence, and those that are open
    assert 9 < rows[2] < rows[1]


@pytest.mark.parametrize("ranks", [1, 5])
def test_block_verification_ends_wherever_it_may(ranks: int) -> None:
    """Many sequences, some of which are open from a later node on; with an entry for every row and without."""
    from draftproof.kernels.chain.state import LOW, STOP

    target, draft = logits(96, 5, 40, torch.float32, seed=12, spread=1.5)
    controls, noise, rule = Controls.of([Sampling()] * 96, 5, 40, DEVICE), keys(96), _rules(*[ChainRule.BLOCK] * 96)
    law = reference.law(draft, controls, torch.zeros(96, 0, dtype=torch.int64, device=DEVICE))
    tokens = sample(law, uniforms(*noise, Lane.DRAFT, 4))
    space = workspace(96, 5, 40, span=64, tile=64, group=32, parts=2, ranks=ranks)
    out = kernels.verify(target, draft, tokens, controls, rule, noise, backend="triton", workspace=space)
    assert agreement.compare(out, target, draft, tokens, controls, rule, noise) == (0, 0)
    stop, low = (space.state.decision_ptr[:, field.value] for field in (STOP, LOW))
    assert ((stop < 0) & (low > 0)).sum() > 3
    assert ((stop < 0) & (out.accepted > low)).sum() > 3


def test_a_draft_row_s_crest_are_different_tokens_and_the_largest_of_them_is_the_row_s() -> None:
    launch = importlib.import_module("draftproof.kernels.chain.launch")
    # a span names 16 at most, the largest of as many parts of its tiles; of 71 spans the first 64 name one
    for size, span, many in ((270, 256, 16 + 2), (1271, 2048, 16), (40, 64, 5), (9000, 128, 64)):
        rows = logits(2, 3, size, torch.bfloat16, seed=4)[0]
        controls = Controls.of([Sampling()] * 2, 3, size, DEVICE)
        space = workspace(2, 3, size, span=span, tile=min(span, 128), group=32, parts=2, ranks=1)
        kept = Summary.empty(2, 3, torch.device(DEVICE), crest=True)
        none = torch.zeros(2, 2, dtype=torch.int64, device=DEVICE)
        launch.summarise_rows(launch.ChainRows(rows, none, controls), summary=kept, workspace=space)
        for crest, row in zip(kept.crest.flatten(0, 1), rows.float().flatten(0, 1), strict=True):
            ids = crest[crest >= 0]
            assert len(set(ids.tolist())) == len(ids) == many
            assert (ids < size).all()
            assert size > 64 * span or row[ids].max() == row.max()


def test_a_zero_residual_falls_back_to_the_target() -> None:
    """q above p everywhere that p is: an impossible stop that only rounding can reach, so it is forced by a summary."""
    target = torch.tensor([[[0.0, 1.0, 2.0, 0.5]] * 2], device=DEVICE)
    controls = Controls.of([Sampling()], 2, 4, DEVICE)
    tokens = torch.tensor([[2]], device=DEVICE)
    kept = Summary.empty(1, 1, torch.device(DEVICE))
    kept.shift.fill_(0.0)
    kept.scale.fill_(1.0)  # q(v) = exp(score) far above p
    for step in range(12):
        noise = keys(1, step)
        out = kernels.verify(
            target, target[:, :1], tokens, controls, _rules(ChainRule.TOKEN), noise, drafted=kept, backend="triton"
        )
        if not out.accepted.item():
            p = reference.law(target.double(), controls, tokens)[:, 0]
            assert out.tokens[0, 0] == sample(p, uniforms(*noise, Lane.NEXT, 1)[:, 0])[0]
            return
    pytest.fail("no step stopped at node 0")


@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_bad_input_is_flagged_and_never_leaves_the_vocabulary(backend: str) -> None:
    target, draft = logits(8, 3, 130, torch.float32, seed=8)
    tokens = torch.full((8, 2), 5, dtype=torch.int64, device=DEVICE)
    target[0, 1, 7] = math.nan
    target[1, 0] = -math.inf
    target[2, 1, 9] = math.inf
    tokens[3, 1] = 130
    draft[4, 1, 3] = math.nan
    draft[5, 0, 5] = -math.inf
    target[6, :, 11:] = -math.inf
    tokens[7] = torch.tensor([-1, -1])
    target[7, 2] = math.nan  # beyond the end of the draft: never read
    for control in (Sampling(), Sampling(top_k=5)):
        controls = Controls.of([control] * 8, 3, 130, DEVICE)
        rule = _rules(*[ChainRule.TOKEN] * 8)
        out = kernels.verify(target, draft, tokens, controls, rule, keys(8), backend=backend, logprobs=True)
        assert (out.logprob[:3] == 0).all()
        lost, end, broken, zero = Fault.TARGET, Fault.TOKEN, Fault.DRAFT, Fault.IMPOSSIBLE
        if control.top_k:  # token 5 may be cut from any draft row
            assert [f & ~int(zero) for f in out.fault.tolist()] == [lost, lost, lost, end, broken, 0, 0, 0]
        else:
            assert out.fault.tolist() == [lost, lost, lost, end, broken, zero, 0, 0]
        assert ((out.tokens >= -1) & (out.tokens < 130)).all()
        assert out.accepted[:3].tolist() == [0, 0, 0]
        assert out.tokens[:3, 0].tolist() == [0, 0, 0]
        assert out.accepted[3] <= 1
        assert out.accepted[4] <= 1
        assert out.accepted[5] == 0
        assert out.tokens[6, out.accepted[6]] < 11
        assert out.accepted[7] == 0


@pytest.mark.parametrize("control", [Sampling(), Sampling(top_k=60)], ids=["plain", "top_k"])
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_a_rule_that_needs_draft_rows_takes_no_draft_without_them(backend: str, control: Sampling) -> None:
    """The token is the target's then, as if nothing were drafted."""
    target, draft = logits(9, 3, 130, torch.bfloat16, seed=5)
    controls = Controls.of([control] * 9, 3, 130, DEVICE)
    tokens, _ = propose(draft, controls, keys(9))
    rule = _rules(*RULES * 3)
    tokens[3:5] = -1  # nothing to be refused
    out = kernels.verify(target, None, tokens, controls, rule, keys(9), backend=backend)
    assert out.fault.tolist() == [Fault.DRAFT, Fault.DRAFT, 0, 0, 0, 0, Fault.DRAFT, Fault.DRAFT, 0]
    assert agreement.compare(out, target, None, tokens, controls, rule, keys(9)) == (0, 0)
    bare = kernels.verify(target, None, tokens * 0 - 1, controls, rule, keys(9), backend=backend)
    needy = rule != ChainRule.ONEHOT
    assert torch.equal(out.tokens[needy], bare.tokens[needy])
    assert out.accepted[~needy].any()


@pytest.mark.parametrize("control", [Sampling(), Sampling(top_k=60)], ids=["plain", "top_k"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_the_last_row_matters_if_it_is_reached(backend: str, bad: float, control: Sampling) -> None:
    """A broken one is flagged only where all drafts are accepted; without truncation it is not even read before."""
    target, draft = logits(6, 3, 130, torch.bfloat16, seed=5)
    controls = Controls.of([control] * 6, 3, 130, DEVICE)
    tokens, kept = propose(draft, controls, keys(6))
    rule = _rules(*RULES * 2)
    sound = kernels.verify(target, draft, tokens, controls, rule, keys(6), drafted=kept, backend=backend)
    target[:, 2, 9] = bad
    out = kernels.verify(target, draft, tokens, controls, rule, keys(6), drafted=kept, backend=backend)
    reached = sound.accepted == 2
    assert 0 < reached.sum() < 6
    assert torch.equal(out.fault, torch.where(reached, int(Fault.TARGET), 0).int())
    assert torch.equal(out.tokens[~reached], sound.tokens[~reached])
    assert out.tokens[reached].tolist() == [[0, -1, -1]] * int(reached.sum())


@pytest.mark.parametrize("name", ["temperature", "greedy", "top_k", "top_p", "bias"])
def test_both_backends_bear_with_the_same_faults(name: str) -> None:
    """Random ones, several at a time, in drafts of all rules."""
    generator = torch.Generator().manual_seed(4)
    flagged = set()
    for step in range(4):
        target, draft = logits(9, 4, 90, torch.float32, seed=30 + step)
        control = Sampling(logit_bias={3: 4.0, 5: -math.inf}) if name == "bias" else CONTROLS[name]
        controls = Controls.of([control, Sampling()] * 4 + [control], 4, 90, DEVICE)
        tokens, _ = propose(draft, controls, keys(9, step))
        for rows in (target, draft):
            for value in (math.nan, math.inf):
                hit = (torch.rand(rows.shape[:2], generator=generator) < 0.1).to(DEVICE)
                rows[..., 3] = torch.where(hit, value, rows[..., 3])
        draft[..., 5] = -math.inf
        for wrong in (-1, 5, 90, 2**40):
            tokens[(torch.rand(tokens.shape, generator=generator) < 0.06).to(DEVICE)] = wrong
        rule = _rules(*RULES * 3)
        both = [
            kernels.verify(target, draft, tokens, controls, rule, keys(9, step), backend=backend)
            for backend in ("triton", "torch")
        ]
        for mine, other in zip(*(out[:3] for out in both), strict=True):
            assert torch.equal(mine, other)
        flagged |= set(both[0].fault.tolist())
    assert {flag for fault in flagged for flag in Fault if flag & fault} == set(Fault)


def test_one_allowed_token() -> None:
    target, draft = logits(3, 3, 70, torch.float16)
    controls = Controls.of(
        [Sampling(allowed=[69]), Sampling(temperature=0, allowed=[69]), Sampling(top_k=1)], 3, 70, DEVICE
    )
    tokens, kept = propose(draft, controls, keys(3))
    assert (tokens[:2] == 69).all()
    out = kernels.verify(
        target,
        draft,
        tokens,
        controls,
        _rules(ChainRule.TOKEN, ChainRule.BLOCK, ChainRule.TOKEN),
        keys(3),
        drafted=kept,
        backend="triton",
    )
    assert out.tokens[:2].tolist() == [[69, 69, 69]] * 2
    assert not out.fault.any()


def test_errors_name_the_value_and_the_remedy() -> None:
    target, draft = logits(1, 2, 8, torch.float32)
    controls = Controls.of([Sampling()], 2, 8, DEVICE)
    tokens = torch.zeros(1, 1, dtype=torch.int64, device=DEVICE)
    with pytest.raises(DraftproofError, match="unknown backend 'cuda'"):
        kernels.verify(target, draft, tokens, controls, _rules(ChainRule.TOKEN), keys(1), backend="cuda")
    with pytest.raises(DraftproofError, match="typical_p has no fused kernel"):
        Controls.of([Sampling(typical_p=0.9)], 2, 8, DEVICE)
    with pytest.raises(DraftproofError, match="pass `contexts`"):
        Controls.of([Sampling(presence_penalty=1.0)], 2, 8, DEVICE)
    with pytest.raises(DraftproofError, match="float64"):
        kernels.verify(target.double(), draft.double(), tokens, controls, _rules(ChainRule.TOKEN), keys(1))


def _rules(*rules: ChainRule) -> torch.Tensor:
    return torch.tensor(rules, dtype=torch.int32, device=DEVICE)
