"""Errors of the server itself: the client gets an id, the log has where it happened, and neither has any text."""

from __future__ import annotations

import logging
import secrets
import traceback

from draftproof.server.errors import ApiError

log = logging.getLogger("draftproof.server")


def internal_error(error: BaseException) -> ApiError:
    """Log an error under an id, without its message, which may quote a prompt."""
    number = secrets.token_hex(4)
    places = traceback.extract_tb(error.__traceback__)
    where = " < ".join(f"{place.filename}:{place.lineno} {place.name}" for place in reversed(places[-8:]))
    log.error("internal error %s: %s at %s", number, type(error).__name__, where)
    return ApiError(500, f"internal error {number}", code="internal_error")
