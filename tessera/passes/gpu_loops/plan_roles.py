"""Plans warp roles: one thread copies tiles to shared memory, the program's warps compute (ops/roles.py).

    for i:                                    func {producer_warps=1}
      %t = descriptor_load %d, [%x, i]          for i:
      %s = local_alloc %t                  →      %t = descriptor_load %d, [%x, i]
      ... %s ...                                  %s = local_alloc %t {role='producer', ring=0, slots=3, …}
                                                  ... %s ...

Tiles for the same MMAs share a ring; others have their own, and are released when they have been used. The producer
also copies operands of MMAs that are loaded before the loops. The last MMA of a chain (gpu_loops/chains.py) is
shifted by an iteration, and reads its ring one iteration later; an MMA that only accumulates may run on.

Where this cannot be done the function stays as it is and the module's attribute `remarks` says why."""

from __future__ import annotations

from collections.abc import Sequence

from tessera import ops
from tessera.analysis.allocation import is_in_loop, scratch_beside
from tessera.analysis.loop_times import kinds_of
from tessera.analysis.machines import WARPGROUP
from tessera.ir import Module, Op, pass_
from tessera.ir.applications import Declined, apply, is_enabled
from tessera.ops.roles import NEVER
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_loops.chains import overlapping, run_on, schedule_late, shiftable
from tessera.passes.gpu_loops.choices import note_choice
from tessera.passes.gpu_loops.ordering import seen_by
from tessera.passes.gpu_loops.producer import Needs, Split
from tessera.passes.gpu_loops.rings import SLACK, Ring, filled_by, grouped, read_together, share
from tessera.passes.gpu_loops.shared_scalars import shared_scalars
from tessera.passes.gpu_loops.transpose_role import BUFFERS, transposition_of
from tessera.passes.gpu_loops.warp_roles import WarpRoles, instruction_reg32, roles_for, roles_reg32
from tessera.passes.neutral.descriptors import lower_access
from tessera.passes.neutral.remarks import remark

CONSUMERS = (4, 8, 16)
# Warpgroups up to here drift apart by themselves; more of them are faster in ping-pong.
MANY_WARPS = 8
OUTSIDE = (ops.GridDependencyOp, ops.VolatileAsmOp)


@pass_("schedule-roles", optimization="warp-specialize", counts=True)
def schedule_roles(module: Module, facts: GpuFacts) -> None:
    """Plan warp roles: write who loads the tiles of kernels whose loops load through tensor maps.

    Takes: GPU IR with layouts, as boxes and swizzles follow from them; before `schedule-loops`.
    Gives: the warps and registers of roles on the function, and buffers with `role`, `ring`, `slots`, `signal` and
        `release`; MMAs that run on with `pending`, or late with `stage`; or the function as it was, and a remark.
    Needs: a GPU with a TMA unit (sm_90).
    Raises: nothing.
    Example: `runs_on` of tests/filecheck/schedule-roles/plan.gir
        for { descriptor_load; local_alloc; wgmma }
        → for { descriptor_load; local_alloc {role='producer', ring=0, slots=3}; wgmma {pending=1} }; wgmma_wait
    Compare: CUTLASS 3, warp-specialized kernels; Triton `tritongpu-automatic-warp-specialization`.
    """
    if not facts.has_tma:
        return
    for func in module.body:
        assert isinstance(func, ops.FuncOp)
        if loading_rings(func) and apply("warp-specialize", func):
            try:
                _Plan(module, func, facts).write()
            except Declined as reason:
                _remark(module, str(reason))


@pass_("descriptor-to-pointer")
def descriptor_to_pointer(module: Module, facts: GpuFacts) -> None:
    """Let loops load through pointers in kernels that `schedule-roles` will not split.

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
        rings = loading_rings(func)
        if not rings:
            if any(isinstance(op, ops.ForOp) and op.warp_specialize for op in func.walk()):
                _remark(module, "no loop loads tiles through tensor maps")
            continue
        try:
            check_split(module, func)
        except Declined as reason:
            _remark(module, str(reason))
            for load in [load for r in rings if not r.once for load in r.loads]:
                lower_access(load)


def check_split(module: Module, func: ops.FuncOp) -> Split:
    """Return the loops that load tiles through tensor maps, in a ring each. Raises Declined if a function with such
    loops would not be split."""
    _check(func, module.attrs["num_warps"])
    known = shared_scalars(func)
    rings: list[Ring] = []
    for r in loading_rings(func):
        if r.once:  # keep the loads whose coordinates all roles know from the start
            r.loads = [x for x in r.loads if all(v.op is None or v.op in known for v in x.offsets)]
        if not r.once or (r.loads and not seen_by(func, r)):
            rings.append(r)
    split = Split(func, rings)
    Needs(split)
    return split


def _remark(module: Module, reason: str) -> None:
    remark(module, f"not warp-specialised: {reason}")


def loading_rings(func: ops.FuncOp) -> list[Ring]:
    """Return what a kernel loads through tensor maps: in its loops, block by block, and once before these."""
    rings: list[Ring] = []
    for block in func.all_blocks() if func.kernel else ():
        loads = [op for op in block if isinstance(op, ops.DescriptorLoadOp)]
        if loads and (isinstance(block.parent, ops.ForOp) or block is func.body):
            rings.append(Ring(block, loads, [], release=NEVER if block is func.body else ""))
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


class _Plan:
    """The roles of one function. Raises Declined if there cannot be any."""

    def __init__(self, module: Module, func: ops.FuncOp, facts: GpuFacts):
        self.module, self.func, self.facts = module, func, facts
        self.warps: int = module.attrs["num_warps"]
        found = check_split(module, func)
        self.spine = found.spine
        self.transposition = transposition_of(func, self.warps, facts)
        if self.transposition is not None and not apply("transpose-role", func):
            self.transposition = None
        self.rings = self._grouped(found.rings)
        self._stages()
        self.roles, self.beside = self._leave_room(), SLACK + self._others()

    def write(self) -> None:
        """Write the plan into the schedule."""
        roles, func = self.roles, self.func
        func.attrs |= {"producer_warps": roles.warps, "role_registers": roles.registers}
        if roles.transpose_warps:
            func.attrs["transpose_warps"] = roles.transpose_warps
        self.module.attrs["resident_ctas"] = roles.ctas
        leads = [r for r in self.rings if r.first is None]
        for r in self.rings:
            self._release(r)
            r.write(leads.index(r.lead))
        looping = [r for r in self.rings if not r.once and r.release != "transpose"]
        for loop, rings in _by_loop(looping).items():
            self._overlap(loop, rings)
        if self.transposition is not None:  # consumers wait right before the MMA
            self.transposition.read.move_before(self.transposition.mma)
            self.transposition.transposed.move_before(self.transposition.mma)

    def _release(self, r: Ring) -> None:
        """Decide who releases the buffers: warpgroups if all readers are MMAs of warpgroups, which then run on while
        the next copy is on its way, and one of them runs in each iteration. The transpose role writes sooner than
        copies arrive."""
        if not r.release:
            alone = self.warps < WARPGROUP or r.role == "transpose"
            together = read_together(r.allocs)
            r.release = "warpgroup" if together and not alone else "warp"

    def _overlap(self, loop: ops.ForOp, rings: list[Ring]) -> None:
        """Write which MMAs of a loop run on, or late."""
        running, shifted = overlapping(loop, _allocs(rings), roles=True)
        kinds = kinds_of(loop, running, shifted)
        size = sum(r.slot_bytes for r in rings if r.first is None)
        note_choice(
            loop, self.facts, self.warps, wanted=self._wanted(loop), kinds=kinds,
            chosen=(rings[0].stages, kinds[0]), beside=self.beside, size=size, signal="TMA",
        )  # fmt: skip
        if running:
            run_on(loop, running)
        if shifted:
            schedule_late(loop, 0, shifted, ping_pong_reg32=0 if self.warps > MANY_WARPS else None)

    def _grouped(self, blocks: list[Ring]) -> list[Ring]:
        """Split the loads of each block into rings. Before inner loops only operands of MMAs get one."""
        found: list[Ring] = []
        around = {r: op for r in blocks if (op := r.block.parent) is not None}
        for r in blocks:
            inner = any(loop.is_inside(around[r]) for loop in around.values())
            loads = [x for x in r.loads if not (r.once or inner) or filled_by(x) is not None]
            what = self.transposition
            if what is not None and what.load in loads:
                loads.remove(what.load)
                found.append(Ring(r.block, [what.load], [what.alloc], release="transpose"))
                found.append(Ring(r.block, [what.read], [what.transposed], "transpose"))
            for ring in grouped(loads):
                ring.release, ring.outer = r.release, r.once or inner
                found.append(ring)
        share(found)
        return found

    def _leave_room(self) -> WarpRoles:
        """Return the roles. Use fewer stages if a second CTA then shares the SM with a CTA of one warpgroup: while one
        works on results of a chain of MMAs, the other one multiplies."""
        if self.transposition is not None:
            return self.transposition.roles
        roles, rings = self._roles(), [r for r in self.rings if not r.outer and r.first is None]
        chains = any(
            shiftable(loop, _allocs([r]), roles=True)
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
        reg32 = roles_reg32(self.func)
        largest = instruction_reg32(self.func)
        return roles_for(self.facts, self.warps, reg32, fit if reg32 else 1, largest)

    def _stages(self) -> None:
        """Choose the numbers of buffers: as many as are asked for and fit beside other uses of shared memory."""
        total = self.facts.max_shared_bytes
        room = total - SLACK - self._others()
        fixed = [r for r in self.rings if r.outer or r.role == "transpose"]
        for r in fixed:
            r.stages = BUFFERS if r.role == "transpose" else 1
            room -= r.slot_bytes * r.stages
        found = _by_loop([r for r in self.rings if r.first is None and r not in fixed])
        for loop, rings in found.items():
            size = sum(r.slot_bytes for r in rings)
            fit = room // len(found) // size
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
        mine = {a for r in self.rings for a in r.allocs}
        loads = {x for r in self.rings for x in r.loads}
        tops = list(self.func.body)
        last = max(i for i, op in enumerate(tops) if op in self.spine)
        behind = {x for op in tops[last + 1 :] for x in op.walk()}
        found = [op for op in self.func.walk() if op not in behind and op not in loads]
        found += [op for op in behind if isinstance(op, ops.DescriptorStoreOp) and is_in_loop(op)]
        allocs = [op for op in self.func.walk() if isinstance(op, ops.LocalAllocOp)]
        lasting = sum(op.bytes for op in allocs if op not in mine)
        return lasting + scratch_beside(found, self.warps, self.facts)


def _by_loop(rings: Sequence[Ring]) -> dict[ops.ForOp, list[Ring]]:
    found: dict[ops.ForOp, list[Ring]] = {}
    for r in rings:
        assert isinstance(r.block.parent, ops.ForOp)
        found.setdefault(r.block.parent, []).append(r)
    return found


def _allocs(rings: list[Ring]) -> set[Op]:
    return {a for r in rings for a in r.allocs}
