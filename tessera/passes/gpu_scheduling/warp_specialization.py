"""Splits a program into two roles: one thread copies tiles to shared memory, the program's warps compute.

    for i:                                      consumers                     producer
      %t = descriptor_load %d, [%x, i]          for i:                        for i:
      %s = local_alloc %t                         wait full[s], phase           wait empty[s], 1 - phase
      ... %s ...                                  ... ring[s] ...               tensor_copy ring[s] -> full[s]
                                                  arrive empty[s]

`s` runs through a ring of buffers, and `phase` flips at each round; both are carried through all loops around, so that
the producer runs ahead into the next tile of a persistent program while the consumers still store the last one. It
waits for them before loops whose loads may see what the program does before (ordering.py). The producer repeats the
scalars that it needs: bounds, offsets, conditions. An MMA of warpgroups that only accumulates may run on
into the next iteration; its buffers are released one iteration later.

Tiles for the same MMAs share a ring; others have their own, and are released when they have been used. The last MMA
of a chain (gpu_loops/chains.py) is shifted by an iteration, and reads its ring one iteration later. The producer
also copies operands of MMAs that are loaded before the loops.

Where this cannot be done the function stays as it is and the module's attribute `remarks` says why."""

from __future__ import annotations

from tessera import ops
from tessera.analysis.allocation import is_in_loop
from tessera.analysis.loop_times import kinds_of
from tessera.analysis.machines import WARPGROUP
from tessera.analysis.scratch import scratch_bytes
from tessera.dtypes import int1, int64
from tessera.ir import Block, Builder, Module, Op, SharedType, Value, pass_
from tessera.ir.applications import Declined, apply, is_enabled
from tessera.layout.shared import shared_linear
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_loops.chains import overlapping, schedule_late, shiftable
from tessera.passes.gpu_loops.choices import Looked
from tessera.passes.gpu_loops.plan import CHAINED_REG32
from tessera.passes.gpu_movement.tensor_maps import remark
from tessera.passes.gpu_scheduling.consumers import Plan, consume, consume_once
from tessera.passes.gpu_scheduling.ordering import ordered_loops, sees_nothing
from tessera.passes.gpu_scheduling.producer import Needs, Producer
from tessera.passes.gpu_scheduling.producer_acquire import AcquireFlags
from tessera.passes.gpu_scheduling.rings import (
    ProducerAcquire,
    Ring,
    allocation,
    copying_ctas,
    filled_by,
    grouped,
    read_by_mmas,
    share,
)  # fmt: skip
from tessera.passes.gpu_scheduling.shared_scalars import repeat_in_roles, shared_scalars
from tessera.passes.gpu_scheduling.transpose_role import (
    BUFFERS,
    TransposeRole,
    drop_loaded,
    late_reading,
    transposition_of,
)
from tessera.passes.gpu_scheduling.warp_roles import (
    WarpRoles,
    instruction_reg32,
    mma_reg32,
    roles_for,
)
from tessera.passes.neutral.descriptors import lower_access
from tessera.passes.neutral.loops import const, const32

CONSUMERS = (4, 8, 16)
# Warpgroups up to here drift apart by themselves; more of them are faster in ping-pong.
MANY_WARPS = 8
OUTSIDE = (ops.GridDependencyOp, ops.VolatileAsmOp)
SLACK = 2048  # bytes of shared memory for barriers and alignment


@pass_("warp-specialize", optimization="warp-specialize", counts=True)
def warp_specialize(module: Module, facts: GpuFacts) -> None:
    """Split kernels whose loops load tiles through tensor maps into warp roles.

    Takes: GPU IR with layouts, as boxes and swizzles follow from them; before `schedule-loops`.
    Gives: `warp_specialize` with a region for each role, and rings of buffers with a full and an empty mbarrier; or the
        function as it was, and a remark.
    Needs: a GPU with a TMA unit (sm_90).
    Raises: nothing.
    Example: `split` of tests/filecheck/warp-specialize/producer-consumer.gir
        for { descriptor_load; local_alloc; wgmma }
        → warp_specialize { for { mbarrier_wait; wgmma; mbarrier_arrive } } { for { mbarrier_wait; tensor_copy } }
    Compare: CUTLASS 3, warp-specialized kernels; Triton `tritongpu-automatic-warp-specialization`.
    """
    if not facts.has_tma:
        return
    for func in module.body:
        assert isinstance(func, ops.FuncOp)
        rings = _rings(func)
        if rings and apply("warp-specialize", func):
            try:
                split = _Split(module, func, rings, facts)
                flags = _flags(split)
                if flags:  # the code has changed
                    split = _Split(module, func, _rings(func), facts)
                    split.acquire.flags = flags
                split.run()
            except Declined as reason:
                _remark(module, str(reason))


def _flags(split: _Split) -> dict[ops.ForOp, Value]:
    """Return, for each loop before which the producer may have to wait for the consumers, whether it must."""
    if not split.ordered:
        return {}
    Needs(split).collect()  # before anything changes
    func = split.func
    seen = [op for group in split.ordered.values() for op in group]
    flags = AcquireFlags(func.body, list(split.ordered), seen)
    split = _Split(split.module, func, _rings(func), split.facts)
    for loop, flag in flags.found.items():
        try:
            Needs(split).follow([flag])
        except Declined:
            yes = const(Builder.before_op(loop), True, int1)
            flags.found[loop] = yes
    return flags.found


@pass_("descriptor-to-pointer")
def descriptor_to_pointer(module: Module, facts: GpuFacts) -> None:
    """Let loops load through pointers in kernels that `warp-specialize` will not split.

    Takes: tile IR without layouts, after `pointer-to-tma`.
    Gives: loads through pointers and masks, which `schedule-loops` copies ahead, with a remark; kernels that will be
        split are left alone.
    Needs: a GPU with a TMA unit (sm_90).
    Raises: nothing.
    Example: `offset_from_a_tile` of tests/filecheck/descriptor-to-pointer.tir
        for { descriptor_load; descriptor_load; dot } → for { load; load; dot; yield }; print
    Compare: Triton `triton-rewrite-tensor-descriptor-to-pointer`.
    """
    if not facts.has_tma:
        return
    for func in module.body:
        assert isinstance(func, ops.FuncOp)
        rings = _rings(func)
        if not rings:
            if any(isinstance(op, ops.ForOp) and op.warp_specialize for op in func.walk()):
                _remark(module, "no loop loads tiles through tensor maps")
            continue
        try:
            Needs(_Split(module, func, rings, facts)).collect()
        except Declined as reason:
            _remark(module, str(reason))
            for load in [load for r in rings if not r.once for load in r.loads]:
                lower_access(load)


def check_split(module: Module, func: ops.FuncOp, facts: GpuFacts) -> None:
    """Raise Declined if a function with loops that load tiles through tensor maps would not be split."""
    Needs(_Split(module, func, _rings(func), facts)).collect()


def _remark(module: Module, reason: str) -> None:
    remark(module, f"not warp-specialised: {reason}")


def _rings(func: ops.FuncOp) -> list[Ring]:
    """Return what a kernel loads through tensor maps: in its loops, block by block, and once before these."""
    rings: list[Ring] = []
    for block in func.all_blocks() if func.kernel else ():
        loads = [op for op in block if isinstance(op, ops.DescriptorLoadOp)]
        if loads and (isinstance(block.parent, ops.ForOp) or block is func.body):
            rings.append(Ring(block, loads, [], once=block is func.body))
    return rings if any(not r.once for r in rings) else []


def _check(func: ops.FuncOp, num_warps: int) -> None:
    if not is_enabled("warp-specialize"):
        raise Declined("warp specialisation is switched off")
    if num_warps not in CONSUMERS:
        raise Declined(f"a role of {num_warps} warps is not provided for")
    for op in func.walk():
        if isinstance(op, ops.CallOp):
            raise Declined("the kernel calls a function that is not inlined")
        if isinstance(op, OUTSIDE):
            raise Declined(f"the kernel waits for others by {op.opcode}")


class _Split:
    def __init__(self, module: Module, func: ops.FuncOp, rings: list[Ring], facts: GpuFacts):
        _check(func, module.attrs["num_warps"])
        self.module, self.func, self.facts = module, func, facts
        self.warps: int = module.attrs["num_warps"]
        self.kept = shared_scalars(func)
        self.rings = [r for r in rings if not r.once or (self._known(r) and sees_nothing(func, r))]
        self.ordered = ordered_loops(func, self.rings)
        self.acquire = ProducerAcquire(list(self.ordered))
        self.spine: set[Op] = set()
        for r in rings:
            op = r.block.parent
            while op is not None and op is not func:
                self.spine.add(op)
                op = op.parent_op()
        self.transposition = transposition_of(func, self.warps, facts)
        self.counts: dict[Value, int] = {}  # arrivals by row of barriers
        self.reads = not any(isinstance(op, ops.PointerWrite) for op in func.walk())

    def _known(self, r: Ring) -> bool:
        """Keep the loads whose coordinates both roles know from the start."""
        known = self.kept
        r.loads = [x for x in r.loads if all(v.op is None or v.op in known for v in x.offsets)]
        return bool(r.loads)

    def run(self) -> None:
        if self.transposition is not None and not apply("transpose-role", self.func):
            self.transposition = None
        needs = Needs(self).collect()
        self._group()
        self._stages()
        roles, self.beside = self._leave_room(), SLACK + self._others()
        rest = [
            op for op in self.func.body if op not in self.kept and not isinstance(op, ops.ReturnOp)
        ]
        # Scalars that both roles use come first.
        for op in [op for op in self.func.body if op in self.kept]:
            op.move_before(rest[0])
        start = Builder.at_start(self.func.body)  # barriers are initialised early
        for r in self.rings:
            if r.first is None:
                self._allocate(r, start)
            r.follow()
        if self.acquire.loops:
            self.acquire.bars = self._barriers(start, _places(1), "ready", self.warps)
        counts = tuple(self.counts.values())
        start.insert(ops.MbarrierInitOp(list(self.counts), counts=counts, by_producer=True))
        start = Builder.before_op(rest[0])
        loading = [r for r in self.rings if not r.filled_by_transpose]
        producer = Producer(self, needs, loading).build(start)
        op = ops.WarpSpecializeOp(
            registers=roles.registers,
            warps=roles.warps,
            transpose_warps=roles.transpose_warps,
            ctas=max(r.ctas for r in self.rings),
            regions=[Block(), producer, self._transpose_role(needs, start)],
            loc=self.func.loc,
        )
        start.insert(op)
        for x in rest:
            x.detach()
            op.consumers.append(x)
        Builder(op.consumers).insert(ops.YieldOp([]))
        self.acquire.arrive()
        self._consume(op, const32(Builder.before_op(op), 0))
        repeat_in_roles(op, [x for x in self.func.body if x in self.kept])
        warps = roles.warps + roles.transpose_warps
        self.module.attrs |= {"producer_warps": warps, "resident_ctas": roles.ctas}

    def _transpose_role(self, needs: Needs, start: Builder) -> Block:
        """Return the code of the transpose role, if there is one."""
        if self.transposition is not None:
            loaded = next(r for r in self.rings if r.emptied_by_transpose)
            transposed = next(r for r in self.rings if r.filled_by_transpose)
            return TransposeRole(self, needs, self.transposition, loaded, transposed).build(start)
        block = Block()
        Builder(block, None, self.func.loc).insert(ops.YieldOp([]))
        return block

    def _group(self) -> None:
        """Split the loads of each block into rings. Before inner loops only operands of MMAs get one."""
        found: list[Ring] = []
        for r in self.rings:
            inner = any(
                other.block is not r.block and other.block.parent in set(r.block_ops())
                for other in self.rings
            )
            loads = [x for x in r.loads if not (r.once or inner) or filled_by(x) is not None]
            what = self.transposition
            if what is not None and what.load in loads:
                loads.remove(what.load)
                found.append(Ring(r.block, [what.load], [what.alloc], emptied_by_transpose=True))
                found.append(
                    Ring(r.block, [what.read], [what.transposed], filled_by_transpose=True)
                )
            for ring in grouped(loads, [allocation(x) for x in loads]):
                ring.once, ring.outer = r.once, r.once or inner
                found.append(ring)
        self.rings = found
        share(found)

    def _leave_room(self) -> WarpRoles:
        """Return the roles. Use fewer stages if a second CTA then shares the SM with a CTA of one warpgroup: while one
        works on results of a chain of MMAs, the other one multiplies."""
        if self.transposition is not None:
            return self.transposition.roles
        roles, rings = self._roles(), [r for r in self.rings if not r.outer and r.first is None]
        chains = any(
            shiftable(loop, _allocs([r]), CHAINED_REG32)
            for r in rings
            if isinstance(loop := r.block.parent, ops.ForOp)
        )
        if self.warps > WARPGROUP or roles.ctas > 1 or not chains:
            return roles
        wanted = {r: r.stages for r in rings}
        for stages in range(max(wanted.values()) - 1, 1, -1):
            for r in rings:
                r.stages = min(r.stages, stages)
            smaller = self._roles()
            if smaller.ctas > 1:
                return smaller
        for r, stages in wanted.items():
            r.stages = stages
        return roles

    def _roles(self) -> WarpRoles:
        rings = sum(r.slot_bytes * r.stages for r in self.rings if r.first is None)
        fit = self.facts.ctas_that_fit(SLACK + self._others() + rings)
        reg32 = mma_reg32(self.func)
        largest = instruction_reg32(self.func)
        return roles_for(self.facts, self.warps, reg32, fit if reg32 else 1, largest)

    def _consume(self, op: ops.WarpSpecializeOp, zero: Value) -> None:
        by_block: dict[Block, list[Ring]] = {}
        leads: dict[Ring, list[Ring]] = {}
        view = None
        if self.transposition is not None:
            late_reading(self.transposition)
            view = self.transposition.read.shared
        for r in self.rings:
            if r.once:
                consume_once(r, zero)
            elif not r.emptied_by_transpose:
                by_block.setdefault(r.block, []).append(r)
                leads.setdefault(r.lead, []).append(r)
        plans: dict[Block, Plan] = {}
        for block, rings in by_block.items():
            loop = block.parent
            assert isinstance(loop, ops.ForOp)
            allocs = _allocs(rings)
            running, shifted = overlapping(loop, allocs, CHAINED_REG32)
            plans[block] = Plan(running, shifted)
            kinds = kinds_of(loop, running, shifted)
            size = sum(r.slot_bytes for r in rings if r.first is None)
            looked = Looked(loop, self.facts, self.warps, self._wanted(loop), kinds)
            looked.note((rings[0].stages, kinds[0]), self.beside, size, "TMA")
        for rings in leads.values():
            consume(rings, plans, op.consumers, zero)
        if self.transposition is not None and view is not None:
            drop_loaded(self.transposition, view)
        for block, plan in plans.items():
            loop = block.parent
            assert isinstance(loop, ops.ForOp)
            if plan.shifted:
                ping_pong = 0 if self.warps > MANY_WARPS else None
                schedule_late(loop, 0, plan.shifted, plan.late, ping_pong)

    def _stages(self) -> None:
        """Choose the numbers of buffers: as many as are asked for and fit beside other uses of shared memory."""
        total = self.facts.max_shared_bytes
        room = total - SLACK - self._others()
        by_block: dict[Block, list[Ring]] = {}
        for r in self.rings:
            if r.outer or r.filled_by_transpose:
                r.stages = BUFFERS if r.filled_by_transpose else 1
                room -= r.slot_bytes * r.stages
            elif r.first is None:
                by_block.setdefault(r.block, []).append(r)
        for block, rings in by_block.items():
            size = sum(r.slot_bytes for r in rings)
            fit = room // len(by_block) // size
            loop = block.parent
            assert isinstance(loop, ops.ForOp)
            wanted = self._wanted(loop)
            if fit < 2:
                raise Declined(f"two stages of {size} bytes do not fit into shared memory")
            stages = min(wanted, fit)
            if stages < fit and total // (size * (stages + 1)) == total // (size * stages):
                stages += 1
            for r in rings:
                r.stages = stages

    def _wanted(self, loop: ops.ForOp) -> int:
        stages: int = loop.num_stages or self.module.attrs.get("num_stages", 1)
        return max(2, stages)

    def _others(self) -> int:
        """Return the bytes of shared memory besides the rings. Code after the last loop reuses the rings' buffers."""
        lasting = largest = 0
        mine = {a for r in self.rings for a in r.allocs}
        tops = list(self.func.body)
        last = max(i for i, op in enumerate(tops) if op in self.spine)
        behind = {x for op in tops[last + 1 :] for x in op.walk()}
        for op in self.func.walk():
            if isinstance(op, ops.LocalAllocOp):
                lasting += 0 if op in mine else op.bytes
            elif isinstance(op, ops.DescriptorStoreOp) and (op not in behind or is_in_loop(op)):
                lasting += -(-scratch_bytes(op, self.warps, self.facts) // 1024) * 1024
            elif op not in behind and not (
                isinstance(op, ops.DescriptorLoadOp)
                and op in {x for r in self.rings for x in r.loads}
            ):
                largest = max(largest, scratch_bytes(op, self.warps, self.facts))
        return lasting + largest

    def _allocate(self, r: Ring, b: Builder) -> None:
        for a in r.allocs:
            t: SharedType = a.result.type
            ring = SharedType((r.stages, *t.shape), t.elem, t.layout)
            r.buffers.append(b.emit(ops.LocalAllocOp(None, results=[ring], names=[a.result.name])))
        bars = _places(1 << (r.stages - 1).bit_length())
        alone = (
            self.warps < WARPGROUP or r.filled_by_transpose
        )  # which write sooner than copies arrive
        by_mmas = read_by_mmas([a.result for a in r.allocs])
        r.groups = not alone and by_mmas
        r.plain = not (r.filled_by_transpose or by_mmas)
        transposers = (
            self.transposition.roles.transpose_warps if self.transposition is not None else 0
        )
        r.full = self._barriers(b, bars, "full", transposers if r.filled_by_transpose else 1)
        if not r.once:
            r.ctas = 1 if r.filled_by_transpose else max(map(copying_ctas, r.loads, r.allocs))
            emptied = self.warps // (WARPGROUP if r.groups else 1)
            arrivals = transposers if r.emptied_by_transpose else emptied
            r.empty = self._barriers(b, bars, "empty", arrivals * r.ctas)

    def _barriers(self, b: Builder, t: SharedType, name: str, count: int) -> Value:
        alloc = ops.LocalAllocOp(None, results=[t], names=[name])
        alloc.attrs["lasting"] = True
        row = b.emit(alloc)
        self.counts[row] = count
        return row


def _places(count: int) -> SharedType:
    """Return the type of a row of barriers."""
    return SharedType((count,), int64, shared_linear((count,), (0,)))


def _allocs(rings: list[Ring]) -> set[Op]:
    return {a for r in rings for a in r.allocs}
