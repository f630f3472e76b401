"""Reads machine code by source line: the instructions of a cubin through its table of lines (DWARF), without a
disassembler; of a CPU's object code, the LLVM IR that it is made of, whose comments name lines."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from tessera.backends.elf import sections
from tessera.backends.line_table import line_rows

INSTRUCTION = 16  # bytes, of a GPU of compute capability 7.0 and newer
OPCODE_BITS = 0xFFF
# Opcodes of SASS by what they do (compute capability 8.0 and 9.0, as nvdisasm shows their bits).
SPILLS = {0x387: "spill stores", 0x983: "spill loads"}  # STL, LDL
KINDS = {
    0x981: "global loads", 0x986: "global stores", 0xFAE: "asynchronous copies", 0x5B4: "TMA loads",
    0x3B5: "TMA stores", 0x984: "shared loads", 0x83B: "shared loads", 0x388: "shared stores",
    0x988: "shared stores", 0x844: "shared stores", 0x23C: "matrix instructions", 0x23B: "matrix instructions",
    0x237: "matrix instructions", 0x23F: "matrix instructions", 0x9F0: "matrix instructions",
    0xB1D: "barriers", 0x51D: "barriers",
    **SPILLS,
}  # fmt: skip


@dataclass(slots=True)
class LineCode:
    """Machine code of one source line: how many instructions, and how many of each kind that counts in reports;
    `registers`: the most that are live at one of them, 0 if that is not known."""

    instructions: int = 0
    registers: int = 0
    kinds: dict[str, int] = field(default_factory=dict[str, int])

    def note(self, kind: str | None, registers: int = 0) -> None:
        self.instructions += 1
        self.registers = max(self.registers, registers)
        if kind is not None:
            self.kinds[kind] = self.kinds.get(kind, 0) + 1

    @property
    def spills(self) -> int:
        return sum(self.kinds.get(kind, 0) for kind in SPILLS.values())


ByLine = dict[tuple[str, int], LineCode]  # (name of the file without its folder, line)


LIVE = re.compile(r"^\s+/\*([0-9a-f]{4,6})\*/.*?// \|\s*(\d+)\s*\|", re.M)


def live_by_address(listing: str, kernel: str) -> dict[int, int]:
    """Return how many registers are live at each instruction of a kernel, by its address, from what
    `nvdisasm --life-range-mode count` prints."""
    part = listing.partition(f"\n.text.{kernel}:")[2].partition("\n//-----")[0]
    return {int(m[1], 16): int(m[2]) for m in LIVE.finditer(part)}


def cubin_by_line(cubin: bytes, kernel: str, live: Mapping[int, int]) -> ByLine:
    """Return the instructions of a kernel in a cubin by source line; `live`: registers by address, as far as they are
    known. Empty if it has no line information."""
    parts = {s.name: s for s in sections(cubin)}
    code, table = parts.get(f".text.{kernel}"), parts.get(".debug_line")
    if code is None or table is None:
        return {}
    rows = [r for r in line_rows(table.data) if r[0] < len(code.data)]
    found: ByLine = {}
    for (start, file, line), (end, *_) in pairwise([*rows, (len(code.data), "", 0)]):
        for at in range(start, end, INSTRUCTION):
            opcode = struct.unpack_from("<Q", code.data, at)[0] & OPCODE_BITS
            code_of_line = found.setdefault((file, line), LineCode())
            code_of_line.note(KINDS.get(opcode), live.get(at, 0))
    return found


# --- text with lines ------------------------------------------------------------------------------------------------
PTX_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]+)"', re.M)
PTX_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)")


def ptx_lines(ptx: str) -> list[tuple[str, int] | None]:
    """Return the source line of each line of PTX, None where it has none."""
    files = {int(n): path.rsplit("/", 1)[-1] for n, path in PTX_FILE.findall(ptx)}
    here: tuple[str, int] | None = None
    found: list[tuple[str, int] | None] = []
    for text in ptx.splitlines():
        said = PTX_LOC.match(text)
        if said is not None:
            here = (files.get(int(said[1]), ""), int(said[2]))
        if text.startswith("}"):
            here = None
        found.append(here)
    return found


def ptx_by_line(ptx: str) -> ByLine:
    """Return the instructions of PTX by source line."""
    found: ByLine = {}
    for text, where in zip(ptx.splitlines(), ptx_lines(ptx), strict=True):
        if (
            where is not None
            and text.startswith("\t")
            and text.rstrip().endswith(";")
            and "." in text
        ):
            found.setdefault(where, LineCode()).note(None)
    return found


LLIR_PLACE = re.compile(r"^\s*; (\S.*:\d+)$")


def llir_lines(llir: str) -> list[tuple[str, int] | None]:
    """Return the source line of each line of a CPU's LLVM IR, the innermost of inlined calls."""
    here: tuple[str, int] | None = None
    found: list[tuple[str, int] | None] = []
    for text in llir.splitlines():
        said = LLIR_PLACE.match(text)
        if said is not None:
            file, _, line = said[1].split(" > ")[-1].rpartition(":")
            here = (file, int(line))
        if text.startswith("}"):
            here = None
        found.append(here)
    return found


def llir_by_line(llir: str) -> ByLine:
    """Return the instructions of a CPU's LLVM IR by source line, and how many of them are on vectors."""
    found: ByLine = {}
    for text, where in zip(llir.splitlines(), llir_lines(llir), strict=True):
        code = text.strip()
        if where is None or not code or code.startswith(";") or code.endswith(":"):
            continue
        found.setdefault(where, LineCode()).note("vectors" if " x " in code else None)
    return found
