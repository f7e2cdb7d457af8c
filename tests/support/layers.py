"""Models whose layers are large enough for the Triton kernels, and texts they write by the fused step."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

import draftproof as dp
from draftproof.models.drafters.head import HeadModel
from draftproof.models.hf import HFModel
from draftproof.models.llama.rebuild import rebuild
from tests.support import tiny
from tests.support.schedulers import finish, graph, requests

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CHAIN = dp.Tree.chain(3)


def model(family: str, seed: int) -> HFModel:
    """Like tiny.model, with heads large enough for the kernels."""
    torch.manual_seed(seed)
    shape = {**tiny.SHAPE, "head_dim": 16, "num_hidden_layers": 1}
    if family == "mistral":
        network = MistralForCausalLM(MistralConfig(**shape, sliding_window=tiny.WINDOW))
    else:
        network = LlamaForCausalLM(LlamaConfig(**shape))
    for weight in network.requires_grad_(False).parameters():
        weight.mul_(3)
    return HFModel(rebuild(network.eval().to(DEVICE)), tiny.tokenizer(), family)


def texts(target: HFModel, draft: HFModel | HeadModel, tree: dp.Tree = CHAIN) -> list[list[int]]:
    """Two texts of one batch, of which one begins with its second token."""
    pair = requests(target, [[70] * 9, [80]], dp.Sampling(temperature=0.7), length=6)
    batch = graph(target, draft, "block" if tree.is_chain else "traversal", tree, 2, 30)
    for request in pair:
        batch.add([request])
    finish(batch)
    return [request.tokens for request in pair]
