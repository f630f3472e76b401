"""Mathematical functions, their inputs, references and error bounds."""

# pyright: basic
from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np

import tessera
import tessera.language as tl

SIZE = 512


EDGES = [
    0, -0.0, 1, -1, math.inf, -math.inf, math.nan, 1e-40, 1e-30, 3e38, -3e38, 0.5, -0.5, 88, -88, 1e5, 1e10, 1e20,
    -1e30, math.pi, math.pi / 2, 22 / 7, 105615.0, 48000.0,
]  # fmt: skip


# Largest error in units of the last place, (fp32, fp64). The simulator's approximations of hardware are exact: what is
# measured is the reduction and the polynomial. exp in fp32 is x log2(e) in one rounding, by design.
BOUNDS = {
    "exp": (64, 1), "exp2": (1, 1), "log": (1, 1.5), "log2": (1.5, 1.5), "sin": (1.5, 2), "cos": (1.8, 2),
    "erf": (2.2, 2), "sqrt": (0.51, 0.51), "rsqrt": (1.5, 1.5), "exp10": (1, 1.5), "expm1": (1.4, 2),
    "log10": (2, 2), "log1p": (1.5, 3), "tan": (2.3, 3), "asin": (2, 3), "acos": (1.4, 3), "atan": (1.4, 2),
    "sinh": (1.7, 3), "cosh": (1.4, 3), "tanh": (1.8, 3),
}  # fmt: skip


@tessera.jit
def apply_kernel(x, out, F: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, F(tl.load(x + i)))


def inputs(dtype) -> np.ndarray:
    rng = np.random.default_rng(1)
    left = SIZE - len(EDGES) - 270
    wide = np.exp(rng.uniform(-80, 80, left)) * rng.choice([-1, 1], left)
    return np.concatenate(
        [
            EDGES,
            rng.standard_normal(150) * 3,
            rng.uniform(-1, 1, 100),
            np.linspace(0.4, 0.41, 20),
            wide,
        ]
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
