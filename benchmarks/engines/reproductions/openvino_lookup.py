"""OpenVINO GenAI with prompt lookup and a full batch: some texts contain the token id -1.

`python openvino_lookup.py toy.gguf`. 64 requests with four draft tokens each do not fit the default
max_num_batched_tokens of 256; with 4096 no id is -1.
"""

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai
from histogram import PROMPT


def strange(target, room, texts=384, at_once=64):
    """How many texts contain a negative id."""
    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks, scheduler.max_num_seqs, scheduler.max_num_batched_tokens = 1024, at_once, room
    how = {"prompt_lookup": True, "INFERENCE_PRECISION_HINT": "f32"}
    engine, found = genai.ContinuousBatchingPipeline(target, scheduler, "CPU", how), 0
    for first in range(0, texts, at_once):
        settings = []
        for seed in range(first, first + at_once):
            one = genai.GenerationConfig()
            one.max_new_tokens, one.do_sample, one.temperature, one.rng_seed = 128, True, 0.7, seed
            one.num_assistant_tokens, one.max_ngram_size = 4, 3
            settings.append(one)
        prompt = ov.Tensor(np.array([PROMPT], dtype=np.int64))
        found += sum(min(answer.m_generation_ids[0]) < 0 for answer in engine.generate([prompt] * at_once, settings))
    return found


if __name__ == "__main__":
    for room in (256, 4096):
        print(f"max_num_batched_tokens {room}: {strange(sys.argv[1], room)} of 384 texts contain a negative token id")
