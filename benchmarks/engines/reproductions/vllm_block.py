"""vLLM's block verification in Triton's interpreter: texts of four tokens have another law than the target's.

`python vllm_block.py [TEXTS]`. Target and draft are tables of two tokens, so that the law is known exactly. The noise
is keyed by seed and position, as vLLM's runner does it: a position that is drafted again meets the same noise again.
"""

import sys
from collections import Counter
from itertools import product
from math import prod
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "collectors"))
from from_vllm_kernels import Runner, prepare_interpreter

TARGET, DRAFT = [[0.59, 0.41], [0.51, 0.49]], [[0.06, 0.94], [0.18, 0.82]]


def main():
    prepare_interpreter()
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1500
    job = {"tables": {"target": TARGET, "draft": DRAFT}, "sampling": {}, "max_new_tokens": 4}
    for mode in ("token", "block"):
        runner = Runner(job, [[0]] * count, list(range(count)))
        runner.run(mode)
        seen, statistic = Counter(tuple(text[1:5]) for text in runner.texts), 0.0
        for text in product((0, 1), repeat=4):
            expected = count * prod(TARGET[a][b] for a, b in zip((0, *text), text, strict=False))
            statistic += (seen[text] - expected) ** 2 / expected
        print(f"{mode}: chi-square {statistic:.1f} with 15 degrees of freedom, {count} texts of 4 tokens", flush=True)


if __name__ == "__main__":
    main()
