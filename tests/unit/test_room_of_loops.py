"""The buffers of a loop leave room for what else the loop keeps in shared memory."""

# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tessera.ir import parse_module
from tessera.ops import LocalAllocOp


@tessera.jit
def three_results(a, b, c, d, o1, o2, o3, tiles, N: tl.constexpr):
    """Tiles of three products, each stored by the TMA unit, which reads them while the next ones are computed."""
    for t in range(tl.program_id(0), tiles, tl.num_programs(0)):
        x = a.load([t * N, 0])
        o1.store([t * N, 0], tl.dot(x, b.load([t * N, 0]), input_precision="tf32"))
        o2.store([t * N, 0], tl.dot(x, c.load([t * N, 0]), input_precision="tf32"))
        o3.store([t * N, 0], tl.dot(x, d.load([t * N, 0]), input_precision="tf32"))


@tessera.jit
def stores_around(a, b, o1, o2, o3, tiles, steps, N: tl.constexpr):
    """Tiles that are stored by the TMA unit, which reads them while the inner loop runs again."""
    cols = tl.arange(0, N)
    for t in range(tl.program_id(0), tiles, tl.num_programs(0)):
        total = tl.zeros((N, N), tl.float32)
        for k in range(0, steps * N, N):
            x = tl.load(a + (t * N + cols)[:, None] * N + (k + cols)[None, :])
            y = tl.load(b + (k + cols)[:, None] * N + cols[None, :])
            total = tl.dot(x, y, total)
        o1.store([t * N, 0], total.to(tl.float16))
        o2.store([t * N, 0], (total * 2).to(tl.float16))
        o3.store([t * N, 0], (total * 3).to(tl.float16))


@tessera.jit
def three_peaks(a, b, c, d, o1, o2, o3, tiles, steps):
    """Three products of a tile. The reductions and conversions behind the inner loop, of up to 1024 bytes of scratch
    each, keep their bytes for all of the outer loop."""
    rows = tl.arange(0, 64)
    for t in range(tl.program_id(0), tiles, tl.num_programs(0)):
        first = tl.zeros((64, 128), tl.float32)
        second = tl.zeros((64, 128), tl.float32)
        third = tl.zeros((64, 128), tl.float32)
        for k in range(steps):
            x = a.load([k * 64, t * 64]).T
            first = tl.dot(x, b.load([0, k * 64]).T, first, input_precision="tf32")
            second = tl.dot(x, c.load([0, k * 64]).T, second, input_precision="tf32")
            third = tl.dot(x, d.load([0, k * 64]).T, third, input_precision="tf32")
        tl.store(o1 + t * 64 + rows, tl.argmax(first, 1))
        tl.store(o2 + t * 64 + rows, tl.argmax(second, 1))
        tl.store(o3 + t * 64 + rows, tl.argmax(third, 1))


@tessera.jit
def sums_behind(a, b, y, out, tiles, steps, n, N: tl.constexpr):
    """A loop that streams behind one whose tiles a producer copies, which may already copy those of the next tile."""
    at, rows = tl.arange(0, N), tl.arange(0, 128)
    for t in range(tl.program_id(0), tiles, tl.num_programs(0)):
        total = tl.zeros((128, 256), tl.float32)
        for k in range(steps):
            total = tl.dot(a.load([t * 128, k * 64]), b.load([k * 64, 0]), total)
        sums = tl.zeros((N,), tl.float32)
        for j in range(0, n, N):
            sums += tl.load(y + j + at)
        tl.store(out + t * 128 + rows, tl.sum(total, 1) + tl.sum(sums))


@pytest.mark.parametrize(("n", "slots"), [(32, 3), (64, 2)])
def test_stores_of_the_tma_unit_take_room(
    n: int, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four rings of three 64x64 buffers and three results are 245,760 bytes; an SM has 232,448. (Two warps would fill
    buffers again behind their reads, and do with one less for another reason.)"""
    monkeypatch.setenv("TESSERA_STRICT", "1")
    monkeypatch.setenv("TESSERA_DISABLE", "refill-in-place")
    tensor = f"tensordesc<fp32[{n}, {n}]>"
    signature = dict.fromkeys(("a", "b", "c", "d", "o1", "o2", "o3"), tensor) | {"tiles": "i32"}
    source = ASTSource(three_results, signature, {"N": n})
    options = {"num_stages": 3, "num_warps": 2}  # too few for MMAs of warpgroups
    kernel = tessera.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert kernel.metadata.shared <= 232448
    allocs = [op for op in parse_module(kernel.asm["gir"]).walk() if isinstance(op, LocalAllocOp)]
    tiles = [a.bytes // (4 * n * n) for a in allocs if a.bytes >= 4 * n * n]  # others are barriers
    assert tiles == [slots] * 4


def test_stores_around_a_loop_take_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rings of three 128x128 buffers and three results are 294,912 bytes; an SM has 232,448."""
    monkeypatch.setenv("TESSERA_STRICT", "1")
    monkeypatch.setenv("TESSERA_DISABLE", "warp-specialize")
    signature = {"a": "*fp16", "b": "*fp16"}
    signature |= dict.fromkeys(("o1", "o2", "o3"), "tensordesc<fp16[128, 128]>")
    signature |= {"tiles": "i32", "steps": "i32"}
    source = ASTSource(
        stores_around, signature, {"N": 128}, {(i,): [["tt.divisibility", 16]] for i in (0, 1)}
    )
    options = {"num_stages": 3, "num_warps": 4}
    kernel = tessera.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert kernel.metadata.shared <= 232448
    allocs = [op for op in parse_module(kernel.asm["gir"]).walk() if isinstance(op, LocalAllocOp)]
    assert [a.bytes // 32768 for a in allocs if a.bytes >= 32768] == [2, 2]


def test_small_scratch_of_a_loop_around_takes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two buffers of each tile are 229,376 bytes. Barriers fit beside them, and any one reduction; not all of them."""
    monkeypatch.setenv("TESSERA_STRICT", "1")
    signature = {"a": "tensordesc<fp32[64, 64]>"}
    signature |= dict.fromkeys(("b", "c", "d"), "tensordesc<fp32[128, 64]>")
    signature |= dict.fromkeys(("o1", "o2", "o3"), "*i32") | {"tiles": "i32", "steps": "i32"}
    source = ASTSource(three_peaks, signature, {})
    options = {"num_stages": 2, "num_warps": 8}
    kernel = tessera.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert kernel.metadata.shared <= 232448


def test_rings_of_roles_take_room_in_other_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four buffers of the producer's tiles are 196,608 bytes, and leave 35,840: two of those that stream."""
    monkeypatch.setenv("TESSERA_STRICT", "1")
    signature = {"a": "tensordesc<fp16[128, 64]>", "b": "tensordesc<fp16[64, 256]>"}
    signature |= {"y": "*fp16", "out": "*fp32", "tiles": "i32", "steps": "i32", "n": "i32"}
    known = {(i,): [["tt.divisibility", 16]] for i in (2, 3)}
    source = ASTSource(sums_behind, signature, {"N": 8192}, known)
    options = {"num_stages": 4, "num_warps": 8}
    kernel = tessera.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert 196608 + 2 * 16384 < kernel.metadata.shared <= 232448
