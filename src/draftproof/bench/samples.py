"""`draftproof bench samples`: many samples of one prompt, one by one and as a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from draftproof.bench import ours, theirs
from draftproof.bench.engine import Options, longest, setting, speculative
from draftproof.bench.pair import Pair, rounds
from draftproof.bench.rows import facts, rows
from draftproof.bench.turns import Ids, Workload, take_turns, warm_up


def measure(
    pair: Pair, groups: dict[str, list[Ids]], options: Options, notice: Callable[[str], object] = lambda line: None
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each comparison, for every number of samples (the batch) and temperature."""
    options = options.check()
    where = facts(pair.device)
    setup = speculative(pair, options)
    candidates = [
        ours.one_by_one("draftproof one by one", setup),
        ours.together("draftproof together", setup),
        theirs.samples(pair.network, pair.target.tokenizer),
    ]
    for count in options.batches:
        torch.compiler.reset()
        chosen = {kind: [prompt * count for prompt in rounds(ids, 1, options.repeat)] for kind, ids in groups.items()}
        hardest = max((prompts for batches in chosen.values() for prompts in batches), key=longest)
        workload = Workload(count, options.tokens, longest(hardest))
        ready = warm_up(candidates, workload, hardest, options.temperatures, pair.device, notice)
        for temperature in options.temperatures:
            for kind, batches in chosen.items():
                runs = take_turns(ready, batches, temperature, options.seed, pair.device)
                yield rows(setting("samples", pair, options, count, temperature, kind), runs, where)
