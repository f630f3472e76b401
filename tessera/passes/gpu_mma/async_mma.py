"""Makes MMAs of warpgroups asynchronous until their results are used.

    %s = wgmma %q, %k, 0                   %s0 = wgmma %q, %k, 0 {asynchronous}
    %o = wgmma %p, %v, %x           →      %o0 = wgmma %p, %v, %x {asynchronous}
    use %s                                 %s = wgmma_wait %s0, [%k] {pending=1}
    use %o                                 use %s
                                           %o = wgmma_wait %o0, [%p, %v] {pending=0}
                                           use %o

MMAs finish in the order in which they were started; a wait states how many later ones may still run, and holds
the operands, so that nothing overwrites their registers or buffers before. MMAs whose operands are ready start
first, in program order: those that only need shared memory move up to the wait that fills it. waits.py has the rules
for waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tessera.analysis.allocation import shared_bytes
from tessera.analysis.registers import reg32_of
from tessera.ir import Block, Effect, Module, Op, TileType, Value, pass_
from tessera.ir.applications import apply
from tessera.ops import (
    AsyncWaitOp,
    BarrierOp,
    BroadcastOp,
    CallOp,
    ConvertLayoutOp,
    IfOp,
    LocalAllocOp,
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
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_layout.rules import VIEWS
from tessera.passes.gpu_mma.waits import Waits, remark_waits
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
def async_mma(module: Module, facts: GpuFacts) -> None:
    """Start MMAs of warpgroups early and wait for them late.

    Takes: GPU IR with layouts. It is the last pass that moves ops: lifetimes of buffers follow the waits.
    Gives: `wgmma` with `asynchronous`, and `wgmma_wait` in front of the first use of each result; remarks about MMAs
        that are not started early, that nothing in their loop runs beside, or that are waited for sooner, so that the
        kernel fits into shared memory.
    Needs: a GPU with `wgmma`: without such ops nothing is changed.
    Raises: nothing.
    Example: `two` of tests/filecheck/async-mma/mmas.gir
        wgmma; exp; wgmma
        → wgmma {asynchronous=True}; wgmma {asynchronous=True}; wgmma_wait {pending=1}; exp; wgmma_wait
    Compare: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"; Triton `tritongpu-pipeline`.
    """
    blocks = [block for func in module.body for block in func.all_blocks()]
    found = [w for block in blocks if (w := _started(module, block, facts)) is not None]
    crowds = [w for w in found if w.crowds]
    if crowds and (need := shared_bytes(module, facts)) > facts.max_shared_bytes:
        for waits in crowds:
            waits.run_sooner()
        late = f"{need} bytes of shared memory, and a CTA has {facts.max_shared_bytes}"
        remark(
            module, f"products are waited for before other buffers are filled: later takes {late}"
        )
    for waits in found:
        remark_waits(module, waits.block)
    for block in blocks:
        _give_back_early(block)


def _started(module: Module, block: Block, facts: GpuFacts) -> Waits | None:
    """Start the MMAs of a block, and return the waits for them."""
    mmas = [op for op in block if isinstance(op, WgmmaOp)]
    if not mmas or any(op.pending for op in mmas):
        return None
    held = sum(reg32_of(op.result.type) for op in mmas)
    if held <= HOISTED_REG32:
        _start_early(mmas)
        _end_ping_pong_early(block)
    elif late := next((op for op in mmas if _earlier_place(op) is not None), None):
        why = f"products in flight hold {held} registers of a thread, at most {HOISTED_REG32}"
        remark(module, f"the product{place_of(late)} is not started early: {why}")
    if not apply("async-mma", mmas[0]):
        return None
    waits = Waits(block, module.attrs["num_warps"], facts)
    waits.run()
    return waits


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


# --- giving back early --------------------------------------------------------------------------------------
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


def _needing(tile: Value) -> Iterator[Op]:
    """Yield the ops that need all registers of a tile, directly or through arithmetic, and that arrivals do not pass:
    MMAs of warpgroups and writes to shared memory. The parts of an MMA run in order, and each reads its own registers
    of an operand: the last part needs them all. What an MMA adds to does not count, as for the check of
    synchronisation, which follows accumulators as results in flight."""
    seen, left = {tile}, [tile]  # paths of sorts and scans meet again and again: each value once
    while left:
        v = left.pop()
        for user in v.users():
            if isinstance(user, WgmmaOp | LocalStoreOp | LocalAllocOp):
                if not _reads_in_part(user, v) and not _adds_to(user, v):
                    yield user
            elif user.effects is Effect.NONE and len(user.results) == 1 and not user.regions:
                made: Any = user.result.type
                whole = isinstance(made, TileType) and made.numel >= v.type.numel
                if whole and user.result not in seen:
                    seen.add(user.result)
                    left.append(user.result)


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
