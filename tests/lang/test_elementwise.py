"""Operators, comparisons, selection and math functions over dtypes, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.language.extra import libdevice
from tests.lang.kit import FLOATS, INTS, NUMPY, SIGNED, sample

N = 128


@tessera.jit
def binary_kernel(x, y, out, N: tl.constexpr, OP: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    b = tl.load(y + i)
    if OP == "+":
        r = a + b
    elif OP == "-":
        r = a - b
    elif OP == "*":
        r = a * b
    elif OP == "/":
        r = a / b
    elif OP == "//":
        r = a // b
    elif OP == "%":
        r = a % b
    elif OP == "&":
        r = a & b
    elif OP == "|":
        r = a | b
    elif OP == "^":
        r = a ^ b
    elif OP == "<<":
        r = a << b
    elif OP == ">>":
        r = a >> b
    elif OP == "==":
        r = a == b
    elif OP == "!=":
        r = a != b
    elif OP == "<":
        r = a < b
    elif OP == "<=":
        r = a <= b
    elif OP == ">":
        r = a > b
    elif OP == ">=":
        r = a >= b
    elif OP == "min":
        r = tl.minimum(a, b)
    elif OP == "max":
        r = tl.maximum(a, b)
    elif OP == "max_nan":
        r = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "umulhi":
        r = tl.umulhi(a, b)
    elif OP == "where":
        r = tl.where(a > b, a, b + b)
    tl.store(out + i, r)


def binary(device, op, x, y, dtype, out_dtype):
    out = device.zeros(N, out_dtype)
    binary_kernel[(1,)](device.array(x, dtype), device.array(y, dtype), out, N=N, OP=op)
    return device.numpy(out)


ARITHMETIC = {"+": np.add, "-": np.subtract, "*": np.multiply}
COMPARISONS = {
    "==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
}  # fmt: skip


def float_limits(dtype):
    return {"fp16": 1e-3, "bf16": 8e-3, "fp32": 2e-7, "fp64": 1e-15}[dtype]


@pytest.mark.parametrize("op", ARITHMETIC)
@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
def test_arithmetic(device, dtype, op):
    x, y = sample(dtype, (N,), seed=1), sample(dtype, (N,), seed=2)
    got = binary(device, op, x, y, dtype, dtype)
    with np.errstate(all="ignore"):
        want = ARITHMETIC[op](x, y)
    if dtype in FLOATS:
        np.testing.assert_allclose(got, want, rtol=float_limits(dtype), atol=1e-6)
    else:
        np.testing.assert_array_equal(got, want)


def test_int1_arithmetic_wraps(device):
    x, y = np.arange(N) % 2 == 0, np.arange(N) % 3 == 0
    for op, want in (("+", x ^ y), ("-", x ^ y), ("*", x & y), ("max", x | y), ("min", x & y)):
        np.testing.assert_array_equal(binary(device, op, x, y, "i1", "i1"), want)


@pytest.mark.parametrize("op", COMPARISONS)
@pytest.mark.parametrize("dtype", ["i1", *INTS, *FLOATS])
def test_comparisons(device, dtype, op):
    x, y = sample(dtype, (N,), seed=1), sample(dtype, (N,), seed=2)
    y[::3] = x[::3]
    if dtype in ("fp16", "fp32", "fp64"):
        x[::5], y[::7] = np.nan, np.nan
    np.testing.assert_array_equal(binary(device, op, x, y, dtype, "i1"), COMPARISONS[op](x, y))


@pytest.mark.parametrize("dtype", INTS)
def test_integer_division_truncates(device, dtype):
    x, y = sample(dtype, (N,), seed=1), sample(dtype, (N,), small=True, seed=2)
    y[y == 0] = 3
    if dtype in SIGNED:
        y[x == np.iinfo(x.dtype).min] = 3
    exact = [int(a) for a in x]
    quotient = [
        abs(a) // abs(int(b)) * (1 if (a < 0) == (int(b) < 0) else -1) for a, b in zip(exact, y)
    ]
    remainder = [a - q * int(b) for a, q, b in zip(exact, quotient, y)]
    assert binary(device, "//", x, y, dtype, dtype).tolist() == quotient
    assert binary(device, "%", x, y, dtype, dtype).tolist() == remainder
    got = binary(device, "/", x, y, dtype, "fp32")
    np.testing.assert_allclose(got, x.astype(np.float64) / y.astype(np.float64), rtol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_division(device, dtype):
    x, y = sample(dtype, (N,), seed=1), sample(dtype, (N,), seed=2)
    wide = "fp64" if dtype == "fp64" else "fp32"
    got = binary(device, "/", x, y, dtype, wide)
    np.testing.assert_allclose(got, x.astype(got.dtype) / y.astype(got.dtype), rtol=5e-7)
    got = binary(device, "%", x, y, dtype, wide)
    np.testing.assert_allclose(
        got, np.fmod(x.astype(got.dtype), y.astype(got.dtype)), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("op", ["&", "|", "^"])
@pytest.mark.parametrize("dtype", ["i1", *INTS])
def test_bitwise(device, dtype, op):
    x, y = sample(dtype, (N,), seed=1), sample(dtype, (N,), seed=2)
    fn = {"&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor}[op]
    np.testing.assert_array_equal(binary(device, op, x, y, dtype, dtype), fn(x, y))


@pytest.mark.parametrize("dtype", INTS)
def test_shifts(device, dtype):
    x = sample(dtype, (N,))
    y = (np.arange(N) % (8 * x.itemsize)).astype(x.dtype)
    np.testing.assert_array_equal(binary(device, "<<", x, y, dtype, dtype), np.left_shift(x, y))
    np.testing.assert_array_equal(binary(device, ">>", x, y, dtype, dtype), np.right_shift(x, y))


@tessera.jit
def mixed_shift_kernel(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) >> tl.load(y + i))


@pytest.mark.parametrize(
    ("left", "right", "result"), [("i32", "u32", "u32"), ("u8", "i32", "i32"), ("i8", "u16", "u16")]
)
def test_a_shift_is_arithmetic_if_its_left_operand_is_signed(device, left, right, result):
    x = sample(left, (N,))
    y = (np.arange(N) % 8).astype(sample(right, (1,)).dtype)
    out = device.zeros(N, result)
    mixed_shift_kernel[(1,)](device.array(x, left), device.array(y, right), out, N=N)
    want = np.array([int(a) >> int(b) for a, b in zip(x, y)], np.int64)
    np.testing.assert_array_equal(device.numpy(out), want.astype(device.numpy(out).dtype))


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
def test_extrema(device, dtype, op):
    x, y = sample(dtype, (N,), seed=1), sample(dtype, (N,), seed=2)
    if dtype in ("fp16", "fp32", "fp64"):
        x[::5], y[::7] = np.nan, np.nan
    got = binary(device, op, x, y, dtype, "fp32" if dtype == "bf16" else dtype)
    np.testing.assert_array_equal(got, (np.fmin if op == "min" else np.fmax)(x, y))


def test_nan_propagates_on_request(device):
    x, y = sample("fp32", (N,), seed=1), sample("fp32", (N,), seed=2)
    x[::5], y[::7] = np.nan, np.nan
    np.testing.assert_array_equal(binary(device, "max_nan", x, y, "fp32", "fp32"), np.maximum(x, y))


@pytest.mark.parametrize("dtype", ["i32", "u32", "i64", "u64"])
def test_umulhi_takes_bits_as_unsigned(device, dtype):
    x, y = sample(dtype, (N,), seed=1), sample(dtype, (N,), seed=2)
    bits = 8 * x.itemsize
    got = binary(device, "umulhi", x, y, dtype, dtype)
    want = [((int(a) % 2**bits) * (int(b) % 2**bits)) >> bits for a, b in zip(x, y)]
    assert [int(g) % 2**bits for g in got] == want


@pytest.mark.parametrize("dtype", ["i1", "i8", "u64", "fp16", "bf16", "fp32"])
def test_where(device, dtype):
    x, y = sample(dtype, (N,), seed=1), sample(dtype, (N,), seed=2)
    with np.errstate(all="ignore"):
        twice = np.zeros_like(y) if dtype == "i1" else y + y
    got = binary(device, "where", x, y, dtype, dtype)
    np.testing.assert_array_equal(got, np.where(x > y, x, twice))


# --- one operand ---------------------------------------------------------------------------------------------
@tessera.jit
def unary_kernel(x, out, N: tl.constexpr, FN: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, FN(tl.load(x + i)))


@tessera.jit
def neg(x):
    return -x


@tessera.jit
def inv(x):
    return ~x


def unary(device, fn, x, dtype, out_dtype):
    out = device.zeros(x.size, out_dtype)
    unary_kernel[(1,)](device.array(x, dtype), out, N=x.size, FN=fn)
    return device.numpy(out)


@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
def test_negation_and_absolute_value(device, dtype):
    x = sample(dtype, (N,))
    x[0] = 0
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(unary(device, neg, x, dtype, dtype), -x)
        np.testing.assert_array_equal(unary(device, tl.abs, x, dtype, dtype), np.abs(x))
    if dtype in FLOATS:
        assert np.signbit(unary(device, neg, x, dtype, dtype)[0])


@tessera.jit
def every_other_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    w = tl.where(i % 2 == 0, v, -v)
    a = tl.where(i % 2 == 0, w, tl.abs(w))
    tl.store(out + i, w + w)
    tl.store(out + N + i, a + a)


@pytest.mark.parametrize("dtype", FLOATS)
def test_signs_of_every_other_element(device, dtype):
    x = sample(dtype, (N,))
    out = device.zeros(2 * N, dtype)
    every_other_kernel[(1,)](device.array(x, dtype), out, N=N)
    signs = np.where(np.arange(N) % 2 == 0, x, -x)
    sizes = np.where(np.arange(N) % 2 == 0, x, np.abs(x))
    np.testing.assert_array_equal(device.numpy(out), np.concatenate([signs, sizes]) * 2)


@pytest.mark.parametrize("dtype", ["i1", *INTS])
def test_inversion(device, dtype):
    x = sample(dtype, (N,))
    np.testing.assert_array_equal(unary(device, inv, x, dtype, dtype), ~x)


def erf(x):
    from math import erf as scalar_erf

    return np.vectorize(scalar_erf)(x)


POSITIVE, ANY, UNIT = (0.01, 50.0), (-20.0, 20.0), (-0.99, 0.99)
# function: (NumPy's, range of operands, relative error in fp32)
MATH = {
    tl.exp: (np.exp, ANY, 2e-6),
    tl.exp2: (np.exp2, ANY, 2e-6),
    tl.log: (np.log, POSITIVE, 1e-6),
    tl.log2: (np.log2, POSITIVE, 1e-6),
    tl.sin: (np.sin, ANY, 2e-6),
    tl.cos: (np.cos, ANY, 2e-6),
    tl.sqrt: (np.sqrt, POSITIVE, 5e-7),
    tl.rsqrt: (lambda x: 1 / np.sqrt(x), POSITIVE, 1e-6),
    tl.erf: (erf, (-3, 3), 1e-6),
    tl.floor: (np.floor, ANY, 0),
    tl.ceil: (np.ceil, ANY, 0),
    tl.sigmoid: (lambda x: 1 / (1 + np.exp(-x)), ANY, 2e-6),
    libdevice.tanh: (np.tanh, ANY, 1e-6),
    libdevice.expm1: (np.expm1, UNIT, 1e-6),
    libdevice.log1p: (np.log1p, UNIT, 1e-6),
    libdevice.rint: (np.rint, ANY, 0),
    libdevice.trunc: (np.trunc, ANY, 0),
    libdevice.exp10: (lambda x: 10.0**x, ANY, 4e-6),
    libdevice.round: (lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), ANY, 0),
    libdevice.tan: (np.tan, UNIT, 2e-6),
    libdevice.asin: (np.arcsin, UNIT, 2e-6),
    libdevice.acos: (np.arccos, UNIT, 2e-6),
    libdevice.atan: (np.arctan, ANY, 2e-6),
    libdevice.sinh: (np.sinh, UNIT, 2e-6),
    libdevice.cosh: (np.cosh, ANY, 2e-6),
    libdevice.log10: (np.log10, POSITIVE, 1e-6),
}


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("fn", MATH, ids=lambda fn: fn.__name__)
def test_math(device, fn, dtype):
    reference, (low, high), limit = MATH[fn]
    x = np.linspace(low, high, N).astype(np.float32 if dtype == "fp32" else np.float64)
    x[3:7] = np.round(x[3:7]) + 0.5 if limit == 0 else x[3:7]
    want = reference(x.astype(np.float64))
    got = unary(device, fn, x, dtype, dtype)
    if dtype == "fp64":
        limit = min(limit, 1e-12)
    np.testing.assert_allclose(got, want, rtol=limit, atol=limit)


def test_sqrt_rn_is_correctly_rounded(device):
    x = np.abs(sample("fp32", (N,))) * 100
    np.testing.assert_array_equal(unary(device, tl.sqrt_rn, x, "fp32", "fp32"), np.sqrt(x))


def test_classification(device):
    x = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-40], np.float32)
    np.testing.assert_array_equal(unary(device, libdevice.isnan, x, "fp32", "i1"), np.isnan(x))
    np.testing.assert_array_equal(unary(device, libdevice.isinf, x, "fp32", "i1"), np.isinf(x))
    np.testing.assert_array_equal(unary(device, libdevice.finitef, x, "fp32", "i1"), np.isfinite(x))
    np.testing.assert_array_equal(unary(device, libdevice.signbit, x, "fp32", "i32"), np.signbit(x))


@pytest.mark.parametrize("dtype", ["i32", "u64"])
def test_bit_counts(device, dtype):
    x = sample(dtype, (N,))
    x[0], x[1], x[2] = 0, 1, 64
    bits = 8 * x.itemsize
    raw = [int(a) % 2**bits for a in x]
    assert unary(device, libdevice.popc, x, dtype, "i32").tolist() == [a.bit_count() for a in raw]
    assert unary(device, libdevice.clz, x, dtype, "i32").tolist() == [
        bits - a.bit_length() for a in raw
    ]
    assert unary(device, libdevice.ffs, x, dtype, "i32").tolist() == [
        (a & -a).bit_length() for a in raw
    ]


# --- more operands -------------------------------------------------------------------------------------------
@tessera.jit
def pair_kernel(x, y, out, N: tl.constexpr, FN: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, FN(tl.load(x + i), tl.load(y + i)))


PAIRS = {
    libdevice.pow: (np.power, 4e-6),
    libdevice.atan2: (np.arctan2, 2e-6),
    libdevice.copysign: (np.copysign, 0),
    libdevice.fmod: (np.fmod, 1e-5),
    libdevice.div_rn: (np.divide, 0),
    tl.div_rn: (np.divide, 0),
    tl.fdiv: (np.divide, 5e-7),
    libdevice.fdim: (lambda x, y: np.maximum(x - y, 0), 0),
}


@pytest.mark.parametrize(
    "fn", PAIRS, ids=lambda fn: f"{fn.__module__.rsplit('.', 1)[-1]}.{fn.__name__}"
)
def test_functions_of_two_floats(device, fn):
    reference, limit = PAIRS[fn]
    x, y = np.abs(sample("fp32", (N,), seed=1)) + np.float32(0.1), sample("fp32", (N,), seed=2)
    out = device.zeros(N)
    pair_kernel[(1,)](device.array(x), device.array(y), out, N=N, FN=fn)
    np.testing.assert_allclose(device.numpy(out), reference(x, y), rtol=limit, atol=limit)


@tessera.jit
def fma_kernel(x, y, z, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.fma(tl.load(x + i), tl.load(y + i), tl.load(z + i)))


def test_fma_rounds_once(device):
    x = np.float32(1 + 2.0**-12) * np.ones(4, np.float32)
    z = -(x * x)
    out = device.zeros(4)
    fma_kernel[(1,)](device.array(x), device.array(x), device.array(z), out, N=4)
    want = (x.astype(np.float64) ** 2 + z.astype(np.float64)).astype(np.float32)
    assert want[0] != 0
    np.testing.assert_array_equal(device.numpy(out), want)


@tessera.jit
def clamp_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.clamp(tl.load(x + i), -0.5, 0.75))


@pytest.mark.parametrize("dtype", FLOATS)
def test_clamp(device, dtype):
    x = sample(dtype, (N,))
    out = device.zeros(N, "fp64" if dtype == "fp64" else "fp32")
    clamp_kernel[(1,)](device.array(x, dtype), out, N=N)
    np.testing.assert_array_equal(device.numpy(out), np.clip(x, -0.5, 0.75))


@tessera.jit
def softmax_kernel(x, out, M: tl.constexpr, N: tl.constexpr, DIM: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, tl.softmax(tl.load(x + at), DIM))


@pytest.mark.parametrize("dim", [0, 1])
def test_softmax(device, dim):
    x = sample("fp32", (8, 32)) * 20
    out = device.zeros(x.shape)
    softmax_kernel[(1,)](device.array(x), out, M=8, N=32, DIM=dim)
    e = np.exp(x - x.max(dim, keepdims=True))
    np.testing.assert_allclose(
        device.numpy(out), e / e.sum(dim, keepdims=True), rtol=2e-6, atol=1e-9
    )


@tessera.jit
def cdiv_kernel(out, n, d, STATIC: tl.constexpr):
    tl.store(out, tl.cdiv(n, d))
    blocks: tl.constexpr = tl.cdiv(STATIC, 4)
    tl.static_assert(blocks == 3)
    tl.store(out + 1, tl.zeros((blocks + 1,), tl.int32).shape[0])


def test_cdiv_also_at_compile_time(device):
    out = device.zeros(2, "i32")
    cdiv_kernel[(1,)](out, 1000, 128, STATIC=10)
    assert device.numpy(out).tolist() == [8, 4]


# --- casts ---------------------------------------------------------------------------------------------------
@tessera.jit
def cast_kernel(
    x, out, N: tl.constexpr, TO: tl.constexpr, ROUNDING: tl.constexpr, BITCAST: tl.constexpr
):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(TO, fp_downcast_rounding=ROUNDING, bitcast=BITCAST))


TL = {
    "i1": tl.int1, "i8": tl.int8, "i16": tl.int16, "i32": tl.int32, "i64": tl.int64, "u8": tl.uint8, "u16": tl.uint16,
    "u32": tl.uint32, "u64": tl.uint64, "fp16": tl.float16, "bf16": tl.bfloat16, "fp32": tl.float32, "fp64": tl.float64,
    "fp8e4nv": tl.float8e4nv, "fp8e5": tl.float8e5,
}  # fmt: skip


def cast(device, x, have, to, rounding=None, bitcast=False):
    out = device.zeros(x.size, to)
    cast_kernel[(1,)](
        device.array(x, have), out, N=x.size, TO=TL[to], ROUNDING=rounding, BITCAST=bitcast
    )
    return device.numpy(out)


@pytest.mark.parametrize("to", ["i1", *INTS])
@pytest.mark.parametrize("have", ["i1", *INTS])
def test_cast_between_ints_wraps(device, have, to):
    x = sample(have, (N,))
    x[:2] = [0, 1]
    np.testing.assert_array_equal(cast(device, x, have, to), x.astype(sample(to, (1,)).dtype))


@pytest.mark.parametrize("to", FLOATS)
@pytest.mark.parametrize("have", ["i1", *INTS])
def test_cast_int_to_float(device, have, to):
    x = sample(have, (N,))
    got = cast(device, x, have, to)
    if to == "bf16":
        np.testing.assert_allclose(got, x.astype(np.float64), rtol=2**-8)
    else:
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(got, x.astype(got.dtype))


@pytest.mark.parametrize("to", ["i8", "i16", "i32", "i64"])
@pytest.mark.parametrize("have", FLOATS)
def test_cast_float_to_int_truncates(device, have, to):
    x = sample(have, (N,)) * 20
    if have == "bf16":
        x = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    np.testing.assert_array_equal(
        cast(device, x, have, to), np.trunc(x.astype(np.float64)).astype(np.int64)
    )


@pytest.mark.parametrize("have", FLOATS)
def test_cast_to_bool_tests_for_zero(device, have):
    x = sample(have, (N,))
    x[::3] = 0
    x[1] = -0.0
    x[2] = np.nan
    np.testing.assert_array_equal(cast(device, x, have, "i1"), x != 0)


@pytest.mark.parametrize("to", ["fp16", "fp32", "fp64"])
@pytest.mark.parametrize("have", FLOATS)
def test_cast_between_floats(device, have, to):
    x = sample(have, (N,)) * 100
    if have == "bf16":
        x = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    got = cast(device, x, have, to)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, x.astype(got.dtype))


@pytest.mark.parametrize("rounding", ["rtne", "rtz"])
def test_cast_to_the_same_type_rounds_nothing(device, rounding):
    """Kernels ask for a rounding whatever type they are specialised for."""
    x = sample("fp32", (N,))
    np.testing.assert_array_equal(cast(device, x, "fp32", "fp32", rounding), x)


def test_cast_to_bf16_rounds_to_nearest_even(device):
    x = np.array(
        [1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1 - 2**-8, np.inf, 0.1, 0], np.float32
    )
    want = np.array([1.0, 1.0, 1 + 2**-6, 1 + 2**-7, -1.0, np.inf, 0.10009765625, 0], np.float32)
    np.testing.assert_array_equal(cast(device, x, "fp32", "bf16"), want)


def test_cast_toward_zero(device):
    x = np.array([1 + 2**-8 + 2**-9, -1 - 2**-8 - 2**-9, 1 + 2**-7, 100.99], np.float32)
    want = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    np.testing.assert_array_equal(cast(device, x, "fp32", "bf16", rounding="rtz"), want)


@pytest.mark.parametrize(
    ("have", "to"),
    [
        ("fp32", "i32"),
        ("i32", "fp32"),
        ("fp64", "u64"),
        ("fp16", "i16"),
        ("i8", "u8"),
        ("u64", "i64"),
    ],
)
def test_bitcast(device, have, to):
    x = sample(have, (N,))
    got = cast(device, x, have, to, bitcast=True)
    assert got.tobytes() == x.tobytes()


@tessera.jit
def least_kernel(x, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.abs(tl.load(x + i))
    tl.store(out + i, a)
    tl.store(out + N + i, a % n.to(a.dtype))
    tl.store(out + 2 * N + i, a >> 3)
    tl.store(out + 3 * N + i, (a >= 0).to(a.dtype))


@pytest.mark.parametrize("dtype", ["i8", "i16", "i32"])
def test_the_least_number_has_no_absolute_value(device, dtype):
    low = np.iinfo(NUMPY[dtype]).min
    x = np.array([low, low + 1, -1, 0, 1, -low - 1, 5, -7], NUMPY[dtype])
    out = device.zeros((4, 8), dtype)
    least_kernel[(1,)](device.array(x), out, 97, N=8)
    with np.errstate(over="ignore"):
        a = np.abs(x).astype(np.int64)
    quotients = np.sign(a) * (np.abs(a) // 97)
    want = np.stack([a, a - quotients * 97, a >> 3, a >= 0])
    np.testing.assert_array_equal(device.numpy(out), want)
