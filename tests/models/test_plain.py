"""Models that drafts do not fit are sampled plainly: a call for each token, by transformers' own cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf

import draftproof as dp
from draftproof.models.hf import HFModel
from draftproof.models.memo import Memo
from draftproof.models.plain import PlainSession
from tests.support import tiny

SIZES = {"vocab_size": tiny.VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "eos_token_id": 256}
HEADS = {"intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
LINEAR = {f"linear_{name}": 8 for name in ("key_head_dim", "value_head_dim")}
LAYERS = ["linear_attention", "full_attention"]
STATE = "keeps a recurrent state, so drafts cannot be rolled back: use --draft none"
NO_POSITIONS = "takes no position ids, so a draft cannot be checked in one call: use --draft none"

MODELS = {
    "mamba": lambda: hf.MambaForCausalLM(hf.MambaConfig(**SIZES, state_size=8)),
    "mamba2": lambda: hf.Mamba2ForCausalLM(
        hf.Mamba2Config(**SIZES, state_size=8, num_heads=8, head_dim=8, n_groups=2, chunk_size=4)
    ),
    "recurrent_gemma": lambda: hf.RecurrentGemmaForCausalLM(
        hf.RecurrentGemmaConfig(
            **{**SIZES, "num_hidden_layers": 3}, intermediate_size=96, num_attention_heads=4, attention_window_size=7
        )
    ),
    "qwen3_next": lambda: hf.Qwen3NextForCausalLM(
        hf.Qwen3NextConfig(
            **(SIZES | HEADS | EXPERTS | LINEAR),
            head_dim=8,
            layer_types=LAYERS,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            shared_expert_intermediate_size=16,
        )
    ),
    "jamba": lambda: hf.JambaForCausalLM(
        hf.JambaConfig(
            **(SIZES | HEADS), attn_layer_period=2, attn_layer_offset=1, num_experts=2, use_mamba_kernels=False
        )
    ),
    "lfm2": lambda: hf.Lfm2ForCausalLM(hf.Lfm2Config(**(SIZES | HEADS), layer_types=["conv", "full_attention"])),
    "rwkv": lambda: hf.RwkvForCausalLM(hf.RwkvConfig(**SIZES, attention_hidden_size=32)),
    "bloom": lambda: hf.BloomForCausalLM(
        hf.BloomConfig(vocab_size=tiny.VOCABULARY, hidden_size=32, n_layer=2, n_head=4, eos_token_id=256)
    ),
    "gpt_neo": lambda: hf.GPTNeoForCausalLM(
        hf.GPTNeoConfig(
            vocab_size=tiny.VOCABULARY,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            window_size=7,
            eos_token_id=256,
        )
    ),
}
REASON = dict.fromkeys(MODELS, STATE) | {"bloom": NO_POSITIONS, "gpt_neo": "has local attention layers"}


@pytest.fixture(scope="module")
def made():
    """Models by name, each made once."""
    models: dict[str, HFModel] = {}

    def make(name: str) -> HFModel:
        if name not in models:
            torch.manual_seed(0)
            network = MODELS[name]()
            with torch.no_grad():
                for weight in network.parameters():
                    weight.mul_(1 if weight.ndim == 1 else 3)
            models[name] = HFModel(network, tiny.tokenizer(), name)
        return models[name]

    return make


def alone(model, text):
    with torch.no_grad():
        return model.network(torch.tensor([text])).logits[0, -1]


@pytest.mark.parametrize("name", MODELS)
def test_every_row_reads_its_own_text_and_a_copied_row_copies_its_state(made, name):
    model = made(name)
    session = model.session(rows=3, capacity=40)
    texts = [list(b"a text of some length"), list(b"why")]
    for row, text in enumerate(texts):
        session.join(row, text)
    chain = dp.Tree.chain(0)
    for step in range(6):
        last = np.array([[text[-1]] for text in texts])
        logits = session.extend(chain, last, range(1))
        for row, text in enumerate(texts):
            torch.testing.assert_close(logits[row, 0], alone(model, text), atol=2e-4, rtol=0)
        if step == 2:  # a sample of the first row parts from it
            session.copy(0, 2)
            texts.append(list(texts[0]))
            last = np.concatenate([last, last[:1]])
        emitted = [10 * step + row for row in range(len(texts))]
        session.commit(chain, last, [0] * len(texts), emitted)
        for text, token in zip(texts, emitted, strict=True):
            text.append(token)
    session.join(0, [104, 105])  # another text takes the row
    torch.testing.assert_close(
        session.extend(chain, np.array([[105]]), range(1))[0, 0], alone(model, [104, 105]), atol=2e-4, rtol=0
    )


@pytest.mark.parametrize("name", MODELS)
def test_drafts_are_refused_in_one_line_and_auto_means_none(made, name):
    model = made(name)
    for draft in ("ngram", "cache", "ngram|auto", tiny.model(), [tiny.model(), "ngram"]):
        with pytest.raises(dp.DraftproofError, match=rf"^{name} {REASON[name]}") as refusal:
            dp.generate(model, "hello", draft=draft)
        assert "\n" not in str(refusal.value)
    with pytest.raises(dp.DraftproofError, match=rf"^{name} .*: choose another draft"):
        dp.generate(tiny.model(), "hello", draft=model)
    out = dp.generate(model, "hello", max_new_tokens=5, seed=1)
    assert out.trace.drafter == "none"
    assert "no drafter: plain sampling" in out.trace.summary()


def test_samples_and_requests_are_those_of_single_texts(made):
    model = made("qwen3_next")
    order = {"max_new_tokens": 12, "sampling": dp.Sampling(temperature=1.5)}
    alone_ = {seed: dp.generate(model, f"text {seed}", draft=None, seed=seed, **order).tokens for seed in range(3)}
    engine = dp.Engine(model, draft="none", rows=2, length=60)
    requests = [engine.add_request(f"text {seed}", seed=seed, **order) for seed in range(3)]
    while not engine.is_finished:
        engine.step()
    assert [request.output.tokens for request in requests] == list(alone_.values())
    first, *others = dp.generate(model, "text 0", draft="none", n=4, seed=0, **order)
    assert first.tokens == alone_[0]
    assert len({tuple(sample.tokens) for sample in (first, *others)}) == 4
    again = dp.generate(Memo(model), "text 0", draft="none", n=4, seed=0, **order)
    assert [sample.tokens for sample in again] == [sample.tokens for sample in (first, *others)]


def test_greedy_texts_are_those_of_transformers(made):
    model = made("mamba")
    ids = tiny.tokenizer()("hello", return_tensors="pt")
    theirs = model.network.generate(**ids, do_sample=False, max_new_tokens=12, pad_token_id=257)[0, 5:].tolist()
    assert dp.generate(model, "hello", sampling=dp.Sampling(temperature=0), max_new_tokens=12).tokens == theirs
    inside = {"do_sample": False, "max_new_tokens": 12, "pad_token_id": 257, "custom_generate": dp.custom_generate()}
    assert model.network.generate(**ids, **inside)[0, 5:].tolist() == theirs


def test_a_step_that_is_repeated_does_not_read_a_token_twice(made):
    """A request that fails ends its step for all; the others repeat it."""
    model = made("mamba")

    def fails(ids, scores):
        if ids.shape[1] == 8:
            raise RuntimeError("no more")
        return scores

    engine = dp.Engine(model, draft="none", rows=2, length=60)
    failing = engine.add_request("hello", sampling=dp.Sampling(processors=(fails,)), max_new_tokens=9, seed=1)
    other = engine.add_request("you", max_new_tokens=9, seed=2)
    errors = 0
    while not engine.is_finished:
        try:
            engine.step()
        except RuntimeError:
            errors += 1
    assert (errors, failing.finish) == (1, "failed")
    assert other.output.tokens == dp.generate(model, "you", draft="none", max_new_tokens=9, seed=2).tokens


def test_a_call_that_is_interrupted_leaves_no_half_read_state(made):
    model = made("mamba")
    session = model.session(rows=1, capacity=40)
    session.join(0, [1, 2, 3])
    chain = dp.Tree.chain(0)
    session.extend(chain, np.array([[3]]), range(1))
    session.commit(chain, np.array([[3]]), [0], [4])
    stop = model.network.lm_head.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        session.extend(chain, np.array([[4]]), range(1))
    stop.remove()
    logits = session.extend(chain, np.array([[4]]), range(1))
    torch.testing.assert_close(logits[0, 0], alone(model, [1, 2, 3, 4]), atol=1e-4, rtol=0)


def test_llama4_takes_drafts_where_its_texts_are_short_enough():
    """Its layers without positions scale their queries by the slots they count themselves."""
    torch.manual_seed(0)
    config = tiny.network("llama4").config.to_dict() | {"floor_scale": 40, "attn_scale": 2.0}
    model = HFModel(hf.Llama4ForCausalLM(hf.Llama4TextConfig(**config)), tiny.tokenizer(), "long")
    assert not isinstance(model.session(1, 19), PlainSession)
    session = model.session(1, 60)
    session.join(0, list(range(50)))
    logits = session.extend(dp.Tree.chain(0), np.array([[49]]), range(1))
    torch.testing.assert_close(logits[0, 0], alone(model, list(range(50))), atol=1e-4, rtol=0)
    with pytest.raises(dp.DraftproofError, match=r"long scales its attention in texts of more than 19 tokens, .* none"):
        dp.generate(model, "hello", draft="ngram", max_new_tokens=40)
    assert len(dp.generate(model, "hello", draft="none", max_new_tokens=40, seed=1).tokens) > 19


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda: hf.BertLMHeadModel(hf.BertConfig(**SIZES, num_attention_heads=4)), "bert reads .* in both directions"),
        (
            lambda: hf.XLNetLMHeadModel(hf.XLNetConfig(vocab_size=50, d_model=32, n_layer=1, n_head=4, d_inner=48)),
            "xlnet reads .* in both directions",
        ),
        (
            lambda: hf.OpenAIGPTLMHeadModel(hf.OpenAIGPTConfig(vocab_size=50, n_embd=32, n_layer=1, n_head=4)),
            "openai-gpt has no KV cache",
        ),
        (
            lambda: hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=50, d_model=32, num_layers=1, num_heads=4)),
            "t5 is an encoder-decoder model: choose a decoder-only one",
        ),
    ],
    ids=["bert", "xlnet", "openai-gpt", "t5"],
)
def test_what_cannot_continue_a_text_is_refused(network, message):
    with pytest.raises(dp.DraftproofError, match=message):
        HFModel(network())


def test_a_bert_that_was_made_a_decoder_is_one():
    torch.manual_seed(0)
    model = HFModel(
        hf.BertLMHeadModel(hf.BertConfig(**SIZES, num_attention_heads=4, is_decoder=True)), tiny.tokenizer()
    )
    assert dp.generate(model, "hello", draft=model, max_new_tokens=8, seed=1).trace.tokens_per_call > 1


class Adapter(torch.nn.Module):
    """Passes everything on, as adapters do."""

    def __init__(self, network):
        super().__init__()
        self.network, self.config = network, network.config
        self.device, self.dtype = network.device, network.dtype

    def forward(self, *args, **how):
        return self.network(*args, **how)


def test_a_wrapped_network_is_what_it_wraps(made):
    model = HFModel(Adapter(made("bloom").network), tiny.tokenizer(), "wrapped")
    with pytest.raises(dp.DraftproofError, match="bloom takes no position ids"):
        dp.generate(model, "hello", draft="ngram")
    order = {"draft": None, "max_new_tokens": 6, "seed": 1, "sampling": dp.Sampling(end_tokens=())}
    assert dp.generate(model, "hello", **order).tokens == dp.generate(made("bloom"), "hello", **order).tokens
    assert not HFModel(Adapter(tiny.network("llama"))).obstacle
