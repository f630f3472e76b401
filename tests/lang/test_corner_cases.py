"""Numbers at the ends of their types, the same on every target: quotients, shifts, conversions, NaN, mixed signs."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.lang.kit import INTS, NUMPY

N = 64


def ends(dtype: str, zero: bool = True) -> np.ndarray:
    """Numbers near both ends of an integer type and around 0."""
    info = np.iinfo(NUMPY[dtype])
    near = [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 100, -1, -2, -3, -7, -100]
    found = {info.min, info.min + 1, info.max, info.max - 1, info.max // 2, info.min // 2, *near}
    kept = sorted(n for n in found if info.min <= n <= info.max and (zero or n != 0))
    return np.array(kept, NUMPY[dtype])


def pairs(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of elements, repeated up to a power of two."""
    x, y = (m.ravel() for m in np.meshgrid(a, b, indexing="ij"))
    size = 1 << (len(x) - 1).bit_length()
    return np.resize(x, size), np.resize(y, size)


@tessera.jit
def quotients(x, y, q, r, q3, r7, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(q + i, a // b)
    tl.store(r + i, a % b)
    tl.store(q3 + i, a // 3)
    tl.store(r7 + i, a % 7)


def toward_zero(a: Any, b: Any) -> int:
    a, b = int(a), int(b)
    return -(-a // b) if (a < 0) != (b < 0) else a // b


@pytest.mark.parametrize("dtype", INTS)
def test_quotients(device: Any, dtype: str):
    """By zero it is 0, which leaves the dividend; the least number over -1 wraps around to itself."""
    x, y = pairs(ends(dtype), ends(dtype))
    kept = [device.zeros(len(x), dtype) for _ in range(4)]
    quotients[(1,)](device.array(x), device.array(y), *kept, N=len(x))
    q = [toward_zero(a, b) if b else 0 for a, b in zip(x, y, strict=True)]
    want = [
        q,
        [int(a) - n * int(b) for a, b, n in zip(x, y, q, strict=True)],
        [toward_zero(a, 3) for a in x],
        [int(a) - 7 * toward_zero(a, 7) for a in x],
    ]
    for got, numbers in zip(kept, want, strict=True):
        exact = np.array(numbers, object) % (1 << 8 * x.itemsize)
        np.testing.assert_array_equal(
            device.numpy(got), exact.astype(f"u{x.itemsize}").view(x.dtype)
        )


@tessera.jit
def shifts(x, n, left, right, N: tl.constexpr):
    i = tl.arange(0, N)
    a, by = tl.load(x + i), tl.load(n + i)
    tl.store(left + i, a << by)
    tl.store(right + i, a >> by)


@pytest.mark.parametrize("dtype", INTS)
def test_shifts(device: Any, dtype: str):
    """By as many bits as there are and more, nothing of the number is left but its sign; the amount is unsigned."""
    bits = np.dtype(NUMPY[dtype]).itemsize * 8
    amounts = np.array([0, 1, bits - 1, bits, bits + 1, 100, -1], np.int64).astype(NUMPY[dtype])
    x, n = pairs(ends(dtype), amounts)
    left, right = device.zeros(len(x), dtype), device.zeros(len(x), dtype)
    shifts[(1,)](device.array(x), device.array(n), left, right, N=len(x))
    by = [int(k) if 0 <= k < bits else bits for k in n]
    want = [(int(a) << k) & ((1 << bits) - 1) for a, k in zip(x, by, strict=True)]
    unsigned = np.array(want, f"u{bits // 8}")
    np.testing.assert_array_equal(device.numpy(left), unsigned.view(x.dtype))
    want = [int(a) >> k for a, k in zip(x, by, strict=True)]
    np.testing.assert_array_equal(device.numpy(right), np.array(want, x.dtype))


FLOATS = [
    0.0, -0.0, 0.5, -0.5, 0.99, -0.99, 1.5, -1.5, 126.5, 127.5, 128.0, -128.5, -129.0, 200.0, 255.5, 256.0, 300.0,
    32767.5, 32768.0, -32769.0, 65535.0, 65536.0, 2.0**31, -(2.0**31), 2.0**32, 2.0**63, -(2.0**63), 2.0**64, 1e20,
    -1e20, float("inf"), float("-inf"), float("nan"),
]  # fmt: skip


@tessera.jit
def convert(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


@pytest.mark.parametrize("to", INTS)
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "fp64"])
def test_floats_to_integers(device: Any, dtype: str, to: str):
    """Toward zero up to the ends of the type (of 16 bits for bytes, which keep the lower half); NaN is 0."""
    with np.errstate(over="ignore"):  # of fp16
        x = device.array(np.resize(np.array(FLOATS), N), dtype)
    out = device.zeros(N, to)
    convert[(1,)](x, out, N=N)
    seen = device.numpy(x).astype(np.float64)
    wide = np.iinfo({"i8": np.int16, "u8": np.uint16}.get(to, NUMPY[to]))
    size = 1 << np.dtype(NUMPY[to]).itemsize * 8
    want = []
    for v in seen:
        n = (
            0
            if np.isnan(v)
            else wide.max
            if v >= wide.max
            else wide.min
            if v <= wide.min
            else int(v)
        )
        want.append(n % size)
    got = device.numpy(out).astype(object) % size
    np.testing.assert_array_equal(got, np.array(want, object))


@tessera.jit
def choices(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, tl.minimum(a, b))
    tl.store(out + N + i, tl.maximum(a, b))
    tl.store(out + 2 * N + i, tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 3 * N + i, tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 4 * N + i, tl.where(a < b, a, b))
    tl.store(out + 5 * N + i, tl.where(a != b, a, 7))
    tl.store(out + 6 * N + i, tl.clamp(a, -1, 2, propagate_nan=tl.PropagateNan.ALL))


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "fp64"])
def test_choices_with_nan(device: Any, dtype: str):
    values = np.array([0.0, 1.0, -1.0, 2.5, np.inf, -np.inf, np.nan, -3.0])
    x, y = pairs(values, values)
    out = device.zeros((7, len(x)), dtype)
    choices[(1,)](device.array(x, dtype), device.array(y, dtype), out, N=len(x))
    with np.errstate(invalid="ignore"):
        want = [
            np.fmin(x, y), np.fmax(x, y), np.minimum(x, y), np.maximum(x, y), np.where(x < y, x, y),
            np.where(x != y, x, 7), np.minimum(np.maximum(x, -1), 2),
        ]  # fmt: skip
    np.testing.assert_array_equal(device.numpy(out), np.array(want))


OPERATORS = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor,
}  # fmt: skip
COMPARISONS = {"lt": operator.lt, "ge": operator.ge, "eq": operator.eq}


@tessera.jit
def mixed(x, y, out, tests, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, (a + b).to(tl.uint64))
    tl.store(out + N + i, (a - b).to(tl.uint64))
    tl.store(out + 2 * N + i, (a * b).to(tl.uint64))
    tl.store(out + 3 * N + i, (a & b).to(tl.uint64))
    tl.store(out + 4 * N + i, (a | b).to(tl.uint64))
    tl.store(out + 5 * N + i, (a ^ b).to(tl.uint64))
    tl.store(tests + i, (a < b).to(tl.int32))
    tl.store(tests + N + i, (a >= b).to(tl.int32))
    tl.store(tests + 2 * N + i, (a == b).to(tl.int32))


@pytest.mark.parametrize("second", INTS)
@pytest.mark.parametrize("first", ["i8", "u8", "i32", "u32", "i64", "u64"])
def test_integers_of_mixed_types(device: Any, first: str, second: str):
    """Both take the type in which they meet, and wrap there; comparisons, too, are of that type."""
    x, y = pairs(ends(first), ends(second))
    out, tests = device.zeros((6, len(x)), "u64"), device.zeros((3, len(x)), "i32")
    mixed[(1,)](device.array(x), device.array(y), out, tests, N=len(x))
    met = _meet(first, second)
    a, b = ([_in(met, int(v)) for v in array] for array in (x, y))
    want = [
        [_in(met, f(u, v)) % 2**64 for u, v in zip(a, b, strict=True)] for f in OPERATORS.values()
    ]
    np.testing.assert_array_equal(device.numpy(out), np.array(want, np.uint64))
    want = [[int(f(u, v)) for u, v in zip(a, b, strict=True)] for f in COMPARISONS.values()]
    np.testing.assert_array_equal(device.numpy(tests), np.array(want))


def _meet(a: str, b: str) -> str:
    """C's conversions: the wider type, the unsigned one of two as wide."""
    return max((a, b), key=lambda t: (int(t[1:]), t[0] == "u"))


def _in(dtype: str, n: int) -> int:
    info = np.iinfo(NUMPY[dtype])
    return (n - info.min) % (info.max - info.min + 1) + info.min
