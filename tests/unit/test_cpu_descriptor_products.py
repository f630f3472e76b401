"""Products by descriptors and under masks that are no prefixes on the CPU: the same as by the interpreter, with tiles
read in place and shared as those by pointers are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tessera.tools.tensor_descriptor import TensorDescriptor
from tests.unit.cpu_kit import agree, floats, native


@tessera.jit
def product(
    x, y, z, M, N, K, row, column, first,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TURNED: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Programs that stay; blocks begin at any coordinates."""
    tiles_n = tl.cdiv(N, BN)
    for number in tl.range(tl.program_id(0), tl.cdiv(M, BM) * tiles_n, tl.num_programs(0)):
        i, j = number // tiles_n * BM, number % tiles_n * BN
        acc = tl.zeros((BM, BN), ACC)
        for k in range(first, K, BK):
            a = x.load([k, row + i]).T if TURNED else x.load([row + i, k])
            b = y.load([column + j, k]).T if TURNED else y.load([k, column + j])
            acc = tl.dot(a, b, acc, out_dtype=ACC)
        z.store([i, j], acc.to(z.dtype))


@tessera.jit
def made(
    x, y, z, M, N, K, lda, ldb, row, column, first,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TURNED: tl.constexpr, ACC: tl.constexpr,
    PADDING: tl.constexpr,
):  # fmt: skip
    """The same with descriptors that the kernel makes."""
    if TURNED:
        a = tl.make_tensor_descriptor(x, [K, M], [lda, 1], [BK, BM], PADDING)
        b = tl.make_tensor_descriptor(y, [N, K], [ldb, 1], [BN, BK], PADDING)
    else:
        a = tl.make_tensor_descriptor(x, [M, K], [lda, 1], [BM, BK], PADDING)
        b = tl.make_tensor_descriptor(y, [K, N], [ldb, 1], [BK, BN], PADDING)
    c = tl.make_tensor_descriptor(z, [M, N], [N, 1], [BM, BN])
    product(a, b, c, M, N, K, row, column, first, BM, BN, BK, TURNED, ACC)


def operands(kind: Any, turned: bool, sizes: tuple[int, int, int]) -> tuple[Any, Any]:
    """A and B as they are stored, with rows that are 16 longer."""
    m, n, k = sizes
    shapes = ((k, m), (n, k)) if turned else ((m, k), (k, n))
    a, b = (floats(rows, columns + 16, seed=columns) for rows, columns in shapes)
    if kind is np.int8:
        a, b = np.round(a * 40), np.round(b * 40)
    return a.astype(kind), b.astype(kind)


@pytest.mark.parametrize(
    ("kind", "turned", "k", "place", "padding"),
    [
        (np.float32, False, 112, (0, 0, 0), "zero"),
        (np.float32, True, 128, (-5, 16, 0), "nan"),
        (np.float32, False, 128, (7, -3, -20), "zero"),
        (np.float16, False, 128, (7, -3, 0), "nan"),
        (np.float16, True, 112, (7, -3, -64), "zero"),
        (np.int8, False, 112, (-5, 16, -20), "zero"),
    ],
)
def test_blocks_that_begin_and_end_anywhere(
    kind: Any, turned: bool, k: int, place: tuple[int, int, int], padding: str
):
    m, n = 48, 40
    a, b = operands(kind, turned, (m, n, k))
    bytes_ = kind is np.int8
    c = np.zeros((m, n), np.int32 if bytes_ else np.float32)
    acc = tl.int32 if bytes_ else tl.float32
    tiles = {"BM": 32, "BN": 32, "BK": 64, "TURNED": turned, "ACC": acc, "PADDING": padding}
    sizes = (m, n, k, a.shape[1], b.shape[1])
    compiled = agree(made, (2,), a, b, c, *sizes, *place, rtol=1e-4, atol=1e-3, **tiles)
    assert "B shared" in compiled.asm["llir"].splitlines()[0]


@pytest.mark.parametrize("turned", [False, True])
def test_descriptors_of_the_host(turned: bool):
    m, n, k = 96, 80, 176
    a, b = operands(np.float32, turned, (m, n, k))
    a, b = a[:, :-16], b[:, :-16]
    c = np.zeros((m, n), np.float32)
    blocks = ([64, 32], [64, 64]) if turned else ([32, 64], [64, 64])
    maps = [TensorDescriptor.from_tensor(x, s) for x, s in zip((a, b), blocks, strict=True)]
    maps.append(TensorDescriptor.from_tensor(c, [32, 64]))
    sizes = (m, n, k, 0, 0, 0)
    compiled = native(product, (2,), *maps, *sizes, 32, 64, 64, turned, tl.float32)
    np.testing.assert_allclose(c, a.T @ b.T if turned else a @ b, rtol=1e-4, atol=1e-3)
    plan = compiled.asm["llir"].splitlines()[0]
    assert ("A shared" if turned else "A in place, or shared") in plan and "B shared" in plan


def test_whole_blocks_are_moved_without_masks():
    """Bounds from below are tested once, as those from above are."""
    kinds = {"x": "*fp32", "z": "*fp32", "M": "i32", "N": "i32", "i": "i32"}
    source = ASTSource(doubled, kinds | {"B": "constexpr"}, {"B": 1024})
    text = tessera.compile(source, target=GPUTarget("cpu", "avx2", 1)).asm["llir"]
    assert "= load <8 x float>" in text and "@llvm.masked.load" in text


@tessera.jit
def doubled(x, z, M, N, i, B: tl.constexpr):
    a = tl.make_tensor_descriptor(x, [M, N], [N, 1], [2, B])
    b = tl.make_tensor_descriptor(z, [M, N], [N, 1], [2, B])
    b.store([i, 4], a.load([i, 4]) * 2)


@tessera.jit
def triangles(
    a, b, c, K, N, LOWER: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Masks whose last element is there while others are not."""
    rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        ks = k + tl.arange(0, BK)
        left = ks[None, :] <= rows[:, None] if LOWER else ks[None, :] >= rows[:, None]
        right = ks[:, None] >= columns[None, :] if LOWER else ks[:, None] - 9 >= 0
        x = tl.load(a + rows[:, None] * K + ks[None, :], mask=left, other=0.0)
        y = tl.load(b + ks[:, None] * N + columns[None, :], mask=right, other=0.0)
        acc = tl.dot(x, y, acc)
    tl.store(c + rows[:, None] * N + columns[None, :], acc)


@pytest.mark.parametrize("lower", [True, False])
def test_triangles(lower: bool):
    a, b, c = floats(128, 128), floats(128, 64, seed=1), np.zeros((128, 64), np.float32)
    native(triangles, (2,), a, b, c, 128, 64, lower, BM=64, BN=64, BK=32)
    left, right = (
        (np.tril(a), np.tril(b)) if lower else (np.triu(a), b * (np.arange(128) >= 9)[:, None])
    )
    np.testing.assert_allclose(c, left @ right, rtol=1e-4, atol=1e-3)


def test_panels_are_kept_for_several_columns_of_tiles():
    """Programs along rows of nine tiles, of which the panels of eight are kept; small steps keep fewer."""
    m, n, k = 128, 576, 64 * 64
    a, b, c = floats(m, k), floats(k, n, seed=1), np.zeros((m, n), np.float32)
    sizes = (m, n, k, k, n, 0, 0, 0)
    more = {"TURNED": False, "ACC": tl.float32, "PADDING": "zero"}
    large = native(made, (18,), a, b, c, *sizes, BM=64, BN=64, BK=64, **more)
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=2e-2)
    small = native(made, (18,), a, b, c, *sizes, BM=32, BN=32, BK=64, **more)
    step = 64 * 64 * 4
    assert large.metadata.scratch_bytes > 8 * 64 * step
    assert small.metadata.scratch_bytes < 8 * 64 * step // 2
