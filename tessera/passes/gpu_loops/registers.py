"""Loads what loops with MMAs read besides operands an iteration ahead, to registers.

    for i {main_stage=1}:                  %v = load %p(lb) if lb < n
      %s = load %p(i) {stage=0}      →     for i, carrying %v:
      %x = mma ...                           %w = load %p(i + step) if i + step < n
      ... %x * %s                            %x = mma ...;  ... %x * %v;  yield %w

Scales, biases, sums of rows and numbers of pages come through no ring: a thread would wait for each of them in its
iteration. Where an address of a copy comes from such a load, the copy can then run ahead, too."""

from __future__ import annotations

from collections.abc import Sequence

from tessera import ops
from tessera.analysis.axis import AxisAnalysis
from tessera.analysis.registers import mma_reg32, reg32_of
from tessera.ir import Builder, Op, Value
from tessera.ir.applications import apply
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_loops.delay import Placing
from tessera.passes.gpu_loops.streams import Ahead, is_met, require_ahead, stream_of
from tessera.passes.gpu_movement.memory_effects import waits_for_others
from tessera.passes.neutral.loops import set_yields, with_carried

# Registers of a thread for MMAs, sums beside them and loads that run ahead; and for small loads in any case.
ROOM_REG32, SMALL_REG32 = 176, 4


def loads_beside(
    loop: ops.ForOp, axis: AxisAnalysis, facts: GpuFacts
) -> tuple[list[ops.LoadOp], list[ops.LoadOp]]:
    """Return the loads of a loop with MMAs whose results may be carried from the iteration before: all that do not fill
    a ring, operands that are too narrow for asynchronous copies included. The second are those for which there are no
    registers."""
    if not any(isinstance(op, ops.Matmul) for op in loop.body):
        return [], []
    if any(map(waits_for_others, loop.walk())):
        return [], []  # what is loaded may be written by other programs until then
    found: list[ops.LoadOp] = []
    others: list[ops.LoadOp] = []
    left = max(SMALL_REG32, ROOM_REG32 - mma_reg32(loop.body))
    for op in loop.body:
        if (
            isinstance(op, ops.LoadOp)
            and is_met(require_ahead, op, loop)
            and stream_of(op, loop, axis, facts) is None
        ):
            reg32 = reg32_of(op.result.type)
            if reg32 <= left:
                left -= reg32
                found.append(op)
            else:
                others.append(op)
    return found, others


def early_loads(loop: ops.ForOp, axis: AxisAnalysis, facts: GpuFacts) -> list[ops.LoadOp]:
    """Return the loads whose results are to be carried from the iteration before."""
    found, _ = loads_beside(loop, axis, facts)
    return found if found and apply("register-prefetch", loop) else []


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


def carried_loads(body: Sequence[Op], main: int) -> list[ops.LoadOp]:
    """Return those of a scheduled loop's ops that load ahead to registers."""
    early = {op for op in body if op.attrs["stage"] < main}
    loads = [op for op in body if isinstance(op, ops.LoadOp) and op in early]
    return [x for x in loads if early.isdisjoint(x.result.users())]


def carry(
    loop: ops.ForOp, loads: list[ops.LoadOp], start: int, main: int
) -> tuple[ops.ForOp, list[Op]]:
    """Load for the first iteration before the loop, and in each iteration, at the position `start`, for the next one.
    Return the new loop, and its loads for the next iteration."""
    slice_ahead = Ahead(loop, loads)
    before = Builder.before_op(loop)

    def emit(b: Builder, values: list[Value], index: Value) -> tuple[list[Value], list[Value]]:
        """Emit the loads for an index; return them, and the slice's carried values after that."""
        mapping, runs, following = slice_ahead.emit(b, values, index)
        found: list[Value] = []
        for x in loads:
            ptr, mask, other = slice_ahead.read(b, x, mapping, runs)
            load = ops.LoadOp(
                ptr, mask, other, cache=x.cache, eviction=x.eviction, names=[x.result.name], loc=x.loc
            )  # fmt: skip
            found.append(b.emit(load))
        return found, following

    first, ahead = emit(before, slice_ahead.inits, loop.lb)
    index = before.emit(ops.AddOp(loop.lb, loop.step))
    count = len(first)
    loop = with_carried(loop, [index, *first, *ahead])
    args = loop.carried[-1 - count - len(ahead) :]
    assert loop.body.first is not None
    b = Placing(loop.body.first, start, main)
    loaded, ahead = emit(b, list(args[1 + count :]), args[0])
    following = [b.emit(ops.AddOp(args[0], loop.step)), *loaded, *ahead]
    for load, arg in zip(loads, args[1 : 1 + count], strict=True):
        load.replace_by([arg])
    set_yields(loop.body, following)
    return loop, [v.op for v in loaded if v.op is not None]
