"""Training text that the target writes: chats whose questions are given, or written by the target too.

All rows are at the same position all the time: the tokens of a prompt are fixed in advance and everything else is
drawn, so a batch needs neither padding nor masks. A row is a script of given segments with gaps between them; an end
token closes a gap, and the next segment follows. A shard is one such batch in one file, and the same seed gives the
same shard, so writing can stop and resume at any time.
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
from draftproof.models.hf import HFModel, cache_view
from draftproof.models.kv_cache import SlotCache
from draftproof.models.llama.placement import Range
from draftproof.models.llama.rebuild import rebuild

Ids = tuple[int, ...]
TURNS = 6  # segments of a script; after them the target writes alone
LONGEST = 256  # tokens of a prompt; longer ones are skipped, and those that take more than half of a row


class Template(NamedTuple):
    """The tokens of a chat template around the words of a user."""

    first: Ids  # before the words that open a chat
    later: Ids  # before words that come after an answer
    answer: Ids  # after the words


class Text(NamedTuple):
    """Rows of tokens, which of them were drawn, and at which temperature."""

    tokens: torch.Tensor  # [R, L] int32
    drawn: torch.Tensor  # [R, L] bool: drawn by the target, not given
    temperature: torch.Tensor  # [R] at which they were drawn

    @staticmethod
    def load(paths: Sequence[Path]) -> Text:
        parts = [load_file(path) for path in paths]
        return Text(*(torch.cat([part[name] for part in parts]) for name in Text._fields))

    def save(self, path: Path) -> None:
        """Write atomically: a file that exists is complete."""
        scratch = path.with_suffix(".part")
        save_file({name: tensor.contiguous().cpu() for name, tensor in self._asdict().items()}, scratch)
        scratch.replace(path)


def template(model: HFModel, chat: bool = True) -> Template:
    """Split the model's chat template into parts; without one a text begins with the model's first token."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise DraftproofError(f"model {model.name!r} has no tokenizer, which prompts need: use a model with one")
    if not (chat and tokenizer.chat_template):
        start = [token for token in (tokenizer.bos_token_id, *model.end_tokens, 0) if token is not None][:1]
        return Template(tuple(start), (), ())
    marks = ("QQQ", "AAA", "ZZZ")
    messages = [
        {"role": role, "content": mark} for role, mark in zip(("user", "assistant", "user"), marks, strict=True)
    ]
    words = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    try:
        first, rest = words.split(marks[0])
        _, rest = rest.split(marks[1])
        later, answer = rest.split(marks[2])
    except ValueError as error:
        raise DraftproofError(
            f"the chat template of {model.name!r} changes the words of the messages: use --raw"
        ) from error
    ids = [tuple(tokenizer(part, add_special_tokens=False)["input_ids"]) for part in (first, later, answer)]
    return Template(ids[0], ids[1][1:] if ids[1][:1] and ids[1][0] in model.end_tokens else ids[1], ids[2])


class Source(NamedTuple):
    """A source of questions: a list of prompts, or the target itself if the list is empty."""

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
        """Draw the given segments of a question and its answer."""
        around = self.around
        before = around.first if first else around.later
        if self.words:
            return [before + self.words[rng.integers(len(self.words))] + around.answer]
        closed = (
            around.answer[:1] and around.answer[0] in self.ends
        )  # the target ends its words with the end token itself
        return [part for part in (before or self.ends[:1], around.answer[1:] if closed else around.answer) if part]


def scripts(sources: Sequence[Source], rows: int, rng: np.random.Generator) -> torch.Tensor:
    """Draw scripts [R, turns + 1, longest] of given tokens, padded with -1; the last turn is empty."""
    texts: list[list[Ids]] = []
    for _ in range(rows):
        segments: list[Ids] = []
        while len(segments) < TURNS:
            segments += sources[int(rng.integers(len(sources)))].turn(not segments, rng)
        texts.append(segments[:TURNS])
    longest = max(len(segment) for segments in texts for segment in segments)  # template included
    padded = np.full((rows, TURNS + 1, longest + 1), -1, dtype=np.int32)
    for row, segments in zip(padded, texts, strict=True):
        for turn, segment in enumerate(segments):
            row[turn, : len(segment)] = segment
    return torch.from_numpy(padded)


def _race(logits: torch.Tensor, temperature: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Sample tokens [R] from logits [R, V] as the winners of exponential races [R, V], without a device sync."""
    return (logits.float() / temperature - noise.log()).argmax(-1)


# without cuDNN, which plans its attention again for every length: that takes longer than the rest of a call
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
    """Write `length` tokens that follow the scripts [R, turns, longest] at the temperatures [R]."""
    unlimited = set(model.windows.values()) == {None}  # else every call needs transformers' mask
    network: Any = rebuild(model.network) if unlimited else model.network
    device = network.device
    rows = len(given)
    given, heat = given.to(device), temperature.to(device)[:, None]
    generator = torch.Generator(device).manual_seed(seed)
    ends = torch.tensor(model.end_tokens, dtype=torch.int64, device=device)
    cache = SlotCache(model.layers, rows, length)
    row = torch.arange(rows, device=device)
    turn, place = torch.zeros_like(row), torch.zeros_like(row)
    tokens = torch.zeros((rows, length), dtype=torch.int32, device=device)
    drawn = torch.zeros((rows, length), dtype=torch.bool, device=device)
    guess = row * 0
    noise = torch.empty((rows, model.vocabulary), device=device)
    race = torch.compile(_race, dynamic=False) if noise.is_cuda else _race
    for t in range(length):
        fixed = given[row, turn, place].long()
        free = fixed < 0
        token = torch.where(free, guess, fixed)
        tokens[:, t], drawn[:, t] = token.int(), free
        over = free & torch.isin(token, ends)
        place = torch.where(over, 0, place + (~free).long())
        turn = (turn + over.long()).clamp_max(given.shape[1] - 1)
        if t + 1 < length:
            view = cache_view(network, cache, Range(t, t + 1))
            position = torch.full((1, 1), t, device=device).expand(rows, 1)
            logits = network(token[:, None], position_ids=position, past_key_values=view, use_cache=True).logits[:, -1]
            guess = race(logits, heat, noise.exponential_(generator=generator))
        progress(rows)
    return Text(tokens.cpu(), drawn.cpu(), temperature.cpu())
