"""Converts elements between types as the language defines it. Small floats are converted by integer arithmetic where
there is no instruction.

A small float with m bits of mantissa becomes fp32 by moving its magnitude to the fp32 fields and multiplying by
2^(127 - bias): exact, subnormals included. In the other direction, normal results are rounded on the integer bits, and
subnormal ones by adding a power of two whose last place is the format's smallest step.
"""

from __future__ import annotations

from typing import Any

from tessera.backends.elements.builder import ElementBuilder
from tessera.dtypes import NanEncoding, bfloat16, dtype, float16, float32, float64, int1, int64
from tessera.ir.types import ElementType

SIGN, INFINITY, QUIET_NAN = 0x80000000, 0x7F800000, 0x7FC00000  # in fp32


def cast(
    x: ElementBuilder, text: str, source: ElementType, target: ElementType, rounding: str = "rtne"
) -> str:
    """Cast `n` elements as the language defines it."""
    if source == target:
        return text
    if not isinstance(source, dtype) or not isinstance(target, dtype):
        return _pointer_cast(x, text, source, target)
    if source.is_int():
        return _int_cast(x, text, source, target)
    if target is int1 and x.is_native(source):
        return x.cmp("fcmp une", x.type(source), text, x.constant(source, 0.0))
    if not _direct(x, source, target):
        text, source = widen(x, text, source), float32
    if target.is_int():
        return _float_to_int(x, text, source, target)
    if target.bits > source.bits:
        return x.convert("fpext", x.type(source), text, x.type(target))
    return text if source is target else narrow(x, text, target, rounding, source)


def _direct(x: ElementBuilder, source: dtype, target: dtype) -> bool:
    """Whether the conversion of a float needs no step in fp32 first."""
    return source.bits >= 32 or (
        target.is_floating() and target.bits > source.bits and x.is_native(source)
    )


def bitcast(x: ElementBuilder, text: str, source: ElementType, target: ElementType) -> str:
    """Reinterpret the bits as another type."""
    a, b = x.type(source), x.type(target)
    if a == b:
        return text
    if not isinstance(source, dtype):
        text, a = x.convert("ptrtoint", a, text, "i64"), "i64"
    if isinstance(target, dtype):
        return x.convert("bitcast", a, text, b)
    return x.convert("inttoptr", "i64", x.convert("bitcast", a, text, "i64"), b)


def _pointer_cast(x: ElementBuilder, text: str, source: Any, target: Any) -> str:
    if not isinstance(source, dtype) and not isinstance(target, dtype):
        return text
    if isinstance(target, dtype):
        address = x.convert("ptrtoint", x.type(source), text, "i64")
        return _int_cast(x, address, int64, target)
    return x.convert("inttoptr", "i64", _int_cast(x, text, source, int64), x.type(target))


def _int_cast(x: ElementBuilder, text: str, source: dtype, target: dtype) -> str:
    a = x.type(source)
    if target is int1:
        return text if source is int1 else x.cmp("icmp ne", a, text, x.int(a, 0))
    if target.is_int():
        b = x.type(target)
        if target.bits > source.bits:
            return x.extended("sext" if source.signed else "zext", a, text, b)
        return x.convert("trunc", a, text, b)
    name = "sitofp" if source.signed else "uitofp"
    if not x.is_native(target):
        return narrow(x, x.convert(name, a, text, "float"), target)
    return x.convert(name, a, text, x.type(target))


def _float_to_int(x: ElementBuilder, text: str, source: dtype, target: dtype) -> str:
    """Round toward zero and saturate at 16, 32 or 64 bits; NaN gives 0. 8-bit targets keep the low bits of 16."""
    f = x.type(source)
    if target is int1:
        return x.cmp("fcmp une", f, text, x.constant(source, 0.0))
    own = x.truncated(text, target) if source is float32 and target.bits >= 32 else None
    if own is not None:
        return own
    middle = f"i{max(target.bits, 16)}"
    name = f"llvm.fpto{'s' if target.signed else 'u'}i.sat.{x.suffix(middle)}.{x.suffix(f)}"
    wide = x.intrinsic(x.vector(middle), name, f"{x.vector(f)} {text}")
    return x.convert("trunc", middle, wide, f"i{target.bits}")


# --- floats of fewer than 32 bits ---------------------------------------------------------------------------
def widen(x: ElementBuilder, text: str, t: dtype) -> str:
    """Widen a float of fewer than 32 bits to fp32."""
    if x.is_native(t):
        return x.convert("fpext", x.type(t), text, "float")
    return x.widened(text, t) or _widen_bits(x, text, t)


def _widen_bits(x: ElementBuilder, text: str, t: dtype) -> str:
    wide = x.convert("zext", f"i{t.bits}", text, "i32")
    if t is bfloat16:
        return x.convert("bitcast", "i32", x.op("shl", "i32", wide, x.int("i32", 16)), "float")
    top = 1 << (t.bits - 1)
    magnitude = x.op("and", "i32", wide, x.int("i32", top - 1))
    sign = x.op("and", "i32", wide, x.int("i32", top))
    sign = x.op("shl", "i32", sign, x.int("i32", 32 - t.bits))
    moved = x.op("shl", "i32", magnitude, x.int("i32", 23 - t.mantissa))
    value = x.convert("bitcast", "i32", moved, "float")
    value = x.op("fmul", "float", value, x.f32(2.0 ** (127 - t.bias)))
    bits = x.convert("bitcast", "float", value, "i32")
    if t.nans is NanEncoding.IEEE:
        special = x.op("or", "i32", moved, x.int("i32", INFINITY))
        above = x.cmp("icmp uge", "i32", magnitude, x.int("i32", t.largest_code + 1))
        bits = x.select("i32", above, special, bits)
    nan = {NanEncoding.ALL_ONES: magnitude, NanEncoding.NEGATIVE_ZERO: wide}.get(t.nans)
    if nan is not None:
        is_nan = x.cmp("icmp eq", "i32", nan, x.int("i32", t.nan_code))
        bits = x.select("i32", is_nan, x.int("i32", QUIET_NAN), bits)
    return x.convert("bitcast", "i32", x.op("or", "i32", bits, sign), "float")


def narrow(
    x: ElementBuilder, text: str, t: dtype, rounding: str = "rtne", source: dtype = float32
) -> str:
    """Narrow fp32 or fp64 to nearest even or toward zero; 8-bit formats saturate, and NaN stays NaN."""
    found = x.narrowed(text, source, t, rounding)
    if found is not None:
        return found
    if source is float64 and (rounding == "rtz" or t is bfloat16 or not x.is_native(t)):
        # Two roundings through fp32 can give a wrong result, unless the first one is to odd.
        if t is float32:
            return _toward_zero(x, text)[1]
        return narrow(x, narrow_to_odd(x, text), t, rounding)
    if x.is_native(t) and rounding == "rtne":
        return x.convert("fptrunc", x.type(source), text, x.type(t))
    code = (_narrow_bf16 if t is bfloat16 else _narrow_bits)(x, text, t, rounding)
    return x.convert("bitcast", f"i{t.bits}", code, x.type(t))


def narrow_to_odd(x: ElementBuilder, text: str) -> str:
    """Round fp64 to fp32, with the last bit set if that is inexact: rounding again, to a type of fewer bits, then gives
    the result of a single rounding."""
    back, single = _toward_zero(x, text)
    last = x.convert("zext", "i1", x.cmp("fcmp one", "double", back, text), "i32")
    bits = x.op("or", "i32", x.convert("bitcast", "float", single, "i32"), last)
    return x.convert("bitcast", "i32", bits, "float")


def _toward_zero(x: ElementBuilder, text: str) -> tuple[str, str]:
    """Round an fp64 to fp32 in two ways: to nearest (widened again), and toward zero."""
    near = x.convert("fptrunc", "double", text, "float")
    back = x.convert("fpext", "float", near, "double")
    bits = x.convert("bitcast", "float", near, "i32")
    sizes = (x.call("fabs", "double", back), x.call("fabs", "double", text))
    over = x.cmp("fcmp ogt", "double", *sizes)
    bits = x.select("i32", over, x.op("sub", "i32", bits, x.int("i32", 1)), bits)
    return back, x.convert("bitcast", "i32", bits, "float")


def _narrow_bf16(x: ElementBuilder, text: str, t: dtype, rounding: str) -> str:
    bits = x.convert("bitcast", "float", text, "i32")
    if rounding == "rtne":
        odd = x.op("and", "i32", x.op("lshr", "i32", bits, x.int("i32", 16)), x.int("i32", 1))
        bits = x.op("add", "i32", x.op("add", "i32", bits, x.int("i32", 0x7FFF)), odd)
    nan = x.cmp("fcmp uno", "float", text, x.f32(0.0))
    code = x.op("lshr", "i32", bits, x.int("i32", 16))
    return x.convert("trunc", "i32", x.select("i32", nan, x.int("i32", 0x7FFF), code), "i16")


def _narrow_bits(x: ElementBuilder, text: str, t: dtype, rounding: str) -> str:
    shift, scale = 23 - t.mantissa, 1 - t.bias - t.mantissa  # 2^scale: the smallest step
    bits = x.convert("bitcast", "float", text, "i32")
    size = x.op("and", "i32", bits, x.int("i32", SIGN - 1))
    # Values above the largest number round to it; in fp16 to 65536, whose code is infinity's.
    infinite = t is float16 and rounding == "rtne"
    exponent, fraction = divmod(t.largest_code + infinite, 1 << t.mantissa)
    limit = ((exponent - t.bias + 127) << 23) | fraction << shift
    near = x.call("umin", "i32", size, x.int("i32", limit))
    value, kept = x.convert("bitcast", "i32", near, "float"), near
    if rounding == "rtz":
        tiny = x.op("fmul", "float", value, x.f32(2.0**-scale))
        tiny = x.convert("fptosi", "float", tiny, "i32")
    else:
        total = x.op("fadd", "float", value, x.f32(2.0 ** (scale + 23)))
        tiny = x.convert("bitcast", "float", total, "i32")
        tiny = x.op("and", "i32", tiny, x.int("i32", (1 << t.bits) - 1))
        odd = x.op("and", "i32", x.op("lshr", "i32", near, x.int("i32", shift)), x.int("i32", 1))
        half = x.op("add", "i32", odd, x.int("i32", (1 << (shift - 1)) - 1))
        kept = x.op("add", "i32", near, half)
    normal = x.op("lshr", "i32", kept, x.int("i32", shift))
    normal = x.op("sub", "i32", normal, x.int("i32", (127 - t.bias) << t.mantissa))
    subnormal = x.cmp("icmp ult", "i32", near, x.int("i32", (128 - t.bias) << 23))
    return _finish(x, x.select("i32", subnormal, tiny, normal), size, bits, t)


def _finish(x: ElementBuilder, code: str, size: str, bits: str, t: dtype) -> str:
    """Add infinity, NaN and the sign."""
    if t is float16:
        endless = x.cmp("icmp eq", "i32", size, x.int("i32", INFINITY))
        code = x.select("i32", endless, x.int("i32", t.largest_code + 1), code)
    sign = x.op("lshr", "i32", bits, x.int("i32", 32 - t.bits))
    sign = x.op("and", "i32", sign, x.int("i32", 1 << (t.bits - 1)))
    result = x.op("or", "i32", code, sign)
    if t.nans is NanEncoding.NEGATIVE_ZERO:
        zero = x.cmp("icmp eq", "i32", code, x.int("i32", 0))
        result = x.select("i32", zero, x.int("i32", 0), result)
    nan = x.cmp("icmp ugt", "i32", size, x.int("i32", INFINITY))
    code = x.int("i32", 0x7E00 if t is float16 else t.nan_code)
    return x.convert("trunc", "i32", x.select("i32", nan, code, result), f"i{t.bits}")
