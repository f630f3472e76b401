"""Multiplies few rows by a B that no copy would serve, since each of its elements is needed once.

If the rows of A are one block of accumulators, B is read as it is computed (`Computed`), neither packed nor copied. If
memory is contiguous along k, as where queries meet keys, vectors along k of A and of B are multiplied (`Columns`): the
sums of as many columns as a vector has lanes are folded into one vector. Where a mask hides a part of B, it is packed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

from tessera.analysis.provenance import reached
from tessera.backends.cpu.bounds import all_inside, undivided
from tessera.backends.cpu.dot_plan import DotPlan
from tessera.backends.cpu.fusion import prepare
from tessera.backends.cpu.gemm import multiply_add
from tessera.backends.cpu.llvm_text import scalar_type
from tessera.backends.cpu.loops import places
from tessera.backends.cpu.lowering import TRUE, Lowering
from tessera.backends.cpu.operands import Columns, Computed, Left
from tessera.backends.cpu.panels import materialise_reshapes
from tessera.backends.cpu.transpose import fold_vectors, gathers
from tessera.backends.cpu.values import Coord
from tessera.ir import TileType, Value
from tessera.ir.applications import apply
from tessera.ops import DotOp, LoadOp
from tessera.ops.arith import CastOp, RemOp
from tessera.ops.tile import TransOp

COLUMN_ROWS = 4  # up to which folding takes no longer than transposing B: docs/performance/cpu.md


def read_once(lo: Lowering, op: DotOp, plan: DotPlan) -> Computed | Columns | None:
    """Return B as it is computed; None if it had better be packed: for many rows, instructions that take several
    elements along k, or an operand that is more than a load."""
    (_, _, blocks), *others = plan.rows
    b, lanes = source(lo, op.b), plan.panels[0][0]
    if others or blocks > 1 or plan.path.k_pack > 1 or (lo.lazy(b) and not _loads(b)):
        return None
    kind = Columns if gathers(lo, op.b, 1, lanes) else Computed
    if kind is Columns and (not _folds(plan, lanes) or gathers(lo, op.b, 0, lanes)):
        return None
    if not apply("few-rows", op):
        return None
    materialise_reshapes(lo, op, plan)
    prepare(lo, [op.b], op, keep_top=False)
    return kind(op.b, plan.t)


def whole(lo: Lowering, v: Value) -> str:
    """Return an i1: whether no element of `v` is masked."""
    load = source(lo, v).op
    return (
        all_inside(lo, load.mask) if isinstance(load, LoadOp) and lo.lazy(load.result) else "true"
    )


def remainders(lo: Lowering, v: Value) -> dict[Value, str]:
    """Return the remainders by which the addresses of the load in `v` are found, as in `columns % n`, and an i1 for
    each: whether all elements are what is divided."""
    load = source(lo, v).op
    known = [load.ptr] if isinstance(load, LoadOp) and lo.lazy(load.result) else []
    tiles = reached(known, tile_sources)
    bits = {x: undivided(lo, x.op) for x in tiles if isinstance(x.op, RemOp)}
    return {x: bit for x, bit in bits.items() if bit != "false"}


def tile_sources(v: Value) -> Sequence[Value]:
    """Return what a tile is computed from, element by element; nothing for a number."""
    op = v.op if isinstance(v.type, TileType) else None
    return () if op is None or op.regions else op.operands


@contextmanager
def unmasked(
    lo: Lowering, v: Value, masks: bool = True, rests: Iterable[Value] = ()
) -> Generator[None]:
    """While this lasts, the mask of the load in `v` is true everywhere, if `masks`, and `rests` are what is divided."""
    load, saved = source(lo, v).op, lo.dividends
    found = [load.mask] if masks and isinstance(load, LoadOp) and load.mask is not None else []
    lo.dividends = frozenset(rests)
    with lo.bound(dict.fromkeys(found, TRUE)):
        yield
    lo.dividends, lo.memo = saved, {}


def source(lo: Lowering, v: Value) -> Value:
    """Return what `v` is made of by casts and transpositions."""
    while lo.lazy(v) and isinstance(v.op, (CastOp, TransOp)):
        v = v.op.x
    return v


def _loads(v: Value) -> bool:
    return isinstance(v.op, LoadOp) and not v.op.volatile


def _folds(plan: DotPlan, lanes: int) -> bool:
    """Whether the columns can be folded: whole vectors along k, as many columns as lanes."""
    return plan.m <= COLUMN_ROWS and lanes > 1 and not (plan.n % lanes or plan.k % lanes)


def multiply_columns(lo: Lowering, plan: DotPlan, a: Left, b: Columns, c: str, zero: str) -> None:
    """Emit c (+)= a @ b for a B whose memory is contiguous along k; c is row-major, and counts as zero if `zero`."""
    em, lanes, e = lo.em, plan.panels[0][0], scalar_type(plan.acc)
    ty, align = f"<{lanes} x {e}>", plan.acc.storage_bytes
    for column in places(lo, lanes, 0, plan.n // lanes):
        for row in range(plan.m):
            sums = _sums(lo, plan, lanes, (a, row), (b, column))
            total = _folded(lo, plan, sums, lanes)
            at = lo.coord_text(column.shifted(row * plan.n))
            where = em.op(f"getelementptr {e}, ptr {c}, i64 {at}")
            old = _loaded(lo, ty, where, zero, align)
            add = lo.lanes(lanes).op("fadd" if plan.acc.is_floating() else "add", e, old, total)
            em.stmt(f"store {ty} {add}, ptr {where}, align {align}")


def _loaded(lo: Lowering, ty: str, ptr: str, zero: str, align: int) -> str:
    """Return what is at `ptr`; zeros, without a look at them, where `zero` (an i1) holds."""
    em, cell = lo.em, lo.em.alloca(ty)

    def load() -> None:
        em.stmt(f"store {ty} {em.here(f'load {ty}, ptr {ptr}, align {align}')}, ptr {cell}")

    em.choose(zero, lambda: em.stmt(f"store {ty} zeroinitializer, ptr {cell}"), load)
    return em.here(f"load {ty}, ptr {cell}")


def _sums(
    lo: Lowering, plan: DotPlan, lanes: int, left: tuple[Left, int], right: tuple[Columns, Coord]
) -> list[str]:
    """Return a vector for each of `lanes` columns, whose lanes add up to the element of c."""
    em, (a, row), (b, column) = lo.em, left, right
    ty, e = f"<{lanes} x {scalar_type(plan.acc)}>", plan.packed_type
    cells = [em.alloca(ty) for _ in range(lanes)]
    for cell in cells:
        em.stmt(f"store {ty} zeroinitializer, ptr {cell}")
    with em.loop(0, plan.k, lanes) as i:
        k = lo.index(i, lanes, plan.k)
        at = a.address(lo, Coord(row, (), None, plan.m), k)
        x = em.here(f"load <{lanes} x {e}>, ptr {at}, align {plan.t.storage_bytes}")
        for u, cell in enumerate(cells):
            y = b.vector(lo, k, column.shifted(u), lanes)
            old = em.here(f"load {ty}, ptr {cell}")
            em.stmt(f"store {ty} {multiply_add(lo, plan, lanes, x, y, old)}, ptr {cell}")
    return [em.here(f"load {ty}, ptr {cell}") for cell in cells]


def _folded(lo: Lowering, plan: DotPlan, rows: list[str], lanes: int) -> str:
    """Return a vector of which lane i is the sum of the lanes of vector i."""
    e = scalar_type(plan.acc)
    name = "fadd" if plan.acc.is_floating() else "add"
    return fold_vectors(
        rows,
        lanes,
        lambda a, b, order: lo.em.shuffle(e, a, b, lanes, order),
        lambda a, b: lo.lanes(lanes).op(name, e, a, b),
    )
