"""Reads the sections of ELF files: cubins, and objects of the host."""

from __future__ import annotations

import struct
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """A section of an ELF file: `info` is the number of the section that relocations are for."""

    name: str
    kind: int
    data: bytes
    info: int


def sections(elf: bytes) -> list[Section]:
    """Return the sections of a 64-bit little-endian ELF file. ValueError for anything else."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("this is no 64-bit little-endian ELF file")
    (start,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", elf, start + i * size) for i in range(count)]
    text = elf[heads[names][4] : heads[names][4] + heads[names][5]]
    found: list[Section] = []
    for name, kind, _, _, offset, length, _, info, _, _ in heads:
        data = b"" if kind == 8 else elf[offset : offset + length]  # 8: without contents
        found.append(Section(text[name : text.index(b"\0", name)].decode(), kind, data, info))
    return found
