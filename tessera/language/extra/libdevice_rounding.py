"""Defines libdevice's arithmetic and conversions rounded to nearest (rn), toward zero (rz), down (rd) and up (ru).

GPUs round in any direction by one instruction, for which the front end asks (`DirectedOp`); quotients, for which that
is no instruction but a function with branches, are as fast without. Elsewhere what was rounded to nearest is moved to
its neighbour where the sign of what it misses, which is found exactly, says so; fp32 does so in fp64. No hardware
mode is changed.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING

from tessera.dtypes import float32, float64, int32, int64, uint32, uint64
from tessera.language import arithmetic
from tessera.language.arithmetic import fma, where
from tessera.language.builtin import Builtin
from tessera.language.callable import library
from tessera.language.creation import zeros_like
from tessera.language.extra.libdevice_base import (
    INF,
    _bits,
    _exponent,
    _product2,
    _scale,
    _step_down,
    _step_up,
    _sum2,
)
from tessera.language.extra.libdevice_ops import ceil, div_rn, floor, rint, sqrt_rn, trunc

if TYPE_CHECKING:
    from typing import (
        Any as constexpr,  # kernels can use numbers that are annotated constexpr
    )

    from tessera.language.operand_types import Operand
    from tessera.language.values import tensor
else:
    from tessera.language.values import constexpr


# --- from an exact pair to the wanted neighbour -----------------------------------------------------------------
@library
def _step_in(f: tensor):
    """Return the next number toward zero, for f other than 0."""
    if f.dtype == float64:
        return (f.to(int64, bitcast=True) - 1).to(float64, bitcast=True)
    else:
        return (f.to(int32, bitcast=True) - 1).to(float32, bitcast=True)


@library
def _moved(f: tensor, over: tensor, under: tensor, mode: constexpr):
    """Return f, rounded to nearest, moved by a step: `over`, `under`: f is above, below the exact value."""
    if mode == "rd":
        return where(over, _step_down(f), f)
    elif mode == "ru":
        return where(under, _step_up(f), f)
    elif mode == "rz":
        outside = ((f > 0) & over) | ((f < 0) & under)
        return where(outside, _step_in(f), f)
    else:
        return f


@library
def _narrowed(s: tensor, e: Operand, mode: constexpr):
    """Return the fp64 value s plus a tiny e (only its sign counts) as fp32."""
    f = s.to(float32)
    g = f.to(float64)
    over = (g > s) | ((g == s) & (e < 0))
    under = (g < s) | ((g == s) & (e > 0))
    return _moved(f, over, under, mode)


@library
def _wide_sum(x: tensor, y: tensor, mode: constexpr):
    """x + y of fp64."""
    s, e = _sum2(x, y)
    finite = (arithmetic.abs(x) < INF) & (arithmetic.abs(y) < INF)
    over = (e < 0) | ((s == INF) & finite)
    under = (e > 0) | ((s == -INF) & finite)
    return _moved(s, over, under, mode)


@library
def _exact_zero(f: tensor, is_zero: tensor, x: tensor, y: tensor, mode: constexpr):
    """An exact sum 0 (`is_zero`) of unlike zeros or of opposites is -0 when rounding down."""
    if mode == "rd":
        plus = (_bits(x) >= 0) & (_bits(y) >= 0)
        return where(is_zero & ~plus, -0.0, f)
    else:
        return f


@library
def _add(x: tensor, y: tensor, mode: constexpr):
    a, b = x.to(float64), y.to(float64)
    if mode == "rn":
        return fma(x, 1.0, y)  # on its own: contracted with a product it would not be rounded
    elif x.dtype == float64:
        f = _wide_sum(a, b, mode)
        return _exact_zero(f, f == 0, a, b, mode)
    else:
        s, e = _sum2(a, b)
        return _exact_zero(_narrowed(s, e, mode), s == 0, a, b, mode)


@library
def _sub(x: tensor, y: tensor, mode: constexpr):
    return _add(x, -y, mode)


@library
def _product_error(x: tensor, y: tensor, p: tensor):
    """Return the error of the rounded product p of fp64; only the sign is exact where x * y underflows."""
    small = arithmetic.abs(p) < 2.0**-960
    up = where(small, 2.0**537, 1.0)
    return fma(x * up, y * up, -((p * up) * up))


@library
def _mul(x: tensor, y: tensor, mode: constexpr):
    if mode == "rn":
        return fma(x, y, -0.0)
    elif x.dtype == float64:
        p = fma(x, y, -0.0)
        e = _product_error(x, y, p)
        return _moved(p, e < 0, e > 0, mode)
    else:
        return _narrowed(x.to(float64) * y.to(float64), 0.0, mode)


@library
def _div(x: tensor, y: tensor, mode: constexpr):
    if mode == "rn":
        return div_rn(x, y)
    elif x.dtype == float64:
        q = div_rn(x, y)
        ordinary = (x != 0) & (y != 0) & (arithmetic.abs(x) < INF) & (arithmetic.abs(y) < INF)
        a, b = where(ordinary, x, 1.0), where(ordinary, y, 1.0)
        ea, eb = _exponent(a), _exponent(b)
        a, b = _scale(a, -ea), _scale(b, -eb)
        rest = fma(-_scale(where(ordinary, q, 1.0), eb - ea), b, a)
        e = where(b < 0, -rest, rest)
        return _moved(q, ordinary & (e < 0), ordinary & (e > 0), mode)
    else:
        q = div_rn(x, y)
        a, product = x.to(float64), q.to(float64) * y.to(float64)  # exact
        over, under = product > a, product < a
        return _moved(q, where(y < 0, under, over), where(y < 0, over, under), mode)


@library
def _sqrt(x: tensor, mode: constexpr):
    s = sqrt_rn(x)
    if mode == "rn":
        return s
    elif x.dtype == float64:
        a = x
        small = a < 2.0**-900
        up = where(small, 2.0**108, 1.0)
        root = s * where(small, 2.0**54, 1.0)
        e = fma(-root, root, a * up)
        return _moved(s, e < 0, e > 0, mode)
    else:
        a, root = x.to(float64), s.to(float64)
        return _moved(s, root * root > a, root * root < a, mode)  # the square is exact


@library
def _rest_of_product(x: tensor, y: tensor, p: tensor, low: tensor):
    """Return what p + low misses of x * y of fp64, where that underflows, times 2**1074."""
    up = 2.0**537
    high, rest = _product2(x * up, y * up)
    return ((high - (p * up) * up) - (low * up) * up) + rest


@library
def _fma(x: tensor, y: tensor, z: tensor, mode: constexpr):
    if mode == "rn":
        return fma(x, y, z)
    elif x.dtype == float64:
        r = fma(x, y, z)
        p, low = _product2(x, y)
        a1, a2 = _sum2(z, low)
        b1, b2 = _sum2(p, a1)
        e = ((b1 - r) + b2) + a2
        # Where the product underflows, `low` is a rounded error; if `e` is 0, what it misses decides.
        e = where((e == 0) & (arithmetic.abs(p) < 2.0**-960), _rest_of_product(x, y, p, low), e)
        finite = (arithmetic.abs(x) < INF) & (arithmetic.abs(y) < INF) & (arithmetic.abs(z) < INF)
        over = (e < 0) | ((r == INF) & finite)
        under = (e > 0) | ((r == -INF) & finite)
        return _exact_zero(_moved(r, over, under, mode), (r == 0) & ~(over | under), p, z, mode)
    else:
        p, c = x.to(float64) * y.to(float64), z.to(float64)
        s, e = _sum2(p, c)
        return _exact_zero(_narrowed(s, e, mode), s == 0, p, c, mode)


@library
def _reciprocal(x: tensor, mode: constexpr):
    return _div(zeros_like(x) + 1.0, x, mode)


# --- conversions ----------------------------------------------------------------------------------------------
@library
def _narrow(x: tensor, mode: constexpr):
    return _narrowed(x, 0.0, mode)


@library
def _whole(x: tensor, mode: constexpr):
    if mode == "rn":
        return rint(x)
    elif mode == "rz":
        return trunc(x)
    elif mode == "rd":
        return floor(x)
    else:
        return ceil(x)


@library
def _to_int(x: tensor, mode: constexpr):
    return _whole(x, mode).to(int32)


@library
def _to_uint(x: tensor, mode: constexpr):
    return _whole(x, mode).to(uint32).to(int32, bitcast=True)


@library
def _to_long(x: tensor, mode: constexpr):
    return _whole(x, mode).to(int64)


@library
def _to_ulong(x: tensor, mode: constexpr):
    return _whole(x, mode).to(uint64).to(int64, bitcast=True)


@library
def _parts(x: tensor):
    """Return a 64-bit int as an exact pair of fp64."""
    return _sum2((x >> 32).to(float64) * 4294967296.0, (x & 0xFFFFFFFF).to(float64))


@library
def _int_to_float(x: tensor, mode: constexpr):
    return _narrowed(x.to(int32, bitcast=True).to(float64), 0.0, mode)


@library
def _uint_to_float(x: tensor, mode: constexpr):
    return _narrowed(x.to(uint32, bitcast=True).to(float64), 0.0, mode)


@library
def _long_to_float(x: tensor, mode: constexpr):
    s, e = _parts(x.to(int64, bitcast=True))
    return _narrowed(s, e, mode)


@library
def _ulong_to_float(x: tensor, mode: constexpr):
    s, e = _parts(x.to(uint64, bitcast=True))
    return _narrowed(s, e, mode)


@library
def _long_to_double(x: tensor, mode: constexpr):
    s, e = _parts(x.to(int64, bitcast=True))
    return _moved(s, e < 0, e > 0, mode)


@library
def _ulong_to_double(x: tensor, mode: constexpr):
    s, e = _parts(x.to(uint64, bitcast=True))
    return _moved(s, e < 0, e > 0, mode)


# --- the public names ----------------------------------------------------------------------------------------
def _one(arg0: tensor) -> None: ...
def _two(arg0: tensor, arg1: tensor) -> None: ...
def _three(arg0: tensor, arg1: tensor, arg2: tensor) -> None: ...


_TEMPLATES: dict[int, Callable[..., None]] = {1: _one, 2: _two, 3: _three}
MODES = {"rn": "to nearest", "rz": "toward zero", "rd": "down", "ru": "up"}
# name -> (function on typed operands and a mode, dtypes it takes, number of operands, what it computes)
_FAMILIES = {
    "add": (_add, "f", 2, "arg0 + arg1"),
    "sub": (_sub, "f", 2, "arg0 - arg1"),
    "mul": (_mul, "f", 2, "arg0 * arg1"),
    "div": (_div, "f", 2, "arg0 / arg1"),
    "fma": (_fma, "f", 3, "arg0 * arg1 + arg2"),
    "rcp": (_reciprocal, "f", 1, "1 / x"),
    "sqrt": (_sqrt, "f", 1, "Square root"),
    "double2float": (_narrow, "f64", 1, "An fp64 as fp32"),
    "double2int": (_to_int, "f64", 1, "An fp64 as int32"),
    "double2uint": (_to_uint, "f64", 1, "An fp64 as the bits of a uint32, typed int32"),
    "double2ll": (_to_long, "f64", 1, "An fp64 as int64"),
    "double2ull": (_to_ulong, "f64", 1, "An fp64 as the bits of a uint64, typed int64"),
    "float2int": (_to_int, "f32", 1, "An fp32 as int32"),
    "float2uint": (_to_uint, "f32", 1, "An fp32 as the bits of a uint32, typed int32"),
    "float2ll": (_to_long, "f32", 1, "An fp32 as int64"),
    "float2ull": (_to_ulong, "f32", 1, "An fp32 as the bits of a uint64, typed int64"),
    "int2float": (_int_to_float, "i32 u32", 1, "An int32 as fp32"),
    "uint2float": (_uint_to_float, "u32 i32", 1, "A uint32 as fp32"),
    "ll2float": (_long_to_float, "i64 u64", 1, "An int64 as fp32"),
    "ull2float": (_ulong_to_float, "u64 i64", 1, "A uint64 as fp32"),
    "ll2double": (_long_to_double, "i64 u64", 1, "An int64 as fp64"),
    "ull2double": (_ulong_to_double, "u64 i64", 1, "A uint64 as fp64"),
}  # fmt: skip


def _stub(name: str, arity: int, doc: str) -> Builtin:
    template = _TEMPLATES[arity]
    stub = FunctionType(template.__code__, template.__globals__, name)
    stub.__qualname__, stub.__module__, stub.__doc__ = name, __name__, doc
    return Builtin(stub)


# name -> (builtin, function, dtypes, mode)
ROUNDED = {
    f"{family}_{mode}": (_stub(f"{family}_{mode}", arity, f"{what}, rounded {how}; exact."), fn, kinds, mode)
    for family, (fn, kinds, arity, what) in _FAMILIES.items()
    for mode, how in MODES.items()
}  # fmt: skip
