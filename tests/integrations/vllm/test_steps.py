"""Steps that were recorded in vLLM's model runners: their layouts, and verification by the laws of the rules."""

from __future__ import annotations

import json
import weakref
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from draftproof import kernels
from draftproof.draft import Draft, Tree
from draftproof.integrations.vllm import launches
from draftproof.integrations.vllm.counters import WIDTH, add_up
from draftproof.integrations.vllm.layout import (
    FlatDrafts,
    SlotColumns,
    SlotStep,
    ended_by_grammars,
    slot_rows,
    slot_step,
    to_device,
)
from draftproof.integrations.vllm.requests import Mix
from draftproof.integrations.vllm.verification import ServedStep, Verification, controls_of, of_one_width
from draftproof.kernels import ChainRule, NoiseKeys, Ragged
from draftproof.law import sample
from draftproof.noise import Lane, uniforms
from draftproof.verify import VERIFIERS
from tests.support import gof

DATA = Path(__file__).parents[2] / "data"
CPU = torch.device("cpu")
PLAIN = Mix(raw=True, truncates=0, greedy=False, whole=True)


def recorded(runner: str) -> dict[str, torch.Tensor]:
    """The arguments of a step; the lengths are made from what the runner has."""
    return {
        name: torch.tensor(value) for name, value in json.loads((DATA / f"vllm_step_{runner}.json").read_text()).items()
    }


def step_of(runner: str, rule: ChainRule, seeds: torch.Tensor | None = None) -> ServedStep:
    """The step as the plug-in makes it, with the controls of the recording: temperature 1."""
    data = recorded(runner)
    if runner == "v1":
        flat = FlatDrafts.of(data["lengths"].tolist(), CPU)
        target, draft = flat.target(data["logits"]), flat.draft(data["draft_probs"].log())
        tokens = flat.tokens(data["draft_token_ids"])
    else:
        nodes = data["draft_logits"].shape[1] + 1
        found = slots_of(data["draft_sampled"], data["starts"], nodes, data["slot"])
        target, tokens = Ragged(data["logits"], found.first, nodes), found.tokens
        draft = Ragged(slot_rows(data["draft_logits"]), found.draft_first, nodes - 1)
    batch = len(tokens)
    one, zero = torch.ones(batch), torch.zeros(batch, dtype=torch.int64)
    noise = NoiseKeys(torch.arange(batch) + 7 if seeds is None else seeds, zero, zero)
    rules = torch.full((batch,), rule, dtype=torch.int32)
    return ServedStep(target, draft, tokens, controls_of(one, PLAIN), controls_of(one, PLAIN), rules, noise)


def slots_of(
    sampled: torch.Tensor,
    starts: torch.Tensor,
    nodes: int,
    slot: torch.Tensor,
    gather: Any = slot_step,
    truncates: bool = True,
    processed: bool = False,
) -> SlotStep:
    """What requests in these slots need, beside controls of eight slots."""
    torch.manual_seed(4)
    columns = SlotColumns(
        torch.rand(8), torch.randint(1, 101, (8,), dtype=torch.int32), torch.rand(8), torch.rand(8),
        torch.randint(-(2**63), 2**63 - 1, (8,)), torch.randint(0, 3, (8,), dtype=torch.int32),
    )  # fmt: skip
    columns.top_k[slot[0]] = 100  # off
    position = torch.arange(len(sampled)) * 3
    columns.temperature[slot[-1]] = 0
    return gather(  # type: ignore[no-any-return]
        columns, slot, starts, position, sampled, nodes=nodes, depth=nodes - 1, vocabulary=100, truncates=truncates,
        processed=processed,
    )  # fmt: skip


def alone(step: ServedStep, rule: ChainRule, b: int) -> list[int]:
    """What request b gets by the laws of the rule, from its own rows, one by one."""
    tokens = [token for token in step.tokens[b].tolist() if token >= 0]
    first, length = int(step.target.first[b]), len(tokens)
    p = step.target.rows[first : first + length + 1].double().softmax(-1)[None]
    q = torch.zeros_like(p)
    if length:
        start = int(step.draft.first[b])
        q[0, :-1] = step.draft.rows[start : start + length].double().softmax(-1)
    draft = Draft(Tree.chain(length), torch.tensor([[0, *tokens]]), q, p)
    verifier = VERIFIERS[rule.name.lower()]
    u, v = (uniforms(*(key[b : b + 1] for key in step.noise), lane, 1)[:, 0] for lane in (Lane.STOP, Lane.NEXT))
    node = sample(verifier.stop(draft), u)
    return [*tokens[: int(node)], int(sample(verifier.next(draft, node), v))]


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize("rule", ChainRule)
def test_a_recorded_step_is_verified_as_by_the_laws(runner: str, rule: ChainRule) -> None:
    for seed in range(20):
        step = step_of(runner, rule, torch.arange(len(step_of(runner, rule).tokens)) + 100 * seed)
        out, number = Verification(CPU)(step)
        assert number.equal(out.accepted + 1)
        for b, row in enumerate(out.tokens.tolist()):
            assert [token for token in row if token >= 0] == alone(step, rule, b)
        assert not out.fault.any()


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_rows_lie_where_vllm_says(runner: str) -> None:
    data, step = recorded(runner), step_of(runner, ChainRule.BLOCK)
    lengths = (step.tokens >= 0).sum(1).tolist()
    assert len(set(lengths)) > 1  # some requests draft, others do not
    assert sum(lengths) + len(lengths) == len(data["logits"])
    last = [int(first) + length for first, length in zip(step.target.first, lengths, strict=True)]
    if runner == "v1":
        assert last == data["bonus_rows"].tolist()
        rows = [r for first, end in zip(step.target.first.tolist(), last, strict=True) for r in range(first, end)]
        assert rows == data["target_rows"].tolist()
        assert step.tokens[step.tokens >= 0].tolist() == data["draft_token_ids"].tolist()
    else:
        assert [end + 1 for end in last] == data["starts"][1:].tolist()
        assert step.draft.gathered()[0].tolist() == data["draft_logits"][int(data["slot"][0])].tolist()


@pytest.mark.parametrize("rule", ["token", "block"])
def test_what_follows_a_recorded_context_has_the_targets_law(rule: str) -> None:
    """The first token that a request gets, over many drafts from its recorded law and many seeds."""
    step, times = step_of("v1", ChainRule[rule.upper()]), 3000
    b = int((step.tokens >= 0).sum(1).argmax())
    target = step.target.gathered()[b : b + 1].expand(times, -1, -1).flatten(0, 1)
    laws = step.draft.gathered()[b]
    draft = laws.expand(times, -1, -1).flatten(0, 1)
    generator = torch.Generator().manual_seed(5)
    tokens = torch.multinomial(laws.exp(), times, replacement=True, generator=generator).T.contiguous()
    n, place = step.target.nodes, torch.arange(times)
    one, zero = torch.ones(times), torch.zeros(times, dtype=torch.int64)
    many = ServedStep(
        Ragged(target, place * n, n), Ragged(draft, place * (n - 1), n - 1), tokens, controls_of(one, PLAIN),
        controls_of(one, PLAIN), torch.full((times,), ChainRule[rule.upper()], dtype=torch.int32),
        NoiseKeys(place, zero, zero),
    )  # fmt: skip
    counts = Counter(Verification(CPU)(many)[0].tokens[:, 0].tolist())
    p = step.target.rows[int(step.target.first[b])].double().softmax(-1).tolist()
    large = {token: mass for token, mass in enumerate(p) if mass * times > 20}
    rest = {"rest": sum(p) - sum(large.values())}
    gof.check({**{t: counts[t] for t in large}, "rest": times - sum(counts[t] for t in large)}, large | rest)


def test_padded_drafts_end_at_the_first_padding() -> None:
    flat = FlatDrafts.of([3, 0, 2], CPU)
    assert flat.tokens(torch.tensor([5, -1, 6, -1, 9])).tolist() == [[5, -1, -1], [-1, -1, -1], [-1, -1, -1]]
    assert flat.request.tolist() == [0, 0, 0, 0, 1, 2, 2, 2]
    assert (flat.first.tolist(), flat.draft_first.tolist()) == ([0, 4, 5], [0, 3, 3])
    sampled, starts = torch.tensor([1, 5, -1, 6, 2, 3, -1, 9]), torch.tensor([0, 4, 5, 8])
    found = slots_of(sampled, starts, 4, torch.tensor([2, 0, 5]))
    assert found.tokens.tolist() == [[5, -1, -1], [-1, -1, -1], [-1, -1, -1]]
    assert found.draft_first.tolist() == [6, 0, 15]
    assert found.position.tolist() == [0, 12, 15]


def test_only_what_its_row_forbids_stays_in_a_draft_that_a_grammar_ends() -> None:
    logits = torch.zeros(6, 4)
    logits[1, 3] = -torch.inf
    sampled = torch.tensor([1, 2, 3, 0, 1, -1])
    for marked, expected in (
        (sampled, [1, 2, 3, 0, 1, -1]),
        (torch.tensor([1, 2, -1, -1, 1, -1]), [1, 2, 3, -1, 1, -1]),  # row 1 forbids token 3, row 2 allows token 0
        (torch.tensor([1, -1, -1, -1, 1, -1]), [1, -1, 3, -1, 1, -1]),
    ):
        assert ended_by_grammars(logits, sampled, marked).tolist() == expected


def test_a_token_that_a_grammar_forbids_leaves_the_rest_its_law() -> None:
    """Over many drafts of one token, some of them forbidden, and many seeds."""
    times = 4000
    torch.manual_seed(6)
    target, draft = torch.randn(2, 1, 5).log_softmax(-1)
    target[0, [1, 4]] = -torch.inf
    drawn = torch.multinomial(draft[0].exp(), times, replacement=True)
    sampled = torch.stack([torch.zeros_like(drawn), drawn], dim=1).flatten()
    forbidden = torch.isneginf(target[0, sampled]) & (torch.arange(2 * times) % 2 == 1)
    logits, place = target.expand(2 * times, -1), torch.arange(times)
    tokens = ended_by_grammars(logits, sampled, sampled.masked_fill(forbidden, -1)).view(times, 2)[:, 1:]
    one, zero = torch.ones(times), torch.zeros(times, dtype=torch.int64)
    step = ServedStep(
        Ragged(logits, place * 2, 2), Ragged(draft.expand(times, -1), place, 1), tokens, controls_of(one, PLAIN),
        controls_of(one, PLAIN), torch.full((times,), ChainRule.TOKEN, dtype=torch.int32),
        NoiseKeys(place, zero, zero),
    )  # fmt: skip
    counts = Counter(Verification(CPU)(step)[0].tokens[:, 0].tolist())
    gof.check(dict(counts), {t: mass for t, mass in enumerate(target[0].double().softmax(-1).tolist()) if mass})


def test_one_workspace_is_kept_for_the_next_step_of_the_same_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[torch.Tensor]] = []

    def workspace(*shape: Any) -> Any:
        space = SimpleNamespace(shape=shape[:3], memory=torch.empty(1))
        made.append(weakref.ref(space.memory))
        return space

    monkeypatch.setattr(kernels, "workspace", workspace)
    verification = Verification(CPU, backend="triton")
    for batch in (3, 3, 4, 4, 3):
        verification._workspace(Ragged(torch.zeros(2 * batch, 5), torch.arange(batch) * 2, 2))
        assert sum(each() is not None for each in made) == 1
    assert len(made) == 3


def test_nothing_waits_for_a_copy_to_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: calls.append("pinned") or self)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *_, **named: calls.append(named) or self)
    FlatDrafts.of([2, 0, 3], torch.device("cuda"))
    assert calls == ["pinned", {"non_blocking": True}]
    assert to_device([True, False], CPU).tolist() == [True, False]


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize("nodes", [1, 2, 6])
def test_one_launch_gathers_what_many_do(kind: torch.dtype, processed: bool, nodes: int) -> None:
    """Drafts of every length up to the longest, some of them padded, in slots in any order."""
    lengths = torch.arange(6).clamp(max=nodes - 1)
    starts = torch.nn.functional.pad((lengths + 1).cumsum(0), (1, 0)).to(kind)
    sampled = torch.randint(-1, 50, (int(starts[-1]),), generator=torch.Generator().manual_seed(1)).to(kind)
    slot = torch.tensor([3, 7, 0, 5, 1, 4], dtype=kind)
    many = slots_of(sampled, starts, nodes, slot, processed=processed)
    one = slots_of(sampled, starts, nodes, slot, launches.slot_step, processed=processed)
    assert many.target_temperature.equal(many.temperature) != processed
    assert one.drafted is many.drafted is None
    for name in SlotStep._fields[:-1]:
        expected = getattr(many, name)
        found = getattr(one, name)
        assert found.dtype == expected.dtype, name
        assert torch.equal(found, expected), name
    plain = slots_of(sampled, starts, nodes, slot, launches.slot_step, truncates=False, processed=processed)
    left_out = ("top_k", "top_p", "min_p", "drafted")
    assert all(torch.equal(getattr(plain, n), getattr(many, n)) for n in SlotStep._fields if n not in left_out)


def test_one_launch_counts_what_many_do() -> None:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.tensor([[4, 5, 6], [4, -1, -1], [-1, -1, -1], [9, 9, -1], [1, 2, 3]])
    rule = torch.tensor([0, 1, 1, 2, 1], dtype=torch.int32)
    accepted, fault = (torch.tensor(each, dtype=torch.int32) for each in ([2, 1, 0, 0, 3], [0, 0, 4, 1, 0]))
    reach = torch.rand(5, 3, generator=generator) * (tokens >= 0)
    one, many = torch.ones(2, 3, WIDTH, dtype=torch.float64)
    for table, add in ((one, launches.add_up), (many, add_up)):
        assert add(table, rule, tokens, accepted, reach, fault).tolist() == [3, 2, 1, 1, 4]
    torch.testing.assert_close(one, many, rtol=1e-7, atol=0)
    assert not torch.equal(one, torch.ones_like(one))


@pytest.mark.parametrize("batch", [1, 16, 37])
def test_programs_that_count_several_requests_leave_none_out(batch: int) -> None:
    torch.manual_seed(batch)
    length = torch.randint(0, 5, (batch,))
    tokens = torch.where(torch.arange(4) < length[:, None], 7, -1)
    rule, fault = (torch.randint(0, 3, (batch,), dtype=torch.int32) for _ in range(2))
    accepted = (torch.rand(batch) * (length + 1)).to(torch.int32)
    reach = torch.rand(batch, 4) * (tokens >= 0)
    one, many = torch.zeros(2, 3, WIDTH, dtype=torch.float64)
    for table, add in ((one, launches.add_up), (many, add_up)):
        assert add(table, rule, tokens, accepted, reach, fault).equal(accepted + 1)
    torch.testing.assert_close(one, many, rtol=1e-6, atol=0)
    assert one[:, 1].sum() == length.sum()


def test_rows_by_slot_may_be_part_of_a_larger_buffer() -> None:
    """Slots with more rows than are looked at, of a padded vocabulary: the rows are those of the slots."""
    torch.manual_seed(2)
    buffer, slot = torch.randn(6, 5, 11), torch.tensor([4, 0, 3])
    for logits in (buffer, buffer[:, :3], buffer[..., :7], buffer[:, :3, :7], buffer[::2]):
        inside = slot.clamp(max=len(logits) - 1)
        rows = Ragged(slot_rows(logits), inside * logits.shape[1], 2)
        assert torch.equal(rows.gathered(), logits[inside, :2])


def test_vocabularies_of_different_sizes_meet_at_the_larger() -> None:
    torch.manual_seed(1)
    first = torch.tensor([0])
    narrow, wide = torch.randn(2, 5), torch.randn(2, 7)
    for target, draft in ((narrow, wide), (wide, narrow), (narrow, torch.randn(5, 7))):  # as many rows as tokens
        both = of_one_width(Ragged(target, first, 2), Ragged(draft, first, 1))
        for each, rows in zip(both, (target, draft), strict=True):
            assert each.rows.shape[-1] == 7
            np.testing.assert_allclose(each.rows.softmax(-1)[:, : rows.shape[-1]], rows.softmax(-1), rtol=1e-6)


def test_nothing_of_vllm_is_imported() -> None:
    """The parts that these tests use, and the entry point, do without it."""
    import subprocess
    import sys

    code = (
        "import sys, draftproof.integrations.vllm.plugin as p; p.register(); p.register(); print('vllm' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
