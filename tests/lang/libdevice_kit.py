"""References of libdevice's functions of one argument: exact values, special values, bounds, where to try."""

# pyright: basic
from __future__ import annotations

import math
from functools import cache

import mpmath as mp
import numpy as np

SIZE = {"fp32": np.float32, "fp64": np.float64}
EDGES = [0.0, -0.0, math.inf, -math.inf, math.nan]
N = 128  # arguments of a test


# --- inputs ---------------------------------------------------------------------------------------------------
def uniform(low, high):
    return lambda rng, n: rng.uniform(low, high, n)


def magnitudes(low, high, signed=True):
    def draw(rng, n):
        x = np.exp(rng.uniform(math.log(low), math.log(high), n))
        return x * rng.choice([-1, 1], n) if signed else x

    return draw


def draw(dtype, *parts, seed=0, edges=True, count=N):
    rng = np.random.default_rng(seed)
    special = EDGES if edges else []
    left = count - len(special)
    counts = [left // len(parts)] * len(parts)
    counts[0] += left - sum(counts)
    wide = np.concatenate([special, *[p(rng, c) for p, c in zip(parts, counts)]])
    with np.errstate(all="ignore"):
        return wide.astype(SIZE[dtype])


ANY = {"fp32": magnitudes(1e-38, 1e38), "fp64": magnitudes(1e-300, 1e300)}
POSITIVE = {"fp32": magnitudes(1e-38, 1e38, False), "fp64": magnitudes(1e-300, 1e300, False)}


# --- references ------------------------------------------------------------------------------------------------
def inverse_erfc(z):
    if z <= 0 or z >= 2:
        return mp.inf if z == 0 else -mp.inf if z == 2 else mp.nan
    if z > 1:
        return -inverse_erfc(2 - z)
    y = mp.erfinv(1 - z) if z > 1e-10 else mp.sqrt(-mp.log(z))
    for _ in range(30):
        tail = mp.erfc(y)
        step = (mp.log(tail) - mp.log(z)) * tail / (2 / mp.sqrt(mp.pi) * mp.exp(-y * y))
        y += step
        if abs(step) < mp.mpf(10) ** -40:
            break
    return y


def scaled_erfc(x):
    if x > 1e5:
        return (1 - 1 / (2 * x * x)) / (x * mp.sqrt(mp.pi))
    return mp.exp(x * x) * mp.erfc(x)


def inverse_erf(x):
    if abs(x) <= 0.5:
        return mp.erfinv(x)
    return inverse_erfc(1 - x) if x > 0 else -inverse_erfc(1 + x)


def log_gamma(x):
    if x > 0:
        return mp.re(mp.loggamma(x))
    return mp.inf if x == mp.floor(x) else mp.log(abs(mp.gamma(x)))


def gamma(x):
    return mp.nan if x < 0 and x == mp.floor(x) else mp.gamma(x)


def half_away(x):
    return mp.sign(x) * mp.floor(abs(x) + mp.mpf(1) / 2)


def domain(low, high, f):
    return lambda x: f(x) if low <= x <= high else mp.nan


def second_kind(n):
    return lambda x: mp.nan if x < 0 else mp.bessely(n, x)


U = uniform
# name: (value at a finite number other than 0, values at 0, -0, inf, -inf (None: by the function), bounds in ulp of
# (fp32, fp64), where to try). A third bound is absolute, in units of 2**-52 (2**-23) of the largest value.
INF, NAN = math.inf, math.nan
UNARY = {
    "floor": (mp.floor, (0, -0.0, INF, -INF), (0, 0), [U(-9, 9), ANY]),
    "ceil": (mp.ceil, (0, -0.0, INF, -INF), (0, 0), [U(-9, 9), ANY]),
    "trunc": (lambda x: mp.sign(x) * mp.floor(abs(x)), (0, -0.0, INF, -INF), (0, 0), [U(-9, 9), ANY]),
    "rint": (mp.nint, (0, -0.0, INF, -INF), (0, 0), [U(-9, 9), lambda r, n: np.round(U(-9, 9)(r, n)) + 0.5]),
    "nearbyint": (mp.nint, (0, -0.0, INF, -INF), (0, 0), [U(-9, 9), ANY]),
    "round": (half_away, (0, -0.0, INF, -INF), (0, 0), [U(-9, 9), lambda r, n: np.round(U(-9, 9)(r, n)) + 0.5]),
    "sqrt": (domain(0, INF, mp.sqrt), (0, -0.0, INF, NAN), (0.5, 0.5), [ANY, U(0, 9)]),
    "sqrt_rn": (domain(0, INF, mp.sqrt), (0, -0.0, INF, NAN), (0.5, 0.5), [ANY, U(0, 9)]),
    "rsqrt": (domain(0, INF, lambda x: 1 / mp.sqrt(x)), (INF, -INF, 0, NAN), (2, 2), [ANY, U(0, 9)]),
    "cbrt": (lambda x: mp.sign(x) * mp.cbrt(abs(x)), (0, -0.0, INF, -INF), (1, 1), [ANY, U(-9, 9)]),
    "rcbrt": (lambda x: mp.sign(x) / mp.cbrt(abs(x)), (INF, -INF, 0, -0.0), (1.1, 2), [ANY, U(-9, 9)]),
    "exp": (mp.exp, (1, 1, INF, 0), (2, 2), [U(-80, 80), U(-1, 1)]),
    "exp2": (lambda x: mp.mpf(2) ** x, (1, 1, INF, 0), (2, 2), [U(-120, 120), U(-1, 1)]),
    "exp10": (lambda x: mp.mpf(10) ** x, (1, 1, INF, 0), (2, 2), [U(-37, 38), U(-1, 1)]),
    "expm1": (mp.expm1, (0, -0.0, INF, -1), (2, 2), [U(-80, 80), U(-1, 1), magnitudes(1e-30, 1)]),
    "log": (domain(0, INF, mp.log), (-INF, -INF, INF, NAN), (2, 2), [POSITIVE, U(0.5, 2), U(-3, 0)]),
    "log2": (domain(0, INF, lambda x: mp.log(x, 2)), (-INF, -INF, INF, NAN), (2, 2), [POSITIVE, U(0.5, 2)]),
    "log10": (domain(0, INF, mp.log10), (-INF, -INF, INF, NAN), (2, 3), [POSITIVE, U(0.5, 2)]),
    "log1p": (domain(-1, INF, mp.log1p), (0, -0.0, INF, NAN), (2, 3), [POSITIVE, U(-0.99, 2), magnitudes(1e-30, 0.9)]),
    "logb": (lambda x: mp.floor(mp.log(abs(x), 2)), (-INF, -INF, INF, INF), (0, 0), [ANY, magnitudes(1e-44, 1)]),
    "sin": (mp.sin, (0, -0.0, NAN, NAN), (2.5, 2), [U(-10, 10), magnitudes(1e-10, 1e10)]),
    "cos": (mp.cos, (1, 1, NAN, NAN), (2.5, 2), [U(-10, 10), magnitudes(1e-10, 1e10)]),
    "tan": (mp.tan, (0, -0.0, NAN, NAN), (2.5, 3), [U(-10, 10), magnitudes(1e-10, 1e5)]),
    "sinpi": (mp.sinpi, (0, -0.0, NAN, NAN), (2, 2), [U(-10, 10), magnitudes(1e-10, 1e6)]),
    "cospi": (mp.cospi, (1, 1, NAN, NAN), (2, 2), [U(-10, 10), magnitudes(1e-10, 1e6)]),
    "asin": (domain(-1, 1, mp.asin), (0, -0.0, NAN, NAN), (2, 3), [U(-1, 1), magnitudes(1e-10, 2)]),
    "acos": (domain(-1, 1, mp.acos), (math.pi / 2, math.pi / 2, NAN, NAN), (2, 3), [U(-1, 1), magnitudes(1e-10, 2)]),
    "atan": (mp.atan, (0, -0.0, math.pi / 2, -math.pi / 2), (2, 2), [U(-3, 3), ANY]),
    "sinh": (mp.sinh, (0, -0.0, INF, -INF), (2, 3), [U(-80, 80), magnitudes(1e-10, 1)]),
    "cosh": (mp.cosh, (1, 1, INF, INF), (2, 3), [U(-80, 80), magnitudes(1e-10, 1)]),
    "tanh": (mp.tanh, (0, -0.0, 1, -1), (2, 3), [U(-10, 10), magnitudes(1e-10, 1)]),
    "asinh": (mp.asinh, (0, -0.0, INF, -INF), (3, 4), [U(-3, 3), ANY]),
    "acosh": (domain(1, INF, mp.acosh), (NAN, NAN, INF, NAN), (3, 4), [U(0.5, 3), POSITIVE]),
    "atanh": (domain(-1, 1, mp.atanh), (0, -0.0, NAN, NAN), (3, 4), [U(-1.1, 1.1), magnitudes(1e-20, 1)]),
    "erf": (mp.erf, (0, -0.0, 1, -1), (2.5, 2), [U(-4, 4), magnitudes(1e-20, 1)]),
    "erfc": (mp.erfc, (1, 1, 0, 2), (4.5, 4), [U(-4, 9), magnitudes(1e-20, 1)]),
    "erfcx": (scaled_erfc, (1, 1, 0, INF), (4.5, 6), [U(-9, 9), magnitudes(1e-20, 1), magnitudes(1, 1e8, False)]),
    "erfinv": (domain(-1, 1, inverse_erf), (0, -0.0, NAN, NAN), (3.5, 4), [U(-1, 1), magnitudes(1e-20, 1)]),
    "erfcinv": (
        domain(0, 2, inverse_erfc), (INF, INF, NAN, NAN), (4, 4), [U(-0.1, 2.1), magnitudes(1e-37, 1, False)],
    ),
    "normcdf": (lambda x: mp.erfc(-x / mp.sqrt(2)) / 2, (0.5, 0.5, 1, 0), (5, 5), [U(-12, 4), magnitudes(1e-20, 1)]),
    "normcdfinv": (
        domain(0, 1, lambda x: -mp.sqrt(2) * inverse_erfc(2 * x)), (-INF, -INF, NAN, NAN), (5, 5),
        [U(-0.1, 1.1), magnitudes(1e-37, 1, False)],
    ),
    "lgamma": (log_gamma, (INF, INF, INF, INF), (6, 8), [U(0, 12), U(-2.2, 0), POSITIVE]),
    "tgamma": (gamma, (INF, -INF, INF, NAN), (5, 12), [U(0, 34), U(-9.9, 0), magnitudes(1e-20, 1)]),
    "j0": (lambda x: mp.besselj(0, x), (1, 1, 0, 0), (9, 16, 4), [U(-8, 8), U(-99, 99)]),
    "j1": (lambda x: mp.besselj(1, x), (0, -0.0, 0, -0.0), (9, 16, 4), [U(-8, 8), U(-99, 99), magnitudes(1e-20, 1)]),
    "y0": (second_kind(0), (-INF, -INF, 0, NAN), (9, 16, 4), [U(0, 8), U(-9, 99)]),
    "y1": (second_kind(1), (-INF, -INF, 0, NAN), (9, 16, 4), [U(0, 8), U(-9, 99)]),
    "cyl_bessel_i0": (lambda x: mp.besseli(0, x), (1, 1, INF, INF), (6, 6), [U(-20, 80), magnitudes(1e-9, 1)]),
    "cyl_bessel_i1": (lambda x: mp.besseli(1, x), (0, -0.0, INF, -INF), (6, 6), [U(-20, 80), magnitudes(1e-9, 1)]),
    "rcp_rn": (lambda x: 1 / x, (INF, -INF, 0, -0.0), (0.5, 0.5), [ANY, U(-9, 9)]),
    "abs": (abs, (0, 0, INF, INF), (0, 0), [ANY, U(-9, 9)]),
}  # fmt: skip
FP32_ONLY = {
    "rsqrt_rn": (domain(0, INF, lambda x: 1 / mp.sqrt(x)), (INF, -INF, 0, NAN), (0.501, 0), [POSITIVE, U(0, 9)]),
    "saturatef": (lambda x: min(max(x, 0), 1), (0, 0, 1, 0), (0, 0), [U(-1, 2), ANY]),
    "fast_sinf": (mp.sin, (0, -0.0, NAN, NAN), (2.5, 0), [U(-3, 3)]),
    "fast_cosf": (mp.cos, (1, 1, NAN, NAN), (2.5, 0), [U(-3, 3)]),
    "fast_tanf": (mp.tan, (0, -0.0, NAN, NAN), (4, 0), [U(-1, 1)]),
    "fast_expf": (mp.exp, (1, 1, INF, 0), (12, 0), [U(-9, 9)]),
    "fast_exp10f": (lambda x: mp.mpf(10) ** x, (1, 1, INF, 0), (24, 0), [U(-9, 9)]),
    "fast_logf": (mp.log, (-INF, -INF, INF, NAN), (3, 0), [U(0.1, 9)]),
    "fast_log2f": (lambda x: mp.log(x, 2), (-INF, -INF, INF, NAN), (3, 0), [U(0.1, 9)]),
    "fast_log10f": (mp.log10, (-INF, -INF, INF, NAN), (4, 0), [U(0.1, 9)]),
    "fast_tanhf": (mp.tanh, (0, -0.0, 1, -1), (2.5, 0), [U(-3, 3)]),
}  # fmt: skip
# What a GPU's sin.approx, cos.approx and lg2.approx miss is absolute where they are near 0 (PTX's manual): 2**-20.5 and
# 2**-22, here in units of 2**-23. The tangent has both errors, up to 1 / cos(1) + sin(1) / cos(1)**2 times as large.
ON_HARDWARE = {
    "fast_sinf": 5.7, "fast_cosf": 5.7, "fast_tanf": 27.1, "fast_logf": 2, "fast_log2f": 2, "fast_log10f": 2,
}  # fmt: skip


@cache
def unary_case(name, dtype, count=N):
    """(arguments, exact values)."""
    f, at_edges, _, parts = UNARY.get(name) or FP32_ONLY[name]
    x = draw(dtype, *[p[dtype] if isinstance(p, dict) else p for p in parts], count=count)
    with mp.workprec(170):
        exact = [f(mp.mpf(float(v))) if v else mp.mpf(float(at_edges[0])) for v in x[len(EDGES) :]]
    return x, [*at_edges, 0.0 if name == "saturatef" else math.nan, *exact]


def error(got, want):
    """Error of each element in ulp of the exact value; infinite where a special value or the sign of 0 is wrong."""
    dtype = got.dtype.type
    tiny = np.finfo(dtype).tiny
    found = []
    for g, w in zip(got, want):
        near = dtype(float(w))
        if not np.isfinite(near) or near == 0:
            same = (np.isnan(g) and np.isnan(near)) or g == near
            if near == 0 and w == 0 and isinstance(w, float):
                same = same and np.signbit(g) == np.signbit(near)
            close = near == 0 and abs(g) <= tiny * np.finfo(dtype).eps
            found.append(0.0 if same or (close and w != 0) else math.inf)
        elif not np.isfinite(g):
            found.append(math.inf)
        else:
            unit = float(np.spacing(max(abs(near), tiny)))
            found.append(float(abs(mp.mpf(float(g)) - w)) / unit)
    return np.array(found)
