"""Chat messages as a model's template takes them: roles checked, content parts joined to one text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from draftproof.errors import DraftproofError, first_line, nearest

Message = Mapping[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def template_ids(
    tokenizer: Any,
    name: str,
    messages: Iterable[Message],
    continue_final_message: bool,
    *,
    add_generation_prompt: bool = True,
) -> Sequence[int]:
    """Token ids of a conversation by the model's chat template, up to where the model's answer begins.

    A final message of the assistant is the beginning of that answer, or, without `continue_final_message`, a turn that
    is over. Without `add_generation_prompt` the text ends with the last message, and the model may begin any turn.
    Fields besides role and content, such as name and tool_calls, reach the template as they are.
    """
    ready = [_checked(message, str(tokenizer.chat_template)) for message in messages]
    continues = continue_final_message and ready[-1]["role"] == "assistant"
    how = {"continue_final_message": True} if continues else {"add_generation_prompt": add_generation_prompt}
    try:
        ids: Sequence[int] = tokenizer.apply_chat_template(ready, return_dict=True, **how)["input_ids"]
    except Exception as error:  # a template is a program and may raise anything
        raise DraftproofError(
            f"the chat template of {name!r} does not take these messages ({first_line(error)}): check its roles"
        ) from error
    return ids


def _checked(message: Message, template: str) -> dict[str, Any]:
    """The message with its content as one text."""
    if "role" not in message:
        raise DraftproofError(f"a chat message has no role but {_keys(message)}: give it a role and content")
    role, content = message["role"], message.get("content")
    if not isinstance(role, str) or (role not in ROLES and f"'{role}'" not in template.replace('"', "'")):
        near = nearest(str(role), ROLES)
        hint = f"did you mean {near!r}?" if near else f"use one of {', '.join(ROLES)}"
        raise DraftproofError(f"unknown role {role!r} of a chat message: {hint}")
    if content is None and message.get("tool_calls"):  # the calls are all that it says
        content = ""
    if content is None:
        what = "whose content is None" if "content" in message else "without content"
        raise DraftproofError(f"there is a message of role {role!r} {what}: give its text")
    return {**message, "content": content if isinstance(content, str) else _joined(content)}


def _joined(parts: Any) -> str:
    """The text of content parts, as OpenAI's interface has them: one part a line."""
    if not isinstance(parts, list | tuple):
        raise DraftproofError(f"the content of a message is text or a list of parts, not {type(parts).__name__}")
    texts = []
    for part in parts:
        if not isinstance(part, Mapping) or "type" not in part:
            raise DraftproofError(f"a content part looks like {{'type': 'text', 'text': '...'}}, not {part!r}")
        if part["type"] != "text":
            raise DraftproofError(f"a content part has the type {part['type']!r}: only text parts can be read")
        if not isinstance(part.get("text"), str):
            raise DraftproofError(f"a text part of a message has no text but {part.get('text')!r}: give it a string")
        texts.append(part["text"])
    return "\n".join(texts)


def _keys(message: Message) -> str:
    return ", ".join(map(str, message)) or "nothing"
