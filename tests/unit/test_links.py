"""Links between the pages of the documentation lead to files and headings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them: lower case, without punctuation, with dashes for spaces."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.strip().lower()).replace(" ", "-") for h in headings}


def broken(page: Path) -> list[str]:
    """The links of a page to a file or a heading that does not exist."""
    found: list[str] = []
    for link in LINK.findall(CODE.sub("", page.read_text("utf-8"))):
        if re.match(r"\w+:", link):
            continue  # elsewhere
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target)
        ):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    assert broken(page) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b`: c\n[1](#a-b-c) [2](#none) [3](none.md) `[4](code.md)` [5](page.md#a-b-c)\n"
    )
    assert broken(page) == ["#none", "none.md"]
