"""Prefetches what the next program loads: its row, or the rows of its tile.

Kernels that work on one row per program compute while memory is read.

Such a kernel traverses its row several times: the first time it waits for memory, then it computes from the caches. So
the most expensive traversal (of the reductions and scans along one dimension) also prefetches what the next program
loads:

    for row in programs:  max(x)  →  sum(exp(x - max)), prefetch x of the next row  →  store out

The address of the next row is predicted: it is assumed to be as far from this one as this one is from the row before. A
wrong prediction only costs the prefetch; it has no effect on results.

A kernel that stores tiles of several rows past the caches prefetches, with each vector, the same place of the next
tile. In such a tile each row begins elsewhere in memory, and ends before a processor has noticed that it is read in
order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tessera.analysis.provenance import reached
from tessera.backends.cpu.chains import cost
from tessera.backends.cpu.fusion import contiguous_along
from tessera.backends.cpu.loops import UNROLL, Nest
from tessera.backends.cpu.lowering import EVALUATORS, Lowering
from tessera.backends.cpu.values import Coord, Point
from tessera.ir import Block, Effect, Op, TileType, Value, elem_of, shape_of
from tessera.ir.applications import apply
from tessera.ops import CombineOp, LoadOp, ProgramIdOp

LINE = 64  # bytes of a cache line
# Largest row in bytes for which the next one is prefetched into L1; longer rows go into the L2 cache (tools/fit).
NEAR = 8 << 10
NEAR_TILES = 16 << 10  # the same for the tiles that a store needs: half of an L1 cache of 32 KiB


@dataclass(slots=True)
class RowPrefetch:
    """The reduction or scan that prefetches (`carrier`) and the loads whose rows it prefetches, each with the stack
    slot that has the address of its row in the program before."""

    carrier: Op | None
    cells: dict[LoadOp, str]


def plan_row_prefetch(lo: Lowering, block: Block) -> RowPrefetch:
    """Choose carrier and loads before the body of a kernel is lowered; only kernels without loops prefetch."""
    none = RowPrefetch(None, {})
    if any(op.regions and not isinstance(op, CombineOp) for op in block):
        return none
    walks = [op for op in block if isinstance(op, CombineOp) and _long_row(lo, op.inputs[0])]
    if not walks:
        return none
    carrier = max(walks, key=lambda op: sum(cost(lo, v) for v in op.inputs))
    if not apply("row-prefetch", carrier):
        return none
    shape = shape_of(carrier.inputs[0].type)
    cells: dict[LoadOp, str] = {}
    ops = list(block)
    later = set(ops[ops.index(carrier) :])
    for op in ops:
        if not isinstance(op, LoadOp) or shape_of(op.ptr.type) != shape:
            continue
        if _moves(op.ptr) and _known_before(op.ptr, later):
            cells[op] = lo.em.alloca("i64", align=8)
            lo.em.at_entry(f"store i64 0, ptr {cells[op]}")
    return RowPrefetch(carrier, cells)


def _long_row(lo: Lowering, v: Value) -> bool:
    shape, lanes = shape_of(v.type), lo.facts.lanes
    return len(shape) == 1 and shape[0] % lanes == 0 and shape[0] // lanes > UNROLL


def _made_by(v: Value) -> Iterator[Value]:
    """Return the values that a tile of pointers is computed from, itself included, which ops make."""

    def sources(x: Value) -> Sequence[Value]:
        ends = not isinstance(x.type, TileType) and isinstance(x.op, LoadOp)
        return () if x.op is None or ends else x.op.operands

    return (x for x in reached([v], sources) if x.op is not None)


def _moves(ptr: Value) -> bool:
    """Whether a tile of pointers depends on the program."""
    return any(isinstance(v.op, ProgramIdOp) for v in _made_by(ptr))


def _known_before(ptr: Value, later: set[Op]) -> bool:
    """Whether pointers can be computed before the ops `later`, whose tiles are evaluated where they are read."""
    own = [v for v in _made_by(ptr) if v.op in later]
    lazy = (isinstance(v.type, TileType) and type(v.op) in EVALUATORS for v in own)
    return all(lazy) and all(v.op.effects is Effect.NONE for v in own if v.op)


Row = tuple[str, int, int]  # address, bytes of an element, level of the cache to prefetch into


def prefetched_rows(lo: Lowering, op: Op) -> list[Row]:
    """Return the rows that the reduction or scan `op` prefetches."""
    plan: RowPrefetch | None = lo.row_prefetch
    if plan is None or op is not plan.carrier:
        return []
    found: list[Row] = []
    for load, cell in plan.cells.items():
        if contiguous_along(lo, load.ptr, 0, lo.facts.lanes):
            size = elem_of(load.ptr.type).element_ty.storage_bytes
            (length,) = shape_of(load.ptr.type)
            cache = 1 if length * size <= NEAR else 2
            found.append((_next_row(lo, load.ptr, cell), size, cache))
    return found


def _next_row(lo: Lowering, ptr: Value, cell: str) -> str:
    here = address(lo, ptr, [Coord()])
    return lo.em.op(f"add i64 {here}, {_step(lo, here, cell)}")


def address(lo: Lowering, ptr: Value, coords: Sequence[Coord]) -> str:
    """Return the address of an element of a tile of pointers, as an i64."""
    lo.memo = {}
    first = lo.text(lo.value(ptr, Point(tuple(coords), 1)), 1)
    lo.memo = {}
    return lo.em.op(f"ptrtoint ptr {first} to i64")


def _step(lo: Lowering, here: str, cell: str) -> str:
    """Return an i64: how far the address `here` is from that of the program before, which is in `cell`; 0 in the first
    program."""
    em = lo.em
    before = em.here(f"load i64, ptr {cell}, align 8")
    em.stmt(f"store i64 {here}, ptr {cell}, align 8")
    known = em.op(f"icmp ne i64 {before}, 0")
    return em.op(f"select i1 {known}, i64 {em.op(f'sub i64 {here}, {before}')}, i64 0")


def next_tiles(lo: Lowering, value: Value, plan: Nest) -> Callable[[Sequence[Coord], int], None]:
    """Return what emits, for some elements along a row of the nest that computes `value`, prefetches of those at the
    same place of the next program's tiles."""
    loads = list(_tile_loads(lo, value, plan))
    size = sum(prod(plan.shape) * _bytes(load) for load in loads)
    cache = 1 if size <= NEAR_TILES else 2
    steps: dict[LoadOp, str] = {}
    for load in loads:
        cell = lo.em.alloca("i64", align=8)
        lo.em.at_entry(f"store i64 0, ptr {cell}")
        steps[load] = _step(lo, address(lo, load.ptr, [Coord()] * len(plan.shape)), cell)

    def ahead(first: Sequence[Coord], elements: int) -> None:
        for load, step in steps.items():
            there = lo.em.op(f"add i64 {address(lo, load.ptr, first)}, {step}")
            prefetch(lo, [(there, _bytes(load), cache)], Coord(), elements)

    return ahead


def _bytes(load: LoadOp) -> int:
    return elem_of(load.result.type).storage_bytes


def _tile_loads(lo: Lowering, value: Value, plan: Nest) -> Iterator[LoadOp]:
    """Yield the loads in the nest that computes `value` whose rows are consecutive elements at places that only the
    program's number decides."""

    def sources(v: Value) -> Sequence[Value]:
        return () if isinstance(v.op, LoadOp) or shape_of(v.type) != plan.shape else lo.sources(v)

    for v in reached([value], sources):
        op = v.op
        if not isinstance(op, LoadOp) or not lo.lazy(v) or shape_of(v.type) != plan.shape:
            continue
        if _moves(op.ptr) and not any(isinstance(x.op, LoadOp) for x in _made_by(op.ptr)):
            if contiguous_along(lo, op.ptr, plan.group[0], plan.lanes):
                yield op


def prefetch(lo: Lowering, rows: Sequence[Row], at: Coord, elements: int) -> None:
    """Emit prefetches of `elements` of each row, starting at `at`."""
    em = lo.em
    if rows:
        em.declare("void", "llvm.prefetch.p0", "ptr", "i32", "i32", "i32")
    for address, size, cache in rows:
        first = em.op(f"add i64 {address}, {lo.coord_text(at.times(size))}")
        for offset in range(0, elements * size, LINE):
            ptr = em.op(f"inttoptr i64 {em.op(f'add i64 {first}, {offset}')} to ptr")
            em.stmt(f"call void @llvm.prefetch.p0(ptr {ptr}, i32 0, i32 {4 - cache}, i32 1)")
