"""Barriers and the pipeline's rings, checked against every access of an actual run; barriers that are not needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_modules import attention, matmul

from tessera.backends.nvidia.target import facts_for
from tessera.errors import SynchronizationError
from tessera.interp import EVALUATORS, run
from tessera.ir import Module, Op, PassManager, SharedType, Value, parse_module
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
from tessera.passes.checks.synchronization import synchronized
from tessera.passes.gpu_movement.barriers import barriers
from tessera.passes.gpu_pipeline import gpu_passes
from tessera.passes.neutral.pipeline import neutral_pipeline

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


def compiled(text: str, with_barriers: bool = True, capability: int = 89) -> Module:
    module = parse_module(text)
    passes = [*neutral_pipeline(), *gpu_passes(facts_for(capability), pointer_maps=False)]
    left = [p for p in passes if with_barriers or p not in (barriers, synchronized)]
    PassManager(left, verify=True).run(module)
    return module


def matmul_args(k: int) -> list[Any]:
    a, b = np.zeros((64, k), np.float16), np.zeros((k, 64), np.float16)
    return [a, b, np.zeros((64, 64), np.float32), k, k, 64, 64]


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("k", [0, 16, 32, 64, 224])
def test_matmul(stages: int, k: int, capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = compiled(matmul(stages=stages), capability=capability)
    watch = watched(module, matmul_args(k), monkeypatch)
    assert watch.hazards == []
    assert watch.accesses > 0


def test_the_watch_sees_missing_barriers(monkeypatch: pytest.MonkeyPatch) -> None:
    module = compiled(matmul(stages=1), with_barriers=False)
    assert watched(module, matmul_args(64), monkeypatch).hazards
    with pytest.raises(SynchronizationError, match="may not have written it yet"):
        synchronized(module)


def test_mixed_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """One stream through asynchronous copies, one through registers."""
    watch = watched(compiled(matmul(other="float('0x1.0p+0')")), matmul_args(96), monkeypatch)
    assert watch.hazards == []


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize(("m", "warps"), [(64, 4), (32, 4), (128, 8)])
def test_attention(
    stages: int, m: int, warps: int, capability: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = compiled(attention(m=m, warps=warps, stages=stages), capability=capability)
    q, k, v = (np.zeros((n, 64), np.float16) for n in (m, 128, 128))
    watch = watched(module, [q, k, v, np.zeros_like(q), 128], monkeypatch)
    assert watch.hazards == []


def test_fma(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)
    module = compiled(matmul("fp32", "fp32", bk=16))
    watch = watched(module, [a, b, np.zeros_like(a), 64, 64, 64, 64], monkeypatch)
    assert watch.hazards == []
    assert watch.accesses > 0
