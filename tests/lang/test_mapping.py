"""Functions of scalars on tiles, scaled products, rows by descriptors, atomic loads and stores, clocks."""

from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.errors import CompilationError
from tests.conftest import decode_table
from tests.lang.kit import sample

N = 64


# --- map_elementwise --------------------------------------------------------------------------------------------
@tessera.jit
def collatz(x, limit):
    steps = 0
    while (x > 1) & (steps < limit):
        if x % 2 == 0:
            x = x // 2
        else:
            x = 3 * x + 1
        steps += 1
    return steps, x


@tessera.jit
def collatz_kernel(x, steps, rest, N: tl.constexpr):
    i = tl.arange(0, N)
    n, y = tl.map_elementwise(collatz, tl.load(x + i), 50)
    tl.store(steps + i, n)
    tl.store(rest + i, y)


def test_map_with_branches_and_a_loop(device):
    x = np.random.default_rng(0).integers(1, 100, N).astype(np.int32)
    steps, rest = device.zeros(N, "i32"), device.zeros(N, "i32")
    collatz_kernel[(1,)](device.array(x), steps, rest, N=N)
    for v, n, r in zip(x.tolist(), device.numpy(steps), device.numpy(rest)):
        count = 0
        while v > 1 and count < 50:
            v = v // 2 if v % 2 == 0 else 3 * v + 1
            count += 1
        assert (count, v) == (n, r)


@tessera.jit
def power(x, n):
    result = x * 0 + 1
    for _ in range(n):
        result *= x
    if result > 100:
        return result - 100
    return -result


@tessera.jit
def power_kernel(x, n, out, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M)[:, None]
    j = tl.arange(0, N)[None, :]
    r = tl.map_elementwise(power, tl.load(x + i), tl.load(n + j))
    tl.store(out + i * N + j, r)


def test_map_broadcasts_and_counts_differ(device):
    x, n = np.arange(-4, 4, dtype=np.int32), np.arange(0, 8, dtype=np.int32)
    out = device.zeros((8, 8), "i32")
    power_kernel[(1,)](device.array(x), device.array(n), out, M=8, N=8)
    want = x[:, None] ** n[None, :]
    np.testing.assert_array_equal(device.numpy(out), np.where(want > 100, want - 100, -want))


@tessera.jit
def pair(a0, a1, b0, b1):
    return a0 + a1, a0 - a1, b0 * b1, b1 - b0


@tessera.jit
def pack_kernel(x, y, s, p, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.map_elementwise(pair, tl.load(x + i), tl.load(y + i), pack=2)
    tl.store(s + i, a)
    tl.store(p + i, b)


def test_map_of_packs(device):
    x, y = sample("i32", (N,), small=True), sample("i32", (N,), small=True, seed=1)
    s, p = device.zeros(N, "i32"), device.zeros(N, "i32")
    pack_kernel[(1,)](device.array(x), device.array(y), s, p, N=N)
    want_s = np.stack([x[::2] + x[1::2], x[::2] - x[1::2]], -1).ravel()
    want_p = np.stack([y[::2] * y[1::2], y[1::2] - y[::2]], -1).ravel()
    np.testing.assert_array_equal(device.numpy(s), want_s)
    np.testing.assert_array_equal(device.numpy(p), want_p)


@tessera.jit
def looked_up(p, x):
    if x >= 0:
        return tl.load(p + x)
    return -1.0


@tessera.jit
def lookup_kernel(table, x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.map_elementwise(looked_up, table, tl.load(x + i)))


def test_map_loads_under_its_branch(device):
    table = np.arange(8, dtype=np.float32)
    x = np.where(np.arange(N) % 3 == 0, -(10**6), np.arange(N) % 8).astype(np.int32)
    out = device.zeros(N)
    lookup_kernel[(1,)](device.array(table), device.array(x), out, N=N)
    np.testing.assert_array_equal(device.numpy(out), np.where(x < 0, -1, table[np.maximum(x, 0)]))


# --- dot_scaled ----------------------------------------------------------------------------------------------------
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float64)
SIZES = (32, 32, 64)  # M, N, K


@tessera.jit
def scaled_kernel(
    a, sa, b, sb, out, FA: tl.constexpr, FB: tl.constexpr, GA: tl.constexpr, GB: tl.constexpr,
    KA: tl.constexpr, KB: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    am: tl.constexpr = M // 2 if (FA == "e2m1" and not KA) else M
    ak: tl.constexpr = K // 2 if (FA == "e2m1" and KA) else K
    bn: tl.constexpr = N // 2 if (FB == "e2m1" and not KB) else N
    bk: tl.constexpr = K // 2 if (FB == "e2m1" and KB) else K
    x = tl.load(a + tl.arange(0, am)[:, None] * ak + tl.arange(0, ak)[None, :])
    y = tl.load(b + tl.arange(0, bk)[:, None] * bn + tl.arange(0, bn)[None, :])
    if GA is None:
        s = None
    else:
        s = tl.load(sa + tl.arange(0, M)[:, None] * (K // GA) + tl.arange(0, K // GA)[None, :])
    if GB is None:
        t = None
    else:
        t = tl.load(sb + tl.arange(0, N)[:, None] * (K // GB) + tl.arange(0, K // GB)[None, :])
    r = tl.dot_scaled(x, s, FA, y, t, FB, lhs_k_pack=KA, rhs_k_pack=KB)
    tl.store(out + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], r)


def operand(format, rows, cols, pack_axis, seed):
    """(bits to pass, dtype, values) of a rows x cols matrix."""
    rng = np.random.default_rng(seed)
    if format == "e2m1":
        codes = rng.integers(0, 16, (rows, cols))
        first, second = (
            (codes[:, ::2], codes[:, 1::2]) if pack_axis == 1 else (codes[::2], codes[1::2])
        )
        return (first | second << 4).astype(np.uint8), "u8", E2M1[codes]
    if format in ("e4m3", "e5m2"):
        kind = {"e4m3": tl.float8e4nv, "e5m2": tl.float8e5}[format]
        codes = rng.integers(0, 0x78, (rows, cols)) | rng.integers(0, 2, (rows, cols)) << 7
        return codes.astype(np.uint8), "u8", decode_table(kind)[codes]
    x = rng.standard_normal((rows, cols)).astype(np.float32)
    if format == "bf16":
        x = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
        return (x.view(np.uint32) >> 16).astype(np.uint16), "u16", x.astype(np.float64)
    half = x.astype(np.float16)
    return half.view(np.uint16), "u16", half.astype(np.float64)


def scales(rows, group, seed):
    if group is None:
        return np.zeros(1, np.uint8), np.float64(1.0)
    code = (
        np.random.default_rng(seed).integers(124, 131, (rows, SIZES[2] // group)).astype(np.uint8)
    )
    return code, np.repeat(2.0 ** (code.astype(np.float64) - 127), group, 1)


FORMATS = ["e2m1", "e4m3", "e5m2", "bf16", "fp16"]


@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("right", FORMATS)
@pytest.mark.parametrize("left", FORMATS)
def test_scaled_products(device, left, right, group):
    if "fp16" in (left, right) and "e5m2" in (left, right):
        pytest.skip("e5m2 is wider than fp16")
    check_scaled(device, left, right, group, group, True, True)


@pytest.mark.parametrize(("left", "right"), [("e2m1", "e2m1"), ("e4m3", "e2m1"), ("e2m1", "bf16")])
@pytest.mark.parametrize("groups", [(None, 32), (32, None), (None, None)])
def test_scaled_products_without_a_scale(device, left, right, groups):
    group_a, group_b = groups
    check_scaled(device, left, right, group_a, group_b, True, True)


@pytest.mark.parametrize("packs", [(False, True), (True, False), (False, False)])
def test_four_bit_operands_packed_the_other_way(device, packs):
    pack_a, pack_b = packs
    check_scaled(device, "e2m1", "e2m1", 32, 32, pack_a, pack_b)


def check_scaled(device, left, right, group_a, group_b, pack_a, pack_b):
    m, n, k = SIZES
    a, kind_a, x = operand(left, m, k, 1 if pack_a else 0, 1)
    b, kind_b, y = operand(right, k, n, 0 if pack_b else 1, 2)
    (sa, fa), (sb, fb) = scales(m, group_a, 3), scales(n, group_b, 4)
    out = device.zeros((m, n))
    scaled_kernel[(1,)](
        device.array(a, kind_a), device.array(sa), device.array(b, kind_b), device.array(sb), out,
        FA=left, FB=right, GA=group_a, GB=group_b, KA=pack_a, KB=pack_b, M=m, N=n, K=k,
    )  # fmt: skip
    wide_a = x * fa
    wide_b = y * (fb.T if group_b else 1.0)
    want = wide_a @ wide_b
    # Products of these formats are exact in bf16; sums are fp32.
    size = np.abs(wide_a) @ np.abs(wide_b)
    assert (np.abs(device.numpy(out) - want) <= 2.0**-20 * size + 1e-30).all()


@tessera.jit
def scale_codes_kernel(a, sa, b, out, M: tl.constexpr, K: tl.constexpr):
    i = tl.arange(0, M)[:, None]
    x = tl.load(a + i * K + tl.arange(0, K)[None, :])
    y = tl.load(b + tl.arange(0, K)[:, None] * M + tl.arange(0, M)[None, :])
    r = tl.dot_scaled(x, tl.load(sa + i + tl.arange(0, 1)[None, :]), "bf16", y, None, "bf16")
    tl.store(out + i * M + tl.arange(0, M)[None, :], r)


def test_extreme_scales(device):
    one = np.full((16, 32), 0x3F80, np.uint16)  # bf16 1.0
    code = np.array(
        [[127, 255, 2, 1, 250, 128, 126, 100, 150, 127, 127, 127, 127, 127, 127, 127]], np.uint8
    ).T
    out = device.zeros((16, 16))
    scale_codes_kernel[(1,)](
        device.array(one), device.array(code), device.array(one.T.copy()), out, M=16, K=32
    )
    want = np.where(code == 255, np.nan, 32 * 2.0 ** (code.astype(np.float64) - 127))
    got = device.numpy(out)[:, :1]
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(got, want.astype(np.float32), rtol=1e-6)


# --- descriptors by rows ---------------------------------------------------------------------------------------------
@tessera.jit
def gather_kernel(src, rows, out, dst, M, W, column, R: tl.constexpr, C: tl.constexpr):
    d = tl.make_tensor_descriptor(src, [M, W], [W, 1], [1, C])
    e = tl.make_tensor_descriptor(dst, [M, W], [W, 1], [1, C])
    i = tl.arange(0, R)
    which = tl.load(rows + i)
    x = d.gather(which, column)
    tl.store(out + i[:, None] * C + tl.arange(0, C)[None, :], x)
    e.scatter(x, which, column)


@pytest.mark.parametrize("dtype", ["fp32", "i32", "fp16", "i8"])
@pytest.mark.parametrize("column", [0, 16, -16, 48])
def test_gather_and_scatter_rows(device, dtype, column):
    m, w, c = 20, 64, 32
    src = sample(dtype, (m, w))
    rows = np.array([3, 0, 19, 7, 25, -1, 11, 5], np.int32)
    out, dst = device.zeros((8, c), dtype), device.zeros((m, w), dtype)
    gather_kernel[(1,)](
        device.array(src, dtype), device.array(rows), out, dst, m, w, column, R=8, C=c
    )
    padded = np.zeros((m + 40, w + 80), src.dtype)
    padded[20 : 20 + m, 40 : 40 + w] = src
    want = padded[20 + rows][:, 40 + column : 40 + column + c]
    np.testing.assert_array_equal(device.numpy(out), want)
    kept = np.zeros_like(padded)
    kept[20 + rows, 40 + column : 40 + column + c] = want
    np.testing.assert_array_equal(device.numpy(dst), kept[20 : 20 + m, 40 : 40 + w])


# --- atomic loads and stores, clocks -------------------------------------------------------------------------------
@tessera.jit
def exchange_kernel(x, y, out, flag, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.atomic_load(x + i, mask=i < N - 3, sem="acquire")
    tl.atomic_store(y + i, v, mask=i < N - 3)
    tl.store(out + i, tl.atomic_load(x + i, sem="relaxed", scope="cta"))
    tl.atomic_store(flag, 7, sem="release")
    tl.store(flag + 1, tl.atomic_poll(flag, 7).to(tl.int32))
    tl.store(flag + 2, tl.atomic_poll(flag, 8, timeout_ns=1000).to(tl.int32))


@pytest.mark.parametrize("dtype", ["i32", "u32", "i64", "u64", "fp32", "fp64"])
def test_atomic_loads_and_stores(device, dtype):
    if device.name == "simt":
        pytest.skip("the simulator has no clock")
    x = sample(dtype, (N,))
    y, out, flag = device.zeros(N, dtype), device.zeros(N, dtype), device.zeros(4, "i32")
    exchange_kernel[(1,)](device.array(x, dtype), y, out, flag, N=N)
    np.testing.assert_array_equal(device.numpy(y), np.where(np.arange(N) < N - 3, x, 0))
    np.testing.assert_array_equal(device.numpy(out), x)
    assert device.numpy(flag).tolist() == [7, 1, 0, 0]


@tessera.jit
def clock_kernel(out):
    first = tl.extra.cuda.globaltimer()
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    tl.store(out, tl.extra.cuda.globaltimer() - first)
    tl.store(out + 1, tl.extra.cuda.smid())
    tl.store(out + 2, tl.extra.cuda.num_warps())
    tl.store(out + 3, tl.extra.cuda.num_threads())


def test_clock_and_place(device):
    if device.name == "simt":
        pytest.skip("the simulator has no clock")
    out = device.full(4, -1, "i64")
    clock_kernel[(1,)](out, num_warps=2)
    elapsed, place, warps, threads = device.numpy(out).tolist()
    assert 0 <= elapsed < 10**10 and place >= 0
    assert (warps, threads) == (2, 64)


# --- words and rules -----------------------------------------------------------------------------------------------
@tessera.jit
def modifiers_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i, cache_modifier="cg", eviction_policy="evict_normal")
    b = tl.load(x + i, cache_modifier=".ca", eviction_policy="")
    tl.store(
        out + i,
        tl.expect_zero(a - b, i < N) + a,
        cache_modifier="wt",
        eviction_policy="evict_normal",
    )


def test_modifiers_with_and_without_dot(device):
    x, out = sample("fp32", (N,)), device.zeros(N)
    modifiers_kernel[(1,)](device.array(x), out, N=N)
    np.testing.assert_array_equal(device.numpy(out), x)


@tessera.jit
def cumprod_kernel(x, out, T: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.cumprod(tl.load(x + i), dtype=T))


def test_cumprod_in_a_wider_dtype(device):
    x = np.array([3, -2, 5, 7, 1, -4, 2, 9], np.int8)
    out = device.zeros(8, "i64")
    cumprod_kernel[(1,)](device.array(x, "i8"), out, T=tl.int64, N=8)
    np.testing.assert_array_equal(device.numpy(out), np.cumprod(x.astype(np.int64)))


@tessera.jit
def hip_kernel(x):
    tl.store(x, tl.extra.hip.smid())


def test_what_a_target_lacks_is_refused(device):
    with pytest.raises(CompilationError, match="needs an AMD GPU"):
        hip_kernel[(1,)](device.zeros(1, "i32"))
