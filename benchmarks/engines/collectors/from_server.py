"""Transcripts from `draftproof serve`, asked over HTTP: plain, with n-gram drafts or with the draft model."""

import json
import sys
from pathlib import Path

from benchmarks.load.process import serving
from draftproof import __version__
from draftproof.audit import collect
from draftproof.audit.transcripts import as_dict
from draftproof.models import load
from draftproof.sampling import Sampling


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    draft = {"plain": "none", "model": job["draft"]}.get(job["mode"], job["mode"])
    target = load(job["model"])
    how = {"samples": job["samples"], "max_new_tokens": job["max_new_tokens"]}
    options = (
        "--target",
        job["model"],
        "--draft",
        draft,
        "--rows",
        str(job["samples"]),
        "--length",
        str(job["context"]),
    )
    prompts = [tuple(prompt) for prompt in job["prompts"]]
    with serving(*options) as server, open(sys.argv[2], "w", encoding="utf-8") as file:
        sampling = Sampling(**job["sampling"])
        for transcript in collect.endpoint(
            f"{server.url}/v1", Path(job["model"]).name, target, prompts, sampling, **how
        ):
            file.write(json.dumps({**as_dict(transcript), "engine": f"draftproof serve {__version__}"}) + "\n")


if __name__ == "__main__":
    main()
