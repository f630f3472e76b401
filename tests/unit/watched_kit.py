"""Watches every access to shared memory while GPU IR is interpreted."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.interp import EVALUATORS, run
from tessera.ir import Module, Op, SharedType, Value
from tessera.ops import (
    AsyncCommitOp,
    AsyncCopyMbarrierArriveOp,
    AsyncCopyOp,
    AsyncWaitOp,
    BarrierOp,
    LocalAllocOp,
    LocalIndexOp,
    LocalLoadOp,
    LocalStoreOp,
    MbarrierArriveOp,
    MbarrierWaitOp,
    WgmmaOp,
    WgmmaWaitOp,
)  # fmt: skip

Span = tuple[int, int]


class Watch:
    """Follows a run: which bytes of shared memory were touched since the last barrier, which are still being copied."""

    def __init__(self) -> None:
        self.reads: list[Span] = []
        self.writes: list[Span] = []
        self.flying: list[list[Span]] = []
        self.open: list[Span] = []
        self.products: list[list[Span]] = []  # that still run in this thread
        # that ran when the threads last met: they may still run in others
        self.met: list[list[Span]] = []
        self.phases: dict[tuple[Value, int], int] = {}  # of mbarriers: how many have ended
        self.landing: dict[tuple[Value, int], list[list[Span]]] = {}  # copies that arrive there
        self.hazards: list[str] = []
        self.accesses = 0

    def span(self, view: Value, values: dict[Value, Any]) -> Span:
        op = view.op
        if isinstance(op, LocalAllocOp):
            return op.offset, op.offset + op.bytes
        assert op is not None
        low, high = self.span(op.operands[0], values)
        if isinstance(op, LocalIndexOp):
            size = (high - low) // op.ring.type.shape[0]
            low += int(values[op.index]) * size
            return low, low + size
        return low, high

    def touch(self, op: Op, span: Span, write: bool) -> None:
        self.accesses += 1
        for other in [*self.writes, *([] if not write else self.reads)]:
            if other[0] < span[1] and span[0] < other[1]:
                self.hazards.append(f"{op.opcode} of {span} after {other}")
        for other in [s for group in (*self.flying, self.open) for s in group]:
            if other[0] < span[1] and span[0] < other[1]:
                self.hazards.append(f"{op.opcode} of {span} while it is being copied")
        if write:  # what products that run on still read
            for other in [s for spans in (*self.products, *self.met) for s in spans]:
                if other[0] < span[1] and span[0] < other[1]:
                    self.hazards.append(f"{op.opcode} of {span} while it is being multiplied")
        (self.writes if write else self.reads).append(span)

    def meet(self) -> None:
        self.reads, self.writes = [], []
        self.met = self.products

    def count(self, op: Any, values: dict[Value, Any]) -> None:
        """Counters of phases: an arrival releases what was read and is not being multiplied any more."""
        key = op.bars, int(values[op.index])
        ended = self.phases.setdefault(key, 0)
        if isinstance(op, MbarrierWaitOp):
            if ended % 2 == int(values[op.parity]):
                self.hazards.append(f"the phase of {key} that is waited for has not ended")
            if op.data:
                landed = self.landing.pop(key, [])
                self.flying = [x for x in self.flying if not any(x is y for y in landed)]
                self.writes = []
            return
        self.phases[key] = ended + 1
        if isinstance(op, AsyncCopyMbarrierArriveOp):
            self.landing[key] = [*self.flying, self.open]
        if isinstance(op, MbarrierArriveOp):
            busy = [s for spans in self.products for s in spans]
            self.reads = [s for s in self.reads if s in busy]

    def before(self, op: Op, values: dict[Value, Any]) -> None:
        if isinstance(op, MbarrierWaitOp | MbarrierArriveOp | AsyncCopyMbarrierArriveOp):
            self.count(op, values)
        elif isinstance(op, BarrierOp):
            self.meet()
        elif isinstance(op, AsyncCommitOp):
            self.flying.append(self.open)
            self.open = []
        elif isinstance(op, AsyncWaitOp):
            self.flying = self.flying[len(self.flying) - op.pending :] if op.pending else []
            self.meet()
        elif "scratch" in op.attrs:
            span = op.attrs["scratch"], op.attrs["scratch"] + op.attrs["scratch_bytes"]
            self.touch(op, span, True)
            self.meet()
            self.reads.append(span)
        elif isinstance(op, LocalAllocOp) and op.init is not None:
            self.touch(op, self.span(op.result, values), True)
        elif isinstance(op, LocalStoreOp | AsyncCopyOp):
            span = self.span(op.shared, values)
            self.touch(op, span, True)
            if isinstance(op, AsyncCopyOp):
                self.open.append(span)
        elif isinstance(op, LocalLoadOp):
            self.touch(op, self.span(op.shared, values), False)
        elif isinstance(op, WgmmaOp):
            spans = [self.span(v, values) for v in (op.a, op.b) if isinstance(v.type, SharedType)]
            for span in spans:
                self.touch(op, span, False)
            self.products = [*self.products, spans]
            if not op.asynchronous:
                self.products = self.products[len(self.products) - op.pending :]
        elif isinstance(op, WgmmaWaitOp):
            self.products = self.products[max(0, len(self.products) - op.pending) :]


def watched(module: Module, args: list[Any], monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()

    def follow(evaluator: Any) -> Any:
        def both(machine: Any, op: Op, *operands: Any) -> Any:
            watch.before(op, machine.values)
            return evaluator(machine, op, *operands)

        return both

    for cls, evaluator in list(EVALUATORS.items()):
        monkeypatch.setitem(EVALUATORS, cls, follow(evaluator))
    run(module, (1,), args)
    return watch
