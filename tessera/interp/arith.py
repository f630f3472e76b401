"""Defines the meaning of the element-wise ops in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np

from tessera.dtypes import dtype
from tessera.interp.bessel import bessel_i, bessel_j, bessel_y
from tessera.interp.directed import directed
from tessera.interp.machine import Machine, evaluate
from tessera.interp.numerics import bitcast, bits_type, carrier, convert, settle
from tessera.ir import Op, elem_of, shape_of
from tessera.ops import MATH_OPS, arith


def _float_elem(op: Op) -> bool:
    e = elem_of(op.results[0].type)
    return isinstance(e, dtype) and e.is_floating()


@evaluate(arith.ConstOp)
def const_(m: Machine, op: arith.ConstOp) -> np.ndarray:
    t = op.result.type
    return np.full(shape_of(t), settle(np.asarray(op.value), elem_of(t)), carrier(elem_of(t)))


@evaluate(arith.AddOp)
def add_(m: Machine, op: Op, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _wrap(op, np.bitwise_xor(a, b) if a.dtype == np.bool_ else a + b)


@evaluate(arith.SubOp)
def sub_(m: Machine, op: Op, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _wrap(op, np.bitwise_xor(a, b) if a.dtype == np.bool_ else a - b)


@evaluate(arith.MulOp)
def mul_(m: Machine, op: Op, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _wrap(op, a & b if a.dtype == np.bool_ else a * b)


def _wrap(op: Op, x: np.ndarray) -> np.ndarray:
    return settle(x, elem_of(op.results[0].type))


@evaluate(arith.DivOp)
def div_(m: Machine, op: Op, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if _float_elem(op):
        return _wrap(op, a / b)
    return _wrap(op, _quotient(a, b))


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Integer quotient toward zero; division by zero gives 0."""
    if a.dtype == np.bool_:
        return a & b
    safe = np.where(b == 0, b.dtype.type(1), b)
    q = a // safe
    if np.issubdtype(a.dtype, np.signedinteger):
        q = q + ((a % safe != 0) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, a.dtype.type(0), q).astype(a.dtype)


@evaluate(arith.RemOp)
def rem_(m: Machine, op: Op, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if _float_elem(op):
        return _wrap(op, np.fmod(a, b))
    return _wrap(op, a ^ a if a.dtype == np.bool_ else a - _quotient(a, b) * b)


@evaluate(arith.AndOp)
def and_(m: Machine, op: Op, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a & b


@evaluate(arith.OrOp)
def or_(m: Machine, op: Op, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a | b


@evaluate(arith.XorOp)
def xor_(m: Machine, op: Op, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a ^ b


@evaluate(arith.ShlOp)
def shl_(m: Machine, op: Op, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a & ~b if a.dtype == np.bool_ else _wrap(op, a << b)


@evaluate(arith.ShrOp)
def shr_(m: Machine, op: Op, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a & ~b if a.dtype == np.bool_ else _wrap(op, a >> b)


@evaluate(arith.MinOp)
def min_(m: Machine, op: arith.MinOp, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _wrap(op, np.minimum(a, b) if op.propagate_nan or not _float_elem(op) else np.fmin(a, b))


@evaluate(arith.MaxOp)
def max_(m: Machine, op: arith.MaxOp, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _wrap(op, np.maximum(a, b) if op.propagate_nan or not _float_elem(op) else np.fmax(a, b))


@evaluate(arith.MulHiOp)
def mulhi_(m: Machine, op: Op, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    e = elem_of(op.results[0].type)
    if e.bits < 64:
        wide = np.int64 if e.signed else np.uint64
        return ((a.astype(wide) * b.astype(wide)) >> wide(e.bits)).astype(carrier(e))
    high = _mulhi_u64(a.astype(np.uint64), b.astype(np.uint64))
    if e.signed:  # each negative factor makes the unsigned product too large by 2^64·other
        high = high - np.where(a < 0, b.astype(np.uint64), np.uint64(0))
        high = high - np.where(b < 0, a.astype(np.uint64), np.uint64(0))
    return high.astype(carrier(e))


def _mulhi_u64(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + ((a0 * b0) >> half)
    cross = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> half) + (cross >> half)


@evaluate(arith.PowOp)
def pow_(m: Machine, op: Op, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _wrap(op, np.power(a.astype(np.float64), b.astype(np.float64)))


@np.vectorize
def _nearest_rest(a: float, b: float) -> float:
    return math.remainder(a, b) if abs(a) < math.inf and b != 0 else math.nan


@evaluate(arith.RemainderOp)
def remainder_(m: Machine, op: Op, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    wide = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return _wrap(op, _nearest_rest(*wide) if wide[0].size else wide[0])


@evaluate(arith.Atan2Op)
def atan2_(m: Machine, op: Op, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _wrap(op, np.arctan2(a.astype(np.float64), b.astype(np.float64)))


@evaluate(arith.CopySignOp)
def copysign_(m: Machine, op: Op, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _wrap(op, np.copysign(a, b))


_COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal
}  # fmt: skip


@evaluate(arith.CmpOp)
def cmp_(m: Machine, op: arith.CmpOp, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(_COMPARE[op.predicate](a, b))


@evaluate(arith.SelectOp)
def select_(m: Machine, op: Op, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(c, a, b)


@evaluate(arith.FmaOp)
def fma_(m: Machine, op: Op, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    if x.dtype == np.float64:
        return np.asarray(fma_f64(x, y, z), np.float64)
    product = x.astype(np.float64) * y.astype(np.float64)  # exact: at most 48 bits
    return _wrap(op, _add_to_odd(product, z.astype(np.float64)))


@evaluate(arith.DirectedOp)
def directed_(m: Machine, op: arith.DirectedOp, *args: np.ndarray) -> np.ndarray:
    return directed(op.function, op.direction, *args)


def _add_to_odd(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a + b in fp64, with the last bit set if inexact: rounding again gives the result of a single rounding."""
    s = np.asarray(a + b)
    part = s - a
    error = (a - (s - part)) + (b - part)  # exact (Knuth)
    even = s.view(np.int64) & 1 == 0
    nudge = np.isfinite(s) & (error != 0) & even
    return np.where(nudge, np.nextafter(s, np.where(error > 0, np.inf, -np.inf)), s)


def fma_f64(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Add exact products and sums as unevaluated pairs, rounded to odd and then once. Where that could over- or
    underflow, compute one element at a time in rational arithmetic."""
    x, y, z = np.broadcast_arrays(x, y, z)
    p = x * y
    safe = (np.abs(p) < 1e300) & (np.abs(p) > 1e-250) & (np.abs(z) < 1e300)
    safe &= (np.abs(x) < 1e290) & (np.abs(y) < 1e290) & ((np.abs(z) > 1e-250) | (z == 0))
    (x0, x1), (y0, y1) = _halves(x), _halves(y)
    low = ((x0 * y0 - p) + x0 * y1 + x1 * y0) + x1 * y1  # exact (Dekker)
    small, a = _two_sum(z, low)
    high, b = _two_sum(p, small)
    out = np.asarray(high + _add_to_odd(b, a))
    for i in zip(*np.nonzero(~safe), strict=True) if out.ndim else ((),) * (not safe):
        out[i] = _fma_exact(float(x[i]), float(y[i]), float(z[i]))
    return out


def _halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the upper 26 bits of each number, and the rest."""
    scaled = x * 134217729.0
    upper = scaled - (scaled - x)
    return upper, x - upper


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (s, e): s is the rounded sum, and s + e the exact one (Knuth)."""
    s = a + b
    part = s - a
    return s, (a - (s - part)) + (b - part)


def _fma_exact(x: float, y: float, z: float) -> float:
    if not (math.isfinite(x) and math.isfinite(y)):
        return x * y + z
    if not math.isfinite(z):
        return z
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    try:
        return float(exact) if exact else x * y + z  # the sign of a zero
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


@evaluate(arith.NegOp)
def neg_(m: Machine, op: Op, x: np.ndarray) -> np.ndarray:
    return x if x.dtype == np.bool_ else _wrap(op, -x)


@evaluate(arith.AbsOp)
def abs_(m: Machine, op: Op, x: np.ndarray) -> np.ndarray:
    return x if x.dtype == np.bool_ else _wrap(op, np.abs(x))


@np.vectorize
def _erf(x: float) -> float:
    return math.erf(x)


def _round_away(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 2.0**52, np.copysign(np.floor(np.abs(x) + 0.5), x), x)


def _error_function(x: np.ndarray) -> np.ndarray:
    return _erf(x) if x.size else x  # vectorize takes the type from the first element


def _reciprocal_root(x: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(x)


def _reciprocal_cube_root(x: np.ndarray) -> np.ndarray:
    return 1 / np.cbrt(x)


def _erfinv_ratio(rest: np.ndarray) -> np.ndarray:
    """erfinv(y) / y, y y = 1 - rest, by the quantiles of a normal variable; near 0 by its limit, off by y y / 4."""
    y = np.sqrt(1 - rest)
    below = rest / (1 + y) / 2  # (1 - y) / 2
    inside = (rest > 0) & (rest < 1 - 1e-10)
    size = np.zeros_like(y)
    size[inside] = [-_QUANTILE(p) for p in below[inside]]
    size = np.where(rest == 0, np.inf, size / math.sqrt(2))
    near = np.where(np.isnan(y) | (rest < 0), np.nan, math.sqrt(math.pi) / 2)
    return np.where(inside | (rest == 0), size / np.where(y > 0, y, 1), near)


_QUANTILE = NormalDist().inv_cdf
_MATH: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp, "exp2": np.exp2, "exp10": partial(np.power, 10.0), "expm1": np.expm1, "log": np.log,
    "log2": np.log2, "log10": np.log10, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "erf": _error_function, "sqrt": np.sqrt, "sqrt_rn": np.sqrt, "rsqrt": _reciprocal_root,
    "fast_log2": np.log2, "fast_rcbrt": _reciprocal_cube_root, "erfinv_ratio": _erfinv_ratio,
    "bessel_i0": partial(bessel_i, order=0), "bessel_i1": partial(bessel_i, order=1),
    "bessel_j0": partial(bessel_j, order=0), "bessel_j1": partial(bessel_j, order=1),
    "bessel_y0": partial(bessel_y, order=0), "bessel_y1": partial(bessel_y, order=1),
    "fast_sin": np.sin, "fast_cos": np.cos,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint, "round": _round_away,
}  # fmt: skip


@evaluate(*MATH_OPS.values())
def math_(m: Machine, op: Op, x: np.ndarray) -> np.ndarray:
    # Compute in fp64 and round once: back ends' error bounds are measured against the exact value.
    return _wrap(op, _MATH[op.opcode](np.asarray(x, np.float64)))


@evaluate(arith.IsNanOp)
def isnan_(m: Machine, op: Op, x: np.ndarray) -> np.ndarray:
    return np.isnan(x)


@evaluate(arith.PopcOp)
def popc_(m: Machine, op: arith.PopcOp, x: np.ndarray) -> np.ndarray | int:
    bits = _bits(op, x)
    one = bits.dtype.type(1)
    return sum(
        ((bits >> bits.dtype.type(i)) & one).astype(np.int32)
        for i in range(elem_of(op.x.type).bits)
    )


@evaluate(arith.ClzOp)
def clz_(m: Machine, op: arith.ClzOp, x: np.ndarray) -> np.ndarray:
    bits, width = _bits(op, x), elem_of(op.x.type).bits
    count = np.full(np.shape(x), width, np.int32)
    for i in range(width):
        count = np.where((bits >> bits.dtype.type(i)) & bits.dtype.type(1), width - 1 - i, count)
    return count.astype(np.int32)


def _bits(op: Any, x: np.ndarray) -> np.ndarray:
    return np.asarray(x).astype(bits_type(elem_of(op.x.type)))


@evaluate(arith.CastOp)
def cast_(m: Machine, op: arith.CastOp, x: np.ndarray) -> np.ndarray:
    return convert(x, elem_of(op.x.type), elem_of(op.result.type), op.rounding)


@evaluate(arith.BitcastOp)
def bitcast_(m: Machine, op: arith.BitcastOp, x: np.ndarray) -> np.ndarray:
    return bitcast(x, elem_of(op.x.type), elem_of(op.result.type))


@evaluate(arith.AddPtrOp)
def addptr_(m: Machine, op: arith.AddPtrOp, ptr: np.ndarray, offset: np.ndarray) -> np.ndarray:
    return ptr + offset.astype(np.int64) * np.int64(elem_of(op.ptr.type).element_ty.storage_bytes)


@evaluate(arith.HintOp)
def hint_(m: Machine, op: Op, x: np.ndarray) -> np.ndarray:
    return x
