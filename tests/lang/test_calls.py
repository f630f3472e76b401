"""Functions that are called and not inlined, tuples and aggregates through calls, on every device."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import tessera
import tessera.language as tl


@tessera.jit(noinline=True)
def horner(x, a, b, c):
    return (a * x + b) * x + c


@tessera.jit(noinline=True)
def load_row_sum(p, row, N: tl.constexpr):
    """Works with tiles inside, scalars outside."""
    x = tl.load(p + row * N + tl.arange(0, N))
    return tl.sum(x, 0)


@tessera.jit(noinline=True)
def store_pair(p, at, pair):
    tl.store(p + at, pair[0])
    tl.store(p + at + 1, pair[1])


@tessera.jit(noinline=True)
def gcd(a, b):
    while b != 0:
        t = a % b
        a = b
        b = t
    return a


@tessera.jit(noinline=True)
def lcm_gcd(a, b):
    g = gcd(a, b)
    return a // g * b, g


@tessera.jit
def calls_kernel(p, out, ints, n, N: tl.constexpr):
    pid = tl.program_id(0)
    total = load_row_sum(p, pid, N)
    again = load_row_sum(p, pid + 1, N)
    y = horner(total, 2.0, again, 1.0)
    tl.store(out + pid, y)
    k = horner(n, 1, 2, 3)
    m, g = lcm_gcd(k, pid * 6 + 4)
    store_pair(ints, pid * 2, (m, g))


@pytest.mark.parametrize("N", [16, 512])
def test_noinline_functions(device: Any, N: int):
    rng = np.random.default_rng(1)
    programs, n = 5, 9
    x = rng.standard_normal((programs + 1, N)).astype(np.float32)
    given, out = device.array(x), device.array(np.zeros(programs, np.float32))
    ints = device.array(np.zeros(programs * 2, np.int32))
    kernel = calls_kernel[(programs,)](given, out, ints, n, N)
    s = x.sum(1)
    np.testing.assert_allclose(
        device.numpy(out), (2 * s[:-1] + s[1:]) * s[:-1] + 1, rtol=2e-4, atol=2e-4
    )
    k = (n + 2) * n + 3
    want = [[np.lcm(k, p * 6 + 4), np.gcd(k, p * 6 + 4)] for p in range(programs)]
    assert device.numpy(ints).reshape(-1, 2).tolist() == want
    text = kernel.asm["tir"]
    assert text.count("func {name='load_row_sum") == 1  # one function for both calls
    assert text.count("func {name='horner") == 2  # of floats, and of ints


# --- aggregates, tuples -----------------------------------------------------------------------------------------
class Window(NamedTuple):
    start: Any
    size: Any


@tessera.aggregate
class Complex:
    re: tl.tensor
    im: tl.tensor

    @tessera.jit
    def __add__(self, other):
        return Complex(self.re + other.re, self.im + other.im)

    @tessera.jit
    def __mul__(self, other):
        if isinstance(other, Complex):
            return Complex(
                self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re
            )
        else:
            return Complex(self.re * other, self.im * other)

    @tessera.jit
    def __rmul__(self, other):
        return self * other

    @tessera.jit
    def __neg__(self):
        return Complex(-self.re, -self.im)

    @tessera.jit
    def __eq__(self, other):
        return (self.re == other.re) & (self.im == other.im)

    @tessera.jit
    def square(self):
        return self * self


@tessera.jit
def iterate(z, c, steps):
    for _ in range(steps):
        if z.re * z.re + z.im * z.im > 4:
            break
        z = z.square() + c
    return z


@tessera.jit
def complex_kernel(re, im, out, window, steps):
    i = window.start + tl.program_id(0) % window.size
    c = Complex(tl.load(re + i), tl.load(im + i))
    z = iterate(Complex(0.0 * c.re, 0.0 * c.im), c, steps)
    z = 2.0 * -z
    same = (z + c == c + z).to(tl.int32)
    tl.store(out + i * 3, z.re)
    tl.store(out + i * 3 + 1, z.im)
    tl.store(out + i * 3 + 2, same)


def test_operators_of_aggregates(device: Any):
    rng = np.random.default_rng(2)
    c = (rng.uniform(-1, 1, 8) + 1j * rng.uniform(-1, 1, 8)).astype(np.complex64)
    re, im = device.array(c.real.copy()), device.array(c.imag.copy())
    out = device.array(np.zeros((8, 3), np.float32))
    complex_kernel[(5,)](re, im, out, Window(2, 5), 4)
    want = np.zeros((8, 3), np.float32)
    for i in range(2, 7):
        z = np.complex64(0)
        for _ in range(4):
            if abs(z) ** 2 > 4:
                break
            z = z * z + c[i]
        want[i] = -2 * z.real, -2 * z.imag, 1
    np.testing.assert_allclose(device.numpy(out), want, rtol=1e-5, atol=1e-6)


@tessera.jit(noinline=True)
def block_sum(d, at, scale, extra):
    """Literals stay compile-time values; a descriptor is passed as what it is made of."""
    tl.static_assert(isinstance(scale, tl.constexpr))
    x = d[0].load([at, 2])
    return tl.sum(tl.sum(x, 1), 0) * scale + extra[0] + d[0].shape[1]


@tessera.jit
def called_with_descriptor_kernel(p, out, rows):
    d = tl.make_tensor_descriptor(p, [rows, 8], [8, 1], [4, 4])
    for i in range(3):
        tl.store(out + i, block_sum((d, i), i * 2, 2, (rows, 7)))


def test_descriptors_are_passed_to_functions(device: Any):
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    p, out = device.array(x), device.zeros(3, "fp32")
    called_with_descriptor_kernel[(1,)](p, out, 6)
    padded = np.zeros((12, 8), np.float32)
    padded[:6] = x[:6]
    want = [2 * padded[2 * i : 2 * i + 4, 2:6].sum() + 6 + 8 for i in range(3)]
    np.testing.assert_array_equal(device.numpy(out), want)
