"""Lowers special functions, which the tile language's own library computes: in fp64, rounded once to narrower types."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

import math
from functools import partial

from tessera.dtypes import float32, float64, int16, int32
from tessera.graph.index import Expr
from tessera.graph.ir.library import library
from tessera.graph.ir.scalars import Scalar, constant, function, is_inf, is_nan, where
from tessera.graph.torch.lowering.base import Lowering, Tensor, broadcast, rule
from tessera.graph.torch.lowering.pointwise import (
    AS_GIVEN,
    TO_FLOAT,
    Pointwise,
    accumulator_of,
    apply,
    cast,
)
from tessera.ops import arith

# Overload or operation of ATen -> function of the library.
FUNCTIONS = {
    "erfc": "erfc", "erfinv": "erfinv", "lgamma": "lgamma", "special_erfcx": "erfcx", "i0": "cyl_bessel_i0",
    "special_i1": "cyl_bessel_i1", "special_modified_bessel_i0": "cyl_bessel_i0",
    "special_modified_bessel_i1": "cyl_bessel_i1", "special_bessel_j0": "j0", "special_bessel_j1": "j1",
    "special_bessel_y0": "y0", "special_bessel_y1": "y1", "special_ndtri": "normcdfinv",
}  # fmt: skip

for _name, _function in FUNCTIONS.items():
    rule(_name)(partial(apply, Pointwise(TO_FLOAT, partial(library, _function))))


BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)  # B(2k) / 2k


def digamma(x: Scalar) -> Scalar:
    """By psi(x) = psi(x + 1) - 1/x up to 10, from where on the asymptotic series is exact; by psi(1 - x) below 0."""
    wide = x.to(float64)
    negative = wide < 0
    y = where(negative, 1 - wide, wide)
    sum = y.const(0)
    for _ in range(10):
        small = y < 10
        sum = sum - where(small, 1 / y, 0)
        y = y + where(small, y.const(1), 0)
    z, series = 1 / (y * y), y.const(0)
    for term in reversed(BERNOULLI):
        series = (series + term) * z
    found = sum + function("log", y) - 0.5 / y - series
    whole = function("floor", wide + 0.5)
    turn = (wide - whole) * math.pi
    found = where(negative, found - math.pi * function("cos", turn) / function("sin", turn), found)
    found = where(negative & whole.eq(wide), math.nan, found)
    pole = wide.const(math.inf).binary(arith.CopySignOp, -wide)
    return where(wide.eq(0), pole, found).to(x.type)


rule("digamma")(partial(apply, Pointwise(TO_FLOAT, digamma)))


def _next(a: Scalar, b: Scalar) -> Scalar:
    if a.type.bits > 16:
        return library("nextafter", a, b)
    x, y = a.to(float32), b.to(float32)
    step = where((x < y) ^ (x < 0), constant(a.builder, 1, int16), -1)
    least = where(y < 0, constant(a.builder, -0x7FFF, int16), 1)
    moved = where(x.eq(0), least, a.bits(int16) + step)
    number = where(x.eq(y), b.bits(int16), moved).bits(a.type)
    return where(is_nan(x) | is_nan(y), (x + y).to(a.type), number)


rule("nextafter")(partial(apply, Pointwise(AS_GIVEN, _next)))


@rule("ldexp.Tensor")
def ldexp(low: Lowering, x: Tensor, exponent: Tensor) -> Tensor:
    """x * 2**exponent for whole exponents, rounded once."""
    inside = accumulator_of(low.elem)

    def body(i: list[Expr]) -> Scalar:
        value = cast(low.load(x, broadcast(x, i)), inside)
        by = cast(low.load(exponent, broadcast(exponent, i)), int32)
        return library("ldexp", value, by).rounded(low.elem)

    return low.map(body)


@rule("frexp.Tensor")
def frexp(low: Lowering, x: Tensor) -> list[Tensor]:
    """(mantissa, exponent) with 1/2 <= |mantissa| < 1; zeros and what is not finite have the exponent 0."""
    inside = accumulator_of(x.elem)

    def body(i: list[Expr]) -> list[Scalar]:
        value = cast(low.load(x, i), inside)
        plain = ~(value.eq(0) | is_inf(value) | is_nan(value))
        safe = where(plain, value, 1)
        exponent = library("ilogb", safe) + 1
        mantissa = library("ldexp", safe, -exponent)
        return [where(plain, mantissa, value).rounded(x.elem), where(plain, exponent.to(int32), 0)]

    return low.loops(x.shape, body)
