"""Maps the language's element types to LLVM types, and constants to LLVM literals.

In registers, int1 is i1, 8-bit floats are i8 (their bits), and pointers are in the global address space. In memory,
int1 is a byte.
"""

from __future__ import annotations

from typing import Any

from tessera.backends.elements import literals
from tessera.dtypes import dtype, int1, pointer_type
from tessera.ir import ElementType

POINTER = "ptr addrspace(1)"


def llvm_type(elem: ElementType) -> str:
    """Return the type of one element in a register."""
    return POINTER if isinstance(elem, pointer_type) else elem.llvm


def memory_bits(elem: ElementType) -> int:
    return max(elem.bits, 8)


def is_native_float(elem: ElementType) -> bool:
    return elem.is_standard_floating()


def literal(elem: Any, value: Any) -> str:
    """Return a constant of `elem`; floats are rounded to it, integers are written as signed."""
    t = llvm_type(elem)
    if isinstance(elem, dtype) and elem.is_int() and elem is not int1:
        bits = int(value) & ((1 << elem.bits) - 1)
        value = bits - (1 << elem.bits) if bits >> (elem.bits - 1) else bits
    return literals.literal(value, elem, t)
