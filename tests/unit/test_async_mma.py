"""MMAs of warpgroups keep their buffers until they are waited for, as far as shared memory allows."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.runtime.driver import driver


@tessera.jit
def greater(a, b, c, d, out, M: tl.constexpr, K: tl.constexpr, LOOP: tl.constexpr):
    m, k = tl.arange(0, M), tl.arange(0, K)
    rows, columns = m[:, None] * K + k[None, :], k[:, None] * M + m[None, :]
    found = tl.full((M, M), -1e9, tl.float32)
    for i in range(LOOP):
        first = tl.dot(tl.load(a + i + rows), tl.load(b + columns))
        second = tl.dot(tl.load(c + i + rows), tl.load(d + columns))
        found = tl.maximum(found, tl.maximum(first, second))
    tl.store(out + m[:, None] * M + m[None, :], found)


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    driver.set_active("simt")
    yield
    driver.reset_active()


@pytest.mark.parametrize("loop", [1, 2])
@pytest.mark.parametrize(("depth", "fits"), [(256, True), (512, False)])
def test_products_give_way_to_buffers(depth: int, fits: bool, loop: int):
    """Two products take 128 and 256 KB of operands at a time, and a CTA has 227."""
    r = np.random.default_rng(0)
    a, c = (r.integers(-2, 3, 64 * depth + loop).astype(np.float16) for _ in range(2))
    b, d = (r.integers(-2, 3, (depth, 64)).astype(np.float16) for _ in range(2))
    out = np.zeros((64, 64), np.float32)
    found = greater[(1,)](
        a, b, c, d, out, 64, depth, loop, num_warps=4, num_stages=1, pointer_maps=False
    )
    parts = [
        x[i : i + 64 * depth].reshape(64, depth).astype(np.float32) @ y.astype(np.float32)
        for x, y in ((a, b), (c, d))
        for i in range(loop)
    ]
    np.testing.assert_array_equal(out, np.max(parts, axis=0))
    assert "wgmma" in found.asm["gir"]
    assert ("pending=1" in found.asm["gir"]) == fits
    told = [x for x in found.metadata.remarks if "before other buffers are filled" in x]
    assert len(told) == (not fits)
