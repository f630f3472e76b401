"""Dots that no matrix instruction computes: FMAs on operands in the buffers that loads fill, or in scratch memory."""

# pyright: basic
from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.ir.applications import Session
from tessera.runtime.driver import driver
from tessera.tools.tensor_descriptor import TensorDescriptor
from tests.simt_kit import Compiled

POINTERS = {"a": "*fp32", "b": "*fp32", "c": "*fp32", "k": "i32"}
CONSTANTS = ("M", "N", "K", "TURNED", "COMPUTED")


@tessera.jit
def product(
    a, b, c, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, TURNED: tl.constexpr, COMPUTED: tl.constexpr
):  # fmt: skip
    k = tl.multiple_of(k, 4)
    rows, columns, steps = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        at = start + steps
        x = tl.load(a + rows[:, None] * k + at[None, :], at[None, :] < k, other=0.0)
        if TURNED:
            stored = tl.load(b + columns[:, None] * k + at[None, :], at[None, :] < k, other=0.0)
            y = tl.trans(stored)
        else:
            y = tl.load(b + at[:, None] * N + columns[None, :], at[:, None] < k, other=0.0)
        if COMPUTED:
            y = y * 2
        total = tl.dot(x, y, total, input_precision="ieee")
    tl.store(c + rows[:, None] * N + columns[None, :], total)


def build(shape: tuple[int, int, int], **options: object) -> Compiled:
    given = {"TURNED": False, "COMPUTED": False, **dict(zip("MNK", shape, strict=True)), **options}
    constants = {n: given.pop(n) for n in CONSTANTS}
    signature = {**POINTERS, **dict.fromkeys(CONSTANTS, "constexpr")}
    return Compiled(product, signature, constants, **{"num_warps": 4, "num_stages": 2, **given})


@pytest.mark.parametrize("shape", [(32, 32, 32), (16, 64, 16), (64, 16, 32), (128, 128, 32)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("cc", [80, 90])
@pytest.mark.parametrize("off", ["", "fma-in-place"])
def test_products(
    shape: tuple[int, int, int], turned: bool, cc: int, off: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESSERA_DISABLE", off)
    kernel = build(shape, TURNED=turned, cc=cc, pointer_maps=False)
    m, n, _ = shape
    for k in (4, 32, 100):
        rng = np.random.default_rng(k)
        x, y = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
        out = np.zeros((m, n), np.float32)
        kernel.run(x, np.ascontiguousarray(y.T) if turned else y, out, k)
        np.testing.assert_allclose(out, x @ y, rtol=1e-4, atol=1e-4)
    in_place = off == "" and m < 128
    assert not in_place or kernel.count(r"cp\.async\.c") > 0
    assert (kernel.count(r"st\.shared") == 0) == in_place


def test_what_is_computed_goes_through_scratch_memory() -> None:
    kernel = build((32, 32, 32), COMPUTED=True, pointer_maps=False)
    x, y = np.ones((32, 64), np.float32), np.ones((64, 32), np.float32)
    out = np.zeros((32, 32), np.float32)
    kernel.run(x, y, out, 64)
    assert (out == 128).all()
    assert kernel.count(r"st\.shared") > 0


def test_eight_results_of_a_thread_read_four_columns_at_once() -> None:
    """Two rows of A and four columns of B: 16 bytes of each row for four steps, and 16 bytes of B for each step."""
    kernel = build((32, 32, 32), pointer_maps=False)
    assert kernel.count(r"ld\.shared\.v4") == 2 * 32 // 4 + 32
    assert kernel.count(r"ld\.shared\.v2") == 0
    assert kernel.count(r"\.minnctapersm 6") == 1  # 768 threads
    with Session("k", frozenset({"raise-occupancy"})):
        assert build((32, 32, 32), pointer_maps=False).count(r"\.minnctapersm 6") == 0


@tessera.jit
def halves(a, b, c, K, M: tl.constexpr, D: tl.constexpr):
    total = tl.zeros((M, M), tl.float16)
    for k in range(0, K, D):
        total = tl.dot(a.load([0, k]), b.load([k, 0]), total, out_dtype=tl.float16)
    c.store([0, 0], total)


@pytest.mark.parametrize("num_warps", [1, 4])
def test_buffers_are_free_when_sums_of_16_bits_are_there(num_warps: int) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-2, 2, s).astype(np.float16) for s in ((32, 64), (64, 32)))
    out = np.zeros((32, 32), np.float16)
    blocks = [(x, [32, 16]), (y, [16, 32]), (out, [32, 32])]
    driver.set_active("simt")
    try:
        halves[(1,)](
            *[TensorDescriptor.from_tensor(*given) for given in blocks], 64, 32, 16,
            num_warps=num_warps, num_stages=3, disable_optimizations="mma,wgmma",
        )  # fmt: skip
    finally:
        driver.reset_active()
    assert np.array_equal(out, x @ y)
