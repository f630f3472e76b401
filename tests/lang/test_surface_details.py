"""Small parts of the public surface: constants where functions take floats, int8 scales, printed lines, attributes."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.language.extra import libdevice


# --- constants of other types ------------------------------------------------------------------------------------
@tessera.jit
def constants_kernel(x, y, i, out, out64, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b, n = tl.load(x + at), tl.load(y + at), tl.load(i + at)
    tl.store(out + at, libdevice.fmod(a, 2))
    tl.store(out + N + at, libdevice.atan2(1, a))
    tl.store(out + 2 * N + at, libdevice.pow(2, a))
    tl.store(out + 3 * N + at, libdevice.pow(a, 2))
    tl.store(out + 4 * N + at, libdevice.hypot(a, n))
    tl.store(out + 5 * N + at, libdevice.fma(a, 2, 0.5))
    tl.store(out + 6 * N + at, tl.exp(1) + libdevice.sqrt(4) + tl.math.log2(8))
    tl.store(out64 + at, libdevice.fmod(b, 2.5))
    tl.store(out64 + N + at, libdevice.pow(b, 3.0))
    tl.store(out64 + 2 * N + at, libdevice.copysign(b, a))
    tl.store(out64 + 3 * N + at, libdevice.atan2(b, -1))


def test_functions_promote_their_operands(device: Any):
    rng = np.random.default_rng(0)
    x = rng.uniform(0.5, 4, 16).astype(np.float32) * np.where(np.arange(16) % 2, 1, -1).astype("f")
    y, n = rng.uniform(0.5, 9, 16), rng.integers(-9, 9, 16).astype(np.int32)
    out, out64 = device.zeros((7, 16)), device.zeros((4, 16), "fp64")
    args = device.array(x), device.array(y), device.array(n)
    constants_kernel[(1,)](*args, out, out64, N=16)
    one = np.float32(1)
    want = [
        np.fmod(x, 2),
        np.arctan2(one, x),
        np.exp2(x),
        x * x,
        np.hypot(x, n.astype("f")),
        2 * x + 0.5,
    ]
    want.append(np.full(16, np.e + 2 + 3))
    np.testing.assert_allclose(device.numpy(out), np.array(want), rtol=3e-6)
    want64 = [np.fmod(y, 2.5), y**3, np.copysign(y, x), np.arctan2(y, -1.0)]
    np.testing.assert_allclose(device.numpy(out64), np.array(want64), rtol=1e-12)


@tessera.jit
def small_powers_kernel(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.load(x + at)
    tl.store(out + at, libdevice.pow(a, 2.0))
    tl.store(out + N + at, libdevice.pow(a, 3.0))


def test_small_powers_keep_signs_and_edges(device: Any):
    edges = [0.0, np.inf, np.nan, 1e-42, 1e-20, 1e19, 1e20, 1.5]
    x = np.array([*edges, *(-v for v in edges)], "f")
    out = device.zeros((2, 16))
    small_powers_kernel[(1,)](device.array(x), out, N=16)
    with np.errstate(over="ignore", under="ignore"):
        want = np.array([x.astype("d") ** 2, x.astype("d") ** 3]).astype("f")
    got = device.numpy(out)
    np.testing.assert_allclose(got, want, rtol=2e-7)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])


# --- dot_scaled ----------------------------------------------------------------------------------------------------
@tessera.jit
def int8_scales(a, s, out, M: tl.constexpr, K: tl.constexpr):
    i, k, g = tl.arange(0, M)[:, None], tl.arange(0, K)[None, :], tl.arange(0, K // 32)[None, :]
    x = tl.load(a + i * K + k)
    scale = tl.load(s + i * (K // 32) + g)
    tl.static_assert(scale.dtype == tl.int8)
    c = tl.dot_scaled(x, scale, "e4m3", tl.trans(x), scale, "e4m3")
    tl.store(out + i * M + tl.arange(0, M)[None, :], c)


def test_scales_may_be_int8(device: Any):
    M, K = 16, 64
    rng = np.random.default_rng(1)
    codes = rng.integers(120, 134, (M, K // 32)).astype(np.uint8)  # on both sides of int8's end
    values = rng.integers(-4, 5, (M, K)).astype(np.float32)
    x, out = device.array(values, "fp8e4nv"), device.zeros((M, M))
    int8_scales[(1,)](x, device.array(codes.view(np.int8)), out, M=M, K=K)
    wide = values * np.repeat(np.exp2(codes.astype(np.float64) - 127), 32, axis=1)
    np.testing.assert_allclose(device.numpy(out), wide @ wide.T, rtol=1e-6)


# --- attributes ----------------------------------------------------------------------------------------------------
def test_groups_of_dtypes():
    """Each type is in one group, by its name; kinds and signs are enumerations of the class."""
    groups = (tl.dtype.SINT_TYPES, tl.dtype.UINT_TYPES, tl.dtype.FP_TYPES, tl.dtype.OTHER_TYPES)
    names = [n for group in groups for n in group]
    assert len(names) == len(set(names)) == 19
    assert set(tl.dtype.STANDARD_FP_TYPES) < set(tl.dtype.FP_TYPES)
    for name in names:
        t = tl.dtype(name)
        assert t.is_int_signed() == (name in tl.dtype.SINT_TYPES)
        assert t.is_int_unsigned() == (name in tl.dtype.UINT_TYPES)
        assert t.is_floating() == (name in tl.dtype.FP_TYPES)
        assert t.is_standard_floating() == (name in tl.dtype.STANDARD_FP_TYPES)
    assert issubclass(tl.dtype.KIND, enum.Enum)
    assert tl.int1.kind() is tl.dtype.KIND.BOOLEAN
    assert tl.uint8.kind() is tl.dtype.KIND.INTEGRAL
    assert tl.float8e5.kind() is tl.dtype.KIND.FLOATING
    assert tl.int8.int_signedness is tl.dtype.SIGNEDNESS.SIGNED
    assert tl.int1.int_signedness is tl.dtype.SIGNEDNESS.UNSIGNED
    assert not hasattr(tl.float32, "int_signedness")


def test_types_of_compile_time_tuples():
    assert str(tl.constexpr((1, 2)).type) == "constexpr[(1, 2)]"
    t = tl.tuple((1, tl.float32)).type
    assert len(t) == 2
    assert t[tl.constexpr(0)] == tl.constexpr(1).type
    assert [str(x) for x in t] == ["constexpr[1]", "constexpr[fp32]"]


@tessera.constexpr_function
def bare(x):
    return x + 1


@tessera.constexpr_function
def wrapped(x):
    return tl.constexpr(x + 1)


def test_compile_time_functions_on_the_host():
    """They give what they return, for plain numbers and constexpr, in any form of a call."""
    for x in (3, tl.constexpr(3)):
        assert type(bare(x)) is type(bare(x=x)) is int
        assert bare(x) == 4
        assert isinstance(wrapped(x), tl.constexpr)
        assert isinstance(wrapped(x=x), tl.constexpr)
    assert type(tessera.cdiv(tl.constexpr(7), 2)) is int


@tessera.aggregate
class Base:
    first: tl.constexpr
    scale: tl.constexpr = 2
    bias: tl.constexpr = 3


@tessera.aggregate
class Derived(Base):
    bias: tl.constexpr = 4
    more: tl.constexpr = 5


@tessera.jit
def inherited_kernel(out):
    a, b, c = Derived(1), Derived(1, scale=7), Base(9)
    tl.store(out, a.scale * 100 + a.bias * 10 + a.more)
    tl.store(out + 1, b.scale * 100 + b.bias * 10 + b.more)
    tl.store(out + 2, c.scale * 100 + c.bias * 10 + c.first)


def test_aggregates_inherit_defaults(device: Any):
    out = device.zeros(3, "i32")
    inherited_kernel[(1,)](out)
    assert device.numpy(out).tolist() == [245, 745, 239]


# --- printed lines -------------------------------------------------------------------------------------------------
@tessera.jit
def printing_kernel(x, out, n, N: tl.constexpr):
    at = tl.arange(0, 2)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.device_print("100%", tl.load(x + at))
    tl.device_print("", n)
    tl.device_print("several", n, tl.arange(0, 2) == 0, 2.5, tl.full((1,), 3, tl.uint64))
    tl.device_print("bits: ", tl.load(x + tl.arange(0, 2)), n.to(tl.int8), hex=True)
    tl.device_print("no value")
    tl.device_print("go")


def test_printed_lines(device: Any, capfd: pytest.CaptureFixture[str]):
    if device.name == "simt":
        pytest.skip("the simulator does not print")
    x = np.arange(32, dtype=np.float32).reshape(2, 16) / 4 - 1
    printing_kernel[(1,)](device.array(x), device.zeros(1), -3, N=16)
    device.synchronize()
    lines = capfd.readouterr().out.splitlines()
    pid = "pid (0, 0, 0)"
    want = [f"{pid} idx ({i}, {j:2d}) 100%: {x[i, j]:f}" for i in range(2) for j in range(16)]
    if device.is_cuda:  # threads print in an order of their own
        lines[:32], want = sorted(lines[:32]), sorted(want)
    want += [
        f"{pid} idx (): -3",
        f"{pid} idx () several: (operand 0) -3",
        f"{pid} idx (0) several: (operand 1) 1",
        f"{pid} idx (1) several: (operand 1) 0",
        f"{pid} idx () several: (operand 2) 2.500000",
        f"{pid} idx (0) several: (operand 3) 3",
        f"{pid} idx (0) bits: (operand 0) 0xbf800000",
        f"{pid} idx (1) bits: (operand 0) 0xbf400000",
        f"{pid} idx () bits: (operand 1) 0xfd",
        f"{pid} no value",
        f"{pid}go",
    ]
    assert lines == want


@tessera.jit
def statically_printing_kernel(x, N: tl.constexpr):
    tile = tl.load(x + tl.arange(0, N))[:, None] + tl.zeros((1, 4), tl.float16)
    tl.static_print("tile", tile, x, tl.program_id(0), N, tl.float32, sep="|")


def test_values_of_run_time_are_printed_as_their_types(
    device: Any, capfd: pytest.CaptureFixture[str]
):
    statically_printing_kernel[(1,)](device.zeros(8, "fp16"), N=8)
    shown = "tile|fp16[constexpr[8], constexpr[4]]|pointer<fp16>[]|int32[]|8|fp32"
    assert shown in capfd.readouterr().out
