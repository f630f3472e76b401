"""Reads machine code by source line: the instructions of a cubin through its table of lines (DWARF), without a
disassembler; of a CPU's object code, the LLVM IR that it is made of, whose comments name lines."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tessera.backends.elf import sections

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
    for (start, file, line), following in zip(rows, [*rows[1:], None], strict=True):
        end = len(code.data) if following is None else following[0]
        for at in range(start, max(start, end), INSTRUCTION):
            opcode = struct.unpack_from("<Q", code.data, at)[0] & OPCODE_BITS
            code_of_line = found.setdefault((file, line), LineCode())
            code_of_line.note(KINDS.get(opcode), live.get(at, 0))
    return found


# --- DWARF's table of lines -------------------------------------------------------------------------------------
class Reader:
    """Reads numbers from bytes."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def fixed(self, form: str) -> int:
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def unsigned(self) -> int:
        """Read a number in LEB128."""
        value = shift = 0
        while True:
            byte = self.fixed("B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    def signed(self) -> int:
        start = self.at
        value = self.unsigned()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) & 1 else value

    def text(self) -> str:
        end = self.data.index(b"\0", self.at)
        found = self.data[self.at : end].decode(errors="replace")
        self.at = end + 1
        return found


def line_rows(data: bytes) -> list[tuple[int, str, int]]:
    """Return the rows (address, file, line) of a `.debug_line` section in versions 2 to 4, by address."""
    found: list[tuple[int, str, int]] = []
    at = 0
    while at + 4 < len(data):
        r = Reader(data, at)
        length = r.fixed("I")
        end = r.at + length
        if r.fixed("H") <= 4:
            found += _program(r, end)
        at = end
    return sorted(found)


def _files(r: Reader) -> list[str]:
    while r.text():  # folders
        pass
    names = [""]
    while name := r.text():
        names.append(name.rsplit("/", 1)[-1])
        for _ in range(3):
            r.unsigned()
    return names


def _program(r: Reader, end: int) -> Iterator[tuple[int, str, int]]:
    """Run the program of one unit: the state machine of section 6.2 of DWARF 4."""
    version = struct.unpack_from("<H", r.data, r.at - 2)[0]
    header = r.fixed("I")
    start = r.at + header
    least = r.fixed("B")
    if version >= 4:
        r.fixed("B")
    r.fixed("B")
    base, span, first = r.fixed("b"), r.fixed("B"), r.fixed("B")
    lengths = [r.fixed("B") for _ in range(first - 1)]
    files = _files(r)
    r.at = start
    address, file, line = 0, 1, 1
    while r.at < end:
        op = r.fixed("B")
        if op >= first:  # a special opcode advances both and adds a row
            address += (op - first) // span * least
            line += base + (op - first) % span
            yield address, files[file], line
        elif op == 0:
            size = r.unsigned()
            following = r.at + size
            kind = r.fixed("B")
            if kind == 2:  # the address
                address = r.fixed("Q")
            elif kind == 1:  # the end of a sequence
                address, file, line = 0, 1, 1
            r.at = following
        elif op == 1:
            yield address, files[file], line
        elif op == 2:
            address += r.unsigned() * least
        elif op == 3:
            line += r.signed()
        elif op == 4:
            file = r.unsigned()
        elif op == 8:
            address += (255 - first) // span * least
        elif op == 9:
            address += r.fixed("H")
        else:
            for _ in range(lengths[op - 1]):
                r.unsigned()


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
