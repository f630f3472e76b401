"""Functions of fp32 that are computed in fp32, on many arguments: beside those of fp64, on the CPU."""

# pyright: basic
from __future__ import annotations

import math

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.language.extra import libdevice
from tessera.runtime import driver

BLOCK = 1024
COUNT = 1 << 16
TINY = np.finfo(np.float32).tiny


@tessera.jit
def apply_kernel(x, out, F: tl.constexpr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + i, F(tl.load(x + i)))


@tessera.jit
def apply4_kernel(x, y, z, t, out, F: tl.constexpr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + i, F(tl.load(x + i), tl.load(y + i), tl.load(z + i), tl.load(t + i)))


@pytest.fixture(autouse=True)
def cpu():
    driver.set_active("cpu")
    yield
    driver.reset_active()


def applied(name: str, x: np.ndarray) -> np.ndarray:
    out = np.zeros_like(x)
    apply_kernel[(len(x) // BLOCK,)](x, out, F=getattr(libdevice, name), N=BLOCK)
    return out


def uniform(low: float, high: float) -> np.ndarray:
    return np.random.default_rng(0).uniform(low, high, COUNT).astype(np.float32)


def magnitudes(low: float, high: float) -> np.ndarray:
    exponents = np.random.default_rng(1).uniform(math.log(low), math.log(high), COUNT)
    return np.exp(exponents).astype(np.float32)


RELATIVE = {  # largest error in ulp, and arguments
    "j0": (9, uniform(-7.99, 7.99)),
    "j1": (9, uniform(-7.99, 7.99)),
    "y0": (9, magnitudes(1e-40, 0.3)),
    "y1": (3, magnitudes(1e-37, 1)),
    "cyl_bessel_i0": (6, uniform(-91.5, 91.5)),
    "cyl_bessel_i1": (6, uniform(-91.5, 91.5)),
    "cbrt": (1, magnitudes(1e-45, 3e38)),
    "rcbrt": (1.1, magnitudes(1e-45, 3e38)),
    "erfinv": (3.5, uniform(-1, 1)),
    "erfcinv": (4, magnitudes(1e-45, 2)),
    "normcdf": (5, uniform(-14.4, 6)),
    "normcdfinv": (5, magnitudes(1e-45, 1)),
    "tgamma": (5, uniform(-9.99, 35)),
    "erfc": (4.5, uniform(-4, 10.2)),
}


@pytest.mark.parametrize("name", RELATIVE)
def test_relative_errors(name):
    bound, x = RELATIVE[name]
    want = applied(name, x.astype(np.float64))
    gap = np.abs(applied(name, x) - want)
    unit = np.spacing(np.maximum(np.abs(want), TINY).astype(np.float32)).astype(np.float64)
    assert (gap / unit).max() <= bound


def test_the_gamma_function_beside_its_poles():
    """Where gamma(1 + |x|) overflows, and its inverse would be subnormal."""
    whole = np.repeat(-np.arange(1.0, 45.0, dtype=np.float32), 6)
    x = whole.view(np.int32) + np.resize(np.array([-3, -2, -1, 1, 2, 3], np.int32), whole.size)
    x = np.resize(x.view(np.float32), BLOCK)
    want = applied("tgamma", x.astype(np.float64))
    unit = np.spacing(np.maximum(np.abs(want), TINY).astype(np.float32)).astype(np.float64)
    assert (np.abs(applied("tgamma", x) - want) / unit).max() <= 5


@pytest.mark.parametrize("name", ["cyl_bessel_i0", "cyl_bessel_i1"])
def test_modified_bessel_functions_overflow(name):
    x = np.resize(np.linspace(92, 130, BLOCK, dtype=np.float32), BLOCK)
    assert np.isposinf(applied(name, x)).all()


def test_an_inverse_cosine_of_large_negative_numbers():
    x = -magnitudes(1e-3, 1e38)
    for given in (x, x.astype(np.float64)):
        assert np.isnan(applied("acosh", given)).all()


@pytest.mark.parametrize("name", ["j0", "j1", "y0", "y1"])
@pytest.mark.parametrize("x", [uniform(0.5, 200), magnitudes(1, 1e14)], ids=["near", "far"])
def test_bessel_functions_near_zeros(name, x):
    """Where they oscillate their errors are absolute."""
    want = applied(name, x.astype(np.float64))
    assert np.abs(applied(name, x) - want).max() <= 2.0**-21
    large = x > 1e3
    size = np.sqrt(2 / (np.pi * x[large].astype(np.float64)))
    found = np.abs(applied(name, x) - want)[large] / size
    assert found.max(initial=0.0) <= 2.0**-21


def test_a_reciprocal_root_is_rounded_to_nearest():
    """All bits of the significand in some of two binades, with the hard ones among them."""
    bits = np.arange(0x3F800000, 0x40800000, 61, dtype=np.uint32)
    x = bits[: len(bits) // BLOCK * BLOCK].view(np.float32)
    want = (1 / np.sqrt(x.astype(np.longdouble))).astype(np.float32)
    np.testing.assert_array_equal(applied("rsqrt_rn", x), want)


@pytest.mark.parametrize("name", ["norm4d", "rnorm4d"])
def test_lengths(name):
    given = [magnitudes(1e-44, 3e38)[k:] for k in range(4)]
    x, y, z, t = given = [np.resize(np.roll(v, 17 * k), COUNT) for k, v in enumerate(given)]
    given[0][:5] = np.inf, 0, np.nan, 3e38, 1e-45
    for v in given[1:]:
        v[:5] = np.nan, 0, 1, 3e38, 0
    wide = np.sqrt(sum(v.astype(np.longdouble) ** 2 for v in given))
    wide[0] = np.inf
    with np.errstate(all="ignore"):
        want = wide if name == "norm4d" else 1 / wide
        out = np.zeros(COUNT, np.float32)
        apply4_kernel[(COUNT // BLOCK,)](x, y, z, t, out, F=getattr(libdevice, name), N=BLOCK)
        near = want.astype(np.float32)
        finite = np.isfinite(near)
        np.testing.assert_array_equal(np.isnan(out), np.isnan(near))
        np.testing.assert_array_equal(out[~finite], near[~finite])
        unit = np.spacing(np.maximum(np.abs(near[finite]), TINY))
        assert (np.abs(out[finite] - want[finite]) / unit).max() <= 2


def test_special_values():
    x = np.resize(np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45], np.float32), BLOCK)
    found = {
        n: applied(n, x)[:6]
        for n in ("j0", "j1", "y0", "y1", "cbrt", "rcbrt", "erfcinv", "rsqrt_rn")
    }
    nan, inf, least = np.nan, np.inf, np.float32(1e-45)
    want = {
        "j0": [1, 1, 0, 0, nan, 1],
        "y0": [-inf, -inf, 0, nan, nan, found["y0"][5]],
        "y1": [-inf, -inf, 0, nan, nan, -inf],
        "rcbrt": [inf, -inf, 0, -0.0, nan, np.float32(float(least) ** (-1 / 3))],
        "erfcinv": [inf, inf, nan, nan, nan, found["erfcinv"][5]],
        "rsqrt_rn": [inf, -inf, 0, nan, nan, np.float32(float(least) ** -0.5)],
    }
    for name, values in want.items():
        np.testing.assert_allclose(found[name], values, rtol=2e-7, err_msg=name)
    for name in ("j1", "cbrt"):
        assert np.signbit(found[name][:4]).tolist() == [False, True, False, True], name
