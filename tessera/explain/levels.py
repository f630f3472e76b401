"""Relates texts of all levels, from tile IR to machine code, to source lines."""

from __future__ import annotations

import re
from posixpath import basename

from tessera.analysis.reports import LineReport
from tessera.backends.nvidia.ptxas import disassemble
from tessera.compiler.kernel import CompiledKernel
from tessera.errors import TesseraError
from tessera.explain.machine_code import (
    ByLine,
    cubin_by_line,
    live_by_address,
    llir_by_line,
    llir_lines,
    ptx_by_line,
    ptx_lines,
)
from tessera.ir import Op

SASS_PLACE = re.compile(r'//## File "([^"]+)", line (\d+)')
Keys = list[tuple[str, int] | None]


def code_by_line(kernel: CompiledKernel, llir: str) -> tuple[ByLine, str]:
    """Return the kernel's machine code by source line, and what kind of code it is."""
    if "cubin" in kernel.asm:
        listing = _sass(kernel.asm["cubin"], ["-lrm", "count"])
        live = live_by_address(listing, kernel.name)
        found = cubin_by_line(kernel.asm["cubin"], kernel.name, live)
        return (found, "SASS") if found else (ptx_by_line(kernel.asm["ptx"]), "PTX")
    return llir_by_line(llir), "LLVM IR"


def levels_of(
    kernel: CompiledKernel, texts: dict[str, tuple[str, dict[Op, int]]], places: dict[str, dict[int, tuple[str, int]]],
    lines: list[LineReport], llir: str,
) -> dict[str, tuple[str, list[int]]]:  # fmt: skip
    """Return the text of each level, and the index of the source line of each of its lines (-1: none)."""
    index = {(basename(x.file), x.line): i for i, x in enumerate(lines)}
    found: dict[str, tuple[str, list[int]]] = {}

    def add(level: str, text: str, keys: Keys) -> None:
        found[level] = (
            text,
            [-1 if k is None else index.get((basename(k[0]), k[1]), -1) for k in keys],
        )

    for level, (text, _) in texts.items():
        count = len(text.splitlines())
        add(level, text, [places[level].get(n + 1) for n in range(count)])
    if "ptx" in kernel.asm:
        add("ptx", kernel.asm["ptx"], ptx_lines(kernel.asm["ptx"]))
        sass = _sass(kernel.asm["cubin"], ["-g"])
        if sass:
            add("sass", sass, sass_lines(sass))
    else:
        add("llir", llir, llir_lines(llir))
        assembly: str = kernel.asm["asm"]
        add("asm", assembly, [None] * len(assembly.splitlines()))
    return found


def _sass(cubin: bytes, options: list[str]) -> str:
    try:
        return disassemble(cubin, options)
    except TesseraError:  # there is no disassembler, or one without the options
        return ""


def sass_lines(sass: str) -> Keys:
    here: tuple[str, int] | None = None
    found: Keys = []
    for text in sass.splitlines():
        said = SASS_PLACE.search(text)
        if said is not None:
            here = (basename(said[1]), int(said[2]))
        found.append(here)
    return found
