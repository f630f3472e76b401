"""One loaded tile is an operand of two products that read it from different buffers of shared memory."""

# pyright: basic
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.runtime.driver import driver


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    driver.set_active("simt")
    yield
    driver.reset_active()


@tessera.jit
def both_ways(
    p, v, x, sums, products, n,
    Q: tl.constexpr, D: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`x` as it is, in a loop, and transposed."""
    q, d = tl.arange(0, Q), tl.arange(0, D)
    tile = tl.load(x + q[:, None] * D + d)
    weights = tl.load(p + q[:, None] * Q + q)
    acc = tl.zeros([Q, D], ACC)
    for _ in range(n):
        acc = tl.dot(weights, tile, acc, out_dtype=ACC)
    tl.store(sums + q[:, None] * D + d, acc)
    values = tl.load(v + q[:, None] * D + d)
    turned = tl.dot(values, tl.trans(tile), input_precision=PRECISION, out_dtype=ACC)
    tl.store(products + q[:, None] * Q + q, turned)


@pytest.mark.parametrize(
    ("dtype", "count", "precision", "instructions"),
    [
        (np.int8, 1, "tf32", 2),
        (np.float32, 1, "tf32", 2),
        (np.float32, 2, "tf32x3", 1),  # the loop's buffer is not there after the loop
    ],
)
def test_a_tile_is_read_both_ways(dtype: type, count: int, precision: str, instructions: int):
    """The first product has the tile written along K, the second reads it as it lies in memory: of other than 16-bit
    elements an instruction of warpgroups reads only rows along K."""
    rng = np.random.default_rng(0)
    p, v, x = (rng.integers(-3, 4, (64, n)).astype(dtype) for n in (64, 32, 32))
    acc = np.int32 if dtype is np.int8 else np.float32
    sums, products = np.zeros((64, 32), acc), np.zeros((64, 64), acc)
    out = tl.int32 if dtype is np.int8 else tl.float32
    times = tl.constexpr(1) if count == 1 else count
    found = both_ways[(1,)](p, v, x, sums, products, times, 64, 32, out, precision)
    assert found.asm["gir"].count("= wgmma %") == instructions
    np.testing.assert_array_equal(sums, count * (p.astype(acc) @ x.astype(acc)))
    np.testing.assert_array_equal(products, v.astype(acc) @ x.T.astype(acc))
