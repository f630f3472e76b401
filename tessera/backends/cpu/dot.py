"""Lowers dots by their plans (dot_plan.py): puts the operands where the instructions read them, and finds the
accumulator.

If A is a plain contiguous load, it is read in place (a masked one if its mask is all true at run time); otherwise it is
copied to a row-major buffer. B is packed in panels (pack_cache.py), or read in place where packing would not pay.
Successive dots that add to one accumulator are the terms of one multiplication: the accumulator stays in registers
between them.
"""

from __future__ import annotations

from math import prod

from tessera.backends.cpu import remarks
from tessera.backends.cpu.dot_plan import DotPlan, compute_type, plan_dot
from tessera.backends.cpu.few_rows import multiply_columns, read_once, unmasked, whole
from tessera.backends.cpu.fusion import fill, finish_memo_buffers, materialise, prepare
from tessera.backends.cpu.gemm import Gemm, gemm
from tessera.backends.cpu.k_loops import prepack_obstacle
from tessera.backends.cpu.llvm_text import scalar_type
from tessera.backends.cpu.loops import each, nest
from tessera.backends.cpu.lowering import Buffer, Lowering, executes
from tessera.backends.cpu.memory import to_buffer
from tessera.backends.cpu.operands import (
    Columns,
    Computed,
    Either,
    Left,
    Packed,
    Right,
    in_place,
    left_in_place,
)
from tessera.backends.cpu.pack_cache import loop_around, packed_panels, shared_rows
from tessera.backends.cpu.transpose import Convert, transposed_dimension
from tessera.backends.cpu.values import Val
from tessera.backends.elements.casts import cast
from tessera.dtypes import dtype, int32
from tessera.ir import Effect, Value, elem_of, shape_of
from tessera.ir.applications import apply
from tessera.ops import AddOp, ConstOp, DotOp, LoadOp, MulOp, SubOp

PACK_ROWS = 96  # rows of c from which it pays to copy B for one program alone


@executes(DotOp)
def _dot(lo: Lowering, op: DotOp) -> None:
    if op in lo.packs:
        lo.packs[op]()
        lo.keep(op.result, lo.buffers[op.acc])
        return
    if _is_chained(op):
        lo.chained[op] = None  # it runs together with the dot that adds to its result
        return
    links = _chain(lo, op)
    acc = elem_of(op.acc.type)
    c, zero = accumulator(lo, links[0], compute_type(acc))
    rank = len(c.shape)
    strategy = "batch" if rank > 2 else "chain" if len(links) > 1 else "in place"
    loop = loop_around(op)
    why = "" if loop is None else prepack_obstacle(lo.facts, loop, op)
    if loop is not None:
        remarks.packed_each_time(lo, op, loop, why)
    plans = [plan_dot(lo.facts, link, strategy, why) for link in links]
    if rank > 2:
        _multiply_batch(lo, links, plans[0], c, zero)
    elif len(links) == 1 and (once := read_once(lo, op, plans[0])) is not None:
        _multiply_once(lo, op, plans[0], once, (c.ptr, zero))
    else:
        rights = [_right(lo, link, plan) for link, plan in zip(links, plans, strict=True)]
        lefts = [_left(lo, link, plan) for link, plan in zip(links, plans, strict=True)]
        depths = [plan.k_groups for plan in plans]
        gemm(lo, Gemm(plans[0], list(zip(lefts, rights, depths, strict=True)), c.ptr, zero))
    lo.state.plans += plans
    c.version = lo.new_version()
    for link in links:
        lo.chained.pop(link, None)
    lo.keep(op.result, c if acc == c.elem else rounded(lo, c, acc))


def _multiply_once(
    lo: Lowering, op: DotOp, plan: DotPlan, once: Computed | Columns, c: tuple[str, str]
) -> None:
    """Multiply few rows: B is read once, or packed where it is masked. `c`: its address, and whether it counts as 0."""
    left, condition = _left(lo, op, plan), whole(lo, op.b)

    def read() -> None:
        with unmasked(lo, op.b):
            if isinstance(once, Columns):
                multiply_columns(lo, plan, left, once, *c)
            else:
                gemm(lo, Gemm(plan, [(left, once, plan.k_groups)], *c))

    def packed() -> None:
        gemm(lo, Gemm(plan, [(left, packed_panels(lo, plan, op), plan.k_groups)], *c))

    lo.em.choose(condition, read, packed)
    how = "read along k" if isinstance(once, Columns) else "read once"
    plan.placed["B"] = how if condition == "true" else f"{how}, or packed where masked"


def _is_chained(op: DotOp) -> bool:
    """Whether the result is only the accumulator of another dot of the block, with no write in between."""
    (*_, last) = op.result.uses or (None,)
    if last is None or len(op.result.uses) != 1 or not isinstance(last[0], DotOp) or last[1] != 2:
        return False
    if last[0].parent is not op.parent or any(
        shape_of(x.type) != shape_of(y.type) or elem_of(x.type) != elem_of(y.type)
        for x, y in zip(op.operands[:2], last[0].operands[:2], strict=True)
    ):
        return False
    between = op.next
    while between is not last[0]:
        if between is None or between.all_effects() & (Effect.WRITE | Effect.SYNC):
            return False
        between = between.next
    return elem_of(op.acc.type).bits >= 32 and apply("dot-chains", op)


def _chain(lo: Lowering, op: DotOp) -> list[DotOp]:
    """Return the chain of dots that ends with `op`, in order: each adds to the result of the one before."""
    links = [op]
    while isinstance(links[0].acc.op, DotOp) and links[0].acc.op in lo.chained:
        links.insert(0, links[0].acc.op)
    return links


def _right(lo: Lowering, op: DotOp, plan: DotPlan) -> Right:
    """Return B in place, or in panels."""
    load = op.b.op
    if plan.path.t is plan.acc and plan.m < PACK_ROWS:
        placed = in_place(lo, op.b, plan.t)
        if placed is not None and isinstance(load, LoadOp) and load.mask is None:
            plan.placed["B"] = "in place"
            return placed
    return packed_panels(lo, plan, op)


def _left(lo: Lowering, op: DotOp, plan: DotPlan) -> Left:
    """Return A in place, in a copy, or either as its mask decides at run time."""
    t = int32 if plan.path.k_pack > 1 else plan.t
    placed = left_in_place(lo, op.a, plan)
    condition = "false" if placed is None else whole(lo, op.a)
    if placed is not None and condition == "true":
        plan.placed["A"] = "in place"
        return placed
    if placed is None or condition == "false":
        convert = casting(lo, elem_of(op.a.type), plan.t)
        if shared := shared_rows(lo, plan, op, convert):
            plan.placed["A"] = "shared"
            return Packed(shared, t, plan.k_groups)
        plan.placed["A"] = "copied"
        return Packed(operand_buffer(lo, op, op.a, plan.t).ptr, t, plan.k_groups)
    plan.placed["A"] = "in place, or copied where masked"
    buffer = lo.allocate(plan.t, (plan.m, plan.k))
    with lo.em.branch(condition, negate=True):
        fill(lo, buffer, op.a, casting(lo, elem_of(op.a.type), plan.t))
    lo.temporaries.append(buffer)
    return Either(condition, placed, Packed(buffer.ptr, t, plan.k_groups), placed.affine)


# --- batches ------------------------------------------------------------------------------------------------------
def _multiply_batch(lo: Lowering, links: list[DotOp], plan: DotPlan, c: Buffer, zero: str) -> None:
    """Multiply matrix after matrix; the operands of all are copied."""
    t, m, n, k = plan.t, plan.m, plan.n, plan.k
    plan.placed.update(A="copied", B="copied")
    buffers = [(operand_buffer(lo, op, op.a, t), operand_buffer(lo, op, op.b, t)) for op in links]
    with lo.em.loop(0, prod(c.shape[:-2]), 1) as i:
        terms: list[tuple[Left, Right, int]] = []
        for a, b in buffers:
            left = Packed(_matrix(lo, a, i, m * k), t, k)
            terms.append((left, Packed(_matrix(lo, b, i, k * n), t, n), k))
        gemm(lo, Gemm(plan, terms, _matrix(lo, c, i, m * n), zero))


def _matrix(lo: Lowering, buffer: Buffer, i: int | str, size: int) -> str:
    """Return the address of matrix `i` of a batch."""
    if i == 0:
        return buffer.ptr
    at = lo.em.op(f"mul nsw i64 {i}, {size}")
    return lo.em.op(f"getelementptr {scalar_type(buffer.elem)}, ptr {buffer.ptr}, i64 {at}")


# --- operands and accumulators --------------------------------------------------------------------------------------
def operand_buffer(lo: Lowering, op: DotOp, v: Value, t: dtype) -> Buffer:
    """Return an operand in a row-major buffer, converted to `t`."""
    if elem_of(v.type) == t:
        return materialise(lo, v, op)
    source = elem_of(v.type)
    prepare(lo, [v], op)
    buffer = lo.allocate(t, shape_of(v.type))
    fill(lo, buffer, v, casting(lo, source, t))
    finish_memo_buffers(lo)
    buffer.version = lo.new_version()
    lo.temporaries.append(buffer)
    return buffer


def accumulator(lo: Lowering, op: DotOp, t: dtype) -> tuple[Buffer, str]:
    """Return (buffer that the dot adds to, i1: whether it counts as zero). It is the accumulator's own buffer if
    nothing else needs the old value."""
    v, shape = op.acc, shape_of(op.acc.type)
    if isinstance(v.op, ConstOp) and not v.op.value:
        return lo.allocate(t, shape), "true"
    own = lo.buffers.get(v)
    if (
        own is not None
        and len(v.uses) == 1
        and own.elem == t
        and lo.buffer_blocks.get(v) is lo.block
    ):
        return own, lo.zero_start.get(v, "false")
    buffer = _scaled_in_place(lo, v, t) or lo.allocate(t, shape)
    prepare(lo, [v], op, keep_top=False)
    fill(lo, buffer, v, casting(lo, elem_of(v.type), t))
    finish_memo_buffers(lo)
    return buffer, "false"


def _scaled_in_place(lo: Lowering, v: Value, t: dtype) -> Buffer | None:
    """Return the buffer of a carried accumulator if `v` is computed from it element by element and nothing else needs
    it: `acc * shrink` of attention, say."""
    x = _one_source(lo, v)
    own = lo.buffers.get(x) if x is not None else None
    if x is None or own is None or own.elem != t or lo.buffer_blocks.get(x) is not lo.block:
        return None
    shared = any(b.ptr == own.ptr and y is not x for y, b in lo.buffers.items())
    if shared or transposed_dimension(lo, v) is not None:
        return None
    return own if apply("scaled-accumulators", what=v.name or "accumulator") else None


def _one_source(lo: Lowering, v: Value) -> Value | None:
    """Return the carried tile that starts a chain of additions and multiplications, each used once."""
    if len(v.uses) != 1:
        return None
    if v in lo.buffers:
        return v if v in lo.carried else None
    if not isinstance(v.op, (AddOp, SubOp, MulOp)) or not lo.lazy(v):
        return None
    found = [_one_source(lo, y) for y in v.op.operands if y.type == v.type]
    return next((x for x in found if x is not None), None)


def casting(lo: Lowering, source: dtype, t: dtype) -> Convert:
    def convert(x: Val) -> Val:
        return (
            Val(t, x.lanes, cast(lo.lanes(x.lanes), lo.text(x, x.lanes), source, t))
            if source != t
            else x
        )

    return convert


def rounded(lo: Lowering, c: Buffer, acc: dtype) -> Buffer:
    """Return the result in the accumulator's type."""
    buffer = lo.allocate(acc, c.shape)
    change = casting(lo, c.elem, acc)
    each(lo, nest(lo, c.shape), lambda at: to_buffer(lo, buffer, at, change(lo.from_buffer(c, at))))
    buffer.version = lo.new_version()
    return buffer
