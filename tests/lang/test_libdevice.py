"""Every libdevice function against mpmath or exact arithmetic, on many magnitudes and special values."""

# pyright: basic
from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import mpmath as mp
import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.language.extra import libdevice

pytestmark = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # NumPy meets NaN and overflow as we do
N = 128
SIZE = {"fp32": np.float32, "fp64": np.float64}
EDGES = [0.0, -0.0, math.inf, -math.inf, math.nan]


@tessera.jit
def one_kernel(x, out, F: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, F(tl.load(x + i)))


@tessera.jit
def two_kernel(x, y, out, F: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, F(tl.load(x + i), tl.load(y + i)))


@tessera.jit
def three_kernel(x, y, z, out, F: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, F(tl.load(x + i), tl.load(y + i), tl.load(z + i)))


@tessera.jit
def four_kernel(x, y, z, t, out, F: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, F(tl.load(x + i), tl.load(y + i), tl.load(z + i), tl.load(t + i)))


KERNELS = [one_kernel, two_kernel, three_kernel, four_kernel]


def launch(device, name, args, kinds, result):
    """libdevice.<name> of arrays of equal size."""
    given = [device.array(a, k) for a, k in zip(args, kinds)]
    out = device.zeros(len(args[0]), result)
    KERNELS[len(args) - 1][(1,)](*given, out, F=getattr(libdevice, name), N=len(args[0]))
    return device.numpy(out)


# --- inputs ---------------------------------------------------------------------------------------------------
def uniform(low, high):
    return lambda rng, n: rng.uniform(low, high, n)


def magnitudes(low, high, signed=True):
    def draw(rng, n):
        x = np.exp(rng.uniform(math.log(low), math.log(high), n))
        return x * rng.choice([-1, 1], n) if signed else x

    return draw


def draw(dtype, *parts, seed=0, edges=True):
    rng = np.random.default_rng(seed)
    special = EDGES if edges else []
    left = N - len(special)
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
    "cbrt": (lambda x: mp.sign(x) * mp.cbrt(abs(x)), (0, -0.0, INF, -INF), (0.51, 1), [ANY, U(-9, 9)]),
    "rcbrt": (lambda x: mp.sign(x) / mp.cbrt(abs(x)), (INF, -INF, 0, -0.0), (0.51, 2), [ANY, U(-9, 9)]),
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
    "tan": (mp.tan, (0, -0.0, NAN, NAN), (2, 3), [U(-10, 10), magnitudes(1e-10, 1e5)]),
    "sinpi": (mp.sinpi, (0, -0.0, NAN, NAN), (0.51, 2), [U(-10, 10), magnitudes(1e-10, 1e6)]),
    "cospi": (mp.cospi, (1, 1, NAN, NAN), (0.51, 2), [U(-10, 10), magnitudes(1e-10, 1e6)]),
    "asin": (domain(-1, 1, mp.asin), (0, -0.0, NAN, NAN), (2, 3), [U(-1, 1), magnitudes(1e-10, 2)]),
    "acos": (domain(-1, 1, mp.acos), (math.pi / 2, math.pi / 2, NAN, NAN), (2, 3), [U(-1, 1), magnitudes(1e-10, 2)]),
    "atan": (mp.atan, (0, -0.0, math.pi / 2, -math.pi / 2), (2, 2), [U(-3, 3), ANY]),
    "sinh": (mp.sinh, (0, -0.0, INF, -INF), (2, 3), [U(-80, 80), magnitudes(1e-10, 1)]),
    "cosh": (mp.cosh, (1, 1, INF, INF), (2, 3), [U(-80, 80), magnitudes(1e-10, 1)]),
    "tanh": (mp.tanh, (0, -0.0, 1, -1), (2, 3), [U(-10, 10), magnitudes(1e-10, 1)]),
    "asinh": (mp.asinh, (0, -0.0, INF, -INF), (0.51, 4), [U(-3, 3), ANY]),
    "acosh": (domain(1, INF, mp.acosh), (NAN, NAN, INF, NAN), (0.51, 4), [U(0.5, 3), POSITIVE]),
    "atanh": (domain(-1, 1, mp.atanh), (0, -0.0, NAN, NAN), (0.51, 4), [U(-1.1, 1.1), magnitudes(1e-20, 1)]),
    "erf": (mp.erf, (0, -0.0, 1, -1), (2.5, 2), [U(-4, 4), magnitudes(1e-20, 1)]),
    "erfc": (mp.erfc, (1, 1, 0, 2), (0.51, 4), [U(-4, 9), magnitudes(1e-20, 1)]),
    "erfcx": (scaled_erfc, (1, 1, 0, INF), (0.51, 6), [U(-9, 9), magnitudes(1e-20, 1), magnitudes(1, 1e8, False)]),
    "erfinv": (domain(-1, 1, inverse_erf), (0, -0.0, NAN, NAN), (0.51, 4), [U(-1, 1), magnitudes(1e-20, 1)]),
    "erfcinv": (
        domain(0, 2, inverse_erfc), (INF, INF, NAN, NAN), (0.51, 4), [U(-0.1, 2.1), magnitudes(1e-37, 1, False)],
    ),
    "normcdf": (lambda x: mp.erfc(-x / mp.sqrt(2)) / 2, (0.5, 0.5, 1, 0), (0.51, 5), [U(-12, 4), magnitudes(1e-20, 1)]),
    "normcdfinv": (
        domain(0, 1, lambda x: -mp.sqrt(2) * inverse_erfc(2 * x)), (-INF, -INF, NAN, NAN), (0.51, 5),
        [U(-0.1, 1.1), magnitudes(1e-37, 1, False)],
    ),
    "lgamma": (log_gamma, (INF, INF, INF, INF), (0.6, 8), [U(0, 12), U(-2.2, 0), POSITIVE]),
    "tgamma": (gamma, (INF, -INF, INF, NAN), (0.51, 12), [U(0, 34), U(-9.9, 0), magnitudes(1e-20, 1)]),
    "j0": (lambda x: mp.besselj(0, x), (1, 1, 0, 0), (0.6, 16, 4), [U(-8, 8), U(-99, 99)]),
    "j1": (lambda x: mp.besselj(1, x), (0, -0.0, 0, -0.0), (0.6, 16, 4), [U(-8, 8), U(-99, 99), magnitudes(1e-20, 1)]),
    "y0": (second_kind(0), (-INF, -INF, 0, NAN), (0.6, 16, 4), [U(0, 8), U(-9, 99)]),
    "y1": (second_kind(1), (-INF, -INF, 0, NAN), (0.6, 16, 4), [U(0, 8), U(-9, 99)]),
    "cyl_bessel_i0": (lambda x: mp.besseli(0, x), (1, 1, INF, INF), (0.51, 6), [U(-20, 80), magnitudes(1e-9, 1)]),
    "cyl_bessel_i1": (lambda x: mp.besseli(1, x), (0, -0.0, INF, -INF), (0.51, 6), [U(-20, 80), magnitudes(1e-9, 1)]),
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
CASES = [(n, d, *row) for n, row in UNARY.items() for d in SIZE] + [
    (n, "fp32", *row) for n, row in FP32_ONLY.items()
]


@cache
def unary_case(name, dtype):
    """(arguments, exact values)."""
    f, at_edges, _, parts = UNARY.get(name) or FP32_ONLY[name]
    x = draw(dtype, *[p[dtype] if isinstance(p, dict) else p for p in parts])
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


@pytest.mark.parametrize(("name", "dtype"), [(c[0], c[1]) for c in CASES])
def test_unary(device, name, dtype):
    bounds = (UNARY.get(name) or FP32_ONLY[name])[2]
    x, want = unary_case(name, dtype)
    got = launch(device, name, [x], [dtype], dtype)
    gap = error(got, want)
    bad = gap > bounds[dtype == "fp64"]
    if len(bounds) > 2:  # near zeros of the function
        eps = np.finfo(got.dtype).eps
        with np.errstate(all="ignore"):
            bad &= ~(np.abs(got - np.array([float(w) for w in want])) <= bounds[2] * eps)
    assert not bad.any(), [(x[i], got[i], float(want[i]), gap[i]) for i in np.flatnonzero(bad)][:5]


# --- two and more operands -----------------------------------------------------------------------------------------
def pairs(dtype, seed=0):
    rng = np.random.default_rng(seed)
    special = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 2.5]
    x, y = np.repeat(special, 8), np.tile(special, 8)
    rest = N - 64
    x = np.concatenate([x, rng.standard_normal(rest // 2) * 5, ANY[dtype](rng, rest // 2)])
    y = np.concatenate([y, rng.standard_normal(rest // 2) * 3, ANY[dtype](rng, rest // 2)])
    return x.astype(SIZE[dtype]), y.astype(SIZE[dtype])


def fmax0(x, y):
    return np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(x <= y, 0, x - y)).astype(x.dtype)


BINARY = {
    "atan2": (np.arctan2, 2), "copysign": (np.copysign, 0), "fdim": (fmax0, 0), "fmod": (np.fmod, 0),
    "hypot": (np.hypot, 2), "nextafter": (np.nextafter, 0), "pow": (np.power, 2),
    "add_rn": (np.add, 0), "sub_rn": (np.subtract, 0), "mul_rn": (np.multiply, 0), "div_rn": (np.divide, 0),
    "rhypot": (lambda x, y: 1 / np.hypot(x, y), 3),
    "remainder": (lambda x, y: np.vectorize(ieee_remainder, otypes=[x.dtype])(x, y), 0),
}  # fmt: skip


def ieee_remainder(x, y):
    if math.isnan(x) or math.isnan(y) or math.isinf(x) or y == 0:
        return math.nan
    return math.remainder(float(x), float(y))


@pytest.mark.parametrize("dtype", SIZE)
@pytest.mark.parametrize("name", BINARY)
def test_binary(device, name, dtype):
    fn, ulp = BINARY[name]
    x, y = pairs(dtype)
    if name in ("hypot", "rhypot", "pow", "atan2") and dtype == "fp32":
        want = fn(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    else:
        want = fn(x, y)
    got = launch(device, name, [x, y], [dtype] * 2, dtype)
    fine = (got == want) | (np.isnan(got) & np.isnan(want))
    if ulp:
        fine |= np.abs(got - want) <= ulp * np.spacing(np.abs(want))
    assert fine.all(), [(x[i], y[i], got[i], want[i]) for i in np.flatnonzero(~fine)][:5]


@pytest.mark.parametrize("dtype", SIZE)
def test_pow_of_whole_exponents(device, dtype):
    x = draw(dtype, U(-3, 3), U(0.5, 2))
    n = np.random.default_rng(1).integers(-20, 20, N)
    got = launch(device, "pow", [x, n], [dtype, "i32"], dtype)
    want = np.power(x.astype(np.longdouble), n.astype(np.longdouble)).astype(x.dtype)
    np.testing.assert_allclose(got, want, rtol=4 * np.finfo(x.dtype).eps)


@pytest.mark.parametrize("dtype", SIZE)
@pytest.mark.parametrize("name", ["norm3d", "rnorm3d", "norm4d", "rnorm4d"])
def test_lengths(device, name, dtype):
    count = 4 if "4" in name else 3
    args = [draw(dtype, ANY[dtype], U(-3, 3), seed=i, edges=False) for i in range(count)]
    for i in range(count):
        args[i][i] = np.inf
        args[i][i + 8] = np.nan
    with mp.workprec(200):
        finite = [all(np.isfinite(a[i]) for a in args) for i in range(N)]
        size = [
            mp.sqrt(sum(mp.mpf(float(a[i])) ** 2 for a in args)) if finite[i]
            else mp.inf if any(np.isinf(a[i]) for a in args) else mp.nan
            for i in range(N)
        ]  # fmt: skip
        want = [1 / s for s in size] if name.startswith("r") else size
    got = launch(device, name, args, [dtype] * count, dtype)
    assert error(got, want).max() <= (0.51 if dtype == "fp32" else 3)


@pytest.mark.parametrize("dtype", SIZE)
@pytest.mark.parametrize("name", ["ldexp", "scalbn"])
def test_scaling(device, name, dtype):
    x = draw(dtype, ANY[dtype], magnitudes(1e-45 if dtype == "fp32" else 1e-322, 1))
    span = 300 if dtype == "fp32" else 2300
    n = np.random.default_rng(2).integers(-span, span, N).astype(np.int32)
    got = launch(device, name, [x, n], [dtype, "i32"], dtype)
    np.testing.assert_array_equal(got, np.ldexp(x, n))


@pytest.mark.parametrize("dtype", SIZE)
@pytest.mark.parametrize("name", ["jn", "yn"])
def test_bessel_functions_of_any_order(device, name, dtype):
    rng = np.random.default_rng(3)
    n = rng.integers(-3, 12, 16).astype(np.int32)
    x = rng.uniform(0.5, 30, 16).astype(SIZE[dtype])
    f = mp.besselj if name == "jn" else mp.bessely
    want = np.array([float(f(int(a), mp.mpf(float(b)))) for a, b in zip(n, x)])
    got = launch(device, name, [n, x], ["i32", dtype], dtype)
    eps = np.finfo(x.dtype).eps
    ulps = 1 if dtype == "fp32" else 16
    np.testing.assert_allclose(got, want, rtol=ulps * eps, atol=min(ulps, 2) * eps)


# --- directed rounding ---------------------------------------------------------------------------------------------
def rounded(exact, dtype, mode):
    """A Fraction as the neighbouring number of the dtype; exact zeros are the caller's."""
    kind = SIZE[dtype]
    try:
        near = kind(float(exact))
    except OverflowError:
        near = kind(np.inf if exact > 0 else -np.inf)
    top = np.finfo(kind).max
    if np.isinf(near):
        over, under = near > 0, near < 0
    else:
        if dtype == "fp32":  # twice rounded: try the neighbours too
            options = [np.nextafter(near, kind(-np.inf)), near, np.nextafter(near, kind(np.inf))]
            options = [o for o in options if np.isfinite(o)]
            near = min(
                options, key=lambda o: (abs(Fraction(float(o)) - exact), o.view(np.uint32) & 1)
            )
            if abs(exact) > Fraction(float(top)) * (1 + Fraction(1, 2**25)):
                near = kind(np.copysign(np.inf, float(exact > 0) - 0.5))
        if np.isinf(near):
            over, under = near > 0, near < 0
        else:
            over, under = Fraction(float(near)) > exact, Fraction(float(near)) < exact
    down, up = np.nextafter(near, kind(-np.inf)), np.nextafter(near, kind(np.inf))
    if mode == "rd" or (mode == "rz" and exact > 0):
        return down if over else near
    if mode == "ru" or mode == "rz":
        return up if under else near
    return near


ARITHMETIC = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y,
}  # fmt: skip


@pytest.mark.parametrize("dtype", SIZE)
@pytest.mark.parametrize("mode", ["rz", "rd", "ru"])
@pytest.mark.parametrize("op", ARITHMETIC)
def test_directed_arithmetic(device, op, mode, dtype):
    low, high = (1e-44, 3e38) if dtype == "fp32" else (1e-322, 1e308)
    x = draw(dtype, U(-9, 9), magnitudes(low, high), seed=4, edges=False)
    y = draw(dtype, U(-9, 9), magnitudes(low, high), seed=5, edges=False)
    x[:8], y[:8] = [1, 1, 3, 1e30, 0.1, 0.1, 7, -7], [1e-30, -1e-30, 3, 1, 0.2, -0.1, 3, 3]
    x, y = np.where(x == 0, 1, x), np.where(y == 0, 1, y)
    exact = [ARITHMETIC[op](Fraction(float(a)), Fraction(float(b))) for a, b in zip(x, y)]
    want = np.array([rounded(e, dtype, mode) if e else 0 for e in exact], SIZE[dtype])
    got = launch(device, f"{op}_{mode}", [x, y], [dtype] * 2, dtype)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", SIZE)
@pytest.mark.parametrize("mode", ["rn", "rz", "rd", "ru"])
@pytest.mark.parametrize("op", ["sqrt", "rcp", "fma"])
def test_directed_functions(device, op, mode, dtype):
    low, high = (1e-37, 1e37) if dtype == "fp32" else (1e-300, 1e300)
    x = draw(dtype, U(0, 9), magnitudes(low, high, False), seed=6, edges=False)
    if op == "fma":
        y, z = (draw(dtype, U(-9, 9), magnitudes(1e-5, 1e5), seed=s, edges=False) for s in (7, 8))
        exact = [
            Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)) for a, b, c in zip(x, y, z)
        ]
        args = [x, y, z]
    elif op == "rcp":
        exact, args = [1 / Fraction(float(a)) for a in x], [x]
    else:
        with mp.workprec(400):  # never exactly between two numbers, and exact where it is a number
            roots = [mp.sqrt(mp.mpf(float(a))) for a in x]
            exact = [Fraction(int(r * mp.mpf(2) ** 1100), 2**1100) for r in roots]
        args = [x]
    want = np.array([rounded(e, dtype, mode) for e in exact], SIZE[dtype])
    got = launch(device, f"{op}_{mode}", args, [dtype] * len(args), dtype)
    np.testing.assert_array_equal(got, want)


def test_exact_zeros_when_rounding_down(device):
    for dtype in SIZE:
        x = np.array([1, 0.0, -0.0, 0.0] * 4, SIZE[dtype])
        y = np.array([-1, 0.0, -0.0, -0.0] * 4, SIZE[dtype])
        down = launch(device, "add_rd", [x, y], [dtype] * 2, dtype)
        up = launch(device, "add_ru", [x, y], [dtype] * 2, dtype)
        assert np.signbit(down[:4]).tolist() == [True, False, True, True]
        assert np.signbit(up[:4]).tolist() == [False, False, True, False]


# --- conversions ---------------------------------------------------------------------------------------------------
WHOLE = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}
TARGETS = {
    "int": ("i32", np.int32),
    "uint": ("i32", np.uint32),
    "ll": ("i64", np.int64),
    "ull": ("i64", np.uint64),
}


@pytest.mark.parametrize("mode", WHOLE)
@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("source", ["float", "double"])
def test_floats_to_ints(device, source, to, mode):
    dtype = {"float": "fp32", "double": "fp64"}[source]
    result, kind = TARGETS[to]
    info = np.iinfo(kind)
    low = float(info.min) / 3 if info.min else 0.0
    x = draw(dtype, U(-9 if info.min else 0, 9), U(low, info.max / 3.0), edges=False)
    got = launch(device, f"{source}2{to}_{mode}", [x], [dtype], result)
    np.testing.assert_array_equal(got.view(kind), WHOLE[mode](x).astype(kind))


@pytest.mark.parametrize("mode", WHOLE)
@pytest.mark.parametrize(
    "source", ["int2float", "uint2float", "ll2float", "ull2float", "ll2double", "ull2double"]
)
def test_ints_to_floats(device, source, mode):
    start, result = source.split("2")
    dtype = {"float": "fp32", "double": "fp64"}[result]
    kind = {"int": np.int32, "uint": np.uint32, "ll": np.int64, "ull": np.uint64}[start]
    info = np.iinfo(kind)
    x = np.random.default_rng(9).integers(info.min, info.max, N, kind, endpoint=True)
    x[:4] = [info.min, info.max, 0, 7]
    name = {"int": "i32", "uint": "u32", "ll": "i64", "ull": "u64"}[start]
    got = launch(device, f"{source}_{mode}", [x], [name], dtype)
    want = np.array([rounded(Fraction(int(v)), dtype, mode) if v else 0 for v in x], SIZE[dtype])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("mode", WHOLE)
def test_fp64_to_fp32(device, mode):
    x = draw("fp64", U(-9, 9), magnitudes(1e-50, 1e42), edges=False)
    got = launch(device, f"double2float_{mode}", [x], ["fp64"], "fp32")
    want = [rounded(Fraction(float(v)), "fp32", mode) if v else 0 for v in x]
    np.testing.assert_array_equal(got, np.array(want, np.float32))


@pytest.mark.parametrize("dtype", SIZE)
@pytest.mark.parametrize("name", ["llrint", "llround"])
def test_rounding_to_int64(device, name, dtype):
    x = draw(
        dtype,
        U(-9, 9),
        lambda r, n: np.round(U(-9, 9)(r, n)) + 0.5,
        magnitudes(1, 1e15),
        edges=False,
    )
    whole = (
        np.rint(x)
        if name == "llrint"
        else np.sign(x) * np.floor(np.abs(x.astype(np.float64)) + 0.5)
    )
    np.testing.assert_array_equal(launch(device, name, [x], [dtype], "i64"), whole.astype(np.int64))


@pytest.mark.parametrize("dtype", SIZE)
def test_classes_and_exponents(device, dtype):
    x = draw(dtype, ANY[dtype], magnitudes(1e-44, 1))
    assert launch(device, "isnan", [x], [dtype], "i1").tolist() == np.isnan(x).tolist()
    assert launch(device, "isinf", [x], [dtype], "i1").tolist() == np.isinf(x).tolist()
    assert (
        launch(device, "signbit", [x], [dtype], "i32").tolist()
        == np.signbit(x).astype(int).tolist()
    )
    name = "finitef" if dtype == "fp32" else "isfinited"
    assert launch(device, name, [x], [dtype], "i1").tolist() == np.isfinite(x).tolist()
    special = {0.0: -(2**31), math.inf: 2**31 - 1, -math.inf: 2**31 - 1}
    want = [
        -(2**31) if math.isnan(v) else special[v] if v in special else math.frexp(v)[1] - 1
        for v in map(float, x)
    ]
    assert launch(device, "ilogb", [x], [dtype], "i32").tolist() == want


def test_reciprocal_of_the_high_word(device):
    x = draw("fp64", magnitudes(1e-300, 1e300), edges=False)
    got = launch(device, "rcp64h", [x], ["fp64"], "fp64")
    np.testing.assert_allclose(got, 1 / x, rtol=2.0**-19)
    assert not (got.view(np.uint64) & 0xFFFFFFFF).any()


def test_quick_power_and_quotient(device):
    x, y = draw("fp32", U(0.1, 9), edges=False), draw("fp32", U(-3, 3), seed=1, edges=False)
    wide = x.astype(np.float64), y.astype(np.float64)
    got = launch(device, "fast_powf", [x, y], ["fp32"] * 2, "fp32")
    np.testing.assert_allclose(got, np.power(*wide), rtol=3e-6)
    got = launch(device, "fast_dividef", [x, y], ["fp32"] * 2, "fp32")
    np.testing.assert_allclose(got, wide[0] / wide[1], rtol=3e-7)


# --- integers ------------------------------------------------------------------------------------------------------
def integers(kind, seed=0):
    info = np.iinfo(kind)
    x = np.random.default_rng(seed).integers(info.min, info.max, N, kind, endpoint=True)
    shift = np.arange(N, dtype=kind) % kind(8 * x.itemsize)
    x[N // 2 :] = (kind(1) << shift)[N // 2 :]
    x[:3] = [0, info.max, info.min]
    return x


def words(x):
    bits = 8 * x.itemsize
    return [int(v) & ((1 << bits) - 1) for v in x], bits


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint32, np.uint64])
def test_counting_bits(device, kind):
    x = integers(kind)
    raw, bits = words(x)
    name = {"i": "i", "u": "u"}[np.dtype(kind).kind] + str(bits)
    assert launch(device, "clz", [x], [name], "i32").tolist() == [
        bits - v.bit_length() for v in raw
    ]
    assert launch(device, "popc", [x], [name], "i32").tolist() == [v.bit_count() for v in raw]
    assert launch(device, "ffs", [x], [name], "i32").tolist() == [
        (v & -v).bit_length() for v in raw
    ]
    reverse = [int(f"{v:0{bits}b}"[::-1], 2) for v in raw]
    got = launch(device, "brev", [x], [name], name)
    assert words(got)[0] == reverse


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint32, np.uint64])
def test_mulhi(device, kind):
    if device.name == "simt" and kind is np.int64:
        pytest.skip("the simulator has no signed 128-bit integers")
    x, y = integers(kind, 1), integers(kind, 2)
    bits = 8 * x.itemsize
    name = np.dtype(kind).kind + str(bits)
    want = [(int(a) * int(b)) >> bits for a, b in zip(x, y)]
    assert launch(device, "mulhi", [x, y], [name] * 2, name).tolist() == want


def low24(v, signed):
    v &= 0xFFFFFF
    return v - (1 << 24) if signed and v >> 23 else v


@pytest.mark.parametrize("kind", [np.int32, np.uint32])
def test_averages_and_products(device, kind):
    x, y = integers(kind, 1), integers(kind, 2)
    signed = kind is np.int32
    name = "i32" if signed else "u32"
    pairs_ = [(int(a), int(b)) for a, b in zip(x, y)]
    kinds = [name] * 2
    assert launch(device, "hadd", [x, y], kinds, name).tolist() == [(a + b) >> 1 for a, b in pairs_]
    assert launch(device, "rhadd", [x, y], kinds, name).tolist() == [
        (a + b + 1) >> 1 for a, b in pairs_
    ]
    product = [low24(a, signed) * low24(b, signed) & 0xFFFFFFFF for a, b in pairs_]
    assert words(launch(device, "mul24", [x, y], kinds, name))[0] == product
    z = integers(np.uint32, 3)
    total = [(abs(a - b) + int(c)) & 0xFFFFFFFF for (a, b), c in zip(pairs_, z)]
    assert launch(device, "sad", [x, y, z], [*kinds, "u32"], "u32").tolist() == total


def test_byte_perm(device):
    x, y, s = (integers(np.int32, i) for i in (1, 2, 3))
    got = launch(device, "byte_perm", [x, y, s], ["i32"] * 3, "i32")
    want = []
    for a, b, c in zip(*(words(v)[0] for v in (x, y, s))):
        eight = (a | b << 32).to_bytes(8, "little")
        want.append(int.from_bytes(bytes(eight[c >> 4 * i & 7] for i in range(4)), "little"))
    assert words(got)[0] == want


BITCASTS = {
    "float_as_int": ("fp32", "i32"), "float_as_uint": ("fp32", "i32"), "int_as_float": ("i32", "fp32"),
    "uint_as_float": ("u32", "fp32"), "double_as_longlong": ("fp64", "i64"), "longlong_as_double": ("i64", "fp64"),
}  # fmt: skip


@pytest.mark.parametrize("name", BITCASTS)
def test_bits_of_floats(device, name):
    source, result = BITCASTS[name]
    kind = {
        "fp32": np.float32,
        "fp64": np.float64,
        "i32": np.int32,
        "u32": np.uint32,
        "i64": np.int64,
    }
    x = draw(source, ANY[source]) if source in SIZE else integers(kind[source])
    got = launch(device, name, [x], [source], result)
    assert got.tobytes() == x.tobytes()


def test_halves_of_doubles(device):
    x = draw("fp64", ANY["fp64"])
    parts = x.view(np.int32).reshape(-1, 2)
    assert (launch(device, "double2loint", [x], ["fp64"], "i32") == parts[:, 0]).all()
    assert (launch(device, "double2hiint", [x], ["fp64"], "i32") == parts[:, 1]).all()
    made = launch(device, "hiloint2double", [parts[:, 1], parts[:, 0]], ["i32"] * 2, "fp64")
    assert made.tobytes() == x.tobytes()


def test_ints_to_fp64(device):
    for name, kind, dtype in (
        ("int2double_rn", np.int32, "i32"),
        ("uint2double_rn", np.uint32, "u32"),
    ):
        x = integers(kind)
        assert (launch(device, name, [x], [dtype], "fp64") == x.astype(np.float64)).all()
