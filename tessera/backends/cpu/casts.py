"""Converts vectors between element types; small floats are converted in integer arithmetic where there is no
instruction.

A small float with m bits of mantissa becomes fp32 by moving its magnitude to the fp32 fields and multiplying by
2^(127 - bias): exact, subnormals included. Back: normal results round on the integer bits; subnormal ones by adding
a power of two whose last place is the format's smallest step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera.backends.cpu.emitter import Emitter
from tessera.backends.cpu.llvm_text import (
    float_literal,
    lane_type,
    literal,
    splat_literal,
    vector_type,
)
from tessera.backends.cpu.target import CpuFacts
from tessera.dtypes import (
    NanEncoding,
    bfloat16,
    dtype,
    float16,
    float32,
    float64,
    int1,
    int32,
    int64,
)


def is_small_float(t: Any) -> bool:
    """A float held as an integer in the LLVM IR."""
    return isinstance(t, dtype) and t.is_floating() and t.bits < 32


def constant(t: Any, value: float | int, lanes: int) -> str:
    """A constant operand of type `t` in `lanes` lanes."""
    return splat_literal(lane_type(t, 1), literal(value, t), lanes)


@dataclass(frozen=True, slots=True)
class Lanes:
    """Emits instructions on `n` lanes by short names."""

    em: Emitter
    facts: CpuFacts
    n: int

    def op(self, name: str, element: str, *operands: str) -> str:
        return self.em.op(f"{name} {vector_type(element, self.n)} {', '.join(operands)}")

    def cmp(self, name: str, element: str, a: str, b: str) -> str:
        return self.em.op(f"{name} {vector_type(element, self.n)} {a}, {b}")

    def select(self, element: str, c: str, a: str, b: str) -> str:
        ty, bits = vector_type(element, self.n), vector_type("i1", self.n)
        return self.em.op(f"select {bits} {c}, {ty} {a}, {ty} {b}")

    def convert(self, name: str, source: str, text: str, target: str) -> str:
        if source == target:
            return text
        return self.em.op(
            f"{name} {vector_type(source, self.n)} {text} to {vector_type(target, self.n)}"
        )

    def call(
        self, base: str, element: str, *operands: str, extra: tuple[str, ...] = (), suffix: str = ""
    ) -> str:
        """Call an overloaded intrinsic whose operands and result have one type."""
        ty = vector_type(element, self.n)
        name = f"llvm.{base}.{suffix or self.suffix(element)}"
        return self.em.call(ty, name, *(f"{ty} {x}" for x in operands), *extra)

    @property
    def has_edges(self) -> bool:
        """Whether `masked` may be used on fp32 lanes."""
        return self.facts.edges and self.n in (4, 8, 16)

    def masked(self, name: str, *operands: str, mask: str = "") -> str:
        """An intrinsic of AVX-512 on fp32 lanes, where `mask` (everywhere without one); the default rounding."""
        bits, rounding = ("i16", ("i32 4",)) if self.n == 16 else ("i8", ())
        if mask and self.n == 4:
            mask = self.em.shuffle("i1", mask, "zeroinitializer", 4, list(range(8)))
        where = self.em.op(f"bitcast <{max(self.n, 8)} x i1> {mask} to {bits}") if mask else "-1"
        name = f"llvm.x86.avx512.mask.{name}.ps.{32 * self.n}"
        return self.em.call(
            vector_type("float", self.n), name, *operands, f"{bits} {where}", *rounding
        )

    def suffix(self, element: str) -> str:
        short = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}.get(element, element)
        return short if self.n == 1 else f"v{self.n}{short}"

    def int(self, element: str, value: int) -> str:
        return splat_literal(element, str(value), self.n)

    def f32(self, value: float) -> str:
        return splat_literal("float", float_literal(value, float32), self.n)


def widen(x: Lanes, text: str, t: dtype) -> str:
    """Widen a small float to fp32."""
    if t is bfloat16:
        bits = x.op("shl", "i32", x.convert("zext", "i16", text, "i32"), x.int("i32", 16))
        return x.convert("bitcast", "i32", bits, "float")
    if t is float16 and x.facts.half_convert:
        return x.convert("fpext", "half", x.convert("bitcast", "i16", text, "half"), "float")
    element, m = f"i{t.bits}", t.mantissa
    wide = x.convert("zext", element, text, "i32")
    magnitude = x.op("and", "i32", wide, x.int("i32", (1 << (t.bits - 1)) - 1))
    sign = x.op(
        "shl",
        "i32",
        x.op("and", "i32", wide, x.int("i32", 1 << (t.bits - 1))),
        x.int("i32", 32 - t.bits),
    )
    moved = x.op("shl", "i32", magnitude, x.int("i32", 23 - m))
    value = x.op(
        "fmul", "float", x.convert("bitcast", "i32", moved, "float"), x.f32(2.0 ** (127 - t.bias))
    )
    bits = x.convert("bitcast", "float", value, "i32")
    if t.nans is NanEncoding.IEEE:
        high = ((1 << (t.bits - 1 - m)) - 1) << m
        special = x.op("or", "i32", moved, x.int("i32", 0x7F800000))
        bits = x.select(
            "i32", x.cmp("icmp uge", "i32", magnitude, x.int("i32", high)), special, bits
        )
    nan = {NanEncoding.ALL_ONES: magnitude, NanEncoding.NEGATIVE_ZERO: wide}.get(t.nans)
    if nan is not None:
        is_nan = x.cmp("icmp eq", "i32", nan, x.int("i32", t.nan_code))
        bits = x.select("i32", is_nan, x.int("i32", 0x7FC00000), bits)
    return x.convert("bitcast", "i32", x.op("or", "i32", bits, sign), "float")


def narrow(x: Lanes, text: str, t: dtype, rounding: str = "rtne") -> str:
    """Narrow fp32 to a small float: to nearest even or toward zero; 8-bit formats saturate, NaN stays NaN."""
    if t is bfloat16:
        return _narrow_bf16(x, text, rounding)
    if t is float16 and x.facts.half_convert and rounding == "rtne":
        return x.convert("bitcast", "half", x.convert("fptrunc", "float", text, "half"), "i16")
    return _narrow_bits(x, text, t, rounding)


def _narrow_bf16(x: Lanes, text: str, rounding: str) -> str:
    bits = x.convert("bitcast", "float", text, "i32")
    if rounding == "rtne":
        if x.facts.bf16_convert and x.n >= 4:
            return x.convert(
                "bitcast", "bfloat", x.convert("fptrunc", "float", text, "bfloat"), "i16"
            )
        odd = x.op("and", "i32", x.op("lshr", "i32", bits, x.int("i32", 16)), x.int("i32", 1))
        rounded = x.op("add", "i32", x.op("add", "i32", bits, x.int("i32", 0x7FFF)), odd)
    else:
        rounded = bits
    nan = x.cmp("fcmp uno", "float", text, "zeroinitializer" if x.n > 1 else x.f32(0.0))
    code = x.op("lshr", "i32", rounded, x.int("i32", 16))
    code = x.select("i32", nan, x.int("i32", 0x7FFF), code)
    return x.convert("trunc", "i32", code, "i16")


def _narrow_bits(x: Lanes, text: str, t: dtype, rounding: str) -> str:
    m, shift = t.mantissa, 23 - t.mantissa
    bits = x.convert("bitcast", "float", text, "i32")
    a = x.op("and", "i32", bits, x.int("i32", 0x7FFFFFFF))
    af = x.convert("bitcast", "i32", a, "float")
    rebased = x.op("sub", "i32", a, x.int("i32", (127 - t.bias) << 23))
    scale = 1 - t.bias - m  # exponent of the smallest step
    if rounding == "rtz":
        normal = x.op("lshr", "i32", rebased, x.int("i32", shift))
        scaled = x.op("fmul", "float", af, x.f32(2.0**-scale))
        ty = vector_type("i32", x.n)
        name = f"llvm.fptosi.sat.{x.suffix('i32')}.{x.suffix('float')}"
        tiny = x.em.call(ty, name, f"{vector_type('float', x.n)} {scaled}")
    else:
        odd = x.op("and", "i32", x.op("lshr", "i32", a, x.int("i32", shift)), x.int("i32", 1))
        half = x.int("i32", (1 << (shift - 1)) - 1)
        normal = x.op(
            "lshr",
            "i32",
            x.op("add", "i32", x.op("add", "i32", rebased, half), odd),
            x.int("i32", shift),
        )
        magic = x.f32(2.0 ** (scale + 23))
        total = x.convert("bitcast", "float", x.op("fadd", "float", af, magic), "i32")
        tiny = x.op("sub", "i32", total, x.int("i32", (scale + 23 + 127) << 23))
    subnormal = x.cmp("icmp ult", "i32", a, x.int("i32", (128 - t.bias) << 23))
    code = x.select("i32", subnormal, tiny, normal)
    return _finish(x, code, a, bits, t, rounding)


def _finish(x: Lanes, code: str, a: str, bits: str, t: dtype, rounding: str) -> str:
    """Saturation, NaN and the sign."""
    top = t.largest_code
    ieee = t is float16
    code = x.call(
        "umin", "i32", code, x.int("i32", top + 1 if ieee and rounding == "rtne" else top)
    )
    big = x.int("i32", 0x7F800000)
    over = x.cmp("icmp uge", "i32", a, big)
    code = x.select("i32", over, x.int("i32", top + 1 if ieee else top), code)
    sign = x.op(
        "lshr", "i32", x.op("and", "i32", bits, x.int("i32", 0x80000000)), x.int("i32", 32 - t.bits)
    )
    if t.nans is NanEncoding.NEGATIVE_ZERO:
        zero = x.cmp("icmp eq", "i32", code, x.int("i32", 0))
        sign = x.select("i32", zero, x.int("i32", 0), sign)
    nan_code = 0x7E00 if ieee else t.nan_code
    result = x.op("or", "i32", code, sign)
    result = x.select("i32", x.cmp("icmp ugt", "i32", a, big), x.int("i32", nan_code), result)
    return x.convert("trunc", "i32", result, f"i{t.bits}")


# --- the cast table --------------------------------------------------------------------------------------
def cast(x: Lanes, text: str, source: Any, target: Any, rounding: str = "rtne") -> str:
    """Cast `n` lanes as the language defines it."""
    if source == target:
        return text
    if not isinstance(source, dtype) or not isinstance(target, dtype):
        return _pointer_cast(x, text, source, target)
    if source.is_int():
        return _int_cast(x, text, source, target)
    if is_small_float(source):
        text, source = widen(x, text, source), float32
    if target.is_int():
        return _float_to_int(x, text, source, target)
    if is_small_float(target):
        single = _toward_zero(x, text, odd=True) if source is float64 else text
        return narrow(x, single, target, rounding)
    if source == target:
        return text
    if target is float32 and rounding == "rtz":
        return _toward_zero(x, text)
    name = "fpext" if target is float64 else "fptrunc"
    return x.convert(name, lane_type(source, 1), text, lane_type(target, 1))


def _toward_zero(x: Lanes, text: str, odd: bool = False) -> str:
    """fp64 to the fp32 next to it toward zero. `odd`: where that is not exact its last bit is set, so that rounding
    once more, to a type of fewer bits, gives what rounding once would."""
    near = x.convert("fptrunc", "double", text, "float")
    back = x.convert("fpext", "float", near, "double")
    bits = x.convert("bitcast", "float", near, "i32")
    sizes = (x.call("fabs", "double", back), x.call("fabs", "double", text))
    over = x.cmp("fcmp ogt", "double", *sizes)
    bits = x.select("i32", over, x.op("sub", "i32", bits, x.int("i32", 1)), bits)
    if odd:
        last = x.convert("zext", "i1", x.cmp("fcmp one", "double", back, text), "i32")
        bits = x.op("or", "i32", bits, last)
    return x.convert("bitcast", "i32", bits, "float")


def _pointer_cast(x: Lanes, text: str, source: Any, target: Any) -> str:
    if not isinstance(source, dtype) and not isinstance(target, dtype):
        return text
    if isinstance(target, dtype):
        address = x.convert("ptrtoint", "ptr", text, "i64")
        return _int_cast(x, address, int64, target)
    return x.convert("inttoptr", "i64", _int_cast(x, text, source, int64), "ptr")


def _int_cast(x: Lanes, text: str, source: dtype, target: dtype) -> str:
    a = lane_type(source, 1)
    if target is int1:
        return text if source is int1 else x.cmp("icmp ne", a, text, x.int(a, 0))
    if target.is_int():
        b = lane_type(target, 1)
        if a == b:
            return text
        grow = "sext" if source.signed else "zext"
        return x.convert(grow if target.bits > source.bits else "trunc", a, text, b)
    name = "sitofp" if source.signed else "uitofp"
    if is_small_float(target):
        return narrow(x, x.convert(name, a, text, "float"), target)
    return x.convert(name, a, text, lane_type(target, 1))


def _float_to_int(x: Lanes, text: str, source: dtype, target: dtype) -> str:
    f = lane_type(source, 1)
    if target is int1:
        return x.cmp("fcmp une", f, text, splat_literal(f, literal(0.0, source), x.n))
    middle = f"i{max(target.bits, 16)}"
    name = f"llvm.fpto{'s' if target.signed else 'u'}i.sat.{x.suffix(middle)}.{x.suffix(f)}"
    wide = x.em.call(vector_type(middle, x.n), name, f"{vector_type(f, x.n)} {text}")
    return x.convert("trunc", middle, wide, f"i{target.bits}")


def bitcast(x: Lanes, text: str, source: Any, target: Any) -> str:
    """The same bits under another type."""
    a, b = lane_type(source, 1), lane_type(target, 1)
    if a == b:
        return text
    if "ptr" in (a, b):
        return x.convert("ptrtoint" if a == "ptr" else "inttoptr", a, text, b)
    return x.convert("bitcast", a, text, b)


__all__ = ["Lanes", "bitcast", "cast", "constant", "int32", "is_small_float", "narrow", "widen"]
