"""Philox: the golden vectors, and the distributions built on it."""

from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl


@tessera.jit
def randint_kernel(out, seed, first, N: tl.constexpr, ROUNDS: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.randint(seed, first + i, ROUNDS))


@tessera.jit
def randint4x_kernel(out, seed, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b, c, d = tl.randint4x(seed, i)
    tl.store(out + i, a)
    tl.store(out + N + i, b)
    tl.store(out + 2 * N + i, c)
    tl.store(out + 3 * N + i, d)


@tessera.jit
def float_kernel(uniform, normal, seed, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(uniform + i, tl.rand(seed, i))
    tl.store(normal + i, tl.randn(seed, i))


@tessera.jit
def uniform_of_bits(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.uint_to_uniform_float(tl.load(x + i)))


@tessera.jit
def philox64_kernel(out, seed, N: tl.constexpr):
    i = tl.arange(0, N)
    zero = i.to(tl.int64) * 0
    a, b, c, d = tl.philox(seed, zero, zero, zero, zero)
    tl.store(out + i, a)
    tl.store(out + N + i, b)
    tl.store(out + 2 * N + i, c)
    tl.store(out + 3 * N + i, d)


GOLDEN = [
    (42, 0, 10, [2632642643, 4242219303, 3547071013, 3133604981]),
    (0, 0, 10, [1713891541, 4175744164, 83534633, 3381718825]),
    (0x0FCAFEB0BA, 0, 10, [4061789019, 4006532958, 1161001591, 1493388715]),
    (42, 2**32, 10, [1122023603, 570655656, 230179720, 2316308015]),
    (42, 0, 5, [4013377377, 1053633203, 2323323306, 668933985]),
]


@pytest.mark.parametrize(("seed", "first", "rounds", "want"), GOLDEN)
def test_randint(device, seed, first, rounds, want):
    out = device.zeros(4, "u32")
    randint_kernel[(1,)](out, seed, first, N=4, ROUNDS=rounds)
    assert device.numpy(out).tolist() == want


def test_randint4x(device):
    out = device.zeros(4, "u32")
    randint4x_kernel[(1,)](out, 42, N=1)
    assert device.numpy(out).tolist() == [2632642643, 2012563771, 314527917, 1463989207]


def test_philox_of_64_bits(device):
    out = device.zeros(4, "u64")
    philox64_kernel[(1,)](out, 42, N=1)
    want = [12063030334536064454, 5501174070072956223, 16864535030999669429, 16330407317262940992]
    assert device.numpy(out).tolist() == want


def test_uniform_and_normal(device):
    uniform, normal = device.zeros(4), device.zeros(4)
    float_kernel[(1,)](uniform, normal, 42, N=4)
    want = np.array([0.77408016, 0.024562696, 0.3482663, 0.5408014], np.float32)
    np.testing.assert_array_equal(device.numpy(uniform), want)
    want = [0.66061336, -1.5427135, -0.5904636, -0.60162544]
    np.testing.assert_allclose(device.numpy(normal), want, rtol=2e-6)


def test_the_largest_uniform_is_below_one(device):
    bits = device.array([0x80000000, 0x7FFFFFFF, 0, 0xFFFFFFFF], "u32")
    out = device.zeros(4)
    uniform_of_bits[(1,)](bits, out, N=4)
    np.testing.assert_array_equal(
        device.numpy(out), np.array([0.99999994, 0.99999994, 0, 0], np.float32)
    )


def test_moments(device):
    n = 4096
    uniform, normal = device.zeros(n), device.zeros(n)
    float_kernel[(1,)](uniform, normal, 1234, N=n)
    u, z = device.numpy(uniform).astype(np.float64), device.numpy(normal).astype(np.float64)
    assert 0 <= u.min() < 0.01
    assert 0.99 < u.max() < 1
    assert abs(u.mean() - 0.5) < 0.02
    assert abs(z.mean()) < 0.06
    assert abs(z.std() - 1) < 0.05
