"""A toy model that every engine can read, and a drafter for it, as folders of transformers and as GGUF files.

Its weights are random, with values that float16 has, so that all engines hold the same numbers. It has 32 tokens and
writes text that repeats itself, so that tokens are cheap, drafts are often accepted and faults show soon.
`python -m benchmarks.engines.toy FOLDER` writes both.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

VOCABULARY = 32
END = VOCABULARY - 1
WORDS = [*"abcdefghijklmnopqrstuvwxyz.,?!", "ab", "<end>"]
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": END,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}


class Paths(NamedTuple):
    """Where a model lies, for engines that read folders and for those that read GGUF."""

    folder: Path
    gguf: Path


def made(home: Path) -> tuple[Paths, Paths]:
    """The toy and its drafter, written on first use."""
    target = network()
    return _stored(target, home / "toy"), _stored(rounded(target), home / "toy-draft")


def network() -> Any:
    """Random weights, scaled so that laws are far from flat and depend most on the last token."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    made = LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if weight.ndim == 2:
                weight.mul_(0.1 if "o_proj" in name else 15.0 if "lm_head" in name else 5.0)
        made.lm_head.weight[END] *= 0.2  # texts of some length
        for weight in made.parameters():
            weight.copy_(weight.half().float())
    return made


def prompts(target: Any, count: int = 12, length: int = 48) -> list[list[int]]:
    """What the toy itself writes after each of its first tokens, so that a lookup in the prompt finds something."""
    chance = torch.Generator().manual_seed(0)
    texts = torch.arange(count)[:, None]
    with torch.no_grad():
        for _ in range(length - 1):
            logits = target(texts).logits[:, -1, :END]  # a prompt does not end
            texts = torch.cat([texts, torch.multinomial(logits.softmax(-1), 1, generator=chance)], dim=1)
    return texts.tolist()  # type: ignore[no-any-return]


def rounded(target: Any, bits: int = 2) -> Any:
    """The same network with its layers' weights rounded to 2**bits levels a row."""
    draft = copy.deepcopy(target)
    with torch.no_grad():
        for name, weight in draft.named_parameters():
            if weight.ndim == 2 and "layers" in name:
                step = weight.abs().amax(dim=1, keepdim=True) / 2 ** (bits - 1)
                weight.copy_(((weight / step).round() * step).half().float())
    return draft


def _stored(model: Any, folder: Path) -> Paths:
    paths = Paths(folder, folder.with_suffix(".gguf"))
    if not folder.is_dir():
        model.save_pretrained(folder)
        tokenizer().save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": WORDS[END]})
        )
    if not paths.gguf.is_file():
        write_gguf(model, paths.gguf)
    return paths


def tokenizer() -> Any:
    """One token a character; nothing here needs it, but engines want one."""
    from tokenizers import AddedToken, Tokenizer, models

    core = Tokenizer(models.BPE({word: i for i, word in enumerate(WORDS[:END])}, merges=[("a", "b")]))
    core.add_special_tokens([AddedToken(WORDS[END], special=True)])
    return core


def write_gguf(model: Any, path: Path) -> None:
    """Write a Llama network as a GGUF file in float16, norms in float32."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("toy")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(WORDS)
    writer.add_token_types([gguf.TokenType.NORMAL] * END + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(END)
    writer.add_add_bos_token(False)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if "q_proj" in name or "k_proj" in name:
            weight = _interleaved(weight, config.num_attention_heads)
        array = weight.numpy()
        writer.add_tensor(
            names.get_name(name, try_suffixes=(".weight",)), array.astype(np.float16 if array.ndim == 2 else np.float32)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of queries or keys in the order of llama.cpp, which rotates neighbours instead of halves."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape).contiguous()


if __name__ == "__main__":
    for paths in made(Path(sys.argv[1])):
        print(*paths)
