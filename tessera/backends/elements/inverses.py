"""Writes parts of inverse functions of fp32: what cube roots start from, and the inverse of the error function."""

from __future__ import annotations

import math

from tessera.backends.elements import coefficients as c
from tessera.backends.elements.floats import Floats, function
from tessera.dtypes import float32


@function("fast_rcbrt", float32)
def _rcbrt(m: Floats, a: str) -> str:
    """By a logarithm, where there is an instruction for it; elsewhere by a third of the bits, which is off by 0.05, and
    a series of the error."""
    log = m.x.approximate("normal_log2", m.t, a)
    if log is not None:
        return m.math("exp2", m.mul(log, m.const(-1 / 3)))
    wide = m.x.op(
        "mul", "i64", m.x.convert("zext", m.int, m.bits(a), "i64"), m.x.int("i64", 0x55555556)
    )
    third = m.x.convert("trunc", "i64", m.x.op("lshr", "i64", wide, m.x.int("i64", 32)), m.int)
    r = m.from_bits(m.iop("sub", m.iconst(0x54A20000), third))
    gap = m.fma(m.neg(m.mul(m.mul(a, r), r)), r, m.const(1.0))
    series = m.polynomial((0.33333132, 0.22347528, 0.17405583), gap)
    r = m.fma(m.mul(r, gap), series, r)
    r = m.select(m.cmp("oeq", a, m.const(math.inf)), m.const(0.0), r)
    return m.select(m.cmp("oeq", a, m.const(0.0)), m.const(math.inf), r)


def _tail(m: Floats, w: str) -> str:
    """Beyond 8 the root of w times a polynomial of its inverse, which is 0 for an infinite w."""
    t = m.math("rsqrt", w)
    middle = m.polynomial(c.ERFINV_TAIL, m.sub(t, m.const(0.28125)))
    far = m.polynomial(c.ERFCINV_TAIL, m.sub(t, m.const(0.140625)))
    found = m.mul(m.mul(w, t), m.select(m.below(t, 0.2), far, middle))
    return m.select(m.cmp("oeq", w, m.const(math.inf)), w, found)


@function("erfinv_ratio", float32)
def _erfinv_ratio(m: Floats, rest: str) -> str:
    """A polynomial of w = -log2(rest), as M. Giles proposed, or beyond w = 8 one of its root."""
    w = m.neg(m.math("normal_log2", rest))
    near = m.polynomial(c.ERFINV_CENTRE, m.sub(w, m.const(4.0)))
    rare = m.negated(m.below(w, 8.0))  # NaN too
    return m.x.rarely(m.t, rare, near, lambda: _tail(m, m.neg(m.math("fast_log2", rest))))
