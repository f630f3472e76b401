"""Rings that the TMA unit fills and threads read: reads come before the arrival that gives a buffer back, with a
fence between them."""

# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import tessera
import tessera.language as tl
from tessera.analysis.provenance import buffer_of
from tessera.backends.nvidia import ptxas
from tessera.backends.nvidia.target import facts_for
from tessera.ir import Block, Module, Op, PassManager, Value, parse_module
from tessera.ops import (
    LocalAllocOp,
    LocalLoadOp,
    MbarrierArriveOp,
    MbarrierWaitOp,
    TensorCopyOp,
    WarpSpecializeOp,
    WgmmaOp,
)
from tessera.passes.gpu_mma.async_mma import async_mma
from tests.unit.pointer_tma_kit import compiled
from tests.unit.tensor_maps_kit import built
from tests.unit.transposed_operands_kit import columns_by_rows


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


def _filled(producer: Block) -> dict[Op | None, set[Op | None]]:
    """The buffers that the producer fills behind a wait for each row of barriers."""
    found: dict[Op | None, set[Op | None]] = {}
    row: Op | None = None
    for top in producer:
        for op in top.walk():
            if isinstance(op, MbarrierWaitOp):
                row = op.bars.op
            elif isinstance(op, TensorCopyOp):
                found.setdefault(row, set()).add(buffer_of(op.shared).op)
    return found


def _readers(block: Block) -> Iterator[tuple[MbarrierArriveOp, LocalLoadOp, bool]]:
    """(arrival, a read of the same block before it, whether it has come by then: a fence stands between them or in the
    arrival, or the arrival, a product of warpgroups or a write to shared memory needs its registers)."""
    for arrive in [op for op in block if isinstance(op, MbarrierArriveOp)]:
        fenced = arrive.proxy or arrive.fence
        needed: set[Value] = set()
        op = arrive.prev
        while op is not None:
            if isinstance(op, LocalLoadOp):
                yield arrive, op, fenced or op.result in arrive.after or op.result in needed
            fenced |= isinstance(op, MbarrierArriveOp) and (op.proxy or op.fence)
            if isinstance(op, WgmmaOp | LocalAllocOp) or needed & set(op.results):
                needed |= set(op.operands)
            op = op.prev


def reads(module: Module) -> tuple[int, int]:
    """(reads of rings by threads, those that the TMA unit may overtake)."""
    count = bad = 0
    for teams in [op for op in module.walk() if isinstance(op, WarpSpecializeOp)]:
        filled = _filled(teams.producer)
        for region in (teams.consumers, teams.transpose):
            blocks = [region, *[b for op in region for x in op.walk() for b in x.regions]]
            for block in blocks:
                for arrive, load, done in _readers(block):
                    if buffer_of(load.shared).op in filled.get(arrive.bars.op, ()):
                        count, bad = count + 1, bad + (not done)
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


def test_transpose_role() -> None:
    kind = "tensordesc<i8[{}, {}]>".format
    signature = {"a": kind(64, 128), "b": kind(64, 64), "c": "tensordesc<i32[128, 64]>"}
    signature |= {"tiles": "i32", "K": "i32"}
    constants: dict[str, Any] = {"BM": 128, "BN": 64, "BK": 64}
    assert checked(built(columns_by_rows, signature, constants, "simt", num_warps=8)) > 0


def test_clusters() -> None:
    constants = {"BM": 32, "BN": 32, "BK": 32, "B_COLUMNS": False}
    kernel = compiled(product, constants, num_warps=8, num_ctas=2)
    assert checked(kernel) > 0


def _order(**options: Any) -> list[str]:
    """What follows the last read of a ring in the code of a product of small tiles."""
    constants = {"BM": 32, "BN": 32, "BK": 32, "B_COLUMNS": False}
    kernel = compiled(product, constants, num_warps=8, **options)
    assert checked(kernel) == 2
    watched = r"ldmatrix|fence\.proxy\.async\.shared|ld\.volatile|bar\.warp\.sync|mbarrier\.arrive\.shared"
    order = re.findall(watched, kernel.asm["llir"])
    last = len(order) - 1 - order[::-1].index("ldmatrix")
    return order[last + 1 : last + 4]


def test_what_stands_between_the_reads_and_the_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _order() == ["ld.volatile", "bar.warp.sync", "mbarrier.arrive.shared"]
    monkeypatch.setenv("TESSERA_DISABLE", "awaited-reads")
    assert _order() == ["fence.proxy.async.shared", "bar.warp.sync", "mbarrier.arrive.shared"]


IN_PARTS = """
#ring = ll<[64,64] offset=[[0,1],[0,2],[0,4],[0,8],[0,16],[0,32],[1,0],[2,16],[4,32],[8,0],[16,0],[32,0]]>
#bars = ll<[4] offset=[[1],[2]]>
#acc = ll<[64,64] register=[[1,0],[0,1],[8,0],[16,0],[32,0]] lane=[[2,0],[4,0],[0,2],[0,4],[0,8]] warp=[[0,16],[0,32]]>
#b = ll<[64,64] register=[[1,0],[2,0],[0,1],[16,0],[32,0]] lane=[[4,0],[8,0],[0,2],[0,4],[0,8]] warp=[[0,16],[0,32]]>
module {num_warps=4} {
  func {name='in_parts'} (%slot: i32) {
    %one: i1 = const {value=True}
    %left: shared<64x64xfp8e4nv, #ring> = local_alloc _
    %ring: shared<3x64x64xfp8e4nv, #ring> = local_alloc _
    %empty: shared<4xi64, #bars> = local_alloc _
    %zero: tile<64x64xfp32, #acc> = const {value=float('0x0.0p+0')}
    %view: shared<64x64xfp8e4nv, #ring> = local_index %ring, %slot
    %b: tile<64x64xfp8e4nv, #b> = local_load %view, _
    FIRST
    mbarrier_arrive %empty, %slot, %one, [%view], [] {proxy=True}
    SECOND
    %s: tile<64x64xfp32, #acc> = wgmma_wait %t, []
    return []
  }
}
"""
PART = "%{} = wgmma %left, %b, %{} {{instruction='wgmma.m64k32.f32.e4m3.e4m3', warpgroups=[1, 1], transposed=True, {}}}"


@pytest.mark.parametrize("whole", [False, True])
def test_a_part_of_a_product_does_not_need_the_whole_tile(whole: bool) -> None:
    """A product in two parts, with an arrival between them or behind both: `after` names what it must wait for."""
    acc = ": tile<64x64xfp32, #acc>"
    first = PART.format(f"h{acc}", "zero", "part=[0, 2], asynchronous=True, pending=1")
    second = PART.format(f"t{acc}", "h", "part=[1, 2], pending=1")
    parts = (f"{first}\n    {second}", "") if whole else (first, second)
    module = parse_module(IN_PARTS.replace("FIRST", parts[0]).replace("SECOND", parts[1]))
    PassManager([async_mma.bind(facts=facts_for(90))], verify=True).run(module)
    (arrive,) = [op for op in module.walk() if isinstance(op, MbarrierArriveOp)]
    (load,) = [op for op in module.walk() if isinstance(op, LocalLoadOp)]
    assert not arrive.proxy
    assert list(arrive.after) == ([] if whole else [load.result])


def test_what_needs_a_tile_is_found_where_paths_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value on the way is looked at once: paths through a sort are more than a compiler can follow."""
    tile = ": tile<64x64xfp8e4nv, #b>"
    steps = [
        f"%m{i}{tile} = mul %x{i}, %x{i}\n    %x{i + 1}{tile} = add %x{i}, %m{i}" for i in range(12)
    ]
    text = "\n    ".join([f"%x0{tile} = add %b, %b", *steps, "local_store %x12, %left"])
    module = parse_module(
        IN_PARTS.replace("FIRST", text).replace("SECOND\n    %s", "%s").replace("%t", "%zero")
    )
    looked_at: list[Value] = []
    users = Value.users
    monkeypatch.setattr(Value, "users", lambda v: looked_at.append(v) or users(v))
    PassManager([async_mma.bind(facts=facts_for(90))]).run(module)
    (arrive,) = [op for op in module.walk() if isinstance(op, MbarrierArriveOp)]
    assert not arrive.proxy and not list(arrive.after)
    assert len(looked_at) < 2000


# --- machine code --------------------------------------------------------------------------------------------------
WORDS = re.compile(r"/\* 0x([0-9a-f]{16}) \*/")
TEXT = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?);")


def _on_their_way(cubin: bytes) -> tuple[int, int]:
    """(arrivals that give buffers back, those that are issued while a read of shared memory is on its way). A read has
    come when somebody waits for its scoreboard, or for that of a later read."""
    code = ptxas.disassemble(cubin, ["-hex"])
    words = [int(x, 16) for x in WORDS.findall(code)]
    count = bad = 0
    pending: list[int] = []  # scoreboards of reads, 7: none
    for text, high in zip(TEXT.findall(code), words[1::2], strict=True):
        board, waits = high >> (110 - 64) & 7, high >> (116 - 64) & 63
        for number, mine in reversed(list(enumerate(pending))):
            if mine < 6 and waits >> mine & 1:
                del pending[: number + 1]
                break
        if text.startswith(("LDSM", "LDS")):
            pending.append(board)
        elif "SYNCS.ARRIVE" in text and "A1T0" in text:
            count, bad = count + 1, bad + bool(pending)
    return count, bad


@pytest.mark.skipif(
    sys.platform != "linux", reason="NVIDIA publishes nvdisasm for Linux and Windows only"
)
@pytest.mark.parametrize(
    ("elem", "tile", "warps"),
    [
        ("fp16", (16, 32, 32), 8), ("bf16", (32, 32, 32), 4), ("fp16", (64, 32, 64), 8), ("fp8e4nv", (32, 32, 64), 8),
        ("fp32", (128, 64, 32), 4), ("fp8e4nv", (128, 128, 64), 8),
    ],
)  # fmt: skip
def test_machine_code(elem: str, tile: tuple[int, int, int], warps: int) -> None:
    constants = {"BM": tile[0], "BN": tile[1], "BK": tile[2], "B_COLUMNS": False}
    kernel = compiled(product, constants, elem=elem, result="fp32", target="cuda", num_warps=warps)
    count, bad = _on_their_way(kernel.asm["cubin"])
    assert count > 0
    assert bad == 0
