"""Reads off GPU IR how a kernel is scheduled: loops with their stages, roles of warps, CTAs on an SM."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any

from tessera import ops
from tessera.analysis.loop_times import LoopChoice, account
from tessera.analysis.machines import REGISTER_GRAIN, Machine
from tessera.analysis.reports import LoopReport, Occupancy, PlanReport, RoleReport, Schedule
from tessera.backends.gpu.local import can_wait
from tessera.explain.counting import Work
from tessera.ir import Module, Op, SharedType, TileType, Value
from tessera.passes.gpu_facts import GpuFacts

COPIES: dict[type[Op], str] = {
    ops.TensorCopyOp: "TMA",
    ops.AsyncCopyOp: "cp.async",
    ops.LoadOp: "registers",
    ops.DescriptorLoadOp: "TMA",
}


def place(op: Op) -> str:
    return op.loc.line_chain() if op.loc is not None else "?"


def schedule_of(
    module: Module,
    work: Work,
    choices: Sequence[LoopChoice],
    machine: Machine,
    occupancy: Occupancy | None,
) -> Schedule:
    """Return the schedule of a module of GPU IR, or of tile IR for a CPU, which has no stages. `choices`: what planners
    noted of its loops."""
    started = ceil(work.programs * int(module.attrs.get("cluster", 1)) / machine.units)
    ctas = min(started, occupancy.ctas if occupancy is not None else 1)
    roles: list[RoleReport] = []
    plans = {c.loc.line_chain(): c for c in choices if c.loc is not None}
    loops: dict[str, LoopReport] = {}
    for op in module.walk():
        if isinstance(op, ops.WarpSpecializeOp):
            warps: int = module.attrs.get("num_warps", 4)
            roles.append(RoleReport("producer", op.warps, op.registers[0]))
            roles.append(RoleReport("consumers", warps, op.registers[1]))
            if op.transpose_warps:
                roles.append(RoleReport("transpose", op.transpose_warps, op.registers[2]))
        elif isinstance(op, ops.ForOp):
            found = LoopReport(place(op), work.trips.get(op, 0.0), _stages(op), _copies(op))
            if found.place in plans:
                found.plan = plan_of(plans[found.place], machine, ctas)
            known = loops.setdefault(found.place, found)  # the roles have a copy each
            known.stages = max(known.stages, found.stages)
            known.copies = known.copies or found.copies
            known.trips = max(known.trips, found.trips)
    attrs = module.attrs
    overlapping = any(isinstance(op, ops.PingPongOp) for op in module.walk())
    return Schedule(
        list(loops.values()), roles, bool(attrs.get("persistent")), int(attrs.get("cluster", 1)), overlapping
    )  # fmt: skip


def plan_of(choice: LoopChoice, machine: Machine, ctas: int) -> PlanReport:
    """Return the account of a loop on a machine of which an SM holds so many CTAs at most."""
    found = account(choice, machine, ctas)
    other = str(found.other) if found.other is not None else ""
    return PlanReport(
        str(found.plan), found.busy, found.cycles, found.bound, found.plan.ctas, other, found.other_cycles, found.why
    )  # fmt: skip


def _inside(op: ops.ForOp) -> Iterable[Op]:
    """Return the ops of a loop, without those of loops in it."""
    for x in op.body:
        yield x
        if not isinstance(x, ops.Loop):
            for block in x.regions:
                yield from block


def _stages(op: ops.ForOp) -> int:
    """Return how many buffers the largest ring has that a loop uses: 1 without a ring."""
    rings = [_ring(x.ring) for x in _inside(op) if isinstance(x, ops.LocalIndexOp)]
    rings = [r for r in rings if r is not None and len(r.shape) > 2]
    return max((r.shape[0] for r in rings), default=1)


def _ring(v: Value) -> SharedType | None:
    return v.type if isinstance(v.type, SharedType) else None


def _copies(op: ops.ForOp) -> str:
    kinds = {COPIES[type(x)]: None for x in _inside(op) if type(x) in COPIES and _moves_tile(x)}
    return ", ".join(kinds)


def _moves_tile(op: Op) -> bool:
    return not isinstance(op, ops.LoadOp) or isinstance(op.result.type, TileType)


def occupancy_of(
    metadata: Any, module: Module, facts: GpuFacts, programs: int, units: int
) -> Occupancy:
    """Return how many CTAs fit on an SM, and what bounds them."""
    warps: int = getattr(metadata, "warps", metadata.num_warps)
    threads = warps * facts.warp_size
    registers = -(-max(1, metadata.registers) // REGISTER_GRAIN) * REGISTER_GRAIN
    limits = {
        "registers": facts.register_file // (registers * threads),
        "shared memory": facts.ctas_that_fit(metadata.shared),
        "threads": facts_threads(facts) // threads,
        "CTAs": facts.max_ctas,
    }
    ctas = max(1, min(limits.values()))
    most = facts_threads(facts) // facts.warp_size
    started = programs * int(module.attrs.get("cluster", 1))
    waves = started / (ctas * units)
    bound = [name for name, n in limits.items() if n == min(limits.values())]
    if waves < 1:
        bound = ["the grid", *bound]
    return Occupancy(ctas, ctas * warps, ctas * warps / most, limits, bound, waves)


def facts_threads(facts: GpuFacts) -> int:
    """Return the threads that an SM holds at a time."""
    return {16: 1536, 24: 1536}.get(facts.max_ctas, 2048)


# --- registers --------------------------------------------------------------------------------------------------
def live_registers(func: ops.FuncOp, needed: set[Value]) -> dict[Op, int]:
    """Return, for each op, the 32-bit registers of a thread that tiles of data take which are alive there. Addresses
    and masks (`needed`) are left out: code computes most of them again, or adds constants; so are tiles that matrix
    instructions read piece by piece."""
    order = list(func.walk())
    at = {op: i for i, op in enumerate(order)}
    change = [0] * (len(order) + 2)
    for op in order:
        inside = [a for block in op.regions for a in block.args]
        end = max((at[x] for x in op.walk()), default=at[op]) if op.regions else at[op]
        for v in (*op.results, *inside):
            size = 0 if v in needed else _registers(v)
            if size:  # the results of a loop take the place of what it carries
                start = at[op] if v.op is None else end
                change[start] += size
                change[min(len(order), max(start, _last_use(v, at)) + 1)] -= size
    found: dict[Op, int] = {}
    now = 0
    for i, op in enumerate(order):
        now += change[i]
        found[op] = now
    return found


def _registers(v: Value) -> int:
    t = v.type
    if not isinstance(t, TileType) or t.layout is None:
        return 0
    if isinstance(v.op, ops.LocalLoadOp) and can_wait(v.op):
        return 0
    bits = getattr(t.elem, "bits", 64)
    distinct = len(set(t.layout.register_representatives()))
    return -(-distinct * max(bits, 8) // 32)


def _last_use(v: Value, at: dict[Op, int]) -> int:
    """Return the position of the last use; one in a loop that does not contain the value counts to the loop's end."""
    last = at[v.op] if v.op is not None else 0
    home = v.op.parent if v.op is not None else v.owner
    for user in v.users():
        op = user
        while op.parent is not home:
            around = op.parent_op()
            if around is None:
                break
            op = around
        nested = op is not user  # the operands of a loop become values that it carries
        last = max(last, max(at.get(x, 0) for x in op.walk()) if nested else at.get(op, 0))
    return last
