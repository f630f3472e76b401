"""Lowers reductions: first within each thread, then over lanes by shuffles, then over warps through shared memory.

All bits of the layout that move along the axis are combined one by one. This order is a balanced tree, which also
rounds better than a running sum. The region is lowered once for many registers at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tessera.analysis.scratch import (
    VECTOR_PARTS,
    area,
    axis_warp_bits,
    result_elements,
    shares_parts,
)
from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.packing import from_reg32, to_reg32
from tessera.backends.gpu.parts import (
    Slots,
    neighbours,
    part_addresses,
    parts_of,
    reader_columns,
    spread,
)
from tessera.backends.gpu.shape import renaming
from tessera.backends.gpu.shared import load_elements, store_elements
from tessera.backends.gpu.types import llvm_type
from tessera.backends.gpu.warp_reduce import kind_of, of_a_warp
from tessera.errors import InternalError
from tessera.ir import Block, ElementType, TileType, Value, elem_of
from tessera.ir.applications import apply
from tessera.layout.linear import LinearLayout
from tessera.ops import arith, tile

Row = list[str]  # registers of one operand
SIMPLE = (arith.Elementwise, arith.ConstOp)
SYMMETRIC = (
    arith.AddOp, arith.MulOp, arith.MinOp, arith.MaxOp, arith.AndOp, arith.OrOp, arith.XorOp
)  # fmt: skip
WHOLE_WARP = 5  # bits of a lane's number
SHARED_RESULTS = 4  # from this many on lanes share the work; for two the exchange takes as long


# --- the region ---------------------------------------------------------------------------------------------
def combine(
    fl: FunctionLowering, block: Block, first: Sequence[Row], second: Sequence[Row]
) -> list[Row]:
    """Apply the region to each pair of registers; an element-wise region takes all registers at once."""
    if all(isinstance(op, SIMPLE) or op.terminator for op in block):
        return [_full(row, len(first[0])) for row in _inline(fl, block, [*first, *second])]
    results: list[Row] = [[] for _ in first]
    for i in range(len(first[0])):
        rows = _inline(fl, block, [[row[i]] for row in (*first, *second)])
        for row, new in zip(results, rows):
            row += new
    return results


def _full(row: Row, count: int) -> Row:
    return row if len(row) == count else row * count


def _inline(fl: FunctionLowering, block: Block, rows: Sequence[Row]) -> list[Row]:
    for arg, row in zip(block.args, rows):
        fl.set(arg, list(row))
    fl.lower_block(block)
    return [fl.get(v) for v in block.terminator.operands]


# --- reduce --------------------------------------------------------------------------------------------------
@lowers(tile.ReduceOp)
def _reduce(fl: FunctionLowering, op: tile.ReduceOp) -> None:
    layout: LinearLayout = op.inputs[0].type.layout
    if not layout.is_axis_separable(op.axis):
        raise InternalError(
            f"cannot reduce axis {op.axis} of {layout}: bits move along two axes", loc=op.loc
        )
    held, rows = within_thread(fl, op, layout)
    rows = across_lanes(fl, op, layout, rows)
    warps = axis_warp_bits(layout, op.axis)
    rest = layout.drop_dim(op.axis).map_columns("register", held)
    if warps:
        rows = _across_warps(fl, op, rest, rows, warps)
    for result, row in zip(op.results, rows):
        fl.set(result, _in_layout(op, result, rest, row))


def _in_layout(op: tile.ReduceOp, result: Value, held: LinearLayout, row: Row) -> Row:
    if not isinstance(result.type, TileType):
        return row[:1]
    wanted = result.type.layout
    if wanted == held:
        return row
    sources = renaming(held, wanted)
    if sources is None:
        raise InternalError(f"reduce leaves {held}, which holds not what {wanted} wants", loc=op.loc)  # fmt: skip
    return [row[i] for i in sources]


def within_thread(
    fl: FunctionLowering, op: tile.ReduceOp, layout: LinearLayout
) -> tuple[list[int], list[Row]]:
    """Combine each thread's registers along the axis. Return (remaining register columns, rows)."""
    along = layout.axis_bits("register", op.axis)
    same = layout.register_representatives()
    rows = [fl.get(v) for v in op.inputs]
    live = [i for i in range(len(same)) if same[i] == i]
    bits = [b for b in range(len(layout.columns("register"))) if along >> b & 1 and 1 << b in live]
    # Highest bits first: neighbours stay neighbours as long as possible, so that pairs of 16-bit floats stay together.
    for b in reversed(bits):
        low = [i for i in live if not i >> b & 1]
        new = combine(
            fl,
            op.combine,
            [[row[i] for i in low] for row in rows],
            [[row[i | 1 << b] for i in low] for row in rows],
        )
        rows = [dict(zip(low, row)) for row in new]  # type: ignore[misc]
        live = low
    kept = [c for b, c in enumerate(layout.drop_dim(op.axis).columns("register")) if 1 << b in live]
    return kept, [[row[i] for i in live] for row in rows]


def across_lanes(
    fl: FunctionLowering, op: tile.ReduceOp, layout: LinearLayout, rows: list[Row]
) -> list[Row]:
    """Combine over the lane bits along the axis; afterwards all those lanes hold the result.

    With several results, two lanes that differ in a bit need not both combine all of them: each keeps one half and
    sends the other, so that the next bit has half as many. Eight results over five bits take 4 + 2 + 1 + 1 + 1
    shuffles, and eight to distribute them, instead of forty. Over one bit they would take twelve instead of eight.

    If a region is not symmetric in its operands (which of equal elements an argmax finds, how a mean of means is
    rounded), lanes may end with different results. All then take that of the first lane.
    """
    along = layout.axis_bits("lane", op.axis)
    bits = [b for b in range(layout.bits("lane")) if along >> b & 1]
    elems = [elem_of(v.type) for v in op.inputs]
    count = len(rows[0])
    if len(bits) == WHOLE_WARP and count < SHARED_RESULTS and fl.target.facts().has_redux:
        kind = kind_of(op)
        if kind and apply("warp-reductions", op):
            return of_a_warp(fl, op, kind, rows)
    several = count >= SHARED_RESULTS and len(bits) > 1
    shared = bits[: count.bit_length() - 1] if several else []
    for b in bits:
        sent = rows
        if b in shared:
            rows, sent = _halves(fl, elems, rows, b)
        others = [[shuffle_xor(fl, elem, x, 1 << b) for x in row] for elem, row in zip(elems, sent)]
        rows = combine(fl, op.combine, rows, others)
    if not shared and (is_symmetric(op.combine) or not bits):
        return rows
    return _handed_round(fl, elems, rows, shared, count, sum(1 << b for b in bits))


def _halves(
    fl: FunctionLowering, elems: Sequence[Any], rows: Sequence[Row], bit: int
) -> tuple[list[Row], list[Row]]:
    """Return (what a lane keeps, what it sends): lanes without the bit keep the first half."""
    upper = fl.w.pure(f"icmp ne i32 {fl.w.pure(f'and i32 {fl.lane}, {1 << bit}')}, 0")
    keep: list[Row] = []
    hand: list[Row] = []
    for elem, row in zip(elems, rows):
        type, half = llvm_type(elem), len(row) // 2
        pairs = list(zip(row[:half], row[half:]))
        keep.append([fl.w.pure(f"select i1 {upper}, {type} {y}, {type} {x}") for x, y in pairs])
        hand.append([fl.w.pure(f"select i1 {upper}, {type} {x}, {type} {y}") for x, y in pairs])
    return keep, hand


def is_symmetric(block: Block) -> bool:
    """Whether exchanging the operands leaves the region's result bit-identical."""
    first, *others = block
    return (
        len(others) == 1 and isinstance(first, SYMMETRIC) and set(first.operands) == set(block.args)
    )


def _handed_round(
    fl: FunctionLowering,
    elems: Sequence[Any],
    rows: Sequence[Row],
    bits: Sequence[int],
    count: int,
    group: int,
) -> list[Row]:
    """Return all `count` results in every lane: the first of `bits` chose a half, the next one of its halves, and so
    on.

    `group` has the bits of all lanes that share results; those not among `bits` take the first of these lanes' results.
    """
    each = count >> len(bits)
    others = fl.w.pure(f"and i32 {fl.lane}, {~group}")
    lanes: list[str] = []
    for part in range(1 << len(bits)):
        chosen = [b for i, b in enumerate(reversed(bits)) if part >> i & 1]
        lanes.append(fl.w.pure(f"or i32 {others}, {sum(1 << b for b in chosen)}"))
    return [
        [shuffle_index(fl, elem, row[i % each], lanes[i // each]) for i in range(count)]
        for elem, row in zip(elems, rows)
    ]


def shuffle_xor(fl: FunctionLowering, elem: ElementType, x: str, mask: int) -> str:
    regs = [fl.target.shuffle_xor(fl.w, reg, mask) for reg in to_reg32(fl, elem, x)]
    return from_reg32(fl, elem, regs)


def shuffle_index(fl: FunctionLowering, elem: ElementType, x: str, lane: str) -> str:
    regs = [fl.target.shuffle_index(fl.w, reg, lane) for reg in to_reg32(fl, elem, x)]
    return from_reg32(fl, elem, regs)


def _across_warps(
    fl: FunctionLowering, op: tile.ReduceOp, rest: LinearLayout, rows: list[Row], warps: list[int]
) -> list[Row]:
    """Let each warp write its part; after a barrier every warp reads all parts and combines them.

    If there are many parts, each lane reads one: shuffles take a little longer but no registers.
    """
    parts = 1 << len(warps)
    live = [i for i, first in enumerate(rest.register_representatives()) if i == first]
    owner = fl.owner_mask(rest, distinct_warps=sum(1 << b for b in warps))
    lanes = _idle_lanes(rest, len(warps)) if parts > VECTOR_PARTS else []
    shared = shares_parts(op) and apply("share-parts", op)
    slots = spread(rest, parts) if shared else parts_of(rest, parts, bool(lanes))
    start: int = op.attrs["scratch"]
    reads: list[tuple[Any, Row]] = []
    for v, row in zip(op.inputs, rows):
        elem = elem_of(v.type)
        write = part_addresses(fl, rest, elem, start, slots, warps=warps)
        for i in range(0, len(live), slots.together):
            values = [row[k] for k in live[i : i + slots.together]]
            store_elements(fl, elem, write[live[i]], values, owner)
        reads.append((elem, part_addresses(fl, rest, elem, start, slots, lanes=lanes)))
        start += area(elem, rest.num_elements * parts)
    fl.target.barrier(fl.w)
    if shared:
        new = _shared_parts(fl, op, rest, slots, live)
    elif lanes:
        new = [[load_elements(fl, elem, read[i], 1)[0] for i in live] for elem, read in reads]
        for lane in reversed(lanes):
            others = [
                [shuffle_xor(fl, elem, x, 1 << lane) for x in row]
                for (elem, _), row in zip(reads, new)
            ]
            new = combine(fl, op.combine, new, others)
        if not is_symmetric(op.combine):
            group = sum(1 << b for b in lanes)
            new = _handed_round(fl, [elem for elem, _ in reads], new, [], len(live), group)
    else:
        new = _read_all(fl, op, reads, live, slots, parts)
    place = {i: n for n, i in enumerate(live)}
    return [[row[place[i]] for i in rest.register_representatives()] for row in new]


def _shared_parts(
    fl: FunctionLowering, op: tile.ReduceOp, rest: LinearLayout, slots: Slots, live: Sequence[int]
) -> list[Row]:
    """Let neighbouring lanes read the parts of one result and combine them; after another barrier all threads read the
    results that they need, which lie behind the parts."""
    bits = len(axis_warp_bits(op.inputs[0].type.layout, op.axis))
    elems = [elem_of(v.type) for v in op.inputs]
    count = result_elements(op) << bits
    register, lane, warp = reader_columns(fl, count)
    idle = sum(1 << b for b, c in enumerate((*lane, *warp)) if c == 0)
    owner = _has_first_part(fl, slots, idle)  # of the lanes that read parts of the same result
    start: int = op.attrs["scratch"]
    rows: list[Row] = []
    for elem in elems:
        size = elem.storage_bytes
        read = fl.shared_addresses(start, *([c * size for c in d] for d in (register, lane, warp)))
        rows.append([load_elements(fl, elem, address, 1)[0] for address in read])
        start += area(elem, count)
    for b in reversed(range(bits)):
        sent = [[shuffle_xor(fl, elem, x, 1 << b) for x in row] for elem, row in zip(elems, rows)]
        rows = combine(fl, op.combine, rows, sent)
    results: list[int] = []
    for elem, row in zip(elems, rows):
        size = elem.storage_bytes
        columns = ([slots.element_at(c) * size for c in d] for d in (register, lane, warp))
        for address, x in zip(fl.shared_addresses(start, *columns), row, strict=True):
            store_elements(fl, elem, address, [x], owner)
        results.append(start)
        start += area(elem, result_elements(op))
    fl.target.barrier(fl.w)
    return [read_results(fl, elem, rest, live, at) for elem, at in zip(elems, results, strict=True)]


def _has_first_part(fl: FunctionLowering, slots: Slots, idle: int) -> str:
    """Return an i1: whether the thread reads part 0 of a result, and has none of the bits `idle`."""
    bits = len(slots.part_columns)
    low = (1 << bits) - 1
    with fl.w.hoist():
        turned = fl.w.pure(f"lshr i32 {fl.thread}, 5") if slots.turned else "0"
        part = fl.w.pure(f"and i32 {fl.w.pure(f'xor i32 {fl.thread}, {turned}')}, {low}")
        rest = fl.w.pure(f"and i32 {fl.thread}, {idle & ~low}")
        return fl.w.pure(f"icmp eq i32 {fl.w.pure(f'or i32 {part}, {rest}')}, 0")


def read_results(
    fl: FunctionLowering,
    elem: ElementType,
    rest: LinearLayout,
    live: Sequence[int],
    start: int,
    warps: Sequence[int] = (),
    apart: tuple[int, ...] = (),
) -> Row:
    """Read the results of a thread, neighbours together. If each part of the `warps` has its own: those of its part,
    which are `apart` elements apart, by bit of the part's number."""
    slots = replace(parts_of(rest, 1, False), part_columns=apart)
    addresses = part_addresses(fl, rest, elem, start, slots, warps=warps)
    row: Row = []
    step = neighbours(rest)
    for i in range(0, len(live), step):
        row += load_elements(fl, elem, addresses[live[i]], step)
    return row


def _idle_lanes(rest: LinearLayout, count: int) -> list[int]:
    """Return `count` bits of the lane that do not move the result; [] if there are fewer."""
    idle = [b for b, column in enumerate(rest.columns("lane")) if column == 0]
    return idle[:count] if len(idle) >= count else []


def _read_all(
    fl: FunctionLowering,
    op: tile.ReduceOp,
    reads: Sequence[tuple[Any, Row]],
    live: Sequence[int],
    slots: Slots,
    parts: int,
) -> list[Row]:
    found = read_parts(fl, reads, live, slots, parts, range(parts))
    while len(found) > 1:
        half = len(found) // 2
        found = [combine(fl, op.combine, found[j], found[j + half]) for j in range(half)]
    return found[0]


def read_parts(
    fl: FunctionLowering,
    reads: Sequence[tuple[Any, Row]],
    live: Sequence[int],
    slots: Slots,
    parts: int,
    wanted: Sequence[int],
) -> list[list[Row]]:
    """Read the `wanted` of all parts of a thread's elements `live`: rows by part and by operand. `reads`: the type of
    each operand, and the addresses of its parts 0."""
    found: list[list[Row]] = [[[] for _ in reads] for _ in wanted]
    for k, (elem, read) in enumerate(reads):
        for i in range(0, len(live), slots.together):
            if slots.apart:
                far = slots.apart * elem.storage_bytes
                loaded = [
                    load_elements(
                        fl, elem, fl.w.add("i32", read[live[i]], str(n * far)), slots.together
                    )
                    for n in wanted
                ]
            else:
                vector = load_elements(fl, elem, read[live[i]], parts)
                loaded = [[vector[n]] for n in wanted]
            for part, values in zip(found, loaded, strict=True):
                part[k] += values
    return found
