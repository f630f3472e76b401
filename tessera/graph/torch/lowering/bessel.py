"""Lowers polygamma functions and more Bessel functions by series of our own, in fp64, rounded once to narrower types.

Sources: NIST Digital Library of Mathematical Functions, 5.15 (polygamma), 10.31 (small arguments of K), 10.32.9 (its
integral), 10.40 (large arguments of I and K), 10.49 (spherical functions).
"""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from tessera.dtypes import float64
from tessera.graph.ir.library import library
from tessera.graph.ir.scalars import Scalar, function, is_inf, where
from tessera.graph.torch.lowering.base import Lowering, Tensor, rule
from tessera.graph.torch.lowering.pointwise import TO_FLOAT, Pointwise, apply
from tessera.graph.torch.lowering.special import digamma
from tessera.graph.torch.types import NotLowered

EVEN_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)  # B(2), B(4), ...
MOST_DERIVATIVES = 10  # of psi, from where on the series has too few terms
LARGE_I, LARGE_K = 50.0, 30.0  # where asymptotic series begin
TERMS = 16
STEP, STEPS = (
    0.125,
    31,
)  # of the trapezoidal sum of an integral, whose error shrinks exponentially with the step


def polynomial(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    """The sum of coefficients[k] * x**k."""
    found = x.const(0)
    for c in reversed(coefficients):
        found = found * x + c
    return found


def power(x: Scalar, n: int) -> Scalar:
    found = x.const(1)
    for _ in range(n):
        found = found * x
    return found


# --- polygamma ------------------------------------------------------------------------------------------------------
@rule("polygamma")
def polygamma(low: Lowering, n: int, x: Tensor) -> Tensor:
    if not isinstance(n, int) or n > MOST_DERIVATIVES:
        raise NotLowered("a derivative of high or unknown order")
    return apply(Pointwise(TO_FLOAT, partial(_polygamma, n) if n else digamma), low, x)


def _polygamma(n: int, x: Scalar) -> Scalar:
    """(-1)**(n+1) n! times the sum of (x + k)**-(n+1), by reflection below 0."""
    wide, sign = x.to(float64), (-1) ** (n + 1)
    negative = wide < 0
    y = where(negative, 1 - wide, abs(wide))
    found = _hurwitz(n, y) * (sign * math.factorial(n))
    whole = function("floor", wide + 0.5)
    turn = (wide - whole) * math.pi
    cotangent = function("cos", turn) / function("sin", turn)
    reflected = polynomial(cotangent, cotangent_derivative(n)) * -math.pi - found * sign
    found = where(negative, reflected, found)
    found = where((wide <= 0) & whole.eq(wide), sign * math.inf, found)
    if n > 1:  # eager's sum does not end there
        found = where(is_inf(wide), math.nan, found)
    return found.to(x.type)


def _hurwitz(n: int, y: Scalar) -> Scalar:
    """The sum of (y + k)**-(n+1) for y >= 0: of the first ones as they are, of the rest by Euler and Maclaurin."""
    total = y.const(0)
    for _ in range(TERMS):
        small = y < TERMS
        total = total + where(small, power(1 / y, n + 1), 0)
        y = y + where(small, y.const(1), 0)
    r = 1 / y
    series, factor = [], float(n + 1)
    for j, b in enumerate(EVEN_BERNOULLI, 1):
        series.append(b / math.factorial(2 * j) * factor)
        factor *= (n + 2 * j) * (n + 2 * j + 1)
    tail = polynomial(r * r, series) * r * r + r * 0.5 + 1 / n
    return total + power(r, n) * tail


def cotangent_derivative(n: int) -> list[float]:
    """The n-th derivative of cot(pi x) as a polynomial of the cotangent."""
    found = [0.0, 1.0]
    for _ in range(n):
        slope = [k * c for k, c in enumerate(found)][1:]
        found = [-math.pi * c for c in [*slope, 0.0, 0.0]]
        for k, c in enumerate(slope):
            found[k + 2] -= math.pi * c
    return found


# --- Bessel functions -----------------------------------------------------------------------------------------------
def _spherical(x: Scalar) -> Scalar:
    wide = x.to(float64)
    series = [(-1) ** k / math.factorial(2 * k + 1) for k in range(8)]
    near = polynomial(wide * wide, series)
    far = where(is_inf(wide), 0.0, function("sin", wide) / wide)
    return where(abs(wide) < 0.5, near, far).to(x.type)


def asymptotic(order: int, sign: int) -> list[float]:
    """The coefficients of the series in 1/x that I (sign -1) and K (sign 1) have in common for large x."""
    found = [1.0]
    for k in range(1, TERMS):
        found.append(sign * found[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))
    return found


def _scaled_i(order: int, x: Scalar) -> Scalar:
    """exp(-|x|) I(x)."""
    wide = x.to(float64)
    y = abs(wide)
    near = library(f"cyl_bessel_i{order}", y) * function("exp", -y)
    far = polynomial(1 / y, asymptotic(order, -1)) / function("sqrt", y * (2 * math.pi))
    found = where(y < LARGE_I, near, far)
    return (where(wide < 0, -found, found) if order else found).to(x.type)


def _k(order: int, scaled: bool, x: Scalar) -> Scalar:
    """K(x), times exp(x) if scaled."""
    y = x.to(float64)
    middle = y.const(0.5 * STEP)  # the integral of exp(-y (cosh t - 1)) cosh(order t)
    for k in range(1, STEPS):
        height = math.cosh(k * STEP)
        middle = middle + function("exp", y * (1 - height)) * (STEP * height**order)
    far = polynomial(1 / y, asymptotic(order, 1)) * function("sqrt", math.pi / 2 / y)
    found = where(y < LARGE_K, middle, far)
    grown = function("exp", y)
    near = _small_k(order, y)
    found = where(y < 2, near * grown if scaled else near, found if scaled else found / grown)
    return where(y.eq(0), math.inf, found).to(x.type)


def _small_k(order: int, y: Scalar) -> Scalar:
    """K(y) for y < 2, by the power series."""
    harmonic = [sum(1 / j for j in range(1, k + 1)) - GAMMA for k in range(TERMS + 1)]
    logarithm, square = function("log", y * 0.5), y * y * 0.25
    if order == 0:
        series = [harmonic[k] / math.factorial(k) ** 2 for k in range(TERMS)]
        return polynomial(square, series) - logarithm * library("cyl_bessel_i0", y)
    series = [
        (harmonic[k] + harmonic[k + 1]) / (math.factorial(k) * math.factorial(k + 1))
        for k in range(TERMS)
    ]
    return 1 / y + logarithm * library("cyl_bessel_i1", y) - polynomial(square, series) * y * 0.25


GAMMA = 0.57721566490153286061  # Euler's

for _name, _function in {
    "special_spherical_bessel_j0": _spherical,
    "special_i0e": partial(_scaled_i, 0),
    "special_i1e": partial(_scaled_i, 1),
    "special_modified_bessel_k0": partial(_k, 0, False),
    "special_modified_bessel_k1": partial(_k, 1, False),
    "special_scaled_modified_bessel_k0": partial(_k, 0, True),
    "special_scaled_modified_bessel_k1": partial(_k, 1, True),
}.items():
    rule(_name)(partial(apply, Pointwise(TO_FLOAT, _function)))
