"""Compiles kernels again with a table of source lines, for profilers of machine code.

The LLVM IR of a kernel names lines in comments (`; kernel.py:10 > kernel.py:4`: line 4, inlined into line 10). Here
they become `!dbg` of the instructions after them, which leaves the code as it is.
"""

from __future__ import annotations

import re

from tessera.backends.cpu.backend import compile_object
from tessera.backends.cpu.target import resolve
from tessera.backends.gpu.line_info import LineTable
from tessera.errors import Loc

_PLACE = re.compile(r"^\s*; (\S+:\d+(?: > \S+:\d+)*)$")
_NODE = re.compile(r"^!\d+ = (.*)$")
_DEFINE = re.compile(r'^(define [^@]*@"?([^"(]+)"?\(.*) \{$')
_INSTRUCTION = re.compile(r"^\s+(?![;}])\S.*[^:]$")


def object_with_lines(text: str, arch: str) -> bytes:
    """Return the object of a kernel's LLVM IR for a CPU, with a `.debug_line` section; files are without folders."""
    return compile_object(with_lines(text), resolve(arch)[0])


def with_lines(text: str) -> str:
    """Return LLVM IR whose comments with lines have become debug locations."""
    lines = text.splitlines()
    table = LineTable(m[1] for m in map(_NODE.match, lines) if m)
    done: list[str] = []
    scope, suffix = -1, ""
    for i, line in enumerate(lines):
        begins, place = _DEFINE.match(line), _PLACE.match(line)
        if begins:
            first = next((m[1] for m in map(_PLACE.match, lines[i + 1 :]) if m), None)
            scope, suffix = -1, ""
            if first is not None:
                scope = table.function(begins[2], _location(first).chain()[0])
                suffix = f", !dbg !{table.place(_location(first).chain()[0], scope)}"
                line = f"{begins[1]} !dbg !{scope} {{"
        elif place and scope >= 0:
            suffix = f", !dbg !{table.place(_location(place[1]), scope)}"
        elif suffix and _INSTRUCTION.match(line):
            line += suffix
        if not _NODE.match(line):
            done.append(line)
    return "\n".join([*done, *table.render(), ""])


def _location(chain: str) -> Loc:
    """Return the location that a comment names, the outermost call first."""
    found: Loc | None = None
    for step in chain.split(" > "):
        file, _, line = step.rpartition(":")
        found = Loc(file, int(line), first_line=int(line), call_site=found)
    assert found is not None
    return found
