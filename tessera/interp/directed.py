"""Computes sums, products, reciprocals and roots of floats, rounded toward zero, down or up.

One element at a time, in rational arithmetic: that is slow, and plainly right for every number there is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TypeAlias

import numpy as np

Number: TypeAlias = np.float32 | np.float64


def _fma(x: Number, y: Number, z: Number) -> Number:
    """x * y + z, but for the digits; a product of finite numbers is finite."""
    return z if np.isfinite(x) and np.isfinite(y) and not np.isfinite(z) else x * y + z


def _exact_fma(x: Fraction, y: Fraction, z: Fraction) -> Fraction:
    return x * y + z


def _inverse(x: Fraction) -> Fraction:
    return 1 / x


# function -> (as NumPy computes it, as rational arithmetic does); a root is compared with the number by its square
FUNCTIONS: dict[str, tuple[Callable[..., Number], Callable[..., Fraction]]] = {
    "add": (np.add, operator.add), "sub": (np.subtract, operator.sub), "mul": (np.multiply, operator.mul),
    "fma": (_fma, _exact_fma), "rcp": (np.reciprocal, _inverse),
    "sqrt": (np.sqrt, Fraction),
}  # fmt: skip


def directed(function: str, direction: str, *arrays: np.ndarray) -> np.ndarray:
    """Return `function` of arrays of fp32 or fp64, rounded toward zero ("rz"), down ("rd") or up ("ru").

    `function`: add, sub, mul, fma (x * y + z with one rounding), rcp (1 / x) or sqrt. Broadcasts as NumPy does.
    Example: `directed("add", "ru", np.float32(1), np.float32(1e-9))` is 1.0000001.
    Source: IEEE 754, 4.3.2; PTX's `.rz`, `.rm` and `.rp`.
    """
    found = np.broadcast_arrays(*arrays)
    columns = zip(*[x.ravel() for x in found], strict=True)
    with np.errstate(all="ignore"):
        results = [_one(function, direction, xs) for xs in columns]
    return np.array(results, found[0].dtype).reshape(found[0].shape)


def _one(function: str, direction: str, xs: Sequence[Number]) -> Number:
    near, exactly = FUNCTIONS[function]
    rounded = near(*xs)
    if not all(map(np.isfinite, xs)) or _is_undefined(function, xs):
        return rounded
    exact = exactly(*[Fraction(float(x)) for x in xs])
    if exact == 0:
        return _zero(function, direction, xs, rounded)
    power = 2 if function == "sqrt" else 1
    start = rounded if power == 2 else _nearest(exact, type(rounded))
    down, up = _around(start, exact, power)
    if direction == "rz":
        return down if exact > 0 else up
    return down if direction == "rd" else up


def _is_undefined(function: str, xs: Sequence[Number]) -> bool:
    """Whether the result is no number, or an infinity that is exact."""
    if function == "rcp":
        return bool(xs[0] == 0)
    return function == "sqrt" and bool(xs[0] < 0)


def _zero(function: str, direction: str, xs: Sequence[Number], rounded: Number) -> Number:
    """Return an exact zero: sums of unlike zeros and of opposites are -0 when rounded down."""
    if function not in ("add", "sub", "fma") or direction != "rd":
        return rounded
    terms = {"add": xs, "sub": [xs[0], -xs[-1]]}.get(function, [xs[0] * xs[1], xs[-1]])
    return rounded if not any(map(np.signbit, terms)) else type(rounded)(-0.0)


def _nearest(exact: Fraction, kind: type[Number]) -> Number:
    try:
        return kind(float(exact))
    except OverflowError:
        return kind(np.inf if exact > 0 else -np.inf)


def _around(near: Number, exact: Fraction, power: int) -> tuple[Number, Number]:
    """Return the greatest number whose power is not above `exact`, and the least one whose power is not below it.
    `near` is close to both."""
    kind = type(near)
    most, infinity = np.finfo(kind).max, kind(np.inf)

    def below(f: Number) -> bool:
        if np.isinf(f):
            return bool(f < 0)
        return Fraction(float(f)) ** power <= exact

    down = min(max(near, -most), most)
    while not below(down):
        down = np.nextafter(down, -infinity)
    while below(above := np.nextafter(down, infinity)):
        down = above
    is_exact = down > -infinity and Fraction(float(down)) ** power == exact
    return down, down if is_exact else above
