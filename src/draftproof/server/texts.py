"""A request's body as prompts and settings for the engine; whatever cannot be served is refused by its name."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from draftproof.draft import Tree
from draftproof.engine.arguments import RequestSettings, encode, encode_prediction
from draftproof.engine.messages import template_ids
from draftproof.errors import DraftproofError
from draftproof.models.base import Model, default_sampling
from draftproof.noise import check_seed
from draftproof.sampling import Sampling, check_tokens
from draftproof.server.errors import ApiError, refused
from draftproof.server.formats import form_of
from draftproof.server.protocol import ChatBody, ChatMessage, CompletionBody, Speculation, TextBody, TokenizeBody

DRAFTERS = ("auto", "head", "ngram", "cache", "none")  # that a client may name: they open no file of its choice
NODES = 64  # most nodes of a client's tree
DETAILS = 5  # alternatives of each token in `details`
# our names of sampling controls by OpenAI's and vLLM's
CONTROLS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty")},
    **{name: name for name in ("presence_penalty", "frequency_penalty", "logit_bias")},
    "min_tokens": "min_new_tokens",
}


FOLDERS = re.compile(
    r"(?:^|(?<=[|:\s]))(?:~|\.{1,2})?/(?:[^|+/]*/)*(?=[^|+/])"
)  # of a path from the root, from . or from ~


def without_folders(names: str) -> str:
    """The names of drafters, without the folders of this machine.

    >>> without_folders("ngram|/home/ann/runs/head + org/model")
    'ngram|head + org/model'
    """
    return FOLDERS.sub("", names)


@dataclass(frozen=True)
class ServedModel:
    """The model of a server, and what its clients may ask for."""

    name: str
    target: Model
    rows: int
    length: int  # of prompt and text
    draft: str = "auto"  # the server's own
    created: int = field(default_factory=lambda: int(time.time()))

    def check(self, name: str | None) -> None:
        if name not in (None, self.name):
            raise ApiError(
                404, f"model {name!r} is not served here: use {self.name!r}", param="model", code="model_not_found"
            )


@dataclass(frozen=True)
class TextRequest:
    """What a client asks for, ready for the engine: n texts of each prompt."""

    kind: str  # "chat" or "completion"
    prompts: tuple[tuple[int, ...], ...]
    settings: tuple[RequestSettings, ...]  # of each prompt
    n: int
    top: int | None  # alternatives of each token that the client wants; None: no logprobs
    form: str | None = None  # the parameter that says what form the texts have
    details: bool = False
    prediction: tuple[int, ...] = ()
    echo: tuple[str, ...] = ()  # the prompts as text, where they are part of the answer
    token_ids: bool = False
    names_ids: bool = False  # logprobs have "token_id:ID" in place of a token's text
    stream: bool = False
    include_usage: bool = False
    asked: float = field(default_factory=time.perf_counter)


def chat_request(body: ChatBody, model: ServedModel) -> TextRequest:
    """The texts that a conversation asks for."""
    model.check(body.model)
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise refused("max_tokens", "max_tokens and max_completion_tokens differ: give one of them")
    if body.top_logprobs is not None and not body.logprobs:
        raise refused("top_logprobs", "top_logprobs needs logprobs: true")
    ids = conversation_ids(body.messages, model, body.add_generation_prompt, body.continue_final_message)
    top = (body.top_logprobs or 0) if body.logprobs else None
    wanted = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
    name = "max_completion_tokens" if body.max_tokens is None else "max_tokens"
    return _request("chat", body, model, (ids,), "messages", (name, wanted), top)


def completion_request(body: CompletionBody, model: ServedModel) -> TextRequest:
    """The texts that one prompt or several ask for."""
    model.check(body.model)
    if body.best_of not in (None, body.n or 1):
        raise refused("best_of", f"best_of must equal n ({body.n or 1}), not {body.best_of}: all texts are returned")
    if body.echo and body.logprobs is not None:
        raise refused("echo", "echo with logprobs is not supported: prompts have no logprobs")
    prompts: list[Any] = body.prompt if _are_several(body.prompt) else [body.prompt]  # type: ignore[assignment]
    ids = tuple(_prompt_ids(prompt, model, body.add_special_tokens) for prompt in prompts)
    request = _request("completion", body, model, ids, "prompt", ("max_tokens", body.max_tokens), body.logprobs)
    if not body.echo:
        return request
    texts = (prompt if isinstance(prompt, str) else text_of(model.target, prompt) for prompt in prompts)
    return dataclasses.replace(request, echo=tuple(texts))


def tokenized(body: TokenizeBody, model: ServedModel) -> tuple[int, ...]:
    """Token ids of a prompt or of messages."""
    model.check(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise refused("prompt", "give a prompt or messages, and not both")
    if body.prompt is not None:
        special = body.add_special_tokens is not False
        return tuple(model.target.tokenizer(body.prompt, add_special_tokens=special)["input_ids"])
    if body.add_special_tokens:
        raise refused("add_special_tokens", "the chat template has the special tokens already: leave it out")
    return conversation_ids(body.messages or [], model, body.add_generation_prompt, body.continue_final_message)


def text_of(target: Model, tokens: Sequence[int], special: bool = False) -> str:
    """The text of some tokens."""
    return str(
        target.tokenizer.decode(list(tokens), skip_special_tokens=not special, clean_up_tokenization_spaces=False)
    )


def conversation_ids(
    messages: Sequence[ChatMessage], model: ServedModel, opens: bool | None, continues: bool
) -> tuple[int, ...]:
    """Token ids of a conversation.

    opens      it ends where the assistant's next message begins; None: unless the last message is continued
    continues  the assistant's last message is the beginning of the answer
    """
    if continues and opens:
        raise refused("add_generation_prompt", "continue_final_message goes without add_generation_prompt")
    if continues and messages[-1].role != "assistant":
        raise refused("continue_final_message", "the last message is not the assistant's: it cannot be continued")
    if not model.target.tokenizer.chat_template:
        raise refused("messages", f"{model.name!r} has no chat template: use /v1/completions")
    plain = [message.model_dump(exclude_none=True) for message in messages]
    try:
        ids = template_ids(
            model.target.tokenizer, model.name, plain, continues, add_generation_prompt=opens is not False
        )
    except DraftproofError as error:
        raise refused("messages", error) from error
    return tuple(ids)


def _prompt_ids(prompt: str | list[int], model: ServedModel, special: bool) -> tuple[int, ...]:
    try:
        if isinstance(prompt, str) and prompt and not special:
            prompt = list(model.target.tokenizer(prompt, add_special_tokens=False)["input_ids"])
        return encode(model.target, prompt, chat=False)
    except DraftproofError as error:
        raise refused("prompt", error) from error


def _are_several(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)


def _request(
    kind: str,
    body: TextBody,
    model: ServedModel,
    prompts: tuple[tuple[int, ...], ...],
    prompt_name: str,
    wanted: tuple[str, int | None],
    top: int | None,
) -> TextRequest:
    n = body.n or 1
    if n > model.rows:
        raise refused("n", f"n must be at most {model.rows}, the server's rows, not {n}")
    if body.stream_options is not None and not body.stream:
        raise refused("stream_options", "stream_options needs stream: true")
    special = body.draftproof or Speculation()
    try:
        seed = None if body.seed is None else check_seed(body.seed)
    except DraftproofError as error:
        raise refused("seed", error) from error
    form = form_of(body)
    sampling = _sampling(body, model)
    settings: RequestSettings = {
        "sampling": sampling if form is None else dataclasses.replace(sampling, grammar=form.grammar),
        "stop": _stops(body.stop),
        "seed": seed,
        "logprobs": max(top or 0, DETAILS) if special.details else top,
        **_speculation(special, model),
    }
    prediction: tuple[int, ...] = ()
    if body.prediction is not None and body.prediction.text:
        settings["prediction"] = prediction = _prediction(body.prediction.text, model)
    return TextRequest(
        kind,
        prompts,
        tuple({**settings, "max_new_tokens": _room(ids, model, prompt_name, *wanted)} for ids in prompts),
        n,
        top,
        form=None if form is None else form.name,
        details=special.details,
        prediction=prediction,
        token_ids=bool(body.return_token_ids),
        names_ids=bool(body.return_tokens_as_token_ids),
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )


def _prediction(text: str, model: ServedModel) -> tuple[int, ...]:
    try:
        ids = encode_prediction(model.target, text)
    except DraftproofError as error:
        raise refused("prediction", error) from error
    if len(ids) > model.length:
        raise refused("prediction", f"the prediction has {len(ids)} tokens: no text here has more than {model.length}")
    return ids


def _room(ids: Sequence[int], model: ServedModel, prompt_name: str, name: str, wanted: int | None) -> int:
    """How many tokens a text may have: as many as the client wants, or as there is room for."""
    room = model.length - len(ids)
    if room < 1:
        raise refused(
            prompt_name,
            f"the prompt has {len(ids)} tokens, and prompt and text together may have {model.length}: shorten it",
            "context_length_exceeded",
        )
    if wanted is not None and wanted > room:
        raise refused(
            name,
            f"{len(ids)} tokens of prompt and {wanted} of text do not fit into {model.length}: ask for at most {room}",
            "context_length_exceeded",
        )
    return room if wanted is None else wanted


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if not all(stops):
        raise refused("stop", "a stop string is empty: give at least one character")
    return stops


def _sampling(body: TextBody, model: ServedModel) -> Sampling:
    """The model's own sampling with what the client gives, one control after another, so that an error names one."""
    sampling = default_sampling(model.target)
    for name, control in CONTROLS.items():
        value = getattr(body, name)
        if value is None:
            continue
        if name == "top_k" and (value == -1 or value >= model.target.vocabulary):  # vLLM's ways to say: off
            value = 0
        if name == "logit_bias":
            value = _bias(value)
        try:
            sampling = dataclasses.replace(sampling, **{control: value})
            check_tokens(sampling, model.target.vocabulary)
        except DraftproofError as error:
            raise refused(name, str(error).replace(control, name)) from error
    return _with_ends(sampling, body, model.target)


def _with_ends(sampling: Sampling, body: TextBody, target: Model) -> Sampling:
    """The sampling with the tokens that end the text: the model's own, unless they are ignored, and the client's."""
    ends = target.end_tokens if sampling.end_tokens is None else sampling.end_tokens
    own = () if body.ignore_eos else tuple(ends)
    given = tuple(body.stop_token_ids or ())
    strange = [token for token in given if not 0 <= token < target.vocabulary]
    if strange:
        raise refused("stop_token_ids", f"token id {strange[0]} is outside the vocabulary of {target.vocabulary}")
    return dataclasses.replace(sampling, end_tokens=(*own, *given))


def _bias(given: dict[str, float]) -> dict[int, float]:
    strange = [token for token in given if not (token.isascii() and token.isdecimal())]
    if strange:
        raise refused("logit_bias", f"logit_bias goes by token id, not by {strange[0]!r}")
    return {int(token): value for token, value in given.items()}


def _speculation(given: Speculation, model: ServedModel) -> RequestSettings:
    """Settings of drafting; a client chooses among names that open no files, and trees of a bounded size."""
    settings: RequestSettings = {"speculate": given.speculate}
    if given.draft is not None and given.draft != model.draft:
        strange = [name for name in given.draft.split("|") if name not in DRAFTERS]
        if strange:
            names = ", ".join(DRAFTERS)
            raise refused("draftproof.draft", f"unknown draft {strange[0]!r}: use {names}, or several of them with |")
        settings["draft"] = given.draft
    if given.verify is not None:
        from draftproof.engine.choices import choose_rule  # imports torch, for which a starting server does not wait

        try:
            settings["verify"] = choose_rule(given.verify, None).name
        except DraftproofError as error:
            raise refused("draftproof.verify", error) from error
    if given.tree is not None and given.tree != "auto":
        try:
            tree = Tree.parse(given.tree)
        except DraftproofError as error:
            raise refused("draftproof.tree", error) from error
        if tree.size > NODES + 1:
            raise refused("draftproof.tree", f"a tree has at most {NODES} draft tokens here: give fewer")
        settings["tree"] = tree
    return settings
