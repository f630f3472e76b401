"""fp8: storage, casts and arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.conftest import as_dtype, decode, encode

FP8 = {"fp8e5": tl.float8e5, "fp8e4nv": tl.float8e4nv}
LARGEST = {"fp8e5": 57344.0, "fp8e4nv": 448.0}


@tessera.jit
def cast_kernel(x, out, N: tl.constexpr, TO: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(TO))


@tessera.jit
def store_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i))


@pytest.mark.parametrize("wide", ["fp16", "fp32"])
@pytest.mark.parametrize("kind", FP8)
def test_every_code_widens_exactly(device, kind, wide):
    values = decode(np.arange(256, dtype=np.uint8), as_dtype(kind))
    values = np.where(np.isfinite(values), values, 1.0)
    out = device.zeros(256, wide)
    to = tl.float16 if wide == "fp16" else tl.float32
    cast_kernel[(1,)](device.array(values, kind), out, N=256, TO=to)
    np.testing.assert_array_equal(device.numpy(out), values)


@pytest.mark.parametrize("have", ["fp16", "fp32"])
@pytest.mark.parametrize("kind", FP8)
def test_narrowing_rounds_to_even_and_saturates(device, kind, have):
    x = np.concatenate([
        np.random.default_rng(0).standard_normal(200) * 20, np.linspace(-0.01, 0.01, 40),
        [0.0, -0.0, 1e4, -1e4, 60000, LARGEST[kind], 1.0625, 1.1875, 1.125, 3.25, 449, 460, 17, 19, 2.0**-9, 2.0**-10],
    ])  # fmt: skip
    x = x.astype(np.float16 if have == "fp16" else np.float32)
    out = device.zeros(256, kind)
    cast_kernel[(1,)](device.array(x), out, N=256, TO=FP8[kind])
    t = as_dtype(kind)
    want = decode(encode(np.clip(x.astype(np.float64), -LARGEST[kind], LARGEST[kind]), t), t)
    np.testing.assert_array_equal(device.numpy(out), want)


@tessera.jit
def equal_kernel(numbers, ones, swapped, N: tl.constexpr, TO: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(numbers), tl.load(numbers + 1)
    tl.store(
        ones + i, tl.full((N,), 1.0, tl.float32).to(TO) + (tl.zeros((N,), tl.float32) + x).to(TO)
    )
    lows = tl.where(i % 4 < 2, x, y).to(TO)
    tl.store(swapped + i, lows)
    tl.store(swapped + N + i, tl.where(i % 4 < 2, y, x).to(TO))


@pytest.mark.parametrize("kind", FP8)
def test_neighbours_may_be_equal(device, kind):
    """Pairs that lie in both halves of a register, and in two registers in both orders."""
    n, numbers = 512, np.array([2.0, -3.0], np.float32)
    ones, swapped = device.zeros(n, kind), device.zeros(2 * n, kind)
    equal_kernel[(1,)](device.array(numbers), ones, swapped, N=n, TO=FP8[kind])
    np.testing.assert_array_equal(device.numpy(ones), np.full(n, 3.0))
    low = np.where(np.arange(n) % 4 < 2, *numbers)
    np.testing.assert_array_equal(device.numpy(swapped), np.concatenate([low, -1.0 - low]))


@pytest.mark.parametrize("kind", FP8)
def test_store_casts(device, kind):
    x = np.array([0.5, 1.0, -2.0, 448.0], np.float32)
    out = device.zeros(4, kind)
    store_kernel[(1,)](device.array(x), out, N=4)
    np.testing.assert_array_equal(device.numpy(out), x)


@tessera.jit
def dot_kernel(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@pytest.mark.parametrize("kind", FP8)
def test_dot(device, kind):
    rng = np.random.default_rng(1)
    t = as_dtype(kind)
    a, b = (decode(encode(rng.standard_normal((32, 32)), t), t) for _ in range(2))
    out = device.zeros((32, 32))
    dot_kernel[(1,)](device.array(a, kind), device.array(b, kind), out, N=32)
    np.testing.assert_allclose(device.numpy(out), a.astype(np.float64) @ b, rtol=1e-3, atol=1e-3)


@tessera.jit
def arithmetic_kernel(x, y, out, holds, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, a + b)
    tl.store(out + N + i, a - b)
    tl.store(out + 2 * N + i, a * b)
    tl.store(out + 3 * N + i, a / b)
    tl.store(out + 4 * N + i, -a)
    tl.store(out + 5 * N + i, tl.abs(a))
    tl.store(out + 6 * N + i, tl.where(a < b, a, b))
    tl.store(holds + i, a <= b)


@pytest.mark.parametrize("kind", FP8)
def test_arithmetic_is_rounded_to_its_type(device, kind):
    t = as_dtype(kind)
    rng = np.random.default_rng(2)
    a, b = (decode(encode(rng.standard_normal(64) * 4, t), t) for _ in range(2))
    b[b == 0] = 1.0
    out, holds = device.zeros((7, 64), kind), device.zeros(64, "i1")
    arithmetic_kernel[(1,)](device.array(a, kind), device.array(b, kind), out, holds, N=64)
    want = np.stack([a + b, a - b, a * b, a / b, -a, np.abs(a), np.where(a < b, a, b)])
    rounded = decode(encode(np.clip(want, -LARGEST[kind], LARGEST[kind]), t), t)
    np.testing.assert_array_equal(device.numpy(out), rounded)
    np.testing.assert_array_equal(device.numpy(holds), a <= b)
