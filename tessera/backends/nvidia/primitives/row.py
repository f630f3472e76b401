"""Defines a row of the table of primitives: one instruction with its operands, its text and its meaning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from tessera.backends.gpu.writer import Writer

if TYPE_CHECKING:
    from tessera.backends.nvidia.simulator import machine

__all__ = [
    "FAMILIES", "NOTE", "PRIMITIVES", "Primitive", "braces", "emit_primitive", "letter", "struct",
]  # fmt: skip

Lanes = np.ndarray  # the lanes are the first axis
Values = Lanes | tuple[Lanes, ...] | None
Machine: TypeAlias = "machine.Machine"
Meaning = Callable[[Lanes], Lanes] | Callable[[Lanes, Lanes], Lanes]
Action = (
    Callable[[Machine], Values] | Callable[[Machine, Lanes], Values] | Callable[[Machine, Lanes, Lanes], Values]
    | Callable[[Machine, Lanes, Lanes, Lanes], Values] | Callable[[Machine, Lanes, Lanes, Lanes, Lanes], Values]
)  # fmt: skip
Maker = TypeVar("Maker", bound=Callable[..., "Primitive"])
NOTE = "; primitive "


@dataclass(frozen=True, slots=True)
class Primitive:
    """One instruction. `operands` and `result` are LLVM types; `pure` ones may be merged and removed.

    `meaning` takes one NumPy array per operand, whose first axis is the lanes, and returns the result of all lanes, or
    a tuple of them. For an instruction that does more than compute, it takes the machine first (`uses_machine`): see
    `simulator.machine.Machine` for what it can do there. Operands that are tied to results come first, as in the text.
    `note` says how a family made the row: the module that uses the row has it in a comment.
    """

    name: str
    operands: tuple[str, ...]
    result: str
    text: str
    constraints: str = ""
    pure: bool = True
    meaning: Action | Meaning | None = None
    uses_machine: bool = False
    note: str = ""

    def emit(self, w: Writer, args: Sequence[str]) -> str:
        """Write the instruction, and return the result's name, "" for void."""
        if self.note:
            w.module.declare(self.note)
        typed = [f"{t} {a}" for t, a in zip(self.operands, args, strict=True)]
        if self.constraints or not self.text.startswith("llvm."):
            return w.asm(self.text, self.constraints, typed, self.result, pure=self.pure)
        if self.result == "void":
            w.call_void(self.text, typed)
            return ""
        return w.call(self.result, self.text, typed, pure=self.pure)


PRIMITIVES: dict[str, Primitive] = {}
FAMILIES: dict[str, Callable[..., Primitive]] = {}


def row(
    name: str,
    operands: Sequence[str],
    result: str,
    text: str,
    constraints: str = "",
    *,
    pure: bool = True,
    meaning: Meaning | None = None,
    machine: Action | None = None,
) -> None:
    """Add a row. `machine`: the meaning of an instruction that needs the machine."""
    PRIMITIVES[name] = Primitive(
        name, tuple(operands), result, text, constraints, pure, meaning or machine, machine is not None
    )  # fmt: skip


def family(maker: Maker) -> Maker:
    """Register a function that makes a row from literals: vector widths, offsets, shapes."""
    name = maker.__name__

    @lru_cache(maxsize=1024)
    def made(*args: object, **options: object) -> Primitive:
        written = [repr(x) for x in args] + [f"{k}={x!r}" for k, x in options.items()]
        return replace(maker(*args, **options), note=f"{NOTE}{name}({', '.join(written)})")

    FAMILIES[name] = made
    return made  # type: ignore[return-value]


def emit_primitive(w: Writer, name: str, *args: str) -> str:
    """Write the row `name` of the table, and return the result's name, "" for void."""
    return PRIMITIVES[name].emit(w, args)


LETTERS = {"float": "f", "double": "d", "i64": "l", "i32": "r", "i16": "h", "i8": "r", "half": "h"}


def letter(type: str) -> str:
    """Return the constraint letter of an LLVM type."""
    return "l" if type.startswith("ptr") else LETTERS[type]


def struct(type: str, count: int) -> str:
    return type if count == 1 else "{" + ", ".join([type] * count) + "}"


def braces(first: int, count: int) -> str:
    """Return the PTX operand list {$first, ...}; a single operand has no braces."""
    return listed(first, count) if count > 1 else f"${first}"


def listed(first: int, count: int) -> str:
    return "{" + ",".join([f"${first + i}" for i in range(count)]) + "}"
