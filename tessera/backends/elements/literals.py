"""Spells constants of the language's element types in LLVM IR, and encodes floats of 8 and 16 bits."""

from __future__ import annotations

import math
import struct

from tessera.dtypes import NanEncoding, dtype, float16, float32, int1
from tessera.ir.types import Type


def vector_type(element: str, lanes: int) -> str:
    """Return the LLVM type of `lanes` elements; `element` itself for one."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def splat_literal(element: str, text: str, lanes: int) -> str:
    """Return a constant in every lane."""
    if lanes == 1:
        return text
    if text in ("zeroinitializer", "0", "null", "false"):
        return "zeroinitializer"
    return f"splat ({element} {text})"


def number_in(text: str) -> int | None:
    """Return the integer in an operand's text, the same in each lane; None if it is not a constant."""
    digits = text.removeprefix("splat (").rstrip(")").split(" ")[-1]
    return int(digits) if digits.removeprefix("-").isdigit() else None


def literal(value: float | bool | int, t: Type, llvm: str) -> str:
    """Return a constant of element type `t` as a value of LLVM type `llvm`; floats are rounded to `t`."""
    if not isinstance(t, dtype):
        return "null" if value == 0 else f"inttoptr (i64 {int(value)} to {llvm})"
    if t is int1:
        return "true" if value else "false"
    if not t.is_floating():
        return str(int(value))
    if t.bits >= 32:
        return float_literal(float(value), t)
    code = encode_float(float(value), t)
    prefix = {"half": "0xH", "bfloat": "0xR"}.get(llvm)
    return f"{prefix}{code:04X}" if prefix is not None else str(code)


def float_literal(value: float, t: dtype) -> str:
    """Return the bits of the double (rounded to single for fp32), which LLVM reads exactly."""
    if t is float32:
        value = round_float32(value)
    return "0x" + struct.pack(">d", value).hex().upper()


def round_float32(value: float) -> float:
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def encode_float(value: float, t: dtype) -> int:
    """Return the bits of `value` in a format of 8 or 16 bits: nearest, ties to even; 8-bit formats saturate."""
    sign = 1 << (t.bits - 1) if math.copysign(1.0, value) < 0 else 0
    if math.isnan(value):
        return t.nan_code if t.bits == 8 else 0x7E00 if t is float16 else 0x7FC0
    infinity = t.largest_code + 1
    if t.bits == 8:
        code = _round_code(min(abs(value), t.largest), t)
    else:
        code = infinity if math.isinf(value) else min(_round_code(abs(value), t), infinity)
    return 0 if code == 0 and t.nans is NanEncoding.NEGATIVE_ZERO else sign | code


def _round_code(size: float, t: dtype) -> int:
    if size == 0:
        return 0
    exponent = max(math.frexp(size)[1] - 1, 1 - t.bias)
    scaled = size / math.ldexp(1.0, exponent - t.mantissa)  # exact: a power of two
    return ((exponent + t.bias - 1) << t.mantissa) + round(scaled)


def decode_float8(code: int, t: dtype) -> float:
    """Return the number that the bits `code` of an 8-bit float stand for."""
    sign, size = -1.0 if code & 0x80 else 1.0, code & 0x7F
    if t.nans is NanEncoding.NEGATIVE_ZERO and code == t.nan_code:
        return math.nan
    if t.nans is NanEncoding.ALL_ONES and size == t.nan_code:
        return math.nan
    if t.nans is NanEncoding.IEEE and size > t.largest_code:
        return sign * math.inf if size == t.largest_code + 1 else math.nan
    exponent, fraction = size >> t.mantissa, size & ((1 << t.mantissa) - 1)
    if exponent == 0:
        return sign * math.ldexp(fraction, 1 - t.bias - t.mantissa)
    return sign * math.ldexp((1 << t.mantissa) + fraction, exponent - t.bias - t.mantissa)
