"""Text that the target writes itself, to learn from: chats whose questions are given or written by the target too.

All rows stand at the same position all the time: the tokens of a prompt are decided in advance and everything else is
drawn, so a batch needs neither padding nor masks. A row is a script of given segments with gaps between them; an end
token closes a gap, and the next segment follows. A shard is one such batch in one file, and the same seed gives the
same shard, so writing can stop and go on at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch.nn.attention import SDPBackend, sdpa_kernel

from draftproof.errors import DraftproofError
from draftproof.models.hf import HFModel
from draftproof.models.kv_cache import SlotCache
from draftproof.models.llama.placement import Range
from draftproof.models.llama.rebuild import rebuild

Ids = tuple[int, ...]
TURNS = 6  # segments of a script; what comes after them is the target's alone
LONGEST = 256  # prompt in tokens; longer ones are left out, and those that take more than half of a row


class Template(NamedTuple):
    """What stands around the words of a user, in tokens."""

    first: Ids  # before the words that open a chat
    later: Ids  # before words that come after an answer
    answer: Ids  # after the words


class Text(NamedTuple):
    """Rows of tokens."""

    tokens: torch.Tensor  # [R, L] int32
    drawn: torch.Tensor  # [R, L] bool: by the target, not given
    temperature: torch.Tensor  # [R] that they were drawn at

    @staticmethod
    def load(paths: Sequence[Path]) -> Text:
        parts = [load_file(path) for path in paths]
        return Text(*(torch.cat([part[name] for part in parts]) for name in Text._fields))

    def save(self, path: Path) -> None:
        """All or nothing: a file that is there is whole."""
        scratch = path.with_suffix(".part")
        save_file({name: tensor.contiguous().cpu() for name, tensor in self._asdict().items()}, scratch)
        scratch.replace(path)


def template(model: HFModel, chat: bool = True) -> Template:
    """The model's chat template taken apart; without one a text opens with the model's first token."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise DraftproofError(f"model {model.name!r} has no tokenizer: prompts could not be read")
    if not (chat and tokenizer.chat_template):
        start = [token for token in (tokenizer.bos_token_id, *model.end_tokens, 0) if token is not None][:1]
        return Template(tuple(start), (), ())
    marks = ("QQQ", "AAA", "ZZZ")
    said = [{"role": role, "content": mark} for role, mark in zip(("user", "assistant", "user"), marks, strict=True)]
    words = tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
    try:
        first, rest = words.split(marks[0])
        _, rest = rest.split(marks[1])
        later, answer = rest.split(marks[2])
    except ValueError as error:
        raise DraftproofError(f"the chat template of {model.name!r} changes what is said: use --raw") from error
    ids = [tuple(tokenizer(part, add_special_tokens=False)["input_ids"]) for part in (first, later, answer)]
    return Template(ids[0], ids[1][1:] if ids[1][:1] and ids[1][0] in model.end_tokens else ids[1], ids[2])


class Source(NamedTuple):
    """Where questions come from: prompts, or the target itself if there are none."""

    around: Template
    words: list[Ids]
    ends: Ids

    @staticmethod
    def of(model: HFModel, prompts: Sequence[str], chat: bool = True, longest: int = LONGEST) -> Source:
        ids = model.tokenizer(list(prompts), add_special_tokens=False)["input_ids"] if prompts else []
        words = [tuple(prompt) for prompt in ids if 0 < len(prompt) <= longest]
        if prompts and not words:
            raise DraftproofError(f"no prompt has at most {longest} tokens: use shorter ones, or --data self")
        return Source(template(model, chat), words, model.end_tokens)

    def turn(self, first: bool, rng: np.random.Generator) -> list[Ids]:
        """The given segments of a question and its answer."""
        around = self.around
        before = around.first if first else around.later
        if self.words:
            return [before + self.words[rng.integers(len(self.words))] + around.answer]
        closed = around.answer[:1] and around.answer[0] in self.ends  # the target's words end with their end token
        return [part for part in (before or self.ends[:1], around.answer[1:] if closed else around.answer) if part]


def scripts(sources: Sequence[Source], rows: int, rng: np.random.Generator) -> torch.Tensor:
    """[R, turns + 1, longest] given tokens, then -1; each question from one of the sources, the last turn empty."""
    told: list[list[Ids]] = []
    for _ in range(rows):
        segments: list[Ids] = []
        while len(segments) < TURNS:
            segments += sources[int(rng.integers(len(sources)))].turn(not segments, rng)
        told.append(segments[:TURNS])
    longest = max(len(segment) for segments in told for segment in segments)  # a template may be longer than a prompt
    made = np.full((rows, TURNS + 1, longest + 1), -1, dtype=np.int32)
    for row, segments in zip(made, told, strict=True):
        for turn, segment in enumerate(segments):
            row[turn, : len(segment)] = segment
    return torch.from_numpy(made)


def _race(logits: torch.Tensor, temperature: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Tokens [R] from logits [R, V]: the first to arrive, of exponential times [R, V] with rates p. Nothing waits."""
    return (logits.float() / temperature - noise.log()).argmax(-1)


# cuDNN plans its attention anew for every length, which takes longer than all the rest of a call
KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@torch.no_grad()
@sdpa_kernel(KERNELS)
def write(
    model: HFModel,
    given: torch.Tensor,
    temperature: torch.Tensor,
    length: int,
    seed: int,
    progress: Callable[[int], object] = lambda tokens: None,
) -> Text:
    """Play the scripts [R, turns, longest] at the temperatures [R] for `length` tokens."""
    unlimited = set(model.windows.values()) == {None}  # else every call needs the mask that transformers makes
    network: Any = rebuild(model.network) if unlimited else model.network
    device = network.device
    rows = len(given)
    given, heat = given.to(device), temperature.to(device)[:, None]
    generator = torch.Generator(device).manual_seed(seed)
    ends = torch.tensor(model.end_tokens, dtype=torch.int64, device=device)
    cache = SlotCache(model.layers, rows, length)
    each = torch.arange(rows, device=device)
    turn, place = torch.zeros_like(each), torch.zeros_like(each)
    tokens = torch.zeros((rows, length), dtype=torch.int32, device=device)
    drawn = torch.zeros((rows, length), dtype=torch.bool, device=device)
    guess = each * 0
    noise = torch.empty((rows, model.vocabulary), device=device)
    race = torch.compile(_race, dynamic=False) if noise.is_cuda else _race
    for t in range(length):
        said = given[each, turn, place].long()
        free = said < 0
        token = torch.where(free, guess, said)
        tokens[:, t], drawn[:, t] = token.int(), free
        over = free & torch.isin(token, ends)
        place = torch.where(over, 0, place + (~free).long())
        turn = (turn + over.long()).clamp_max(given.shape[1] - 1)
        if t + 1 < length:
            view = cache.at(Range(t, t + 1))
            position = torch.full((1, 1), t, device=device).expand(rows, 1)
            logits = network(token[:, None], position_ids=position, past_key_values=view, use_cache=True).logits[:, -1]
            guess = race(logits, heat, noise.exponential_(generator=generator))
        progress(rows)
    return Text(tokens.cpu(), drawn.cpu(), temperature.cpu())
