"""Rings that the copy engine fills and threads read: reads come before the arrival that gives a buffer back, with a
fence between them."""

# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import tessera
import tessera.language as tl
from tessera.ir import Block, Module, Op, Value, parse_module
from tessera.ops import (
    ByteBarrierArriveOp,
    ByteBarrierWaitOp,
    LocalIndexOp,
    LocalLoadOp,
    LocalTransOp,
    TensorCopyOp,
    WarpSpecializeOp,
)
from tests.unit.test_promote import compiled
from tests.unit.test_tensor_maps import built
from tests.unit.test_turners import columns_by_rows


@tessera.jit
def product(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, B_COLUMNS: tl.constexpr
):  # fmt: skip
    rows = (tl.program_id(0) * BM + tl.arange(0, BM)) % M
    cols = (tl.program_id(1) * BN + tl.arange(0, BN)) % N
    ks = tl.arange(0, BK)
    x = a + rows[:, None] * K + ks[None, :]
    y = b + (ks[:, None] + cols[None, :] * K if B_COLUMNS else ks[:, None] * N + cols[None, :])
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(x), tl.load(y), acc)
        x += BK
        y += BK if B_COLUMNS else BK * N
    rows, cols = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    tl.store(c + rows[:, None] * N + cols[None, :], acc.to(c.dtype.element_ty))


@tessera.jit
def scaled(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """An operand that is computed with, and one that is not."""
    rows = (tl.program_id(0) * BM + tl.arange(0, BM)) % M
    cols = (tl.program_id(1) * BN + tl.arange(0, BN)) % N
    ks = tl.arange(0, BK)
    x, y = a + rows[:, None] * K + ks[None, :], b + ks[:, None] * N + cols[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot((tl.load(x) * 0.5).to(a.dtype.element_ty), tl.load(y), acc)
        x += BK
        y += BK * N
    rows, cols = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    tl.store(c + rows[:, None] * N + cols[None, :], acc)


def _root(v: Value) -> Op | None:
    while isinstance(v.op, LocalTransOp | LocalIndexOp):
        v = v.op.operands[0]
    return v.op


def _filled(producer: Block) -> dict[Op | None, set[Op | None]]:
    """The buffers that the producer fills behind a wait for each row of barriers."""
    found: dict[Op | None, set[Op | None]] = {}
    row: Op | None = None
    for top in producer:
        for op in top.walk():
            if isinstance(op, ByteBarrierWaitOp):
                row = op.bars.op
            elif isinstance(op, TensorCopyOp):
                found.setdefault(row, set()).add(_root(op.shared))
    return found


def _readers(block: Block) -> Iterator[tuple[ByteBarrierArriveOp, LocalLoadOp, bool]]:
    """(arrival, a read of the same block before it, whether a fence stands between them or in the arrival)."""
    for arrive in [op for op in block if isinstance(op, ByteBarrierArriveOp)]:
        fenced = arrive.proxy or arrive.fence
        op = arrive.prev
        while op is not None:
            if isinstance(op, LocalLoadOp):
                yield arrive, op, fenced
            fenced |= isinstance(op, ByteBarrierArriveOp) and (op.proxy or op.fence)
            op = op.prev


def reads(module: Module) -> tuple[int, int]:
    """(reads of rings by threads, those that the copy engine may overtake)."""
    count = bad = 0
    for teams in [op for op in module.walk() if isinstance(op, WarpSpecializeOp)]:
        filled = _filled(teams.producer)
        for region in (teams.consumers, teams.turners):
            blocks = [region, *[b for op in region for x in op.walk() for b in x.regions]]
            for block in blocks:
                for arrive, load, fenced in _readers(block):
                    if _root(load.shared) in filled.get(arrive.bars.op, ()):
                        count, bad = count + 1, bad + (not fenced)
    return count, bad


def checked(kernel: Any) -> int:
    count, bad = reads(parse_module(kernel.asm["gir"]))
    assert bad == 0
    return count


TILES = [
    (16, 16, 16), (16, 32, 32), (32, 32, 32), (64, 32, 64), (64, 16, 32), (128, 64, 64),
]  # fmt: skip


@pytest.mark.parametrize("warps", [4, 8, 16])
@pytest.mark.parametrize("tile", TILES)
def test_products_of_small_tiles(tile: tuple[int, int, int], warps: int) -> None:
    constants = {"BM": tile[0], "BN": tile[1], "BK": tile[2], "B_COLUMNS": False}
    kernel = compiled(product, constants, num_warps=warps, num_stages=2 + warps // 8)
    count = checked(kernel)
    matrices = "mma.sync" in kernel.asm["llir"]
    assert count == 2 * matrices  # instructions of warpgroups read by themselves


@pytest.mark.parametrize(
    ("elem", "b_columns"), [("fp32", False), ("fp32", True), ("fp8e4nv", False), ("bf16", False)]
)
@pytest.mark.parametrize(("warps", "stages"), [(4, 3), (8, 4)])
def test_operands_of_warpgroups_in_registers(
    elem: str, b_columns: bool, warps: int, stages: int
) -> None:
    constants = {"BM": 128, "BN": 64, "BK": 64, "B_COLUMNS": b_columns}
    kernel = compiled(
        product, constants, elem=elem, result="fp32", num_warps=warps, num_stages=stages
    )
    through_registers = elem in ("fp32", "fp8e4nv") and not b_columns
    assert checked(kernel) > 0 or not through_registers
    scaled_kernel = compiled(
        scaled, {"BM": 64, "BN": 64, "BK": 64}, elem=elem, result="fp32", num_warps=warps
    )
    assert checked(scaled_kernel) > 0


def test_turners() -> None:
    kind = "tensordesc<i8[{}, {}]>".format
    signature = {"a": kind(64, 128), "b": kind(64, 64), "c": "tensordesc<i32[128, 64]>"}
    signature |= {"tiles": "i32", "K": "i32"}
    constants: dict[str, Any] = {"BM": 128, "BN": 64, "BK": 64}
    assert checked(built(columns_by_rows, signature, constants, "simt", num_warps=8)) > 0


def test_clusters() -> None:
    constants = {"BM": 32, "BN": 32, "BK": 32, "B_COLUMNS": False}
    kernel = compiled(product, constants, num_warps=8, num_ctas=2)
    assert checked(kernel) > 0


def test_the_fence_stands_behind_the_reads_in_the_code() -> None:
    constants = {"BM": 32, "BN": 32, "BK": 32, "B_COLUMNS": False}
    code = compiled(product, constants, num_warps=8).asm["llir"]
    order = re.findall(
        r"ldmatrix|fence\.proxy\.async\.shared|bar\.warp\.sync|mbarrier\.arrive\.shared", code
    )
    last = len(order) - 1 - order[::-1].index("ldmatrix")
    assert order[last + 1 : last + 4] == [
        "fence.proxy.async.shared",
        "bar.warp.sync",
        "mbarrier.arrive.shared",
    ]
