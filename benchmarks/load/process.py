"""A `draftproof serve` in a process of its own, seen from outside: its address, its numbers, its memory, its end."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

START = 180.0  # seconds in which a server must be ready
STOP = 60.0  # seconds in which it must end


class ServerProcess:
    """One server that answers requests."""

    def __init__(self, *options: str) -> None:
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115, it is open as long as the server
        given = options if "--port" in options else (*options, "--port", "0")
        command = [sys.executable, "-m", "draftproof", "serve", *given]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log)
        assert self.process.stdout is not None
        greeting = self.process.stdout.readline().decode()
        found = re.search(r"http://[\d.]+:(\d+)", greeting)
        if found is None:
            self.process.wait()
            raise RuntimeError(f"the server has not started: {self.logged()}")
        self.url, self.port = found[0], int(found[1])
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + START
        while time.monotonic() < until and self.process.poll() is None:
            try:
                self.get("/health")
                return
            except urllib.error.URLError:  # also what a server that still loads answers
                time.sleep(0.05)
        raise RuntimeError(f"the server is not ready: {self.logged()}")

    def get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                found: dict[str, Any] = json.loads(answer.read())
                return found
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path} answered {error.code}: {error.read().decode(errors='replace')}") from error

    def is_idle(self, seconds: float) -> bool:
        """Whether all rows are free and nobody waits, within these seconds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            now = self.get("/stats")
            if now["rows_in_use"] == now["waiting"] == 0:
                return True
            time.sleep(0.05)
        return False

    def memory(self) -> int:
        """Bytes of the process that are in memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def logged(self) -> str:
        """What the server has written to its log: nothing, if all is well."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace").strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """End it by SIGTERM, as an operator does; its exit status."""
        self.process.terminate()
        try:
            return self.process.wait(STOP)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


@contextmanager
def serving(*options: str) -> Iterator[ServerProcess]:
    """A server for the time of a block."""
    server = ServerProcess(*options)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()
        if server.process.stdout is not None:
            server.process.stdout.close()
        server.log.close()
