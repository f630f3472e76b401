"""Places buffers in shared memory by their lifetimes: two buffers share bytes only if they never live at the same time.

Ops are numbered in program order. A buffer lives from its `local_alloc` to its last use; a use inside a loop
that does not contain the allocation counts to the end of that loop. A buffer that asynchronous copies fill
lives on to the next wait for all of them. Where warps have roles, a buffer lives until the consumers have last used
it, since they wait for all that the producer copies. The scratch of an op lives while the op runs. Larger buffers are
placed first, each at the lowest offset that is free for its lifetime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tessera.analysis.scratch import scratch_bytes, staging
from tessera.ir import Module, Op
from tessera.ops import (
    AsyncCopyOp,
    AsyncWaitOp,
    DescriptorLoadOp,
    DescriptorStoreOp,
    FuncOp,
    LocalAllocOp,
    Loop,
    MbarrierInitOp,
    WarpSpecializeOp,
)
from tessera.ops.schedule import memory_users

SWIZZLE_ALIGNMENT = 1024  # the pattern of the widest swizzle starts at a multiple of this
PRIVATE_SCRATCH = 1024  # an op in a loop keeps up to this many bytes of scratch for the whole loop
SMALL_ALIGNMENT = 128  # one row of all banks, where the swizzles of layout conversions start
TENSOR_OPS = (DescriptorLoadOp, DescriptorStoreOp)


def _is_swizzled(op: Op) -> bool:
    """Whether a buffer's layout is swizzled. Instructions swizzle address bits: it must start where the pattern
    does."""
    if not isinstance(op, LocalAllocOp):
        return False
    bases = op.result.type.layout.bases("offset")
    return any(sum(c != 0 for c in base) > 1 for base in bases)


@dataclass(slots=True)
class Buffer:
    """The positions `start` to `end` (both included) in which an op needs `size` bytes. `place` sets `offset`. `others`
    are ops that use the same bytes at other times."""

    op: Op
    size: int
    start: int
    end: int
    offset: int = 0
    others: list[Op] = field(default_factory=lambda: [])

    @property
    def alignment(self) -> int:
        wide = self.size >= SWIZZLE_ALIGNMENT or isinstance(self.op, TENSOR_OPS)
        return SWIZZLE_ALIGNMENT if wide or _is_swizzled(self.op) else SMALL_ALIGNMENT

    def meets(self, other: Buffer) -> bool:
        return self.start <= other.end and other.start <= self.end


class Positions:
    """The position of each op of a function in program order; `last` is that of the last op nested in it."""

    def __init__(self, func: FuncOp):
        self.first: dict[Op, int] = {}
        self.last: dict[Op, int] = {}
        self._number(func)

    def _number(self, op: Op) -> None:
        self.first[op] = len(self.first)
        for block in op.regions:
            for inner in block:
                self._number(inner)
        self.last[op] = len(self.first) - 1


def _end_of_life(alloc: LocalAllocOp, at: Positions) -> int:
    end, asynchronous = at.first[alloc], False
    between = 0  # end of the roles, for a buffer that the consumers do not use
    for user in memory_users(alloc.result):
        if (
            isinstance(user, MbarrierInitOp) and not user.by_producer
        ):  # a late arrival must not hit other data
            return max(at.last.values())
        asynchronous |= isinstance(user, AsyncCopyOp)
        op, parent = user, user.parent_op()
        while op.parent is not alloc.parent:
            assert parent is not None
            if isinstance(parent, WarpSpecializeOp):
                break
            op, parent = parent, parent.parent_op()
        if not isinstance(parent, WarpSpecializeOp) or op.parent is parent.consumers:
            end = max(end, at.last[op])
        else:
            between = at.last[parent]
    if end == at.first[alloc]:
        end = max(end, between)
    if asynchronous:
        op = alloc.next
        while op is not None:
            if at.first[op] > end and isinstance(op, AsyncWaitOp) and op.pending == 0:
                return at.first[op]
            op = op.next
    return end


def _scratch_life(op: Op, size: int, at: Positions) -> tuple[int, int]:
    """Return when an op's scratch lives. Small scratch in a loop keeps its bytes for the whole loop, so that no op
    waits for the readers of another op's scratch."""
    if isinstance(op, DescriptorStoreOp):  # the TMA unit reads it until a later wait
        return 0 if is_in_loop(op) else at.first[op], len(at.first)
    loop = op.parent_op()
    if size <= PRIVATE_SCRATCH and isinstance(loop, Loop):
        return at.first[loop], at.last[loop]
    return at.first[op], at.first[op]


def is_in_loop(op: Op) -> bool:
    """Whether an op is inside a loop of its function."""
    return any(isinstance(above, Loop) for above in op.ancestors())


def buffers_of(func: FuncOp, num_warps: int, facts: object = None) -> list[Buffer]:
    """Return all buffers of a function with their lifetimes; `facts` is passed on to `scratch_bytes`."""
    at = Positions(func)
    found: list[Buffer] = []
    for op in func.walk():
        if isinstance(op, LocalAllocOp) and op.attrs.get("lasting"):
            found.append(Buffer(op, op.bytes, 0, len(at.first)))
        elif isinstance(op, LocalAllocOp):
            found.append(Buffer(op, op.bytes, at.first[op], _end_of_life(op, at)))
        else:
            size = scratch_bytes(op, num_warps, facts)
            if size:
                found.append(Buffer(op, size, *_scratch_life(op, size, at)))
    return _shared_by_copies(found, num_warps)


def scratch_beside(ops: Iterable[Op], num_warps: int, facts: object) -> int:
    """Return the bytes of scratch that ops of a function need beside the rings of its loops: what each keeps for as
    long as `_scratch_life` says, and what the others use one after another."""
    sizes = {op: size for op in ops if (size := scratch_bytes(op, num_warps, facts))}
    if not sizes:
        return 0
    func = next(op for op in next(iter(sizes)).ancestors() if isinstance(op, FuncOp))
    at = Positions(func)
    return place([Buffer(op, size, *_scratch_life(op, size, at)) for op, size in sizes.items()])


def bytes_around(loop: Loop, num_warps: int, facts: object) -> int:
    """Return the bytes of shared memory that ops outside of a loop keep while it runs: buffers that are used in it or
    behind it, tiles that the TMA unit may still read, and small scratch of a loop around it."""
    func = next(op for op in loop.ancestors() if isinstance(op, FuncOp))
    at = Positions(func)
    during = Buffer(loop, 0, at.first[loop], at.last[loop])
    found = [b for b in buffers_of(func, num_warps, facts) if b.meets(during)]
    outside = [b for b in found if not any(op.is_inside(loop) for op in (b.op, *b.others))]
    sizes = [
        (b.size * b.op.attrs.get("slots", 1), b.alignment)
        for b in outside
        if "ring" not in b.op.attrs
    ]
    kept = sum((size + alignment - 1) & -alignment for size, alignment in sizes)
    return kept + _planned_rings(func, at.first[loop], at)


def _planned_rings(func: FuncOp, start: int, at: Positions) -> int:
    """Return the bytes of the rings of warp roles that are still used after `start`. They are made before the roles
    begin, and loops with the same ring share its buffers."""
    rings: dict[int, dict[object, int]] = {}
    used = set[int]()
    for op in func.walk():
        if isinstance(op, LocalAllocOp) and "ring" in op.attrs:
            number, blocks = op.attrs["ring"], rings.setdefault(op.attrs["ring"], {})
            blocks[op.parent] = blocks.get(op.parent, 0) + op.bytes * op.attrs["slots"]
            outermost = [op, *op.ancestors()][-2]
            if at.last[outermost] >= start:
                used.add(number)
    barriers = 2 * SMALL_ALIGNMENT  # of a ring: those of full and of empty buffers
    return sum(next(iter(rings[number].values())) + barriers for number in used)


def _shared_by_copies(buffers: list[Buffer], num_warps: int) -> list[Buffer]:
    """Let `descriptor_store`s of equal tiles in different blocks, such as the parts of a split loop, share buffers.
    Each waits for the copies of the store before it, as it does for its own of the previous iteration."""
    kept: list[Buffer] = []
    stores: dict[Any, Buffer] = {}
    for b in buffers:
        if isinstance(b.op, DescriptorStoreOp):
            how = staging(b.op, num_warps)
            first = stores.setdefault((how.layout, how.boxes, how.groups, how.buffers), b)
            blocks = [op.parent for op in (first.op, *first.others)]
            if first is not b and b.op.parent not in blocks:
                first.start, first.end = min(first.start, b.start), max(first.end, b.end)
                first.others.append(b.op)
                continue
        kept.append(b)
    return kept


def place(buffers: list[Buffer], base: int = 0) -> int:
    """Set the offset of each buffer, starting at `base`, and return the end of the highest buffer."""
    placed: list[Buffer] = []
    top = base
    for b in sorted(buffers, key=lambda b: (-b.size, b.start)):
        offset = base
        for other in sorted((p for p in placed if p.meets(b)), key=lambda p: p.offset):
            offset = (offset + b.alignment - 1) & -b.alignment
            if offset + b.size <= other.offset:
                break
            offset = max(offset, other.offset + other.size)
        b.offset = (offset + b.alignment - 1) & -b.alignment
        top = max(top, b.offset + b.size)
        placed.append(b)
    return top


def placed(module: Module, facts: object) -> Iterator[tuple[FuncOp, list[Buffer], int]]:
    """Place the buffers of each function behind those of the functions before, as a callee runs while its caller's
    buffers live. Yield the function, its buffers and where they end."""
    num_warps: int = module.attrs["num_warps"]
    top = 0
    for func in module.body:
        assert isinstance(func, FuncOp)
        buffers = buffers_of(func, num_warps, facts)
        top = place(buffers, (top + SWIZZLE_ALIGNMENT - 1) & -SWIZZLE_ALIGNMENT)
        yield func, buffers, top


def shared_bytes(module: Module, facts: object) -> int:
    """Return the bytes of shared memory that a module needs as it is."""
    return max((end for _, _, end in placed(module, facts)), default=0)
