"""Error bounds of the vector functions and every conversion of small floats, on each instruction set."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.cpu.emitter import Emitter
from tessera.backends.cpu.lanes import Lanes
from tessera.backends.cpu.target import AVX2, LEVELS, lacking, resolve
from tessera.config import knobs
from tessera.dtypes import float64
from tessera.language.extra import libdevice
from tests.unit.cpu_kit import native

pytestmark = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # NumPy meets NaN and overflow as we do
ISAS = [isa for isa in ("avx512", "avx2", "baseline") if not lacking(isa)]


@pytest.fixture(params=ISAS)
def isa(request):
    with knobs.cpu.scope():
        knobs.cpu.isa = request.param
        yield request.param


@tessera.jit
def unary_kernel(x, y, n, F: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    m = at < n
    v = tl.load(x + at, mask=m, other=1.0)
    tl.store(y + at, F(v), mask=m)


def reference(name: str, x: np.ndarray) -> np.ndarray:
    import mpmath

    wide = x.astype(np.float64)
    if name == "erf":
        return np.array([float(mpmath.erf(v)) if v else v for v in wide])  # mpmath has no -0
    if name == "exp10":
        return np.power(10.0, wide)
    numpy_names = {"abs": "fabs", "asin": "arcsin", "acos": "arccos", "atan": "arctan"}
    return getattr(np, numpy_names.get(name, name))(wide)


def ulps(y: np.ndarray, want: np.ndarray) -> np.ndarray:
    inside = np.isfinite(want.astype(np.float32)) & np.isfinite(y)
    unit = np.spacing(np.abs(want[inside]).astype(np.float32)).astype(np.float64)
    return np.abs(y[inside].astype(np.float64) - want[inside]) / unit


SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-39, 3e38, -3e38, 1.0, -1.0, 0.5]
RANGES = {
    "exp": (tl.exp, -103, 88.7), "exp2": (tl.exp2, -148, 127.9), "log": (tl.log, 1e-44, 1e38),
    "log2": (tl.log2, 1e-44, 1e38),
    "sin": (tl.sin, -100, 100), "cos": (tl.cos, -30000, 30000), "erf": (tl.erf, -5, 5), "sqrt": (tl.sqrt, 0, 1e30),
    "tanh": (libdevice.tanh, -12, 12), "expm1": (libdevice.expm1, -20, 88.7), "exp10": (libdevice.exp10, -44, 38.5),
    "log10": (libdevice.log10, 1e-44, 1e38), "log1p": (libdevice.log1p, -0.999, 1e5),
    "sinh": (libdevice.sinh, -89.4, 89.4), "cosh": (libdevice.cosh, -89.4, 89.4), "asin": (libdevice.asin, -1, 1),
    "acos": (libdevice.acos, -1, 0.999), "atan": (libdevice.atan, -30, 30), "tan": (libdevice.tan, -1.5, 1.5),
}  # fmt: skip


@pytest.mark.parametrize("name", RANGES)
def test_within_two_ulp(isa, name):
    fn, low, high = RANGES[name]
    count = 4096 if name == "erf" else 1 << 16
    rng = np.random.default_rng(0)
    x = rng.uniform(low, high, count).astype(np.float32)
    if name in ("log", "log2", "log10"):
        x = np.exp(rng.uniform(-100, 88, count)).astype(np.float32)
        x[: count // 4] = rng.uniform(0.5, 2, count // 4)
    y = np.zeros_like(x)
    native(unary_kernel, (count // 1024,), x, y, count, F=fn, B=1024)
    with np.errstate(all="ignore"):
        want = reference(name, x)
    limit = 2.5 if name == "tan" else 2.0
    near_zero = np.abs(want) < 2.0**-12 if name in ("sin", "cos") else np.zeros(count, bool)
    assert ulps(y[~near_zero], want[~near_zero]).max() <= limit
    np.testing.assert_allclose(y[near_zero], want[near_zero], atol=2.0**-36 * max(1, abs(high)))


@pytest.mark.parametrize("name", RANGES)
def test_special_arguments(isa, name):
    x = np.array(SPECIAL * 2, np.float32)
    y = np.zeros_like(x)
    native(unary_kernel, (1,), x, y, len(x), F=RANGES[name][0], B=32)
    with np.errstate(all="ignore"):
        want = reference(name, x).astype(np.float32)
    np.testing.assert_allclose(y, want, rtol=3e-7)
    np.testing.assert_array_equal(np.signbit(y[want == 0]), np.signbit(want[want == 0]))


RANGES64 = {
    "exp": (tl.exp, -708, 709.7), "exp2": (tl.exp2, -1022, 1023.9), "log": (tl.log, 1e-320, 1e308),
    "log2": (tl.log2, 1e-320, 1e308), "sin": (tl.sin, -100, 100), "cos": (tl.cos, -1e6, 1e6),
}  # fmt: skip


@pytest.mark.parametrize("name", RANGES64)
def test_fp64_within_two_ulp(isa, name):
    import mpmath

    fn, low, high = RANGES64[name]
    rng = np.random.default_rng(0)
    x = rng.uniform(low, high, 4096)
    if name.startswith("log"):
        x = np.exp(rng.uniform(-736, 709, 4096))
        x[:1024] = rng.uniform(0.5, 2, 1024)
    y = np.zeros_like(x)
    native(unary_kernel, (4,), x, y, 4096, F=fn, B=1024)
    exact = {"exp2": lambda v: mpmath.power(2, v), "log2": lambda v: mpmath.log(v, 2)}
    with mpmath.workprec(120):
        call = exact.get(name) or getattr(mpmath, name)
        wants = [call(mpmath.mpf(float(v))) for v in x]
        errors = [
            abs(mpmath.mpf(float(v)) - want) / np.spacing(abs(float(want)))
            for v, want in zip(y, wants, strict=True)
        ]
    assert max(errors) <= 2


@pytest.mark.parametrize("name", RANGES64)
def test_special_fp64_arguments(isa, name):
    sizes = [
        0.0,
        np.inf,
        5e-324,
        1e-310,
        700.0,
        709.9,
        745.2,
        1024.0,
        1074.5,
        1e5,
        3e6,
        1e22,
        1.7e308,
    ]
    x = np.array([*sizes, *(-v for v in sizes), np.nan] + [1.0] * 5)
    y = np.zeros_like(x)
    native(unary_kernel, (1,), x, y, len(x), F=RANGES64[name][0], B=32)
    with np.errstate(all="ignore"):
        want = getattr(np, name)(x)
    np.testing.assert_allclose(y, want, rtol=4e-16, atol=1e-323)


@tessera.jit
def binary_kernel(x, y, out, n, B: tl.constexpr, F: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    a, b = tl.load(x + at, at < n), tl.load(y + at, at < n)
    if F == "fmod":
        value = a % b
    elif F == "remainder":
        value = libdevice.remainder(a, b)
    else:
        value = libdevice.atan2(a, b)
    tl.store(out + at, value, at < n)


def pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of edge cases, then numbers of any size, then numbers of one size."""
    a, b = (m.ravel() for m in np.meshgrid(EDGES, EDGES))
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 32, (2, count), dtype=np.uint64).astype(np.uint32)
    near = rng.uniform(-9, 9, (2, count))
    columns = zip((a, b), bits.view(np.float32), near, strict=True)
    x, y = (np.concatenate(c).astype(np.float32) for c in columns)
    return x, y


@np.vectorize
def nearest(a: float, b: float) -> float:
    """IEEE's remainder, which Python has for finite dividends."""
    return math.remainder(a, b) if abs(a) < math.inf and b != 0 else math.nan


@pytest.mark.parametrize("name", ["fmod", "remainder"])
def test_remainders_are_exact(isa, name):
    x, y = pairs(4000)
    x[-100:] = np.round(x[-100:]) * 3.5  # whole quotients, and halves between two
    y[-100:] = 7
    out = np.zeros_like(x)
    native(binary_kernel, (tessera.cdiv(len(x), 1024),), x, y, out, len(x), B=1024, F=name)
    with np.errstate(all="ignore"):
        want = np.fmod(x, y) if name == "fmod" else nearest(x, y)
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(np.signbit(out[want == 0]), np.signbit(want[want == 0]))


def test_angles(isa):
    x, y = pairs(4000)
    out = np.zeros_like(x)
    native(binary_kernel, (tessera.cdiv(len(x), 1024),), x, y, out, len(x), B=1024, F="atan2")
    want = np.arctan2(x.astype(np.longdouble), y.astype(np.longdouble))
    with np.errstate(all="ignore"):
        error = ulps(out, want)
    assert error.max() <= 0.6
    np.testing.assert_array_equal(np.isnan(out), np.isnan(want))
    np.testing.assert_array_equal(np.signbit(out[want == 0]), np.signbit(want[want == 0]))


@pytest.mark.parametrize(("name", "zero"), [("exp", -103.98), ("exp2", -150.01), ("exp10", -45.16)])
def test_exponentials_that_vanish(isa, name, zero):
    """From where the least subnormal number rounds to 0, over where products do not underflow any more, to -inf."""
    fn = libdevice.exp10 if name == "exp10" else getattr(tl, name)
    x = np.concatenate(
        [np.linspace(zero, 2 * zero, 4000), -np.logspace(2.5, 38, 95), [-np.inf]]
    ).astype(np.float32)
    y = np.ones(x.size, np.float32)
    native(unary_kernel, (tessera.cdiv(x.size, 1024),), x, y, x.size, F=fn, B=1024)
    np.testing.assert_array_equal(y, np.zeros_like(y))
    assert not np.signbit(y).any()


@pytest.mark.parametrize("name", ["exp", "exp2"])
def test_large_exponents(isa, name):
    sizes = [1e2, 1.4e2, 1.5e2, 1e3, 4e6, 6e6, 2e7, 1e10, 1e20, 1e38, 2.4e38, 3.4e38]
    x = np.array([sign * v for v in sizes for sign in (1, -1)], np.float32)
    y = np.zeros_like(x)
    native(unary_kernel, (1,), x, y, len(x), F=RANGES[name][0], B=32)
    with np.errstate(all="ignore"):
        want = reference(name, x).astype(np.float32)
    np.testing.assert_allclose(y, want, rtol=3e-7, atol=3e-45)


@tessera.jit
def extrema_kernel(x, y, low, high, B: tl.constexpr):
    at = tl.arange(0, B)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(low + at, tl.minimum(a, b))
    tl.store(high + at, tl.maximum(a, b))


def test_numbers_win_against_nan(isa):
    a, b = (m.ravel().astype(np.float32) for m in np.meshgrid(SPECIAL[2:10], SPECIAL[2:10]))
    low, high = np.zeros_like(a), np.zeros_like(a)
    native(extrema_kernel, (1,), a, b, low, high, B=64)
    np.testing.assert_array_equal(low, np.fmin(a, b))
    np.testing.assert_array_equal(high, np.fmax(a, b))


def test_large_angles(isa):
    x = np.array([1e5, -1e6, 12345678.0, 1e20, 3e38, 0.1] * 4, np.float32)
    for name, fn in (("sin", tl.sin), ("cos", tl.cos)):
        y = np.zeros_like(x)
        native(unary_kernel, (1,), x, y, len(x), F=fn, B=32)
        np.testing.assert_allclose(y, reference(name, x), rtol=1e-6)


@tessera.jit
def cast_kernel(x, y, T: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, tl.load(x + at).to(T).to(tl.uint8, bitcast=True))


@tessera.jit
def uncast_kernel(x, y, T: tl.constexpr, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(y + at, tl.load(x + at).to(T, bitcast=True).to(tl.float32))


FP8 = [tl.float8e4nv, tl.float8e5, tl.float8e4b8, tl.float8e5b16, tl.float8e4b15]


@pytest.mark.parametrize("t", FP8, ids=str)
def test_every_code_of_an_8_bit_float(isa, t):
    from tessera.interp.numerics import decode_table, encode_fp8

    codes = np.arange(256, dtype=np.uint8)
    y = np.zeros(256, np.float32)
    native(uncast_kernel, (1,), codes, y, T=t, B=256)
    np.testing.assert_array_equal(y, decode_table(t))
    # All fp16 values as fp32, and midpoints between codes: ties go to even.
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    out = np.zeros(1 << 16, np.uint8)
    native(cast_kernel, (64,), x, out, T=t, B=1024)
    want = encode_fp8(x, t)
    sure = ~np.isnan(x) | (t is tl.float8e4b15)  # which has no NaN
    np.testing.assert_array_equal(out[sure], want[sure])
    with np.errstate(all="ignore"):
        assert np.isnan(decode_table(t)[out[~sure]]).all()


@tessera.jit
def half_kernel(x, y, T: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, tl.load(x + at).to(T).to(tl.float32))


@pytest.mark.parametrize("t", [tl.float16, tl.bfloat16], ids=str)
def test_halves_round_to_even(isa, t):
    from tessera.interp.numerics import settle

    rng = np.random.default_rng(0)
    x = rng.integers(0, 1 << 32, 1 << 15, dtype=np.uint32).view(np.float32)
    x = np.concatenate([x, rng.standard_normal(1 << 15).astype(np.float32)])
    x[:4] = [65504.0, 65520.0, 6e-8, 0.0]
    y = np.zeros_like(x)
    native(half_kernel, (64,), x, y, T=t, B=1024)
    with np.errstate(all="ignore"):
        want = np.asarray(settle(x, t), np.float32)
    normal = np.isnan(x) | (np.abs(x) >= 2.0**-126)  # the bf16 instruction flushes subnormal inputs
    np.testing.assert_array_equal(y[normal], want[normal])


def test_levels():
    assert resolve("avx2")[1] is LEVELS["avx2"]
    assert resolve("generic")[0].cpu == "x86-64-v2"


def test_declarations_of_libm_outlive_discarded_code():
    em = Emitter({}, {})
    with em.discarded():
        Lanes(em, AVX2, 4).own("sinh", float64, em.parameter("%x"))
    assert any("@tessera.sinh.v4f64(" in text for text in em.globals)
    assert "declare double @sinh(double)" in em.declarations


@tessera.jit
def power_kernel(x, y, out, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, tl.extra.libdevice.pow(tl.load(x + at), tl.load(y + at)))


def test_powers(isa):
    """Within one ulp of the exact value, which fp64 gives, over all of fp32; edges as in C."""
    rng = np.random.default_rng(0)
    count = 1 << 16
    x = np.exp(rng.uniform(-100, 88, count)).astype(np.float32)
    x[: count // 4] = rng.uniform(0.5, 2, count // 4)
    y = (rng.uniform(-150, 150, count) / np.maximum(np.abs(np.log2(x)), 0.1)).astype(np.float32)
    x[: count // 8] *= -1
    y[: count // 8] = np.round(y[: count // 8])
    out = np.zeros_like(x)
    native(power_kernel, (count // 1024,), x, y, out, B=1024)
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64))
    assert ulps(out, want).max() <= 0.51
    np.testing.assert_array_equal(np.isfinite(out), np.isfinite(want.astype(np.float32)))


EDGES = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    3.0,
    -2.0,
    -3.0,
    1e-45,
    3e38,
    2.5,
]


def test_edges_of_powers(isa):
    x, y = (np.ravel(v).astype(np.float32) for v in np.meshgrid(EDGES, EDGES))
    out = np.zeros_like(x)
    native(power_kernel, (1,), x, y, out, B=256)
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(out, want, rtol=1e-7)
    np.testing.assert_array_equal(np.signbit(out)[~np.isnan(out)], np.signbit(want)[~np.isnan(out)])
