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
from tessera.ir import Block, Builder, Effect, Module, Op, SharedType, TileType, Value, pass_
from tessera.layout import box_layout, boxes_of
from tessera.layout.shared import shared_linear
from tessera.ops import (
    AddPtrOp,
    AtomicCasOp,
    AtomicRmwOp,
    BroadcastOp,
    ByteBarrierInitOp,
    CallOp,
    ConvertLayoutOp,
    DescriptorLoadOp,
    DescriptorScatterOp,
    DescriptorStoreOp,
    ExpandDimsOp,
    ForOp,
    FuncOp,
    GridDependencyOp,
    HintOp,
    LoadOp,
    LocalAllocOp,
    LocalLoadOp,
    ReshapeOp,
    ReturnOp,
    SplatOp,
    StoreOp,
    TransOp,
    VolatileAsmOp,
    WarpSpecializeOp,
    WgmmaOp,
    WhileOp,
    YieldOp,
)  # fmt: skip
from tessera.passes.consumers import consume
from tessera.passes.descriptors import lower_access, made_by
from tessera.passes.facts import GpuFacts
from tessera.passes.pipeline import running_on
from tessera.passes.producer import Needs, Producer
from tessera.passes.rings import CannotSplit, Ring, read_by_products, start_const
from tessera.passes.tensor_maps import remark

PRODUCER_WARPS = 4  # registers are handed over by groups of four warps
REGISTERS = {8: (40, 232)}  # by number of consumer warps: of producer and consumer threads
CONSUMERS = (4, 8)
OUTSIDE = (GridDependencyOp, VolatileAsmOp)
DERIVED = (
    AddPtrOp,
    SplatOp,
    BroadcastOp,
    ExpandDimsOp,
    ReshapeOp,
    TransOp,
    ConvertLayoutOp,
    HintOp,
)  # fmt: skip  of pointers
SLACK = 2048  # bytes of shared memory for barriers and alignment


@pass_("specialize")
def specialize(module: Module, facts: GpuFacts) -> None:
    """Split kernels whose loops load tiles through tensor maps. Assumes layouts; before `pipeline`."""
    if not facts.has_tma:
        return
    for func in module.body:
        assert isinstance(func, FuncOp)
        rings = _rings(func)
        if rings:
            try:
                _Split(module, func, rings, facts).run()
            except CannotSplit as reason:
                _remark(module, str(reason))


@pass_("keep-whole")
def keep_whole(module: Module, facts: GpuFacts) -> None:
    """In kernels that will not be split, loops load through pointers, which other passes know how to do ahead of time.
    Before layouts are assigned."""
    if not facts.has_tma:
        return
    for func in module.body:
        assert isinstance(func, FuncOp)
        rings = _rings(func)
        if not rings:
            if any(isinstance(op, ForOp) and op.warp_specialize for op in func.walk()):
                _remark(module, "no loop loads tiles through tensor maps")
            continue
        try:
            Needs(_Split(module, func, rings, facts)).collect()
        except CannotSplit as reason:
            _remark(module, str(reason))
            for load in [load for r in rings for load in r.loads]:
                lower_access(load)


def _remark(module: Module, reason: str) -> None:
    remark(module, f"not warp-specialised: {reason}")


def _rings(func: FuncOp) -> list[Ring]:
    """The loops of a kernel that load tiles through tensor maps."""
    rings: list[Ring] = []
    for loop in func.walk() if func.kernel else ():
        if isinstance(loop, ForOp):
            loads = [op for op in loop.body if isinstance(op, DescriptorLoadOp)]
            if loads:
                rings.append(Ring(loop, loads, []))
    return rings


def _find_buffers(r: Ring) -> None:
    """The allocation that each load fills; one is made for a tile that is used in registers."""
    for load in r.loads:
        users = load.result.users()
        t: Any = load.result.type
        if len(users) == 1 and isinstance(users[0], LocalAllocOp):
            layout = users[0].result.type.layout
            if users[0].parent is r.loop.body and boxes_of(layout, t.elem.storage_bits) is not None:
                r.allocs.append(users[0])
                continue
        layout = box_layout(t.shape, t.elem.storage_bits)
        assert layout is not None
        uses = list(load.result.uses)
        b = Builder.after_op(load)
        alloc = LocalAllocOp(load.result, results=[SharedType(t.shape, t.elem, layout)])
        tile = b.emit(LocalLoadOp(b.emit(alloc), results=[t]))
        for user, index in uses:
            user.set_operand(index, tile)
        r.allocs.append(alloc)


def _check(func: FuncOp, rings: list[Ring], num_warps: int) -> None:
    if num_warps not in CONSUMERS:
        raise CannotSplit(f"{num_warps} warps leave no room for a producer of {PRODUCER_WARPS}")
    bases = {made_by(load.desc).base for r in rings for load in r.loads}
    for op in func.walk():
        if isinstance(op, CallOp):
            raise CannotSplit("the kernel calls a function that is not inlined")
        listens = isinstance(op, AtomicRmwOp | AtomicCasOp) and op.result.uses
        if listens or isinstance(op, OUTSIDE) or (isinstance(op, LoadOp) and op.volatile):
            raise CannotSplit(f"the kernel waits for others by {op.opcode}")
        if isinstance(op, StoreOp | AtomicRmwOp | AtomicCasOp):
            target = _root(op.ptr)
        elif isinstance(op, DescriptorStoreOp | DescriptorScatterOp):
            target = made_by(op.desc).base
        else:
            continue
        if target is None or target in bases:
            raise CannotSplit("the kernel writes to an array, or may, that its loops load")
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
        _check(func, rings, module.attrs["num_warps"])
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
        needs = Needs(self).collect()
        for r in self.rings:
            _find_buffers(r)
        self._stages()
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


def _root(ptr: Value) -> Value | None:
    """The argument that a pointer is made from; None if it is not known."""
    while isinstance(ptr.op, DERIVED):
        ptr = ptr.op.operands[0]
    parent = ptr.owner.parent if isinstance(ptr.owner, Block) else None
    if isinstance(parent, ForOp) and ptr.index > 0:
        return _root(parent.inits[ptr.index - 1])
    return ptr if isinstance(parent, FuncOp) else None


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
