"""The docs as a website: every page is listed, and links to files of the repository become their names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import docs
from scripts.site_hook import TOP, adapt

ROOT = Path(__file__).resolve().parents[1]
NAV = re.findall(r"^ +- .+: ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_every_page_is_listed_once_and_in_reading_order() -> None:
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(NAV) == sorted([*pages, *TOP.values()])
    assert [page for page in NAV if page in docs.READING_ORDER] == list(docs.READING_ORDER)


def test_no_page_is_written_over_by_another() -> None:
    """engines.md becomes engines.html, so no file of that name may lie beside it."""
    written = [(ROOT / "docs" / page).with_suffix(".html") for page in NAV]
    assert not [page.name for page in written if page.exists()]


@pytest.mark.parametrize(
    ("source", "written", "shown"),
    [
        ("docs/limits.md", "[`sbv`](../src/draftproof/verify/sbv.py)", "`sbv`"),
        ("docs/limits.md", "[plan.py](../src/draftproof/theory/plan.py)", "`plan.py`"),
        ("docs/audit.md", "[a test](../tests/exact/test_gumbel.py)", "a test (`tests/exact/test_gumbel.py`)"),
        ("docs/index.md", "[Contributing](../CONTRIBUTING.md#words)", "[Contributing](contributing.md#words)"),
        ("docs/api/models.md", "[it](../../CONTRIBUTING.md)", "[it](../contributing.md)"),
        ("docs/api/models.md", "[Python](../python.md#samples)", "[Python](../python.md#samples)"),
        ("CONTRIBUTING.md", "[Algorithms](docs/algorithms.md)", "[Algorithms](algorithms.md)"),
        ("docs/limits.md", "[below](#on-your-models)", "[below](#on-your-models)"),
        (
            "docs/limits.md",
            "[Sequoia](https://arxiv.org/abs/2402.12374)",
            "[Sequoia](https://arxiv.org/abs/2402.12374)",
        ),
        ("docs/limits.md", "![A figure](figures/limits.svg)", "![A figure](figures/limits.svg)"),
    ],
)
def test_links(source: str, written: str, shown: str) -> None:
    assert adapt(f"See {written}.\n", source) == f"See {shown}.\n"


def test_code_stays_as_it_is_but_for_the_words_that_are_for_the_tests() -> None:
    block = "```python no-run\nx = [a](../src/b.py)\n```\n"
    assert adapt(block, "docs/python.md") == block.replace(" no-run", "")


def test_docstrings_become_markdown() -> None:
    pytest.importorskip("griffe", reason="comes with draftproof[site]")
    from scripts.site_docstrings import as_markdown

    said = "Text.\n\nrows     how many\n         at once\nseed, n  numbers\n\n>>> 1 + 1\n2"
    assert as_markdown(said) == (
        "Text.\n\n\n- `rows`: how many\n  at once\n- `seed`, `n`: numbers\n\n```pycon\n>>> 1 + 1\n2\n```"
    )
