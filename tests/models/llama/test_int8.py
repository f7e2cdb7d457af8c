"""Integer linear layers: no row sees its neighbours, and the model stays close to the one it was made from."""

from __future__ import annotations

import copy

import pytest
import torch

import draftproof as dp
from draftproof.models.hf import HFModel
from draftproof.models.llama import int8
from draftproof.models.llama.int8 import Int8Linear, quantise
from draftproof.models.llama.rebuild import rebuild
from draftproof.native import build
from tests.support import tiny

TEXT = list(range(40, 90))


def layer(bias: bool = True) -> tuple[torch.nn.Linear, Int8Linear]:
    torch.manual_seed(0)
    linear = torch.nn.Linear(96, 72, bias=bias)
    return linear, Int8Linear(linear, torch.rand(96) + 0.5)


@pytest.mark.parametrize("way", ["C", int8.int_mm, int8.slow])
def test_a_row_alone_and_in_company_is_the_same_bit_for_bit(monkeypatch, way):
    if way != "C":
        monkeypatch.setattr(build, "compiled", lambda: None)
        if not int8.is_exact(way):
            assert int8.product() is not way
            return
        monkeypatch.setattr(int8, "product", lambda: way)
    _, quantised = layer()
    x = torch.randn(400, 96) * torch.logspace(-3, 3, 400)[:, None]  # neighbours of every size
    together = quantised(x[None])[0]
    for count in (1, 2, 3, 5, 6, 16, 21, 33):
        for i in range(0, 400 - count, 29):
            assert torch.equal(quantised(x[i : i + count]), together[i : i + count])


@pytest.mark.parametrize("way", ["C", "torch"])
@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_stays_none_and_in_its_row(monkeypatch, way, odd):
    if way == "torch":
        monkeypatch.setattr(build, "compiled", lambda: None)
    _, quantised = layer()
    for place in (0, 50, 95):
        x = torch.randn(3, 96)
        x[1, place] = odd
        assert torch.equal(quantised(x).isfinite().any(dim=-1), torch.tensor([True, False, True]))


def test_all_products_are_the_same():
    torch.manual_seed(1)
    weight = torch.randint(-127, 128, (72, 96), dtype=torch.int8)
    some = torch.randint(0, 256, (33, 96), dtype=torch.uint8)
    ways = [way for way in (int8.int_mm, int8.slow) if int8.is_exact(way)]
    assert int8.slow in ways
    assert int8.product() in ways
    for way in ways:
        assert torch.equal(way(weight)(some).long(), int8.slow(weight)(some).long())


def test_a_product_that_saturates_is_not_taken():
    def saturating(weight: torch.Tensor) -> int8.Multiply:
        sums = int8.slow(weight)
        return lambda rows: sums(rows).clamp(-32768, 32767)

    assert not int8.is_exact(saturating)


def test_the_result_is_near_the_float_layer():
    for bias in (True, False):
        linear, quantised = layer(bias)
        x = torch.randn(2, 5, 96)
        error = (quantised(x) - linear(x)).norm() / linear(x).norm()
        assert error < 0.02
        assert quantised(x).shape == (2, 5, 72)
    assert torch.isfinite(quantised(torch.zeros(1, 96))).all()


@pytest.mark.parametrize("way", ["C", "torch"])
def test_the_norm_before_a_layer_is_part_of_it(monkeypatch, way):
    if way == "torch":
        monkeypatch.setattr(build, "compiled", lambda: None)
    linear, _ = layer()
    norm = torch.nn.RMSNorm(96, 1e-5)
    with torch.no_grad():
        norm.weight.copy_(torch.rand(96) * 2)
    x = torch.randn(2, 5, 96) * torch.logspace(-3, 2, 5)[:, None]
    truth = linear(norm(x))
    assert (Int8Linear(linear, torch.rand(96) + 0.5, norm)(x) - truth).norm() / truth.norm() < 0.02


def test_every_product_is_in_integers():
    for network in (copy.deepcopy(tiny.network("llama")), rebuild(copy.deepcopy(tiny.network("llama")))):
        quantise(network, TEXT)
        assert not any(isinstance(module, torch.nn.Linear) for module in network.modules())
        with torch.no_grad():
            found = torch.softmax(network(torch.tensor([TEXT])).logits[0], -1)
            truth = torch.softmax(tiny.network("llama")(torch.tensor([TEXT])).logits[0], -1)
        assert (found - truth).abs().sum(-1).mean() / 2 < 0.2


def test_a_quantised_model_is_a_target_of_its_own():
    """Logits of a node do not depend on the tree around it, up to the rounding of attention in float32."""
    model = HFModel(quantise(copy.deepcopy(tiny.network("llama")), TEXT), tiny.tokenizer())
    ids = torch.tensor([TEXT])
    with torch.no_grad():
        whole, part = model.network(ids).logits[0], model.network(ids[:, :20]).logits[0]
        float_law = torch.softmax(tiny.network("llama")(ids).logits[0], -1)
    torch.testing.assert_close(whole[:20], part, atol=1e-4, rtol=1e-4)
    assert (torch.softmax(whole, -1) - float_law).abs().sum(-1).mean() / 2 < 0.2
    settings = {"sampling": dp.Sampling(temperature=0), "max_new_tokens": 20}
    plain = dp.generate(model, "abcabc", draft=None, **settings)
    assert dp.generate(model, "abcabc", draft=tiny.model(), **settings).tokens == plain.tokens


def test_int8_is_a_dtype_by_name(tmp_path):
    model = dp.load(str(tiny.save(tmp_path)), dtype="int8")
    assert "int8" in model.name
    assert isinstance(model.network.head, Int8Linear)
