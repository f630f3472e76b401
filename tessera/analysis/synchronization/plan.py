"""Chooses which ops of a module must be run: those that touch shared memory or wait, the control flow around them, and
the scalars that both depend on. MMAs in flight are followed through the values that hold their results."""

from __future__ import annotations

from dataclasses import dataclass, field

from tessera import ops
from tessera.analysis.provenance import outgoing
from tessera.analysis.synchronization.rules import RULES
from tessera.errors import SynchronizationError
from tessera.ir import Block, Effect, Module, Op, SharedType, TileType, TokenType, Value

FLOW = (ops.Loop, ops.IfOp, ops.WarpSpecializeOp)


@dataclass(slots=True)
class Plan:
    """The ops of each block to run, in order; the values to compute; the results of MMAs that may be in flight, and the
    ops that read these results."""

    steps: dict[Block, list[Op]] = field(default_factory=lambda: {})
    needed: set[Value] = field(default_factory=lambda: set())
    in_flight: set[Value] = field(default_factory=lambda: set())
    uses: set[Op] = field(default_factory=lambda: set())
    slots: int = 1  # of the longest ring
    awaits: dict[Op, list[Op]] = field(default_factory=lambda: {})
    """By op, the loads from shared memory whose results it needs in registers, all of them."""

    def wanted(self, values: list[Value]) -> list[int]:
        """Return the indices of those values that are computed or followed."""
        return [i for i, v in enumerate(values) if v in self.needed or v in self.in_flight]


def touches(op: Op) -> bool:
    """Whether an op itself reads or writes shared memory, waits or lets others go on."""
    if type(op) not in RULES:
        if "scratch" in op.attrs:
            raise SynchronizationError(f"{op.opcode} has shared memory but no rule", loc=op.loc)
        return False
    return RULES[type(op)].applies(op)


def plan_of(module: Module) -> Plan:
    plan = Plan()
    for func in module.body:
        _follow_mmas(func, plan)
    active: set[Op] = set()
    for func in module.body:
        for op in func.walk():
            if isinstance(
                op, ops.WgmmaOp | ops.LocalStoreOp | ops.LocalAllocOp | ops.MbarrierArriveOp
            ):
                loads = _needed_loads(op)
                if loads:
                    plan.awaits[op] = loads
            if touches(op) or op in plan.uses or isinstance(op, ops.CallOp):
                active.add(op)
            if isinstance(op, ops.LocalIndexOp):
                plan.slots = max(plan.slots, op.ring.type.shape[0])
    for op in list(active):
        while (parent := op.parent_op()) is not None and parent not in active:
            active.add(parent)
            op = parent
    _collect(active, plan)
    for func in module.body:
        for block in func.all_blocks():
            chosen = [
                op for op in block if op in active or any(r in plan.needed for r in op.results)
            ]
            plan.steps[block] = [op for op in chosen if not isinstance(op, ops.SharedView)]
    return plan


def _needed_loads(op: Op) -> list[Op]:
    """Return the loads from shared memory whose results an op needs: those that an arrival lists, an MMA multiplies or
    a store writes."""
    given = getattr(op, "after", ()) if isinstance(op, ops.MbarrierArriveOp) else op.operands
    found: list[Op] = []
    work = [v for v in given if isinstance(v.type, TileType)]
    if isinstance(op, ops.WgmmaOp):
        work = [v for v in work if v is not op.acc]
    for v in work:
        made = v.op
        if isinstance(made, ops.LocalLoadOp):
            found.append(made)
        elif made is not None and made.effects is Effect.NONE and not made.regions:
            whole = [x for x in made.operands if isinstance(x.type, TileType)]
            work += [x for x in whole if x.type.numel <= v.type.numel and x not in work]
    return found


# --- MMAs in flight ---------------------------------------------------------------------------------------
def _follow_mmas(func: Op, plan: Plan) -> None:
    """Follow results of MMAs through carried values and branches to the ops that read them."""
    work = [
        op.result
        for op in func.walk()
        if isinstance(op, ops.WgmmaOp) and (op.pending or op.asynchronous)
    ]
    while work:
        v = work.pop()
        if v in plan.in_flight:
            continue
        plan.in_flight.add(v)
        for user, index in v.uses:
            if isinstance(user, ops.WgmmaOp) and user.operands[index] is user.acc:
                work.append(user.result)
            elif isinstance(user, ops.Loop) or user.terminator:
                work += outgoing(user, index)
            elif not isinstance(user, ops.WgmmaWaitOp) or user.acc is not v:
                plan.uses.add(user)


# --- scalars --------------------------------------------------------------------------------------------------
def _is_scalar(v: Value) -> bool:
    return not isinstance(v.type, TileType | SharedType | TokenType)


def _roots(op: Op) -> list[Value]:
    """Return the scalars that an active op itself needs."""
    if isinstance(op, ops.ForOp):
        return [op.lb, op.ub, op.step]
    if isinstance(op, ops.IfOp):
        return [op.condition]
    if isinstance(op, ops.WhileOp):
        return [op.before.terminator.operands[0]]
    found = [v for v in op.operands if _is_scalar(v)] if isinstance(op, ops.CallOp) else []
    if type(op) in RULES:
        given = [getattr(op, name) for name in RULES[type(op)].scalars]
        found += [v for v in given if v is not None]
    for v in op.operands:
        while isinstance(v.op, ops.SharedView):
            if isinstance(v.op, ops.LocalIndexOp):
                found.append(v.op.index)
            v = v.op.operands[0]
    return found


def _collect(active: set[Op], plan: Plan) -> None:
    work = [v for op in active for v in _roots(op)]
    while work:
        v = work.pop()
        if v in plan.needed:
            continue
        plan.needed.add(v)
        op = v.op
        if op is None:
            work += _behind_argument(v)
        elif isinstance(op, ops.ForOp):
            i = v.index
            work += [op.carried[i], op.lb, op.ub, op.step]
        elif isinstance(op, ops.WhileOp):
            work += [op.before.args[v.index], op.before.terminator.operands[0]]
        elif isinstance(op, ops.IfOp):
            work += [op.condition, *[b.terminator.operands[v.index] for b in op.regions]]
        elif isinstance(op, ops.CallOp):
            callee = op.resolve()
            assert callee is not None
            work += [x for x in (*op.operands, *callee.body.terminator.operands) if _is_scalar(x)]
        else:
            work += [x for x in op.operands if _is_scalar(x)]


def _behind_argument(v: Value) -> list[Value]:
    """Return the values that a block's argument depends on."""
    block = v.owner
    assert isinstance(block, Block)
    loop = block.parent
    if isinstance(loop, ops.ForOp):
        if v.index == 0:
            return [loop.lb, loop.ub, loop.step]
        i = v.index - 1
        return [loop.inits[i], loop.body.terminator.operands[i], loop.results[i]]
    if isinstance(loop, ops.WhileOp):
        i = v.index
        first = loop.before.terminator.operands[1 + i]
        last = loop.after.terminator.operands[i]
        return [
            loop.inits[i], first, last, loop.before.args[i], loop.after.args[i],
            loop.before.terminator.operands[0],
        ]  # fmt: skip
    assert loop is None or isinstance(loop, ops.FuncOp)
    return []
