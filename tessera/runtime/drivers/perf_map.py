"""Tells `perf` the names and source lines of kernels on the CPU.

`perf report` reads names of generated code from /tmp/perf-PID.map. Lines and instructions are in /tmp/jit-PID.dump, a
jitdump, of which `perf inject --jit` makes files of code that `perf annotate` and `perf report --sort srcline` read.

Source: tools/perf/Documentation/jitdump-specification.txt of Linux.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
import os
import platform
import struct
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tessera.backends.elf import sections
from tessera.backends.line_table import line_rows
from tessera.compiler.kernel import CompiledKernel

FOLDER = Path("/tmp")
MAGIC = 0x4A695444  # "JiTD"
CODE_LOAD, DEBUG_INFO = 0, 2  # kinds of records
_MACHINES = {"x86_64": 62, "AMD64": 62, "aarch64": 183}  # of ELF files

# perf sees the dump by a mapping of it, which lasts as long as the process.
_kept: dict[Path, mmap.mmap] = {}
_count = 0  # of kernels in the dump, each of which has a number


def lined_image(kernel: CompiledKernel) -> bytes:
    """Return the object file of a kernel with a table of source lines: the same code, compiled once more."""
    text = kernel.asm.get("llir")
    if text is None:
        return kernel.asm["object"]
    # The whole back end comes with it, which a process that finds its kernels in the cache does without.
    lines = importlib.import_module("tessera.backends.cpu.debug_lines")
    return lines.object_with_lines(text, kernel.metadata.target.arch)


def note_code(kernel: CompiledKernel, address: int, image: bytes) -> None:
    """Tell perf of a kernel: where its code begins, and what its object file says of names and lines."""
    parts = sections(image)
    size = sum(len(s.data) for s in parts if s.name.startswith(".text"))
    table = next((s.data for s in parts if s.name == ".debug_line"), b"")
    rows = [r for r in line_rows(table) if r[0] < size and r[2]]  # line 0: of no line
    _note_symbol(kernel.name, address, size)
    _note_lines(kernel.name, address, size, _with_paths(kernel, rows))


def _note_symbol(name: str, address: int, size: int) -> None:
    path = FOLDER / f"perf-{os.getpid()}.map"
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{address:x} {size:x} tessera::{name}\n")


def _with_paths(
    kernel: CompiledKernel, rows: Sequence[tuple[int, str, int]]
) -> list[tuple[int, str, int]]:
    """Return the rows with whole paths, as far as files are those of the kernel or of modules that are loaded."""
    wanted = {file for _, file, _ in rows}
    files = [getattr(m, "__file__", None) for m in list(sys.modules.values())]
    code = getattr(getattr(getattr(kernel.src, "fn", None), "fn", None), "__code__", None)
    own = [] if code is None else [code.co_filename]
    paths = {
        os.path.basename(f): f
        for f in [*filter(None, files), *own]
        if os.path.basename(f) in wanted
    }
    return [(at, paths.get(file, file), line) for at, file, line in rows]


def _note_lines(name: str, address: int, size: int, rows: Sequence[tuple[int, str, int]]) -> None:
    """Append a kernel's lines and code to the dump."""
    global _count
    entries = b"".join(
        struct.pack("<QII", address + at, line, 0) + file.encode() + b"\0"
        for at, file, line in rows
    )
    path = FOLDER / f"jit-{os.getpid()}.dump"
    with path.open("ab") as file:
        if not file.tell():
            file.write(_header())
        if rows:
            file.write(_record(DEBUG_INFO, struct.pack("<QQ", address, len(rows)) + entries))
        place = (os.getpid(), threading.get_native_id(), address, address, size, _count)
        label = f"tessera::{name}".encode() + b"\0"
        code = ctypes.string_at(address, size)
        file.write(_record(CODE_LOAD, struct.pack("<IIQQQQ", *place) + label + code))
    _count += 1
    if path not in _kept:
        with path.open("rb") as file:
            flags = mmap.PROT_READ | mmap.PROT_EXEC
            _kept[path] = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, flags)


def _header() -> bytes:
    machine = _MACHINES.get(platform.machine(), 0)
    return struct.pack("<IIIIIIQQ", MAGIC, 1, 40, machine, 0, os.getpid(), time.monotonic_ns(), 0)


def _record(kind: int, content: bytes) -> bytes:
    return struct.pack("<IIQ", kind, 16 + len(content), time.monotonic_ns()) + content
