"""Dots on matrix instructions of warpgroups (four warps), which read their operands from shared memory themselves.

    %d = dot %a, %b, %c      →      %dl = wgmma %as, %bs, %cl        %as, %bs: swizzled shared memory

A operand that was computed in registers (the weights of attention) stays there. Every product waits for its
result here; the pipeline lets the products of a loop run on into the next iteration where it can."""

from __future__ import annotations

from math import prod
from typing import Any

from tessera.dtypes import float32
from tessera.ir import Builder, SharedType, Value, elem_of, shape_of
from tessera.layout import LinearLayout, shared_swizzled, wgmma_acc, wgmma_operand_a, widest_swizzle
from tessera.ops import ConvertLayoutOp, DescriptorLoadOp, DotOp, LoadOp, LocalAllocOp, WgmmaOp
from tessera.passes.facts import GpuFacts, WgmmaRow
from tessera.passes.operands import drop_unused, memory_order, shared_view, source_of

ROWS = 64  # of one instruction
WARPS = 4
ACC_WORDS = 208  # registers of accumulators beyond which a thread has no room left to work
SWIZZLES = (128, 64, 32)


def use_warpgroups(op: DotOp, facts: GpuFacts, num_warps: int) -> bool:
    """Replace the dot if an instruction of warpgroups serves it."""
    row = _row(op, facts, num_warps)
    if row is None:
        return False
    _rewrite(op, row, num_warps // WARPS)
    return True


def _row(op: DotOp, facts: GpuFacts, num_warps: int) -> WgmmaRow | None:
    shape = shape_of(op.acc.type)
    if num_warps % WARPS or len(shape) != 2 or shape[0] < ROWS:
        return None
    groups = num_warps // WARPS
    along_m, along_n = _warpgroups(shape[0], groups)
    words = prod(shape) // (groups * 128)
    if shape[0] % (ROWS * along_m) or shape[1] // along_n < 16 or words > ACC_WORDS:
        return None
    a, b, acc = (elem_of(v.type) for v in op.operands)
    tf32 = "tf32" if a is float32 else ""
    if tf32 and op.precision != "tf32":
        return None
    row = facts.find_wgmma(a, b, acc, shape_of(op.a.type)[-1], tf32)
    if row is None or (tf32 and not _is_loaded(op.a)):
        return None
    for v, depth in ((op.a, 1), (op.b, 0)):
        order = _order(v, depth, row)
        if order is None or not _fits(v, order, depth, row, along_n if depth == 0 else 1):
            return None
    return row


def _warpgroups(rows: int, groups: int) -> tuple[int, int]:
    """(along M, along N): each group has 64 rows at least."""
    along_m = min(groups, rows // ROWS)
    return along_m, groups // along_m


def _is_loaded(v: Value) -> bool:
    return isinstance(source_of(v)[0].op, LoadOp | DescriptorLoadOp)


def _order(v: Value, depth: int, row: WgmmaRow) -> tuple[int, ...] | None:
    """Order in which an operand lies in shared memory (`depth`: the dimension K); None if the row cannot read
    it so."""
    source, orders = source_of(v)
    if isinstance(source.op, LoadOp | DescriptorLoadOp):
        order = memory_order(source.op)
        for permutation in reversed(orders):
            order = tuple([permutation.index(d) for d in order])
    else:
        order = (1, 0) if row.transposable or depth == 1 else (0, 1)
    return order if order[0] == depth or row.transposable else None


def _fits(v: Value, order: tuple[int, ...], depth: int, row: WgmmaRow, parts: int) -> bool:
    """Whether rows fill a swizzle, and parts of the tile for several warpgroups begin at whole rows of it."""
    shape = shape_of(v.type)
    width = widest_swizzle(shape, order, row.a.bits)
    if width not in SWIZZLES or shape[order[1]] < 8:
        return False
    return order[0] == depth or shape[order[0]] // parts * row.a.bits // 8 >= width


def _rewrite(op: DotOp, row: WgmmaRow, groups: int) -> None:
    b = Builder.before_op(op)
    shape: Any = shape_of(op.acc.type)
    along_m, along_n = _warpgroups(shape[0], groups)
    n = min(shape[1] // along_n, row.max_n)
    layout = wgmma_acc(shape, along_m, n, warpgroups_n=along_n)
    acc = b.emit(ConvertLayoutOp(op.acc, results=[op.acc.type.with_layout(layout)]))
    if _is_loaded(op.a):
        a = _shared(b, op.a, 1, row)
    else:
        held = wgmma_operand_a(shape_of(op.a.type), along_m, row.a.bits, warpgroups_n=along_n)  # type: ignore[arg-type]
        a = b.emit(ConvertLayoutOp(op.a, results=[op.a.type.with_layout(held)]))
    groups_of = (along_m, along_n)
    product = WgmmaOp(a, _shared(b, op.b, 0, row), acc, instruction=row.name, warpgroups=groups_of)
    acc = b.emit(product)
    acc.name = op.result.name
    sources = [op.a, op.b]
    op.replace_by([b.emit(ConvertLayoutOp(acc, results=[acc.type.with_layout(None)]))])
    for v in sources:
        drop_unused(v)


def _shared(b: Builder, v: Value, depth: int, row: WgmmaRow) -> Value:
    """A view of `v` in shared memory in the swizzle of the hardware."""
    order = _order(v, depth, row)
    assert order is not None
    source, orders = source_of(v)
    if isinstance(source.op, LoadOp | DescriptorLoadOp):
        return shared_view(source.op, orders, _swizzled(source.type, memory_order(source.op)))
    shared = SharedType(v.type.shape, v.type.elem, _swizzled(v.type, order))
    return b.emit(LocalAllocOp(v, results=[shared], names=[v.name]))


def _swizzled(t: Any, order: tuple[int, ...]) -> LinearLayout:
    bits = t.elem.storage_bits
    return shared_swizzled(t.shape, order, bits, widest_swizzle(t.shape, order, bits))
