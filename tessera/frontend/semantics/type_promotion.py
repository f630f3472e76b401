"""Promotes types: finds the common dtype of two operands, by pure functions on dtypes and Python numbers.

A Python number next to a tensor is *weak*: it takes the tensor's dtype if its kind (bool < int < float) is not
higher. `fp16 * 0.5` stays fp16, and `int1 + 1` becomes int32. Two tensors, scalars included, are promoted by the
table of `promote_types`.
"""

from __future__ import annotations

import math
import struct

from tessera.dtypes import (
    Kind,
    bfloat16,
    dtype,
    float16,
    float32,
    float64,
    int1,
    int32,
    int64,
    uint32,
    uint64,
)
from tessera.errors import ShapeMismatch, TypeMismatch

Number = bool | int | float

_SMALLEST_NORMAL = 2.0**-126
_LARGEST_FP32 = (2 - 2**-23) * 2.0**127
_PACK = {float16: "e", float32: "f"}


def dtype_of_number(value: Number) -> dtype:
    """Return the dtype of a Python number on its own."""
    if isinstance(value, bool):
        return int1
    if isinstance(value, int):
        if -(2**31) <= value < 2**31:
            return int32
        if 2**31 <= value < 2**32:
            return uint32
        if -(2**63) <= value < 2**63:
            return int64
        if 2**63 <= value < 2**64:
            return uint64
        raise TypeMismatch(
            f"Nonrepresentable integer {value}.", help="integers have at most 64 bits"
        )
    size = abs(value)
    if size == 0.0 or not math.isfinite(value) or _SMALLEST_NORMAL <= size <= _LARGEST_FP32:
        return float32
    return float64


def kind_of_number(value: Number) -> Kind:
    if isinstance(value, bool):
        return Kind.BOOLEAN
    return Kind.INTEGRAL if isinstance(value, int) else Kind.FLOATING


def as_constant(value: Number, to: dtype) -> Number:
    """Return a number as a constant of dtype `to`: floats truncate to ints, ints wrap, floats round."""
    if to is int1:
        return value != 0  # NaN is true
    if to.is_int():
        if isinstance(value, float):
            value = int(value) if math.isfinite(value) else 0
        value = int(value) & ((1 << to.bits) - 1)
        return value - (1 << to.bits) if to.signed and value >> (to.bits - 1) else value
    return round_float(float(value), to)


def round_float(value: float, to: dtype) -> float:
    """Return `value` rounded to the nearest number of `to`; fp8 is rounded when it is encoded."""
    code = _PACK.get(to)
    if code is not None:
        try:
            return struct.unpack(code, struct.pack(code, value))[0]
        except OverflowError:
            return math.copysign(math.inf, value)
    if to is bfloat16 and math.isfinite(value):
        bits = struct.unpack("I", struct.pack("f", round_float(value, float32)))[0]
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        return struct.unpack("f", struct.pack("I", bits))[0]
    return value


def promote_ints(a: dtype, b: dtype) -> dtype:
    """Apply C's usual conversions without the promotion to int: the wider one wins, and unsigned at equal width."""
    if a.signed == b.signed:
        return a if a.bits >= b.bits else b
    unsigned, signed = (b, a) if a.signed else (a, b)
    return unsigned if unsigned.bits >= signed.bits else signed


def promote_types(a: dtype, b: dtype, division: bool = False) -> dtype:
    """Return the dtype of `a op b` for two tensors; `division` widens 16-bit floats and rejects mixed signs."""
    for wide in (float64, float32):
        if a is wide or b is wide:
            return wide
    if a is float16 or b is float16:
        return float32 if division else float16
    if a is bfloat16 or b is bfloat16:
        return bfloat16 if a is b and not division else float32
    if a.is_fp8() and b.is_fp8():
        return a if a is b else float16
    if not a.is_int() or not b.is_int():
        raise TypeMismatch(
            f"unexpected type {a} and {b}", help="cast the fp8 operand with `.to(...)` first"
        )
    if division and a.signed != b.signed:
        raise TypeMismatch(
            f"Cannot use /, #, or % with {a} and {b} because they have different signedness; "
            "this is unlikely to result in a useful answer. Cast them to the same signedness.",
            help="`.to(...)` one operand to the other's signedness",
        )
    return promote_ints(a, b)


def promote_number(tensor: dtype, value: Number, division: bool = False) -> dtype:
    """Return the dtype of a tensor op a Python number."""
    if kind_of_number(value) > tensor.kind_:
        return promote_types(tensor, dtype_of_number(value), division)
    if division and tensor in (float16, bfloat16):
        return float32
    return tensor


def check_fits(value: Number, to: dtype) -> None:
    """Reject a weak integer that the integer dtype `to` cannot hold."""
    if not to.is_int() or not isinstance(value, int) or isinstance(value, bool):
        return
    if value < 0 and not to.signed:
        raise TypeMismatch(
            "Cannot perform a binary operation between an unsigned tensor and a negative scalar. "
            "Perform a explicit cast on one of them.",
            help=f"cast the {to} operand to a signed type with `.to(...)`",
        )
    if not to.get_int_min_value() <= value <= to.get_int_max_value():
        raise TypeMismatch(
            f"Scalar {value} is out of range for type {to}",
            help=f"cast the {to} operand to a wider type with `.to(...)`",
        )


def common_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape both broadcast to: the shorter is padded with 1 on the left."""
    if a == b:
        return a
    if len(a) < len(b):
        a = (1,) * (len(b) - len(a)) + a
    elif len(b) < len(a):
        b = (1,) * (len(a) - len(b)) + b
    out: list[int] = []
    for i, (m, n) in enumerate(zip(a, b, strict=True)):
        if m != n and m != 1 and n != 1:
            raise ShapeMismatch(
                f"Cannot make_shape_compatible: incompatible dimensions at index {i}: {m} and {n}",
                help=f"the shapes are {list(a)} and {list(b)}: extents must be equal or 1",
            )
        out.append(n if m == 1 else m)
    return tuple(out)
