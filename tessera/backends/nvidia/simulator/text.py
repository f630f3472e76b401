"""Reads the LLVM IR that the lowering writes: functions, constants, tables, source lines."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from tessera.backends.nvidia.primitives.lanes import FLOAT, bits_of, from_raw, mask_int
from tessera.backends.nvidia.primitives.row import Lanes

# What a slot holds: lanes, a global's name, the values of a struct, None before it is written.
Value: TypeAlias = "Lanes | str | tuple[Value, ...] | None"
VECTOR = re.compile(r"<(\d+) x (\w+)>")
DEBUG = re.compile(r",? !dbg !(\d+)")


def split_args(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts: list[str] = []
    depth = start = 0
    for i, c in enumerate(text):
        if c in "([{<":
            depth += 1
        elif c in ")]}>":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def typed(text: str) -> tuple[str, str]:
    """Return (type, value) of `ptr addrspace(1) align 16 %x`."""
    if "align" in text or '"' in text:
        text = re.sub(r"\balign \d+ |byval\(.*?\) |\"[\w.]+\" ", "", text)
    type, _, value = text.rpartition(" ")
    return ("ptr" if type.startswith("ptr") else type), value


def vector_of(type: str) -> tuple[int, str]:
    """Return how many elements a type has (0: it is no vector), and their type."""
    found = VECTOR.match(type)
    return (int(found[1]), found[2]) if found else (0, type)


def _one(pattern: str, text: str) -> str:
    """Return the group of a pattern that the text must contain."""
    found = re.search(pattern, text)
    assert found is not None, f"no {pattern} in {text}"
    return found[1]


class Function:
    """A function's name, its parameters (type, name), and its blocks' lines with the number of their source
    location."""

    def __init__(self, text: str) -> None:
        lines = text.splitlines()
        head = DEBUG.sub("", lines[0])
        self.name = _one(r"@([\w.]+)\(", head)
        start = head.index("(", head.index("@")) + 1
        inside = _one(r"(.*?)\) (?:nounwind|\{)", head[start:])
        self.params = [typed(p) for p in split_args(inside)]
        self.blocks: dict[str, list[tuple[str, int]]] = {}
        block = "entry"
        for line in lines[1:-1]:
            if line.endswith(":"):
                block = line[:-1]
                self.blocks[block] = []
                continue
            number = -1
            found = DEBUG.search(line)
            if found:
                number, line = int(found[1]), line[: found.start()]
            self.blocks[block].append((line.strip(), number))


def functions_of(ir: str) -> dict[str, Function]:
    found = [Function(x[0]) for x in re.finditer(r"^define .*?^\}", ir, re.M | re.S)]
    return {f.name: f for f in found}


def tables_of(ir: str) -> dict[str, np.ndarray]:
    """Return the constant arrays of i64 by name."""
    found: dict[str, np.ndarray] = {}
    for name, values in re.findall(r"^(@[\w.]+) = .*? constant \[\d+ x i64\] \[(.*)\]", ir, re.M):
        numbers = [int(v.split()[1]) & (2**64 - 1) for v in values.split(",")]
        found[name] = np.array(numbers, np.uint64)
    return found


def strings_of(ir: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, text in re.findall(r"^(@\w+) = .*? constant \[\d+ x i8\] c\"(.*)\\00\"", ir, re.M):
        plain = re.sub(r"\\([0-9A-F]{2})", lambda m: chr(int(m[1], 16)), text)
        found[name] = plain.encode("latin-1").decode("utf-8")
    return found


def lines_of(ir: str) -> dict[int, str]:
    """Return `file:line` of the locations by number; those of inlined functions follow those of their calls."""
    nodes = dict(re.findall(r"^!(\d+) = (.*)$", ir, re.M))
    found: dict[int, str] = {}

    def line(number: str) -> str:
        text = nodes[number]
        scope = _one(r"scope: !(\d+)", text)
        file = re.search(r"file: !(\d+)", nodes.get(scope, ""))
        name = re.search(r'filename: "(.*?)"', nodes.get(file[1], "")) if file else None
        at = _one(r"line: (\d+)", text)
        here = f"{name[1] if name else '?'}:{at}"
        call = re.search(r"inlinedAt: !(\d+)", text)
        outer = line(call[1]) if call else ""
        return here if not outer or outer == here else f"{outer} > {here}"

    for number, text in nodes.items():
        if text.startswith("!DILocation"):
            found[int(number)] = line(number)
    return found


# --- constants ----------------------------------------------------------------------------------------------------
def full(type: str, value: float | np.ndarray, threads: int) -> np.ndarray:
    if type in FLOAT:
        return np.full(threads, value, FLOAT[type])
    return np.full(threads, int(value) & (2**64 - 1), np.uint64)


def poison(type: str, threads: int) -> np.ndarray:
    """Return the content of a register that was never written."""
    bits = min(bits_of(type), 64)
    return from_raw(type, np.full(threads, (1 << bits) - 1, np.uint64))


def lanes_of(type: str, make: Callable[[str], np.ndarray]) -> np.ndarray:
    """Make a value of a type; for a vector, make one of the element's type for each element."""
    count, elem = vector_of(type)
    return np.stack([make(elem)] * count, axis=1) if count else make(type)


def constant(type: str, text: str, threads: int) -> Value:
    """Return the value of a constant for all threads; names of globals stay names."""
    if text in ("poison", "undef"):
        return () if type.startswith("{") else lanes_of(type, lambda elem: poison(elem, threads))
    if text == "zeroinitializer":
        return lanes_of(type, lambda elem: full(elem, 0, threads))
    if text.startswith("inttoptr"):
        return full("i64", int(_one(r"i64 (\d+)", text)), threads)
    if text in ("true", "false", "null"):
        return full("i64", text == "true", threads)
    if text.startswith("@"):
        return text
    if type in FLOAT:
        return full(type, float_value(text), threads)
    return mask_int(full("i64", int(text), threads), bits_of(type))


def float_value(text: str) -> float:
    if text.startswith("0xH"):
        return struct.unpack(">e", bytes.fromhex(text[3:]))[0]
    if text.startswith("0xR"):
        return struct.unpack(">f", bytes.fromhex(text[3:] + "0000"))[0]
    return struct.unpack(">d", bytes.fromhex(text[2:]))[0] if text.startswith("0x") else float(text)
