"""The audit of what a server sends: by `draftproof collect` and `draftproof audit`, and with predicted outputs."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.load.process import ServerProcess, serving
from benchmarks.load.storm import COMPLETIONS
from draftproof.prompts import PROMPTS

LENGTH = 96  # of a text
ENDED = 0.7  # texts that end early have this share of it, or more
# a head for the small target, which has none in the package; how good it is does not matter here
HEAD = "distill --shards 1 --steps 60 --rows 64 --held-rows 16 --length 257 --vocabulary 1024"


def audited_head(target: str, folder: Path | None, tokens: int, rows: int) -> dict[str, Any]:
    """The audit with a trained head from this folder, where one is trained unless there is one."""
    with tempfile.TemporaryDirectory() as scratch:
        head = folder or Path(scratch)
        if not (head / "model.safetensors").exists():
            _run(*HEAD.split(), "--target", target, "--out", str(head))
        found = audited(target, str(head), tokens, rows)
    return {**found, "draft": "head", "head": f"draftproof {HEAD} --target {target}"}


def audited(target: str, draft: str, tokens: int, rows: int) -> dict[str, Any]:
    """Collect from a server that drafts by `draft`, or from predicted outputs, and audit."""
    predicts = draft == "prediction"
    with tempfile.TemporaryDirectory() as folder:
        texts, prompts = Path(folder, "texts.jsonl"), Path(folder, "prompts.txt")
        options = ("--target", target, "--draft", "ngram" if predicts else draft, "--rows", str(rows))
        begun = time.perf_counter()
        with serving(*options, "--length", "512") as server:
            if predicts:
                texts.write_text("".join(json.dumps(row) + "\n" for row in _predicted(server, tokens, rows)))
            else:
                count = math.ceil(tokens / (rows * LENGTH * ENDED))
                prompts.write_text("".join(f"{i + 1}. {PROMPTS[i % len(PROMPTS)]}\n" for i in range(count)))
                words = ["collect", f"{server.url}/v1", str(prompts), str(texts), "--target", target, "--model", target]
                _run(*words, "--samples", str(rows), "-n", str(LENGTH))
        collected = time.perf_counter() - begun
        known = () if predicts else ("--draft", draft)
        found = json.loads(_run("audit", str(texts), "--target", target, *known, "--json"))
        total = time.perf_counter() - begun
    return {
        "target": target,
        "draft": draft,
        "rows": rows,
        "tokens": found["tokens"],
        "transcripts": found["transcripts"],
        "verdict": found["verdict"],
        "collect_s": round(collected, 1),
        "audit_s": round(total - collected, 1),
        "goal": f"no alarm in {tokens} tokens",
        "holds": found["exact"] and found["tokens"] >= tokens,
    }


def _run(*words: str) -> str:
    """A command of draftproof; an audit that ends in an alarm has exit status 1 and a report as well."""
    done = subprocess.run([sys.executable, "-m", "draftproof", *words], capture_output=True, text=True)
    if done.returncode not in (0, 1) or (done.returncode and words[0] != "audit"):
        raise RuntimeError(f"draftproof {words[0]} failed: {done.stderr.strip()}")
    return done.stdout


def _predicted(server: ServerProcess, tokens: int, rows: int) -> list[dict[str, Any]]:
    """Transcripts of texts for which a part of an earlier text of the same prompt was predicted."""
    found: list[dict[str, Any]] = []
    number = 0
    while sum(len(row["output_token_ids"]) for row in found) < tokens:
        prompt = f"{number + 1}. {PROMPTS[number % len(PROMPTS)]}"
        body = {"prompt": prompt, "max_tokens": LENGTH, "return_token_ids": True, "temperature": 1.0}
        earlier = server.post(COMPLETIONS, {**body, "seed": number, "ignore_eos": True})["choices"][0]["text"]
        prediction = {"type": "content", "content": earlier}
        answer = server.post(COMPLETIONS, {**body, "n": rows, "seed": number + 10**6, "prediction": prediction})
        for choice in answer["choices"]:
            ids = {"prompt_token_ids": choice["prompt_token_ids"], "output_token_ids": choice["token_ids"]}
            found.append({**ids, "sampling": {"temperature": 1.0}})
        number += 1
    return found
