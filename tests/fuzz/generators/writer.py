"""Writes a kernel's text by sections, and collects the arguments that it names."""

from __future__ import annotations

import re
from typing import Any

from tests.fuzz.case import Array, Case, Descriptor

TL = {
    "fp32": "tl.float32", "fp16": "tl.float16", "bf16": "tl.bfloat16", "fp64": "tl.float64", "i8": "tl.int8",
    "i16": "tl.int16", "i32": "tl.int32", "i64": "tl.int64", "u8": "tl.uint8", "u16": "tl.uint16", "u32": "tl.uint32",
    "u64": "tl.uint64", "fp8e4nv": "tl.float8e4nv", "fp8e5": "tl.float8e5", "i1": "tl.int1",
}  # fmt: skip
# Every integer up to this magnitude is exact in the type.
EXACT = {
    "fp32": 2**24, "fp16": 2**11, "bf16": 2**8, "fp64": 2**53, "fp8e4nv": 16, "fp8e5": 8, "tf32": 2**11, "i8": 127,
    "i32": 2**31 - 1, "u8": 255, "i16": 2**15 - 1,
}  # fmt: skip
HEAD = ["import tessera", "import tessera.language as tl", "", ""]


class Inexact(Exception):
    """With these data a sum would depend on its order."""


class Writer:
    """The parts of one kernel. `line` appends to the section `at`."""

    def __init__(self) -> None:
        self.sections: dict[str, list[str]] = {}
        self.arrays: list[Array] = []
        self.descriptors: list[Descriptor] = []
        self.scalars: dict[str, Any] = {}
        self.order: list[str] = []

    def line(self, at: str, text: str) -> None:
        self.sections.setdefault(at, []).append(text)

    def array(self, name: str, dtype: str, size: int, **how: Any) -> str:
        self.arrays.append(Array(name, dtype, max(size, 1), **how))
        self.order.append(name)
        return name

    def scalar(self, name: str, value: Any) -> str:
        self.scalars[name] = value
        self.order.append(name)
        return name

    def descriptor(self, base: str, shape: list[int], strides: list[int], block: list[int]) -> str:
        """The array argument `base` becomes a descriptor of it."""
        name = f"d_{base}"
        self.descriptors.append(Descriptor(name, base, shape, strides, block))
        self.order[self.order.index(base)] = name
        return name

    def text(self, body: list[str], annotations: dict[str, str] | None = None) -> str:
        types = annotations or {}
        params = [f"{p}: {types[p]}" if p in types else p for p in self.order]
        lines = [*HEAD, "@tessera.jit", f"def kernel({', '.join(params)}):"]
        return "\n".join([*lines, *("    " + x for x in body), ""])

    def twins(self, body: list[str]) -> list[str]:
        """The kernel, and the one over magnitudes: of «this¦that» the first has this, the other that."""
        text = self.text(body)
        return [re.sub("«(.*?)¦(.*?)»", rf"\{i}", text) for i in (1, 2)]

    def case(
        self, family: str, seed: int, features: dict[str, Any], text: str, **more: Any
    ) -> Case:
        return Case(
            family, seed, features, text, self.arrays, self.order, self.scalars, self.descriptors, **more,
        )  # fmt: skip


def indented(lines: list[str], by: int = 1) -> list[str]:
    return ["    " * by + x for x in lines]
