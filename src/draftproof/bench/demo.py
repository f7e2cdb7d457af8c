"""`draftproof bench demo`: what a first user meets, beside plain sampling and transformers' float32 `generate`.

Texts are written one at a time, as on the command line; a round of every way writes all prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch

from draftproof.bench import ours, theirs
from draftproof.bench.engine import Options, longest, setting, speculative
from draftproof.bench.pair import Pair
from draftproof.bench.rows import facts, rows
from draftproof.bench.turns import Ids, Ready, Run, Way, Workload, Write, open_ways, take_turns

TOKENS, ROUNDS, FIRST = 48, 3, 4  # of a quick look, whose median bears one hitch, and of the text that warms up
PLAIN = "draftproof plain"


def ways(setup: ours.Contender, network: Any) -> list[Way]:
    """Plain sampling, speculative sampling, and the peer, which is given the network as transformers has it."""
    mine = [ours.each(PLAIN, ours.Contender(setup.target, compiled=setup.compiled, sampling=setup.sampling))]
    if setup.draft is not None:
        mine.append(ours.each(f"draftproof {setup.lossy or setup.verify}", setup))
    precision = str(network.dtype).removeprefix("torch.")
    peer = theirs.plain(network, setup.target.tokenizer)._replace(name=f"transformers {precision}")
    return [alone(way) for way in (*mine, peer)]


def measure(
    pair: Pair, groups: dict[str, list[Ids]], options: Options, notice: Callable[[str], object] = lambda line: None
) -> Iterator[list[dict[str, Any]]]:
    """The rows of one comparison after another, for each temperature and kind of prompt."""
    options = options.check()
    where = facts(pair.device)
    setup = speculative(pair, options)
    for kind, prompts in groups.items():
        workload = Workload(1, options.tokens, longest(prompts))
        ready = open_ways(ways(setup, pair.network), workload, prompts[:1], options.temperatures, pair.device, notice)
        for temperature in options.temperatures:
            runs = take_turns(ready, [prompts] * options.repeat, temperature, options.seed, pair.device)
            yield rows(setting("demo", pair, options, 1, temperature, kind), runs, where)


class Speeds(NamedTuple):
    """Tokens a second, and how many times faster the last of our ways is than each other one."""

    tokens_per_s: dict[str, float]
    times: dict[str, float]
    tokens: int = TOKENS  # of each text
    rounds: int = ROUNDS


def compare(ways: Sequence[Way], prompt: Ids, temperature: float, seed: int) -> Speeds:
    """A quick look with one prompt, in turns."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    workload = Workload(1, TOKENS, len(prompt))
    warm = open_ways(ways, workload._replace(tokens=FIRST), [prompt], [temperature], device, lambda line: None)
    names = {way.name for way in warm}  # of those that run here
    ready = [Ready(way.name, way.open(workload), 0) for way in ways if way.name in names]
    runs = take_turns(ready, [[prompt]] * ROUNDS, temperature, seed, device)
    speeds = {name: [run.tokens / run.seconds for run in made] for name, made in runs.items()}
    best = [name for name in speeds if name.startswith("draftproof")][-1]
    times = {
        name: median(a / b for a, b in zip(speeds[best], made, strict=True))
        for name, made in speeds.items()
        if name != best
    }
    return Speeds({name: median(made) for name, made in speeds.items()}, times)


def alone(way: Way) -> Way:
    """The same way, one text after another."""

    def ready(workload: Workload) -> Write:
        write = way.open(workload)

        def each(prompts: Sequence[Ids], temperature: float, seed: int) -> Run:
            return Run.one_by_one([write([prompt], temperature, seed + i) for i, prompt in enumerate(prompts)])

        return each

    return Way(way.name, ready)
