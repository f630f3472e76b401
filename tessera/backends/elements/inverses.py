"""Writes inverse hyperbolic functions; of fp32 what cube roots start from, and the inverse of the error function."""

from __future__ import annotations

import math

from tessera.backends.elements import coefficients as c
from tessera.backends.elements.exponentials import log1p_limited, log1p_single
from tessera.backends.elements.floats import Floats, function
from tessera.dtypes import float32, float64


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


# --- inverse hyperbolic functions ----------------------------------------------------------------------------
def _log_twice(m: Floats, a: str, finite: str, rare: str) -> str | None:
    """Return log(1 + finite), and where a is at least 2^60, negative or NaN log 2a, by an instruction for logarithms;
    None if there is none. What overflows in `finite` does so there only. A result is 42 at least there."""
    log = m.x.approximate("normal_log2", m.t, a)
    if log is None:
        return None
    ln2 = m.const(math.log(2))
    return m.select(rare, m.fma(log, ln2, ln2), log1p_limited(m, finite))


def _far(m: Floats, a: str) -> str:
    """Whether fp32 a is 2^60 at least, negative or NaN."""
    return m.x.cmp("icmp uge", m.int, m.bits(a), m.iconst(0x5D800000))


def _log_limited(m: Floats, big: str, a: str, finite: str) -> str:
    """log(1 + finite), and where `big` log 2a."""
    value = log1p_single(m, m.select(big, a, finite))
    return m.add(value, m.select(big, m.const(math.log(2)), m.const(0.0)))


@function("asinh", float32)
def _asinh32(m: Floats, x: str) -> str:
    def finite(near: str) -> str:
        square = m.mul(near, near)
        root = m.math("sqrt", m.add(square, m.const(1.0)))
        return m.fma(square, m.reciprocal(m.add(root, m.const(1.0))), near)

    a = m.abs(x)
    value = _log_twice(m, a, finite(a), _far(m, a))
    if value is None:
        big = m.cmp("ogt", a, m.const(1e9))
        value = _log_limited(m, big, a, finite(m.select(big, m.const(1.0), a)))
    return m.sign_of(value, x)


@function("acosh", float32)
def _acosh32(m: Floats, x: str) -> str:
    def finite(t: str) -> str:
        return m.add(t, m.math("sqrt", m.fma(t, t, m.add(t, t))))

    one = m.const(1.0)
    t = m.sub(x, one)
    value = _log_twice(m, t, finite(t), _far(m, t))
    if value is not None:
        return value
    big = m.cmp("ogt", x, m.const(1e9))
    value = _log_limited(m, big, x, finite(m.sub(m.select(big, one, x), one)))
    return m.select(m.below(x, 1.0), m.const(math.nan), value)


@function("atanh", float32)
def _atanh32(m: Floats, x: str) -> str:
    """Half of log(1 + 2 a / (1 - a)): of the quotient 2 a + 2 a^2 / (1 - a) the first part has no error."""
    a = m.call("minnum", m.abs(x), m.const(2.0))  # of NaN, too, whose result is the same
    twice, inverse = m.add(a, a), m.reciprocal(m.sub(m.const(1.0), a))
    value = log1p_single(m, m.fma(m.mul(twice, a), inverse, twice))
    return m.sign_of(m.mul(value, m.const(0.5)), x)


@function("asinh", float64)
def _asinh(m: Floats, x: str) -> str:
    a, one = m.abs(x), m.const(1.0)
    near = m.at_most(a, 1e9)
    square = m.mul(near, near)
    root = m.math("sqrt", m.add(square, one))
    small = m.math("log1p", m.add(near, m.div(square, m.add(root, one))))
    return m.sign_of(m.select(m.cmp("ogt", a, m.const(1e8)), _log_of_double(m, a), small), x)


@function("acosh", float64)
def _acosh(m: Floats, x: str) -> str:
    t = m.sub(m.at_most(x, 1e9), m.const(1.0))
    small = m.math("log1p", m.add(t, m.math("sqrt", m.fma(t, t, m.add(t, t)))))
    small = m.select(m.below(x, 1.0), m.const(math.nan), small)  # opposites would be infinite
    return m.select(m.cmp("ogt", x, m.const(1e8)), _log_of_double(m, x), small)


def _log_of_double(m: Floats, a: str) -> str:
    return m.add(m.math("log", a), m.const(math.log(2)))


@function("atanh", float64)
def _atanh(m: Floats, x: str) -> str:
    a = m.abs(x)
    value = m.math("log1p", m.div(m.add(a, a), m.sub(m.const(1.0), a)))
    return m.sign_of(m.mul(value, m.const(0.5)), x)
