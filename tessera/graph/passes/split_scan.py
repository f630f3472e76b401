"""Splits scans of few long rows among programs: one kernel reduces each part of a row, a second one scans the parts,
each from what the parts before it come to.

graph.loop (%i: 64) { scan (%r: 50000) x[i, r] }
    →   t = graph.loop (%i: 64, %s: 13) { reduce (%c: 4096) x[i, s * 4096 + c] }
        graph.loop (%i: 64, %s: 13) {
            before = reduce (%p: 13) { p < s ? t[i, p] : identity }
            y = scan (%c: 4096) x[i, s * 4096 + c]
            graph.loop (%c: 4096) { combine(before, y[c]) }
        }                                          the parts joined to 50000: the last one is shorter
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.dtypes import int64
from tessera.graph.emit.tiling import Machine, choose, next_power
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.combine import is_commutative
from tessera.graph.ir.ops import LoadOp, LoopOp, ReduceOp, ScanOp, yielded
from tessera.graph.ir.types import TensorType, product
from tessera.graph.passes.split import part_body
from tessera.ir import Block, Builder, Value
from tessera.ir.applications import apply
from tessera.ops import FuncOp, YieldOp

BUSY = 4  # programs for each lane, of which some load while others scan


@dataclass(frozen=True, slots=True)
class Row:
    """A nest that scans each of its rows. `readers`: the loops that read the scan element by element."""

    nest: LoopOp
    scan: ScanOp
    readers: tuple[LoopOp, ...]
    length: int


def split_scans(function: FuncOp, machine: Machine) -> None:
    """Split the scans of a graph function whose rows are too few for the programs of a machine."""
    for op in list(function.body):
        row = _row(op) if isinstance(op, LoopOp) else None
        if row is not None:
            each = _part(row, machine)
            if each < row.length and apply("graph-split-scans", op):
                _split(row, each)


def _row(op: LoopOp) -> Row | None:
    """The parts of a nest that scans rows; None for any other."""
    inner = [x for x in op.body if x.regions]
    scans = [x for x in inner if isinstance(x, ScanOp)]
    readers = [x for x in inner if isinstance(x, LoopOp)]
    if len(scans) != 1 or len(readers) + 1 != len(inner) or scans[0].reverse or op.joined:
        return None
    scan, extents = scans[0], scans[0].extents
    same = all(x.extents == extents and not any(y.regions for y in x.body) for x in readers)
    if not same or not isinstance(extents[0], int) or not _reads_in_order(op, scan, readers):
        return None
    made = {*scan.results, *(r for x in readers for r in x.results)}
    if any(v not in made for v in yielded(op.body)):
        return None
    return Row(op, scan, tuple(readers), extents[0])


def _reads_in_order(nest: LoopOp, scan: ScanOp, readers: Sequence[LoopOp]) -> bool:
    """Whether each element that the nest makes of a row needs the element of the scan at its own place alone."""
    users = {u for made in (scan, *readers) for r in made.results for u in r.users()}
    users.discard(nest.body.terminator)
    return all(isinstance(u, LoadOp) and _is_own(u, readers) for u in users)


def _is_own(load: LoadOp, readers: Sequence[LoopOp]) -> bool:
    """Whether a reader's load is everywhere at the reader's index."""
    block = load.parent
    inside = block is not None and block.parent in readers and list(load.indices) == block.args
    return inside and load.mask is None and load.map.is_identity


def _part(row: Row, machine: Machine) -> int:
    """How many elements of a row a program should scan: a tile, or several where there are programs enough."""
    tiling = choose(row.nest, row.nest.extents, machine)
    rows = tiling.programs
    if machine.exact or tiling.inner is None or not isinstance(rows, int) or not rows:
        return row.length
    if rows >= 2 * machine.lanes or product([a.block for a in tiling.axes]) != 1:
        return row.length
    each = -(-row.length * rows // (BUSY * machine.lanes))
    if each > machine.step:
        return each // machine.step * machine.step
    return max(machine.part, next_power(each + 1) // 2)


def _split(row: Row, each: int) -> None:
    """Put the loop of totals and that of the scans of parts in front of a nest, in its place."""
    parts = -(-row.length // each)
    totals = _totals(row, parts, each)
    op = row.nest
    block = Block([int64] * (len(op.extents) + 1), names=[*"ijklmn"[: len(op.extents)], "s"])
    b = GraphBuilder.before(op, op.results[0].type.device)
    mapping: dict[Value, Value] = dict(zip(op.body.args, block.args, strict=False))
    with b.b.at(block):
        for x in op.body:
            if x is row.scan:
                before = _before(b, row.scan, totals, block.args)
                found = _resumed(b, row, mapping, before, block.args[-1], each)
                mapping.update(zip(row.scan.results, found, strict=True))
            elif isinstance(x, LoopOp):
                _reader(b, x, mapping, block.args[-1], each, row)
            elif not isinstance(x, YieldOp):
                b.b.insert(x.clone(mapping))
        b.b.insert(YieldOp([mapping[v] for v in yielded(op.body)]))
    new = LoopOp(
        extents=(*op.extents, parts), joined=(row.length,) * len(op.results), regions=[block],
        results=[r.type for r in op.results], loc=op.loc,
    )  # fmt: skip
    Builder.before_op(op).insert(new)
    op.replace_by(new.results)


def _totals(row: Row, parts: int, each: int) -> Sequence[Value]:
    """What each part comes to: tensors of the nest's extents and the parts."""
    op, scan = row.nest, row.scan
    block = Block([int64] * (len(op.extents) + 1))
    b = GraphBuilder.before(op, op.results[0].type.device)
    mapping: dict[Value, Value] = dict(zip(op.body.args, block.args, strict=False))
    with b.b.at(block):
        for x in op.body:
            if x is scan:
                body = part_body(scan, mapping, block.args[-1:], each, row.length, scan.identities)
                b.b.insert(YieldOp(_combined(b, scan, body, each)))
            elif not x.regions and not isinstance(x, YieldOp):
                b.b.insert(x.clone(mapping))
    device = op.results[0].type.device
    loop = b.b.insert(LoopOp(extents=(*op.extents, parts), regions=[block]))
    for r in loop.results:
        r.type = TensorType(r.type.shape, r.type.elem, None, device)
    return loop.results


def _before(
    b: GraphBuilder, scan: ScanOp, totals: Sequence[Value], at: Sequence[Value]
) -> Sequence[Value]:
    """What the parts in front of one come to."""
    *indices, part = at
    body = Block([int64], names=["p"])
    (p,) = body.args
    with b.b.at(body):
        earlier = b.compare("lt", p, part)
        found = [b.load(t, *indices, p) for t in totals]
        starts = [b.const(n, v.type) for n, v in zip(scan.identities, found, strict=True)]
        pairs = zip(found, starts, strict=True)
        b.b.insert(YieldOp([b.select(earlier, v, start) for v, start in pairs]))
    return _combined(b, scan, body, totals[0].type.shape[-1])


def _combined(b: GraphBuilder, scan: ScanOp, body: Block, extent: int) -> Sequence[Value]:
    """What the elements that a body yields come to, by the function of a scan: a reduction where their order does not
    matter, else the last element of a scan."""

    def reduced(of: Block) -> Sequence[Value]:
        regions = [of, scan.combine.clone({})]
        return b.b.insert(
            ReduceOp(extents=(extent,), identities=scan.identities, regions=regions)
        ).results

    if is_commutative(scan.combine):
        return reduced(body)
    regions = [body, scan.combine.clone({})]
    made = b.b.insert(ScanOp(extents=(extent,), identities=scan.identities, regions=regions))
    last = Block([int64], names=["c"])
    (c,) = last.args
    with b.b.at(last):
        is_last = b.compare("eq", c, b.const(extent - 1, int64))
        found = [b.load(t, c) for t in made.results]
        starts = [b.const(n, v.type) for n, v in zip(scan.identities, found, strict=True)]
        pairs = zip(found, starts, strict=True)
        b.b.insert(YieldOp([b.select(is_last, v, start) for v, start in pairs]))
    return reduced(last)


def _resumed(
    b: GraphBuilder,
    row: Row,
    mapping: dict[Value, Value],
    before: Sequence[Value],
    part: Value,
    each: int,
) -> Sequence[Value]:
    """The scan of a part, from what comes before it on."""
    scan = row.scan
    body = part_body(scan, mapping, [part], each, row.length, scan.identities)
    regions = [body, scan.combine.clone({})]
    made = b.b.insert(ScanOp(extents=(each,), identities=scan.identities, regions=regions))

    def element(c: Value) -> Sequence[Value]:
        given = [*before, *(b.load(t, c) for t in made.results)]
        return b.inlined(scan.combine, dict(zip(scan.combine.args, given, strict=True)))

    return b.loops([each], element)


def _reader(
    b: GraphBuilder, op: LoopOp, mapping: dict[Value, Value], part: Value, each: int, row: Row
) -> None:
    """The part of a loop that reads the scan."""
    made = {mapping[v] for x in (row.scan, *row.readers) for v in x.results if v in mapping}
    body = part_body(op, mapping, [part], each, row.length)
    loop = b.b.insert(LoopOp(extents=(each,), regions=[body]))
    for x in body:
        if isinstance(x, LoadOp) and x.tensor in made:
            x.set_operands(x.tensor, [body.args[0]], None, None)
    mapping.update(zip(op.results, loop.results, strict=True))
