"""Finds the source of a function: its lines, the line of its `def`, and its syntax tree with columns of the file."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import os
import re
import textwrap
import threading
from collections.abc import Callable
from typing import Any

from tessera.errors import SourceNotFound

PARSE_TRIES = 100  # more than enough for another thread's parsing to end, see `parse`
_parsing = threading.RLock()


def parse(text: str) -> ast.Module:
    """Call `ast.parse`, in one thread at a time.

    Older CPythons (gh-106905) count the depth of all trees under construction together: if a thread is interrupted
    while another one parses, the first one ends in a SystemError. When other libraries' code parses at the same time,
    a retry succeeds.
    """
    with _parsing:
        for _ in range(PARSE_TRIES - 1):
            try:
                return ast.parse(text)
            except SystemError:
                continue
        return ast.parse(text)


def _after_fork() -> None:
    global _parsing
    _parsing = threading.RLock()  # its thread no longer exists


os.register_at_fork(after_in_child=_after_fork)


class SourceText:
    """The text of one function. `lines` start at the decorators; `def_line` is its line in `file`, from 1."""

    __slots__ = (
        "_tree", "def_column", "def_line", "derived", "file", "first_line", "indent", "lines", "text",
    )  # fmt: skip

    def __init__(self, fn: Callable[..., Any]):
        try:
            self.lines, first = inspect.getsourcelines(fn)
        except (OSError, TypeError) as error:
            raise SourceNotFound(why="") from error
        self.first_line = max(first, 1)
        self.file = fn.__code__.co_filename
        # A function that was renamed has its first name in the file; one that wraps another bears the other's.
        names = "|".join(re.escape(n) for n in (fn.__name__, fn.__code__.co_name))
        head = re.compile(rf"^(\s*)def\s+({names})(?!\w)")
        found = next(((i, m) for i, s in enumerate(self.lines) if (m := head.match(s))), None)
        if found is None:
            raise SourceNotFound(why=f" with `def`: {fn.__name__} is not one")
        above, match = found
        self.indent: str = match.group(1)
        self.def_column = len(self.indent)
        self.def_line = self.first_line + above
        self.text = "".join(self.lines[above:])
        self._tree: ast.FunctionDef | None = None
        self.derived: Any = None  # cache of what the front end computes from the tree

    @property
    def dedented(self) -> str:
        return textwrap.dedent(self.text)

    def replace(self, text: str) -> None:
        """Use another text as the function's source; its first line is its `def`."""
        self.text, self.indent, self._tree, self.derived = text, "", None, None

    def without_tree(self) -> SourceText:
        """Return a copy of the text alone, for pickling."""
        bare = copy.copy(self)
        bare._tree = bare.derived = None
        return bare

    def tree(self) -> ast.FunctionDef:
        """The function's definition. Line 1 is its `def`; columns are those of the file.

        Indented text is parsed as the body of an `if`, not dedented: taking blanks off each line would change
        strings that span lines, and the columns would no longer be those that the author sees.
        """
        if self._tree is None:
            if self.indent:
                outer: Any = parse("if 1:\n" + self.text)
                node: Any = outer.body[0].body[0]
                ast.increment_lineno(node, -1)
            else:
                node = parse(self.text).body[0]
            assert isinstance(node, ast.FunctionDef)
            self._tree = node
        return self._tree


class Sourced:
    """Base of what replaces a Python function `fn` and gives access to its source."""

    fn: Callable[..., Any]

    @functools.cached_property
    def source(self) -> SourceText:
        return SourceText(self.fn)

    @property
    def src(self) -> str:
        """The source from its `def` on, without common indentation."""
        return self.source.dedented


def of_source(name: str) -> property:
    """Return a property of what has a source: the attribute `name` of that."""

    def get(owner: Sourced) -> object:
        return getattr(owner.source, name)

    def put(owner: Sourced, value: object) -> None:
        setattr(owner.source, name, value)

    return property(get, put)
