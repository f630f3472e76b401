"""Packs B of a dot in panels: rows of whole vectors, in the order in which the microkernels read them.

b[k][n] → for each panel of w columns: lane[k / k_pack][w] (a lane: `k_pack` neighbours along k)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tessera.analysis.provenance import reached
from tessera.backends.cpu.dot_plan import DotPlan
from tessera.backends.cpu.fusion import materialise
from tessera.backends.cpu.gemm import add_bytes
from tessera.backends.cpu.lowering import Lowering
from tessera.backends.cpu.operands import Panels
from tessera.backends.cpu.transpose import gathers, transpose
from tessera.backends.cpu.values import Coord, Point
from tessera.backends.elements.casts import cast
from tessera.dtypes import int32
from tessera.ir import elem_of
from tessera.ops import DotOp, ReshapeOp


def materialise_reshapes(lo: Lowering, op: DotOp, plan: DotPlan) -> None:
    """Materialise the operands of B's reshapes if a panel's width is not a power of two: lanes then carry from one
    dimension into the next in ways known only at run time."""
    if not any(lanes * vectors & lanes * vectors - 1 for lanes, vectors, *_ in plan.panels):
        return
    for v in reached([op.b], lambda x: () if isinstance(x.op, ReshapeOp) else lo.sources(x)):
        if isinstance(v.op, ReshapeOp) and lo.lazy(v):
            materialise(lo, v.op.x, op)


def fill_panels(lo: Lowering, plan: DotPlan, op: DotOp, target: Panels) -> None:
    """Fill the panels with B of a dot."""
    lanes, v, k_pack = min(lo.facts.lanes, plan.panels[0][0]), op.b, plan.path.k_pack
    source = elem_of(v.type)

    def read(at: Point) -> str:
        """Return the elements of B at a point, converted to the type that is multiplied."""
        lo.memo = {}
        return cast(lo.lanes(at.lanes), lo.text(lo.value(v, at), at.lanes), source, plan.t)

    if (
        all(width == lanes for width, *_ in plan.panels)
        and plan.packed_bytes == 4
        and plan.k % (k_pack * lanes) == 0
        and gathers(lo, v, 1, lanes)
        and not gathers(lo, v, 0, lanes * k_pack)
    ):
        _fill_transposed(lo, plan, target, read, lanes)
    else:
        _fill_rows(lo, plan, target, read)
    lo.memo = {}


Read = Callable[[Point], str]


def _panels(lo: Lowering, plan: DotPlan) -> Iterator[tuple[int, int, Coord]]:
    """Emit loops over the panels; yield (lanes, vectors, first column)."""
    for lanes, vectors, first, count in plan.panels:
        with lo.em.loop(0, count, 1) as p:
            left = lo.index(p, 1, count).times(lanes * vectors)
            yield lanes, vectors, left.plus(Coord(first, (), None, first + 1))


def _fill_rows(lo: Lowering, plan: DotPlan, target: Panels, read: Read) -> None:
    """Fill the panels row by row; neighbours along k are interleaved."""
    k_pack = plan.path.k_pack
    with lo.em.loop(0, plan.k_groups, 1) as i:
        k = lo.index(i, 1, plan.k_groups)
        for lanes, vectors, left in _panels(lo, plan):
            row = target.row(lo, k, left, lanes * vectors)
            for j in range(vectors):
                c = left.shifted(j * lanes)
                pattern = tuple(range(lanes)) if lanes > 1 else None
                wide = Coord(c.base, c.terms, pattern, c.extent + lanes)
                rows = [k.times(k_pack).shifted(u) for u in range(k_pack)]
                parts = [read(Point((r, wide), lanes)) for r in rows]
                _put(lo, plan, _woven(lo, plan, parts, lanes), row, j * lanes, lanes)


def _woven(lo: Lowering, plan: DotPlan, parts: list[str], lanes: int) -> str:
    """Return `k_pack` rows of elements, interleaved to one row of lanes."""
    em, bits = lo.em, plan.t.storage_bits
    while len(parts) > 1:
        order = [k // 2 + lanes * (k % 2) for k in range(2 * lanes)]
        joined = [
            em.shuffle(f"i{bits}", a, b, lanes, order)
            for a, b in zip(parts[::2], parts[1::2], strict=True)
        ]
        parts = [
            em.op(f"bitcast <{2 * lanes} x i{bits}> {x} to <{lanes} x i{2 * bits}>") for x in joined
        ]
        bits *= 2
    return parts[0]


def _fill_transposed(lo: Lowering, plan: DotPlan, target: Panels, read: Read, n: int) -> None:
    """Fill the panels by transposing n x n blocks: memory is contiguous along k, so lanes are packed already."""
    em, g, depth, e = lo.em, plan.path.k_pack, plan.k_groups, plan.packed_type
    with em.loop(0, depth // n, 1) as i:
        row = lo.index(i, 1, depth // n).times(n)
        k = row.times(g)
        along = Coord(k.base, k.terms, tuple(range(n * g)), depth * g)
        for lanes, vectors, left in _panels(lo, plan):
            with em.loop(0, vectors, 1) as j:
                inner = lo.index(j, 1, vectors).times(lanes)
                lines: list[str] = []
                for u in range(n):
                    text = read(Point((along, left.plus(inner).shifted(u)), n * g))
                    if g > 1:
                        source = f"<{n * g} x i{plan.t.storage_bits}>"
                        text = em.op(f"bitcast {source} {text} to <{n} x i32>")
                    lines.append(text)
                for u, text in enumerate(transpose(lo, e, lines)):
                    at = target.row(lo, row.shifted(u), left, lanes * vectors)
                    at = em.op(f"getelementptr {e}, ptr {at}, i64 {lo.coord_text(inner)}")
                    _put(lo, plan, text, at, 0, n)


def _put(lo: Lowering, plan: DotPlan, text: str, row: str, offset: int, lanes: int) -> None:
    em, e = lo.em, plan.packed_type
    ty = f"<{lanes} x {e}>" if lanes > 1 else e
    where = em.op(f"getelementptr {e}, ptr {row}, i64 {offset}") if offset else row
    em.stmt(f"store {ty} {text}, ptr {where}, align {plan.packed_bytes}")


# --- column sums, for dots of bytes ---------------------------------------------------------------------------------
def fill_bias(lo: Lowering, plan: DotPlan, target: Panels) -> None:
    """Store bias[n] = the path's bias * Σ of B over the rows of one dot; the dot instruction itself sums up a lane."""
    em = lo.em

    def row(i: str, left: Coord, width: int) -> str:
        return target.row(lo, lo.index(i, 1, 1 << 31), left, width)

    def add(lanes: int, k_groups: str, total: str) -> str:
        weights = em.splat("i32", str(0x01010101 * plan.path.bias), lanes)
        return add_bytes(lo, lanes, weights, k_groups, total)

    _add_rows(lo, plan, target.bias, str(plan.k_groups), row, add)


def add_biases(lo: Lowering, plan: DotPlan, sums: str, count: str) -> str:
    """Emit the addition of the column sums of `count` dots, stored at `sums` one after the other; return the address
    of the total."""
    em, total = lo.em, lo.allocate(int32, (plan.n,)).ptr

    def row(i: str, left: Coord, width: int) -> str:
        at = em.op(f"add i64 {em.op(f'mul i64 {i}, {plan.n}')}, {lo.coord_text(left)}")
        return em.op(f"getelementptr i32, ptr {sums}, i64 {at}")

    def add(lanes: int, x: str, total: str) -> str:
        return em.op(f"add <{lanes} x i32> {total}, {x}")

    _add_rows(lo, plan, total, count, row, add)
    return total


def _add_rows(
    lo: Lowering,
    plan: DotPlan,
    result: str,
    count: str,
    row: Callable[[str, Coord, int], str],
    add: Callable[[int, str, str], str],
) -> None:
    """Store result[n] = the sum of `count` rows, of which `row` returns the address for a panel of columns; `add(lanes,
    x, total)` adds one vector of 32-bit elements."""
    em = lo.em
    for lanes, vectors, left in _panels(lo, plan):
        ty = f"<{lanes} x i32>"
        cells = [em.alloca(ty) for _ in range(vectors)]
        for cell in cells:
            em.stmt(f"store {ty} zeroinitializer, ptr {cell}")
        with em.counted("0", count, "1", always=True) as i:
            first = row(i, left, lanes * vectors)
            for j, cell in enumerate(cells):
                where = em.op(f"getelementptr i32, ptr {first}, i64 {j * lanes}")
                x = em.here(f"load {ty}, ptr {where}, align 4")
                total = em.here(f"load {ty}, ptr {cell}")
                em.stmt(f"store {ty} {add(lanes, x, total)}, ptr {cell}")
        column = lo.coord_text(left)
        for j, cell in enumerate(cells):
            where = em.op(f"getelementptr i32, ptr {result}, i64 {column}")
            where = em.op(f"getelementptr i32, ptr {where}, i64 {j * lanes}")
            total = em.here(f"load {ty}, ptr {cell}")
            em.stmt(f"store {ty} {total}, ptr {where}, align 4")
