"""A chat under way: the conversation, and the model, drafters and tuner that are kept from answer to answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from draftproof.commands.chat.conversation import Conversation, Exchange, Message
from draftproof.commands.chat.screen import Screen
from draftproof.commands.chat.settings import ChatSettings
from draftproof.commands.text_options import own_controls
from draftproof.couple import COUPLINGS
from draftproof.engine.choices import choose_rule, may_temper
from draftproof.engine.generate import Stream, stream
from draftproof.engine.request import Output
from draftproof.engine.tuning import Auto, tuned
from draftproof.errors import ContextError, DraftproofError
from draftproof.models import check_drafters, drafter, load
from draftproof.models.base import Model

SEEDS = 2**63


class ChatAnswer(NamedTuple):
    """What the engine wrote, and whether its drafts were tuned by the clock: then the seed does not give it again."""

    output: Output
    by_clock: bool


class ChatSession:
    """Answers messages and keeps the conversation."""

    def __init__(
        self, conversation: Conversation, screen: Screen, transcript: Path | None = None, device: str = "auto"
    ) -> None:
        """`transcript`: a file that is written after every answer."""
        self.conversation, self.screen, self.transcript = conversation, screen, transcript
        conversation.settings.arguments()  # fail before a model is loaded
        check_drafters(conversation.settings.draft)
        self.model = load(conversation.target, dtype=conversation.dtype, device=device)
        if self.model.tokenizer is None or not self.model.tokenizer.chat_template:
            raise DraftproofError(
                f"{conversation.target} has no chat template: continue a text with `draftproof generate` instead"
            )
        self.drafts = self._open(conversation.settings.draft)
        self.last: ChatAnswer | None = None
        self._tuner: Auto | None = None

    @property
    def own_controls(self) -> dict[str, Any]:
        """The sampling controls that the model's generation_config.json decides."""
        settings = self.conversation.settings
        return own_controls(self.model, settings.controls) if settings.generation_config else {}

    def say(self, text: str) -> None:
        """Answer a message."""
        self._answer(self.conversation.exchanges, text)

    def retry(self) -> None:
        """Answer the last message anew."""
        *earlier, last = self.conversation.exchanges
        self._answer(earlier, last.user)

    def use(self, settings: ChatSettings) -> None:
        """Go on with other settings, checked; if a drafter cannot be loaded the old ones stay."""
        if settings.draft != self.conversation.settings.draft:
            self.drafts = self._open(settings.draft)
        if dataclasses.replace(settings, seed=None) != dataclasses.replace(self.conversation.settings, seed=None):
            self._tuner = None  # what it has learned is about the old ones
        self.conversation.settings = settings

    def _open(self, names: str) -> list[Model]:
        return [found for name in names.split(",") if (found := drafter(name, self.model)) is not None]

    def _answer(self, earlier: Sequence[Exchange], text: str) -> None:
        try:
            writing = self._stream(self.conversation.prompt(earlier, text))
        except ContextError as error:
            if not earlier:
                raise
            full = f"the conversation has {error.tokens} tokens but the context of {error.model!r} has {error.context}"
            raise DraftproofError(
                f"{full}: /trim drops the oldest exchange, /clear all; then send the message again"
            ) from error
        shown = self.screen.answer(writing)
        output = writing.output
        if not shown and output.finish == "cancelled":
            self.screen.note("stopped before the first word: the message is not kept")
            return
        settings = self.conversation.settings
        by_clock = settings.seed is None and bool(output.trace.shapes) and settings.verify not in COUPLINGS
        self.last = ChatAnswer(output, by_clock)
        self.conversation.exchanges = [*earlier, Exchange(text, shown, output.seed, output.finish)]
        if settings.seed is not None:
            self.conversation.settings = dataclasses.replace(settings, seed=(settings.seed + 1) % SEEDS)
        self.screen.result(output)
        if self.transcript is not None:
            self.conversation.save(self.transcript)

    def _stream(self, messages: Sequence[Message]) -> Stream:
        """Begin an answer. It prefills the whole conversation: a KV cache kept from the last answer would go here."""
        arguments = self.conversation.settings.arguments(self.own_controls)
        if self.drafts and arguments["tree"] is None and arguments["seed"] is None:
            arguments["tree"] = self._tuner = self._tuner or self._new_tuner()
        return stream(self.model, messages, draft=self.drafts, **arguments)

    def _new_tuner(self) -> Auto:
        settings = self.conversation.settings.arguments(self.own_controls)
        rule = choose_rule(settings["verify"], settings["lossy"])
        tempers = settings["draft_sampling"] is None and may_temper(rule, settings["sampling"])
        return tuned(rule.trees, self.drafts, tempers)
