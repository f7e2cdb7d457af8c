"""`draftproof bench samples`: many samples of one prompt, one by one against together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from draftproof.bench import ours, theirs
from draftproof.bench.engine import Options, longest, setting, speculative
from draftproof.bench.pair import Pair, rounds
from draftproof.bench.rows import facts, rows
from draftproof.bench.turns import Ids, Workload, open_ways, take_turns


def measure(
    pair: Pair, groups: dict[str, list[Ids]], options: Options, notice: Callable[[str], object] = lambda line: None
) -> Iterator[list[dict[str, Any]]]:
    """The rows of one comparison after another, for each number of samples (the batch) and temperature."""
    options = options.check()
    where = facts(pair.device)
    setup = speculative(pair, options)
    ways = [
        ours.one_by_one("draftproof one by one", setup),
        ours.together("draftproof together", setup),
        theirs.samples(pair.network, pair.target.tokenizer),
    ]
    for count in options.batches:
        torch.compiler.reset()
        chosen = {kind: [one * count for one in rounds(ids, 1, options.repeat)] for kind, ids in groups.items()}
        hardest = max((prompts for some in chosen.values() for prompts in some), key=longest)
        workload = Workload(count, options.tokens, longest(hardest))
        ready = open_ways(ways, workload, hardest, options.temperatures, pair.device, notice)
        for temperature in options.temperatures:
            for kind, some in chosen.items():
                runs = take_turns(ready, some, temperature, options.seed, pair.device)
                yield rows(setting("samples", pair, options, count, temperature, kind), runs, where)
