"""Metrics of a server for Prometheus: none are counted yet."""

from __future__ import annotations

from draftproof.engine.worker import Update


class Metrics:
    """What one server counts."""

    def __init__(self, model_name: str = "", cache_tokens: int = 0) -> None:
        self.model_name, self.cache_tokens = model_name, cache_tokens

    def request_started(self, kind: str) -> None: ...

    def request_ended(self, kind: str, outcome: str, seconds: float | None = None) -> None: ...

    def queue(self, waiting: int, rows_in_use: int, rows: int) -> None: ...

    def cache(self, tokens_in_use: int, tokens_reused: int) -> None: ...

    def update(self, update: Update, seconds: float, first: bool, prompt_tokens: int = 0) -> None: ...

    def fault(self, kind: str) -> None: ...

    def drafter_off(self, reason: str) -> None: ...

    def text(self) -> tuple[bytes, str]:
        return b"", "text/plain; version=0.0.4; charset=utf-8"
