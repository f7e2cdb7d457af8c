"""Adapts the docs to mkdocs, so that the same pages read well on GitHub and on the site.

On GitHub pages link to files of the repository, which the site does not have: such a link becomes the file's name as
code. CONTRIBUTING.md and CHANGELOG.md, which GitHub wants at the top, are pages of the site. A fence such as
"python no-run", whose second word is for the tests, is one of the first word alone.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOP = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}  # in the repository -> on the site
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<to>[^)\s#]+)(?P<place>#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside of docs/."""
    from mkdocs.structure.files import File

    for name, page in TOP.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for every page before it is rendered."""
    names = {page: name for name, page in TOP.items()}
    source = page.file.src_uri
    return adapt(markdown, names.get(source, f"docs/{source}"))


def adapt(markdown: str, source: str) -> str:
    """The text of a page whose path in the repository is `source`, for the site."""
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(_fence(part) if part.startswith("```") else _links(part, source) for part in parts)


def _fence(block: str) -> str:
    return re.sub(r"\A```(\w+) .*", r"```\1", block)


def _links(text: str, source: str) -> str:
    def follow(found: re.Match[str]) -> str:
        to = found["to"]
        if "://" in to:
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), to))
        place = found["place"] or ""
        if path in TOP:
            return f"[{found['text']}]({_from(source, TOP[path])}{place})"
        if path.startswith("docs/"):
            return f"[{found['text']}]({_from(source, path.removeprefix('docs/'))}{place})"
        return _name(found["text"], path)

    return LINK.sub(follow, text)


def _from(source: str, page: str) -> str:
    """The link from one page of the site to another."""
    here = posixpath.dirname(source.removeprefix("docs/")) if source.startswith("docs/") else ""
    return posixpath.relpath(page, here or ".")


def _name(text: str, path: str) -> str:
    """What stands for a link to a file of the repository: its name, after words that are no name themselves."""
    if text.startswith("`"):
        return text
    return f"`{text}`" if "/" in text or "." in text else f"{text} (`{path}`)"
