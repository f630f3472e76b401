"""Writes the producer's role: the loops around loads of tiles, with the scalars that they need (expand_roles.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera import ops
from tessera.analysis.provenance import defined_inside, reached
from tessera.ir import Block, Builder, Effect, Op, SharedType, TileType, Value
from tessera.ir.applications import Declined
from tessera.passes.gpu_loops.ordering import may_read_ahead, ordered_loops
from tessera.passes.gpu_loops.rings import ProducerAcquire, Ring, copying_ctas
from tessera.passes.gpu_loops.shared_scalars import shared_scalars
from tessera.passes.gpu_loops.slots import Buffers, State
from tessera.passes.neutral.loops import carried_as, const32, like, passing, runs_at_all


class Split:
    """What is known of a function with rings: all ops around them (`spine`), scalars that all roles can use (`kept`),
    loops before which the producer waits for the consumers, with what these did there (`ordered`). Raises Declined if a
    loop's loads may see what the loop does."""

    def __init__(self, func: ops.FuncOp, rings: list[Ring]):
        self.func, self.rings = func, rings
        self.kept = shared_scalars(func)
        self.ordered = ordered_loops(func, [r for r in rings if r.role == "producer"])
        self.acquire = ProducerAcquire(list(self.ordered))
        self.spine: set[Op] = set()
        for r in rings:
            loop = r.block.parent
            if loop is not None and loop is not func:
                self.spine |= {loop, *loop.ancestors()} - {func}


class Needs:
    """The values and ops that compute the producer's offsets, bounds and conditions, or other `values`. Raises Declined
    if the producer cannot compute one."""

    def __init__(self, split: Split, values: Sequence[Value] | None = None):
        self.split = split
        self.values = reached(self._roots() if values is None else values, self._sources)
        elsewhere = split.kept | split.spine
        self.ops = {v.op for v in self.values if v.op is not None} - elsewhere

    def _roots(self) -> list[Value]:
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
        return values

    def _sources(self, v: Value) -> list[Value]:
        if isinstance(v.owner, Block):
            loop = v.owner.parent
            n = (
                v.index + len(loop.results) - len(v.owner.args)
                if isinstance(loop, ops.Loop)
                else -1
            )
            return carried_as(loop, n) if loop is not None and n >= 0 else []
        op = v.owner
        if op in self.split.kept:
            return []
        if op in self.split.spine:
            return carried_as(op, v.index)
        for inner in op.walk():
            self._allow(inner)
        return [x for inner in op.walk() for x in inner.operands if not defined_inside(x, op)]

    def _allow(self, op: Op) -> None:
        what = f"the address of a tile depends on {op.opcode}"
        where = f" at {op.loc.short()}" if op.loc is not None else ""
        values = [*op.operands, *op.results]
        if any(isinstance(x.type, TileType | SharedType) for x in values):
            raise Declined(f"{what} of tiles{where}")
        read = isinstance(op, ops.LoadOp) and may_read_ahead(self.split.func, op)
        if op.effects is not Effect.NONE and not read:
            raise Declined(f"{what}{where}")


# The state of a ring with buffers: the next buffer and its phase; of an acquire: its barrier's index and the phase.
States = dict[Ring | ProducerAcquire, State]


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
            if isinstance(r, Ring) and r.tiles.ctas > 1:
                self._see_off(r.tiles, b, state)
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
        """Repeat a loop or branch, with those of its carried values and results that are needed."""
        if isinstance(op, ops.ForOp) and op in self.split.acquire.loops:
            self._acquire(op, b, states)
        is_loop, count = isinstance(op, ops.Loop), len(op.results)
        wanted = [n - count for n, r in enumerate(op.results) if r in self.needs.values]
        rings = self._inner(op, states)
        state = [v for r in rings for v in states[r]]
        inits = [self._get(op.operands[n]) for n in wanted] if is_loop else []
        blocks: list[Block] = []
        for old in op.regions:
            first = old.args[: len(old.args) - count]
            args = [*first, *[old.args[n] for n in wanted]] if is_loop else []
            block = Block([v.type for v in (*args, *(state if is_loop else ()))])
            self.mapping.update(zip(args, block.args, strict=False))
            inner = self._pairs(rings, block.args[len(args) :] if is_loop else state)
            inside = Builder(block, None, op.loc)
            self._block(old, inside, inner)
            end = old.terminator
            heads = [self._get(v) for v in end.operands[: len(end.operands) - count]]
            handed = [self._get(end.operands[n]) for n in wanted]
            inside.insert(passing(end, heads, [*handed, *[v for r in rings for v in inner[r]]]))
            blocks.append(block)
        heads = [self._get(v) for v in op.operands[: len(op.operands) - is_loop * count]]
        results = [op.results[n] for n in wanted]
        values = [*(inits if is_loop else results), *state]
        new = b.insert(like(op, heads, values, blocks, **_hints(op)))
        self.mapping.update(zip(results, new.results, strict=False))
        states.update(self._pairs(rings, new.results[len(wanted) :]))

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

    def fill(self, r: Ring, b: Builder, states: States) -> None:
        """Fill the next buffer of a ring."""
        ring, state = r.tiles, states[r.lead]
        ring.wait_empty(b, state)
        b.insert(ops.MbarrierArriveExpectTxOp(ring.full, state[0], bytes=r.bytes))
        for load, alloc, row in zip(r.loads, r.allocs, ring.rows, strict=True):
            view = b.emit(ops.LocalIndexOp(row, state[0]))
            offsets = [self._get(v) for v in load.offsets]
            copy = ops.TensorCopyOp(load.desc, offsets, view, ring.full, state[0], loc=load.loc)
            copy.ctas = min(ring.ctas, copying_ctas(load, alloc))
            b.insert(copy)
        if not r.once:
            states[r.lead] = ring.advance(b, state)

    def _see_off(self, ring: Buffers, b: Builder, state: State) -> None:
        """Wait until all CTAs have released all buffers, since they still arrive at barriers of this CTA."""
        for _ in range(ring.slots):
            ring.wait_empty(b, state)
            state = ring.advance(b, state)

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

    def _pairs(self, rings: Sequence[Ring | ProducerAcquire], values: Sequence[Value]) -> States:
        return {r: (values[2 * n], values[2 * n + 1]) for n, r in enumerate(rings)}


def _hints(op: Op) -> dict[str, Any]:
    """Return the attributes of a loop that hold for the producer's as well."""
    if isinstance(op, ops.ForOp):
        return {"num_stages": 1}
    return {"disable_licm": op.disable_licm} if isinstance(op, ops.WhileOp) else {}
