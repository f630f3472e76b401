"""A warp role that turns an operand for the others, by the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.interp import run
from tessera.ir import parse_module
from tessera.layout import back, reordered, shared_swizzled
from tessera.ops import LocalLoadOp, MbarrierArriveOp, WarpSpecializeOp, WgmmaOp
from tests.unit.tensor_maps_kit import built, flat
from tests.unit.transposed_operands_kit import columns_by_rows, transposed_product


@pytest.mark.parametrize(("m", "n"), [(128, 64), (64, 128), (256, 128)])
@pytest.mark.parametrize("depth", [0, 1, 2, 3, 8])
def test_teams_turn_and_multiply(m: int, n: int, depth: int) -> None:
    kind = "tensordesc<i8[{}, {}]>".format
    signature = {"a": kind(64, m), "b": kind(64, n), "c": f"tensordesc<i32[{m}, {n}]>"}
    signature |= {"tiles": "i32", "K": "i32"}
    constants: dict[str, Any] = {"BM": m, "BN": n, "BK": 64}
    compiled = built(columns_by_rows, signature, constants, "simt", num_warps=8, num_stages=3)
    module = parse_module(compiled.asm["gir"])
    (teams,) = [op for op in module.walk() if isinstance(op, WarpSpecializeOp)]
    inside = [op for top in teams.transpose for op in top.walk()]
    (read,) = [op for op in inside if isinstance(op, LocalLoadOp)]
    assert read.result.type.layout.size("warp") == teams.transpose_warps == 4
    rng = np.random.default_rng(depth)
    a, b = (rng.integers(-9, 10, (max(depth, 1) * 64, x)).astype(np.int8) for x in (3 * m, n))
    c = np.full((3 * m, n), -1, np.int32)
    args: list[Any] = [*flat(a, b, c), 3, 64 * depth]
    run(module, (2,), args)
    want = a.T.astype(np.int64) @ b.astype(np.int64) if depth else np.zeros_like(c)
    np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize("warps", [4, 8])
def test_tiles_are_given_back_when_what_was_read_is_used(warps: int) -> None:
    """A read to registers may still be under way when the next op is issued."""
    kind = "tensordesc<i8[{}, {}]>".format
    signature = {"a": kind(64, 128), "b": kind(64, 64), "c": "tensordesc<i32[128, 64]>"}
    signature |= {"tiles": "i32", "K": "i32"}
    constants: dict[str, Any] = {"BM": 128, "BN": 64, "BK": 64}
    compiled = built(columns_by_rows, signature, constants, "simt", num_warps=warps, num_stages=3)
    ops = list(parse_module(compiled.asm["gir"]).walk())
    (product,) = [op for op in ops if isinstance(op, WgmmaOp)]
    assert product.parent is not None
    inside = list(product.parent)
    arrivals = [i for i, op in enumerate(inside) if isinstance(op, MbarrierArriveOp)]
    assert arrivals and min(arrivals) > inside.index(product)


def test_both_operands_go_in_the_order_that_is_read_best() -> None:
    """Along K and along the columns; behind it lies what the instruction reads."""
    compiled = transposed_product(256, 128)
    ops = list(parse_module(compiled.asm["gir"]).walk())
    (product,) = [op for op in ops if isinstance(op, WgmmaOp)]
    assert product.depth == (0, 3, 1, 2, 4, 5)
    assert product.columns == (1, 2, 3, 0, 4, 5, 6)
    right, left = product.right.type.layout, product.left.type.layout
    plain = reordered(right, (back(product.depth), back(product.columns)))
    assert plain == shared_swizzled((64, 128), (0, 1), 8, 64)
    assert left.bases("register")[:2] == ((0, 1), (0, 8))
    assert left.bases("lane")[:2] == ((0, 2), (0, 4))
