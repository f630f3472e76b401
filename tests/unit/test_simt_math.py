"""Accuracy of the mathematical functions in LLVM IR, against mpmath, over special values and many magnitudes."""

# pyright: basic
from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.language.extra import libdevice
from tests.simt_kit import Compiled

C = "constexpr"
SIZE = 512
EDGES = [
    0, -0.0, 1, -1, math.inf, -math.inf, math.nan, 1e-40, 1e-30, 3e38, -3e38, 0.5, -0.5, 88, -88, 1e5, 1e10, 1e20,
    -1e30, math.pi, math.pi / 2, 22 / 7, 105615.0, 48000.0,
]  # fmt: skip
# Largest error in units of the last place, (fp32, fp64). The simulator's approximations of hardware are exact: what is
# measured is the reduction and the polynomial. exp in fp32 is x log2(e) in one rounding, by design.
BOUNDS = {
    "exp": (64, 1), "exp2": (1, 1), "log": (1, 1.5), "log2": (1.5, 1.5), "sin": (1.5, 2), "cos": (1.8, 2),
    "erf": (2.2, 2), "sqrt": (0.51, 0.51), "rsqrt": (1.5, 1.5), "exp10": (0.51, 1.5), "expm1": (0.51, 2),
    "log10": (1, 2), "log1p": (1.5, 3), "tan": (0.51, 3), "asin": (0.51, 3), "acos": (0.51, 3), "atan": (0.51, 2),
    "sinh": (0.51, 3), "cosh": (0.51, 3), "tanh": (1.8, 3),
}  # fmt: skip


@tessera.jit
def apply_kernel(x, out, F: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, F(tl.load(x + i)))


@tessera.jit
def apply2_kernel(x, y, out, F: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, F(tl.load(x + i), tl.load(y + i)))


def inputs(dtype) -> np.ndarray:
    rng = np.random.default_rng(1)
    left = SIZE - len(EDGES) - 250
    wide = np.exp(rng.uniform(-80, 80, left)) * rng.choice([-1, 1], left)
    return np.concatenate(
        [EDGES, rng.standard_normal(150) * 3, rng.uniform(-1, 1, 100), wide]
    ).astype(dtype)


EXACT = {
    "exp2": lambda v: mpmath.mpf(2) ** v, "exp10": lambda v: mpmath.mpf(10) ** v, "log2": lambda v: mpmath.log(v, 2),
    "log10": lambda v: mpmath.log(v, 10), "rsqrt": lambda v: 1 / mpmath.sqrt(v),
}  # fmt: skip
NUMPY = {
    "exp10": lambda v: np.power(10.0, v), "rsqrt": lambda v: 1 / np.sqrt(v), "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "erf": math.erf,
}  # fmt: skip


def reference(name: str, v: float) -> Any:
    """The exact value; at infinities, zeros and outside of the domain what IEEE functions give."""
    domain = {"log": 0, "log2": 0, "log10": 0, "sqrt": 0, "rsqrt": 0, "log1p": -1}
    outside = (name in domain and v <= domain[name]) or (name in ("asin", "acos") and abs(v) > 1)
    huge = abs(v) > 2000 and name in ("exp", "exp2", "exp10", "expm1", "sinh", "cosh")
    if not math.isfinite(v) or v == 0 or outside or huge:
        with np.errstate(all="ignore"):
            return float((NUMPY.get(name) or getattr(np, name))(np.float64(v)))
    return (EXACT.get(name) or getattr(mpmath, name))(mpmath.mpf(v))


def worst(got: np.ndarray, want: list) -> float:
    """Largest error in ulp; infinite where a special value is wrong."""
    dtype, most = got.dtype.type, 0.0
    for g, w in zip(got, want):
        with np.errstate(over="ignore"):
            near = dtype(float(w)) if not isinstance(w, float) and abs(w) < 1e308 else dtype(w)
        if not np.isfinite(near):
            if not (g == near or (np.isnan(g) and np.isnan(near))):
                return math.inf
            continue
        if not np.isfinite(g):
            return math.inf
        unit = float(np.spacing(max(abs(near), np.finfo(dtype).tiny)))
        most = max(most, float(abs(mpmath.mpf(float(g)) - w)) / unit)
    return most


@pytest.mark.parametrize("kind", [0, 1], ids=["fp32", "fp64"])
@pytest.mark.parametrize("name", BOUNDS)
def test_error_in_ulp(name, kind):
    elem, dtype = ("fp32", np.float32) if kind == 0 else ("fp64", np.float64)
    fn = getattr(tl, name, None) or getattr(libdevice, name)
    x = inputs(dtype)
    out = np.zeros_like(x)
    p = f"*{elem}"
    Compiled(apply_kernel, {"x": p, "out": p, "F": C, "N": C}, {"F": fn, "N": SIZE}).run(x, out)
    with mpmath.workprec(200):
        assert worst(out, [reference(name, float(v)) for v in x]) <= BOUNDS[name][kind]


@pytest.mark.parametrize(("elem", "tolerance"), [("fp32", 3e-7), ("fp64", 3e-14)])
@pytest.mark.parametrize("name", ["pow", "atan2", "fmod"])
def test_two_operands(name, elem, tolerance):
    dtype = np.float32 if elem == "fp32" else np.float64
    edges = [0, -0.0, 1, -1, 2, -2, 0.5, -0.5, np.inf, -np.inf, np.nan, 3, -3, 1e30, 1e-30, 2.5]
    rng = np.random.default_rng(3)
    x = np.concatenate([np.repeat(edges, 16), rng.standard_normal(256) * 5]).astype(dtype)
    y = np.concatenate([np.tile(edges, 16), rng.standard_normal(256) * 5]).astype(dtype)
    out = np.zeros_like(x)
    p = f"*{elem}"
    signature = {"x": p, "y": p, "out": p, "F": C, "N": C}
    fn = getattr(libdevice, name)
    Compiled(apply2_kernel, signature, {"F": fn, "N": SIZE}).run(x, y, out)
    numpy_name = {"pow": "power", "atan2": "arctan2", "fmod": "fmod"}[name]
    with np.errstate(all="ignore"):
        want = getattr(np, numpy_name)(x, y)
    np.testing.assert_allclose(out, want, rtol=0 if name == "fmod" else tolerance)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(out)[numbers], np.signbit(want)[numbers])


@pytest.mark.parametrize("seed", range(2))
def test_powers_in_fp32(seed):
    """Within two ulp over all of fp32, bases near 1 with large exponents too."""
    rng = np.random.default_rng(seed)
    x = np.exp(rng.uniform(-100, 88, SIZE))
    x[: SIZE // 2] = rng.uniform(0.3, 4, SIZE // 2)
    x[: SIZE // 8] = 1 + rng.uniform(-1e-2, 1e-2, SIZE // 8)
    x = x.astype(np.float32)
    y = rng.uniform(-150, 128, SIZE) / np.maximum(np.abs(np.log2(x.astype(float))), 1e-6)
    y = y.astype(np.float32)
    out = np.zeros_like(x)
    signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "F": C, "N": C}
    Compiled(apply2_kernel, signature, {"F": libdevice.pow, "N": SIZE}).run(x, y, out)
    with mpmath.workprec(120):
        want = [mpmath.mpf(float(a)) ** mpmath.mpf(float(b)) for a, b in zip(x, y)]
        assert worst(out, want) <= 1.1


@tessera.jit
def divide_kernel(x, y, out, ROWS: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, ROWS), tl.arange(0, N)
    at = i[:, None] * N + j[None, :]
    tl.store(out + at, tl.load(x + at) / tl.load(y + i)[:, None])


def test_a_shared_divisor_has_one_reciprocal():
    """Quotients are those of a division of each element, to the bits of its approximation; also where the reciprocal
    alone would leave the range."""
    signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "ROWS": C, "N": C}
    found = Compiled(divide_kernel, signature, {"ROWS": 32, "N": SIZE}, num_warps=4)
    assert found.count(r"div\.full") == 0
    assert 0 < found.count(r"rcp\.approx") <= 32
    x = np.tile(inputs("f4"), (32, 1))
    extremes = [1, -3, 7e-39, 1e-45, 1.1e-38, 2e38, -3e38, 9e37, 0, -0.0, *EDGES[4:9]]
    y = np.array([*extremes, *range(5, 22)], "f4")
    out = np.zeros_like(x)
    with np.errstate(all="ignore"):
        found.run(x, y, out)
        want = x / y[:, None]
    np.testing.assert_allclose(out, want, rtol=2.5e-7, atol=3e-45)


def test_a_divisor_of_its_own_is_divided_by():
    signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "F": C, "N": C}
    found = Compiled(apply2_kernel, signature, {"F": quotient, "N": SIZE})
    assert found.count(r"div\.full") == found.count(r"ld\.global\.v4\.b32") * 2 > 0
    assert found.count(r"rcp\.approx") == 0


@tessera.jit
def quotient(x, y):
    return x / y
