"""Parts of kernels that are marked for a profiler, as ranges of source lines."""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tessera.profiler.marks import marks_of

HEAD = """
import sys, types
pl = types.ModuleType("profiler.language")

def scope(name): ...
def enter_scope(name): ...
def exit_scope(name): ...

for f in (scope, enter_scope, exit_scope):
    f.__module__ = "some.profiler.language"
    setattr(pl, f.__name__, f)


def own(name): ...
"""
FIRST = HEAD.count("\n") + 1  # line of the kernel


def marks(folder: Path, body: str) -> list[tuple[str, int, int]]:
    """The marks of a function, with lines counted from its first one, which is 1."""
    path = folder / "marked.py"
    path.write_text(HEAD + textwrap.dedent(body).lstrip("\n"))
    spec = importlib.util.spec_from_file_location("marked", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [(name, a - FIRST + 1, b - FIRST + 1) for name, a, b in marks_of(module.k)]


CASES = {
    "with": (
        """
        def k(x):
            with pl.scope("a"):
                x += 1
                with pl.scope(name="b"):
                    x += 2
            x += 3
        """,
        [("a", 2, 5), ("b", 4, 5)],
    ),
    "pairs": (
        """
        def k(x):
            enter_scope("a")
            x += 1
            pl.enter_scope("b")
            for i in range(3):
                pl.enter_scope("a")
                x += 2
                pl.exit_scope("a")
            exit_scope("a")
            x += 3
            pl.exit_scope("b")
        """,
        [("a", 2, 9), ("b", 4, 11), ("a", 6, 8)],
    ),
    "open": (
        """
        def k(x):
            x += 1
            pl.enter_scope("a")
            x += 3
            pl.exit_scope("other")
        """,
        [("a", 3, 5)],
    ),
    "others": (
        """
        def k(x):
            own("a")
            missing.scope("b")
            with pl.scope(x):
                x += 1
        """,
        [],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_marks(tmp_path: Path, name: str) -> None:
    body, expected = CASES[name]
    assert marks(tmp_path, body) == expected


def test_no_source() -> None:
    assert marks_of(None) == marks_of(len) == ()
