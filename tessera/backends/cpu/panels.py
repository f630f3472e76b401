"""Packs B of a dot in panels: rows of whole vectors, in the order in which the microkernels read them.

b[k][n] → for each panel of w columns: lane[k / k_pack][w] (a lane: `k_pack` neighbours along k)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tessera.backends.cpu.fusion import materialise
from tessera.backends.cpu.llvm_text import scalar_type
from tessera.backends.cpu.lowering import Lowering
from tessera.backends.cpu.microkernel import add_bytes
from tessera.backends.cpu.operands import Panel, Panels
from tessera.backends.cpu.transpose import gathers, transpose
from tessera.backends.cpu.values import Coord, Point
from tessera.backends.elements.casts import cast
from tessera.dtypes import dtype
from tessera.ir import Value, elem_of, shape_of
from tessera.ops import DotOp, ReshapeOp


@dataclass(frozen=True, slots=True)
class Form:
    """The form of packed B: elements of type `t`, `k_pack` of them in a lane. `bias`: the factor of the column sums
    that are stored beside it, 0 for none."""

    t: dtype
    k_pack: int
    panels: list[Panel]
    bias: int = 0

    @property
    def packed_type(self) -> str:
        return "i32" if self.k_pack > 1 else scalar_type(self.t)

    @property
    def packed_bytes(self) -> int:
        return self.k_pack * self.t.storage_bytes


def materialise_reshapes(lo: Lowering, op: DotOp, form: Form) -> None:
    """Materialise the operands of B's reshapes where the width of a panel is no power of two: lanes then carry from
    one dimension into the next in ways known only at run time."""
    if not any(lanes * vectors & lanes * vectors - 1 for lanes, vectors, *_ in form.panels):
        return
    waiting, seen = [op.b], {op.b}
    while waiting:
        v = waiting.pop()
        if v.op is None or not lo.lazy(v):
            continue
        if isinstance(v.op, ReshapeOp):
            materialise(lo, v.op.x, op)
        else:
            waiting += [x for x in v.op.operands if x not in seen]
            seen.update(v.op.operands)


def fill_panels(lo: Lowering, form: Form, links: list[DotOp], target: Panels) -> None:
    """Fill the panels with B of `links`, one below the other."""
    k, _ = shape_of(links[0].b.type)
    lanes = min(lo.facts.lanes, form.panels[0][0])
    same_width = all(width == lanes for width, *_ in form.panels)
    for i, op in enumerate(links):
        part = replace(target, first=target.first.shifted(i * (k // form.k_pack)))
        read = _reader(lo, form, op.b)
        if (
            same_width
            and form.packed_bytes == 4
            and k % (form.k_pack * lanes) == 0
            and gathers(lo, op.b, 1, lanes)
            and not gathers(lo, op.b, 0, lanes * form.k_pack)
        ):
            _fill_transposed(lo, form, k // form.k_pack, part, read, lanes)
        else:
            _fill_rows(lo, form, k // form.k_pack, part, read)


Read = Callable[[Point], str]


def _reader(lo: Lowering, form: Form, v: Value) -> Read:
    """A function that reads the element(s) of B at a point, converted to the type of the form."""
    source = elem_of(v.type)

    def read(at: Point) -> str:
        lo.memo = {}
        return cast(lo.lanes(at.lanes), lo.text(lo.value(v, at), at.lanes), source, form.t)

    return read


def _fill_rows(lo: Lowering, form: Form, depth: int, target: Panels, read: Read) -> None:
    """Fill the panels row by row; neighbours along k are interleaved."""
    em = lo.em
    with em.loop(0, depth, 1) as i:
        k = lo.index(i, 1, depth)
        for lanes, vectors, first, count in form.panels:
            width = lanes * vectors
            with em.loop(0, count, 1) as p:
                left = lo.index(p, 1, count).times(width).plus(Coord(first, (), None, first + 1))
                row = target.row(lo, k, left, width)
                for j in range(vectors):
                    c = left.shifted(j * lanes)
                    wide = Coord(
                        c.base,
                        c.terms,
                        tuple(range(lanes)) if lanes > 1 else None,
                        c.extent + lanes,
                    )
                    rows = [k.times(form.k_pack).shifted(u) for u in range(form.k_pack)]
                    parts = [read(Point((r, wide), lanes)) for r in rows]
                    _put(lo, form, _woven(lo, form, parts, lanes), row, j * lanes, lanes)
    lo.memo = {}


def _woven(lo: Lowering, form: Form, parts: list[str], lanes: int) -> str:
    """`k_pack` rows of elements, interleaved to one row of lanes."""
    em, bits = lo.em, form.t.storage_bits
    while len(parts) > 1:
        order = [k // 2 + lanes * (k % 2) for k in range(2 * lanes)]
        half = len(parts) // 2
        joined = [
            em.shuffle(f"i{bits}", a, b, lanes, order)
            for a, b in zip(parts[::2], parts[1::2], strict=True)
        ]
        parts = [
            em.op(f"bitcast <{2 * lanes} x i{bits}> {x} to <{lanes} x i{2 * bits}>") for x in joined
        ]
        bits *= 2
        assert len(parts) == half
    return parts[0]


def _fill_transposed(
    lo: Lowering, form: Form, depth: int, target: Panels, read: Read, n: int
) -> None:
    """Fill the panels by transposing blocks of n x n: memory is contiguous along k, so that lanes are packed
    already."""
    em, g = lo.em, form.k_pack
    with em.loop(0, depth // n, 1) as i:
        row = lo.index(i, 1, depth // n).times(n)
        k = row.times(g)
        along = Coord(k.base, k.terms, tuple(range(n * g)), depth * g)
        for lanes, vectors, first, count in form.panels:
            width = lanes * vectors
            with em.loop(0, count, 1) as p:
                left = lo.index(p, 1, count).times(width).plus(Coord(first, (), None, first + 1))
                with em.loop(0, vectors, 1) as j:
                    inner = lo.index(j, 1, vectors).times(lanes)
                    column = left.plus(inner)
                    lines: list[str] = []
                    for u in range(n):
                        text = read(Point((along, column.shifted(u)), n * g))
                        if g > 1:
                            source = f"<{n * g} x i{form.t.storage_bits}>"
                            text = em.op(f"bitcast {source} {text} to <{n} x i32>")
                        lines.append(text)
                    for u, text in enumerate(transpose(lo, form.packed_type, lines)):
                        at = target.row(lo, row.shifted(u), left, width)
                        at = em.op(
                            f"getelementptr {form.packed_type}, ptr {at}, i64 {lo.coord_text(inner)}"
                        )
                        _put(lo, form, text, at, 0, n)
    lo.memo = {}


def _put(lo: Lowering, form: Form, text: str, row: str, offset: int, lanes: int) -> None:
    em, ty = lo.em, f"<{lanes} x {form.packed_type}>" if lanes > 1 else form.packed_type
    where = em.op(f"getelementptr {form.packed_type}, ptr {row}, i64 {offset}") if offset else row
    em.stmt(f"store {ty} {text}, ptr {where}, align {form.packed_bytes}")


def fill_with_bias(
    lo: Lowering, form: Form, links: list[DotOp], target: Panels, depth: int
) -> None:
    fill_panels(lo, form, links, target)
    if form.bias:
        fill_bias(lo, form, target, str(depth))


def fill_bias(lo: Lowering, form: Form, target: Panels, depth: str) -> None:
    """bias[n] = form.bias * Σ of B over `depth` rows, for dots of bytes; the dot instruction itself adds up a lane."""
    em = lo.em
    for lanes, vectors, first, count in form.panels:
        width, ty = lanes * vectors, f"<{lanes} x i32>"
        with em.loop(0, count, 1) as p:
            left = lo.index(p, 1, count).times(width).plus(Coord(first, (), None, first + 1))
            cells = [em.alloca(ty) for _ in range(vectors)]
            for cell in cells:
                em.stmt(f"store {ty} zeroinitializer, ptr {cell}")
            with em.counted("0", depth, "1", always=True) as i:
                row = target.row(lo, lo.index(i, 1, 1 << 31), left, width)
                for j, cell in enumerate(cells):
                    where = em.op(f"getelementptr i32, ptr {row}, i64 {j * lanes}")
                    k_groups = em.here(f"load {ty}, ptr {where}, align 4")
                    old = em.here(f"load {ty}, ptr {cell}")
                    weights = em.splat("i32", str(0x01010101 * form.bias), lanes)
                    new = add_bytes(lo, lanes, weights, k_groups, old)
                    em.stmt(f"store {ty} {new}, ptr {cell}")
            column = lo.coord_text(left)
            for j, cell in enumerate(cells):
                where = em.op(f"getelementptr i32, ptr {target.bias}, i64 {column}")
                where = em.op(f"getelementptr i32, ptr {where}, i64 {j * lanes}")
                total = em.here(f"load {ty}, ptr {cell}")
                em.stmt(f"store {ty} {total}, ptr {where}, align 4")
