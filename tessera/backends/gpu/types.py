"""Gives LLVM's types and literals for the language's element types.

In registers: int1 is i1, 8-bit floats are i8 (their bits), pointers are in the global address space. In memory int1 is
a byte.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from tessera.dtypes import (
    NanEncoding,
    bfloat16,
    dtype,
    float16,
    float32,
    float64,
    int1,
    pointer_type,
)

POINTER = "ptr addrspace(1)"


def llvm_type(elem: Any) -> str:
    """The type of one element in a register."""
    if isinstance(elem, pointer_type):
        return POINTER
    return elem.llvm


def memory_bits(elem: Any) -> int:
    return max(elem.bits, 8)


def is_native_float(elem: Any) -> bool:
    return elem.is_standard_floating()


def literal(elem: Any, value: Any) -> str:
    """A constant of `elem`; floats round to it, integers are written signed."""
    if isinstance(elem, pointer_type):
        return "null" if value == 0 else f"inttoptr (i64 {int(value)} to {POINTER})"
    assert isinstance(elem, dtype)
    if elem is int1:
        return "true" if value else "false"
    if not elem.is_floating():
        bits = int(value) & ((1 << elem.bits) - 1)
        return str(bits - (1 << elem.bits) if bits >> (elem.bits - 1) else bits)
    return float_literal(elem, float(value))


def float_literal(elem: dtype, value: float) -> str:
    if elem is float64:
        return f"0x{struct.pack('>d', value).hex().upper()}"
    if elem is float32:
        return f"0x{struct.pack('>d', round_float32(value)).hex().upper()}"
    if elem is float16:
        return f"0xH{float16_bits(value):04X}"
    if elem is bfloat16:
        return f"0xR{bfloat16_bits(value):04X}"
    return str(float8_bits(elem, value))


def round_float32(value: float) -> float:
    try:
        return struct.unpack(">f", struct.pack(">f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def float16_bits(value: float) -> int:
    try:
        return struct.unpack(">H", struct.pack(">e", value))[0]
    except OverflowError:
        return 0xFC00 if value < 0 else 0x7C00


def bfloat16_bits(value: float) -> int:
    bits = struct.unpack(">I", struct.pack(">f", round_float32(value)))[0]
    if value != value:
        return (bits >> 16) | 0x40
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def float8_bits(elem: dtype, value: float) -> int:
    """Nearest 8-bit float, ties to even, saturated to the largest finite number; as a signed byte."""
    codes = _float8_values(elem)
    if value != value:
        return next((c - 256 if c > 127 else c for c, v in codes if v != v), 0x7F)
    finite = [(abs(v - value), c & 1, c) for c, v in codes if v == v and not math.isinf(v)]
    sign = math.copysign(1.0, value) < 0
    same = [t for t in finite if (t[2] > 127) == sign or elem.nans is NanEncoding.NEGATIVE_ZERO]
    code = min(same or finite)[2]
    return code - 256 if code > 127 else code


def _float8_values(elem: dtype) -> list[tuple[int, float]]:
    return [(code, float8_value(elem, code)) for code in range(256)]


def float8_value(elem: dtype, code: int) -> float:
    """The number that the bits `code` of an 8-bit float stand for."""
    mantissa, bias = elem.mantissa, elem.bias
    sign = -1.0 if code & 0x80 else 1.0
    exponent, fraction = (code & 0x7F) >> mantissa, code & ((1 << mantissa) - 1)
    top = (1 << (7 - mantissa)) - 1
    if elem.nans is NanEncoding.NEGATIVE_ZERO and code == elem.nan_code:
        return math.nan
    if elem.nans is NanEncoding.ALL_ONES and code & 0x7F == elem.nan_code:
        return math.nan
    if elem.nans is NanEncoding.IEEE and exponent == top:
        return math.nan if fraction else sign * math.inf
    if exponent == 0:
        return sign * math.ldexp(fraction, 1 - bias - mantissa)
    return sign * math.ldexp((1 << mantissa) + fraction, exponent - bias - mantissa)
