"""Products in loops, operands in every order, through pointers and descriptors, by one and two warpgroups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.lang.dot_orders_kit import descriptor_product, pointer_product

DTYPES = ["fp16", "fp32", "i8", "fp8e4nv"]


def numbers(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    """Small whole numbers: every sum is exact, and the same on all devices."""
    kind = {"i8": np.int8, "fp16": np.float16}.get(dtype, np.float32)
    return rng.integers(-3, 4, shape).astype(kind)


def laid(x: np.ndarray, turned: bool) -> np.ndarray:
    return np.ascontiguousarray(x.T) if turned else x


@pytest.mark.parametrize("tile", [(128, 64, 64, 8), (64, 128, 32, 4), (64, 128, 64, 8)])
@pytest.mark.parametrize("through", ["pointers", "descriptors"])
@pytest.mark.parametrize(("a_turned", "b_turned"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("dtype", [*DTYPES, "fp8e5 fp8e4nv"])
def test_orders(
    device: Any, dtype: str, a_turned: int, b_turned: int, through: str, tile: tuple[int, ...]
) -> None:
    m, n, k = 144, 112, 112
    rng = np.random.default_rng(4)
    a, b = numbers(rng, dtype, m, k), numbers(rng, dtype, k, n)
    acc = "i32" if dtype == "i8" else "fp32"
    types = (dtype.split()[0], dtype.split()[-1])
    x, y = (
        device.array(laid(v, bool(t)), kind)
        for v, t, kind in zip((a, b), (a_turned, b_turned), types, strict=True)
    )
    bm, bn, bk, warps = tile
    grid = (-(-m // bm), -(-n // bn))
    to = tl.int32 if dtype == "i8" else tl.float32
    want = a.astype(np.int64) @ b.astype(np.int64)
    if through == "pointers":
        strides = ((1, m) if a_turned else (k, 1)) + ((1, k) if b_turned else (n, 1))
        on_gpu = device.name in ("cuda", "simt")
        for option in [{"pointer_maps": maps} for maps in (False, True)] if on_gpu else [{}]:
            c = device.zeros((m, n), acc)
            pointer_product[grid](
                x, y, c, m, n, k, *strides, bm, bn, bk, to, num_warps=warps, num_stages=4, **option
            )
            np.testing.assert_array_equal(device.numpy(c), want)
        return
    c = device.zeros((m, n), acc)
    descriptor_product[grid](
        x, y, c, m, n, k, bm, bn, bk, to, bool(a_turned), bool(b_turned),
        num_warps=warps, num_stages=3,
    )  # fmt: skip
    np.testing.assert_array_equal(device.numpy(c), want)


@tessera.jit
def lasting_product(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr
):  # fmt: skip
    x_desc = tl.make_tensor_descriptor(a, [K, M], [M, 1], [BK, BM])
    y_desc = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BK, BN])
    out = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
        row, col = tile % tiles_m * BM, tile // tiles_m * BN
        acc = tl.zeros((BM, BN), ACC)
        for k in range(0, K, BK):
            acc = tl.dot(x_desc.load([k, row]).T, y_desc.load([k, col]), acc)
        out.store([row, col], acc)


@pytest.mark.parametrize("k", [32, 144])
@pytest.mark.parametrize("tile", [(128, 64, 64), (64, 128, 32), (256, 128, 32)])
@pytest.mark.parametrize("dtype", ["fp32", "i8", "fp8e4nv"])
def test_turned_tile_after_tile(
    device: Any, dtype: str, tile: tuple[int, int, int], k: int
) -> None:
    """Neither operand along K, in programs that do several tiles: buffers go on from tile to tile."""
    m, n = 144, 144
    rng = np.random.default_rng(5)
    a, b = numbers(rng, dtype, m, k), numbers(rng, dtype, k, n)
    c = device.zeros((m, n), "i32" if dtype == "i8" else "fp32")
    lasting_product[(2,)](
        device.array(laid(a, True), dtype), device.array(b, dtype), c, m, n, k, *tile,
        tl.int32 if dtype == "i8" else tl.float32, num_warps=8, num_stages=3,
    )  # fmt: skip
    want = a.astype(np.int64) @ b.astype(np.int64)
    np.testing.assert_array_equal(device.numpy(c), want)


@tessera.jit
def mixed_product(
    a, b, c, K: tl.constexpr, M: tl.constexpr, N: tl.constexpr, B_TURNED: tl.constexpr
):  # fmt: skip
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + i[:, None] * K + k[None, :])
    y = tl.load(b + (k[:, None] + j[None, :] * K if B_TURNED else k[:, None] * N + j[None, :]))
    tl.store(c + i[:, None] * N + j[None, :], tl.dot(x, y))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("n", [16, 64, 256])
@pytest.mark.parametrize(
    ("left", "right"), [("fp8e4nv", "fp8e5"), ("fp8e5", "fp8e4nv"), ("i8", "i8"), ("fp32", "fp32")]
)
def test_widths_and_mixes(device: Any, left: str, right: str, n: int, turned: bool) -> None:
    m, k = 64, 64
    rng = np.random.default_rng(n)
    a, b = numbers(rng, left, m, k), numbers(rng, right, k, n)
    c = device.zeros((m, n), "i32" if left == "i8" else "fp32")
    mixed_product[(1,)](
        device.array(a, left), device.array(laid(b, turned), right), c, k, m, n, turned
    )
    np.testing.assert_array_equal(device.numpy(c), a.astype(np.int64) @ b.astype(np.int64))


@tessera.jit
def computed_product(
    a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, TYPE: tl.constexpr, ACC: tl.constexpr,
    A_COMPUTED: tl.constexpr, B_COMPUTED: tl.constexpr, B_TURNED: tl.constexpr,
):  # fmt: skip
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    acc = tl.zeros((M, N), ACC)
    for _ in range(2):
        x = tl.load(a + i[:, None] * K + k[None, :])
        y = tl.load(b + (k[:, None] + j[None, :] * K if B_TURNED else k[:, None] * N + j[None, :]))
        if A_COMPUTED:
            x = (x.to(tl.float32) + 1).to(TYPE)
        if B_COMPUTED:
            y = (y.to(tl.float32) + 1).to(TYPE)
        acc = tl.dot(x, y, acc)
    tl.store(c + i[:, None] * N + j[None, :], acc)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_computed_operands(
    device: Any, dtype: str, first: bool, second: bool, turned: bool
) -> None:
    """Operands from registers, as the first and as the second one."""
    m, n, k = 64, 32, 32
    rng = np.random.default_rng(7)
    a, b = numbers(rng, dtype, m, k), numbers(rng, dtype, k, n)
    c = device.zeros((m, n), "i32" if dtype == "i8" else "fp32")
    kind = {"i8": tl.int8, "fp16": tl.float16, "fp32": tl.float32, "fp8e4nv": tl.float8e4nv}[dtype]
    computed_product[(1,)](
        device.array(a, dtype), device.array(laid(b, turned), dtype), c, m, n, k, kind,
        tl.int32 if dtype == "i8" else tl.float32, first, second, turned,
    )  # fmt: skip
    wide = (a.astype(np.int64) + first) @ (b.astype(np.int64) + second)
    np.testing.assert_array_equal(device.numpy(c), 2 * wide)


@pytest.mark.parametrize("n", [8, 16])
@pytest.mark.parametrize("dtype", ["fp16", "i8"])
def test_narrowest_instructions(device: Any, dtype: str, n: int) -> None:
    m, k = 64, 32
    rng = np.random.default_rng(n)
    a, b = numbers(rng, dtype, m, k), numbers(rng, dtype, k, n)
    c = device.zeros((m, n), "i32" if dtype == "i8" else "fp32")
    mixed_product[(1,)](
        device.array(a, dtype), device.array(laid(b, True), dtype), c, k, m, n, True
    )
    np.testing.assert_array_equal(device.numpy(c), a.astype(np.int64) @ b.astype(np.int64))


@tessera.jit
def attention(
    q, k, v, out, L, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, TYPE: tl.constexpr
):
    i, d, j = tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    x = tl.load(q + i[:, None] * D + d[None, :])
    peak, total = tl.full((BM,), -1e30, tl.float32), tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, L, BN):
        keys = tl.load(k + (start + j)[None, :] * D + d[:, None])
        score = tl.dot(x, keys)
        higher = tl.maximum(peak, tl.max(score, 1))
        weight, shrink = tl.exp(score - higher[:, None]), tl.exp(peak - higher)
        total = total * shrink + tl.sum(weight, 1)
        values = tl.load(v + (start + j)[:, None] * D + d[None, :])
        acc = tl.dot(weight.to(TYPE), values, acc * shrink[:, None])
        peak = higher
    tl.store(out + i[:, None] * D + d[None, :], acc / total[:, None])


@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize("dtype", ["fp8e4nv", "fp32"])
def test_chains_whose_second_operand_is_turned(device: Any, dtype: str, warps: int) -> None:
    rows, keys, dim = 16 * warps, 192, 64
    rng = np.random.default_rng(0)
    q, k, v = (0.25 * numbers(rng, dtype, n, dim) for n in (rows, keys, keys))
    out = device.zeros((rows, dim))
    kind = {"fp32": tl.float32, "fp8e4nv": tl.float8e4nv}[dtype]
    arrays = [device.array(x, dtype) for x in (q, k, v)]
    attention[(1,)](*arrays, out, keys, dim, rows, 64, kind, num_warps=warps, num_stages=2)
    score = q.astype(np.float64) @ k.T
    weight = np.exp(score - score.max(1, keepdims=True))
    want = weight @ v / weight.sum(1, keepdims=True)
    np.testing.assert_allclose(device.numpy(out), want, atol=0.03)
