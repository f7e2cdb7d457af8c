"""`draftproof chat` in a terminal: keys, colours, line breaks and history."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import stat
import struct
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import draftproof as dp
from draftproof.commands.chat import reading, slash, wrapping
from draftproof.commands.chat.screen import Screen
from draftproof.engine.detokenize import Piece
from draftproof.models.table import TableModel

PROMPT = "\x1b[1m> \x1b[0m"


class Terminal:
    """A process in a pseudo-terminal."""

    def __init__(self, *words: str, env: dict[str, str]) -> None:
        import fcntl
        import pty
        import termios

        self.screen, inner = pty.openpty()
        fcntl.ioctl(self.screen, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 60, 0, 0))
        command = [sys.executable, "-m", "draftproof", "chat", *words]
        environment = {**os.environ, "TERM": "xterm-256color", "INPUTRC": os.devnull, **env}
        environment.pop("NO_COLOR", None)

        def own_terminal() -> None:
            os.setsid()
            fcntl.ioctl(inner, termios.TIOCSCTTY, 0)  # so that Ctrl-C is a signal

        self.process = subprocess.Popen(
            command, stdin=inner, stdout=inner, stderr=inner, env=environment, preexec_fn=own_terminal
        )
        os.close(inner)
        self.shown = ""

    def press(self, keys: str) -> None:
        os.write(self.screen, keys.encode())

    def interrupt(self, prompt: str) -> str:
        """Press Ctrl-C at the prompt. Python's readline may sleep through a signal that comes while it shows the prompt
        or handles the last key; the next key wakes it up."""
        self.press("\x03")
        try:
            return self.until(prompt, 20)
        except AssertionError:
            self.press("\x03")
            return self.until(prompt)

    def until(self, pattern: str, seconds: float = 120) -> str:
        """Wait until the screen shows a pattern; returns what it has shown up to its end since the last call."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.shown)):
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.shown!r}"
            if select.select([self.screen], [], [], 1)[0]:
                self.shown += os.read(self.screen, 65536).decode(errors="replace")
        text, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return text

    def ended(self) -> int:
        return self.process.wait(60)


@pytest.mark.skipif(os.name != "posix", reason="there are no pseudo-terminals")
def test_a_session_in_a_terminal(tmp_path):
    history = tmp_path / "draftproof" / "chat-history.jsonl"
    history.parent.mkdir()
    history.write_text(json.dumps("an earlier\nmessage") + "\n{damaged\n")
    history.chmod(0o600)
    saved = tmp_path / "saved.json"
    words = ("--target", "tiny", "--draft", "ngram", "--ignore-eos", "--seed", "1", "-n", "12")
    terminal = Terminal(*words, env={"XDG_STATE_HOME": str(tmp_path)})
    try:
        prompt = re.escape(PROMPT)
        terminal.until(prompt)

        terminal.press("\x1b[A")  # arrow up: of an earlier session, as one message
        assert "an earlier" in terminal.until("message")
        assert "leaves" not in terminal.interrupt(prompt)  # clears the line, and does not leave

        terminal.press("say ello\x1b[D\x1b[D\x1b[D\x1b[Dh\r")
        assert "12 tokens, " in terminal.until(prompt)
        terminal.press("\x1b[A\r")  # arrow up: of this session
        assert "say hello" in terminal.until("12 tokens, ")
        terminal.until(prompt)

        terminal.press("/set max_n\t8000\r")
        terminal.until(prompt)
        terminal.press("one\x1b\rtwo\r")  # Alt-Enter
        terminal.until(r"\w+ \w+ \w+ ")  # of a long answer
        terminal.press("\x03")
        assert "; stopped" in terminal.until(prompt)
        terminal.press("/oops\r")
        assert "unknown command /oops" in terminal.until(prompt)
        terminal.press(f"/save {saved}\r")
        terminal.until("saved 3 exchanges")
        terminal.until(prompt)

        assert "Ctrl-C again or Ctrl-D leaves" in terminal.interrupt(prompt)
        terminal.press("typed")
        terminal.until("typed")
        terminal.interrupt(prompt)  # clears the line again: the two are not in a row
        terminal.press("\x04")
        assert terminal.ended() == 0
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.screen)

    transcript = json.loads(saved.read_text())
    assert [m["content"] for m in transcript["messages"][::2]] == ["say hello", "say hello", "one\ntwo"]
    assert transcript["answers"][-1] == {"seed": 3, "finish": "cancelled"}
    assert transcript["messages"][-1]["content"].strip()  # what it had said
    assert transcript["settings"]["max_new_tokens"] == 8000
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    kept = reading.History(history).load()
    assert kept == [
        "an earlier\nmessage",
        "say hello",
        "/set max_new_tokens 8000",
        "one\ntwo",
        "/oops",
        f"/save {saved}",
    ]


# The history


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_the_history_is_the_users_own_and_does_not_grow_for_ever(tmp_path):
    history = reading.History(tmp_path / "new" / "history.jsonl")
    assert history.load() == []
    history.add("a\nb")
    assert history.load() == ["a\nb"]
    assert stat.S_IMODE(history.path.stat().st_mode) == 0o600
    history.path.write_text("".join(f'"{i}"\n' for i in range(2 * reading.KEPT + 1)))
    assert len(history.load()) == reading.KEPT
    assert history.load()[-1] == str(2 * reading.KEPT)


def test_tab_completes_commands_and_settings():
    assert slash.endings("/re") == ["/retry"]
    assert slash.endings("/dra") == ["/draft "]
    assert slash.endings("/set top_") == ["/set top_k ", "/set top_p "]
    assert slash.endings("hello") == []
    assert slash.endings("") == []


# Ctrl-C


class CtrlC:
    """A processor that presses Ctrl-C while the third token is computed."""

    def __init__(self, times: int) -> None:
        self.times, self.computed = times, 0

    def __call__(self, ids, scores):
        for _ in range(self.times if ids.shape[1] == 3 else 0):
            signal.raise_signal(signal.SIGINT)
        self.computed += 1
        return scores


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_stops_an_answer_and_keeps_what_was_shown(times, capsys):
    before, presses = signal.getsignal(signal.SIGINT), CtrlC(times)
    coin = TableModel(lambda context: [0.5, 0.5])
    sampling = dp.Sampling(processors=[presses])
    writing = dp.stream(coin, [0], draft=None, sampling=sampling, max_new_tokens=50, seed=1)
    shown = Screen(interactive=True).answer(writing)
    assert presses.computed == (3 if times == 1 else 2)  # the second one does not wait for the end of the step
    assert shown == dp.generate(coin, [0], draft=None, max_new_tokens=2, seed=1).text
    assert capsys.readouterr().out.splitlines()[0] == shown
    assert writing.output.finish == "cancelled"
    assert signal.getsignal(signal.SIGINT) is before


# Line breaks


def broken(pieces, width: int) -> str:
    return "".join(piece.text for piece in wrapping.wrapped(pieces, lambda: width))


WORDS = st.lists(st.text("abcdefgh,.", min_size=1, max_size=wrapping.NEAR), max_size=40)


@given(WORDS, st.integers(wrapping.NEAR, 60), st.lists(st.integers(1, 9), min_size=1))
def test_lines_break_between_words(words, width, sizes):
    text, pieces, at = " ".join(words), [], 0
    while at < len(text):  # tokens of any size
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(Piece(text[at : at + size], "plain"))
        at += size
    lines = broken(pieces, width).split("\n")
    assert all(len(line) <= width for line in lines)
    assert [word for line in lines for word in line.split()] == words


@pytest.mark.parametrize("text", ["a\n\n    b\tc\r\n", "x" * 100, "天空是蓝色的" * 9, "", "  indented"])
def test_what_has_no_place_to_break_stays_as_it_is(text):
    assert broken([Piece(text, "plain")], 40) == text
    assert broken([Piece(text[i : i + 5], "plain") for i in range(0, len(text), 5)], 40) == text


def test_a_word_is_shown_at_once_where_there_is_room():
    pieces = iter([Piece("hel", "plain"), Piece("lo", "accepted")])
    shown = wrapping.wrapped(pieces, lambda: 40)
    assert next(shown) == Piece("hel", "plain")
    assert next(shown) == Piece("lo", "accepted")


def test_a_word_without_an_end_is_not_held_back_for_ever():
    taken = []

    def endless():
        while len(taken) < 1000:
            taken.append("x")
            yield Piece("x", "plain")

    shown = wrapping.wrapped(endless(), lambda: 40)
    assert "".join(next(shown).text for _ in range(100)) == "x" * 100
    assert len(taken) <= 100 + wrapping.NEAR
