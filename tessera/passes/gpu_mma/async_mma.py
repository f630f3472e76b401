"""Makes MMAs of warpgroups asynchronous until their results are used.

    %s = wgmma %q, %k, 0                   %s0 = wgmma %q, %k, 0 {asynchronous}
    %o = wgmma %p, %v, %x           →      %o0 = wgmma %p, %v, %x {asynchronous}
    use %s                                 %s = wgmma_wait %s0, [%k] {pending=1}
    use %o                                 use %s
                                           %o = wgmma_wait %o0, [%p, %v] {pending=0}
                                           use %o

MMAs finish in the order in which they were started; a wait states how many later ones may still run, and holds
the operands, so that nothing overwrites their registers or buffers before. MMAs whose operands are ready start
first, in program order: those that only need shared memory move up to the wait that fills it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tessera.analysis.registers import reg32_of
from tessera.ir import Block, Builder, Effect, Module, Op, SharedType, TileType, Value, pass_
from tessera.ir.applications import apply
from tessera.ops import (
    AsyncCopyOp,
    AsyncWaitOp,
    BarrierOp,
    BroadcastOp,
    CallOp,
    ConstOp,
    ConvertLayoutOp,
    ForOp,
    FuncOp,
    IfOp,
    LocalAllocOp,
    LocalIndexOp,
    LocalLoadOp,
    LocalStoreOp,
    LocalTransOp,
    Loop,
    MbarrierArriveOp,
    MbarrierWaitOp,
    PingPongOp,
    SharedView,
    WgmmaOp,
    WgmmaWaitOp,
)  # fmt: skip
from tessera.passes.gpu_layout.rules import VIEWS
from tessera.passes.neutral.fold import constant_of
from tessera.passes.neutral.remarks import place_of, remark

# No MMA moves above.
LIMITS = (
    AsyncWaitOp,
    BarrierOp,
    LocalStoreOp,
    Loop,
    IfOp,
    CallOp,
)
# Registers of all MMA results of a block above which its MMAs are not moved up (tools/fit).
HOISTED_REG32 = 208


@pass_("async-mma")
def async_mma(module: Module) -> None:
    """Start MMAs of warpgroups early and wait for them late.

    Takes: GPU IR with layouts. It is the last pass that moves ops: lifetimes of buffers follow the waits.
    Gives: `wgmma` with `asynchronous`, and `wgmma_wait` in front of the first use of each result; remarks about MMAs
        that are not started early, or that nothing in their loop runs beside.
    Needs: a GPU with `wgmma`: without such ops nothing is changed.
    Raises: nothing.
    Example: `two` of tests/filecheck/async-mma/mmas.gir
        wgmma; exp; wgmma
        → wgmma {asynchronous=True}; wgmma {asynchronous=True}; wgmma_wait {pending=1}; exp; wgmma_wait
    Compare: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"; Triton `tritongpu-pipeline`.
    """
    for func in module.body:
        assert isinstance(func, FuncOp)
        for block in func.all_blocks():
            mmas = [op for op in block if isinstance(op, WgmmaOp)]
            if mmas and all(op.pending == 0 for op in mmas):
                held = sum(reg32_of(op.result.type) for op in mmas)
                if held <= HOISTED_REG32:
                    _start_early(mmas)
                    _end_ping_pong_early(block)
                elif late := next((op for op in mmas if _earlier_place(op) is not None), None):
                    why = f"products in flight hold {held} registers of a thread, at most {HOISTED_REG32}"
                    remark(module, f"the product{place_of(late)} is not started early: {why}")
                if apply("async-mma", mmas[0]):
                    _Waits(block).run()
                    _remark_waits(module, block)
            _give_back_early(block)


# --- starting early -----------------------------------------------------------------------------------------
def _start_early(mmas: Sequence[WgmmaOp]) -> None:
    for mma in mmas:
        place = _earlier_place(mma)
        if place is None or not apply("mma-early-start", mma):
            continue
        # Views that stand above the place stay: others may use them already.
        for op in [*[v for v in _views(mma) if _is_before(place, v)], mma]:
            op.move_before(place)


def _earlier_place(mma: WgmmaOp) -> Op | None:
    """Return the op in front of which an MMA may start; None if that is where it is."""
    after = _latest_need(mma)
    assert mma.parent is not None
    place = after.next if after is not None else mma.parent.first
    views = _views(mma)
    while place in views:
        assert place is not None
        place = place.next
    return None if place is mma else place


def _end_ping_pong_early(block: Block) -> None:
    """Let the next warpgroup go as soon as the MMAs of this one are started."""
    last: Op | None = None
    for op in list(block):
        if isinstance(op, WgmmaOp):
            last = op
        elif isinstance(op, PingPongOp) and op.kind == "end" and last is not None:
            place = last.next
            if place is not None and place is not op:
                op.move_before(place)


def _views(mma: WgmmaOp) -> list[Op]:
    """Return the ops of the block that are views of the MMA's shared operands, in order."""
    found: dict[Op, None] = {}
    for v in mma.operands:
        chain: list[Op] = []
        while isinstance(v.op, SharedView) and v.op.parent is mma.parent:
            chain.append(v.op)
            v = v.op.operands[0]
        found.update(dict.fromkeys(reversed(chain)))
    return list(found)


def _latest_need(mma: WgmmaOp) -> Op | None:
    """Return the last op before the MMA that must stay before it."""
    views = _views(mma)
    needs = {v.op for op in (*views, mma) for v in op.operands} - set(views)
    op = mma.prev
    while op is not None:
        if op not in views and (op in needs or isinstance(op, (*LIMITS, WgmmaOp))):
            return op
        if (isinstance(op, MbarrierWaitOp) and op.data) or isinstance(op, PingPongOp):
            return op
        op = op.prev
    return None


# --- waiting late -------------------------------------------------------------------------------------------
class _Waits:
    """One walk through a block. `in_flight`: MMAs that nothing has waited for, with the number `started` before
    each."""

    def __init__(self, block: Block):
        self.block = block
        self.started = 0
        self.in_flight: dict[WgmmaOp, int] = {}
        self.held: dict[WgmmaOp, list[Value]] = {}

    def run(self) -> None:
        for op in list(self.block):
            for mma in list(self.in_flight):
                if mma in self.in_flight and self._must_wait(op, mma):
                    self._wait(op, mma)
            if isinstance(op, WgmmaOp):
                self._start(op)

    def _start(self, op: WgmmaOp) -> None:
        op.asynchronous = True
        before = op.acc.op
        held = [v for v in (op.a, op.b) if v.op is not None or isinstance(v.type, TileType)]
        if (
            isinstance(before, WgmmaOp) and before in self.in_flight
        ):  # one more step of the same sum
            held = [*self.held[before], *held]
            del self.in_flight[before]
        self.in_flight[op], self.held[op] = self.started, held
        self.started += 1

    def _must_wait(self, op: Op, mma: WgmmaOp) -> bool:
        if op.terminator or isinstance(op, Loop | CallOp):
            return True
        if isinstance(op, MbarrierArriveOp) and op.after_mma:
            return True
        if isinstance(op, IfOp) and any(isinstance(inner, WgmmaOp) for inner in op.walk()):
            return True
        for user in mma.result.users():
            if user is op:
                return not (isinstance(op, WgmmaOp) and _only_adds(op, mma))
            if user.is_inside(op):
                return True
        return any(_overwrites(op, v) or op in _successors(v) for v in self.held[mma])

    def _wait(self, op: Op, mma: WgmmaOp) -> None:
        """Insert waits. They also finish MMAs started before `mma`, which ptxas then needs no instructions for."""
        number = self.in_flight[mma]
        pending = self.started - number - 1
        older = [x for x, n in self.in_flight.items() if n < number]
        for x in (mma, *older):
            del self.in_flight[x]
            uses = list(x.result.uses)
            wait = WgmmaWaitOp(
                x.result, self.held[x], pending=pending, waited=x is not mma, loc=x.loc
            )
            wait.result.name = x.result.name
            Builder.before_op(op).insert(wait)
            for user, index in uses:
                user.set_operand(index, wait.result)


def _remark_waits(module: Module, block: Block) -> None:
    """Remark the MMAs of a loop that are waited for before anything else is done."""
    for wait in block:
        if not isinstance(wait, WgmmaWaitOp) or wait.pending or wait.waited:
            continue
        op, user = wait.prev, next(iter(wait.result.users()), None)
        while op is not None and not isinstance(op, WgmmaOp) and not _is_work(op):
            op = op.prev
        idle = isinstance(op, WgmmaOp) and isinstance(block.parent, ForOp)
        if idle and user is not None and not user.terminator:
            what = f"the product{place_of(wait)} is waited for as soon as it is started"
            remark(
                module,
                f"{what}: the {user.opcode.replace('_', ' ')}{place_of(user)} uses its result",
            )


def _is_work(op: Op) -> bool:
    """Whether an op computes a tile, or moves one."""
    tile = bool(op.results) and isinstance(op.results[0].type, TileType)
    return tile and not isinstance(op, (*VIEWS, ConstOp, WgmmaWaitOp))


def _give_back_early(block: Block) -> None:
    """Release buffers as soon as nothing reads them. A load to registers is complete once something computes with its
    result; until then it may be under way."""
    place = {op: i for i, op in enumerate(block)}
    for arrive in [op for op in place if isinstance(op, MbarrierArriveOp) and op.released]:
        needs = [v.op for v in arrive.operands if v.op in place]
        for view in arrive.released:
            for user in _readers(view):
                done = _computing(user.result) if isinstance(user, LocalLoadOp) else []
                needs += [_at_level(op, block) for op in (user, *done) if op is not arrive]
        last = max((op for op in needs if op is not None), key=place.__getitem__, default=None)
        if last is not None and arrive.proxy:
            last = _settled(arrive, last, place)
        if last is not None and last.next is not arrive and place[last] < place[arrive]:
            assert last.next is not None
            if apply("early-release", arrive):
                arrive.move_before(last.next)
        if arrive.proxy:
            _await_reads(arrive)


def _await_reads(arrive: MbarrierArriveOp) -> None:
    """Instead of a fence, wait until loaded values are in registers."""
    loads = _plain_reads(arrive)
    if loads is not None and apply("awaited-reads", arrive):
        after = [
            op.result for op in loads if not any(_is_before(x, arrive) for x in _needing(op.result))
        ]
        arrive.set_operands(arrive.bars, arrive.index, arrive.condition, arrive.released, after)
        arrive.proxy = False


def _plain_reads(arrive: MbarrierArriveOp) -> list[LocalLoadOp] | None:
    """Return the loads to registers from the buffers that `arrive` releases; None if not all come before it, or if
    there are readers other than loads and MMAs."""
    plain = [
        user
        for view in arrive.released
        for user in _readers(view)
        if not isinstance(user, WgmmaOp | WgmmaWaitOp | LocalTransOp) and user is not arrive
    ]
    loads = [op for op in plain if isinstance(op, LocalLoadOp) and _is_before(op, arrive)]
    return loads if arrive.released and len(loads) == len(plain) else None


def _settled(arrive: MbarrierArriveOp, last: Op, place: dict[Op, int]) -> Op:
    """Return the first op, from `last` on, that needed every loaded value in registers; `last` if there is no such op
    before `arrive`. Releasing a buffer a little later costs less than waiting for its values."""
    found = last
    for load in _plain_reads(arrive) or ():
        needing = [op for op in _needing(load.result) if place.get(op, len(place)) < place[arrive]]
        if not needing:
            return last
        found = max(found, min(needing, key=place.__getitem__), key=place.__getitem__)
    return found


def _needing(v: Value) -> Iterator[Op]:
    """Yield the ops that need all registers of a tile, directly or through arithmetic, and that arrivals do not pass:
    MMAs of warpgroups and writes to shared memory. The parts of an MMA run in order, and each reads its own registers
    of an operand: the last part needs them all. What an MMA adds to does not count, as for the check of
    synchronisation, which follows accumulators as results in flight."""
    for user in v.users():
        if isinstance(user, WgmmaOp | LocalStoreOp | LocalAllocOp):
            if not _reads_in_part(user, v) and not _adds_to(user, v):
                yield user
        elif user.effects is Effect.NONE and len(user.results) == 1 and not user.regions:
            made: Any = user.result.type
            if isinstance(made, TileType) and made.numel >= v.type.numel:
                yield from _needing(user.result)


def _reads_in_part(user: Op, v: Value) -> bool:
    """Whether an MMA reads `v` only in part, without its last registers."""
    if not isinstance(user, WgmmaOp):
        return False
    index, parts = user.part
    return index != parts - 1


def _adds_to(user: Op, v: Value) -> bool:
    return isinstance(user, WgmmaOp) and user.acc is v


def _is_before(op: Op, other: Op) -> bool:
    """Whether an op comes before another one of the same block."""
    following = op.next
    while following is not None and following is not other:
        following = following.next
    return following is other


def _computing(v: Value) -> list[Op]:
    """Return the ops that compute with a tile, also through views, which only rename its registers."""
    found: list[Op] = []
    for user in v.users():
        found.append(user)
        if isinstance(user, (*VIEWS, BroadcastOp, ConvertLayoutOp)):
            found += [op for r in user.results for op in _computing(r)]
    return found


def _readers(view: Value) -> list[Op]:
    found: list[Op] = []
    for user in view.users():
        found += [user] if not isinstance(user, LocalTransOp) else [user, *_readers(user.result)]
    return found


def _at_level(op: Op, block: Block) -> Op | None:
    """Return the op of the block that contains `op`."""
    found: Op | None = op
    while found is not None and found.parent is not block:
        found = found.parent_op()
    return found


def _only_adds(op: WgmmaOp, mma: WgmmaOp) -> bool:
    return op.acc is mma.result and len(mma.result.uses) == 1


def _successors(operand: Value) -> set[Op]:
    """Return the ops that make the next iteration's value of a carried operand, which may reuse its registers."""
    block = operand.block
    if operand.op is not None or block is None or not isinstance(block.parent, ForOp):
        return set()
    found: set[Op] = set()
    following: Op | None = block.terminator.operands[operand.index - 1].op
    while following is not None and following.parent is block:
        found.add(following)
        if not isinstance(following, ConvertLayoutOp):
            break
        following = following.x.op
    return found


def _overwrites(op: Op, operand: Value) -> bool:
    """Whether an op writes to the shared memory of an operand, or releases it to a writer."""
    if isinstance(operand.type, SharedType) and isinstance(op, MbarrierArriveOp):
        return any(_place(v)[0] is _place(operand)[0] for v in op.released)
    if not isinstance(operand.type, SharedType) or not isinstance(op, LocalStoreOp | AsyncCopyOp):
        return False
    (mine, buffer), (other, written) = _place(operand), _place(op.shared)
    if mine is not other:
        return False
    known = buffer is not None and written is not None and buffer[0] == written[0]
    return not known or buffer == written


def _place(view: Value) -> tuple[Op | None, tuple[str, int] | None]:
    """Return what a view shows: the allocation, and the buffer of the ring by its number or by its distance from this
    iteration's."""
    buffer: tuple[str, int] | None = None
    op = view.op
    while isinstance(op, SharedView):
        if isinstance(op, LocalIndexOp):
            number = constant_of(op.index)
            stages: int = op.ring.type.shape[0]
            if number is not None:
                buffer = ("number", number)
            elif "slot" in op.attrs:
                buffer = ("slot", op.attrs["slot"] % stages)
        op = op.operands[0].op
    assert op is None or isinstance(op, LocalAllocOp)
    return op, buffer
