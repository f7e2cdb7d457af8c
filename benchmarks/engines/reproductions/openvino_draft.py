"""OpenVINO GenAI with a draft model at temperature 0.7: the second token has another law than in plain sampling.

`python openvino_draft.py toy.gguf toy-draft.gguf`; `python -m benchmarks.engines.toy FOLDER` makes the files. Greedy
decoding with the same draft agrees with plain greedy decoding, token by token: that is printed first.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai
from histogram import PROMPT, show

TEXTS = 1000


def pipeline(target, **how):
    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks = 256
    return genai.ContinuousBatchingPipeline(target, scheduler, "CPU", {"INFERENCE_PRECISION_HINT": "f32", **how})


def converted(gguf):
    copy = Path(tempfile.mkdtemp()) / "model.gguf"
    copy.write_bytes(Path(gguf).read_bytes())
    pipeline(str(copy), enable_save_ov_model=True)
    genai.Tokenizer(str(copy), enable_save_ov_model=True)
    return str(copy.parent)


def text(engine, length, sample, seed=0, drafts=0):
    settings = genai.GenerationConfig()
    settings.max_new_tokens, settings.do_sample, settings.rng_seed, settings.ignore_eos = length, sample, seed, True
    settings.temperature = 0.7 if sample else 1.0
    if drafts:
        settings.num_assistant_tokens = drafts
    answer = engine.generate([ov.Tensor(np.array([PROMPT], dtype=np.int64))], [settings])
    return list(answer[0].m_generation_ids[0])


def main():
    plain = pipeline(sys.argv[1])
    drafted = pipeline(sys.argv[1], draft_model=genai.draft_model(converted(sys.argv[2]), "CPU"))
    print("greedy texts equal:", text(plain, 64, False) == text(drafted, 64, False, drafts=4))
    samples = [[text(engine, 4, True, seed, drafts) for seed in range(first, first + TEXTS)]
               for engine, first, drafts in ((plain, 0, 0), (drafted, TEXTS, 4))]  # fmt: skip
    for place in range(2):
        show(f"token {place + 1} of {TEXTS} texts", *([one[place] for one in side] for side in samples))


if __name__ == "__main__":
    main()
