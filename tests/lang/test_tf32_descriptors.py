"""Descriptors that round fp32 to tf32 on load, on every device."""

# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.tools.tensor_descriptor import TensorDescriptor


@tessera.jit
def copied(source, target, out, ROWS: tl.constexpr):
    block = source.load([0, 0])
    target.store([0, 0], block)
    if ROWS:
        rows = source.load([8, 0])
    else:
        rows = block
    at = tl.arange(0, 8)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(out + at, rows)


@tessera.jit
def product(a, b, c, K, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    acc = tl.zeros((M, N), tl.float32)
    for k in range(0, K, D):
        acc = tl.dot(a.load([0, k]), b.load([k, 0]), acc, input_precision="tf32")
    c.store([0, 0], acc)


def rounded(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """To 10 bits of mantissa: the nearest of both neighbours, of two equally near the one with an even last bit."""
    bits = x.view(np.uint32).astype(np.int64)
    low, high = bits & ~0x1FFF, (bits & ~0x1FFF) + 0x2000
    rest = bits - low
    up = (rest > 0x1000) | ((rest == 0x1000) & (low >> 13 & 1 == 1))
    found = np.where(up, high, low).astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(x), found, x)


def numbers() -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(256).astype(np.float32)
    bits = x.view(np.uint32)
    bits[:32] = bits[:32] & ~np.uint32(0x1FFF) | np.uint32(0x1000)  # ties
    bits[32:48] |= np.uint32(0x1FFF)  # carries into higher bits
    x[48:56] = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, -1.0, 3e38]
    bits[56] = 0x7FFFFFFF  # a NaN of all ones
    bits[57] = 0x007FFFFF  # the largest subnormal number
    return x.reshape(16, 16)


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("rows", [False, True])
def test_loads(device: Any, rounds: bool, rows: bool) -> None:
    x = numbers()
    source = device.array(x)
    target, out = (
        device.array(np.zeros((16, 16), np.float32)),
        device.array(np.zeros((8, 16), np.float32)),
    )
    copied[(1,)](
        TensorDescriptor(source, [16, 16], [16, 1], [8, 16], round_f32_to_tf32=rounds),
        TensorDescriptor(target, [16, 16], [16, 1], [8, 16], round_f32_to_tf32=rounds),
        out, rows,
    )  # fmt: skip
    want = rounded(x) if rounds else x
    np.testing.assert_array_equal(device.numpy(target)[:8], want[:8])  # stores do not round
    np.testing.assert_array_equal(device.numpy(out), want[8:] if rows else want[:8])


def test_products(device: Any) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((64, 64), (64, 32)))
    c = device.array(np.zeros((64, 32), np.float32))
    descriptors = [
        TensorDescriptor(
            device.array(x), list(x.shape), [x.shape[1], 1], block, round_f32_to_tf32=True
        )
        for x, block in ((a, [64, 32]), (b, [32, 32]))
    ]
    out = TensorDescriptor(c, [64, 32], [32, 1], [64, 32])
    product[(1,)](*descriptors, out, 64, 64, 32, 32)  # pyright: ignore[reportCallIssue]
    want = rounded(a).astype(np.float64) @ rounded(b).astype(np.float64)
    np.testing.assert_allclose(device.numpy(c), want, rtol=1e-5, atol=1e-5)
