"""Fits the polynomials of mathematical functions: `python -m tools.fit.polynomials [NAME ...] [--fit]`.

A row says which function a table of coefficients approximates, where, and what an error of the polynomial does to the
result. Without options a line for each table tells the largest error of the result that its polynomial causes.
`--fit` prints the coefficients again: those that interpolate the function on Chebyshev nodes, or those of a minimax fit
(Lawson's iteration) that are rounded one by one, lowest power first, and the others fitted again after each.

Tables that are series (`ATAN64`, `I0_SMALL`) have no row: their formula is their source. All is computed with 60
digits by mpmath, which the tests need, too.
"""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np

mp: Any = mpmath.mp.clone()
mp.dps = 60
Real = Any  # mpmath's numbers, which have no types
Function = Callable[[Real], Real]
ELEMENTS = "tessera.backends.elements.coefficients"
LIBDEVICE = "tessera.language.extra.libdevice_tables"


@dataclass(frozen=True)
class Polynomial:
    """The table `name` of `module`: `of(x)` for x from `low` to `high`. `weight(x)`: the relative error of the result
    by an error of 1 of the polynomial; without it errors count beside the largest value. `single`: the coefficients
    are rounded to fp32. `nodes`: they interpolate `of` on the Chebyshev nodes."""

    module: str
    name: str
    of: Function
    low: Real
    high: Real
    weight: Function | None = None
    single: bool = False
    nodes: bool = False

    @property
    def coefficients(self) -> tuple[float, ...]:
        table = getattr(importlib.import_module(self.module), self.name)
        return tuple(getattr(table, "value", table))

    def rounded(self, x: Real) -> float:
        return float(np.float32(float(x))) if self.single else float(x)

    def places(self, count: int) -> list[Real]:
        """The Chebyshev nodes of the interval, as many as `count`."""
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        return [middle + half * mp.cos(mp.pi * (2 * k + 1) / (2 * count)) for k in range(count)]

    def weights(self, x: list[Real]) -> list[Real]:
        if self.weight:
            return [abs(self.weight(v)) for v in x]
        return [1 / max(abs(self.of(v)) for v in x)] * len(x)


def _element(
    name: str, of: Function, low: Real, high: Real, weight: Function | None, **how: bool
) -> Polynomial:
    return Polynomial(ELEMENTS, name, of, mp.mpf(low), mp.mpf(high), weight, **how)


def _special(name: str, of: Function) -> Polynomial:
    return Polynomial(LIBDEVICE, name, of, mp.mpf(-1), mp.mpf(1), nodes=True)


def _single(name: str, of: Function, low: Real, high: Real, weight: Function | None) -> Polynomial:
    return Polynomial(LIBDEVICE, name, of, mp.mpf(low), mp.mpf(high), weight, single=True)


def _relative(name: str, of: Function, low: Real, high: Real) -> Polynomial:
    return _single(name, of, low, high, lambda t: 1 / of(t))


def _share(name: str, of: Function, low: Real, high: Real) -> Polynomial:
    return _element(name, of, low, high, lambda t: 1 / of(t), single=True)


# --- functions of the tables -----------------------------------------------------------------------------------
def of_square(f: Function) -> Function:
    """A function of x*x as one of x."""
    return lambda z: f(mp.sqrt(z))


def log_rest(f: Real) -> Real:
    return (mp.log(1 + f) - f) / f**2


def erfc_scaled(t: Real) -> Real:
    """erfc(x) exp(x^2) / t for t = 2 / (2 + x)."""
    x = 2 / t - 2
    return mp.erfc(x) * mp.exp(x * x) / t


def erfcx(t: Real) -> Real:
    """(1 + 2a) exp(a^2) erfc(a) for t = (a - 4) / (a + 4)."""
    a = 4 * (1 + t) / (1 - t)
    return (1 + 2 * a) * mp.exp(a * a) * mp.erfc(a)


def erfinv(t: Real) -> Real:
    """erfinv(x) / x for t = 8 x^2 - 1."""
    x = mp.sqrt((t + 1) / 8)
    return mp.erfinv(x) / x


def erfcinv_start(t: Real) -> Real:
    """erfcinv(z) / s for s = sqrt(-log z); t is linear in 1/s, which is between 1/27.4 and 1/sqrt(log 2)."""
    low, high = 1 / mp.mpf("27.4"), 1 / mp.sqrt(mp.log(2))
    s = 2 / (high + low + t * (high - low))
    return mp.findroot(lambda y: mp.log(mp.erfc(y)) + s * s, s * mp.mpf(0.9)) / s


def lgamma(t: Real) -> Real:
    """lgamma(x) / ((x - 1) (x - 2)) for t = 5/3 (x - 2) / (x + 2)."""
    u = 3 * t / 5
    x = 2 * (1 + u) / (1 - u)
    if abs(x - 2) < 1e-30:
        x = 2 + mp.mpf("1e-30")  # the limit of 0 / 0
    return mp.loggamma(x) / ((x - 1) * (x - 2))


def stirling(t: Real) -> Real:
    """The error of Stirling's formula for log gamma, times x, for t = 128 / x^2 - 1."""
    x = mp.sqrt(128 / (t + 1))
    return x * (mp.loggamma(x) - (x - 0.5) * mp.log(x) + x - mp.log(2 * mp.pi) / 2)


def gamma_rest(t: Real) -> Real:
    """gamma(x) / (x / e)^(x - 1/2) for t = 1 / x."""
    x = 1 / t
    return mp.gamma(x) / (x / mp.e) ** (x - 0.5)


def erfinv_of_log(w: Real) -> Real:
    """erfinv(x) / x for w = -log2(1 - x^2)."""
    rest = mp.mpf(2) ** -w
    below = rest / (1 + mp.sqrt(1 - rest))  # 1 - x
    if below > 0.1:
        x = 1 - below
        return mp.erfinv(x) / x if x else mp.sqrt(mp.pi) / 2
    guess = mp.sqrt(-mp.log(below)) * mp.mpf(0.9)
    return mp.findroot(lambda y: mp.log(mp.erfc(y)) - mp.log(below), guess) / (1 - below)


def erfinv_tail(t: Real) -> Real:
    """erfinv(x) / x, times t, for t = 1 / sqrt(-log2(1 - x^2))."""
    return erfinv_of_log(1 / t**2) * t


def near(t: Real) -> Real:
    """The argument of Bessel functions below 8, for t = a^2 / 32 - 1."""
    return mp.sqrt((t + 1) * 32)


def far(t: Real) -> Real:
    """The argument of Bessel functions from 8 on, for t = 128 / a^2 - 1."""
    return 8 * mp.sqrt(2 / (t + 1))


def bessel_j(order: int) -> Function:
    """J without its first two zeros beyond 0, and J1 without its factor x."""

    def of(t: Real) -> Real:
        a = near(t)
        value = mp.besselj(order, a) / a**order
        for k in (1, 2):
            value /= a**2 - mp.besseljzero(order, k) ** 2
        return value

    return of


def bessel_y0(t: Real) -> Real:
    a = near(t)
    return mp.bessely(0, a) - 2 / mp.pi * mp.log(a) * mp.besselj(0, a)


def bessel_y1(t: Real) -> Real:
    a = near(t)
    return (mp.bessely(1, a) - 2 / mp.pi * (mp.log(a) * mp.besselj(1, a) - 1 / a)) / a


def amplitude(order: int, sine: bool) -> Function:
    """P or, times a, Q: with b = a - (2 order + 1) pi/4, J and Y are sqrt(2 / (pi a)) times P cos b - Q sin b and
    P sin b + Q cos b."""

    def of(t: Real) -> Real:
        a = far(t)
        phase = a - (2 * order + 1) * mp.pi / 4
        j, y = (f(order, a) * mp.sqrt(mp.pi * a / 2) for f in (mp.besselj, mp.bessely))
        if sine:
            return (y * mp.cos(phase) - j * mp.sin(phase)) * a
        return j * mp.cos(phase) + y * mp.sin(phase)

    return of


def modulus(order: int) -> Function:
    """sqrt(J^2 + Y^2) sqrt(a) for t = 1 / a^2."""

    def of(t: Real) -> Real:
        a = 1 / mp.sqrt(t)
        return mp.sqrt((mp.besselj(order, a) ** 2 + mp.bessely(order, a) ** 2) * a)

    return of


def phase(order: int) -> Function:
    """The angle of (J, Y) less a - (2 order + 1) pi/4, times a, for t = 1 / a^2."""

    def of(t: Real) -> Real:
        a = 1 / mp.sqrt(t)
        cos, sin = (f(a - (2 * order + 1) * mp.pi / 4) for f in (mp.cos, mp.sin))
        j, y = mp.besselj(order, a), mp.bessely(order, a)
        return mp.atan2(y * cos - j * sin, j * cos + y * sin) * a

    return of


def bessel_i_near(order: int) -> Function:
    """I, and I1 without its factor a/2, for t = a^2 / 4."""
    return lambda t: mp.besseli(order, 2 * mp.sqrt(t)) / mp.sqrt(t) ** order


def bessel_i_far(order: int) -> Function:
    """I exp(-a) sqrt(a) for t = 1 / a."""
    return lambda t: mp.besseli(order, 1 / t) * mp.exp(-1 / t) / mp.sqrt(t)


def bessel_i(order: int) -> Function:
    """I exp(-a) sqrt(a) for t = 16 / a - 1."""

    def of(t: Real) -> Real:
        a = 16 / (t + 1)
        return mp.besseli(order, a) * mp.exp(-a) * mp.sqrt(a)

    return of


# --- tables ------------------------------------------------------------------------------------------------------
HALF_LN2, HALF_LOG10_2 = mp.log(2) / 2, mp.log10(2) / 2
ROOT_HALF, ROOT_TWO = mp.sqrt(mp.mpf(0.5)), mp.sqrt(2)
LARGEST_S = ((ROOT_TWO - 1) / (ROOT_TWO + 1)) ** 2
EIGHTH = (mp.pi / 4) ** 2
sine: Function = of_square(lambda r: (mp.sin(r) / r - 1) / r**2)
cosine: Function = of_square(lambda r: (mp.cos(r) - 1 + r**2 / 2) / r**4)
POLYNOMIALS = (
    _element("EXP", mp.exp, -HALF_LN2, HALF_LN2, lambda r: mp.exp(-r), single=True),
    _element("EXP2", lambda r: mp.mpf(2) ** r, -0.5, 0.5, lambda r: mp.mpf(2) ** -r, single=True),
    _element("LOG", log_rest, ROOT_HALF - 1, ROOT_TWO - 1, lambda f: f**2 / mp.log(1 + f), single=True),
    _element("LOG2", lambda f: log_rest(f) / mp.log(2), ROOT_HALF - 1, ROOT_TWO - 1,
             lambda f: f**2 / mp.log(1 + f, 2), single=True),
    _element("SIN", sine, 0, EIGHTH, of_square(lambda r: r**3 / mp.sin(r)), single=True),
    _element("SIN_HALF", sine, 0, (mp.pi / 2) ** 2, of_square(lambda r: r**3 / mp.sin(r)), single=True),
    _element("COS", cosine, 0, EIGHTH, of_square(lambda r: r**4 / mp.cos(r)), single=True),
    _element("TANH", of_square(lambda x: (mp.tanh(x) / x - 1) / x**2), 0, mp.mpf(0.625) ** 2,
             of_square(lambda x: x**3 / mp.tanh(x)), single=True),
    _element("ERF", of_square(lambda x: mp.erf(x) / x - 1), 0, 1, of_square(lambda x: x / mp.erf(x)), single=True),
    _element("ERFC", lambda x: -mp.log(mp.erfc(x), 2), 1, 4,
             lambda x: mp.log(2) * mp.erfc(x) / mp.erf(x), single=True),
    _element("EXPM1", lambda r: (mp.expm1(r) - r) / r**2, -HALF_LN2, HALF_LN2, lambda r: r**2 / mp.expm1(r),
             single=True),
    _element("EXP10", lambda r: mp.mpf(10) ** r, -HALF_LOG10_2, HALF_LOG10_2, lambda r: mp.mpf(10) ** -r, single=True),
    _element("SINH", of_square(lambda x: (mp.sinh(x) / x - 1) / x**2), 0, 1, of_square(lambda x: x**3 / mp.sinh(x)),
             single=True),
    _element("TAN", of_square(lambda r: (mp.tan(r) / r - 1) / r**2), 0, EIGHTH, of_square(lambda r: r**3 / mp.tan(r)),
             single=True),
    _element("ATAN", of_square(lambda t: (mp.atan(t) - t) / t**3), 0, 1, of_square(lambda t: t**3 / mp.atan(t)),
             single=True),
    _element("ASIN", of_square(lambda t: (mp.asin(t) - t) / t**3), 0, 0.25, of_square(lambda t: t**3 / mp.asin(t)),
             single=True),
    _element("BESSEL_SINE", of_square(lambda r: (mp.sin(r) / r - 1) / r**2), 0, 2.7, of_square(lambda r: r**3),
             single=True),
    _share("BESSEL_J0", bessel_j(0), -1, 1),
    _share("BESSEL_J1", bessel_j(1), -1, 1),
    _element("BESSEL_Y0", bessel_y0, -1, 1, None, single=True),
    _element("BESSEL_Y1", bessel_y1, -1, 1, None, single=True),
    _share("BESSEL_MODULUS_0", modulus(0), 1e-9, 0.01778),
    _share("BESSEL_MODULUS_1", modulus(1), 1e-9, 0.01778),
    _element("BESSEL_PHASE_0", phase(0), 1e-9, 0.01778, None, single=True),
    _element("BESSEL_PHASE_1", phase(1), 1e-9, 0.01778, None, single=True),
    _share("BESSEL_I0_NEAR", bessel_i_near(0), 1e-9, 20.25),
    _share("BESSEL_I1_NEAR", bessel_i_near(1), 1e-9, 20.25),
    _share("BESSEL_I0_FAR", bessel_i_far(0), 0.0104, 0.11112),
    _share("BESSEL_I1_FAR", bessel_i_far(1), 0.0104, 0.11112),
    _element("EXP64", lambda r: (mp.exp(r) - 1 - r) / r**2, -HALF_LN2, HALF_LN2, lambda r: r**2 / mp.exp(r)),
    _element("LOG64", of_square(lambda s: (mp.log((1 + s) / (1 - s)) / s - 2) / s**2), 0, LARGEST_S,
             of_square(lambda s: s**3 / mp.log((1 + s) / (1 - s)))),
    _element("SIN64", sine, 0, EIGHTH, of_square(lambda r: r**3 / mp.sin(r))),
    _element("COS64", cosine, 0, EIGHTH, of_square(lambda r: r**4 / mp.cos(r))),
    _element("ERFC64", erfc_scaled, mp.mpf(2) / 30, 2 / mp.mpf("2.7"), None, nodes=True),
    _element("ATAN_SINGLE", of_square(lambda t: (mp.atan(t) - t) / t**3), 0, 1,
             of_square(lambda t: t**3 / mp.atan(t)), nodes=True),
    _single("ERFCX_SINGLE", erfcx, -1, 0.99, lambda t: 1 / erfcx(t)),
    _element("ERFINV_CENTRE", lambda v: erfinv_of_log(v + 4), -4, 4, None, single=True),
    _element("ERFINV_TAIL", lambda u: erfinv_tail(u + 0.28125), -0.08125, 0.0724,
             lambda u: 1 / erfinv_tail(u + 0.28125), single=True),
    _element("ERFCINV_TAIL", lambda u: erfinv_tail(u + 0.140625), -0.0591, 0.0594,
             lambda u: 1 / erfinv_tail(u + 0.140625), single=True),
    _single("SINPI_SINGLE", of_square(lambda r: (mp.sinpi(r) / r - mp.pi) / r**2), 0, 0.25,
            of_square(lambda r: r**3 / mp.sinpi(r))),
    _single("LGAMMA_SINGLE", lgamma, -1, 1, lambda t: 1 / lgamma(t)),
    _single("STIRLING_SINGLE", stirling, -0.999, 1, lambda t: (t + 1) / 128),
    _relative("TGAMMA_SINGLE", gamma_rest, 0.02, 1),
    _special("ERFCX", erfcx),
    _special("ERFCINV_START", erfcinv_start),
    _special("ERFINV", erfinv),
    _special("LGAMMA", lgamma),
    _special("STIRLING", stirling),
    _special("RGAMMA", lambda t: mp.rgamma((t + 3) / 2)),
    _special("J0", bessel_j(0)),
    _special("J1", bessel_j(1)),
    _special("Y0", bessel_y0),
    _special("Y1", bessel_y1),
    _special("P0", amplitude(0, sine=False)),
    _special("Q0", amplitude(0, sine=True)),
    _special("P1", amplitude(1, sine=False)),
    _special("Q1", amplitude(1, sine=True)),
    _special("I0_LARGE", bessel_i(0)),
    _special("I1_LARGE", bessel_i(1)),
)  # fmt: skip


# --- fits --------------------------------------------------------------------------------------------------------
def interpolated(row: Polynomial) -> list[float]:
    """The coefficients of the polynomial that equals the function on as many Chebyshev nodes as it has powers."""
    x = row.places(len(row.coefficients))
    divided = [row.of(v) for v in x]
    for j in range(1, len(x)):
        for i in range(len(x) - 1, j - 1, -1):
            divided[i] = (divided[i] - divided[i - 1]) / (x[i] - x[i - j])
    powers: list[Real] = [divided[-1]]  # of Newton's form, whose innermost factor comes first
    for node, rest in zip(reversed(x[:-1]), reversed(divided[:-1]), strict=True):
        powers = [a - node * b for a, b in zip([mp.zero, *powers], [*powers, mp.zero], strict=True)]
        powers[0] += rest
    return [row.rounded(v) for v in powers]


def minimax(row: Polynomial, samples: int = 120, steps: int = 25) -> list[float]:
    """Coefficients whose largest weighted error is nearly the least."""
    x = row.places(samples)
    rest, weight = [row.of(v) for v in x], row.weights(x)
    count, found = len(row.coefficients), list[float]()
    for first in range(count):
        fit = _lawson(x, rest, weight, range(first, count), steps)
        found.append(row.rounded(fit[0]))
        rest = [r - found[-1] * v**first for r, v in zip(rest, x, strict=True)]
    return found


def _lawson(
    x: list[Real], y: list[Real], weight: list[Real], powers: range, steps: int
) -> list[Real]:
    """Least squares whose points count by the error that they had in the step before."""
    share = [mp.mpf(1) / len(x) for _ in x]
    basis = [[v**k for k in powers] for v in x]
    fit: list[Real] = []
    for _ in range(steps):
        at = [s * w * w for s, w in zip(share, weight, strict=True)]
        left = mp.matrix(len(powers), len(powers))
        right = mp.matrix(len(powers), 1)
        for row, value, factor in zip(basis, y, at, strict=True):
            for i, a in enumerate(row):
                right[i] += factor * a * value
                for j, b in enumerate(row):
                    left[i, j] += factor * a * b
        fit = list(mp.lu_solve(left, right))
        gaps = [
            abs(mp.fdot(fit, row) - value) * w
            for row, value, w in zip(basis, y, weight, strict=True)
        ]
        total = mp.fdot(share, gaps)
        if not total:
            break
        share = [s * gap / total for s, gap in zip(share, gaps, strict=True)]
    return fit


def error(row: Polynomial, coefficients: Sequence[float], samples: int = 200) -> float:
    """The largest relative error of the result that the polynomial causes."""
    terms = [mp.mpf(row.rounded(v)) for v in coefficients]
    x = row.places(samples)
    gaps = [abs(mp.fdot(terms, (v**k for k in range(len(terms)))) - row.of(v)) for v in x]
    return float(max(gap * w for gap, w in zip(gaps, row.weights(x), strict=True)))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="tables (default: all)")
    parser.add_argument("--fit", action="store_true", help="print coefficients")
    args = parser.parse_args(arguments)
    for row in POLYNOMIALS:
        if args.names and row.name not in args.names:
            continue
        have = row.coefficients
        source = "from the nodes" if row.nodes else "minimax"
        size = math.log2(error(row, have))
        kind = "fp32" if row.single else "fp64"
        print(f"{row.name:14} {len(have):2} terms, {kind}: error 2^{size:.1f}, {source}")
        if args.fit:
            found = interpolated(row) if row.nodes else minimax(row)
            print(f"    2^{math.log2(error(row, found)):.1f} by", *map(repr, found))


if __name__ == "__main__":
    main()
