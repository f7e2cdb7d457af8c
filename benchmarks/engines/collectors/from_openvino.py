"""Transcripts from OpenVINO GenAI: plain, lookup or draft. Runs with the Python of OpenVINO's own environment.

`python from_openvino.py job.json transcripts.jsonl`; benchmarks/engines/jobs.py says what a job is. Inference and KV
cache are told to be float32, the most exact that OpenVINO offers.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai

K = 4  # draft tokens a step
AT_ONCE = 64  # texts side by side
FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "INFERENCE_NUM_THREADS": 1}


def scheduler():
    made = genai.SchedulerConfig()
    made.num_kv_blocks = 16 * AT_ONCE
    made.max_num_seqs = AT_ONCE
    made.max_num_batched_tokens = AT_ONCE * 64  # room for every draft: where one is cut, ids of -1 come out
    made.enable_prefix_caching = False
    return made


def pipeline(job):
    """OpenVINO's pipeline for the mode; batches of requests are served together."""
    how = dict(FLOAT32)
    match job["mode"]:
        case "plain":
            pass
        case "lookup":
            how["prompt_lookup"] = True
        case "draft":
            how["draft_model"] = genai.draft_model(converted(job["draft"]), "CPU", **FLOAT32)
        case other:
            raise SystemExit(f"OpenVINO GenAI has no mode {other!r}")
    return genai.ContinuousBatchingPipeline(job["model"], scheduler(), "CPU", how)


def converted(gguf):
    """The folder of a GGUF file as OpenVINO's own model: a draft model is read only from there."""
    folder = Path(tempfile.mkdtemp())
    copy = folder / "model.gguf"
    copy.write_bytes(Path(gguf).read_bytes())
    genai.ContinuousBatchingPipeline(str(copy), scheduler(), "CPU", {"enable_save_ov_model": True})
    genai.Tokenizer(str(copy), enable_save_ov_model=True)
    return str(folder)


def settings(job, number):
    """Each text has a seed of its own."""
    made = genai.GenerationConfig()
    made.max_new_tokens = job["max_new_tokens"]
    made.do_sample = True
    made.rng_seed = job["seed"] * 1_000_003 + number
    made.eos_token_id = job["end_tokens"][0]
    made.stop_token_ids = set(job["end_tokens"])
    for name, value in job["sampling"].items():
        setattr(made, name, value)
    if job["mode"] != "plain":
        made.num_assistant_tokens = K
    if job["mode"] == "lookup":
        made.max_ngram_size = 3
    return made


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    engine = pipeline(job)
    speculation = {} if job["mode"] == "plain" else {"num_assistant_tokens": K}
    print(json.dumps({"settings": {**FLOAT32, **speculation}}))
    wanted = [prompt for prompt in job["prompts"] for _ in range(job["samples"])]
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        for start in range(0, len(wanted), AT_ONCE):
            part = wanted[start : start + AT_ONCE]
            inputs = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in part]
            answers = engine.generate(inputs, [settings(job, start + i) for i in range(len(part))])
            for prompt, answer in zip(part, answers, strict=True):
                line = {
                    "prompt_token_ids": prompt,
                    "output_token_ids": list(answer.m_generation_ids[0]),
                    "sampling": job["sampling"],
                    "engine": f"OpenVINO GenAI {genai.get_version()}",
                }
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
