"""A conversation and its transcript: messages in OpenAI's roles, with settings, target and the seed of every answer."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from draftproof.commands.chat.settings import ChatSettings
from draftproof.errors import DraftproofError
from draftproof.paths import read_text

Message = dict[str, str]
FORMAT = "draftproof chat 1"


class Exchange(NamedTuple):
    """A message of the user and its answer, which may have been stopped before its end."""

    user: str
    answer: str
    seed: int | None = None
    finish: str = "end"


@dataclass
class Conversation:
    """What was said so far, and with which model and settings it goes on."""

    target: str
    dtype: str
    settings: ChatSettings
    system: str | None = None
    exchanges: list[Exchange] = field(default_factory=list)

    def prompt(self, earlier: Sequence[Exchange], user: str) -> list[Message]:
        """The messages to answer: system, earlier exchanges, and what the user says now."""
        return [*self._messages(earlier), {"role": "user", "content": user}]

    def save(self, path: Path) -> None:
        """Write the transcript; a file that exists is complete, also after a crash."""
        transcript = {
            "format": FORMAT,
            "target": self.target,
            "dtype": self.dtype,
            "settings": asdict(self.settings),
            "messages": self._messages(self.exchanges),
            "answers": [{"seed": exchange.seed, "finish": exchange.finish} for exchange in self.exchanges],
        }
        path = path.resolve()  # a link stays one
        try:
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
            ) as scratch:
                try:
                    json.dump(transcript, scratch, ensure_ascii=False, indent=1)
                    scratch.write("\n")
                    scratch.close()
                    os.replace(scratch.name, path)
                except BaseException:
                    os.unlink(scratch.name)
                    raise
        except OSError as error:
            reason = error.strerror
            raise DraftproofError(
                f"the transcript cannot be written to {path} ({reason}): choose another path"
            ) from error

    @staticmethod
    def load(path: Path) -> Conversation:
        """Read a transcript, or raise an error of one line."""
        text = read_text(path, "transcripts")
        try:
            return _conversation(json.loads(text))
        except json.JSONDecodeError as error:
            reason = f"line {error.lineno}: {error.msg}"
        except (DraftproofError, RecursionError) as error:
            reason = str(error)
        raise DraftproofError(f"{path} is no transcript of a chat, or damaged ({reason}): name another file")

    def _messages(self, exchanges: Sequence[Exchange]) -> list[Message]:
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        for exchange in exchanges:
            messages.append({"role": "user", "content": exchange.user})
            messages.append({"role": "assistant", "content": exchange.answer})
        return messages


def _conversation(transcript: Any) -> Conversation:
    if not isinstance(transcript, dict) or not isinstance(transcript.get("messages"), list):
        raise DraftproofError("it has no messages")
    messages, target, dtype = transcript["messages"], transcript.get("target"), transcript.get("dtype", "float32")
    if not isinstance(target, str) or not isinstance(dtype, str):
        raise DraftproofError("it does not name its target")
    begins = bool(messages) and isinstance(messages[0], dict) and messages[0].get("role") == "system"
    system = _content(messages, 0, "system") if begins else None
    said = messages[1:] if begins else messages
    texts = [_content(said, i, ("user", "assistant")[i % 2]) for i in range(len(said))]
    if len(texts) % 2:
        raise DraftproofError("its last message has no answer")
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    answers = _answers(transcript.get("answers"), len(pairs))
    exchanges = [Exchange(*pair, *answer) for pair, answer in zip(pairs, answers, strict=True)]
    return Conversation(target, dtype, ChatSettings.read(transcript.get("settings", {})), system, exchanges)


def _content(messages: Sequence[Any], i: int, role: str) -> str:
    """The text of a message that must have this role."""
    message = messages[i]
    if not isinstance(message, dict) or message.get("role") != role or not isinstance(message.get("content"), str):
        raise DraftproofError(f"message {i + 1} is not a text of role {role}")
    return str(message["content"])


def _answers(answers: Any, count: int) -> list[tuple[int | None, str]]:
    """Seed and finish of every answer; a transcript written by hand may leave them out."""
    if answers is None:
        return [(None, "end")] * count
    fits = isinstance(answers, list) and len(answers) == count and all(isinstance(answer, dict) for answer in answers)
    read = [(answer.get("seed"), answer.get("finish", "end")) for answer in answers] if fits else []
    if len(read) < count or not all(isinstance(s, int | None) and isinstance(f, str) for s, f in read):
        raise DraftproofError("its answers do not match its messages")
    return read
