"""The benchmark's parts that need no device: the peers' plain PyTorch, and the table."""

from __future__ import annotations

import pytest
import torch

from draftproof.bench import kernels as bench
from draftproof.bench import peers
from draftproof.errors import DraftproofError
from draftproof.sampling import Sampling


def test_the_plain_peer_accepts_what_the_token_rule_does() -> None:
    """Equal laws accept all; a draft that the target forbids, nothing; top-k leaves one token to follow."""
    target = torch.randn(5, 3, 20, generator=torch.Generator().manual_seed(0)) * 3
    tokens = target[:, :2].argmax(-1)
    q = target[:, :2].softmax(-1)
    accepted, _ = peers.eager(target, q, tokens, Sampling())
    assert (accepted == 2).all()
    accepted, last = peers.eager(target, q, target[:, :2].argmin(-1), Sampling(top_k=1))
    assert (accepted == 0).all()
    assert torch.equal(last, tokens[:, 0])


def test_peers_that_are_not_installed_are_left_out() -> None:
    target = torch.randn(2, 3, 20)
    data = peers.Input(
        target, target[:, :2], target[:, :2].softmax(-1), torch.zeros(2, 2, dtype=torch.int64), Sampling()
    )
    assert set(peers.calls(data, compiled=False)) == {("torch eager", "token")}


def test_the_table_holds_times_and_ratios() -> None:
    row = {"bench": "kernels", "name": "fused", "rule": "token", "mode": "temp", "V": 100, "B": 2}
    table = bench.table([{**row, "us": 9.0, "us_in_10": 6.0, "floor_us": 4.0}, {"bench": "kernels fit"}])
    assert "| fused, temp | token | 9.0 / 6.0 (1.50x) |" in table


def test_unknown_modes_and_machines_without_a_gpu_are_refused() -> None:
    with pytest.raises(DraftproofError, match=r"CUDA device|unknown mode 'hot'"):
        bench.run([100], [1], ["hot"], False, False, None)
