"""Waits for MMAs of warpgroups in front of the first op that needs their results, or that would overwrite operands.

A buffer that an MMA reads is free after the wait for it. Where buffers that are filled meanwhile would then exceed the
shared memory of a CTA, MMAs are waited for in front of these."""

from __future__ import annotations

from tessera.analysis.provenance import buffer_of
from tessera.analysis.scratch import scratch_bytes
from tessera.ir import Block, Builder, Module, Op, SharedType, TileType, Value
from tessera.ops import (
    AsyncCopyOp,
    CallOp,
    ConstOp,
    ConvertLayoutOp,
    ForOp,
    IfOp,
    LocalAllocOp,
    LocalIndexOp,
    LocalStoreOp,
    Loop,
    MbarrierArriveOp,
    SharedView,
    WgmmaOp,
    WgmmaWaitOp,
)  # fmt: skip
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_layout.rules import VIEWS
from tessera.passes.neutral.fold import constant_of
from tessera.passes.neutral.remarks import place_of, remark


class Waits:
    """One walk through a block. `in_flight`: MMAs that nothing has waited for, with the number `started` before
    each. `crowds`: whether buffers are filled while MMAs keep others of the block."""

    def __init__(self, block: Block, num_warps: int, facts: GpuFacts):
        self.block, self.num_warps, self.facts = block, num_warps, facts
        self.started = 0
        self.in_flight: dict[WgmmaOp, int] = {}
        self.held: dict[WgmmaOp, list[Value]] = {}
        self.made: list[WgmmaWaitOp] = []
        self.crowds = False

    def run(self, sooner: bool = False) -> None:
        """Start MMAs and wait for them; `sooner`: before buffers are filled, too."""
        for op in list(self.block):
            keeping = [mma for mma in self.in_flight if self._keeps_buffers(mma)]
            crowd = keeping if keeping and self._takes_room(op) else []
            self.crowds |= bool(crowd)
            for mma in list(self.in_flight):
                if mma in self.in_flight and (
                    self._must_wait(op, mma) or (sooner and mma in crowd)
                ):
                    self._wait(op, mma)
            if isinstance(op, WgmmaOp):
                self._start(op)

    def run_sooner(self) -> None:
        """Do it again, so that no buffer is filled while MMAs keep others."""
        for wait in self.made:
            wait.replace_by([wait.acc])
        self.started, self.made = 0, []
        self.run(sooner=True)

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

    def _keeps_buffers(self, mma: WgmmaOp) -> bool:
        """Whether an MMA in flight reads buffers of the block, which may share bytes with others afterwards."""
        held = [v for v in self.held[mma] if isinstance(v.type, SharedType)]
        buffers = [buffer_of(v).op for v in held]
        return any(op is not None and op.parent is self.block for op in buffers)

    def _takes_room(self, op: Op) -> bool:
        return any(
            isinstance(x, LocalAllocOp) or scratch_bytes(x, self.num_warps, self.facts)
            for x in op.walk()
        )

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
            self.made.append(Builder.before_op(op).insert(wait))
            for user, index in uses:
                user.set_operand(index, wait.result)


def remark_waits(module: Module, block: Block) -> None:
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
