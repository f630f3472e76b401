"""Computes atan2 and fmod of two fp32 numbers from their quotient, in fp64 on vectors.

atan2 takes the smaller over the larger number, t in [0, 1], and folds t + t^3 p(t^2) back by quadrant. fmod subtracts
the whole quotients below 2^28, for which product and difference are exact.
"""

from __future__ import annotations

import math

from tessera.backends.cpu.lanes import Lanes
from tessera.backends.cpu.libm import guarded
from tessera.backends.cpu.math64 import D, fma, number, series
from tessera.dtypes import float32

# A Chebyshev fit of (atan(t) - t) / t^3 in t^2, off by 2.5e-9.
ATAN = (-0.3333333308107325, 0.19999949321141888, -0.1428400379473353, 0.11088261628735159, -0.08931826777381315,
        0.07031914250029966, -0.04896051402709067, 0.026305001110062377, -0.009144629760592396,
        0.0014886919393047597)  # fmt: skip


def atan2(x: Lanes, a: str, b: str) -> str:
    """The angle of the point (b, a)."""
    up, right = (x.convert("fpext", "float", v, D) for v in (a, b))
    high, wide = x.call("fabs", D, up), x.call("fabs", D, right)
    steep = x.cmp("fcmp ogt", D, high, wide)
    small, large = x.select(D, steep, wide, high), x.select(D, steep, high, wide)
    t = x.op("fdiv", D, small, large)
    # 0 / 0 is 0 here, infinity / infinity 1; a NaN stays.
    t = x.select(D, x.cmp("fcmp oeq", D, small, large), number(x, 1.0), t)
    none = x.cmp("fcmp oeq", D, x.op("fadd", D, small, large), number(x, 0.0))
    t = x.select(D, none, number(x, 0.0), t)
    z = x.op("fmul", D, t, t)
    angle = fma(x, x.op("fmul", D, t, z), series(x, ATAN, z), t)
    angle = x.select(D, steep, x.op("fsub", D, number(x, math.pi / 2), angle), angle)
    left = x.cmp("icmp slt", "i32", x.convert("bitcast", "float", b, "i32"), x.int("i32", 0))
    angle = x.select(D, left, x.op("fsub", D, number(x, math.pi), angle), angle)
    return x.call("copysign", "float", x.convert("fptrunc", D, angle, "float"), a)


def fmod(x: Lanes, a: str, b: str) -> str:
    """The remainder of fp32 with the sign of `a`, exact: by an fp64 division where |a/b| < 2^28."""

    def near(inner: Lanes, arguments: list[str]) -> tuple[str, str]:
        p, q = (inner.convert("fpext", "float", v, D) for v in arguments)
        whole = inner.call("trunc", D, inner.op("fdiv", D, p, q))
        rest = fma(inner, inner.op("fneg", D, whole), q, p)
        size = inner.call("fabs", D, whole)
        far = inner.cmp("fcmp uge", D, size, number(inner, 2.0**28))
        endless = inner.cmp("fcmp oeq", D, inner.call("fabs", D, q), number(inner, math.inf))
        result = inner.convert("fptrunc", D, rest, "float")
        return inner.call("copysign", "float", result, arguments[0]), inner.op(
            "or", "i1", far, endless
        )

    return guarded(x, "fmod", float32, [a, b], near)
