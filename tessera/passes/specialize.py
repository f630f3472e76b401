"""Splits a program into two teams: one thread copies tiles to shared memory, the program's warps compute.

    for i:                                      consumers                     producer
      %t = descriptor_load %d, [%x, i]          for i:                        for i:
      %s = local_alloc %t                         wait full[s], phase           wait empty[s], 1 - phase
      ... %s ...                                  ... ring[s] ...               tensor_copy ring[s] -> full[s]
                                                  arrive empty[s]

`s` runs through a ring of buffers, `phase` changes at each turn; both are carried through all loops around, so that the
producer runs ahead into the next tile of a persistent program while the consumers still store the last one. The
producer repeats the scalars that it needs: bounds, offsets, branches. A product of warpgroups that only adds up may run
on into the next iteration; its buffers are given back one iteration later.

Where this cannot be done the function stays as it is and the module's attribute `remarks` says why."""

from __future__ import annotations

from typing import Any

from tessera.analysis.scratch import scratch_bytes
from tessera.dtypes import int64
from tessera.ir import Block, Builder, Effect, Module, Op, SharedType, TileType, pass_
from tessera.layout import boxes_of
from tessera.layout.shared import shared_linear
from tessera.ops import (
    AtomicCasOp,
    AtomicRmwOp,
    ByteBarrierInitOp,
    CallOp,
    DescriptorLoadOp,
    DescriptorStoreOp,
    ForOp,
    FuncOp,
    LocalAllocOp,
    ReturnOp,
    StoreOp,
    WarpSpecializeOp,
    WgmmaOp,
    WhileOp,
    YieldOp,
)  # fmt: skip
from tessera.passes.consumers import consume
from tessera.passes.facts import GpuFacts
from tessera.passes.pipeline import running_on
from tessera.passes.producer import Needs, Producer
from tessera.passes.rings import CannotSplit, Ring, read_by_products, start_const

PRODUCER_WARPS = 4  # registers are handed over by groups of four warps
REGISTERS = {8: (40, 232)}  # by number of consumer warps: of producer and consumer threads
CONSUMERS = (4, 8)
SLACK = 2048  # bytes of shared memory for barriers and alignment


@pass_("specialize")
def specialize(module: Module, facts: GpuFacts) -> None:
    """Split kernels whose loops load tiles through tensor maps. Assumes layouts; before `pipeline`."""
    if not facts.has_tma:
        return
    for func in module.body:
        assert isinstance(func, FuncOp)
        loops = [op for op in func.walk() if isinstance(op, ForOp)]
        rings = [r for loop in loops if (r := _ring(loop)) is not None] if func.kernel else []
        if not rings:
            if any(loop.warp_specialize for loop in loops):
                _remark(module, "no loop loads tiles through tensor descriptors")
            continue
        try:
            _check(func, rings, module.attrs["num_warps"])
            _Split(module, func, rings, facts).run()
        except CannotSplit as reason:
            _remark(module, str(reason))


def _remark(module: Module, reason: str) -> None:
    old = module.attrs.get("remarks", ())
    module.attrs["remarks"] = (*old, f"not warp-specialised: {reason}")


def _ring(loop: ForOp) -> Ring | None:
    ring = Ring(loop, [], [])
    for op in loop.body:
        if isinstance(op, DescriptorLoadOp):
            users = op.result.users()
            if len(users) == 1 and isinstance(users[0], LocalAllocOp):
                t: Any = users[0].result.type
                inside = users[0].parent is loop.body
                if inside and boxes_of(t.layout, t.elem.storage_bits) is not None:
                    ring.loads.append(op)
                    ring.allocs.append(users[0])
    return ring if ring.loads else None


def _check(func: FuncOp, rings: list[Ring], num_warps: int) -> None:
    if num_warps not in CONSUMERS:
        raise CannotSplit(f"{num_warps} warps leave no room for a producer of {PRODUCER_WARPS}")
    for op in func.walk():
        if isinstance(op, CallOp):
            raise CannotSplit("the kernel calls a function that is not inlined")
    loops = {ring.loop for ring in rings}
    for ring in rings:
        op = ring.loop.parent_op()
        while op is not None and op is not func:
            if op in loops:
                raise CannotSplit("loops that load tiles stand inside one another")
            if isinstance(op, WhileOp):
                raise CannotSplit("the loop is inside a while loop")
            op = op.parent_op()


class _Split:
    def __init__(self, module: Module, func: FuncOp, rings: list[Ring], facts: GpuFacts):
        self.module, self.func, self.rings, self.facts = module, func, rings, facts
        self.warps: int = module.attrs["num_warps"]
        self.kept = _kept(func)
        self.of_loop = {r.loop: r for r in rings}
        self.spine: set[Op] = set()
        for r in rings:
            op: Op | None = r.loop
            while op is not None and op is not func:
                self.spine.add(op)
                op = op.parent_op()
        writes = (StoreOp, AtomicRmwOp, AtomicCasOp)
        self.counts: dict[Value, int] = {}  # arrivals by row of barriers
        self.reads = not any(isinstance(op, writes) for op in func.walk())

    def run(self) -> None:
        self._stages()
        needs = Needs(self).collect()
        rest = [op for op in self.func.body if op not in self.kept and not isinstance(op, ReturnOp)]
        # What is shared by both teams stands first.
        for op in [op for op in self.func.body if op in self.kept]:
            op.move_before(rest[0])
        start = Builder.before_op(rest[0])
        running = {r.loop: _running(r) for r in self.rings}
        for r in self.rings:
            self._allocate(r, start, running[r.loop] is not None)
        start.insert(ByteBarrierInitOp(list(self.counts), counts=tuple(self.counts.values())))
        producer = Producer(self, needs).build(start)
        registers = (
            REGISTERS.get(self.warps, (0, 0)) if self.facts.has_register_handover else (0, 0)
        )
        op = WarpSpecializeOp(
            registers=registers,
            warps=PRODUCER_WARPS,
            regions=[Block(), producer],
            loc=self.func.loc,
        )
        start.insert(op)
        for x in rest:
            x.detach()
            op.consumers.append(x)
        Builder(op.consumers).insert(YieldOp([]))
        zero = start_const(Builder.before_op(op), 0)
        for r in self.rings:
            consume(r, op.consumers, zero, running[r.loop])
        self.module.attrs["producer_warps"] = PRODUCER_WARPS

    def _stages(self) -> None:
        """As many buffers as are asked for and fit beside what else needs shared memory."""
        room = self.facts.max_shared_bytes - SLACK - self._others()
        default: int = self.module.attrs.get("num_stages", 1)
        for r in self.rings:
            share = room // len(self.rings)
            fit = share // r.bytes
            wanted = max(2, r.loop.num_stages or default)
            if fit < 2:
                raise CannotSplit(f"two stages of {r.bytes} bytes do not fit into shared memory")
            stages = min(wanted, fit)
            total = self.facts.max_shared_bytes
            if stages < fit and total // (r.bytes * (stages + 1)) == total // (r.bytes * stages):
                stages += 1
            r.stages = stages

    def _others(self) -> int:
        lasting = largest = 0
        mine = {a for r in self.rings for a in r.allocs}
        for op in self.func.walk():
            if isinstance(op, LocalAllocOp):
                lasting += 0 if op in mine else op.bytes
            elif isinstance(op, DescriptorStoreOp):
                lasting += -(-scratch_bytes(op, self.warps, self.facts) // 1024) * 1024
            elif not (
                isinstance(op, DescriptorLoadOp) and op in {x for r in self.rings for x in r.loads}
            ):
                largest = max(largest, scratch_bytes(op, self.warps, self.facts))
        return lasting + largest

    def _allocate(self, r: Ring, b: Builder, running: bool) -> None:
        for a in r.allocs:
            t: SharedType = a.result.type
            ring = SharedType((r.stages, *t.shape), t.elem, t.layout)
            r.buffers.append(b.emit(LocalAllocOp(None, results=[ring], names=[a.result.name])))
        places = 1 << (r.stages - 1).bit_length()
        bars = SharedType((places,), int64, shared_linear((places,), (0,)))
        groups = read_by_products([a.result for a in r.allocs])
        for name, count in (("full", 1), ("empty", self.warps // 4 if groups else self.warps)):
            alloc = LocalAllocOp(None, results=[bars], names=[name])
            alloc.attrs["lasting"] = True
            setattr(r, name, b.emit(alloc))
            self.counts[getattr(r, name)] = count


def _kept(func: FuncOp) -> set[Op]:
    """Scalars at the top of the function, which both teams see."""
    kept: set[Op] = set()
    for op in func.body:
        scalar = all(not isinstance(r.type, TileType | SharedType) for r in op.results)
        if op.regions or op.terminator or op.effects is not Effect.NONE or not scalar:
            continue
        if all(v.op is None or v.op in kept for v in op.operands):
            kept.add(op)
    return kept


def _running(r: Ring) -> WgmmaOp | None:
    return running_on(r.loop, set(r.allocs))
