"""Reads tables of source lines (DWARF's `.debug_line`) of cubins and of objects of the host."""

from __future__ import annotations

import struct
from collections.abc import Iterator


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
