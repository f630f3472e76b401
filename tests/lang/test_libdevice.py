"""Every libdevice function against mpmath or exact arithmetic, on many magnitudes and special values."""

# pyright: basic
from __future__ import annotations

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.interp.directed import directed
from tessera.language.extra import libdevice
from tessera.ops import DIRECTED
from tests.lang.libdevice_kit import (
    ANY,
    FP32_ONLY,
    ON_HARDWARE,
    SIZE,
    UNARY,
    N,
    U,
    draw,
    error,
    magnitudes,
    unary_case,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # NumPy meets NaN and overflow as we do


@tessera.jit
def one_kernel(x, out, F: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, F(tl.load(x + i)))


@tessera.jit
def two_kernel(x, y, out, F: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, F(tl.load(x + i), tl.load(y + i)))


@tessera.jit
def three_kernel(x, y, z, out, F: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, F(tl.load(x + i), tl.load(y + i), tl.load(z + i)))


@tessera.jit
def four_kernel(x, y, z, t, out, F: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, F(tl.load(x + i), tl.load(y + i), tl.load(z + i), tl.load(t + i)))


KERNELS = [one_kernel, two_kernel, three_kernel, four_kernel]


def launch(device, name, args, kinds, result):
    """libdevice.<name> of arrays of equal size."""
    given = [device.array(a, k) for a, k in zip(args, kinds)]
    out = device.zeros(len(args[0]), result)
    KERNELS[len(args) - 1][(1,)](*given, out, F=getattr(libdevice, name), N=len(args[0]))
    return device.numpy(out)


CASES = [(n, d, *row) for n, row in UNARY.items() for d in SIZE] + [
    (n, "fp32", *row) for n, row in FP32_ONLY.items()
]


@pytest.mark.parametrize(("name", "dtype"), [(c[0], c[1]) for c in CASES])
def test_unary(device, name, dtype):
    bounds = (UNARY.get(name) or FP32_ONLY[name])[2]
    x, want = unary_case(name, dtype)
    got = launch(device, name, [x], [dtype], dtype)
    gap = error(got, want)
    bad = gap > bounds[dtype == "fp64"]
    near = bounds[2] if len(bounds) > 2 else ON_HARDWARE.get(name, 0) if device.is_cuda else 0
    if near:  # the bound near zeros of the function
        eps = np.finfo(got.dtype).eps
        with np.errstate(all="ignore"):
            bad &= ~(np.abs(got - np.array([float(w) for w in want])) <= near * eps)
    assert not bad.any(), [(x[i], got[i], float(want[i]), gap[i]) for i in np.flatnonzero(bad)][:5]


# --- two and more operands -----------------------------------------------------------------------------------------
def pairs(dtype, seed=0):
    rng = np.random.default_rng(seed)
    special = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 2.5]
    x, y = np.repeat(special, 8), np.tile(special, 8)
    rest = N - 64
    x = np.concatenate([x, rng.standard_normal(rest // 2) * 5, ANY[dtype](rng, rest // 2)])
    y = np.concatenate([y, rng.standard_normal(rest // 2) * 3, ANY[dtype](rng, rest // 2)])
    return x.astype(SIZE[dtype]), y.astype(SIZE[dtype])


def fmax0(x, y):
    return np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(x <= y, 0, x - y)).astype(x.dtype)


BINARY = {
    "atan2": (np.arctan2, 2), "copysign": (np.copysign, 0), "fdim": (fmax0, 0), "fmod": (np.fmod, 0),
    "hypot": (np.hypot, 2), "nextafter": (np.nextafter, 0), "pow": (np.power, 2),
    "add_rn": (np.add, 0), "sub_rn": (np.subtract, 0), "mul_rn": (np.multiply, 0), "div_rn": (np.divide, 0),
    "rhypot": (lambda x, y: 1 / np.hypot(x, y), 3),
    "remainder": (lambda x, y: np.vectorize(ieee_remainder, otypes=[x.dtype])(x, y), 0),
}  # fmt: skip


def ieee_remainder(x, y):
    if math.isnan(x) or math.isnan(y) or math.isinf(x) or y == 0:
        return math.nan
    return math.remainder(float(x), float(y))


@pytest.mark.parametrize("dtype", SIZE)
@pytest.mark.parametrize("name", BINARY)
def test_binary(device, name, dtype):
    fn, ulp = BINARY[name]
    x, y = pairs(dtype)
    if name in ("hypot", "rhypot", "pow", "atan2") and dtype == "fp32":
        want = fn(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    else:
        want = fn(x, y)
    got = launch(device, name, [x, y], [dtype] * 2, dtype)
    fine = (got == want) | (np.isnan(got) & np.isnan(want))
    if ulp:
        fine |= np.abs(got - want) <= ulp * np.spacing(np.abs(want))
    assert fine.all(), [(x[i], y[i], got[i], want[i]) for i in np.flatnonzero(~fine)][:5]


@pytest.mark.parametrize("dtype", SIZE)
def test_pow_of_whole_exponents(device, dtype):
    x = draw(dtype, U(-3, 3), U(0.5, 2))
    n = np.random.default_rng(1).integers(-20, 20, N)
    got = launch(device, "pow", [x, n], [dtype, "i32"], dtype)
    want = np.power(x.astype(np.longdouble), n.astype(np.longdouble)).astype(x.dtype)
    np.testing.assert_allclose(got, want, rtol=4 * np.finfo(x.dtype).eps)


@pytest.mark.parametrize("dtype", SIZE)
@pytest.mark.parametrize("name", ["norm3d", "rnorm3d", "norm4d", "rnorm4d"])
def test_lengths(device, name, dtype):
    count = 4 if "4" in name else 3
    args = [draw(dtype, ANY[dtype], U(-3, 3), seed=i, edges=False) for i in range(count)]
    for i in range(count):
        args[i][i] = np.inf
        args[i][i + 8] = np.nan
    with mp.workprec(200):
        finite = [all(np.isfinite(a[i]) for a in args) for i in range(N)]
        size = [
            mp.sqrt(sum(mp.mpf(float(a[i])) ** 2 for a in args)) if finite[i]
            else mp.inf if any(np.isinf(a[i]) for a in args) else mp.nan
            for i in range(N)
        ]  # fmt: skip
        want = [1 / s for s in size] if name.startswith("r") else size
    got = launch(device, name, args, [dtype] * count, dtype)
    assert error(got, want).max() <= (2 if dtype == "fp32" else 3)


@pytest.mark.parametrize("dtype", SIZE)
@pytest.mark.parametrize("name", ["ldexp", "scalbn"])
def test_scaling(device, name, dtype):
    x = draw(dtype, ANY[dtype], magnitudes(1e-45 if dtype == "fp32" else 1e-322, 1))
    span = 300 if dtype == "fp32" else 2300
    n = np.random.default_rng(2).integers(-span, span, N).astype(np.int32)
    got = launch(device, name, [x, n], [dtype, "i32"], dtype)
    np.testing.assert_array_equal(got, np.ldexp(x, n))


@pytest.mark.parametrize("dtype", SIZE)
@pytest.mark.parametrize("name", ["jn", "yn"])
def test_bessel_functions_of_any_order(device, name, dtype):
    rng = np.random.default_rng(3)
    n = rng.integers(-3, 12, 16).astype(np.int32)
    x = rng.uniform(0.5, 30, 16).astype(SIZE[dtype])
    f = mp.besselj if name == "jn" else mp.bessely
    want = np.array([float(f(int(a), mp.mpf(float(b)))) for a, b in zip(n, x)])
    got = launch(device, name, [n, x], ["i32", dtype], dtype)
    eps = np.finfo(x.dtype).eps
    ulps = 1 if dtype == "fp32" else 16
    np.testing.assert_allclose(got, want, rtol=ulps * eps, atol=min(ulps, 2) * eps)


# --- directed rounding ---------------------------------------------------------------------------------------------
def rounded(exact, dtype, mode):
    """A Fraction as the neighbouring number of the dtype; exact zeros are the caller's."""
    kind = SIZE[dtype]
    try:
        near = kind(float(exact))
    except OverflowError:
        near = kind(np.inf if exact > 0 else -np.inf)
    top = np.finfo(kind).max
    if np.isinf(near):
        over, under = near > 0, near < 0
    else:
        if dtype == "fp32":  # twice rounded: try the neighbours too
            options = [np.nextafter(near, kind(-np.inf)), near, np.nextafter(near, kind(np.inf))]
            options = [o for o in options if np.isfinite(o)]
            near = min(
                options, key=lambda o: (abs(Fraction(float(o)) - exact), o.view(np.uint32) & 1)
            )
            if abs(exact) > Fraction(float(top)) * (1 + Fraction(1, 2**25)):
                near = kind(np.copysign(np.inf, float(exact > 0) - 0.5))
        if np.isinf(near):
            over, under = near > 0, near < 0
        else:
            over, under = Fraction(float(near)) > exact, Fraction(float(near)) < exact
    down, up = np.nextafter(near, kind(-np.inf)), np.nextafter(near, kind(np.inf))
    if mode == "rd" or (mode == "rz" and exact > 0):
        return down if over else near
    if mode == "ru" or mode == "rz":
        return up if under else near
    return near


ARITHMETIC = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y,
}  # fmt: skip


@pytest.mark.parametrize("dtype", SIZE)
@pytest.mark.parametrize("mode", ["rz", "rd", "ru"])
@pytest.mark.parametrize("op", ARITHMETIC)
def test_directed_arithmetic(device, op, mode, dtype):
    low, high = (1e-44, 3e38) if dtype == "fp32" else (1e-322, 1e308)
    x = draw(dtype, U(-9, 9), magnitudes(low, high), seed=4, edges=False)
    y = draw(dtype, U(-9, 9), magnitudes(low, high), seed=5, edges=False)
    x[:8], y[:8] = [1, 1, 3, 1e30, 0.1, 0.1, 7, -7], [1e-30, -1e-30, 3, 1, 0.2, -0.1, 3, 3]
    x, y = np.where(x == 0, 1, x), np.where(y == 0, 1, y)
    exact = [ARITHMETIC[op](Fraction(float(a)), Fraction(float(b))) for a, b in zip(x, y)]
    want = np.array([rounded(e, dtype, mode) if e else 0 for e in exact], SIZE[dtype])
    got = launch(device, f"{op}_{mode}", [x, y], [dtype] * 2, dtype)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", SIZE)
@pytest.mark.parametrize("mode", ["rn", "rz", "rd", "ru"])
@pytest.mark.parametrize("op", ["sqrt", "rcp", "fma"])
def test_directed_functions(device, op, mode, dtype):
    low, high = (1e-37, 1e37) if dtype == "fp32" else (1e-300, 1e300)
    x = draw(dtype, U(0, 9), magnitudes(low, high, False), seed=6, edges=False)
    if op == "fma":
        y, z = (draw(dtype, U(-9, 9), magnitudes(1e-5, 1e5), seed=s, edges=False) for s in (7, 8))
        exact = [
            Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)) for a, b, c in zip(x, y, z)
        ]
        args = [x, y, z]
    elif op == "rcp":
        exact, args = [1 / Fraction(float(a)) for a in x], [x]
    else:
        with mp.workprec(400):  # never exactly between two numbers, and exact where it is a number
            roots = [mp.sqrt(mp.mpf(float(a))) for a in x]
            exact = [Fraction(int(r * mp.mpf(2) ** 1100), 2**1100) for r in roots]
        args = [x]
    want = np.array([rounded(e, dtype, mode) for e in exact], SIZE[dtype])
    got = launch(device, f"{op}_{mode}", args, [dtype] * len(args), dtype)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("mode", ["rz", "rd", "ru"])
def test_directed_sums_with_products_that_underflow(device, mode):
    least, tiny = 5e-324, 2.225073858507201e-308  # the latter the largest subnormal number
    rows = [
        (5, tiny, least),
        (-5, tiny, -least),
        (0.3, 7 * least, least),
        (3, tiny, 0),
        (0.5, least, least),
    ]
    x, y, z = (np.resize(np.array(column, np.float64), 16) for column in zip(*rows))
    exact = [
        Fraction(a) * Fraction(b) + Fraction(c)
        for a, b, c in zip(*map(np.ndarray.tolist, (x, y, z)))
    ]
    want = np.array([rounded(e, "fp64", mode) for e in exact])
    got = launch(device, f"fma_{mode}", [x, y, z], ["fp64"] * 3, "fp64")
    np.testing.assert_array_equal(got, want)


def test_exact_zeros_when_rounding_down(device):
    for dtype in SIZE:
        x = np.array([1, 0.0, -0.0, 0.0] * 4, SIZE[dtype])
        y = np.array([-1, 0.0, -0.0, -0.0] * 4, SIZE[dtype])
        down = launch(device, "add_rd", [x, y], [dtype] * 2, dtype)
        up = launch(device, "add_ru", [x, y], [dtype] * 2, dtype)
        assert np.signbit(down[:4]).tolist() == [True, False, True, True]
        assert np.signbit(up[:4]).tolist() == [False, False, True, False]


EDGES = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1.5, -3.0, 0.1]


@pytest.mark.parametrize("dtype", SIZE)
@pytest.mark.parametrize("mode", ["rz", "rd", "ru"])
@pytest.mark.parametrize("op", DIRECTED)
def test_directed_edges(device, op, mode, dtype):
    """Zeros, infinities, NaN, the largest and the least numbers, and what over- and underflows."""
    kind = SIZE[dtype]
    limits = np.finfo(kind)
    edges = [kind(e) for e in EDGES]
    edges += [s * e for e in (limits.max, limits.tiny, limits.smallest_subnormal) for s in (1, -1)]
    args = [x.ravel() for x in np.meshgrid(*[np.array(edges, kind)] * DIRECTED[op])]
    got = launch(device, f"{op}_{mode}", args, [dtype] * len(args), dtype)
    want = directed(op, mode, *args)
    np.testing.assert_array_equal(got, want)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])


# --- conversions ---------------------------------------------------------------------------------------------------
WHOLE = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}
TARGETS = {
    "int": ("i32", np.int32),
    "uint": ("i32", np.uint32),
    "ll": ("i64", np.int64),
    "ull": ("i64", np.uint64),
}


@pytest.mark.parametrize("mode", WHOLE)
@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("source", ["float", "double"])
def test_floats_to_ints(device, source, to, mode):
    dtype = {"float": "fp32", "double": "fp64"}[source]
    result, kind = TARGETS[to]
    info = np.iinfo(kind)
    low = float(info.min) / 3 if info.min else 0.0
    x = draw(dtype, U(-9 if info.min else 0, 9), U(low, info.max / 3.0), edges=False)
    got = launch(device, f"{source}2{to}_{mode}", [x], [dtype], result)
    np.testing.assert_array_equal(got.view(kind), WHOLE[mode](x).astype(kind))


@pytest.mark.parametrize("mode", WHOLE)
@pytest.mark.parametrize(
    "source", ["int2float", "uint2float", "ll2float", "ull2float", "ll2double", "ull2double"]
)
def test_ints_to_floats(device, source, mode):
    start, result = source.split("2")
    dtype = {"float": "fp32", "double": "fp64"}[result]
    kind = {"int": np.int32, "uint": np.uint32, "ll": np.int64, "ull": np.uint64}[start]
    info = np.iinfo(kind)
    x = np.random.default_rng(9).integers(info.min, info.max, N, kind, endpoint=True)
    x[:4] = [info.min, info.max, 0, 7]
    name = {"int": "i32", "uint": "u32", "ll": "i64", "ull": "u64"}[start]
    got = launch(device, f"{source}_{mode}", [x], [name], dtype)
    want = np.array([rounded(Fraction(int(v)), dtype, mode) if v else 0 for v in x], SIZE[dtype])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("mode", WHOLE)
def test_fp64_to_fp32(device, mode):
    x = draw("fp64", U(-9, 9), magnitudes(1e-50, 1e42), edges=False)
    got = launch(device, f"double2float_{mode}", [x], ["fp64"], "fp32")
    want = [rounded(Fraction(float(v)), "fp32", mode) if v else 0 for v in x]
    np.testing.assert_array_equal(got, np.array(want, np.float32))


@pytest.mark.parametrize("dtype", SIZE)
@pytest.mark.parametrize("name", ["llrint", "llround"])
def test_rounding_to_int64(device, name, dtype):
    x = draw(
        dtype,
        U(-9, 9),
        lambda r, n: np.round(U(-9, 9)(r, n)) + 0.5,
        magnitudes(1, 1e15),
        edges=False,
    )
    whole = (
        np.rint(x)
        if name == "llrint"
        else np.sign(x) * np.floor(np.abs(x.astype(np.float64)) + 0.5)
    )
    np.testing.assert_array_equal(launch(device, name, [x], [dtype], "i64"), whole.astype(np.int64))


@pytest.mark.parametrize("dtype", SIZE)
def test_classes_and_exponents(device, dtype):
    x = draw(dtype, ANY[dtype], magnitudes(1e-44, 1))
    assert launch(device, "isnan", [x], [dtype], "i1").tolist() == np.isnan(x).tolist()
    assert launch(device, "isinf", [x], [dtype], "i1").tolist() == np.isinf(x).tolist()
    assert (
        launch(device, "signbit", [x], [dtype], "i32").tolist()
        == np.signbit(x).astype(int).tolist()
    )
    name = "finitef" if dtype == "fp32" else "isfinited"
    assert launch(device, name, [x], [dtype], "i1").tolist() == np.isfinite(x).tolist()
    special = {0.0: -(2**31), math.inf: 2**31 - 1, -math.inf: 2**31 - 1}
    want = [
        -(2**31) if math.isnan(v) else special[v] if v in special else math.frexp(v)[1] - 1
        for v in map(float, x)
    ]
    assert launch(device, "ilogb", [x], [dtype], "i32").tolist() == want


def test_reciprocal_of_the_high_word(device):
    x = draw("fp64", magnitudes(1e-300, 1e300), edges=False)
    got = launch(device, "rcp64h", [x], ["fp64"], "fp64")
    np.testing.assert_allclose(got, 1 / x, rtol=2.0**-19)
    assert not (got.view(np.uint64) & 0xFFFFFFFF).any()


def test_quick_power_and_quotient(device):
    x, y = draw("fp32", U(0.1, 9), edges=False), draw("fp32", U(-3, 3), seed=1, edges=False)
    wide = x.astype(np.float64), y.astype(np.float64)
    got = launch(device, "fast_powf", [x, y], ["fp32"] * 2, "fp32")
    np.testing.assert_allclose(got, np.power(*wide), rtol=3e-6)
    got = launch(device, "fast_dividef", [x, y], ["fp32"] * 2, "fp32")
    np.testing.assert_allclose(got, wide[0] / wide[1], rtol=3e-7)


# --- integers ------------------------------------------------------------------------------------------------------
def integers(kind, seed=0):
    info = np.iinfo(kind)
    x = np.random.default_rng(seed).integers(info.min, info.max, N, kind, endpoint=True)
    shift = np.arange(N, dtype=kind) % kind(8 * x.itemsize)
    x[N // 2 :] = (kind(1) << shift)[N // 2 :]
    x[:3] = [0, info.max, info.min]
    return x


def words(x):
    bits = 8 * x.itemsize
    return [int(v) & ((1 << bits) - 1) for v in x], bits


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint32, np.uint64])
def test_counting_bits(device, kind):
    x = integers(kind)
    raw, bits = words(x)
    name = {"i": "i", "u": "u"}[np.dtype(kind).kind] + str(bits)
    assert launch(device, "clz", [x], [name], "i32").tolist() == [
        bits - v.bit_length() for v in raw
    ]
    assert launch(device, "popc", [x], [name], "i32").tolist() == [v.bit_count() for v in raw]
    assert launch(device, "ffs", [x], [name], "i32").tolist() == [
        (v & -v).bit_length() for v in raw
    ]
    reverse = [int(f"{v:0{bits}b}"[::-1], 2) for v in raw]
    got = launch(device, "brev", [x], [name], name)
    assert words(got)[0] == reverse


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint32, np.uint64])
def test_mulhi(device, kind):
    if device.name == "simt" and kind is np.int64:
        pytest.skip("the simulator has no signed 128-bit integers")
    x, y = integers(kind, 1), integers(kind, 2)
    bits = 8 * x.itemsize
    name = np.dtype(kind).kind + str(bits)
    want = [(int(a) * int(b)) >> bits for a, b in zip(x, y)]
    assert launch(device, "mulhi", [x, y], [name] * 2, name).tolist() == want


def low24(v, signed):
    v &= 0xFFFFFF
    return v - (1 << 24) if signed and v >> 23 else v


@pytest.mark.parametrize("kind", [np.int32, np.uint32])
def test_averages_and_products(device, kind):
    x, y = integers(kind, 1), integers(kind, 2)
    signed = kind is np.int32
    name = "i32" if signed else "u32"
    pairs_ = [(int(a), int(b)) for a, b in zip(x, y)]
    kinds = [name] * 2
    assert launch(device, "hadd", [x, y], kinds, name).tolist() == [(a + b) >> 1 for a, b in pairs_]
    assert launch(device, "rhadd", [x, y], kinds, name).tolist() == [
        (a + b + 1) >> 1 for a, b in pairs_
    ]
    product = [low24(a, signed) * low24(b, signed) & 0xFFFFFFFF for a, b in pairs_]
    assert words(launch(device, "mul24", [x, y], kinds, name))[0] == product
    z = integers(np.uint32, 3)
    total = [(abs(a - b) + int(c)) & 0xFFFFFFFF for (a, b), c in zip(pairs_, z)]
    assert launch(device, "sad", [x, y, z], [*kinds, "u32"], "u32").tolist() == total


def test_byte_perm(device):
    x, y, s = (integers(np.int32, i) for i in (1, 2, 3))
    got = launch(device, "byte_perm", [x, y, s], ["i32"] * 3, "i32")
    want = []
    for a, b, c in zip(*(words(v)[0] for v in (x, y, s))):
        eight = (a | b << 32).to_bytes(8, "little")
        want.append(int.from_bytes(bytes(eight[c >> 4 * i & 7] for i in range(4)), "little"))
    assert words(got)[0] == want


BITCASTS = {
    "float_as_int": ("fp32", "i32"), "float_as_uint": ("fp32", "i32"), "int_as_float": ("i32", "fp32"),
    "uint_as_float": ("u32", "fp32"), "double_as_longlong": ("fp64", "i64"), "longlong_as_double": ("i64", "fp64"),
}  # fmt: skip


@pytest.mark.parametrize("name", BITCASTS)
def test_bits_of_floats(device, name):
    source, result = BITCASTS[name]
    kind = {
        "fp32": np.float32,
        "fp64": np.float64,
        "i32": np.int32,
        "u32": np.uint32,
        "i64": np.int64,
    }
    x = draw(source, ANY[source]) if source in SIZE else integers(kind[source])
    got = launch(device, name, [x], [source], result)
    assert got.tobytes() == x.tobytes()


def test_halves_of_doubles(device):
    x = draw("fp64", ANY["fp64"])
    parts = x.view(np.int32).reshape(-1, 2)
    assert (launch(device, "double2loint", [x], ["fp64"], "i32") == parts[:, 0]).all()
    assert (launch(device, "double2hiint", [x], ["fp64"], "i32") == parts[:, 1]).all()
    made = launch(device, "hiloint2double", [parts[:, 1], parts[:, 0]], ["i32"] * 2, "fp64")
    assert made.tobytes() == x.tobytes()


def test_ints_to_fp64(device):
    for name, kind, dtype in (
        ("int2double_rn", np.int32, "i32"),
        ("uint2double_rn", np.uint32, "u32"),
    ):
        x = integers(kind)
        assert (launch(device, name, [x], [dtype], "fp64") == x.astype(np.float64)).all()
