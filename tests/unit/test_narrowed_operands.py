"""Operands that are cast to a narrower type for an MMA alone keep how the cast rounds, transposed, too."""

# annotations of kernels name dtypes
# pyright: basic, reportInvalidTypeForm=false, reportUndefinedVariable=false
from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.runtime.driver import driver


@tessera.jit
def rows_of(
    h, q, out, R: tl.constexpr, T: tl.constexpr, M: tl.constexpr, D: tl.constexpr, B: tl.constexpr
):
    r, d, c = tl.arange(0, M), tl.arange(0, D), tl.arange(0, B)
    x = tl.load(q + r[:, None] * D + d[None, :])
    if T:
        s = tl.load(h + c[:, None] * D + d[None, :]).to(tl.float16, fp_downcast_rounding=R).T
    else:
        s = tl.load(h + d[:, None] * B + c[None, :]).to(tl.float16, fp_downcast_rounding=R)
    tl.store(out + r[:, None] * B + c[None, :], tl.dot(x, s))


@pytest.mark.parametrize("rounding", ["rtne", "rtz"])
@pytest.mark.parametrize("transposed", [False, True])
def test_casts_of_operands_round_as_they_say(rounding: str, transposed: bool) -> None:
    driver.set_active("simt")
    try:
        h = np.random.default_rng(5).standard_normal((32, 16)).astype(np.float32)
        given = np.ascontiguousarray(h.T) if transposed else h
        out = np.zeros((32, 16), np.float32)
        rows_of[(1,)](
            given, np.eye(32, dtype=np.float16), out, rounding, transposed, 32, 32, 16, num_warps=1
        )
    finally:
        driver.reset_active()
    wanted = h.astype(np.float16)
    if rounding == "rtz":
        wanted = np.where(abs(wanted) > abs(h), np.nextafter(wanted, np.float16(0)), wanted)
    np.testing.assert_array_equal(out, wanted)
