"""The table: operations over every dtype and shapes of one, two and three dimensions, against NumPy."""

# pyright: basic
from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.lang.kit import FLOATS, INTS, NUMPY, sample

SHAPES = [(64,), (8, 16), (2, 4, 8)]


@tessera.jit
def table_kernel(x, y, out, SHAPE: tl.constexpr, OP: tl.constexpr):
    n: tl.constexpr = (
        SHAPE[0] * (SHAPE[1] if len(SHAPE) > 1 else 1) * (SHAPE[2] if len(SHAPE) > 2 else 1)
    )
    i = tl.arange(0, n)
    a = tl.reshape(tl.load(x + i), SHAPE)
    b = tl.reshape(tl.load(y + i), SHAPE)
    if OP == "add":
        r = a + b
    elif OP == "mul_add":
        r = a * b + a
    elif OP == "minmax":
        r = tl.maximum(a, b) - tl.minimum(a, b)
    elif OP == "where":
        r = tl.where(a > b, a, b + b)
    elif OP == "compare":
        r = (a < b) | (a == b)
    elif OP == "abs_neg":
        r = tl.abs(a) + (-b)
    elif OP == "flip":
        r = tl.flip(a)
    elif OP == "trans":
        r = tl.trans(a)
    elif OP == "sum":
        r = tl.sum(a, axis=0)
    elif OP == "max":
        r = tl.max(a, axis=-1)
    elif OP == "argmin":
        r = tl.argmin(a, axis=len(SHAPE) - 1)
    elif OP == "cumsum":
        r = tl.cumsum(a, axis=len(SHAPE) - 1)
    elif OP == "sort":
        r = tl.sort(a)
    elif OP == "join":
        r = tl.join(a, b)
    elif OP == "broadcast":
        r = tl.expand_dims(a, 0) + tl.expand_dims(b, 0)
    m: tl.constexpr = r.numel
    tl.store(out + tl.arange(0, m), tl.reshape(r, m))


def sums(x, axis):
    if x.dtype.kind in "iu":
        wide = {"i": np.int32, "u": np.uint32}[x.dtype.kind]
        return x.astype(wide if x.itemsize < 4 else x.dtype).sum(
            axis, dtype=wide if x.itemsize < 4 else x.dtype
        )
    return x.sum(axis)


def running(x):
    if x.dtype.kind in "iu" and x.itemsize < 4:
        x = x.astype({"i": np.int32, "u": np.uint32}[x.dtype.kind])
    return np.cumsum(x, -1, dtype=x.dtype)


OPS = {
    "add": lambda a, b: a + b,
    "mul_add": lambda a, b: a * b + a,
    "minmax": lambda a, b: np.maximum(a, b) - np.minimum(a, b),
    "where": lambda a, b: np.where(a > b, a, b + b),
    "compare": lambda a, b: a <= b,
    "abs_neg": lambda a, b: np.abs(a) - b,
    "flip": lambda a, b: np.flip(a, -1),
    "trans": lambda a, b: np.swapaxes(a, -1, -2),
    "sum": lambda a, b: sums(a, 0),
    "max": lambda a, b: a.max(-1),
    "argmin": lambda a, b: a.argmin(-1),
    "cumsum": lambda a, b: running(a),
    "sort": lambda a, b: np.sort(a, -1),
    "join": lambda a, b: np.stack([a, b], -1),
    "broadcast": lambda a, b: a + b,
}


def result_dtype(op, dtype):
    if op in ("compare",):
        return "i1"
    if op == "argmin":
        return "i32"
    narrow = dtype in ("i8", "i16", "u8", "u16")
    if op == "max" and dtype in ("fp16", "bf16"):
        return "fp32"
    if op == "max" and narrow:
        return "i32"
    if op in ("sum", "cumsum") and narrow:
        return {"i": "i32", "u": "u32"}[dtype[0]]
    if op == "cumsum" and dtype == "bf16":
        return "fp32"
    if op == "minmax" and dtype == "bf16":
        return "fp32"
    return dtype


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
@pytest.mark.parametrize("op", OPS)
def test_operation(device, op, dtype, shape):
    if op == "trans" and len(shape) == 1:
        shape = (4, 32)
    rng = np.random.default_rng([len(op), len(dtype), *shape])
    whole = dtype in INTS
    # Small whole numbers: sums and products are exact in every float. Ints take their whole range.
    draw = sample(dtype, shape, seed=1), sample(dtype, shape, seed=2)
    if not whole:
        draw = tuple(rng.integers(-4, 5, shape).astype(NUMPY[dtype]) for _ in range(2))
    a, b = draw
    with np.errstate(over="ignore"):
        want = np.asarray(OPS[op](a, b))
    kind = result_dtype(op, dtype)
    out = device.zeros(want.size, kind)
    table_kernel[(1,)](device.array(a, dtype), device.array(b, dtype), out, SHAPE=shape, OP=op)
    got = device.numpy(out).reshape(want.shape)
    np.testing.assert_array_equal(got.astype(want.dtype, copy=False), want)
