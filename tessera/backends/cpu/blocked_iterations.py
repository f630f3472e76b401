"""Runs loops that change carried tiles element by element in blocks of iterations, for a few vectors at a time.

    for k: acc = acc + load(row k)                     acc is an array: read and written in each iteration
    →   for each 16 of the k:
            for each 4 vectors of the tile:
                r = acc;  for k in these 16: r = r + load(row k);  acc = r       r is in registers

Each element sees the iterations in their order, so that results have the same bits. Of memory, 16 rows are read side by
side, each of them from its start to its end, as processors prefetch them.
"""

from __future__ import annotations

from tessera.backends.cpu import control, interrupt
from tessera.backends.cpu.bounds import Prefix, slope
from tessera.backends.cpu.chains import SHAPE_OPS, cost
from tessera.backends.cpu.fusion import KEEP_BROADCAST, LONGEST, masks_of
from tessera.backends.cpu.loops import Nest, each, nest
from tessera.backends.cpu.lowering import Buffer, Lowering
from tessera.backends.cpu.reduce import Registers
from tessera.backends.cpu.slots import Slot
from tessera.backends.cpu.values import Point
from tessera.dtypes import dtype
from tessera.ir import Block, Effect, Op, TileType, Value, elem_of
from tessera.ops import ForOp, GatherOp, LoadOp

ITERATIONS = 16  # of a block (tools/fit)
VECTORS = 4  # in registers (tools/fit)
MOST_OPS = 64  # in a loop: it is lowered for each part of a tile that masks make


def carried_nest(lo: Lowering, loop: ForOp) -> Nest | None:
    """Return the nest over the tiles that a loop carries, if it may run in blocks of iterations, and that pays."""
    types = [v.type for v in loop.inits]
    if lo.state.checked or not types or loop.lb.type.bits >= 64:
        return None
    shapes = {t.shape if isinstance(t, TileType) else () for t in types}
    if len(shapes) > 1 or not all(isinstance(elem_of(t), dtype) for t in types):
        return None
    (shape,) = shapes
    inner = [x for x in loop.body if not x.terminator]
    if not shape or len(inner) > MOST_OPS or not all(_repeatable(lo, x) for x in inner):
        return None
    if nest(lo, shape).vectors <= nest(lo, shape).most or not _by_element(lo, loop, shape):
        return None  # LLVM keeps a few vectors in registers anyway
    registers = sum(max(1, elem_of(t).bits // 32) for t in types)
    lanes = lo.facts.lanes * max(1, VECTORS // registers)
    while lanes > max(lo.facts.lanes, shape[-1]):
        lanes //= 2
    return nest(lo, shape, lanes=lanes)


def _repeatable(lo: Lowering, op: Op) -> bool:
    """Whether an op of a loop is a lazy tile, or a scalar that may be computed several times."""
    tiles = [isinstance(r.type, TileType) for r in op.results]
    if op.regions or not tiles or op.effects & ~Effect.READ or op.attrs.get("volatile"):
        return False
    if type(op) in lo.sinks or type(op) not in lo.evaluators:
        return False
    return all(tiles) or not any(isinstance(v.type, TileType) for v in op.operands)


def _by_element(lo: Lowering, loop: ForOp, shape: tuple[int, ...]) -> bool:
    """Whether each element that a loop carries on depends on those carried to the same place alone, and memory is read
    along the last dimension. What other loops would keep in a buffer, under a broadcast, counts as an obstacle."""
    seen: dict[Value, bool] = {}

    def visit(v: Value, direct: bool) -> bool:
        if v in loop.carried:
            return direct
        op = v.op
        if op is None or not op.is_inside(loop) or not isinstance(v.type, TileType):
            return True
        if v in seen and seen[v] <= direct:
            return True
        seen[v] = direct
        if isinstance(op, GatherOp):
            return False
        if isinstance(op, LoadOp) and slope(op.ptr, len(op.result.type.shape) - 1) not in (0, 1):
            return False
        if not direct and cost(lo, v, enough=KEEP_BROADCAST) >= KEEP_BROADCAST:
            return False
        keeps = direct and not isinstance(op, SHAPE_OPS)
        return all(visit(x, keeps) for x in op.operands)

    carried = loop.body.terminator.operands
    price = sum(cost(lo, v, enough=LONGEST) for v in carried)
    return price < LONGEST and all(visit(v, True) for v in carried)


def lower(lo: Lowering, loop: ForOp, plan: Nest) -> None:
    """Lower a loop of this nest in blocks of iterations."""
    em, counter = lo.em, control.Counter.of(lo, loop)
    slots = control.initial(lo, loop, loop.inits)
    control.enter(lo, loop, repeats=True)
    masks = [p for p in masks_of(lo, loop.body.terminator.operands, plan) if _outside(loop, p)]
    span = counter.span(lo, ITERATIONS)
    with em.counted(counter.low, counter.high, span, always=False) as first:
        if interrupt.iterations_between_looks(loop):
            interrupt.leave_if_interrupted(lo)
        far = em.op(f"add i64 {first}, {span}")
        end = em.call("i64", "llvm.smin.i64", f"i64 {far}", f"i64 {counter.high}")
        columns = _Columns(lo, loop, plan, slots)
        each(lo, plan, lambda at: columns.run(at, counter, first, end), masks)
    for slot in slots:
        assert isinstance(slot, Buffer)
        slot.version = lo.new_version()
    control.leave(lo, loop, slots)


def _outside(loop: ForOp, prefix: Prefix) -> bool:
    """Whether a mask can be told without the loop's index, or anything else that iterations compute."""
    waiting: list[Value] = list(prefix.compare.operands)
    while waiting:
        v = waiting.pop()
        if v.op is None:
            if v.block is loop.body:
                return False
        elif v.op.is_inside(loop):
            if not isinstance(v.type, TileType) or isinstance(v.op, LoadOp):
                return False
            waiting += v.op.operands
    return True


class _Columns:
    """A few vectors of the carried tiles, which go through the iterations of a block."""

    def __init__(self, lo: Lowering, loop: ForOp, plan: Nest, slots: list[Slot]):
        self.lo, self.loop = lo, loop
        self.buffers = [s for s in slots if isinstance(s, Buffer)]
        self.cell = Registers(lo, loop.inits, plan.lanes)

    def run(self, at: Point, counter: control.Counter, first: str, end: str) -> None:
        """Emit the iterations from `first` to `end` at a point."""
        lo, cell = self.lo, self.cell
        cell.set([lo.from_buffer(b, at) for b in self.buffers])
        with lo.em.counted(first, end, counter.step, always=True, guarded=False) as i:
            lo.memo = {}
            counter.write_index(lo, self.loop, i)
            _scalars(lo, self.loop.body)
            with lo.bound(dict(zip(self.loop.carried, cell.get(), strict=True))):
                cell.set([lo.value(v, at) for v in self.loop.body.terminator.operands])
        lo.memo = {}
        for buffer, x in zip(self.buffers, cell.get(), strict=True):
            lo.to_buffer(buffer, at, x)


def _scalars(lo: Lowering, block: Block) -> None:
    """Lower what an iteration computes once; tiles wait until an element is needed."""
    outer, lo.block = lo.block, block
    for op in block:
        if op.results and not isinstance(op.results[0].type, TileType):
            control.lower_op(lo, op)
    lo.block = outer
