"""Decides which values are evaluated lazily inside the loop of their user and which are kept in a buffer.

Before a sink runs, everything that it needs is visited, operands before users. A value goes into a buffer

* while the sink's own loop computes it, if other sinks need it again, it costs more than a few instructions and the
  loop visits each of its elements exactly once;
* in a loop of its own before the sink, if it is under a broadcast (or another map of indices) and costs more than
  an address, or if an op needs all of it (gather, reshapes that move elements between lanes);
* at its place in program order, if it is a load that is still needed after a write to memory, or that a store would
  overtake.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from tessera.analysis.provenance import reached
from tessera.backends.cpu import remarks
from tessera.backends.cpu.aliases import may_fuse
from tessera.backends.cpu.bounds import Prefix, prefix_masks
from tessera.backends.cpu.chains import (
    INDEX_DEPTH,
    SHAPE_OPS,
    cost,
    instructions,
    integers_only,
    needed_after,
    position_of,
    release_dead,
)
from tessera.backends.cpu.exchange_partners import takes_partners
from tessera.backends.cpu.loops import Nest, Stream, Strips, each, nest
from tessera.backends.cpu.lowering import Buffer, Lowering
from tessera.backends.cpu.transpose import Convert, transposed_dimension, transposed_fill
from tessera.backends.cpu.values import Point, Val, is_unit
from tessera.dtypes import dtype, int1, pointer_type
from tessera.ir import Op, Value, elem_of, shape_of
from tessera.ir.applications import apply
from tessera.ops import arith, memory, tile

KEEP_SHARED = 4.0  # cost from which a value of several sinks is computed only once (tools/fit)
KEEP_BROADCAST = 2.0  # cost from which a value under a broadcast gets a buffer (tools/fit)
LONGEST = 512  # instructions of vectors without a loop: far behind what fills a processor's units, and much to compile
DEEPEST = 256  # ops between buffers and a lazy value
KEEP_CAPTURED = 1.0  # cost from which a value that a loop captures gets a buffer (tools/fit)


def bound_depth(lo: Lowering, op: Op) -> None:
    """Materialise the results of `op` if a chain of lazy ops gets longer than DEEPEST: traversals of lazy ops are
    recursive, and a materialised value starts a new chain."""
    deep = 1 + max((lo.depth.get(x, 0) for x in op.operands if lo.lazy(x)), default=0)
    for r in op.results:
        lo.depth[r] = deep
        if (
            deep >= DEEPEST
            and op not in lo.chained
            and not isinstance(elem_of(r.type), pointer_type)
        ):
            materialise(lo, r, op)


# --- keeping ----------------------------------------------------------------------------------------------
def materialise(lo: Lowering, v: Value, sink: Op | None = None) -> Buffer:
    """Compute a tile into a buffer now."""
    found = lo.buffers.get(v)
    if found is not None:
        return found
    _finish_accumulators(lo, v)
    outer, lo.memo_buffers = lo.memo_buffers, {}
    prepare(lo, [v], sink, keep_top=False, buffered=True)
    buffer = lo.allocate(elem_of(v.type), shape_of(v.type))
    fill(lo, buffer, v)
    finish_memo_buffers(lo)
    lo.memo_buffers = outer
    lo.keep(v, buffer)
    # Arms and iterations forget their buffers at their end, and the next arm may compute `v` again.
    if sink is not None and sink.parent is lo.block and not (sink.regions or sink.terminator):
        release_dead(lo, lo.position[sink] - 1, v)
    return buffer


def _finish_accumulators(lo: Lowering, v: Value) -> None:
    """Finish the accumulators that a store was to finish block by block, if `v` needs them before."""
    if not lo.strips:
        return
    needed = reached([v], lo.sources)
    for store, strips in list(lo.strips.items()):
        if not needed.isdisjoint(strips.accumulators):
            del lo.strips[store]
            strips.finish()


def fill(lo: Lowering, buffer: Buffer, v: Value, convert: Convert | None = None) -> None:
    """Compute `v` into `buffer` by a loop of its own; `convert` is applied to each vector."""
    change = convert or _unchanged
    turned = transposed_dimension(lo, v)
    if turned is not None:
        transposed_fill(lo, buffer, v, turned, change)
    else:
        plan = repeated(lo, nest(lo, buffer.shape), [v])
        write = lo.access.store
        each(
            lo,
            plan,
            lambda at: write(lo, buffer, at, change(lo.value(v, at))),
            masks_of(lo, [v], plan),
        )
    buffer.version = lo.new_version()


def _unchanged(x: Val) -> Val:
    return x


def run(
    lo: Lowering,
    plan: Nest,
    body: Callable[[Point], None],
    values: Iterable[Value],
    stream: Stream | None = None,
    head: str = "",
    strips: Strips | None = None,
    mask: Value | None = None,
    last: bool = True,
) -> None:
    """Emit the nest of a sink that uses `values` at its points. `mask`: where the sink has an effect. `last`: memoised
    buffers are valid afterwards, as no other nest fills the same ones."""
    plan = repeated(lo, plan, values := list(values))
    masks = masks_of(lo, values, plan, mask)
    ends = [p for p in masks if mask is not None and p in prefix_masks(lo, mask, plan.group[0])]
    tops = prefix_masks(lo, mask, 0) if mask is not None and strips is not None else []
    known = [*ends, *tops]
    if lo.memo_buffers or not known or not apply("mask-ends", known[0].compare):
        ends, tops = [], []
    each(lo, plan, body, masks, stream=stream, head=head, strips=strips, ends=ends, row_ends=tops)
    if last:
        finish_memo_buffers(lo)


def repeated(lo: Lowering, plan: Nest, values: Collection[Value]) -> Nest:
    """Return the nest with several vectors per iteration if one is little work, and with a loop over few vectors, too,
    if one is much."""
    price = sum(cost(lo, v, enough=LONGEST) for v in values)
    if plan.vectors * sum(instructions(lo, v, enough=LONGEST) for v in values) > LONGEST:
        plan = replace(plan, most=1)
    if not apply("vector-unroll"):
        return plan
    return replace(plan, times=4 if price <= 6 else 2 if price <= 24 else 1)


def finish_memo_buffers(lo: Lowering) -> None:
    """Keep the memoised buffers that the loop has filled. A value that the loop did not evaluate, since all its users
    were in buffers, stays lazy."""
    for v, buffer in lo.memo_buffers.items():
        if v in lo.memo_filled and v not in lo.buffers:
            buffer.version = lo.new_version()
            lo.keep(v, buffer)
    lo.narrowed = {v: narrow for v, narrow in lo.narrowed.items() if narrow not in lo.memo_buffers}
    lo.memo_buffers = {}


def prepare(
    lo: Lowering,
    values: Iterable[Value],
    sink: Op | None,
    loop: Iterable[Value] | None = None,
    keep_top: bool = True,
    buffered: bool = False,
) -> None:
    """Materialise what the loop over `values` should not compute itself.

    `loop`: the values whose elements the loop visits exactly once and in their own shape; None: all of `values`.
    Without `keep_top` the values themselves are not kept, since this loop is the one that stores them. `buffered`: it
    stores them where later loops find them.
    """
    values = list(values)
    visited_once = set(values if loop is None else loop)
    reach: dict[Value, bool] = {}  # value → whether every path to it keeps the indices; post-order
    order: list[Value] = []
    placed: set[Value] = set()

    def visit(v: Value, direct: bool) -> None:
        if not lo.lazy(v):
            return
        if v in reach:
            if direct or not reach[v]:
                return
            reach[v] = False
        else:
            reach[v] = direct
        op = v.op
        assert op is not None
        keeps = direct and not isinstance(op, (*SHAPE_OPS, tile.GatherOp))
        for x in op.operands:
            visit(x, keeps)
        if v not in placed:
            placed.add(v)
            order.append(v)

    position = position_of(lo, sink)
    for v in values:
        visit(v, v in visited_once)
    memoised: set[Value] = set()
    for v in order:
        if v not in lo.buffers and _decide(lo, v, reach[v], v in values, position, sink, keep_top):
            memoised.add(v)
    _memoise(lo, order, memoised, sink, values if buffered else ())
    for v in values if keep_top else ():
        if lo.lazy(v) and v not in lo.memo_buffers and transposed_dimension(lo, v) is not None:
            materialise(lo, v, sink)


def _decide(
    lo: Lowering, v: Value, direct: bool, top: bool, position: int, sink: Op | None, keep_top: bool
) -> bool:
    """Materialise `v`, or what it maps, if the loop should not compute it. Return whether to memoise `v`, if a later
    loop needs it."""
    op = v.op
    if isinstance(op, tile.GatherOp) and not takes_partners(op):
        materialise(lo, op.x, sink)
    if isinstance(op, tile.ReshapeOp) and lo.lazy(op.x) and _moves_lanes(op):
        materialise(lo, op.x, sink)
    if _is_address(v) or (top and not keep_top):
        return False
    # Each element is read at two places, where arithmetic on integers is no cheaper than a load.
    paired = any(isinstance(u, tile.GatherOp) for u, _ in v.uses)
    price = (instructions if paired else cost)(lo, v, enough=KEEP_SHARED)
    if not direct and not top and price >= KEEP_BROADCAST and _feeds_map(v):
        materialise(lo, v, sink)
    elif sink is not None and _worth(op):
        if direct:
            return instructions(lo, v, enough=KEEP_SHARED) >= KEEP_SHARED
        if not top and price >= KEEP_SHARED and needed_after(lo, v, position):
            materialise(lo, v, sink)
    return False


def _memoise(
    lo: Lowering,
    order: list[Value],
    candidates: set[Value],
    sink: Op | None,
    buffered: Iterable[Value],
) -> None:
    """Make buffers for those candidates that later loops need. From users to operands: a value that only memoised
    values are computed from is not needed again."""
    position, later = position_of(lo, sink), dict.fromkeys(buffered, False)
    asked: set[Value] = (
        set()
    )  # candidates and what is computed from them: constants may have thousands of users
    for v in order:
        if v in candidates or (v.op is not None and not asked.isdisjoint(v.op.operands)):
            asked.add(v)
    for v in reversed(order):
        if v in later or v not in asked:
            continue
        later[v] = needed_after(lo, v, position, later)
        if not later[v] or v not in candidates or v in lo.buffers:
            continue
        if not apply("memo-buffers", v.op):
            materialise(lo, v, sink)
            continue
        kept = _needed_later(lo, v, position, later)
        if kept is not v:
            lo.narrowed[v] = kept
        lo.memo_buffers[kept] = lo.allocate(elem_of(kept.type), shape_of(kept.type))
        lo.memo_filled.discard(kept)
        later[v] = False


def _needed_later(lo: Lowering, v: Value, position: int, later: dict[Value, bool]) -> Value:
    """Return the value needed after `position`: `v`, or only the narrower one that it is cast to."""
    casts: list[Value] = []
    for user, _ in v.uses:
        lazy = [r for r in user.results if lo.lazy(r)]
        if not lazy and lo.position.get(user, position) <= position:
            continue
        if lazy and not any(needed_after(lo, r, position, later) for r in lazy):
            continue
        if not lazy or not isinstance(user, arith.CastOp):
            return v
        casts += lazy
    small = len(casts) == 1 and elem_of(casts[0].type).bits < elem_of(v.type).bits
    return casts[0] if small else v


def _is_address(v: Value) -> bool:
    """Whether `v` is a tile of pointers, whose affine form beats any buffer, or of integers or masks."""
    e = elem_of(v.type)
    return not isinstance(e, dtype) or (not e.is_floating() and integers_only(v, INDEX_DEPTH))


def _feeds_map(v: Value) -> bool:
    """Whether an op that changes indices uses `v`, so that it would be computed several times."""
    return any(isinstance(u, (*SHAPE_OPS, tile.GatherOp)) for u, _ in v.uses)


def _worth(op: Op | None) -> bool:
    """Whether to keep an op's result. Maps of indices cost nothing themselves: their operand is kept instead."""
    return not isinstance(op, SHAPE_OPS)


def _moves_lanes(op: tile.ReshapeOp) -> bool:
    """Whether index arithmetic on vectors cannot follow a reshape: with extents that are not powers of two, lanes carry
    in ways known only at run time."""
    return any(s & (s - 1) for s in (*shape_of(op.result.type), *shape_of(op.x.type)))


# --- order of effects ---------------------------------------------------------------------------------------
def flush(
    lo: Lowering,
    op: Op,
    direct: Iterable[Value] = (),
    addresses: Collection[Value] = (),
    repeats: bool = False,
) -> None:
    """Execute the loads that the write `op` would overtake. `direct`: what its own loop computes at the index that it
    writes, to `addresses`; loads in there may stay lazy. `repeats`: it may write an element several times."""
    inside = _direct_loads(lo, direct if addresses else ())
    for v in list(lo.pending):
        if v not in lo.buffers and needed_after(lo, v, lo.position[op] - 1):
            later = needed_after(lo, v, lo.end[op])
            if later or v not in inside or not all(may_fuse(lo, v, x, repeats) for x in addresses):
                materialise(lo, v, op)
                remarks.kept_before_store(lo, v, op, later)
        del lo.pending[v]


def _direct_loads(lo: Lowering, values: Iterable[Value]) -> set[Value]:
    """Return the loads that reach `values` through element-wise ops only."""
    found: dict[Value, bool] = {}

    def visit(v: Value, direct: bool) -> None:
        old = found.get(v)
        if not lo.lazy(v) or old is False or old is direct:
            return
        found[v] = direct
        assert v.op is not None
        keeps = direct and not isinstance(v.op, (*SHAPE_OPS, tile.GatherOp))
        for x in v.op.operands:
            visit(x, keeps)

    for v in values:
        visit(v, True)
    return {v for v, direct in found.items() if direct and isinstance(v.op, memory.LoadOp)}


# --- choice of loops ------------------------------------------------------------------------------------------
def masks_of(
    lo: Lowering, values: Iterable[Value], plan: Nest, mask: Value | None = None
) -> list[Prefix]:
    """Return masks of loads (and selects) that `values` reach at their own indices, to split the vector loop; `mask`:
    that of the sink itself."""
    if len(plan.group) != 1:
        return []
    found: dict[Value, Prefix] = {}
    seen: set[Value] = set()

    def visit(v: Value, access: bool) -> None:
        if v in seen or not lo.lazy(v) or shape_of(v.type) != plan.shape:
            return
        seen.add(v)
        op = v.op
        assert op is not None
        if elem_of(v.type) is int1:
            parts = prefix_masks(lo, v, plan.group[0], even=access)
            found.update({p.mask: p for p in parts})
            if any(p.mask is v for p in parts):
                return
        if not isinstance(op, SHAPE_OPS):
            for x in op.operands:
                visit(x, isinstance(op, memory.LoadOp) or (access and isinstance(op, arith.AndOp)))
        if isinstance(op, memory.LoadOp) and op.mask is not None:
            remarks.tested_each_time(lo, op, op.mask, plan.group[0])

    for v in values:
        visit(v, v is mask)
    return [p for p in found.values() if apply("mask-split", p.compare)]


def any_start(lo: Lowering, values: Iterable[Value], shape: tuple[int, ...]) -> bool:
    """Whether vectors of `values` may start at any element: each lane depends on its own index alone, not on promises
    about blocks of lanes or on maps of indices."""
    lazy = (v for v in reached(values, lo.sources) if lo.lazy(v))
    mixes = (arith.HintOp, tile.GatherOp)
    return not any(isinstance(v.op, mixes) or shape_of(v.type) != shape for v in lazy)


def contiguous_dimension(lo: Lowering, ptr: Value) -> int | None:
    """Return the dimension along which a tile of pointers is contiguous if it is not the last; None if the last one is
    or none is."""
    shape = shape_of(ptr.type)
    width = lo.facts.lanes
    for d in range(len(shape) - 1, -1, -1):
        n = min(shape[d] & -shape[d], width)
        if n > 1 and contiguous_along(lo, ptr, d, n):
            return None if d == len(shape) - 1 else d
    return None


def contiguous_along(lo: Lowering, ptr: Value, dim: int, lanes: int, first: int = 0) -> bool:
    """Whether the addresses along `dim` from index `first` on are consecutive elements."""
    x = lo.probe(ptr, dim, first, lanes)
    return x.affine and not x.step and x.lanes == lanes and is_unit(x.pattern)
