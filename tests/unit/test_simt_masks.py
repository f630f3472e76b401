"""Masks that are the same for all threads of a register are known when a kernel is compiled."""

# pyright: basic
from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.simt_kit import Compiled

C = "constexpr"


@tessera.jit
def masked_kernel(x, out, END: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i, i < END, other=7.0)
    tl.store(out + i, v + 1)
    tl.store(out + N + i, v, i < END)
    tl.store(out + 2 * N + i, v, i >= END)
    tl.store(out + 3 * N + i, v, (i > END) & (i <= N - 2))


@pytest.mark.parametrize("end", [0, 1, 255, 256, 257, 768, 770, 1023, 1024, 2000])
def test_masks_that_no_thread_passes(end):
    """A register whose elements are all behind the end is neither loaded nor stored."""
    found = Compiled(
        masked_kernel, {"x": "*fp32", "out": "*fp32", "END": C, "N": C}, {"END": end, "N": 1024}, num_warps=2
    )  # fmt: skip
    x = np.arange(1, 1025, dtype=np.float32)
    out = np.zeros(4096, np.float32)
    found.run(x, out)
    i = np.arange(1024)
    v = np.where(i < end, x, 7)
    masks = [i < end, i >= end, (i > end) & (i <= 1022)]
    wanted = [v + 1, *(np.where(m, v, 0) for m in masks)]
    np.testing.assert_array_equal(out.reshape(4, -1), wanted)
    if end % 256 == 0:
        assert found.count(r"ld\.global\.v4") == min(end, 1024) // 256
        assert found.count(r"@%p\d+ ld\.global") == 0


@tessera.jit
def several_rows_kernel(x, out, WIDTH: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, 4)[:, None], tl.arange(0, N)[None, :]
    v = tl.load(x + i * WIDTH + j, j < WIDTH, other=0.0)
    total = tl.sum(v, 1)[:, None]
    tl.store(out + i * WIDTH + j, v - total, j < WIDTH)


@pytest.mark.parametrize("width", [70, 96, 128, 192])
@pytest.mark.parametrize("warps", [1, 4])
def test_masks_of_rows_that_are_padded(width, warps):
    signature = {"x": "*fp32", "out": "*fp32", "WIDTH": C, "N": C}
    found = Compiled(several_rows_kernel, signature, {"WIDTH": width, "N": 256}, num_warps=warps)
    x = np.arange(4 * width, dtype=np.float32).reshape(4, width) % 5
    out = np.zeros_like(x)
    found.run(x, out)
    np.testing.assert_array_equal(out, x - x.sum(1, keepdims=True))
