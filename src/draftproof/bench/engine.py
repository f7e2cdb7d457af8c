"""`draftproof bench engine`: plain and speculative sampling, ours and transformers', on the same models and prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from draftproof.bench import ours, theirs
from draftproof.bench.pair import Pair, rounds
from draftproof.bench.rows import Setting, facts, rows
from draftproof.bench.turns import Candidate, Ids, Workload, take_turns, warm_up
from draftproof.draft import Tree
from draftproof.errors import DraftproofError
from draftproof.noise import check_seed
from draftproof.sampling import Sampling


class Options(NamedTuple):
    """The options of a benchmark."""

    verify: tuple[str, ...] = ("block",)
    tree: str = "chain:5"
    temperatures: tuple[float, ...] = (1.0,)
    batches: tuple[int, ...] = (1,)
    tokens: int = 64
    repeat: int = 5
    seed: int = 0
    compiled: bool = False  # our models on a GPU; transformers' on a CPU, where it does not compile by default
    only: tuple[str, ...] = ("",)  # parts of the names of the candidates to measure

    def check(self) -> Options:
        for name, values in (("batch", self.batches), ("tokens", (self.tokens,)), ("repeat", (self.repeat,))):
            if not values or min(values) < 1:
                raise DraftproofError(f"{name} must be at least 1, not {min(values, default='empty')}")
        for temperature in self.temperatures:
            Sampling(temperature=temperature)  # raises if it is none
        check_seed(self.seed)
        return self


def measure(
    pair: Pair, groups: dict[str, list[Ids]], options: Options, notice: Callable[[str], object] = lambda line: None
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each comparison, for every batch size, temperature and kind of prompt."""
    options = options.check()
    where = facts(pair.device)
    for batch in options.batches:
        torch.compiler.reset()  # else the peer's second batch size gets dynamic-shape kernels, which are slower
        chosen = {kind: rounds(ids, batch, options.repeat) for kind, ids in groups.items()}
        hardest = max((prompts for batches in chosen.values() for prompts in batches), key=longest)
        workload = Workload(batch, options.tokens, longest(hardest))
        candidates = list(peers(pair, options, batch))
        selected = [c for c in candidates if any(part in c.name for part in options.only)]
        if not selected:
            names = ", ".join(candidate.name for candidate in candidates)
            raise DraftproofError(f"--only {','.join(options.only)} leaves nothing to measure: choose from {names}")
        ready = warm_up(selected, workload, hardest, options.temperatures, pair.device, notice)
        for temperature in options.temperatures:
            for kind, batches in chosen.items():
                runs = take_turns(ready, batches, temperature, options.seed, pair.device)
                yield rows(setting("engine", pair, options, batch, temperature, kind), runs, where)


def longest(prompts: Sequence[Ids]) -> int:
    return max(map(len, prompts))


def peers(pair: Pair, options: Options, batch: int) -> Iterator[Candidate]:
    """Every candidate for this pair of models, machine and batch size."""
    plain = ours.Contender(pair.target, compiled=options.compiled)
    yield ours.one_row_each("draftproof plain", plain)
    if pair.draft is not None:
        for verify in options.verify:
            setup = plain._replace(draft=pair.draft, verify=verify, tree=options.tree)
            yield ours.one_row_each(f"draftproof {verify}", setup)
    names = (pair.network, pair.target.tokenizer)
    yield theirs.plain(*names)
    if pair.device == "cuda" or options.compiled:
        yield theirs.static(*names)
    if theirs.has_vllm():
        yield theirs.vllm(pair.network)
    length = 5 if options.tree == "auto" else Tree.parse(options.tree).depth[-1]
    if batch == 1 and pair.assistant is not None:
        yield theirs.assisted(*names, pair.assistant, length)
    elif batch == 1 and pair.draft is not None:
        yield theirs.lookup(*names, length)


def speculative(pair: Pair, options: Options) -> ours.Contender:
    """Our configuration with the first of the rules."""
    return ours.Contender(pair.target, pair.draft, options.verify[0], options.tree, options.compiled)


def setting(bench: str, pair: Pair, options: Options, batch: int, temperature: float, kind: str) -> Setting:
    """What the rows of a comparison have in common."""
    return Setting(
        bench=bench,
        target=pair.target.name,
        draft="none" if pair.draft is None else pair.draft.name,
        tree="" if pair.draft is None else options.tree,
        device=pair.device,
        dtype=pair.dtype,
        compiled=options.compiled,
        batch=batch,
        temperature=temperature,
        tokens=options.tokens,
        prompts=kind,
        repeat=options.repeat,
        seed=options.seed,
    )
