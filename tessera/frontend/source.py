"""Finds what syntax alone tells about a function: the locations of its nodes, and the names that each block
assigns.

Names are needed before values: a loop or a branch is visited once, when the variables that it carries are known.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from enum import Flag
from typing import Any

from tessera.errors import Loc
from tessera.language.callable import JITCallable


class Jumps(Flag):
    """The statements by which control leaves a block early."""

    NONE = 0
    CONTINUE = 1
    BREAK = 2
    RETURN = 4


class BlockFacts:
    """Facts about an `if`, `for`, `while` or `with`: the names that it assigns, in order, and its jumps.

    `inner`: jumps inside that concern the block itself (those of nested loops belong to these); `jumps`: those that
    leave it, which for a loop are only its returns.
    """

    __slots__ = ("assigned", "inner", "jumps")

    def __init__(self, assigned: Sequence[str], inner: Jumps, jumps: Jumps):
        self.assigned = tuple(assigned)
        self.inner = inner
        self.jumps = jumps

    @property
    def leaves(self) -> bool:
        """Whether a jump inside can end the block, which is a loop."""
        return bool(self.inner & (Jumps.BREAK | Jumps.RETURN))


class FunctionSource:
    """The syntax tree of one function with its facts; made once per function."""

    __slots__ = ("_ascii", "_lines", "_walrus", "def_line", "facts", "file", "name", "node")

    def __init__(self, fn: JITCallable):
        text = fn.source
        self.node = text.tree()
        self.file = text.file
        self.def_line = text.def_line
        self.name = fn.__name__
        self.facts: dict[ast.AST, BlockFacts] = {}
        self._ascii = text.text.isascii()
        self._lines: list[str] = [] if self._ascii else text.text.splitlines()
        self._walrus = ":=" in text.text
        self._collect(self.node.body, {})

    def loc(self, node: Any, call_site: Loc | None) -> Loc:
        """Return the span of a node in its file."""
        line: int
        col: int
        end_line: int
        end_col: int
        line, col = node.lineno, node.col_offset
        end_line, end_col = node.end_lineno, node.end_col_offset
        if not self._ascii:  # the parser counts bytes, but columns count characters
            col, end_col = self._characters(line, col), self._characters(end_line, end_col)
        above = self.def_line - 1
        return Loc(
            self.file, line + above, col, end_line + above, end_col, self.name, self.def_line, call_site
        )  # fmt: skip

    def _characters(self, line: int, col: int) -> int:
        return len(self._lines[line - 1].encode()[:col].decode(errors="ignore"))

    # --- names ------------------------------------------------------------------------------------------
    def _collect(self, body: Sequence[ast.stmt], names: dict[str, None]) -> Jumps:
        """Add the names that `body` assigns to `names`. Return the jumps out of it."""
        jumps = Jumps.NONE
        for s in body:
            if isinstance(s, ast.If | ast.For | ast.While):
                inner: dict[str, None] = {}
                if isinstance(s, ast.For):
                    inner.update(dict.fromkeys(target_names(s.target)))
                found = self._collect(s.body, inner)
                found |= self._collect(s.orelse, inner)
                if self._walrus:
                    head = s.iter if isinstance(s, ast.For) else s.test
                    inner.update(dict.fromkeys(walrus_names(head)))
                out = found if isinstance(s, ast.If) else found & Jumps.RETURN
                self.facts[s] = BlockFacts(list(inner), found, out)
                names.update(inner)
                jumps |= out
                continue
            names.update(dict.fromkeys(assigned_names(s)))
            if isinstance(s, ast.With):
                inner = {}
                found = self._collect(s.body, inner)
                self.facts[s] = BlockFacts(list(inner), found, found)
                names.update(inner)
            if self._walrus:
                names.update(dict.fromkeys(walrus_names(s)))
            jumps |= _JUMPS.get(type(s), Jumps.NONE)
        return jumps

    def assigned_in(self, body: Sequence[ast.stmt]) -> list[str]:
        """Return the names that some statements of the function assign, in order."""
        names: dict[str, None] = {}
        for s in body:
            if isinstance(s, ast.If | ast.For | ast.While):
                names.update(dict.fromkeys(self.facts[s].assigned))
            else:
                names.update(dict.fromkeys([*assigned_names(s), *walrus_names(s)]))
                if isinstance(s, ast.With):
                    names.update(dict.fromkeys(self.facts[s].assigned))
        return list(names)


_JUMPS: dict[type[ast.stmt], Jumps] = {
    ast.Return: Jumps.RETURN,
    ast.Break: Jumps.BREAK,
    ast.Continue: Jumps.CONTINUE,
}


def assigned_names(s: ast.stmt) -> Iterator[str]:
    """Yield the names that one simple statement assigns."""
    if isinstance(s, ast.Assign):
        for target in s.targets:
            yield from target_names(target)
    elif isinstance(s, ast.With):
        for item in s.items:
            if item.optional_vars is not None:
                yield from target_names(item.optional_vars)
    elif isinstance(s, ast.AugAssign) or (isinstance(s, ast.AnnAssign) and s.value is not None):
        yield from target_names(s.target)


def target_names(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Tuple | ast.List):
        for item in target.elts:
            yield from target_names(item)


def walrus_names(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.NamedExpr):
            yield inner.target.id


def last_assignment(body: Sequence[ast.stmt], name: str) -> ast.stmt | None:
    """Return the last simple statement in `body`, at any depth, that assigns `name`, for error messages."""
    found: ast.stmt | None = None
    for s in body:
        if isinstance(s, ast.If | ast.For | ast.While):
            found = last_assignment([*s.body, *s.orelse], name) or found
        elif isinstance(s, ast.With):
            found = last_assignment(s.body, name) or found
        elif name in assigned_names(s) or name in walrus_names(s):
            found = s
    return found


def source_of(fn: JITCallable) -> FunctionSource:
    """Return the parsed source of a function, cached with its text."""
    text = fn.source
    if not isinstance(text.derived, FunctionSource):
        text.derived = FunctionSource(fn)
    return text.derived
