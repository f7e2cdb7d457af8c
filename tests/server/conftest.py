"""A server of a small model and a client of it, for each file that has none of its own."""

from __future__ import annotations

import pytest

from tests.support.serving import serving


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with server.openai() as client:
        yield client
