"""Defines how the interpreter represents numbers, and every conversion between element types.

Each dtype has a NumPy carrier: the dtype itself if NumPy has it, float32 for bf16 and the 8-bit floats (whose
values it represents exactly, since every result is rounded by `settle`). Small floats are
encoded through the table of all their values, so that one piece of code serves every format.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from tessera.dtypes import (
    FP8,
    NanEncoding,
    bfloat16,
    dtype,
    float32,
    float64,
    int1,
)
from tessera.ir import ElementType, Type

CARRIERS: dict[str, type[np.generic]] = {
    "int1": np.bool_, "bf16": np.float32, "fp16": np.float16, "fp32": np.float32, "fp64": np.float64,
    **{f.name: np.float32 for f in FP8},
    **{f"{u}int{b}": getattr(np, f"{u}int{b}") for u in ("", "u") for b in (8, 16, 32, 64)},
}  # fmt: skip


def carrier(t: object) -> type[np.generic]:
    """Return the NumPy type that carries values of a scalar type; pointers are int64 addresses."""
    return CARRIERS[t.name] if isinstance(t, dtype) else np.int64


def storage(t: object) -> type[np.generic]:
    """Return the NumPy type of the bytes in memory."""
    if not isinstance(t, dtype):
        return np.int64
    if t is bfloat16:
        return np.uint16
    return np.uint8 if t.is_fp8() or t is int1 else CARRIERS[t.name]


@cache
def decode_table(t: dtype) -> np.ndarray:
    """Return the float32 value of each of the 256 codes of an 8-bit float."""
    codes = np.arange(256)
    m, bias = t.mantissa, t.bias
    exponent, fraction = (codes >> m) & ((1 << (7 - m)) - 1), codes & ((1 << m) - 1)
    sub = exponent == 0
    value = np.where(
        sub,
        fraction / 2.0**m * 2.0 ** (1 - bias),
        (1 + fraction / 2.0**m) * 2.0 ** (exponent - bias),
    )
    value = np.where(codes & 0x80, -value, value).astype(np.float32)
    magnitude = codes & 0x7F
    if t.nans is NanEncoding.IEEE:
        value[magnitude == t.largest_code + 1] *= np.inf
        value[magnitude > t.largest_code + 1] = np.nan
    elif t.nans is NanEncoding.ALL_ONES:
        value[magnitude == t.nan_code] = np.nan
    elif t.nans is NanEncoding.NEGATIVE_ZERO:
        value[t.nan_code] = np.nan
    return value


def encode_fp8(x: np.ndarray, t: dtype, rounding: str = "rtne") -> np.ndarray:
    """Return the codes of the nearest values (ties to even), saturating to the largest finite one; NaN stays NaN."""
    finite = decode_table(t)[: t.largest_code + 1]
    a = np.abs(np.asarray(x, np.float64))
    high = np.clip(np.searchsorted(finite, a), 0, len(finite) - 1)
    low = np.maximum(high - 1, 0)
    exact = finite[high].astype(np.float64) == a
    if rounding == "rtz":
        code = np.where(exact | (a > finite[high]), high, low)
    else:
        up, down = finite[high] - a, a - finite[low]
        code = np.where((up < down) | ((up == down) & (high % 2 == 0)), high, low)
    code = code.astype(np.uint8)
    negative = np.signbit(x) & ((code != 0) | (t.nans is not NanEncoding.NEGATIVE_ZERO))
    code = np.where(negative, code | 0x80, code)
    return np.where(np.isnan(a), np.uint8(t.nan_code), code).astype(np.uint8)


def encode_bf16(x: np.ndarray, rounding: str = "rtne") -> np.ndarray:
    """Return the upper halves of float32 bits, rounded to nearest even or toward zero. A NaN keeps sign and payload."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).reshape(np.shape(x))
    upper = (bits >> np.uint32(16)).astype(np.uint16)
    if rounding == "rtz":
        rounded = upper
    else:
        rounded = ((bits + np.uint32(0x7FFF) + (upper & np.uint16(1))) >> np.uint32(16)).astype(
            np.uint16
        )
    quiet = np.where(upper & np.uint16(0x7F), upper, upper | np.uint16(0x40))
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint16)


def decode_bf16(codes: np.ndarray) -> np.ndarray:
    return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_storage(x: np.ndarray, t: Type) -> np.ndarray:
    """Return values of type `t` as memory represents them."""
    if t is bfloat16:
        return encode_bf16(x)
    if isinstance(t, dtype) and t.is_fp8():
        return encode_fp8(x, t)
    return np.asarray(x).astype(storage(t), copy=False)


def from_storage(raw: np.ndarray, t: Type) -> np.ndarray:
    """Invert `to_storage`; any non-zero byte is a true int1."""
    if t is bfloat16:
        return decode_bf16(np.asarray(raw))
    if isinstance(t, dtype) and t.is_fp8():
        return decode_table(t)[raw]
    return raw != 0 if t is int1 else raw


def settle(x: np.ndarray, t: Type, rounding: str = "rtne") -> np.ndarray:
    """Round a computed result to a value of `t` in `t`'s carrier."""
    x = np.asarray(x)
    if t is bfloat16:
        return decode_bf16(encode_bf16(x.astype(np.float32), rounding))
    if isinstance(t, dtype) and t.is_fp8():
        return decode_table(t)[encode_fp8(x, t, rounding)]
    return x.astype(carrier(t), copy=False)


def _to_int(x: np.ndarray, t: dtype) -> np.ndarray:
    """Round floats toward zero and saturate at the width of the conversion (16 bits for 8-bit results); NaN gives 0."""
    bits = max(t.bits, 16)
    low = -(1 << (bits - 1)) if t.signed else 0
    high = (1 << (bits - 1)) - 1 if t.signed else (1 << bits) - 1
    wide = np.trunc(np.where(np.isnan(x), 0, x).astype(np.float64))
    over, under = wide >= float(high), wide <= float(low)
    inside = np.where(over | under, 0, wide)
    as_int = inside.astype(np.int64 if t.signed else np.uint64)
    as_int = np.where(
        over, as_int.dtype.type(high), np.where(under, as_int.dtype.type(low), as_int)
    )
    return as_int.astype(carrier(t))  # the last step of an 8-bit result keeps the low bits


def _truncate(x: np.ndarray, t: dtype) -> np.ndarray:
    """Narrow floats toward zero."""
    if x.dtype == np.float64 and t is not float32:
        x = _truncate(x, float32)
    if t is bfloat16 or t.is_fp8():
        return settle(x, t, "rtz")
    near = x.astype(carrier(t))
    grown = np.abs(near.astype(np.float64)) > np.abs(x.astype(np.float64))
    return np.where(grown, np.nextafter(near, carrier(t)(0)), near).astype(carrier(t))


def convert(
    x: np.ndarray, source: ElementType, target: ElementType, rounding: str = "rtne"
) -> np.ndarray:
    """Cast values from `source` to `target` as the language defines it."""
    x = np.asarray(x)
    if not isinstance(target, dtype) or not isinstance(source, dtype):
        return x != 0 if target is int1 else x.astype(carrier(target))
    if target is int1:
        return x != 0
    if target.is_int():
        return _to_int(x, target) if source.is_floating() else x.astype(carrier(target))
    if rounding == "rtz" and source.is_floating() and source.bits > target.bits:
        return _truncate(x, target)
    if source is float64 and target is bfloat16:
        x = _to_odd(x)
    return settle(x, target)


def _to_odd(x: np.ndarray) -> np.ndarray:
    """Round float64 to float32, with the last bit set if that is inexact: rounding again, to fewer bits, then gives the
    result of a single rounding."""
    cut = _truncate(x, float32)
    inexact = np.isfinite(x) & (cut.astype(np.float64) != x)
    return (cut.view(np.uint32) | inexact.astype(np.uint32)).view(np.float32)


def bits_type(t: ElementType) -> np.dtype[np.generic]:
    """Return the unsigned NumPy integer type of the width of `t` in memory."""
    return np.dtype(f"u{t.storage_bytes}")


def bitcast(x: np.ndarray, source: ElementType, target: ElementType) -> np.ndarray:
    """Reinterpret the bits as another type of equal width."""
    raw = np.ascontiguousarray(to_storage(x, source))
    return from_storage(raw.view(storage(target)).reshape(np.shape(x)), target)
