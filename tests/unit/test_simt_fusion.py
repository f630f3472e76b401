"""The simulator computes sums of products in one rounding, as GPUs do, so that what relies on two fails here too."""

# pyright: basic
from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.lang.libdevice_kit import UNARY, error, unary_case
from tests.simt_kit import Compiled

N = 128
SIGNATURE = {"x": "*fp32", "y": "*fp32", "z": "*fp32", "out": "*fp32", "F": "constexpr"}


@tessera.jit
def sum_of_product(x, y, z):
    return x * y + z


@tessera.jit
def sum_with_product(x, y, z):
    return z + x * y


@tessera.jit
def difference_of_product(x, y, z):
    return x * y - z


@tessera.jit
def difference_with_product(x, y, z):
    return z - x * y


@tessera.jit
def sum_of_negative_product(x, y, z):
    return -(x * y) + z


@tessera.jit
def difference_with_product_times_minus_one(x, y, z):
    return z - (x * y) * -1.0


@tessera.jit
def three_kernel(x, y, z, out, F: tl.constexpr):
    i = tl.arange(0, 128)
    tl.store(out + i, F(tl.load(x + i), tl.load(y + i), tl.load(z + i)))


def operands():
    rng = np.random.default_rng(3)
    x, y = (rng.standard_normal(N).astype(np.float32) for _ in range(2))
    return x, y, -(x * y)  # what is left is what the product's rounding lost


CASES = [
    (sum_of_product, 1, 1), (sum_with_product, 1, 1), (difference_of_product, 1, -1), (difference_with_product, -1, 1),
    (sum_of_negative_product, -1, 1), (difference_with_product_times_minus_one, 1, 1),
]  # fmt: skip


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("function", "of_product", "of_z"), CASES)
def test_sums_of_products(function, of_product, of_z, fused) -> None:
    x, y, z = operands()
    z = (z * (of_product * of_z)).astype(np.float32)
    out = np.zeros(N, np.float32)
    compiled = Compiled(three_kernel, SIGNATURE, {"F": function}, enable_fp_fusion=fused)
    compiled.run(x, y, z, out)
    exact = of_product * (x.astype(np.float64) * y) + of_z * z.astype(np.float64)
    assert np.count_nonzero(exact) > N / 2
    assert (out == (exact.astype(np.float32) if fused else 0)).all()


@tessera.jit
def one_kernel(x, out, F: tl.constexpr):
    i = tl.arange(0, 128)
    tl.store(out + i, F(tl.load(x + i)))


@pytest.mark.parametrize("name", ["erfc", "erfcx", "normcdf"])
def test_functions_that_need_a_rounded_product(name: str) -> None:
    x, want = unary_case(name, "fp32", N)
    out = np.zeros(N, np.float32)
    function = getattr(tl.extra.libdevice, name)
    Compiled(one_kernel, {"x": "*fp32", "out": "*fp32", "F": "constexpr"}, {"F": function}).run(
        x, out
    )
    bounds = UNARY[name][2]
    assert error(out, want).max() <= bounds[0]
