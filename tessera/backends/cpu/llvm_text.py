"""Writes parts of the LLVM IR of CPUs: the types of elements in registers and in memory, constants."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.backends.elements import literals
from tessera.backends.elements.literals import vector_type
from tessera.dtypes import dtype
from tessera.ir.types import Type

# Floats narrower than 32 bits are integers of their width in the IR: conversions are explicit (elements/casts.py).
ATTRIBUTES = '"no-trapping-math"="true" "prefer-vector-width"="512"'  # of every function
_SCALARS = {"fp32": "float", "fp64": "double"}


def scalar_type(t: Type) -> str:
    """Return the LLVM type of a value of scalar type `t` in a register."""
    return _SCALARS.get(t.name) or f"i{t.bits}" if isinstance(t, dtype) else "ptr"


def memory_type(t: Type) -> str:
    """Return the LLVM type of `t` in memory: int1 takes a byte."""
    return "i8" if isinstance(t, dtype) and t.bits == 1 else scalar_type(t)


def lane_type(t: Type, lanes: int) -> str:
    return vector_type(scalar_type(t), lanes)


def is_literal(text: str) -> bool:
    """Whether an operand's text is a constant."""
    return not text.startswith("%")


def vector_literal(element: str, items: Sequence[object]) -> str:
    return "<" + ", ".join(f"{element} {x}" for x in items) + ">"


def literal(value: float | bool | int, t: Type) -> str:
    """Return a scalar constant of type `t`."""
    return literals.literal(value, t, scalar_type(t))


def quoted(text: str) -> tuple[str, int]:
    """Return a C string constant and its length in bytes, including the final zero."""
    data = text.encode() + b"\0"
    body = "".join(chr(b) if 32 <= b < 127 and b not in (34, 92) else f"\\{b:02X}" for b in data)
    return f'c"{body}"', len(data)
