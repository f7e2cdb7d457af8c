"""Inputs and outputs of the fused kernels: batched controls, noise keys, summaries of laws, and outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, IntFlag
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from draftproof.errors import DraftproofError
from draftproof.sampling import Context, Sampling

SHORTLIST = 256  # the largest top-k whose rows are verified from a list of the tokens they keep
CREST = 64  # large tokens that a drafter keeps of each row, ...
CREST_LOGITS = 4 * 10**7  # ... where verification reads at least this many target logits


class ChainRule(IntEnum):
    """The verification rule of a sequence on a chain of drafts; temperature 0 makes any of them greedy."""

    TOKEN = 0
    BLOCK = 1
    ONEHOT = 2


class Fault(IntFlag):
    """What was wrong with a sequence's input. The outcome is defined all the same (see `verify`)."""

    # A target row that a draft or the next token comes from holds NaN or +inf, or allows no token: nothing is accepted
    # and token 0 is emitted
    TARGET = 1
    TOKEN = 2  # a draft token is outside the vocabulary: the draft ends before it
    # A draft row holds NaN or +inf, allows no token, or is missing though the rule needs it: the draft ends before it
    DRAFT = 4
    IMPOSSIBLE = 8  # a draft token has q = 0: rejected, as the laws reject it


class Ragged(NamedTuple):
    """Rows of B sequences that follow each other in any order and at any distances, as serving engines keep them.

    Kernels read them where they are. Sequence b has rows first[b], first[b] + 1, ... of `rows`; those behind its last
    draft token are not read.
    """

    rows: Tensor  # [R, V]
    first: Tensor  # [B] int64
    nodes: int  # the most rows of a sequence, at most R

    def as_view(self) -> Tensor:
        """[B, N, V] with the distance between rows, for shapes; where a sequence begins is told to kernels apart."""
        shape = (len(self.first), self.nodes, self.rows.shape[-1])
        return self.rows.as_strided(shape, (0, self.rows.stride(0), self.rows.stride(1)))

    def gathered(self) -> Tensor:
        """[B, N, V]: a copy, with the last row again where a sequence would go beyond it."""
        place = self.first[:, None] + torch.arange(self.nodes, device=self.first.device)
        return self.rows[place.clamp(max=len(self.rows) - 1)]


def view(logits: Tensor | Ragged) -> Tensor:
    """[B, N, V]: the rows, or for ragged ones a view of their shape."""
    return logits.as_view() if isinstance(logits, Ragged) else logits


def dense(logits: Tensor | Ragged) -> Tensor:
    """[B, N, V]: the rows side by side."""
    return logits.gathered() if isinstance(logits, Ragged) else logits


def first_row(logits: Tensor | Ragged | None) -> Tensor | None:
    """[B]: where the sequences of ragged rows begin; None for others."""
    return logits.first if isinstance(logits, Ragged) else None


class NoiseKeys(NamedTuple):
    """Keys of each sequence's uniforms, as in draftproof.noise: every uniform is a function of them."""

    seed: Tensor  # [B] int64
    request: Tensor  # [B] int64, below 2**32
    step: Tensor  # [B] int64, below 2**32


class Summary(NamedTuple):
    """The laws of rows of logits, four numbers each: p(v) = scale * 2 ** (score_v * log2(e) / temperature - shift).

    The score is the logit after bias, penalties and masks. A token is kept if its score is above `cutoff`, or equal to
    it and the token's id is at least `first`. In a greedy row only token `first` is kept.
    """

    shift: Tensor  # [B, N] float32, a whole number near the row's largest exponent
    scale: Tensor  # [B, N] float32; not positive for a row without a law
    cutoff: Tensor  # [B, N] float32, set only where any row is truncated
    first: Tensor  # [B, N] int32, set only where any row is truncated or greedy
    # [B, N, CREST], on request and where no row is truncated: distinct large tokens (int32, -1 for none), their scores
    crest: Tensor | None = None
    height: Tensor | None = None

    @staticmethod
    def empty(batch: int, nodes: int, device: torch.device, crest: bool = False) -> Summary:
        """Uninitialised memory for the summaries of [batch, nodes] rows."""
        shift, scale, cutoff = (torch.empty(batch, nodes, device=device) for _ in range(3))
        first = torch.empty(batch, nodes, dtype=torch.int32, device=device)
        if not crest:
            return Summary(shift, scale, cutoff, first)
        large = torch.empty(batch, nodes, CREST, dtype=torch.int32, device=device)
        return Summary(shift, scale, cutoff, first, large, torch.empty(batch, nodes, CREST, device=device))

    def at(self, nodes: slice) -> Summary:
        """A view of the summaries of some nodes."""
        return Summary(*(None if part is None else part[:, nodes] for part in self))  # type: ignore[arg-type]


def crest_pays(batch: int, nodes: int, vocabulary: int) -> bool:
    """Whether keeping the crests of draft rows saves time when target logits [batch, nodes, vocabulary] are verified.

    With them block verification has fewer rows to sum.
    """
    return batch * nodes * vocabulary >= CREST_LOGITS


class Emitted(NamedTuple):
    """The outcome of one step."""

    tokens: Tensor  # [B, N] int64: the accepted drafts, the token after them, then -1
    accepted: Tensor  # [B] int32: how many drafts were accepted
    fault: Tensor  # [B] int32: Fault flags
    logprob: Tensor | None  # [B, N] float32, on request: log of the target's law at each emitted token, 0 beside -1
    # [B, N - 1] float32, on request: the probability that at least the first i drafts are accepted, given these drafts.
    # Its sum is the number of accepted drafts on average over what verification draws. (Given all drafts the average
    # may differ, because block verification looks ahead.)
    reach: Tensor | None = None


class Walked(NamedTuple):
    """The outcome of one step on a tree of depth D."""

    tokens: Tensor  # [B, D + 1] int64: the tokens of the accepted path, the token after it, then -1
    accepted: Tensor  # [B] int32: how many draft tokens were accepted
    path: Tensor  # [B, D] int64: the nodes of the accepted path, then 0
    fault: Tensor  # [B] int32: Fault flags
    stop: Tensor  # [B, N] float32: the probability to stop at each node, given the draft tokens


class Siblings(NamedTuple):
    """Draft tokens after one node of each sequence, and the rows they belong to."""

    target: Tensor  # [B, N, V] raw logits after each node of a tree
    node: Tensor  # [B] int64, the node whose children are verified
    draft: Tensor  # [B, M, V] the drafter's raw logits
    row: Tensor  # [B] int64, the draft row that the children were drawn from
    tokens: Tensor  # [B, K] int64, the children, drawn i.i.d.; -1 for none
    controls: Controls
    draft_controls: Controls


class Picked(NamedTuple):
    """The outcome at one node of each sequence."""

    child: Tensor  # [B] int64: 0 if no child was accepted, else k + 1 for child k, the first of equal ones
    token: Tensor  # [B] int64: the accepted child, or the token emitted instead
    fault: Tensor  # [B] int32: Fault flags


class Controls(NamedTuple):
    """Sampling controls of a batch. The three flags are known on the host: no kernel computes what no row uses."""

    temperature: Tensor  # [B] float32, 0 = greedy
    top_k: Tensor  # [B] int32, 0 = off
    top_p: Tensor  # [B] float64
    min_p: Tensor  # [B] float64
    truncates: int = 0  # 1 if any row is truncated, 2 if one may keep more than SHORTLIST tokens
    greedy: bool = False  # whether any row has temperature 0
    whole: bool = True  # whether any row with a temperature is not truncated
    bias: Tensor | None = None  # [B, V] float32
    penalties: Tensor | None = None  # [B, 3] float32: repetition, presence, frequency
    seen: Tensor | None = None  # [B, V] int32: counts in prompt and output; needed with penalties
    made: Tensor | None = None  # [B, V] int32: counts in the output; needed with penalties
    allowed: Tensor | None = None  # [B, N, ceil(V / 32)] int32: bit v % 32 of word v // 32 allows token v

    def at(self, nodes: Tensor | Sequence[int]) -> Controls:
        """The controls of some nodes' rows: only masks differ from node to node."""
        if self.allowed is None:
            return self
        index = torch.as_tensor(nodes, device=self.allowed.device).to(torch.int64)
        return self._replace(allowed=self.allowed.index_select(1, index))

    @staticmethod
    def of(
        samplings: Sequence[Sampling],
        nodes: int,
        vocabulary: int,
        device: str | torch.device = "cpu",
        contexts: Sequence[Context] | None = None,
    ) -> Controls:
        """The controls of B sequences of `nodes` target rows each; contexts[b] is the committed text of sequence b."""
        for sampling in samplings:
            if unfused := unsupported(sampling):
                raise DraftproofError(f"{unfused} has no fused kernel: use draftproof.sampling.law for this sequence")
        if any(s.reads_history for s in samplings) and contexts is None:
            raise DraftproofError("these controls look at the text so far: pass `contexts`, one for each sequence")

        def column(name: str, dtype: torch.dtype) -> Tensor:
            return torch.tensor([getattr(s, name) for s in samplings], dtype=dtype, device=device)

        bias = penalties = seen = made = allowed = None
        if any(s.logit_bias for s in samplings):
            bias = torch.zeros(len(samplings), vocabulary, device=device)
            for b, sampling in enumerate(samplings):
                for token, value in sampling.logit_bias.items():
                    bias[b, token] = value
        names = ("repetition_penalty", "presence_penalty", "frequency_penalty")
        if any(s.repetition_penalty != 1 or s.presence_penalty or s.frequency_penalty for s in samplings):
            penalties = torch.stack([column(name, torch.float32) for name in names], dim=1)
            seen, made = counts(contexts or [], vocabulary, device)
        if any(s.allowed is not None or len(s.banned) for s in samplings):
            rows = torch.stack([_mask(s, vocabulary) for s in samplings])
            allowed = pack(rows[:, None].expand(-1, nodes, -1)).to(device)
        return Controls(
            column("temperature", torch.float32),
            column("top_k", torch.int32),
            column("top_p", torch.float64),
            column("min_p", torch.float64),
            max((truncation(s) for s in samplings), default=0),
            any(s.temperature == 0 for s in samplings),
            any(s.temperature and not truncation(s) for s in samplings),
            bias,
            penalties,
            seen,
            made,
            allowed,
        )


def truncation(sampling: Sampling) -> int:
    """0 without top_k, top_p and min_p, 1 where top_k keeps at most SHORTLIST tokens, else 2."""
    if not (sampling.top_k or sampling.top_p != 1 or sampling.min_p):
        return 0
    return 1 if 0 < int(sampling.top_k) <= SHORTLIST else 2  # type: ignore[arg-type]  # no schedules here


def unsupported(sampling: Sampling) -> str:
    """The first control of a Sampling that the kernels do not compute, or the empty string."""
    schedules = ("temperature", "top_k", "top_p", "min_p")
    for name, off in (("typical_p", 1), ("epsilon_cutoff", 0), ("eta_cutoff", 0), ("min_new_tokens", 0)):
        if getattr(sampling, name) != off:
            return name
    for name in schedules:
        if callable(getattr(sampling, name)):
            return f"a schedule for {name}"
    if sampling.grammar is not None:
        return "a grammar"
    return "processors" if len(sampling.processors) else ""


def counts(contexts: Sequence[Context], vocabulary: int, device: str | torch.device) -> tuple[Tensor, Tensor]:
    """How often each token occurs in prompt and output, and in the output alone: two [B, V] int32."""
    tables = []
    for texts in ([c.prompt + c.output for c in contexts], [c.output for c in contexts]):
        rows = [np.bincount(np.array(text, dtype=np.int64), minlength=vocabulary) for text in texts]
        tables.append(torch.from_numpy(np.stack(rows).astype(np.int32)).to(device))
    return tables[0], tables[1]


def pack(allowed: Tensor) -> Tensor:
    """A boolean mask [..., V] as words of 32 bits, int32 [..., ceil(V / 32)].

    >>> pack(torch.tensor([True, False, True, True])).tolist()
    [13]
    """
    size = allowed.shape[-1]
    padded = torch.nn.functional.pad(allowed, (0, -size % 32)).reshape(*allowed.shape[:-1], -1, 32).to(torch.int64)
    words = (padded << torch.arange(32, device=allowed.device)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def unpack(words: Tensor, vocabulary: int) -> Tensor:
    """The boolean mask [..., V] of packed words: the inverse of `pack`."""
    bits = (words[..., None] >> torch.arange(32, dtype=torch.int32, device=words.device)) & 1
    return bits.flatten(-2)[..., :vocabulary] != 0


def _mask(sampling: Sampling, vocabulary: int) -> Tensor:
    mask = torch.ones(vocabulary, dtype=torch.bool)
    if sampling.allowed is not None:
        mask[:] = False
        mask[list(sampling.allowed)] = True
    mask[list(sampling.banned)] = False
    return mask
