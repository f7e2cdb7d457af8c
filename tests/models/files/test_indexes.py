"""Wheels are found in the indexes that pip or uv is set to use."""

from __future__ import annotations

import base64
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from draftproof.models.files import indexes
from draftproof.models.files.indexes import PYPI, IndexSettings, Link

WHEEL = "small_model-1.0-py3-none-any.whl"
NO_FILES = {"PIP_CONFIG_FILE": os.devnull}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, IndexSettings((PYPI,))),
        ({"PIP_INDEX_URL": "https://a/simple/"}, IndexSettings(("https://a/simple",))),
        ({"PIP_EXTRA_INDEX_URL": "https://b https://c"}, IndexSettings((PYPI, "https://b", "https://c"))),
        ({"UV_DEFAULT_INDEX": "mine=https://d", "UV_INDEX": "https://e"}, IndexSettings(("https://d", "https://e"))),
        ({"UV_INDEX_URL": "https://u:p=w@f/simple"}, IndexSettings(("https://u:p=w@f/simple",))),
        ({"PIP_INDEX_URL": "https://a", "UV_INDEX_URL": "https://a"}, IndexSettings(("https://a",))),
        (
            {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/w /x", "UV_FIND_LINKS": "/y,/x"},
            IndexSettings((), ("/w", "/x", "/y")),
        ),
        ({"PIP_NO_INDEX": "0", "PIP_CERT": "/ca.pem"}, IndexSettings((PYPI,), certificates="/ca.pem")),
        ({"UV_OFFLINE": "true"}, IndexSettings(())),
    ],
)
def test_settings_of_the_environment(environment, expected):
    assert indexes.settings({**NO_FILES, **environment}) == expected


def test_settings_of_pip_files(tmp_path, monkeypatch):
    """A user's file, then the one that is named, then variables."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "pip.conf").write_text(
        "[global]\nindex-url = https://user/simple\nextra_index_url =\n    https://one\n    https://two\n"
    )
    named = tmp_path / "named.conf"
    named.write_text("[global]\ncert = /ca.pem\nindex-url = https://a%20b\n[download]\nindex-url = https://named\n")
    found = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "none"), "PIP_CERT": "/ca.pem"}
    assert indexes.settings(found).indexes == ("https://user/simple", "https://one", "https://two")
    found["PIP_CONFIG_FILE"] = str(named)
    assert indexes.settings(found) == IndexSettings(("https://named", "https://one", "https://two"), (), "/ca.pem")
    assert indexes.settings({**found, "PIP_INDEX_URL": "https://variable"}).indexes[0] == "https://variable"
    named.write_text("no section")
    assert indexes.settings({**found, "PIP_CERT": ""}).indexes == (PYPI,)


class Site(BaseHTTPRequestHandler):
    """An index: as HTML, as JSON, behind a password, behind a redirection."""

    def do_GET(self) -> None:
        secret = base64.b64encode(b"me:pass word").decode()
        files = {"files": [{"filename": WHEEL, "url": f"../../files/{WHEEL}", "hashes": {"md5": "1", "sha256": "ab"}}]}
        html = f'<a href="../../files/other.whl">x</a><a class="y" href="../../files/{WHEEL}#sha256=ab">z</a>'
        if self.path.startswith("/away/"):
            self.send_response(302)
            self.send_header("Location", "/html/small-model/")
            self.end_headers()
        elif self.path.startswith("/json/") and "simple.v1+json" in self.headers["Accept"]:
            self.say(200, "application/vnd.pypi.simple.v1+json", json.dumps(files))
        elif self.path.startswith("/private/") and self.headers["Authorization"] != f"Basic {secret}":
            self.say(401, "text/html", "")
        elif self.path.startswith(("/html/", "/private/")):
            self.say(200, "text/html", html)
        else:
            self.say(404, "text/html", "")

    def say(self, code: int, kind: str, text: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *ignored: object) -> None:
        pass


@pytest.fixture(scope="module")
def host():
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("no_proxy", "127.0.0.1")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def found(*places: str, pages: tuple[str, ...] = ()) -> tuple[list[Link], list[str]]:
    failures: list[str] = []
    return list(indexes.find(WHEEL, IndexSettings(places, pages), failures)), failures


@pytest.mark.parametrize("way", ["html", "json"])
def test_an_index_speaks_html_or_json(host, way):
    assert found(f"http://{host}/{way}") == ([Link(f"http://{host}/files/{WHEEL}", "sha256", "ab")], [])


def test_a_redirection_is_followed(host):
    assert found(f"http://{host}/away")[0][0].file == WHEEL


def test_a_password_is_sent_and_not_said(host):
    private = f"http://me:pass%20word@{host}/private"
    assert found(private)[0] == [Link(f"http://me:pass%20word@{host}/files/{WHEEL}", "sha256", "ab")]
    assert found(f"http://me:wrong@{host}/private") == ([], ["127.0.0.1 answers 401"])


def test_why_an_index_has_nothing_is_said(host, tmp_path):
    links, failures = found(
        f"http://{host}/none", "http://127.0.0.1:9/simple", pages=(str(tmp_path), "/no/such/folder")
    )
    assert links == []
    assert failures == [
        "127.0.0.1 answers 404",
        "127.0.0.1: Connection refused",
        f"{tmp_path} does not have {WHEEL}",
        "/no/such/folder: No such file or directory",
    ]
    assert found() == ([], ["the settings allow no index"])


def test_a_folder_of_wheels_and_a_page_of_links_are_searched(host, tmp_path):
    (tmp_path / WHEEL).write_text("")
    want = Link((tmp_path / WHEEL).as_uri())
    assert found(pages=(str(tmp_path), tmp_path.as_uri())) == ([want, want], [])
    assert found(pages=(f"http://{host}/html/all/wheels.html",))[0][0].file == WHEEL
