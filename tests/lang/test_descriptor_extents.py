"""Descriptors of arrays whose extents a kernel loads: groups of different sizes, whose rows may end anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl


@tessera.jit
def grouped(a, b, c, sizes, groups, LD: tl.constexpr, ROWS: tl.constexpr, B: tl.constexpr):
    """c_g = a_g b_gᵀ for groups of a few tiles, which programs share."""
    tile, last = tl.program_id(0), 0
    for g in range(groups):
        m, n, k = tl.load(sizes + 3 * g), tl.load(sizes + 3 * g + 1), tl.load(sizes + 3 * g + 2)
        across = tl.cdiv(n, B)
        tiles = tl.cdiv(m, B) * across
        if tile >= last and tile < last + tiles:
            start = g * ROWS * LD
            left = tl.make_tensor_descriptor(a + start, [m, k], [LD, 1], [B, B])
            right = tl.make_tensor_descriptor(b + start, [n, k], [LD, 1], [B, B])
            out = tl.make_tensor_descriptor(c + start, [m, n], [LD, 1], [B, B])
            while tile >= last and tile < last + tiles:
                i, j = (tile - last) // across * B, (tile - last) % across * B
                acc = tl.zeros((B, B), tl.float32)
                for step in range(0, tl.cdiv(k, B)):
                    x, y = left.load([i, step * B]), right.load([j, step * B])
                    acc = tl.dot(x, y.T, acc)
                out.store([i, j], acc.to(c.dtype.element_ty))
                tile += tl.num_programs(0)
        last += tiles


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize(
    "sizes", [[(32, 48, 40), (16, 64, 8)], [(33, 47, 41), (64, 64, 64)], [(5, 8, 16), (64, 1, 62)]]
)
def test_products_of_groups(device: Any, dtype: str, sizes: list[tuple[int, int, int]]) -> None:
    rng = np.random.default_rng(0)
    rows, width = 64, 64
    a, b = (rng.integers(-3, 4, (len(sizes), rows, width)).astype(np.float32) for _ in range(2))
    out = device.full((len(sizes), rows, width), 7.0, dtype)
    where = device.array(np.array(sizes, np.int32))
    args = device.array(a, dtype), device.array(b, dtype), out, where, len(sizes)
    grouped[(2,)](*args, LD=width, ROWS=rows, B=16)
    want = np.full(a.shape, 7.0, np.float32)
    for g, (m, n, k) in enumerate(sizes):
        want[g, :m, :n] = a[g, :m, :k] @ b[g, :n, :k].T
    np.testing.assert_array_equal(device.numpy(out), want)
