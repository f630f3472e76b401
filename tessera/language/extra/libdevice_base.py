"""Gives libdevice's functions their ground: checked operands, bits of floats, powers of two, error-free sums,
polynomials.

Most functions compute in fp64 and round once at the end for fp32 operands, which makes those correct in all but the
rarest cases; libdevice_single.py has those that compute in fp32. Names with an underscore in front work on fp64 tensors
unless they say otherwise.
"""

# pyright: reportReturnType=false
from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.dtypes import float32, float64, int32, int64
from tessera.language import arithmetic, creation, hints, values
from tessera.language.arithmetic import where
from tessera.language.builtin import builtin
from tessera.language.callable import library

if TYPE_CHECKING:
    from tessera.language.kernel_typing import constexpr
    from tessera.language.operand_types import StrLike, TensorLike
    from tessera.language.values import tensor
else:
    from tessera.language.values import constexpr

INF: constexpr = values.constexpr(float("inf"))
NAN: constexpr = values.constexpr(float("nan"))
TINY: constexpr = values.constexpr(2.0**-1022)  # smallest normal fp64
SIGN: constexpr = values.constexpr(-(2**63))


@builtin
def typed(function: StrLike, kinds: StrLike, *args: TensorLike) -> tensor:
    """`args` as tensors of one dtype, which is among `kinds` ("f", "f32", "f64", "i", "i32", "u", …).

    One argument gives a tensor, several a tuple. TypeMismatch names `function` otherwise.
    """


# --- bits ------------------------------------------------------------------------------------------------
@library
def _bits(x: tensor):
    return x.to(int64, bitcast=True)


@library
def _is_negative(x: tensor):
    """Return whether the sign bit of a float is set."""
    if x.dtype == float64:
        return x.to(int64, bitcast=True) < 0
    else:
        return x.to(int32, bitcast=True) < 0


@library
def _with_sign(size: tensor, x: tensor):
    """Return |size| with the sign of x."""
    if x.dtype == float64:
        return ((_bits(size) & 0x7FFFFFFFFFFFFFFF) | (_bits(x) & SIGN)).to(float64, bitcast=True)
    else:
        sign = x.to(int32, bitcast=True) & -0x80000000
        return ((size.to(int32, bitcast=True) & 0x7FFFFFFF) | sign).to(float32, bitcast=True)


@library
def _sine_of(s: tensor, c: tensor, n: tensor, x: tensor):
    """Return sin(pi x) for x = n/2 + r, n from -2 to 2, from the sine and the cosine of pi r."""
    value = where(arithmetic.abs(n) == 1.0, c, s)
    flipped = where((n == -1.0) | (arithmetic.abs(n) == 2.0), -value, value)
    # Whole numbers give zeros with the sign of x.
    return where(flipped == 0, _with_sign(flipped, x), flipped)


@library
def _cosine_of(s: tensor, c: tensor, n: tensor):
    """Return cos(pi x), as `_sine_of` does."""
    value = where(n == 1.0, -s, where(n == -1.0, s, where(n == 0, c, -c)))
    return where(value == 0, 0.0, value)


@library
def _power(n: tensor):
    """Return 2**n for an int64 n from -1022 to 1023."""
    return ((n + 1023) << 52).to(float64, bitcast=True)


@library
def _scale(x: tensor, n: tensor):
    """Return x * 2**n, rounded once, for any int n."""
    k = n.to(int64)
    k = arithmetic.minimum(arithmetic.maximum(k, -2200), 2200)
    y = x
    # Downward steps keep 53 bits to spare, so that only the last one can round a subnormal.
    for _ in hints.static_range(2):
        step = arithmetic.where(k > 1023, 1023, arithmetic.where(k < -1022, -969, 0)).to(int64)
        y = y * _power(step)
        k = k - step
    return y * _power(arithmetic.minimum(arithmetic.maximum(k, -1022), 1023))


@library
def _exponent(x: tensor):
    """Return the int64 e with 2**e <= |x| < 2**(e+1), for a finite x other than 0, subnormals included."""
    a = arithmetic.abs(x)
    low = a < TINY
    field = _bits(arithmetic.where(low, a * 18014398509481984.0, a)) >> 52
    return field - arithmetic.where(low, 1077, 1023)


@library
def _step_up(x: tensor):
    """Return the next larger number of x's dtype; callers handle NaN and infinity."""
    if x.dtype == float64:
        bits = x.to(int64, bitcast=True)
        moved = arithmetic.where(bits < 0, bits - 1, bits + 1)
        return arithmetic.where(x == 0, 5e-324, moved.to(float64, bitcast=True))
    else:
        bits = x.to(int32, bitcast=True)
        moved = arithmetic.where(bits < 0, bits - 1, bits + 1)
        least = arithmetic.where(x == 0, 1, moved)
        return least.to(float32, bitcast=True)


@library
def _step_down(x: tensor):
    return -_step_up(-x)


# --- sums and products with their errors --------------------------------------------------------------------
@library
def _sum2(a: tensor, b: tensor):
    """Return (s, e) with s = a + b rounded and s + e = a + b exactly."""
    s = a + b
    part = s - a
    return s, (a - (s - part)) + (b - part)


@library
def _product2(a: tensor, b: tensor):
    """Return (p, e) with p = a * b rounded and p + e = a * b exactly, where nothing underflows."""
    p = arithmetic.fma(a, b, -0.0)  # on its own: contracted it would not be rounded
    return p, arithmetic.fma(a, b, -p)


@library
def _poly(x: tensor, C: constexpr):
    """Return the polynomial with coefficients C (lowest first) at x, by Horner's rule."""
    n: constexpr = len(C)
    total = creation.zeros_like(x) + C[n - 1]
    for i in hints.static_range(1, n):
        total = total * x + C[n - 1 - i]
    return total


@library
def _limited(x: tensor, high: constexpr):
    """Return x, at most `high`; NaN stays."""
    return arithmetic.where(x > high, high, x)


@library
def _exp_split(high: tensor, low: tensor):
    """Return exp(high + low) for a small low."""
    e = arithmetic.exp(high)
    return arithmetic.where(e < INF, arithmetic.fma(e, low, e), e)
