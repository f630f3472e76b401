"""Puts a record of the clock at each boundary of stages, in the last IR before a back end's lowering.

A warp is in one *activity* at a time: it waits for a buffer, issues copies or MMAs, stores the epilogue. Where the next
op begins another one, a record says so; the activity lasts until the next record. In a loop the first op of an
iteration always has a record, so that iterations can be counted. Which op belongs to which activity, and in which role,
phase and source line, is in the module's `trace`, by event: nothing of it is stored at run time.

Operations of a few instructions (scalars, addresses, views) belong to the activity after them, and the release of a
buffer to the one before. A wait for MMAs behind work that runs beside them belongs to that work: a record in front of
the wait would keep it where it stands, while assemblers move it up to where the work begins. On a CPU, where loads and
arithmetic on tiles are part of the loops of what uses them, only these users have activities; and a loop that does
nothing but add products to an accumulator is one activity, since its steps are packed first and multiplied later."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tessera import ops
from tessera.dtypes import dtype, int32, int64, pointer_type
from tessera.ir import Block, Builder, Module, Op, TileType, Value, elem_of, pass_
from tessera.ops import arith
from tessera.passes.neutral.loop_carried import Carrying
from tessera.passes.neutral.loops import const32, only_accumulates

LIBRARY = str(Path(__file__).parents[2] / "language")
TRACED = ("trace", "trace_tag", "trace_warps")  # attributes of a traced module

COMPUTE = "compute"
ON_ANY: dict[type[Op], str] = {
    ops.StoreOp: "store", ops.DescriptorStoreOp: "store", ops.DescriptorScatterOp: "store",
    ops.AtomicRmwOp: "atomic", ops.AtomicCasOp: "atomic", ops.DotOp: "dot", ops.ScanOp: "scan",
    ops.HistogramOp: "histogram", ops.PrintOp: "print", ops.CallOp: "call", ops.VolatileAsmOp: "assembly",
    ops.GridDependencyOp: "wait for the grid",
}  # fmt: skip
ON_CPU: dict[type[Op], str] = {**ON_ANY, ops.ReduceOp: "reduce"}
ON_GPU: dict[type[Op], str] = {
    **ON_ANY,
    ops.LoadOp: "load", ops.DescriptorLoadOp: "load", ops.DescriptorGatherOp: "load",
    ops.AsyncCopyOp: "issue copies", ops.AsyncCommitOp: "issue copies", ops.TensorCopyOp: "issue copies",
    ops.MbarrierArriveExpectTxOp: "issue copies", ops.AsyncCopyMbarrierArriveOp: "issue copies",
    ops.AsyncWaitOp: "wait for copies", ops.MbarrierInitOp: "setup",
    ops.MmaOp: "MMA", ops.WgmmaOp: "issue MMAs", ops.WgmmaWaitOp: "wait for MMAs", ops.BarrierOp: "barrier",
    ops.LocalLoadOp: "read shared memory", ops.LocalStoreOp: "write shared memory",
    ops.ConvertLayoutOp: COMPUTE, ops.ReduceOp: COMPUTE,
}  # fmt: skip


class Event(NamedTuple):
    """What a record says: from now on a warp of `role` is in `activity`. `phase`: "prologue", "loop" or "epilogue" of
    the loop in source line `loop`, or "" and 0 outside of loops."""

    role: str
    phase: str
    loop: int
    activity: str
    line: int


@pass_("insert-trace")
def insert_trace(module: Module, cpu: bool = False) -> None:
    """Record the clock where a warp goes on to another activity.

    Takes: finished IR, after the last pass that moves, merges or removes ops.
    Gives: `trace_begin`, `trace_record` (on a GPU with a clock that was read before) and `trace_end` in each role; the
        kernel takes three more arguments (the buffer, the mask of a ring's units, the number of CTAs to record);
        attributes `trace` (what each event is) and `trace_tag`.
    Needs: any target, in traced builds: `kernel.trace[grid](…)`, or the option `instrumentation_mode="trace"`.
    Raises: nothing.
    Example: `walked` of tests/filecheck/insert-trace.gir
        for; async_wait; mul; store → trace_begin; for; and; special_register; async_wait; special_register; mul;
        trace_record; trace_record; add; add; and; special_register; store; trace_record
    Compare: Proton's intra-kernel profiler, whose records the kernel's author places.
    """
    kernel = next(f for f in module.body if isinstance(f, ops.FuncOp) and f.kernel)
    given = zip((pointer_type(int64), int32, int32), ("buffer", "mask", "ctas"), strict=True)
    arguments = [kernel.body.add_arg(t, f"trace_{name}") for t, name in given]
    if kernel.arg_attrs:
        kernel.attrs["arg_attrs"] = (*kernel.arg_attrs, (("divisibility", 16),), (), ())
    warps = 1 if cpu else module.attrs.get("num_warps", 4) + module.attrs.get("producer_warps", 0)
    events: list[Event] = []
    begins = [
        _Role(role, arguments, cpu, events).trace(block, first, warps)
        for role, block, first in _roles(module, kernel)
    ]
    tag = 1 + int(hashlib.sha256(repr(events).encode()).hexdigest()[:7], 16)
    for begin in begins:
        begin.attrs["tag"] = tag
    module.attrs["trace"] = tuple(tuple(e) for e in events)
    module.attrs["trace_tag"], module.attrs["trace_warps"] = tag, warps


def _roles(module: Module, kernel: ops.FuncOp) -> list[tuple[str, Block, int]]:
    """Return the roles of a kernel's warps: name, code, number of the first warp."""
    split = next((op for op in kernel.body if isinstance(op, ops.WarpSpecializeOp)), None)
    if split is None:
        return [("program", kernel.body, 0)]
    first: int = module.attrs.get("num_warps", 4)
    found = [("consumer", split.consumers, 0), ("producer", split.producer, first)]
    if split.transpose_warps:
        found.append(("transpose", split.transpose, first + split.warps))
    return found


@dataclass
class _Role(Carrying):
    """Places the records of one role. `now`: the activity of the latest record, None if it is not known; `phase`: of
    the innermost loop around; `run`: records since the counts were advanced, in units from `slot` of the ring on, whose
    first records are `heads`. The state is the counts of records and units. On a GPU a record is stored in front of the
    second reading of the clock after its own (`unstored`: event, clock, index), so that no warp waits for what it has
    just read, and no release of a buffer for the store."""

    role: str
    arguments: list[Value]
    cpu: bool
    events: list[Event]
    now: str | None = None
    phase: tuple[str, int] = ("", 0)
    run: int = 0
    slot: Value = field(init=False)
    heads: list[ops.TraceRecordOp] = field(default_factory=list[ops.TraceRecordOp])
    unstored: list[tuple[int, Value, int]] = field(default_factory=list[tuple[int, Value, int]])

    def trace(self, block: Block, first: int, warps: int) -> ops.TraceBeginOp:
        b = Builder.at_start(block)
        begin = b.insert(ops.TraceBeginOp(*self.arguments, warp=first, warps=warps, tag=1))
        zero = const32(b, 0)
        counts = self.block(block, [zero, zero], begin)
        Builder.before_op(block.terminator).insert(ops.TraceEndOp(begin.result, *counts))
        return begin

    def block(
        self, block: Block, state: list[Value], begin: ops.TraceBeginOp | None = None
    ) -> list[Value]:
        if begin is not None:
            self.place = begin.result
        loops = [_line(op) for op in block if isinstance(op, ops.Loop) and self._enters(op)]
        passed = 0
        first: Op | None = None  # of the small ops since the last one with an activity
        for op in list(block):
            if begin is not None and op in (begin, state[0].op):
                continue
            if op.regions and self._enters(op):
                loop = isinstance(op, ops.Loop)
                state = self._inside(op, state, ("loop", _line(op)) if loop else self.phase)
                passed, first = passed + loop, None
                continue
            activity = self._activity(op)
            if activity is None:
                # A release in front of the record is not held back by what is stored there.
                release = isinstance(op, ops.MbarrierArriveOp)
                first = None if release else op if first is None else first
                continue
            if activity != self.now:
                self.now, phase = activity, self.phase
                if loops:
                    ahead = passed < len(loops)
                    phase = ("prologue", loops[passed]) if ahead else ("epilogue", loops[-1])
                event = Event(self.role, *phase, activity, _line(op))
                state = self._record(first or op, event, state)
            first = None
        return self._advanced(block.terminator, state)

    def _inside(self, op: Op, state: list[Value], phase: tuple[str, int]) -> list[Value]:
        before, self.phase, self.now = self.phase, phase, None
        state = self.through(op, self._advanced(op, state))
        self.phase, self.now = before, None
        return state

    def _record(self, op: Op, label: Event, state: list[Value]) -> list[Value]:
        number = len(self.events)
        self.events.append(label)
        if self.run == ops.TRACE_RUN:
            state = self._advanced(op, state)
        event, b = min(number, ops.TRACE_EVENTS - 1), Builder.before_op(op)
        if not self.run:
            self.slot = b.emit(arith.AndOp(state[1], self.arguments[1]))
        if self.cpu:
            self._store(b, event, None, self.run)
        else:
            self._stored(b, 1)
            clock = b.emit(ops.SpecialRegisterOp(name="clock"))
            self.unstored.append((event, clock, self.run))
        self.run += 1
        return state

    def _store(self, b: Builder, event: int, clock: Value | None, index: int) -> None:
        record = b.insert(ops.TraceRecordOp(self.place, self.slot, clock, event=event, index=index))
        if record.head is not None:
            self.heads.append(record)

    def _stored(self, b: Builder, kept: int) -> None:
        """Store the records whose clocks were read, without the latest `kept`. Clocks that wait to be stored together
        would take registers, of which loops with MMAs have none to spare."""
        while len(self.unstored) > kept:
            self._store(b, *self.unstored.pop(0))

    def _advanced(self, op: Op, state: list[Value]) -> list[Value]:
        """Return the counts after the records of the run, which ends in front of `op`."""
        if not self.run:
            return state
        b, run = Builder.before_op(op), self.run
        self._stored(b, 0)
        for i, head in enumerate(self.heads):
            head.attrs["count"] = min(run - i * ops.TRACE_TOGETHER, ops.TRACE_TOGETHER)
        passed = run, len(self.heads)
        self.run, self.heads = 0, []
        return [b.emit(arith.AddOp(v, const32(b, n))) for v, n in zip(state, passed, strict=True)]

    def _enters(self, op: Op) -> bool:
        """Whether there are records inside an op with regions."""
        if not isinstance(op, (ops.Loop, ops.IfOp)):
            return False
        dots = [x for b in op.regions for x in b if isinstance(x, ops.DotOp)]
        if self.cpu and isinstance(op, ops.ForOp) and dots:
            if all(only_accumulates(op, x) for x in dots):
                return False
        return any(self._activity(x) is not None for x in op.walk() if x is not op)

    def _activity(self, op: Op) -> str | None:
        """Return what a warp does in an op; None for an op of a few instructions."""
        if self.cpu:
            accumulates = isinstance(op, ops.ForOp) and not self._enters(op)
            return "loop" if accumulates else ON_CPU.get(type(op))
        if isinstance(op, ops.MbarrierWaitOp):
            return "wait for data" if op.data else "wait for a free buffer"
        if isinstance(op, ops.PingPongOp):
            return "wait for the turn" if op.kind in ("open", "begin") else None
        if isinstance(op, ops.LocalAllocOp):
            return "write shared memory" if op.init is not None else None
        if isinstance(op, ops.WgmmaOp) and not (op.asynchronous or op.pending):
            return "MMA"
        if isinstance(op, ops.WgmmaWaitOp) and (op.waited or self.now == COMPUTE):
            return None
        return ON_GPU.get(type(op)) or (COMPUTE if _computes(op) else None)


def _computes(op: Op) -> bool:
    """Whether an op computes floats element by element; arithmetic on integers is mostly that of addresses."""
    if not isinstance(op, (arith.Elementwise, ops.CombineOp)) or isinstance(op, ops.ConstOp):
        return False
    elem = elem_of(op.results[0].type)
    tile = isinstance(op.results[0].type, TileType)
    return tile and isinstance(elem, dtype) and elem.is_floating()


def _line(op: Op) -> int:
    """Return the line in the user's code: not in that of the language's own functions."""
    loc = op.loc
    while loc is not None and loc.call_site is not None and loc.file.startswith(LIBRARY):
        loc = loc.call_site
    return loc.line if loc is not None else 0
