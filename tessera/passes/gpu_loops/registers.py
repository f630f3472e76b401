"""Loads what loops with MMAs read besides operands an iteration ahead, to registers.

    for i {main_stage=1}:                  %v = load %p(lb) if lb < n
      %s = load %p(i) {stage=0}      →     for i, carrying %v:
      %x = mma ...                           %w = load %p(i + step) if i + step < n
      ... %x * %s                            %x = mma ...;  ... %x * %v;  yield %w

Scales, biases, sums of rows and numbers of pages come through no ring: a thread would wait for each of them in its
iteration. Where an address of a copy comes from such a load, the copy can then run ahead, too."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tessera import ops
from tessera.analysis.axis import AxisAnalysis
from tessera.analysis.provenance import argument_of
from tessera.dtypes import int1
from tessera.ir import Block, Builder, Op, TileType, Type, Value, elem_of, with_elem
from tessera.ir.applications import apply
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_loops.delay import Places, Placing
from tessera.passes.gpu_loops.streams import slice_of, stream_of
from tessera.passes.gpu_movement.memory_effects import waits_for_others
from tessera.passes.neutral.loops import runs_at_all, set_yields, with_carried

UNKNOWN = (
    ops.DescriptorWrite, ops.CallOp, ops.VolatileAsmOp, ops.BarrierOp, ops.GridDependencyOp,
)  # fmt: skip
# Registers of a thread for MMAs, sums beside them and loads that run ahead; and for small loads in any case.
ROOM_REG32, SMALL_REG32 = 176, 4


def early_loads(
    loop: ops.ForOp, axis: AxisAnalysis, facts: GpuFacts
) -> tuple[list[ops.LoadOp], list[ops.LoadOp]]:
    """Return the loads of a loop with MMAs whose results are to be carried from the iteration before: all that do not
    fill a ring, operands that are too narrow for asynchronous copies included; and those for which there are no
    registers."""
    if not any(isinstance(op, ops.Matmul) for op in loop.body):
        return [], []
    if any(map(waits_for_others, loop.walk())):
        return [], []  # what is loaded may be written by other programs until then
    written = _written(loop)
    if written is None:
        return [], []
    found: list[ops.LoadOp] = []
    large: list[ops.LoadOp] = []
    left = max(SMALL_REG32, ROOM_REG32 - used_reg32(loop))
    for op in loop.body:
        if (
            isinstance(op, ops.LoadOp)
            and _may_run_ahead(op, loop, written)
            and stream_of(op, loop, axis, facts) is None
        ):
            reg32 = _reg32(op.result.type)
            if reg32 <= left:
                left -= reg32
                found.append(op)
            else:
                large.append(op)
    return found if found and apply("register-prefetch", loop) else [], large


def used_reg32(loop: ops.ForOp) -> int:
    """Return the registers of a thread for the operands and results of MMAs."""
    mmas = [op for op in loop.body if isinstance(op, ops.Matmul)]
    tiles = [v.type for op in mmas for v in (op.a, op.b) if isinstance(v.type, TileType)]
    tiles += [op.result.type for op in mmas]
    tiles += sums_beside(loop.body, {op.result for op in mmas})
    return sum(map(_reg32, tiles))


def sums_beside(block: Block, results: Collection[Value]) -> list[Type]:
    """Return the types of the sums that a loop carries beside the results of its MMAs: `acc += dot(a, b) * scale` needs
    registers for both."""
    loop = block.parent
    if not isinstance(loop, ops.ForOp):
        return []
    types = {v.type for v in results}
    made = zip(loop.carried, block.terminator.operands, strict=True)
    return [arg.type for arg, v in made if arg.type in types and v not in results]


def _written(loop: ops.ForOp) -> set[Value] | None:
    """Return the arguments through which a loop writes; None if they are not known."""
    found: set[Value] = set()
    for op in loop.walk():
        if isinstance(op, ops.PointerWrite):
            base = argument_of(op.ptr)
            if base is None:
                return None
            found.add(base)
        elif isinstance(op, UNKNOWN):
            return None
    return found


def _may_run_ahead(op: ops.LoadOp, loop: ops.ForOp, written: set[Value]) -> bool:
    if not isinstance(op.ptr.type, TileType):
        return False
    base = argument_of(op.ptr)
    if written and (base is None or base in written):
        return False
    return slice_of([v for v in _sources(op) if v is not None], loop) is not None


def _reg32(t: Any) -> int:
    different = sum(any(basis) for basis in t.layout.bases("register"))
    return max(1, (elem_of(t).storage_bits << different) // 32)


def run_early(loop: ops.ForOp, loads: list[ops.LoadOp]) -> None:
    """Write into the schedule that loads run an iteration ahead; other stages make room."""
    main = loop.main_stage or 0
    if main == 0:
        for op in loop.body:
            if "stage" in op.attrs:
                op.attrs["stage"] += 1
        loop.main_stage = main = 1
    for load in loads:
        load.attrs["stage"] = main - 1


def carried_loads(loop: ops.ForOp, main: int, places: Places) -> list[ops.LoadOp]:
    """Return the loads of a scheduled loop that run ahead to registers."""
    early = {op for op, (_, stage) in places.items() if stage < main}
    loads = [op for op in loop.body if isinstance(op, ops.LoadOp) and op in early]
    return [x for x in loads if early.isdisjoint(x.result.users())]


def carry(
    loop: ops.ForOp, loads: list[ops.LoadOp], places: Places, main: int
) -> tuple[ops.ForOp, list[Op]]:
    """Load for the first iteration before the loop, and in each iteration for the next one. Return the new loop, and
    its loads for the next iteration."""
    sources = [v for x in loads for v in _sources(x) if v is not None]
    found = slice_of(sources, loop)
    assert found is not None  # or it would not be in the schedule
    in_slice = [op for op in loop.body if op in found[0]]
    numbers = sorted(found[1])
    yields = [loop.body.terminator.operands[n] for n in numbers]
    before = Builder.before_op(loop)

    def emit(b: Builder, values: list[Value], index: Value) -> tuple[list[Value], list[Value]]:
        """Emit the loads for an index; return them, and the slice's carried values after that."""
        mapping = dict(zip([loop.carried[n] for n in numbers], values, strict=True))
        mapping[loop.induction] = index
        runs = runs_at_all(b, index, loop.ub, loop.step)
        for op in in_slice:
            b.insert(op.clone(mapping))
        loaded = [_masked(b, x, mapping, runs) for x in loads]
        return loaded, [mapping.get(v, v) for v in yields]

    first, ahead = emit(before, [loop.inits[n] for n in numbers], loop.lb)
    index = before.emit(ops.AddOp(loop.lb, loop.step))
    count = len(first)
    loop = with_carried(loop, [index, *first, *ahead])
    args = loop.carried[-1 - count - len(ahead) :]
    start = loop.body.first
    assert start is not None
    b = Placing(start, places, min(position for position, _ in places.values()), main)
    loaded, ahead = emit(b, list(args[1 + count :]), args[0])
    following = [b.emit(ops.AddOp(args[0], loop.step)), *loaded, *ahead]
    for load, arg in zip(loads, args[1 : 1 + count], strict=True):
        del places[load]
        load.replace_by([arg])
    set_yields(loop, following)
    return loop, [v.op for v in loaded if v.op is not None]


def _masked(b: Builder, load: ops.LoadOp, mapping: dict[Value, Value], runs: Value) -> Value:
    """Emit a load of an iteration that may not come."""
    ptr, mask, other = (mapping.get(v, v) if v is not None else None for v in _sources(load))
    assert ptr is not None
    inside = b.emit(ops.SplatOp(runs, results=[with_elem(ptr.type, int1)]))
    if mask is not None:
        inside = b.emit(ops.AndOp(mask, inside))
    return b.emit(
        ops.LoadOp(
            ptr, inside, other, cache=load.cache, eviction=load.eviction,
            names=[load.result.name], loc=load.loc,
        )
    )  # fmt: skip


def _sources(load: ops.LoadOp) -> tuple[Value, Value | None, Value | None]:
    return load.ptr, load.mask, load.other
