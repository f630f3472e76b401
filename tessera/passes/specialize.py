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

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tessera.analysis.scratch import scratch_bytes
from tessera.dtypes import int1, int32, int64
from tessera.ir import Block, Builder, Effect, Module, Op, SharedType, TileType, Value, pass_
from tessera.layout import boxes_of
from tessera.layout.shared import shared_linear
from tessera.ops import (
    AddOp,
    AtomicCasOp,
    AtomicRmwOp,
    CallOp,
    CmpOp,
    ConstOp,
    DescriptorLoadOp,
    DescriptorStoreOp,
    ForOp,
    FuncOp,
    IfOp,
    LoadOp,
    LocalAllocOp,
    LocalIndexOp,
    LocalTransOp,
    ByteBarrierArriveOp,
    ByteBarrierExpectOp,
    ByteBarrierInitOp,
    ByteBarrierWaitOp,
    ReturnOp,
    SelectOp,
    StoreOp,
    SubOp,
    TensorCopyOp,
    WarpSpecializeOp,
    WgmmaOp,
    WgmmaWaitOp,
    WhileOp,
    XorOp,
    YieldOp,
)  # fmt: skip
from tessera.passes.facts import GpuFacts
from tessera.passes.pipeline import running_on

PRODUCER_WARPS = 4  # registers are handed over by groups of four warps
REGISTERS = {8: (40, 232)}  # by number of consumer warps: of producer and consumer threads
CONSUMERS = (4, 8)
SLACK = 2048  # bytes of shared memory for barriers and alignment


class CannotSplit(Exception):
    """Why a function stays whole."""


@dataclass(slots=True)
class Ring:
    """The tiles that one loop loads: buffers, barriers, and the loads with their allocations."""

    loop: ForOp
    loads: list[DescriptorLoadOp]
    allocs: list[LocalAllocOp]
    stages: int = 0
    buffers: list[Value] = field(default_factory=lambda: [])
    full: Any = None
    empty: Any = None

    @property
    def bytes(self) -> int:
        return sum(a.bytes for a in self.allocs)


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
        self.reads = not any(isinstance(op, writes) for op in func.walk())

    def run(self) -> None:
        self._stages()
        needs = _Needs(self).collect()
        rest = [
            op for op in self.func.body if op not in self.kept and not isinstance(op, ReturnOp)
        ]
        # What is shared by both teams stands first.
        for op in [op for op in self.func.body if op in self.kept]:
            op.move_before(rest[0])
        start = Builder.before_op(rest[0])
        running = {r.loop: _running(r) for r in self.rings}
        for r in self.rings:
            self._allocate(r, start, running[r.loop] is not None)
        producer = _Producer(self, needs).build(start)
        registers = REGISTERS.get(self.warps, (0, 0)) if self.facts.has_register_handover else (0, 0)
        op = WarpSpecializeOp(
            registers=registers, warps=PRODUCER_WARPS, regions=[Block(), producer], loc=self.func.loc
        )
        start.insert(op)
        for x in rest:
            x.detach()
            op.consumers.append(x)
        Builder(op.consumers).insert(YieldOp([]))
        zero = start_const(Builder.before_op(op), 0)
        for r in self.rings:
            _consume(r, op.consumers, zero, running[r.loop])
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
            elif not (isinstance(op, DescriptorLoadOp) and op in {x for r in self.rings for x in r.loads}):
                largest = max(largest, scratch_bytes(op, self.warps, self.facts))
        return lasting + largest

    def _allocate(self, r: Ring, b: Builder, running: bool) -> None:
        for a in r.allocs:
            t: SharedType = a.result.type
            ring = SharedType((r.stages, *t.shape), t.elem, t.layout)
            r.buffers.append(b.emit(LocalAllocOp(None, results=[ring], names=[a.result.name])))
        places = 1 << (r.stages - 1).bit_length()
        bars = SharedType((places,), int64, shared_linear((places,), (0,)))
        groups = _only_products(r)
        for name, count in (("full", 1), ("empty", self.warps // 4 if groups else self.warps)):
            alloc = LocalAllocOp(None, results=[bars], names=[name])
            alloc.attrs["lasting"] = True
            setattr(r, name, b.emit(alloc))
            b.insert(ByteBarrierInitOp(getattr(r, name), count=count))


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


def _only_products(r: Ring) -> bool:
    """Whether only products of warpgroups read the buffers."""
    work = [a.result for a in r.allocs]
    while work:
        for user in work.pop().users():
            if isinstance(user, LocalTransOp):
                work.append(user.result)
            elif not isinstance(user, WgmmaOp | WgmmaWaitOp):
                return False
    return True


def start_const(b: Builder, value: int) -> Value:
    return b.emit(ConstOp(value=value, results=[int32]))


def _advance(b: Builder, slot: Value, phase: Value, stages: int) -> tuple[Value, Value]:
    """The next buffer, and the phase of its barriers."""
    following = b.emit(AddOp(slot, start_const(b, 1)))
    wraps = b.emit(CmpOp(following, start_const(b, stages), predicate="eq"))
    turned = b.emit(XorOp(phase, start_const(b, 1)))
    return (
        b.emit(SelectOp(wraps, start_const(b, 0), following)),
        b.emit(SelectOp(wraps, turned, phase)),
    )


# --- what the producer needs ---------------------------------------------------------------------------------
class _Needs:
    """The values and ops that give the producer its offsets, bounds and branches."""

    def __init__(self, split: _Split):
        self.split = split
        self.values: set[Value] = set()
        self.ops: set[Op] = set()
        self.work: list[Value] = []

    def collect(self) -> _Needs:
        for op in self.split.spine:
            self.work += op.operands[:3] if isinstance(op, ForOp) else op.operands
        for r in self.split.rings:
            self.work += [v for load in r.loads for v in load.offsets]
        while self.work:
            v = self.work.pop()
            if v not in self.values:
                self.values.add(v)
                self._of_argument(v) if v.op is None else self._of_op(v, v.op)
        return self

    def _of_argument(self, v: Value) -> None:
        loop = v.owner.parent if isinstance(v.owner, Block) else None
        if isinstance(loop, ForOp) and v.index > 0:
            self.work += [loop.inits[v.index - 1], loop.body.terminator.operands[v.index - 1]]
            self.work.append(loop.results[v.index - 1])

    def _of_op(self, v: Value, op: Op) -> None:
        if op in self.split.kept:
            return
        if op in self.split.spine:
            if isinstance(op, ForOp):
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
                self.work += [x for x in inner.operands if x.op not in inside and not _of(x, inside)]

    def _allow(self, op: Op) -> None:
        what = f"the address of a tile depends on {op.opcode}"
        where = f" at {op.loc.short()}" if op.loc is not None else ""
        values = [*op.operands, *op.results]
        if any(isinstance(x.type, TileType | SharedType) for x in values):
            raise CannotSplit(f"{what} of tiles{where}")
        read = isinstance(op, LoadOp) and self.split.reads and not op.volatile
        if op.effects is not Effect.NONE and not read:
            raise CannotSplit(f"{what}{where}")


def _of(v: Value, ops: set[Op]) -> bool:
    return isinstance(v.owner, Block) and v.owner.parent in ops


class _Producer:
    """Writes the producer's code: the loops around the loads, with what `needs` says."""

    def __init__(self, split: _Split, needs: _Needs):
        self.split, self.needs = split, needs
        self.mapping: dict[Value, Value] = {}

    def build(self, before: Builder) -> Block:
        block = Block()
        b = Builder(block, None, self.split.func.loc)
        zero = start_const(before, 0)
        states = {r.loop: (zero, zero) for r in self.split.rings}
        self._block(self.split.func.body, b, states)
        b.insert(YieldOp([]))
        return block

    def _block(self, block: Block, b: Builder, states: dict[ForOp, tuple[Value, Value]]) -> None:
        ring = self.split.of_loop.get(block.parent) if block.parent is not None else None  # type: ignore[arg-type]
        left = list(ring.loads) if ring is not None else []
        for op in block:
            if op in self.split.spine:
                self._for(op, b, states) if isinstance(op, ForOp) else self._if(op, b, states)
            elif op in self.needs.ops and op not in self.split.kept:
                b.insert(op.clone(self.mapping))
            elif op in left:
                left.remove(op)  # type: ignore[arg-type]
                if not left and ring is not None:
                    states[ring.loop] = self._copies(ring, b, *states[ring.loop])

    def _copies(self, r: Ring, b: Builder, slot: Value, phase: Value) -> tuple[Value, Value]:
        turned = b.emit(XorOp(phase, start_const(b, 1)))
        b.insert(ByteBarrierWaitOp(r.empty, slot, turned))
        b.insert(ByteBarrierExpectOp(r.full, slot, bytes=r.bytes))
        for load, ring in zip(r.loads, r.buffers, strict=True):
            view = b.emit(LocalIndexOp(ring, slot))
            offsets = [self.mapping.get(v, v) for v in load.offsets]
            b.insert(TensorCopyOp(load.desc, offsets, view, r.full, slot, loc=load.loc))
        return _advance(b, slot, phase, r.stages)

    def _get(self, v: Value) -> Value:
        return self.mapping.get(v, v)

    def _inner(self, op: Op, states: dict[ForOp, tuple[Value, Value]]) -> list[ForOp]:
        return [loop for loop in states if loop is op or loop.is_inside(op)]

    def _for(self, op: ForOp, b: Builder, states: dict[ForOp, tuple[Value, Value]]) -> None:
        wanted = [i for i, arg in enumerate(op.carried) if arg in self.needs.values]
        loops = self._inner(op, states)
        inits = [self._get(op.inits[i]) for i in wanted]
        inits += [v for loop in loops for v in states[loop]]
        body = Block([op.lb.type, *[v.type for v in inits]])
        self.mapping[op.induction] = body.args[0]
        self.mapping.update({op.carried[i]: body.args[1 + n] for n, i in enumerate(wanted)})
        pairs = body.args[1 + len(wanted) :]
        inner = {loop: (pairs[2 * n], pairs[2 * n + 1]) for n, loop in enumerate(loops)}
        inside = Builder(body, None, op.loc)
        self._block(op.body, inside, inner)
        yields = [self._get(op.body.terminator.operands[i]) for i in wanted]
        inside.insert(YieldOp([*yields, *[v for loop in loops for v in inner[loop]]]))
        bounds = [self._get(v) for v in (op.lb, op.ub, op.step)]
        new = b.insert(ForOp(*bounds, inits, regions=[body], loc=op.loc))
        new.num_stages = 1
        self.mapping.update({op.results[i]: new.results[n] for n, i in enumerate(wanted)})
        after = new.results[len(wanted) :]
        states.update({loop: (after[2 * n], after[2 * n + 1]) for n, loop in enumerate(loops)})

    def _if(self, op: Op, b: Builder, states: dict[ForOp, tuple[Value, Value]]) -> None:
        assert isinstance(op, IfOp)
        wanted = [i for i, r in enumerate(op.results) if r in self.needs.values]
        loops = self._inner(op, states)
        blocks: list[Block] = []
        for old in op.regions:
            block = Block()
            inner = {loop: states[loop] for loop in loops}
            inside = Builder(block, None, op.loc)
            self._block(old, inside, inner)
            yields = [self._get(old.terminator.operands[i]) for i in wanted]
            inside.insert(YieldOp([*yields, *[v for loop in loops for v in inner[loop]]]))
            blocks.append(block)
        types = [op.results[i].type for i in wanted] + [int32] * (2 * len(loops))
        new = b.insert(IfOp(self._get(op.condition), results=types, regions=blocks, loc=op.loc))
        self.mapping.update({op.results[i]: new.results[n] for n, i in enumerate(wanted)})
        after = new.results[len(wanted) :]
        states.update({loop: (after[2 * n], after[2 * n + 1]) for n, loop in enumerate(loops)})


# --- the consumers -------------------------------------------------------------------------------------------
def _consume(r: Ring, top: Block, zero: Value, running: WgmmaOp | None) -> None:
    """Make a loop read the ring, its state carried by everything around it."""
    path: list[Op] = []
    op: Op | None = r.loop
    while op is not None and op.parent is not top:
        path.insert(0, op)
        op = op.parent_op()
    assert op is not None
    path.insert(0, op)
    thread_state(path, [zero, zero], lambda loop, state: _body(r, loop, state, running), _after(r, running))


def _body(r: Ring, loop: ForOp, state: list[Value], running: WgmmaOp | None) -> list[Value]:
    slot, phase = state
    b = Builder.before_op(r.loads[0])
    b.insert(ByteBarrierWaitOp(r.full, slot, phase))
    views = [b.emit(LocalIndexOp(ring, slot)) for ring in r.buffers]
    for load, alloc, view in zip(r.loads, r.allocs, views, strict=True):
        alloc.replace_by([view])
        load.erase()
    end = Builder.before_op(loop.body.terminator)
    groups = running is not None or all(_read_by_products(v) for v in views)
    if running is not None:
        running.pending = 1
        before, begun = _previous(end, slot, r.stages), end.emit(
            CmpOp(loop.induction, loop.lb, predicate="ne")
        )
        end.insert(ByteBarrierArriveOp(r.empty, before, begun, [], groups=True))
    else:
        yes = end.emit(ConstOp(value=True, results=[int1]))
        end.insert(ByteBarrierArriveOp(r.empty, slot, yes, views, groups=groups))
    return list(_advance(end, slot, phase, r.stages))


def _read_by_products(view: Value) -> bool:
    work = [view]
    while work:
        for user in work.pop().users():
            if isinstance(user, LocalTransOp):
                work.append(user.result)
            elif not isinstance(user, WgmmaOp | WgmmaWaitOp):
                return False
    return True


def _previous(b: Builder, slot: Value, stages: int) -> Value:
    first = b.emit(CmpOp(slot, start_const(b, 0), predicate="eq"))
    before = b.emit(SubOp(slot, start_const(b, 1)))
    return b.emit(SelectOp(first, start_const(b, stages - 1), before))


def _after(r: Ring, running: WgmmaOp | None) -> Callable[[ForOp, list[Value]], None]:
    """After the loop: wait for the product that runs on, then give back the last buffer."""

    def finish(loop: ForOp, state: list[Value]) -> None:
        if running is None:
            return
        b = Builder.after_op(loop)
        result = loop.results[running.acc.index - 1]
        uses = list(result.uses)
        done = b.emit(WgmmaWaitOp(result, []))
        for user, index in uses:
            user.set_operand(index, done)
        ran = b.emit(CmpOp(loop.lb, loop.ub, predicate="lt"))
        last = _previous(b, state[0], r.stages)
        b.insert(ByteBarrierArriveOp(r.empty, last, ran, [], groups=True))

    return finish


def thread_state(
    path: list[Op],
    state: list[Value],
    body: Callable[[ForOp, list[Value]], list[Value]],
    after: Callable[[ForOp, list[Value]], None],
) -> list[Value]:
    """Carry `state` through the nested loops and branches `path`, outermost first. `body` rewrites the innermost loop
    and gives the state after an iteration; `after` gets that loop and the state after it. The state after all."""
    op, rest = path[0], path[1:]
    n = len(state)
    if isinstance(op, ForOp):
        args = [op.body.add_arg(v.type, v.name) for v in state]
        new = _grown(op, ForOp(op.lb, op.ub, op.step, [*op.inits, *state], regions=op.regions, loc=op.loc,
                               results=[*[r.type for r in op.results], *[v.type for v in state]], **op.attrs))
        term = new.body.terminator
        extended = YieldOp([*term.operands, *args], loc=term.loc)
        Builder.before_op(term).insert(extended)
        term.erase()
        out = thread_state(rest, args, body, after) if rest else body(new, args)
        for i, v in enumerate(out):
            extended.set_operand(len(extended.operands) - n + i, v)
        found = new.results[-n:]
        if not rest:
            new.num_stages = 1
            after(new, found)
        return found
    assert isinstance(op, IfOp)
    inside = next(k for k, block in enumerate(op.regions) if rest[0].parent is block)
    out = thread_state(rest, state, body, after)
    for k, block in enumerate(op.regions):
        term = block.terminator
        Builder.before_op(term).insert(
            YieldOp([*term.operands, *(out if k == inside else state)], loc=term.loc)
        )
        term.erase()
    types = [*[r.type for r in op.results], *[v.type for v in state]]
    new = _grown(op, IfOp(op.condition, results=types, regions=op.regions, loc=op.loc, **op.attrs))
    return new.results[-n:]


def _grown(op: Any, new: Any) -> Any:
    """Put `new`, which took over the blocks of `op` and has further results, in its place."""
    Builder.before_op(op).insert(new)
    op.regions = []
    for block in new.regions:
        block.parent = new
    for old, fresh in zip(op.results, new.results, strict=False):
        old.replace_all_uses(fresh)
        fresh.name = old.name
    op.erase()
    return new

