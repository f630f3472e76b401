"""Writes the producer's role: the loops around loads of tiles, with the scalars that they need (expand_roles.py)."""

from __future__ import annotations

from collections.abc import Sequence

from tessera import ops
from tessera.dtypes import int32
from tessera.ir import Block, Builder, Effect, Op, SharedType, TileType, Value
from tessera.ir.applications import Declined
from tessera.passes.gpu_loops.ordering import ordered_loops
from tessera.passes.gpu_loops.rings import (
    ProducerAcquire,
    Ring,
    copying_ctas,
)
from tessera.passes.gpu_loops.shared_scalars import shared_scalars
from tessera.passes.gpu_loops.slots import advance
from tessera.passes.neutral.loops import const32, runs_at_all


class Split:
    """What is known of a function with rings: all ops around them (`spine`), scalars that all roles can use (`kept`),
    loops before which the producer waits for the consumers, with what these did there (`ordered`), and whether
    the producer may read memory (`reads`). Raises Declined if a loop's loads may see what the loop does."""

    def __init__(self, func: ops.FuncOp, rings: list[Ring]):
        self.func, self.rings = func, rings
        self.kept = shared_scalars(func)
        self.ordered = ordered_loops(func, [r for r in rings if r.role == "producer"])
        self.acquire = ProducerAcquire(list(self.ordered))
        self.spine: set[Op] = set()
        for r in rings:
            op = r.block.parent
            while op is not None and op is not func:
                self.spine.add(op)
                op = op.parent_op()
        self.reads = not any(isinstance(op, ops.PointerWrite) for op in func.walk())


class Needs:
    """The values and ops that compute the producer's offsets, bounds and conditions."""

    def __init__(self, split: Split):
        self.split = split
        self.values: set[Value] = set()
        self.ops: set[Op] = set()
        self.work: list[Value] = []

    def collect(self) -> Needs:
        values = list(self.split.acquire.flags.values())
        for op in self.split.spine:
            if isinstance(op, ops.WhileOp):
                values.append(op.before.terminator.operands[0])
            else:
                values += op.operands[:3] if isinstance(op, ops.ForOp) else op.operands
        for r in self.split.rings:
            values += [
                v
                for load in r.loads
                if isinstance(load, ops.DescriptorLoadOp)
                for v in load.offsets
            ]
        return self.follow(values)

    def follow(self, values: Sequence[Value]) -> Needs:
        """Add what is needed for further values. Raises Declined if the producer cannot compute one."""
        self.work += values
        while self.work:
            v = self.work.pop()
            if v not in self.values:
                self.values.add(v)
                self._of_argument(v) if v.op is None else self._of_op(v, v.op)
        return self

    def _of_argument(self, v: Value) -> None:
        loop = v.owner.parent if isinstance(v.owner, Block) else None
        if isinstance(loop, ops.WhileOp):
            self._of_carried(loop, v.index)
        elif isinstance(loop, ops.ForOp) and v.index > 0:
            self.work += [loop.inits[v.index - 1], loop.body.terminator.operands[v.index - 1]]
            self.work.append(loop.results[v.index - 1])

    def _of_carried(self, loop: ops.WhileOp, index: int) -> None:
        first, last = loop.before.terminator.operands[1:], loop.after.terminator.operands
        values = (loop.before.args, first, loop.after.args, last, loop.inits, loop.results)
        self.work += [v[index] for v in values]

    def _of_op(self, v: Value, op: Op) -> None:
        if op in self.split.kept:
            return
        if op in self.split.spine:
            if isinstance(op, ops.WhileOp):
                self._of_carried(op, v.index)
            elif isinstance(op, ops.ForOp):
                self.work.append(op.carried[v.index])
            else:
                self.work += [block.terminator.operands[v.index] for block in op.regions]
            return
        self._allow(op)
        self.ops.add(op)
        self.work += op.operands
        inside = set(op.walk())
        for inner in op.walk():
            if inner is not op:
                self._allow(inner)
                self.work += [
                    x for x in inner.operands if x.op not in inside and not _of(x, inside)
                ]

    def _allow(self, op: Op) -> None:
        what = f"the address of a tile depends on {op.opcode}"
        where = f" at {op.loc.short()}" if op.loc is not None else ""
        values = [*op.operands, *op.results]
        if any(isinstance(x.type, TileType | SharedType) for x in values):
            raise Declined(f"{what} of tiles{where}")
        read = isinstance(op, ops.LoadOp) and self.split.reads and not op.volatile
        if op.effects is not Effect.NONE and not read:
            raise Declined(f"{what}{where}")


def _of(v: Value, owners: set[Op]) -> bool:
    return isinstance(v.owner, Block) and v.owner.parent in owners


# The state of a ring with buffers: the next buffer and its phase; of an acquire: its barrier's index and the phase.
States = dict[Ring | ProducerAcquire, tuple[Value, Value]]


class Producer:
    """Writes the producer's code: the loops around the loads that fill `rings`, and the ops in `needs`."""

    def __init__(self, split: Split, needs: Needs, rings: Sequence[Ring]):
        self.split, self.needs, self.rings = split, needs, rings
        self.mapping: dict[Value, Value] = {}

    def build(self, before: Builder) -> Block:
        block = Block()
        b = Builder(block, None, self.split.func.loc)
        zero = const32(before, 0)
        leads: list[Ring | ProducerAcquire] = [r.lead for r in self.rings]
        leads += [self.split.acquire] if self.split.acquire.loops else []
        states = dict.fromkeys(leads, (zero, zero))
        self._block(self.split.func.body, b, states)
        for r, state in states.items():
            if isinstance(r, Ring) and r.ctas > 1 and not r.once:
                self._see_off(r, b, *state)
        b.insert(ops.YieldOp([]))
        return block

    def _block(self, block: Block, b: Builder, states: States) -> None:
        last: dict[Op, Ring] = {r.loads[-1]: r for r in self.rings if r.block is block}
        for op in block:
            if op in self.split.spine:
                self._around(op, b, states)
            elif op in self.needs.ops and op not in self.split.kept:
                b.insert(op.clone(self.mapping))
            elif op in last:
                self.fill(last[op], b, states)

    def _around(self, op: Op, b: Builder, states: States) -> None:
        if isinstance(op, ops.WhileOp):
            self._while(op, b, states)
        elif isinstance(op, ops.ForOp):
            if op in self.split.acquire.loops:
                self._acquire(op, b, states)
            self._for(op, b, states)
        else:
            self._if(op, b, states)

    def _acquire(self, loop: ops.ForOp, b: Builder, states: States) -> None:
        """Wait for the consumers if the loop has an iteration: they do not reach the next loop without its tiles."""
        acquire = self.split.acquire
        zero, phase = states[acquire]
        runs = runs_at_all(b, *[self._get(v) for v in (loop.lb, loop.ub, loop.step)])
        runs = b.emit(ops.AndOp(runs, self._get(acquire.flags[loop])))
        branch = b.insert(ops.IfOp(runs, results=[], regions=[Block(), Block()], loc=loop.loc))
        inside = Builder(branch.then, None, loop.loc)
        inside.insert(ops.MbarrierWaitOp(acquire.bars, zero, phase, fence=True))
        for block in branch.regions:
            Builder(block, None, loop.loc).insert(ops.YieldOp([]))
        flipped = b.emit(ops.XorOp(phase, const32(b, 1)))
        states[acquire] = zero, b.emit(ops.SelectOp(runs, flipped, phase))

    def fill(self, ring: Ring, b: Builder, states: States) -> None:
        """Fill the next buffer of a ring."""
        states[ring.lead] = self._copies(ring, b, *states[ring.lead])

    def _copies(self, r: Ring, b: Builder, slot: Value, phase: Value) -> tuple[Value, Value]:
        if not r.once:
            flipped = b.emit(ops.XorOp(phase, const32(b, 1)))
            b.insert(ops.MbarrierWaitOp(r.empty, slot, flipped))
        b.insert(ops.MbarrierArriveExpectTxOp(r.full, slot, bytes=r.bytes))
        for load, alloc, ring in zip(r.loads, r.allocs, r.buffers, strict=True):
            view = b.emit(ops.LocalIndexOp(ring, slot))
            offsets = [self._get(v) for v in load.offsets]
            copy = ops.TensorCopyOp(load.desc, offsets, view, r.full, slot, loc=load.loc)
            copy.ctas = min(r.ctas, copying_ctas(load, alloc))
            b.insert(copy)
        return (slot, phase) if r.once else advance(b, slot, phase, r.stages)

    def _see_off(self, r: Ring, b: Builder, slot: Value, phase: Value) -> None:
        """Wait until all CTAs have released all buffers, since they still arrive at barriers of this CTA."""
        for _ in range(r.stages):
            flipped = b.emit(ops.XorOp(phase, const32(b, 1)))
            b.insert(ops.MbarrierWaitOp(r.empty, slot, flipped))
            slot, phase = advance(b, slot, phase, r.stages)

    def _get(self, v: Value) -> Value:
        return self.mapping.get(v, v)

    def _inner(self, op: Op, states: States) -> list[Ring | ProducerAcquire]:
        """Return the rings that advance inside an op, and the acquire if it is there."""
        inside: set[Ring | ProducerAcquire] = set()
        if any(loop.is_inside(op) for loop in self.split.acquire.loops):
            inside.add(self.split.acquire)
        for r in self.rings:
            around = r.block.parent
            if around is op or (around is not None and around.is_inside(op)):
                inside.add(r.lead)
        return [r for r in states if r in inside]

    def _for(self, op: ops.ForOp, b: Builder, states: States) -> None:
        wanted = [i for i, arg in enumerate(op.carried) if arg in self.needs.values]
        rings = self._inner(op, states)
        inits = [self._get(op.inits[i]) for i in wanted]
        inits += [v for r in rings for v in states[r]]
        body = Block([op.lb.type, *[v.type for v in inits]])
        self.mapping[op.induction] = body.args[0]
        self.mapping.update({op.carried[i]: body.args[1 + n] for n, i in enumerate(wanted)})
        inner = self._pairs(rings, body.args[1 + len(wanted) :])
        inside = Builder(body, None, op.loc)
        self._block(op.body, inside, inner)
        yields = [self._get(op.body.terminator.operands[i]) for i in wanted]
        inside.insert(ops.YieldOp([*yields, *[v for r in rings for v in inner[r]]]))
        bounds = [self._get(v) for v in (op.lb, op.ub, op.step)]
        new = b.insert(ops.ForOp(*bounds, inits, regions=[body], loc=op.loc))
        new.num_stages = 1
        self.mapping.update({op.results[i]: new.results[n] for n, i in enumerate(wanted)})
        states.update(self._pairs(rings, new.results[len(wanted) :]))

    def _while(self, op: ops.WhileOp, b: Builder, states: States) -> None:
        wanted = [i for i, arg in enumerate(op.before.args) if arg in self.needs.values]
        rings = self._inner(op, states)
        inits = [self._get(op.inits[i]) for i in wanted]
        inits += [v for r in rings for v in states[r]]
        blocks: list[Block] = []
        for old in op.regions:
            block = Block([v.type for v in inits])
            self.mapping.update({old.args[i]: block.args[n] for n, i in enumerate(wanted)})
            inner = self._pairs(rings, block.args[len(wanted) :])
            inside = Builder(block, None, op.loc)
            self._block(old, inside, inner)
            condition, first = old is op.before, int(old is op.before)
            handed = [self._get(old.terminator.operands[first + i]) for i in wanted]
            handed += [v for r in rings for v in inner[r]]
            holds = self._get(old.terminator.operands[0]) if condition else None
            inside.insert(ops.YieldOp(handed) if holds is None else ops.ConditionOp(holds, handed))
            blocks.append(block)
        new = b.insert(ops.WhileOp(inits, regions=blocks, loc=op.loc, disable_licm=op.disable_licm))
        self.mapping.update({op.results[i]: new.results[n] for n, i in enumerate(wanted)})
        states.update(self._pairs(rings, new.results[len(wanted) :]))

    def _pairs(self, rings: Sequence[Ring | ProducerAcquire], values: Sequence[Value]) -> States:
        return {r: (values[2 * n], values[2 * n + 1]) for n, r in enumerate(rings)}

    def _if(self, op: Op, b: Builder, states: States) -> None:
        assert isinstance(op, ops.IfOp)
        wanted = [i for i, r in enumerate(op.results) if r in self.needs.values]
        rings = self._inner(op, states)
        blocks: list[Block] = []
        for old in op.regions:
            block = Block()
            inner = {r: states[r] for r in rings}
            inside = Builder(block, None, op.loc)
            self._block(old, inside, inner)
            yields = [self._get(old.terminator.operands[i]) for i in wanted]
            inside.insert(ops.YieldOp([*yields, *[v for r in rings for v in inner[r]]]))
            blocks.append(block)
        types = [op.results[i].type for i in wanted] + [int32] * (2 * len(rings))
        new = b.insert(ops.IfOp(self._get(op.condition), results=types, regions=blocks, loc=op.loc))
        self.mapping.update({op.results[i]: new.results[n] for n, i in enumerate(wanted)})
        states.update(self._pairs(rings, new.results[len(wanted) :]))
