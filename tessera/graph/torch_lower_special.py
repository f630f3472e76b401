"""Lowers special functions, which the tile language's own library computes: in fp64, rounded once to narrower types."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from functools import partial

from tessera.dtypes import float32, int16, int32
from tessera.graph.index import Expr
from tessera.graph.library import library
from tessera.graph.scalars import Scalar, constant, is_inf, is_nan, where
from tessera.graph.torch_lower import Lowering, Tensor, rule
from tessera.graph.torch_lower_pointwise import (
    AS_GIVEN,
    TO_FLOAT,
    Pointwise,
    accumulator_of,
    apply,
    cast,
)

# Overload or operation of ATen -> function of the library.
FUNCTIONS = {
    "erfc": "erfc", "erfinv": "erfinv", "lgamma": "lgamma", "special_erfcx": "erfcx", "i0": "cyl_bessel_i0",
    "special_i1": "cyl_bessel_i1", "special_modified_bessel_i0": "cyl_bessel_i0",
    "special_modified_bessel_i1": "cyl_bessel_i1", "special_bessel_j0": "j0", "special_bessel_j1": "j1",
    "special_bessel_y0": "y0", "special_bessel_y1": "y1", "special_ndtri": "normcdfinv",
}  # fmt: skip

for _name, _function in FUNCTIONS.items():
    rule(_name)(partial(apply, Pointwise(TO_FLOAT, partial(library, _function))))


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
