"""Writes source lines into LLVM IR: the kernel's line, and the inlined calls, that each instruction comes from.

The lowering writes a comment `;@3` where instructions of location 3 begin. When a function is complete, `attach` turns
the comments into `!dbg` of the instructions after them. The metadata only requests line directives: profilers and
sanitizers can name lines, and the code is unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from tessera.errors import Loc

MARK = ";@"
DWARF = 4  # the version that line_table.py reads


class LineTable:
    """Debug metadata of one module. Nodes are numbered as they are needed, after those that it has (`nodes`); `render`
    returns them all."""

    def __init__(self, nodes: Iterable[str] = ()) -> None:
        self.nodes = list(nodes)
        self._places: dict[tuple[int, int, int, int], int] = {}
        self._files: dict[str, int] = {}
        self._functions: dict[tuple[str, str, int], int] = {}
        self._unit = self._type = -1

    def function(self, name: str, loc: Loc) -> int:
        """Return the subprogram `name`, defined at `loc.first_line` of its file."""
        key = (name, loc.file, loc.first_line)
        if key not in self._functions:
            file = self._file(loc.file)
            if self._unit < 0:
                self._start(file)
            self._functions[key] = self._add(
                f'distinct !DISubprogram(name: "{name}", linkageName: "{name}", scope: !{file}, file: !{file}, '
                f"line: {loc.first_line}, type: !{self._type}, scopeLine: {loc.first_line}, "
                f"spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: !{self._unit})"
            )
        return self._functions[key]

    def place(self, loc: Loc, scope: int) -> int:
        """Return the location node of `loc` in the function with subprogram `scope`, into which its calls were
        inlined."""
        outer, *inner = loc.chain()
        at = self._location(outer, scope, -1)
        for step in inner:
            at = self._location(step, self.function(step.function or "<kernel>", step), at)
        return at

    def _location(self, loc: Loc, scope: int, inlined_at: int) -> int:
        key = (loc.line, loc.col, scope, inlined_at)
        if key not in self._places:
            call = "" if inlined_at < 0 else f", inlinedAt: !{inlined_at}"
            self._places[key] = self._add(
                f"!DILocation(line: {loc.line}, column: {loc.col + 1}, scope: !{scope}{call})"
            )
        return self._places[key]

    def render(self) -> list[str]:
        texts = [f"!{i} = {text}" for i, text in enumerate(self.nodes)]
        if self._unit < 0:
            return texts
        flag = len(texts)
        return [
            *texts,
            f'!{flag} = !{{i32 2, !"Debug Info Version", i32 3}}',
            f'!{flag + 1} = !{{i32 2, !"Dwarf Version", i32 {DWARF}}}',
            f"!llvm.module.flags = !{{!{flag}, !{flag + 1}}}",
            f"!llvm.dbg.cu = !{{!{self._unit}}}",
        ]

    def _start(self, file: int) -> None:
        self._unit = self._add(
            f'distinct !DICompileUnit(language: DW_LANG_C, file: !{file}, producer: "tessera", isOptimized: true, '
            "runtimeVersion: 0, emissionKind: DebugDirectivesOnly)"
        )
        self._type = self._add("!DISubroutineType(types: !{null})")

    def _file(self, path: str) -> int:
        if path not in self._files:
            folder, name = os.path.split(path)
            self._files[path] = self._add(
                f'!DIFile(filename: "{_plain(name)}", directory: "{_plain(folder)}")'
            )
        return self._files[path]

    def _add(self, text: str) -> int:
        self.nodes.append(text)
        return len(self.nodes) - 1


class FunctionLines:
    """The locations of one function: numbers for the marks while it is written, metadata when it is complete."""

    def __init__(self, table: LineTable, name: str) -> None:
        self.table, self.name = table, name
        self.scope = -1
        self.current = -1
        self._numbers: dict[int, int] = {}
        self._locs: list[Loc] = []  # by number; the list keeps the keys of `_numbers` alive

    def enter(self, loc: Loc | None, lines: list[str]) -> int:
        """Set the location of the following instructions to `loc`. Return the argument of `leave`."""
        before = self.current
        if loc is not None:
            number = self._numbers.get(id(loc))
            if number is None:
                number = self._numbers[id(loc)] = len(self._locs)
                self._locs.append(loc)
            self._switch(number, lines)
        return before

    def leave(self, before: int, lines: list[str]) -> None:
        if before >= 0:
            self._switch(before, lines)

    def _switch(self, number: int, lines: list[str]) -> None:
        if number != self.current:
            self.current = number
            lines.append(f"{MARK}{number}")

    def attach(self, lines: Iterable[str]) -> list[str]:
        """Return the lines without marks, each instruction with its location."""
        done: list[str] = []
        suffixes: dict[str, str] = {}
        suffix = ""
        for line in lines:
            if line.startswith(MARK):
                suffix = suffixes.get(line, "")
                if not suffix:
                    suffix = suffixes[line] = self._suffix(self._locs[int(line[len(MARK) :])])
            elif suffix and line.startswith("  "):
                done.append(line + suffix)
            else:
                done.append(line)
        return done

    def _suffix(self, loc: Loc) -> str:
        if self.scope < 0:
            self.scope = self.table.function(self.name, loc.chain()[0])
        return f", !dbg !{self.table.place(loc, self.scope)}"


def _plain(path: str) -> str:
    """Replace characters that ptxas rejects in file names."""
    return "".join(c if " " <= c <= "~" and c not in '"\\' else "_" for c in path)
