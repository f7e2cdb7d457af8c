"""Transcripts from transformers' generate: plain, prompt lookup or assisted, in draftproof's environment."""

import json
import sys
from importlib.metadata import version

import torch

from draftproof.audit import collect
from draftproof.audit.transcripts import as_dict
from draftproof.models import load
from draftproof.sampling import Sampling

K = 4  # draft tokens a step


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    torch.set_num_threads(1)
    target = load(job["model"], lean=False)
    how = {"samples": job["samples"], "max_new_tokens": job["max_new_tokens"], "seed": job["seed"]}
    match job["mode"]:
        case "plain":
            pass
        case "prompt lookup":
            how["lookup"] = K
        case "assisted":
            how["assistant"] = load(job["draft"], lean=False)
        case other:
            raise SystemExit(f"transformers has no mode {other!r}")
    prompts = [tuple(prompt) for prompt in job["prompts"]]
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        for transcript in collect.transformers(target, prompts, Sampling(**job["sampling"]), **how):
            file.write(json.dumps({**as_dict(transcript), "engine": f"transformers {version('transformers')}"}) + "\n")


if __name__ == "__main__":
    main()
