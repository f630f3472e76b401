"""Compares two recordings: which kernels differ, at which level, with figures and a diff of each."""

from __future__ import annotations

import difflib
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from tessera.errors import TesseraError
from tessera.tools.disasm import get_sass

CODE = (
    "llir",
    "ptx",
    "cubin",
    "object",
)  # levels that must be equal; tile and GPU IR are only shown
# Text that is irrelevant for a kernel: LLVM IR's comments name our primitives and source lines; in PTX, LLVM numbers
# all calls of the process; remarks in IR name source files in temporary folders.
NOISE = {
    "tir": re.compile(rb"(?<![^\s'\"])(?:/[^\s'\":/]+)+/(?=[^\s'\":/]+\.py:)"),
    "llir": re.compile(rb"^ *;.*\n", re.M),
    "ptx": re.compile(rb"//.*"),
}
NOISE["gir"] = NOISE["tir"]
NUMBERS = ("registers", "spills", "shared", "warps", "scratch_bytes")
UNITS = {
    "spills": " bytes spilled",
    "shared": " bytes shared",
    "scratch_bytes": " bytes of scratch",
}


class Recording:
    """A file of the recorder: facts by key, and the products."""

    def __init__(self, path: Path):
        self.archive = zipfile.ZipFile(path)
        self.index: dict[str, dict[str, Any]] = json.loads(self.archive.read("index.json"))

    def product(self, key: str, level: str) -> bytes:
        return self.archive.read(f"{key}/{level}") if level in self.levels(key) else b""

    def levels(self, key: str) -> list[str]:
        return self.index[key].get("levels", [])

    def seconds(self, keys: set[str]) -> float:
        return sum(self.index[key].get("seconds", 0.0) for key in keys)


def without_noise(product: bytes, level: str) -> bytes:
    """Return the product without comments and without the folders of source files, for comparisons."""
    noise = NOISE.get(level)
    return noise.sub(b"", product) if noise is not None else product


@dataclass
class Change:
    """One kernel whose code has changed: the levels that differ, and the figures as text."""

    key: str
    levels: list[str]
    notes: list[str]

    def __str__(self) -> str:
        return f"{self.key}: {', '.join(self.levels)}; {', '.join(self.notes)}".rstrip("; ")


@dataclass
class Comparison:
    """The kernels of two recordings, grouped by how they compare."""

    before: Recording
    after: Recording
    identical: list[str] = field(default_factory=list[str])
    changed: list[Change] = field(default_factory=list[Change])
    renamed_ir: list[str] = field(default_factory=list[str])  # same code from other tile or GPU IR
    metadata: dict[str, int] = field(
        default_factory=dict[str, int]
    )  # name → kernels with the same code
    fails: list[str] = field(default_factory=list[str])  # in the same way on both sides

    def __post_init__(self) -> None:
        for key in sorted(self.both):
            self._judge(key, self.before.index[key], self.after.index[key])

    @property
    def both(self) -> set[str]:
        return self.before.index.keys() & self.after.index.keys()

    @property
    def only_before(self) -> list[str]:
        return sorted(self.before.index.keys() - self.after.index.keys())

    @property
    def only_after(self) -> list[str]:
        return sorted(self.after.index.keys() - self.before.index.keys())

    def _judge(self, key: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        if "error" in old or "error" in new:
            if old.get("error") == new.get("error"):
                self.fails.append(f"{key}: {old['error']}")
            else:
                first, then = old.get("error", "compiled"), new.get("error", "compiled")
                self.changed.append(Change(key, ["outcome"], [f"{first} → {then}"]))
            return
        differing = self.differing(key)
        numbers = [n for n in NUMBERS if old.get(n) != new.get(n)]
        if numbers or any(level in CODE for level in differing):
            self.changed.append(Change(key, differing, list(self._notes(key, numbers))))
            return
        self.identical.append(key)
        if differing:
            self.renamed_ir.append(key)
        for name in old["metadata"].keys() | new["metadata"].keys():
            if old["metadata"].get(name) != new["metadata"].get(name):
                self.metadata[name] = self.metadata.get(name, 0) + 1

    def differing(self, key: str) -> list[str]:
        """Return the levels whose products differ."""
        levels = dict.fromkeys([*self.before.levels(key), *self.after.levels(key)])
        return [
            x for x in levels if self._meant(self.before, key, x) != self._meant(self.after, key, x)
        ]

    def _meant(self, recording: Recording, key: str, level: str) -> bytes:
        return without_noise(recording.product(key, level), level)

    def _notes(self, key: str, numbers: list[str]) -> Iterator[str]:
        old, new = self.before.index[key], self.after.index[key]
        for name in numbers:
            yield f"{old.get(name)} → {new.get(name)}{UNITS.get(name, ' ' + name)}"
        for level in CODE:
            sizes = [len(x.product(key, level)) for x in (self.before, self.after)]
            if sizes[0] != sizes[1]:
                yield f"{sizes[0]:,} → {sizes[1]:,} bytes of {level}"
        yield f"{old['seconds'] * 1e3:.0f} → {new['seconds'] * 1e3:.0f} ms"


def summary(found: Comparison, listed: int = 40) -> str:
    """Return the comparison as text: counts, each changed kernel, compile times."""
    parts = {
        "identical": found.identical, "changed": found.changed, "only before": found.only_before,
        "only after": found.only_after, "refused on both sides": found.fails,
    }  # fmt: skip
    lines = [", ".join(f"{len(x)} {name}" for name, x in parts.items() if x) or "no kernels"]
    if found.changed:
        where = Counter(change.key.rpartition("@")[2] for change in found.changed)
        lines.append("  changed on " + ", ".join(f"{name}: {n}" for name, n in where.items()))
    lines += [f"  changed: {x}" for x in found.changed[:listed]]
    if len(found.changed) > listed:
        lines.append(f"  … and {len(found.changed) - listed} more changed")
    for name, keys in (("only before", found.only_before), ("only after", found.only_after)):
        lines += [f"  {name}: {x}" for x in _by_file(keys)]
    if found.renamed_ir:
        lines.append(f"the same code from other tile or GPU IR: {len(found.renamed_ir)} kernels")
    if found.metadata:
        names = ", ".join(f"{k} ({n})" for k, n in sorted(found.metadata.items()))
        lines.append(f"the same code with other metadata: {names}")
    old, new = (x.seconds(found.both) for x in (found.before, found.after))
    lines.append(f"compile time of all: {old:.1f} → {new:.1f} s (one run each, so a rough figure)")
    return "\n".join(lines)


def _by_file(keys: list[str]) -> Iterator[str]:
    """Yield a line for the kernels of each file."""
    for file, found in groupby(keys, lambda key: key.rpartition("/")[0]):
        names = sorted({key.rpartition("/")[2].partition("@")[0] for key in found})
        yield f"{file}: {', '.join(names[:8])}" + (f", … ({len(names)})" if len(names) > 8 else "")


def write_diffs(found: Comparison, folder: Path) -> int:
    """Write a unified diff for each level of each changed kernel, and of other IR; return how many files."""
    count = 0
    folder.mkdir(parents=True, exist_ok=True)
    for key in [*(change.key for change in found.changed), *found.renamed_ir]:
        if "error" in found.before.index[key] or "error" in found.after.index[key]:
            continue
        for level in found.differing(key):
            old, new = (_shown(x.product(key, level), level) for x in (found.before, found.after))
            path = folder / f"{re.sub(r'[^-.@#A-Za-z0-9]+', '_', key)}.{level}.diff"
            lines = difflib.unified_diff(old, new, f"before/{key}", f"after/{key}", lineterm="")
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            count += 1
    return count


def _shown(product: bytes, level: str) -> list[str]:
    """Return the lines of a product; machine code as SASS if it can be disassembled."""
    if level == "object":
        return [f"{len(product)} bytes"]
    if level == "cubin":
        try:
            return get_sass(product).splitlines()
        except (TesseraError, OSError) as error:
            return [f"{len(product)} bytes; not disassembled: {error}"]
    return without_noise(product, level).decode().splitlines()
