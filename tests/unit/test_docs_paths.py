"""Paths and dotted names in the documentation stand for something that exists."""

from __future__ import annotations

import contextlib
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FILE = re.compile(r"`([\w-]+\.(?:py|tir|gir))`")  # named beside its folder
PATH = re.compile(r"(?<![\w./<~…$-])((?:[\w.-]+/)+[\w.-]+\.(?:py|md|tir|gir))\b")
FOLDER = re.compile(
    r"`((?:tessera|tests|docs|examples|benchmarks|passes|runtime|backends)/[\w/]*/)`"
)
NAME = re.compile(r"`(?:python -m )?(tessera(?:\.[a-z_]\w*)+)")


@cache
def files() -> tuple[str, ...]:
    """Each file below the repository's folder, and each folder with a `/` at its end, from the root with a `/`."""
    places = ("tessera", "tests", "docs", "examples", "benchmarks", "tools", ".github")
    found = [
        p for place in places for p in (ROOT / place).rglob("*") if "__pycache__" not in p.parts
    ]
    found += [p for p in ROOT.iterdir() if p.is_file()] + [ROOT / p for p in places]
    return tuple(f"/{p.relative_to(ROOT)}{'/' if p.is_dir() else ''}" for p in found)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_paths_exist(page: Path):
    text = page.read_text("utf-8")
    wanted = {m[1] for m in (*FILE.finditer(text), *PATH.finditer(text), *FOLDER.finditer(text))}
    # What a page tells to write is in its headings, or the title of a block.
    made = [h for h in text.splitlines() if h.startswith(("## ", "```python title="))]
    assert [w for w in wanted if not is_file(page, w) and not any(w in h for h in made)] == []


def is_file(page: Path, path: str) -> bool:
    """Whether a path is the end of one in the repository, from the page's folder if it begins with `..`. What begins
    with a word in capitals, as DIR/x.py does, is a placeholder."""
    if path.startswith("../"):
        return (page.parent / path).exists()
    return path.split("/")[0].isupper() or any(f.endswith(f"/{path}") for f in files())


MISSPELT = {"tessera.cdv"}  # a mistake of docs/mistakes.md


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_dotted_names_exist(page: Path):
    named = set(NAME.findall(page.read_text("utf-8"))) - MISSPELT
    missing = [n for n in named if not exists(n)]
    assert missing == []


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one. A module may need a package that is not here."""
    parts = name.split(".")
    with contextlib.suppress(ImportError):  # of what is no package
        if importlib.util.find_spec(name) is not None:
            return True
    for n in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:n]))
        except ImportError:
            continue
        for attribute in parts[n:]:
            try:
                found = getattr(found, attribute)
            except ImportError:  # imported when it is asked for, from what is not here
                return True
            except AttributeError:
                return False
        return True
    return False
