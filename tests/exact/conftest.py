"""Every rule is tried on the same tables: the drafts that can be drawn of them are listed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import pytest

from draftproof.theory import enumerate


@pytest.fixture(scope="package", autouse=True)
def drafts_listed_once() -> Iterator[None]:
    listed = lru_cache(maxsize=4096)(enumerate.drafts)

    def drafts(target: Any, drafter: Any, *rest: Any) -> Any:
        return listed(target, tuple(drafter) if isinstance(drafter, Sequence) else drafter, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(enumerate, "drafts", drafts)
        yield
