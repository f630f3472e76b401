"""Rings of buffers in shared memory, whoever fills and reads them: one description of the buffers and of how writers
and readers wait for each other (`signal` in ops/schedule.py), from which all expanders emit their waits and arrivals.

Threads count through the buffers: the *state* of a writer or a reader is the number of its next buffer (slot), and with
barriers the parity of their phase, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera import ops
from tessera.dtypes import int64
from tessera.ir import Builder, Op, SharedType, Value
from tessera.layout.shared import shared_linear
from tessera.passes.neutral.loops import const32

State = tuple[Value, ...]


@dataclass(slots=True, eq=False)
class Buffers:
    """A ring: `slots` buffers in each of the `rows`, and an mbarrier for each buffer that says whether it is `full`, or
    `empty` again. Without `full` threads wait for groups of copies, of which the last `pending` ones may be under
    way; without `empty` nobody has to say that a buffer is free."""

    rows: list[Value]
    slots: int
    full: Value | None = None
    empty: Value | None = None
    pending: int = 0
    private: bool = False  # threads read what they copied themselves
    ctas: int = 1  # of a cluster that fill the buffers together
    # Threads read and write (ld.shared, cp.async) through the generic proxy, MMAs and the TMA unit through the
    # asynchronous one, and arrivals alone order accesses of one proxy only. A fence is needed behind the wait for what
    # threads wrote and MMAs read, and before the release of what threads read and the TMA unit overwrites.
    written_by_threads: bool = False
    read_by_threads: bool = False
    groups: bool = False  # warpgroups release buffers, not warps
    after_mma: bool = False  # what was read by MMAs alone, which have ended

    def wait_full(self, b: Builder, state: State) -> None:
        """Wait until a buffer can be read."""
        if self.full is None:
            b.emit(ops.AsyncWaitOp([], pending=self.pending, private=self.private))
        else:
            slot, phase = state
            proxy = self.written_by_threads
            b.insert(ops.MbarrierWaitOp(self.full, slot, phase, data=True, proxy=proxy))

    def wait_empty(self, b: Builder, state: State) -> None:
        """Wait until the readers have released a buffer. In the first round all are free: the wait is for the phase
        before."""
        if self.empty is not None:
            slot, phase = state
            before = b.emit(ops.XorOp(phase, const32(b, 1)))
            b.insert(ops.MbarrierWaitOp(self.empty, slot, before))

    def views(self, b: Builder, slot: Value) -> list[Value]:
        """Return the buffers of a number, one in each row."""
        return [b.emit(ops.LocalIndexOp(row, slot)) for row in self.rows]

    def release(
        self, b: Builder, slot: Value, runs: Value | None = None, views: Sequence[Value] = ()
    ) -> None:
        """Say that a buffer may be filled again, if `runs`: nobody reads the `views` of it any more."""
        if self.empty is not None:
            arrive = ops.MbarrierArriveOp(
                self.empty, slot, runs, views, groups=self.groups, ctas=self.ctas, after_mma=self.after_mma,
                proxy=self.read_by_threads,
            )  # fmt: skip
            b.insert(arrive)

    def advance(self, b: Builder, state: State) -> State:
        """Return the state of the next buffer."""
        return advance(b, state, self.slots)


def rows_of(
    b: Builder, allocs: Sequence[ops.LocalAllocOp], slots: int, private: bool = False, *marks: str
) -> list[Value]:
    """Allocate `slots` buffers in place of each allocation. `marks`: names of attributes that are set."""
    rows: list[Value] = []
    for a in allocs:
        t: SharedType = a.result.type
        ring = SharedType((slots, *t.shape), t.elem, t.layout)
        names = [a.result.name]
        row = ops.LocalAllocOp(None, results=[ring], names=names, private=private, loc=a.loc)
        row.attrs |= dict.fromkeys(marks, True)
        rows.append(b.emit(row))
    return rows


def mbarriers(b: Builder, slots: int, name: str = "", *marks: str) -> Value:
    """Allocate a barrier for each buffer; shapes are powers of two."""
    count = 1 << (slots - 1).bit_length()
    t = SharedType((count,), int64, shared_linear((count,), (0,)))
    row = ops.LocalAllocOp(None, results=[t], names=[name])
    row.attrs |= dict.fromkeys(marks, True)
    return b.emit(row)


def advance(b: Builder, state: State, slots: int) -> State:
    """Return the next slot, or the first one after the last, and the phase of its barriers, which flips when the ring
    begins again."""
    slot, *phases = state
    flipped = [b.emit(ops.XorOp(phase, const32(b, 1))) for phase in phases]
    if slots == 1:
        return slot, *flipped
    following = b.emit(ops.AddOp(slot, const32(b, 1)))
    wraps = b.emit(ops.CmpOp(following, const32(b, slots), predicate="eq"))
    first = b.emit(ops.SelectOp(wraps, const32(b, 0), following))
    pairs = zip(flipped, phases, strict=True)
    return first, *[b.emit(ops.SelectOp(wraps, new, old)) for new, old in pairs]


def behind_mmas(loop: ops.ForOp) -> Builder:
    """Return where a loop's MMAs that run on have ended: behind the waits for them."""
    at: Op = loop
    while isinstance(at.next, ops.WgmmaWaitOp):
        at = at.next
    return Builder.after_op(at)


def show(allocs: Sequence[ops.LocalAllocOp], views: Sequence[Value]) -> None:
    """Let readers of allocations see buffers that are filled elsewhere, and drop what filled the allocations."""
    for alloc, view in zip(allocs, views, strict=True):
        filling = alloc.init.op if alloc.init is not None else None
        alloc.replace_by([view])
        if filling is not None:
            filling.erase()
