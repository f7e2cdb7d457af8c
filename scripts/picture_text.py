"""The README's picture of a text being written: which tokens were accepted draft tokens, and in how many target calls.

`python -m scripts.picture_text --record` runs COMMAND and writes its row, with where and when it ran, to
benchmarks/results/text.json. The picture is drawn from that row alone. It shows what the seed decides and no speed:
speeds are measured by `draftproof bench`.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
PATH = "docs/figures/text.svg"
ROW = "benchmarks/results/text.json"
COMMAND = 'draftproof generate "What is a lighthouse for?" --temperature 0.7 --seed 1 --json'

COLUMNS, SIZE, LINE = 84, 15, 30  # characters a line, and pixels
WIDE, MARGIN = SIZE * 0.6, 24  # of one character of a monospaced font; around the text
PAPER, EDGE, FAINT, INK = "#0d1117", "#30363d", "#8b949e", "#c9d1d9"
COLOURS = {"accepted": "#3fb950", "corrected": "#d29922", "plain": INK}
MEANING = {"accepted": "accepted draft token", "corrected": "corrected token", "plain": "bonus or plain token"}
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


class Word(NamedTuple):
    """Characters of one token on one line."""

    line: int
    column: int
    text: str
    kind: str
    step: int


def numbers(root: Path = ROOT) -> dict[str, Any]:
    """What the picture shows: the command, the text token by token, and the summary."""
    row = json.loads((root / ROW).read_text(encoding="utf-8"))
    trace = row["trace"]
    summary = (
        f"{trace['tokens']} tokens in {trace['target_calls']} target calls: {trace['tokens_per_call']:.2f} tokens a "
        f"call; {trace['accepted']} of {trace['drafted']} draft tokens accepted"
    )
    return {"command": row["command"], "steps": row["pieces"], "summary": summary}


def draw(root: Path = ROOT) -> str:
    """The picture as SVG text; it has a background of its own, so it looks the same on white and on black."""
    shown = numbers(root)
    words = list(_words(shown["steps"]))
    prompt = shown["command"].removesuffix(" --json")
    top = MARGIN + SIZE + LINE
    bottom = top + (words[-1].line + 1) * LINE + 24
    width, height = COLUMNS * WIDE + 2 * MARGIN, bottom + LINE + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="{FONT}" font-size="{SIZE}" role="img">',
        f"<!-- numbers {_comment(shown)} -->",
        f"<title>{escape(prompt)}: {escape(shown['summary'])}</title>",
        f'<rect x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="10" fill="{PAPER}" stroke="{EDGE}"/>',
        _text(MARGIN, MARGIN + SIZE, f"$ {prompt}", INK),
    ]
    for word in words:
        lines.append(_text(MARGIN + word.column * WIDE, top + word.line * LINE + SIZE, word.text, COLOURS[word.kind]))
    for line, begin, end in _calls(words):
        y = top + line * LINE + SIZE + 8
        lines.append(
            f'<path d="M{MARGIN + begin * WIDE + 2:g} {y}H{MARGIN + end * WIDE - 2:g}" stroke="{FAINT}" '
            'stroke-width="1.5" stroke-opacity="0.6"/>'
        )
    lines += [*_legend(words, bottom + 4), _text(MARGIN, bottom + LINE, shown["summary"], FAINT), "</svg>"]
    return "\n".join(lines) + "\n"


def _words(steps: Sequence[Sequence[Sequence[str]]]) -> Iterator[Word]:
    """The tokens laid out in lines of COLUMNS characters, broken between words and at the text's own line ends."""
    line = column = 0
    tokens = [(text, kind, step) for step, pieces in enumerate(steps) for text, kind in pieces]
    for place, (text, kind, step) in enumerate(tokens):
        rest = "".join(later for later, _, _ in tokens[place : place + 8])
        word = re.split(r"(?<=\S)\s", rest, maxsplit=1)[0]  # a word may be several tokens
        if text[:1] == " " and column + len(word) > COLUMNS:
            line, column, text = line + 1, 0, text[1:]
        for part in re.split(r"(\n)", text):
            if part == "\n":
                line, column = line + (column > 0), 0
            elif part:
                yield Word(line, column, part, kind, step)
                column += len(part)


def _calls(words: Sequence[Word]) -> Iterator[tuple[int, int, int]]:
    """For each target call and line: from which column to which its tokens go."""
    spans: dict[tuple[int, int], tuple[int, int]] = {}
    for word in words:
        begin, end = word.column + (len(word.text) - len(word.text.lstrip())), word.column + len(word.text)
        before = spans.get((word.step, word.line), (begin, end))
        spans[word.step, word.line] = min(before[0], begin), max(before[1], end)
    for (_, line), (begin, end) in spans.items():
        yield line, begin, end


def _legend(words: Sequence[Word], y: float) -> Iterator[str]:
    x = float(MARGIN)
    for kind in dict.fromkeys(COLOURS):
        if any(word.kind == kind for word in words):
            yield _text(x, y, MEANING[kind], COLOURS[kind])
            x += (len(MEANING[kind]) + 3) * WIDE
    yield f'<path d="M{x:g} {y - 5:g}h{3 * WIDE:g}" stroke="{FAINT}" stroke-width="1.5" stroke-opacity="0.6"/>'
    yield _text(x + 4 * WIDE, y, "one target call", FAINT)


def _text(x: float, y: float, text: str, colour: str) -> str:
    """Characters at a place, stretched to the width that they have here, whatever font the viewer has."""
    shown = text.lstrip()
    x += (len(text) - len(shown)) * WIDE
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}" textLength="{len(shown) * WIDE:g}">{escape(shown)}</text>'


def _comment(shown: dict[str, Any]) -> str:
    return json.dumps(shown).replace("--", "-\\u002d")  # two dashes would end the comment


# The row


def record() -> None:
    """Run COMMAND, add each step's text and where it ran, and write the row."""
    from draftproof.bench.rows import facts
    from draftproof.models import load

    words = shlex.split(COMMAND)
    ran = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=True)
    row = json.loads(ran.stdout)
    pieces = _pieces(row, load("smollm2").tokenizer)
    where = facts("cpu")._asdict() | {"command": COMMAND}
    (ROOT / ROW).write_text(json.dumps({**where, "pieces": pieces, **row}) + "\n", encoding="utf-8")


def _pieces(row: dict[str, Any], tokenizer: Any) -> list[list[list[str]]]:
    """For each step its tokens as text, each with what became of the draft there."""
    shown, ids, pieces = "", [], []
    for step in row["trace"]["steps"]:
        made = []
        for place, token in enumerate(step["tokens"]):
            ids.append(token)
            text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            kind = "corrected" if step["depth"] > step["accepted"] else "plain"
            made.append([text[len(shown) :], "accepted" if place < step["accepted"] else kind])
            shown = text
        pieces.append([[text, kind] for text, kind in made if text])
    assert "".join(text for step in pieces for text, _ in step) == row["text"]
    return pieces


if __name__ == "__main__":
    if sys.argv[1:] == ["--record"]:
        record()
    (ROOT / PATH).write_text(draw(), encoding="utf-8")
