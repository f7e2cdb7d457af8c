"""The engine's updates as OpenAI's answers: chunks of a stream, whole answers, logprobs and usage."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from draftproof.engine.detokenize import Decoder
from draftproof.engine.request import Output
from draftproof.engine.trace import Step, TokenLogprob, Trace
from draftproof.engine.worker import Update
from draftproof.models.drafters.prediction import speaks_at
from draftproof.server.texts import DETAILS, ServedModel, TextRequest, without_folders
from draftproof.server.tokens import TokenTexts

FINISH = {"end": "stop", "stop": "stop", "length": "length", "context": "length", "cancelled": "abort"}
NEVER = -9999.0  # OpenAI's way to write log 0 in JSON


class TokenRow(NamedTuple):
    """One token of a text."""

    id: int
    text: str  # what it added to the text
    start: int  # where, in characters
    kind: str  # "accepted", "corrected" or "plain"
    logprob: TokenLogprob | None


class Part(NamedTuple):
    """Some more of a text."""

    text: str
    tokens: tuple[TokenRow, ...]
    steps: tuple[Step, ...]
    finish: str | None


class Follower:
    """Follows one text from update to update."""

    def __init__(self, tokenizer: Any, start: int) -> None:
        self._decoder, self._place = Decoder(tokenizer), start

    def part(self, update: Update) -> Part:
        text = "".join(piece.text for piece in update.pieces)
        rows = tuple(row for step in update.steps for row in self._rows(step))
        return Part(text, rows, update.steps, FINISH.get(update.finish, "error") if update.finish else None)

    def _rows(self, step: Step) -> Iterator[TokenRow]:
        for i, token in enumerate(step.tokens):
            text, start = self._decoder.feed(token), self._place
            self._place += len(text)
            kind = "accepted" if i < step.accepted else "corrected" if step.depth > step.accepted else "plain"
            yield TokenRow(token, text, start, kind, step.logprobs[i] if step.logprobs else None)


class Answer:
    """The answer to one request, whole or in chunks."""

    def __init__(self, request: TextRequest, model: ServedModel, words: TokenTexts) -> None:
        self.request, self.model, self.words = request, model, words
        chat = request.kind == "chat"
        self._id = f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._object = "chat.completion" if chat else "text_completion"
        self._created = int(time.time())
        self._followers = [
            Follower(model.target.tokenizer, len(request.echo[i // request.n]) if request.echo else 0)
            for i in range(len(request.prompts) * request.n)
        ]

    def part(self, index: int, update: Update) -> Part:
        """What an update brings to a choice."""
        return self._followers[index].part(update)

    # In chunks

    def opening(self) -> Iterator[dict[str, Any]]:
        """What comes before the first token: the role, or the prompt itself."""
        request = self.request
        for index in range(len(self._followers)):
            number = index // request.n
            if request.kind == "chat":
                choice: dict[str, Any] = {"delta": {"role": "assistant", "content": ""}}
            elif request.echo or request.token_ids:
                choice = {"text": request.echo[number] if request.echo else ""}
            else:
                return
            chunk = self._chunk([{"index": index, **choice, "logprobs": None, "finish_reason": None}])
            if request.token_ids:
                prompt = {"prompt_token_ids": list(request.prompts[number])}
                (chunk if request.kind == "chat" else chunk["choices"][0]).update(prompt)
            yield chunk

    def chunk(self, index: int, part: Part) -> dict[str, Any] | None:
        """Some more of a choice; None where there is nothing to say yet."""
        request = self.request
        silent = request.top is None and not request.details and not request.token_ids
        if silent and not part.text and part.finish is None:
            return None
        delta = {"delta": {"content": part.text}} if request.kind == "chat" else {"text": part.text}
        choice = self._choice(index, delta, part)
        if request.details:
            choice["draftproof"] = {**self._details(part), "step": _step(part.steps)}
        return self._chunk([choice])

    def usage_chunk(self, outputs: Sequence[Output]) -> dict[str, Any]:
        """The last chunk of a stream whose client wants the usage."""
        return {**self._chunk([]), "usage": self._usage(outputs)}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        name = f"{self._object}.chunk" if self.request.kind == "chat" else self._object
        chunk = {**self._head(name), "choices": choices}
        return {**chunk, "usage": None} if self.request.include_usage else chunk

    # As a whole

    def whole(self, parts: Sequence[Sequence[Part]], outputs: Sequence[Output]) -> dict[str, Any]:
        """The answer with all its texts; parts[i] are those of choice i."""
        request, choices = self.request, []
        for index, mine in enumerate(parts):
            part, number = _joined(mine), index // request.n
            if request.kind == "chat":
                text = {"message": {"role": "assistant", "content": part.text, "refusal": None}}
            else:
                text = {"text": (request.echo[number] if request.echo else "") + part.text}  # type: ignore[dict-item]
            choice = self._choice(index, text, part)
            if request.token_ids and request.kind == "completion":
                choice["prompt_token_ids"] = list(request.prompts[number])
            if request.details:
                choice["draftproof"] = {**self._details(part), "steps": [_step([step]) for step in part.steps]}
            choices.append(choice)
        answer = {**self._head(self._object), "choices": choices, "usage": self._usage(outputs)}
        if request.token_ids and request.kind == "chat":
            answer["prompt_token_ids"] = list(request.prompts[0])
        return {**answer, "draftproof": self.statistics(outputs)}

    # Pieces of both

    def _head(self, name: str) -> dict[str, Any]:
        return {"id": self._id, "object": name, "created": self._created, "model": self.model.name}

    def _choice(self, index: int, text: dict[str, Any], part: Part) -> dict[str, Any]:
        choice = {"index": index, **text, "logprobs": self._logprobs(part.tokens), "finish_reason": part.finish}
        return {**choice, "token_ids": [row.id for row in part.tokens]} if self.request.token_ids else choice

    def _logprobs(self, rows: Sequence[TokenRow]) -> dict[str, Any] | None:
        top = self.request.top
        if top is None:
            return None
        known = [(row, row.logprob) for row in rows if row.logprob is not None]
        if self.request.kind == "chat":
            content = [
                {**self._named(one.token, one.logprob), "top_logprobs": [self._named(*pair) for pair in one.top[:top]]}
                for _, one in known
            ]
            return {"content": content, "refusal": None}
        return {
            "tokens": [self._name(one.token) for _, one in known],
            "token_logprobs": [max(one.logprob, NEVER) for _, one in known],
            "top_logprobs": [
                {self._name(token): max(logprob, NEVER) for token, logprob in (*one.top[:top], one[:2])}
                for _, one in known
            ],
            "text_offset": [row.start for row, _ in known],
        }

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._name(token),
            "logprob": max(logprob, NEVER),
            "bytes": self.words.utf8(token),
        }

    def _name(self, token: int) -> str:
        return f"token_id:{token}" if self.request.names_ids else self.words.text(token)

    def _details(self, part: Part) -> dict[str, Any]:
        return {"tokens": [self._detail(row) for row in part.tokens]}

    def _detail(self, row: TokenRow) -> dict[str, Any]:
        known = row.logprob
        top = () if known is None else known.top[:DETAILS]
        return {
            "id": row.id,
            "text": row.text,
            "kind": row.kind,
            "logprob": None if known is None else max(known.logprob, NEVER),
            "draft_logprob": None if known is None or known.draft_logprob is None else max(known.draft_logprob, NEVER),
            "top": [[self.words.text(token), max(logprob, NEVER)] for token, logprob in top],
        }

    def _usage(self, outputs: Sequence[Output]) -> dict[str, Any]:
        """Tokens, counted as OpenAI does; of a prediction, its draft tokens that were accepted and rejected."""
        request, traces = self.request, [output.trace for output in outputs]
        prompt = sum(map(len, request.prompts))
        text = sum(len(output.tokens) for output in outputs)
        predicted = [step for trace in traces for step in _predicted(request.prediction, trace.steps)]
        accepted = sum(step.accepted for step in predicted)
        drafted = sum(step.drafted for step in predicted)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": text,
            "total_tokens": prompt + text,
            "prompt_tokens_details": {"cached_tokens": sum(trace.reused for trace in traces[:: request.n])},
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": drafted - accepted,
            },
        }

    def statistics(self, outputs: Sequence[Output]) -> dict[str, Any]:
        """How the texts of the answer were drafted, over all of them."""
        traces = [output.trace for output in outputs]
        whole = Trace(steps=[step for trace in traces for step in trace.steps])
        failures = sum((trace.failures for trace in traces), Counter())
        return {
            "target_calls": len(whole.steps),
            "tokens_per_call": whole.tokens_per_call,
            "expected_tokens_per_call": whole.expected_per_call,
            "drafted": whole.drafted,
            "accepted": whole.accepted,
            "acceptance_by_position": whole.acceptance,
            "drafter": without_folders(traces[0].drafter),
            "verifier": traces[0].verifier,
            "seconds": _seconds(whole.steps, sum(trace.prefill for trace in traces[:: self.request.n])),
            "fallbacks": dict(failures),
            "seed": outputs[0].seed,
        }


def _predicted(prediction: Sequence[int], steps: Sequence[Step]) -> Iterator[Step]:
    """The steps whose draft was the prediction, and not the server's own drafter."""
    if prediction:
        spoke = speaks_at(prediction, [step.tokens for step in steps])
        yield from (step for step, speaks in zip(steps, spoke, strict=True) if speaks)


def _seconds(steps: Iterable[Step], prefill: float) -> dict[str, float]:
    """Time by phase. Texts that were written side by side share their steps' times, which count once."""
    total: Counter[str] = Counter()
    for spent in {id(step.seconds): step.seconds for step in steps}.values():
        total.update(spent)
    if prefill:
        total.update({"prompt": prefill})
    return dict(total)


def _joined(parts: Iterable[Part]) -> Part:
    parts = list(parts)
    return Part(
        "".join(part.text for part in parts),
        tuple(row for part in parts for row in part.tokens),
        tuple(step for part in parts for step in part.steps),
        next((part.finish for part in reversed(parts) if part.finish), None),
    )


def _step(steps: Sequence[Step]) -> dict[str, Any] | None:
    """What a target call brought; an update has seldom more than one."""
    if not steps:
        return None
    return {
        "tokens": sum(len(step.tokens) for step in steps),
        "drafted": sum(step.drafted for step in steps),
        "accepted": sum(step.accepted for step in steps),
        "expected": sum(step.expected for step in steps),
        "reached": list(steps[-1].reached),
        "limit": list(steps[-1].limit),
        "seconds": sum(sum(step.seconds.values()) for step in steps),
    }


def event(data: dict[str, Any] | str) -> bytes:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode("utf-8", "replace")
