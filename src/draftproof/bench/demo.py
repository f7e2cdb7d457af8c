"""`draftproof bench demo`: the default draft beside plain sampling and transformers' float32 `generate`.

Texts are generated one at a time, as on the command line; in a round every candidate writes all prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from draftproof.bench import ours, theirs
from draftproof.bench.engine import Options, longest, setting, speculative
from draftproof.bench.pair import Pair
from draftproof.bench.rows import facts, rows
from draftproof.bench.turns import Candidate, Ids, Run, WarmCandidate, Workload, Write, take_turns, warm_up

TOKENS, ROUNDS, FIRST = 48, 3, 4  # of a quick comparison, whose median tolerates one outlier; tokens of the warm-up
PLAIN = "draftproof plain"


def candidates(setup: ours.Contender, network: Any) -> list[Candidate]:
    """Plain sampling, speculative sampling, and transformers with its own network."""
    mine = [ours.one_row_each(PLAIN, ours.Contender(setup.target, compiled=setup.compiled, sampling=setup.sampling))]
    if setup.draft is not None:
        mine.append(ours.one_row_each(f"draftproof {setup.lossy or setup.verify}", setup))
    precision = str(network.dtype).removeprefix("torch.")
    peer = theirs.plain(network, setup.target.tokenizer)._replace(name=f"transformers {precision}")
    return [alone(candidate) for candidate in (*mine, peer)]


def measure(
    pair: Pair, groups: dict[str, list[Ids]], options: Options, notice: Callable[[str], object] = lambda line: None
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each comparison, for every kind of prompt and temperature."""
    options = options.check()
    where = facts(pair.device)
    setup = speculative(pair, options)
    for kind, prompts in groups.items():
        workload = Workload(1, options.tokens, longest(prompts))
        ready = warm_up(
            candidates(setup, pair.network), workload, prompts[:1], options.temperatures, pair.device, notice
        )
        for temperature in options.temperatures:
            runs = take_turns(ready, [prompts] * options.repeat, temperature, options.seed, pair.device)
            yield rows(setting("demo", pair, options, 1, temperature, kind), runs, where)


class Speeds(NamedTuple):
    """Tokens per second, and how many times faster our last candidate is than each other one."""

    tokens_per_s: dict[str, float]
    times: dict[str, float]
    tokens: int = TOKENS  # of each text
    rounds: int = ROUNDS


def compare(candidates: Sequence[Candidate], prompt: Ids, temperature: float, seed: int, device: str) -> Speeds:
    """Compare candidates quickly on one prompt, in turns."""
    workload = Workload(1, TOKENS, len(prompt))
    warm = warm_up(candidates, workload._replace(tokens=FIRST), [prompt], [temperature], device, lambda line: None)
    names = {candidate.name for candidate in warm}  # of those that run here
    again = [candidate for candidate in candidates if candidate.name in names]
    ready = [WarmCandidate(candidate.name, candidate.open(workload), 0) for candidate in again]
    runs = take_turns(ready, [[prompt]] * ROUNDS, temperature, seed, device)
    speeds = {name: [run.tokens / run.seconds for run in rounds] for name, rounds in runs.items()}
    best = [name for name in speeds if name.startswith("draftproof")][-1]
    times = {
        name: median(a / b for a, b in zip(speeds[best], values, strict=True))
        for name, values in speeds.items()
        if name != best
    }
    return Speeds({name: median(values) for name, values in speeds.items()}, times)


def alone(candidate: Candidate) -> Candidate:
    """The same candidate, one text after another."""

    def ready(workload: Workload) -> Write:
        write = candidate.open(workload)

        def write_each(prompts: Sequence[Ids], temperature: float, seed: int) -> Run:
            return Run.one_by_one([write([prompt], temperature, seed + i) for i, prompt in enumerate(prompts)])

        return write_each

    return Candidate(candidate.name, ready)
