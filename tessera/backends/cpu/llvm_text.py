"""Spells parts of LLVM IR as text: types of element types, literals, vector constants."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

from tessera.dtypes import NanEncoding, dtype, float16, float32, float64

# Floats narrower than 32 bits are integers of their width in the IR: conversions are explicit (casts.py).
ATTRIBUTES = '"no-trapping-math"="true" "prefer-vector-width"="512"'  # of every function
_SCALARS = {"fp32": "float", "fp64": "double"}


def scalar_type(t: Any) -> str:
    """LLVM type of a value of scalar type `t` in a register."""
    if not isinstance(t, dtype):
        return "ptr"
    return _SCALARS.get(t.name) or f"i{t.bits}"


def memory_type(t: Any) -> str:
    """LLVM type of `t` in memory: int1 takes a byte."""
    return "i8" if isinstance(t, dtype) and t.bits == 1 else scalar_type(t)


def vector_type(element: str, lanes: int) -> str:
    """`element` itself for one lane."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def lane_type(t: Any, lanes: int) -> str:
    return vector_type(scalar_type(t), lanes)


def is_literal(text: str) -> bool:
    """Whether an operand's text is a constant."""
    return not text.startswith("%")


def float_literal(x: float, t: dtype) -> str:
    """The bits of the double (rounded to single for fp32), which LLVM reads exactly."""
    if t is float32:
        if math.isinf(x) or math.isnan(x):
            x = float(x)
        else:
            try:
                x = struct.unpack("f", struct.pack("f", x))[0]
            except OverflowError:
                x = math.copysign(math.inf, x)
    return "0x" + struct.pack(">d", x).hex().upper()


def splat_literal(element: str, text: str, lanes: int) -> str:
    """A constant in every lane."""
    if lanes == 1:
        return text
    if text in ("zeroinitializer", "0", "null", "false"):
        return "zeroinitializer"
    return f"splat ({element} {text})"


def vector_literal(element: str, items: Sequence[Any]) -> str:
    return "<" + ", ".join(f"{element} {x}" for x in items) + ">"


def encode_small_float(x: float, t: dtype) -> int:
    """Bits of `x` in a 16- or 8-bit format: nearest even; 8-bit formats saturate."""
    sign = 0x80 if t.bits == 8 else 0x8000
    s = sign if math.copysign(1.0, x) < 0 else 0
    if math.isnan(x):
        return 0x7E00 if t is float16 else t.nan_code
    a = abs(x)
    if t.bits == 8:
        a = min(a, t.largest)
    elif math.isinf(a):
        return s | t.largest_code + 1
    code = min(_round_code(a, t), t.largest_code + (1 if t.bits == 16 else 0))
    return 0 if code == 0 and t.nans is NanEncoding.NEGATIVE_ZERO else s | code


def _round_code(a: float, t: dtype) -> int:
    if a == 0:
        return 0
    exponent = max(math.frexp(a)[1] - 1, 1 - t.bias)
    scaled = a / math.ldexp(1.0, exponent - t.mantissa)  # exact: a power of two
    return ((exponent + t.bias - 1) << t.mantissa) + round(scaled)


def literal(value: float | bool | int, t: Any) -> str:
    """A scalar constant of type `t`."""
    if not isinstance(t, dtype):
        return "null" if value == 0 else f"inttoptr (i64 {int(value)} to ptr)"
    if t in (float32, float64):
        return float_literal(float(value), t)
    if t.is_floating():
        return str(encode_small_float(float(value), t))
    if t.bits == 1:
        return "true" if value else "false"
    return str(int(value))


def quoted(text: str) -> tuple[str, int]:
    """A C string constant and its length in bytes, the final zero counted."""
    data = text.encode() + b"\0"
    body = "".join(chr(b) if 32 <= b < 127 and b not in (34, 92) else f"\\{b:02X}" for b in data)
    return f'c"{body}"', len(data)
