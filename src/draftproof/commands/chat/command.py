"""The options of `draftproof chat`, and its loop: read a message, answer it, until the user leaves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.commands.chat.settings import NAMES, ChatSettings
from draftproof.commands.grammar_options import Choice, JsonObject, JsonSchema, LarkFile, Regex, grammar_of
from draftproof.commands.shared import (
    AnyTarget,
    Device,
    Draft,
    DraftLength,
    DraftTemperature,
    DraftTopK,
    FrequencyPenalty,
    IgnoreEos,
    Lossy,
    MaxNewTokens,
    MinP,
    NoGenerationConfig,
    Precision,
    PresencePenalty,
    RepetitionPenalty,
    Reproducible,
    Seed,
    Stop,
    Temperature,
    Threads,
    TopK,
    TopP,
    TreeShape,
    TypicalP,
    Verify,
)
from draftproof.commands.text_options import rule_of, tree_of, use_threads
from draftproof.errors import DraftproofError
from draftproof.paths import state_folder

if TYPE_CHECKING:
    from draftproof.commands.chat.conversation import Conversation
    from draftproof.commands.chat.reading import Keyboard
    from draftproof.commands.chat.screen import Screen
    from draftproof.commands.chat.session import ChatSession


def chat(
    context: typer.Context,
    target: AnyTarget = "smollm2",
    system: Annotated[str | None, typer.Option(help="A text that comes before the conversation.")] = None,
    draft: Draft = "auto",
    verify: Verify = "auto",
    tree: TreeShape = "auto",
    draft_length: DraftLength = "auto",
    max_new_tokens: MaxNewTokens = ChatSettings.max_new_tokens,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    typical_p: TypicalP = None,
    repetition_penalty: RepetitionPenalty = None,
    presence_penalty: PresencePenalty = None,
    frequency_penalty: FrequencyPenalty = None,
    no_generation_config: NoGenerationConfig = False,
    draft_temperature: DraftTemperature = None,
    draft_top_k: DraftTopK = None,
    json_schema: JsonSchema = None,
    json_object: JsonObject = False,
    regex: Regex = None,
    grammar: LarkFile = None,
    choice: Choice = None,
    stop: Stop = None,
    ignore_eos: IgnoreEos = False,
    seed: Seed = None,
    reproducible: Reproducible = False,
    lossy: Lossy = None,
    dtype: Precision = "float32",
    device: Device = "auto",
    threads: Threads = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the conversation of this transcript.")] = None,
    transcript: Annotated[Path | None, typer.Option(help="Save the conversation here after every answer.")] = None,
    history: Annotated[
        bool, typer.Option("--history/--no-history", help="Keep what you type for the arrow keys of later chats.")
    ] = True,
) -> None:
    """Chat with a model: each line is a message, /help lists commands, Ctrl-C stops an answer, Ctrl-D leaves."""
    from draftproof.commands.chat.screen import Screen

    given = {name: value for name, value in context.params.items() if resume is None or _is_given(context, name)}
    if {"verify", "reproducible", "lossy"} & given.keys():
        given |= {"verify": rule_of(verify, reproducible, lossy), "lossy": lossy}
    if {"tree", "draft_length"} & given.keys():
        given["tree"] = tree_of(tree, draft_length)
    form = grammar_of(json_schema, json_object, regex, grammar, choice)
    given.pop("grammar", None)  # a file, where the setting is what it says
    if form is not None:
        given["grammar"] = form.as_dict
    if "no_generation_config" in given:
        given["generation_config"] = not no_generation_config
    conversation = _conversation(given, resume)
    if transcript is not None:
        _check_transcript(transcript, resume)
    use_threads(threads)
    screen = Screen(sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty())
    with screen.loading(conversation.target):
        from draftproof.commands.chat.session import ChatSession  # seconds: torch

        session = ChatSession(conversation, screen, transcript, device)
    if screen.interactive:
        _talk(session, history, resume)
    else:
        _read(session)


def _is_given(context: typer.Context, name: str) -> bool:
    """Whether the user gave an option; a default yields to a resumed transcript."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _conversation(given: dict[str, Any], resume: Path | None) -> Conversation:
    """The conversation to go on with, with the options that the user gave."""
    import dataclasses

    from draftproof.commands.chat.conversation import Conversation

    options: dict[str, Any] = {name: value for name, value in given.items() if name in NAMES}
    if "stop" in options:
        options["stop"] = tuple(options["stop"] or ())
    named = {name: given[name] for name in ("target", "dtype", "system") if name in given}
    if resume is None:
        return Conversation(settings=ChatSettings(**options), **named)
    conversation = Conversation.load(resume)
    return dataclasses.replace(conversation, settings=dataclasses.replace(conversation.settings, **options), **named)


def _check_transcript(path: Path, resume: Path | None) -> None:
    """Refuse, before a model is loaded, a file that would be overwritten or cannot be written."""
    from draftproof.paths import check_writable

    if path.exists() and not (resume is not None and resume.exists() and path.samefile(resume)):
        raise DraftproofError(f"{path} exists already: go on with it by --resume {path}, or choose another name")
    check_writable(path, "the transcript")


def _read(session: ChatSession) -> None:
    """Answer messages from a pipe; the first error ends it."""
    from draftproof.commands.chat import reading

    try:
        while True:
            _handle(session, reading.message(reading.piped_line))
    except EOFError:
        return


def _talk(session: ChatSession, history: bool, resume: Path | None) -> None:
    """Answer messages from a terminal; errors are shown and the chat goes on."""
    from draftproof.commands.chat import reading, slash

    screen = session.screen
    screen.greet(session.conversation, " + ".join(draft.name for draft in session.drafts) or "none")
    if resume is not None:
        screen.space()
        screen.resumed(resume, session.conversation.exchanges)
    folder = state_folder() if history else None
    keyboard = reading.Keyboard(
        reading.History(folder / "chat-history.jsonl") if folder else None, slash.endings, screen.prompt_style
    )
    interrupted = False
    while True:
        screen.space()
        try:
            text = reading.message(keyboard.line)
            interrupted = False
            _remember(keyboard, text, screen)
            _handle(session, text)
        except KeyboardInterrupt:
            print()
            if interrupted and not keyboard.typed:
                return
            interrupted = not keyboard.typed
            if interrupted:
                screen.note("Ctrl-C again or Ctrl-D leaves")
        except EOFError:
            return
        except DraftproofError as error:
            screen.error(str(error))


def _remember(keyboard: Keyboard, text: str, screen: Screen) -> None:
    try:
        keyboard.remember(text)
    except OSError as error:
        screen.note(f"what you type is not kept ({error.strerror}: {error.filename}); --no-history hides this line")


def _handle(session: ChatSession, text: str) -> None:
    """Answer a message or run a command; a line of spaces is neither."""
    from draftproof.commands.chat import slash

    if text.startswith("/") and not text.startswith("//"):
        slash.run(session, text)
    elif text.strip():
        session.say(text[1:] if text.startswith("//") else text)
