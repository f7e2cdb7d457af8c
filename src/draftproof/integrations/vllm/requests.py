"""What verification must know of each request, from its sampling parameters, when it joins a batch."""

from __future__ import annotations

from typing import Any, NamedTuple

from draftproof.integrations.vllm import settings
from draftproof.kernels.types import SHORTLIST, ChainRule


class RequestChoice(NamedTuple):
    """What one request asks for."""

    rule: ChainRule  # for drafts that come with their laws
    raw: bool  # whether the kernels apply all its controls themselves, from raw logits
    truncates: int  # as in `kernels.Controls`
    greedy: bool
    structured: bool  # whether a grammar ends its drafts before the first token that it forbids

    @property
    def whole(self) -> bool:
        """Whether it keeps every token of its law."""
        return not self.truncates and not self.greedy


def choice(params: Any, default: str) -> RequestChoice:
    """A request's choice from its SamplingParams; `default` is the server's rule."""
    greedy = params.temperature == 0
    truncated = params.top_k > 0 or params.top_p < 1 or params.min_p > 0
    edited = (
        params.repetition_penalty != 1
        or params.presence_penalty
        or params.frequency_penalty
        or params.logit_bias
        or params.allowed_token_ids
        or params.bad_words
        or params.min_tokens
        or params.thinking_token_budget is not None
    )
    # vLLM cuts by min_p before top_p, the kernels after: the two orders keep other tokens
    crossed = params.min_p > 0 and params.top_p < 1
    return RequestChoice(
        # any rule is the same for a greedy request, and this one needs no law of the drafter's
        rule=ChainRule.ONEHOT if greedy else ChainRule[(settings.of_request(params.extra_args) or default).upper()],
        raw=not (edited or crossed),
        truncates=0 if not truncated or greedy else 1 if 0 < params.top_k <= SHORTLIST else 2,
        greedy=greedy,
        structured=params.structured_outputs is not None,
    )


class Mix(NamedTuple):
    """What the requests of a batch have in common, as `kernels.Controls` takes it."""

    raw: bool
    truncates: int
    greedy: bool
    whole: bool


def mix(choices: list[RequestChoice]) -> Mix:
    """The summary of a batch."""
    return Mix(
        all(each.raw for each in choices),
        max((each.truncates for each in choices), default=0),
        any(each.greedy for each in choices),
        any(each.whole for each in choices),
    )
