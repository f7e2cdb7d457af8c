"""vLLM on a CPU, n-gram drafts at temperature 0.7: drafted tokens are sampled at another temperature.

`python vllm_speculation.py toy`, where `python -m benchmarks.engines.toy FOLDER` makes the model's folder. Give the
draft model's folder as well to see the same with draft_model, or the word suffix to see it with suffix decoding.
"""

import os
import sys

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

from histogram import PROMPT, show

TEXTS = 2000


def texts(speculation):
    from vllm import LLM, SamplingParams

    engine = LLM(
        sys.argv[1],
        dtype="float32",
        max_model_len=256,
        enforce_eager=True,
        skip_tokenizer_init=True,
        generation_config="vllm",
        speculative_config=speculation,
    )
    params = SamplingParams(n=TEXTS, max_tokens=4, temperature=0.7, detokenize=False, ignore_eos=True)
    answer = engine.generate([{"prompt_token_ids": PROMPT}], params, use_tqdm=False)[0]
    return [choice.token_ids for choice in answer.outputs]


def main():
    speculation = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    if sys.argv[2:] == ["suffix"]:
        speculation = {"method": "suffix", "num_speculative_tokens": 4}
    elif len(sys.argv) > 2:
        speculation = {"method": "draft_model", "model": sys.argv[2], "num_speculative_tokens": 4}
    samples = texts(None), texts(speculation)
    for place in range(2):
        show(f"token {place + 1} of {TEXTS} texts", *([one[place] for one in side] for side in samples))


if __name__ == "__main__":
    main()
