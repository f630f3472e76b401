"""Tells `perf` the names of kernels on the CPU, by the file /tmp/perf-PID.map that it reads for generated code."""

from __future__ import annotations

import os
from pathlib import Path

from tessera.backends.elf import sections

FOLDER = Path("/tmp")


def note_symbol(name: str, address: int, image: bytes) -> Path:
    """Add a kernel to the map: where its code begins, and the size of the code in its object file."""
    size = sum(len(s.data) for s in sections(image) if s.name.startswith(".text"))
    path = FOLDER / f"perf-{os.getpid()}.map"
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{address:x} {size:x} tessera::{name}\n")
    return path
