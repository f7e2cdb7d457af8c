"""Find a wheel in the package indexes that pip or uv is set to use, without needing either.

Settings come from the environment (PIP_..., UV_...) and from pip's configuration files; without any, the index is
PyPI's. Indexes speak the simple API, as HTML (PEP 503) or JSON (PEP 691), over HTTP or from a folder.
"""

from __future__ import annotations

import base64
import configparser
import json
import os
import re
import ssl
import sys
from collections.abc import Iterable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urldefrag, urljoin, urlsplit
from urllib.request import Request, url2pathname, urlopen

PYPI = "https://pypi.org/simple"
ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
TIMEOUT = 30  # seconds without a byte


class IndexSettings(NamedTuple):
    """Where to look for wheels."""

    indexes: tuple[str, ...]
    pages: tuple[str, ...] = ()  # folders, or pages with links: pip's find-links
    certificates: str | None = None  # a file of authorities to trust besides the system's


class Link(NamedTuple):
    """A file that an index offers."""

    url: str
    algorithm: str = ""  # of its hash; empty if the index gives none
    digest: str = ""

    @property
    def file(self) -> str:
        return unquote(urlsplit(self.url).path.rpartition("/")[2])


def settings(environment: Mapping[str, str] = os.environ) -> IndexSettings:
    """The settings of pip and uv in this environment."""
    pip = {**_pip_files(environment), **_pip_variables(environment)}
    uv_default = environment.get("UV_DEFAULT_INDEX") or environment.get("UV_INDEX_URL") or ""
    uv_extra = f"{environment.get('UV_INDEX', '')} {environment.get('UV_EXTRA_INDEX_URL', '')}"
    first = [*pip.get("index-url", "").split(), *_uv_indexes(uv_default)] or [PYPI]
    more = [*pip.get("extra-index-url", "").split(), *_uv_indexes(uv_extra)]
    pages = [*pip.get("find-links", "").split(), *re.split(r"[\s,]+", environment.get("UV_FIND_LINKS", ""))]
    none = any(word.lower() in ("1", "true", "yes", "on") for word in (pip.get("no-index", ""), _no_index(environment)))
    indexes = () if none else tuple(dict.fromkeys(url.rstrip("/") for url in [*first, *more]))
    return IndexSettings(indexes, tuple(dict.fromkeys(filter(None, pages))), pip.get("cert") or None)


def find(wheel: str, where: IndexSettings, failures: list[str]) -> Iterator[Link]:
    """Links to a wheel, one index after the other; why an index has none is appended to `failures`."""
    project = re.sub(r"[-_.]+", "-", wheel.partition("-")[0]).lower()
    pages = [*(f"{index}/{project}/" for index in where.indexes), *where.pages]
    for page in pages:
        try:
            offered = list(_links(page, where.certificates))
        except HTTPError as error:
            failures.append(f"{name(page)} answers {error.code}")
        except (OSError, ValueError) as error:
            failures.append(f"{name(page)}: {reason(error)}")
        else:
            found = [link for link in offered if link.file == wheel]
            failures += [] if found else [f"{name(page)} does not have {wheel}"]
            yield from found
    if not pages:
        failures.append("the settings allow no index")


def opened(url: str, certificates: str | None, accept: str = "*/*") -> Any:
    """Open a URL; a user name and password in it go into a header that redirections do not get."""
    parts = urlsplit(url)
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    request = Request(plain, headers={"Accept": accept, "User-Agent": "draftproof"})
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        coded = base64.b64encode(secret.encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {coded}")
    context = None
    if parts.scheme == "https":
        context = ssl.create_default_context()
        if certificates:
            context.load_verify_locations(certificates)
    return urlopen(request, timeout=TIMEOUT, context=context)


def name(page: str) -> str:
    """The host or folder of a page, for messages: without a password."""
    parts = urlsplit(page)
    return parts.hostname or url2pathname(parts.path)


def reason(error: Exception) -> str:
    """Why a page could not be opened, in a few words."""
    cause = error.reason if isinstance(error, URLError) else error
    return (isinstance(cause, OSError) and cause.strerror) or str(cause) or type(error).__name__


def _links(page: str, certificates: str | None) -> Iterable[Link]:
    path = _path(page)
    if path is not None:
        listing = path / "index.html"
        if path.is_dir() and not listing.is_file():
            return [Link(file.absolute().as_uri()) for file in path.iterdir()]
        page = (listing if path.is_dir() else path).absolute().as_uri()
    with opened(page, certificates, ACCEPT) as answer:
        base, kind, body = answer.url, answer.headers.get_content_type(), answer.read()
    if urlsplit(base).hostname == urlsplit(page).hostname:
        base = page  # with user name and password, which the files need too
    if kind.endswith("json"):
        return [_json_link(base, entry) for entry in json.loads(body)["files"]]
    parser = _Anchors()
    parser.feed(body.decode("utf-8", errors="replace"))
    return [_link(urljoin(base, target)) for target in parser.targets]


def _path(page: str) -> Path | None:
    """The file or folder of a page that is on this machine."""
    parts = urlsplit(page)
    if parts.scheme == "file":
        return Path(url2pathname(parts.path))
    return None if "://" in page else Path(page).expanduser()


def _json_link(base: str, entry: Mapping[str, Any]) -> Link:
    algorithm, digest = next(iter(sorted(entry.get("hashes", {}).items(), reverse=True)), ("", ""))
    return Link(urljoin(base, entry["url"]), algorithm, digest)


def _link(url: str) -> Link:
    plain, fragment = urldefrag(url)
    algorithm, _, digest = fragment.partition("=")
    return Link(plain, algorithm, digest) if digest else Link(plain)


class _Anchors(HTMLParser):
    """The targets of the links on a page."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.targets += [value for key, value in attrs if tag == "a" and key == "href" and value]


def _pip_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        key.removeprefix("PIP_").lower().replace("_", "-"): value
        for key, value in environment.items()
        if key.startswith("PIP_") and value
    }


def _pip_files(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of pip's configuration files; a later file and the section [download] have the last word."""
    chosen = environment.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return {}
    name = "pip.ini" if os.name == "nt" else "pip.conf"
    home = Path(os.path.expanduser("~"))
    if os.name == "nt":
        places = [Path(environment.get("PROGRAMDATA", "C:\\ProgramData")) / "pip", home / "pip"]
        places.append(Path(environment.get("APPDATA", home)) / "pip")
    else:
        shared = environment.get("XDG_CONFIG_DIRS") or "/etc/xdg"
        places = [Path(folder) / "pip" for folder in shared.split(":")]
        places += [Path("/Library/Application Support/pip"), Path("/etc"), home / ".pip"]
        places.append(home / "Library/Application Support/pip")
        places.append(Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "pip")
    files = [*(place / name for place in places), Path(sys.prefix) / name, *([Path(chosen)] if chosen else [])]
    read = configparser.RawConfigParser()
    try:
        read.read(files, encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError):  # pip itself will name the fault
        return {}
    sections = [dict(read[section]) for section in ("global", "download") if read.has_section(section)]
    return {key.replace("_", "-"): value for section in sections for key, value in section.items()}


def _uv_indexes(words: str) -> list[str]:
    """uv may write an index as NAME=URL."""
    return [re.sub(r"^[\w.-]+=(?=\w+:)", "", word) for word in words.split()]


def _no_index(environment: Mapping[str, str]) -> str:
    return environment.get("UV_NO_INDEX") or environment.get("UV_OFFLINE") or ""
