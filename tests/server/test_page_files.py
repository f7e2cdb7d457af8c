"""The page's files: nothing inline, nothing from outside, no way for a model's text to become HTML."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import draftproof

PAGE = Path(draftproof.__file__).parent / "server" / "page"
FILES = {path.name: path.read_text(encoding="utf-8") for path in sorted(PAGE.iterdir())}
SCRIPTS = [name for name in FILES if name.endswith(".js")]
NAMESPACE = "http://www.w3.org/2000/svg"  # a name, which is never fetched


class Elements(HTMLParser):
    """All start tags of a page, and the text directly inside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style") and data.strip():
            self.inline.append(data)


@pytest.fixture(scope="module")
def html() -> Elements:
    return Elements(FILES["index.html"])


def test_no_inline_script_or_style(html):
    attributes = {name for _, given in html.tags for name in given}
    assert html.inline == []
    assert not [name for name in attributes if name == "style" or name.startswith("on")]
    assert not any(tag == "style" for tag, _ in html.tags)


def test_what_the_page_loads_is_there(html):
    loaded = [given.get("src") or given["href"] for tag, given in html.tags if tag in ("script", "link")]
    imported = [name for script in SCRIPTS for name in re.findall(r'from "\./([^"]+)"', FILES[script])]
    assert loaded
    assert {*loaded, *imported} <= FILES.keys()


def test_every_file_is_loaded(html):
    """A file that nothing refers to is left over."""
    everything = "".join(FILES.values())
    assert [name for name in FILES if name != "index.html" and name not in everything] == []


@pytest.mark.parametrize("name", FILES)
def test_nothing_comes_from_outside(name):
    text = FILES[name].replace(NAMESPACE, "")
    assert re.findall(r"(?:https?:|data:image|\burl\(|@import|[\"'(]//)", text) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_text_stays_text(name):
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function|cssText"
    assert re.findall(ways, FILES[name]) == []


def test_labels(html):
    """Every field has a label or stands in one, and every id is given once."""
    labelled = {given.get("for") for tag, given in html.tags if tag == "label"}
    ids = [given["id"] for _, given in html.tags if given.get("id")]
    assert len(ids) == len(set(ids))
    inside = re.sub(r"<label[^>]*>.*?</label>", "", FILES["index.html"], flags=re.DOTALL)
    bare = [given for tag, given in Elements(inside).tags if tag in ("input", "select", "textarea")]
    assert [given for given in bare if given.get("id") not in labelled] == []
