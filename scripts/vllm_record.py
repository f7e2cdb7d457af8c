"""Record one step of each of vLLM's model runners, as the plug-in gets it, for tests that run without vLLM.

make .venv-vllm/installed
.venv-vllm/bin/python -m scripts.vllm_record v1     # writes tests/data/vllm_step_v1.json
.venv-vllm/bin/python -m scripts.vllm_record v2     # in Triton's interpreter
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import tests_vllm.conftest  # noqa: F401  # its environment

DATA = Path(__file__).parents[1] / "tests" / "data"


def plain(value: Any) -> Any:
    """Tensors as lists, numbers with four digits."""
    values = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(values, list):
        return [plain(each) for each in values]
    return round(values, 4) if isinstance(values, float) else values


def record_v1(steps: list[dict[str, Any]]) -> None:
    """Keep the arguments of every step."""
    from draftproof.integrations.vllm import runner_v1

    forward = runner_v1.forward

    def recording(sampler: Any, found: Any, metadata: Any, draft_probs: Any, logits: Any, sampling: Any) -> Any:
        step = {"lengths": metadata.num_draft_tokens, "draft_token_ids": metadata.draft_token_ids, "logits": logits,
                "draft_probs": draft_probs, "target_rows": metadata.target_logits_indices,
                "bonus_rows": metadata.bonus_logits_indices}  # fmt: skip
        steps.append({name: plain(value) for name, value in step.items()})
        return forward(sampler, found, metadata, draft_probs, logits, sampling)

    runner_v1.forward = recording


def record_v2(steps: list[dict[str, Any]]) -> None:
    """Keep the arguments of every step."""
    from draftproof.integrations.vllm import runner_v2

    verify = runner_v2.SamplerServer.verify

    def recording(
        self: Any, now: Any, logits: Any, drafts: Any, starts: Any, pos: Any, slot: Any, *rest: Any, **named: Any
    ) -> Any:
        step = {"logits": logits, "draft_logits": drafts[: int(slot.max()) + 1], "starts": starts,
                "draft_sampled": now.draft_sampled, "position": pos, "slot": slot}  # fmt: skip
        steps.append({name: plain(value) for name, value in step.items()})
        return verify(self, now, logits, drafts, starts, pos, slot, *rest, **named)

    runner_v2.SamplerServer.verify = recording


def main(runner: str) -> None:
    if runner == "v2":
        from tests_vllm.runner_v2 import interpreted

        interpreted.prepare()
    from tests_vllm import tiny

    folder, steps = Path(tempfile.mkdtemp()), list[dict[str, Any]]()
    tiny.save(folder / "target", noise=0.0)
    tiny.save(folder / "drafter", noise=0.15)
    llm = tiny.engine(folder / "target", tiny.drafter(folder / "drafter"), "block", max_num_seqs=4, max_model_len=64)
    (record_v2 if runner == "v2" else record_v1)(steps)
    tiny.write(llm, 7, temperature=1.0, max_tokens=9)  # more than fit at once, so that some join while others draft
    uneven = [step for step in steps if len(set(_lengths(step))) > 1]
    (DATA / f"vllm_step_{runner}.json").write_text(json.dumps((uneven or steps)[0]) + "\n")
    print(runner, len(steps), "steps,", len(uneven), "uneven:", _lengths((uneven or steps)[0]))


def _lengths(step: dict[str, Any]) -> list[int]:
    starts = step.get("starts")
    return step["lengths"] if starts is None else [b - a - 1 for a, b in itertools.pairwise(starts)]


if __name__ == "__main__":
    main(sys.argv[1])
