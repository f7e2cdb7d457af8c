"""`draftproof chat` in a pipe: a line is a message, and commands work as in a terminal."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from typing import Any, NamedTuple

import pytest

import draftproof as dp
from draftproof.commands import cli
from draftproof.commands.chat.conversation import Conversation
from draftproof.commands.chat.settings import NAMES, ChatSettings
from tests.support import tiny

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}a:"


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tiny.save(tmp_path_factory.mktemp("tiny"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder)


@pytest.fixture
def chat(folder, monkeypatch, capsys, tmp_path):
    """Send lines to the command in a pipe; returns exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def run(lines: str, *words: str) -> Said:
        options = ("--draft", "none", "-n", "4", "--seed", "1")
        target = () if "--target" in words or "--resume" in words else ("--target", folder, *options)
        monkeypatch.setattr(sys, "argv", ["draftproof", "chat", *target, *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Said(int(end.value.code or 0), said.out, said.err)

    return run


@pytest.fixture
def after(chat, tmp_path):
    """The transcript of a chat with these lines."""

    def run(lines: str, *words: str) -> Any:
        assert chat(f"{lines}\n/save saved.json\n", *words).code == 0
        return json.loads((tmp_path / "saved.json").read_text())

    return run


def said(transcript: Any, role: str) -> list[str]:
    return [message["content"] for message in transcript["messages"] if message["role"] == role]


def answer(folder: str, seed: int, *texts: str) -> str:
    """What the library writes after these texts, which begin with the user's."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    return dp.generate(folder, messages, draft=None, max_new_tokens=4, seed=seed).text


# Turns


def test_every_line_is_answered_with_all_that_was_said_before(chat, folder):
    code, out, err = chat("hi\n\n  \nand?\nso?\n")
    first = answer(folder, 1, "hi")
    second = answer(folder, 2, "hi", first, "and?")
    third = answer(folder, 3, "hi", first, "and?", second, "so?")
    assert (code, out) == (0, f"{first}\n{second}\n{third}\n")
    assert third != answer(folder, 3, "and?", second, "so?")  # it has read the first exchange
    assert "\x1b" not in out + err
    assert "> " not in out + err
    assert err.count("4 tokens, 1.00 a call, ") == 3


def test_a_message_may_have_several_lines_or_begin_with_a_slash(after):
    lines = 'one \\\ntwo\n"""\nthree\n\nfour\n"""\n"""five"""\n//etc\n"""open\nend'
    transcript = after(lines + '"""')
    assert said(transcript, "user") == ["one \ntwo", "three\n\nfour", "five", "/etc", "open\nend"]


def test_the_end_of_the_input_ends_a_block(chat, folder):
    assert chat('"""a\nb\n').out == answer(folder, 1, "a\nb\n".strip()) + "\n"


def test_the_same_seed_gives_the_same_chat_and_every_answer_has_its_own(chat, after):
    assert chat("hi\nhi\n").out == chat("hi\nhi\n").out
    assert [entry["seed"] for entry in after("hi\nhi\n/retry")["answers"]] == [1, 3]


def test_the_tuner_is_kept_from_turn_to_turn(folder):
    from draftproof.commands.chat.screen import Screen
    from draftproof.commands.chat.session import ChatSession

    settings = ChatSettings(draft="ngram", max_new_tokens=4)
    session = ChatSession(Conversation(folder, "float32", settings), Screen(interactive=False))
    session.say("abab")
    kept = session._tuner
    session.say("abab")
    assert kept is not None
    assert session._tuner is kept
    session.use(settings.changed("temperature", "0.5"))
    session.say("abab")
    assert session._tuner is not kept


# Commands


def test_retry_undo_trim_and_clear(after):
    assert said(after("a\nb\n/undo\nc"), "user") == ["a", "c"]
    assert said(after("a\nb\nc\n/trim 2"), "user") == ["c"]
    assert said(after("a\nb\n/trim"), "user") == ["b"]
    assert said(after("a\n/clear\nb"), "user") == ["b"]
    once, twice = after("a"), after("a\n/retry")
    assert said(twice, "user") == ["a"]
    assert said(twice, "assistant") != said(once, "assistant")


def test_system_text_comes_first(after, chat, folder):
    assert said(after("a", "--system", "be brief"), "system") == ["be brief"]
    assert said(after("/system be\na"), "system") == ["be"]
    assert said(after("/system off\na", "--system", "be brief"), "system") == []
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "a"}]
    written = dp.generate(folder, messages, draft=None, max_new_tokens=4, seed=1).text
    assert chat("/system be\na\n").out == f"{written}\n"


def test_settings_are_shown_and_changed(after, chat):
    shown = chat("/set\n").err
    assert all(f"\n{name} " in f"\n{shown}" for name in NAMES)
    transcript = after("/set temperature 0.5\n/set top-k 3\n/set stop END\n/set seed 9\n/set ignore_eos on\na")
    kept = {name: transcript["settings"][name] for name in ("temperature", "top_k", "stop", "seed", "ignore_eos")}
    assert kept == {"temperature": 0.5, "top_k": 3, "stop": ["END"], "seed": 10, "ignore_eos": True}
    assert transcript["answers"] == [{"seed": 9, "finish": "length"}]


def test_the_drafter_can_be_changed(chat):
    err = chat("abab\n/draft ngram\n/draft\nabab\n/stats\n").err
    assert err.count("draft ngram\n") == 2
    assert "draft ngram, verifier block" in err
    assert "finished: length; seed 2" in err


def test_help_names_every_command(chat):
    from draftproof.commands.chat.slash import COMMANDS

    help = chat("/help\n").err
    assert all(f"/{name} " in help for name in COMMANDS)
    assert '"""' in help


def test_exit_leaves_at_once(chat, folder):
    assert chat("a\n/exit\nb\n")[:2] == (0, answer(folder, 1, "a") + "\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/rety", "unknown command /rety: did you mean /retry?"),
        ("/2+2", "unknown command /2+2: /help lists them"),
        ("/set temprature 1", "unknown setting 'temprature': did you mean 'temperature'?"),
        ("/set temperature", "/set temperature needs a value"),
        ("/set temperature warm", "temperature takes a number, not 'warm'"),
        ("/set top_k 1.5", "top_k takes a whole number, not '1.5'"),
        ("/set temperature -1", "temperature must be 0 (greedy) or a positive number"),
        ("/set max_new_tokens 0", "max_new_tokens must be a whole number of at least 1"),
        ("/set ignore_eos maybe", "ignore_eos is on or off, not 'maybe'"),
        ("/set tree star:three", "unknown tree 'star:three'"),
        ("/set seed -1", "seed must be an integer from 0"),
        ("/draft ngran", "unknown draft 'ngran': did you mean 'ngram'?"),
        ("/undo", "nothing was said yet"),
        ("/retry", "nothing was said yet"),
        ("/stats", "there are no statistics yet"),
        ("/trim 2", "nothing was said yet"),
        ("/undo 3", "/undo takes nothing after it, not '3'"),
        ("/save", "/save needs a file"),
        ("/load nowhere.json", "transcripts cannot be read from nowhere.json"),
        ("/save no/where.json", "the transcript cannot be written to"),
    ],
)
def test_a_wrong_command_is_one_line(chat, line, message):
    code, out, err = chat(f"{line}\nmore\n")
    assert (code, out) == (2, "")  # in a pipe nothing goes on after an error
    assert err.startswith(f"error: {message}") or message in err
    assert err.count("\n") == 1


def test_trim_takes_as_many_as_there_are(chat):
    assert "/trim takes a number from 1 to 1, not '2'" in chat("a\n/trim 2\n").err


# Transcripts


def test_a_resumed_chat_goes_on_as_if_it_had_not_stopped(chat, tmp_path):
    whole = chat("a\nb\nc\n", "--system", "x", "--temperature", "0.8").out
    begun = chat("a\nb\n", "--system", "x", "--temperature", "0.8", "--transcript", "chat.json")
    resumed = chat("c\n", "--resume", "chat.json", "--transcript", "chat.json")
    assert begun.out + resumed.out == whole
    transcript = json.loads((tmp_path / "chat.json").read_text())
    assert said(transcript, "user") == ["a", "b", "c"]
    assert [entry["seed"] for entry in transcript["answers"]] == [1, 2, 3]
    assert transcript["settings"]["temperature"] == 0.8


def test_options_come_before_what_a_transcript_says(chat, tmp_path, folder):
    chat("a\n", "--transcript", "chat.json", "--temperature", "0.8", "--lossy", "typical")
    more = ("--temperature", "0.5", "--verify", "token", "--transcript", "next.json")
    chat("b\n", "--resume", "chat.json", *more)
    settings = json.loads((tmp_path / "next.json").read_text())["settings"]
    chosen = {name: settings[name] for name in ("temperature", "verify", "lossy", "max_new_tokens", "draft")}
    assert chosen == {"temperature": 0.5, "verify": "token", "lossy": None, "max_new_tokens": 4, "draft": "none"}


def test_load_brings_back_what_save_wrote(after, chat):
    saved = after("a\nb")
    assert chat("/load saved.json\n").err.startswith("2 exchanges from saved.json\n> b\n")
    assert after("x\n/load saved.json\n") == saved


def test_a_transcript_is_never_lost(chat, tmp_path, monkeypatch):
    chat("a\n", "--transcript", "chat.json")
    before = (tmp_path / "chat.json").read_text()
    said = chat("b\n", "--transcript", "chat.json")
    assert said.err == "error: chat.json exists already: go on with it by --resume chat.json, or choose another name\n"

    def full(*ignored: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    code, _, err = chat("b\n", "--resume", "chat.json", "--transcript", "chat.json")
    assert code == 2
    assert "cannot be written" in err
    assert (tmp_path / "chat.json").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["chat.json"]


def test_save_replaces_transcripts_only(chat, after, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert "notes.txt is no transcript of a chat" in chat("a\n/save notes.txt\n").err
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert said(after("a\n/save saved.json\nb"), "user") == ["a", "b"]


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_a_transcript_is_the_users_own(after, tmp_path):
    after("a")
    assert stat.S_IMODE((tmp_path / "saved.json").stat().st_mode) == 0o600


GOOD = {"target": "tiny", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "line 1: Expecting value"),
        ('{"messages": [', "line 1: "),
        ("[" * 100_000, "recursion"),
        ("[]", "it has no messages"),
        (json.dumps({"messages": []}), "it does not name its target"),
        (json.dumps({**GOOD, "messages": GOOD["messages"][:1]}), "its last message has no answer"),
        (json.dumps({**GOOD, "messages": GOOD["messages"][1:]}), "message 1 is not a text of role user"),
        (json.dumps({**GOOD, "messages": [{"role": "user", "content": 3}]}), "message 1 is not a text of role user"),
        (json.dumps({**GOOD, "settings": {"temperature": "hot"}}), "temperature cannot be 'hot'"),
        (json.dumps({**GOOD, "settings": {"top_k": True}}), "top_k cannot be True"),
        (json.dumps({**GOOD, "settings": {"warmth": 1}}), "unknown setting 'warmth'"),
        (json.dumps({**GOOD, "settings": []}), "settings must be names with values"),
        (json.dumps({**GOOD, "answers": []}), "its answers do not match its messages"),
        (json.dumps({**GOOD, "answers": [{"seed": "x"}]}), "its answers do not match its messages"),
    ],
)
def test_a_damaged_transcript_is_one_line(chat, tmp_path, text, reason):
    (tmp_path / "chat.json").write_text(text)
    code, out, err = chat("a\n", "--resume", "chat.json")
    assert (code, out) == (2, "")
    assert err.startswith("error: chat.json is no transcript of a chat, or damaged (")
    assert reason in err
    assert err.count("\n") == 1


def test_a_transcript_written_by_hand_needs_messages_and_target_only(tmp_path):
    (tmp_path / "chat.json").write_text(json.dumps(GOOD))
    loaded = Conversation.load(tmp_path / "chat.json")
    assert (loaded.exchanges[0][:2], loaded.settings) == (("a", "b"), ChatSettings())


# What a model cannot do


def test_a_conversation_that_outgrows_the_context_says_what_to_do(chat, after):
    long = "x" * 40
    code, out, err = chat(f"{long}\n{long}\n{long}\n")
    assert code == 2
    assert out.count("\n") >= 1
    assert err.splitlines()[-1].startswith("error: the conversation has ")
    assert err.endswith(" has 96: /trim drops the oldest exchange, /clear all; then send the message again\n")
    assert said(after(f"{long}\n/trim\n{long}"), "user") == [long]


def test_a_message_that_is_too_long_alone_is_to_be_shortened(chat):
    assert chat("x" * 100 + "\n").err.endswith("has 96: shorten it\n")


def test_an_answer_that_fills_the_context_says_so(chat):
    assert "; the context is full (/trim, /clear)" in chat("x" * 80 + "\n", "-n", "50", "--ignore-eos").err


def test_a_model_without_a_chat_template_is_for_generate(chat, tmp_path):
    bare = str(tiny.save(tmp_path / "bare"))
    code, out, err = chat("a\n", "--target", bare)
    assert (code, out) == (2, "")
    assert err.endswith(f"error: {bare} has no chat template: continue a text with `draftproof generate` instead\n")


def test_a_wrong_option_fails_before_the_model_is_loaded(chat):
    assert chat("a\n", "--target", "nowhere/none", "--temperature", "-1").err.startswith("error: temperature must be")


def test_a_closed_standard_input_is_told(chat, monkeypatch, folder, capsys):
    monkeypatch.setattr(sys, "argv", ["draftproof", "chat", "--target", folder])
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SystemExit):
        cli.main()
    assert "there is no standard input to read messages from" in capsys.readouterr().err
