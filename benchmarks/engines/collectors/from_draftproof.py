"""Transcripts from draftproof's engine: plain, or a rule's name with the draft model."""

import json
import sys

import torch

from draftproof import __version__
from draftproof.audit import collect
from draftproof.audit.transcripts import as_dict
from draftproof.draft import Tree
from draftproof.models import drafter, load
from draftproof.sampling import Sampling

TREES = {"optimal": Tree.star(3), "nodeplan": Tree.star(3), "csbv": Tree.paths(2, 3)}


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    torch.set_num_threads(1)
    target, rule = load(job["model"]), job["mode"]
    how = {"samples": job["samples"], "max_new_tokens": job["max_new_tokens"], "seed": job["seed"]}
    if rule != "plain":
        how |= {"draft": drafter(job["draft"], target), "verify": rule, "tree": TREES.get(rule, Tree.chain(4))}
    prompts = [tuple(prompt) for prompt in job["prompts"]]
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        for transcript in collect.engine(target, prompts, Sampling(**job["sampling"]), **how):
            file.write(json.dumps({**as_dict(transcript), "engine": f"draftproof {__version__}"}) + "\n")


if __name__ == "__main__":
    main()
