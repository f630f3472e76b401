"""Defines rings of buffers in shared memory, through which the roles of a split program hand tiles (ops/roles.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tessera import ops
from tessera.ir import Block, Builder, Effect, Op, SharedType, Value
from tessera.ir.applications import apply
from tessera.layout import box_layout, boxes_of
from tessera.ops.roles import FILLED, NEVER
from tessera.ops.schedule import memory_users
from tessera.passes.gpu_loops.slots import Buffers
from tessera.passes.neutral.loops import const32, runs_at_all

SLACK = 2048  # bytes of shared memory for barriers and alignment


@dataclass(slots=True, eq=False)
class Ring:
    """Tiles of one block that are loaded and released together: the loads with their allocations; who fills the buffers
    and releases them (ops/roles.py); then what the expander makes of that."""

    block: Block
    loads: list[Any]
    allocs: list[ops.LocalAllocOp]
    role: str = "producer"
    release: str = ""
    outer: bool = False  # other rings advance in loops inside the block
    stages: int = 0
    first: Ring | None = None  # the ring of an earlier loop whose buffers this one reuses
    tiles: Buffers = field(init=False)

    @property
    def once(self) -> bool:
        """Whether there is no loop around the tiles, so that nothing is released."""
        return self.release == NEVER

    @property
    def of_transpose(self) -> bool:
        """Whether the transpose role fills or releases the buffers."""
        return "transpose" in (self.role, self.release)

    @property
    def lead(self) -> Ring:
        """The ring that owns the buffers."""
        return self if self.first is None else self.first

    @property
    def bytes(self) -> int:
        """The bytes that the copies of one iteration bring."""
        return sum(a.bytes for a in self.allocs)

    @property
    def slot_bytes(self) -> int:
        """The bytes that one iteration's buffers take."""
        return sum(a.result.type.slot_bytes for a in self.allocs)

    def write(self, number: int) -> None:
        """Write the ring into the schedule."""
        for a in self.allocs:
            a.attrs |= {
                "role": self.role, "ring": number, "slots": self.lead.stages, "signal": FILLED[self.role],
                "release": self.release,
            }  # fmt: skip


def written(func: ops.FuncOp) -> list[Ring]:
    """Return the rings that the schedule of a function has, block by block; `first` is the ring of the first block with
    the same number."""
    found: list[Ring] = []
    firsts: dict[int, Ring] = {}
    for block in func.all_blocks():
        place = {op: n for n, op in enumerate(block)}
        here: dict[int, Ring] = {}
        buffers = [op for op in block if isinstance(op, ops.LocalAllocOp) and "ring" in op.attrs]
        for a in sorted(buffers, key=lambda a: (a.attrs["ring"], place[filling(a)])):
            number, what = a.attrs["ring"], a.attrs
            r = here.setdefault(number, Ring(block, [], [], what["role"], what["release"]))
            r.stages, r.first = what["slots"], firsts.get(number)
            r.allocs.append(a)
            r.loads.append(filling(a))
        firsts = here | firsts
        found += here.values()
    return found


def filling(alloc: ops.LocalAllocOp) -> Any:
    """Return the op whose tile an allocation holds."""
    assert alloc.init is not None
    assert alloc.init.op is not None
    return alloc.init.op


@dataclass(slots=True, eq=False)
class ProducerAcquire:
    """Where the producer waits for the consumers: before `loops`, whose loads may see what the program did.
    `flags`: whether there may be something to see. `bars`: one barrier, at which the consumers arrive if there may be
    something to see and the loop has an iteration."""

    loops: list[ops.ForOp]
    flags: dict[ops.ForOp, Value] = field(default_factory=lambda: {})
    bars: Any = None

    def arrive(self) -> None:
        """Emit the consumers' arrivals."""
        for loop in self.loops:
            b = Builder.before_op(loop)
            runs = runs_at_all(b, loop.lb, loop.ub, loop.step)
            runs = b.emit(ops.AndOp(runs, self.flags[loop]))
            b.insert(ops.MbarrierArriveOp(self.bars, const32(b, 0), runs, [], fence=True))


def grouped(loads: list[ops.DescriptorLoadOp]) -> list[Ring]:
    """Return the rings of a block's loads: one for the tiles of the same MMAs, and one for tiles that no MMA reads."""
    found: dict[tuple[Op, ...], Ring] = {}
    for load, alloc in [(x, allocation(x)) for x in loads]:
        mmas = [op for op in memory_users(alloc.result) if isinstance(op, ops.WgmmaOp)]
        block = load.parent
        assert block is not None
        ring = found.setdefault(tuple(dict.fromkeys(mmas)), Ring(block, [], []))
        ring.loads.append(load)
        ring.allocs.append(alloc)
    return list(found.values())


def share(rings: list[Ring]) -> None:
    """Let consecutive loops share buffers: the producer refills for the next loop what the one before has read."""
    taken: dict[Block, set[Ring]] = {}
    for number, r in enumerate(rings):
        mine = taken.setdefault(r.block, set())
        if not (r.once or r.outer or r.of_transpose):
            for other in rings[:number]:
                fits = other.first is None and other not in mine and other.block is not r.block
                fits = fits and not (other.once or other.outer or other.of_transpose)
                if fits and _kind(other) == _kind(r):
                    r.first = other
                    break
        mine.add(r.lead)


def _kind(r: Ring) -> Any:
    types = [a.result.type for a in r.allocs]
    ctas = [copying_ctas(x, a) for x, a in zip(r.loads, r.allocs, strict=True)]
    return types, ctas, read_by_mmas([a.result for a in r.allocs]), read_together(r.allocs)


def copying_ctas(load: ops.DescriptorLoadOp, alloc: ops.LocalAllocOp) -> int:
    """Return how many CTAs of the cluster copy the tile together: all that load it, if it has as many parts."""
    bits = load.result.type.elem.storage_bits
    boxes = boxes_of(alloc.result.type.layout, bits)
    return load.ctas if boxes is not None and boxes.shares(load.ctas, bits) else 1


def filled_by(load: ops.DescriptorLoadOp) -> ops.LocalAllocOp | None:
    """Return the allocation that a load fills, if the TMA unit can do that."""
    users = load.result.users()
    if len(users) != 1 or not isinstance(users[0], ops.LocalAllocOp):
        return None
    alloc = users[0]
    bits = load.result.type.elem.storage_bits
    known = alloc.parent is load.parent and boxes_of(alloc.result.type.layout, bits) is not None
    return alloc if known else None


def allocation(load: ops.DescriptorLoadOp) -> ops.LocalAllocOp:
    """Return the allocation that a load fills; make one for a tile that is used in registers."""
    found = filled_by(load)
    if found is not None:
        return found
    t: Any = load.result.type
    layout = box_layout(t.shape, t.elem.storage_bits)
    assert layout is not None
    alloc, read = put_buffer(load, SharedType(t.shape, t.elem, layout))
    read_as_needed(read)
    return alloc


def put_buffer(
    load: Op, t: SharedType, name: str = "", private: bool = False
) -> tuple[ops.LocalAllocOp, ops.LocalLoadOp]:
    """Put a buffer between a load and its users, which read it back to registers."""
    b, uses = Builder.after_op(load), list(load.result.uses)
    alloc = b.insert(ops.LocalAllocOp(load.result, results=[t], names=[name], private=private))
    read = b.insert(ops.LocalLoadOp(alloc.result, results=[load.result.type], names=[name]))
    for user, index in uses:
        user.set_operand(index, read.result)
    return alloc, read


def read_as_needed(read: ops.LocalLoadOp) -> None:
    """Read a tile in the layout to which all its users convert it, perhaps transposed. Otherwise it would go through
    scratch memory, too, with two barriers."""
    turned: list[ops.TransOp] = []
    v = read.result
    while len(users := _alive(v)) == 1 and isinstance(users[0], ops.TransOp):
        turned.append(users[0])
        v = users[0].result
    wanted = {u.result.type for u in users if isinstance(u, ops.ConvertLayoutOp)}
    if len(wanted) != 1 or not all(isinstance(u, ops.ConvertLayoutOp) for u in users):
        return
    if not apply("direct-reads", read):
        return
    t: Any = wanted.pop()
    types = [t]
    for op in reversed(turned):
        back = [op.order.index(d) for d in range(len(op.order))]
        types.append(op.x.type.with_layout(types[-1].layout.trans(back)))
    b = Builder.before_op(read)
    v = b.emit(ops.LocalLoadOp(read.shared, results=[types.pop()], names=[read.result.name]))
    for op in turned:
        v = b.emit(ops.TransOp(v, order=op.order, results=[types.pop()]))
    for op in users:
        op.replace_by([v])
    for op in (*reversed(turned), read):
        op.erase()


def _alive(v: Value) -> list[Op]:
    """Erase pure users whose results nobody uses, and return the other ones."""
    for op in v.users():
        if op.effects is Effect.NONE and not op.regions and not any(r.uses for r in op.results):
            op.erase()
    return v.users()


def read_by_mmas(views: list[Value]) -> bool:
    """Whether nothing but MMAs reads what the views show."""
    users = [user for v in views for user in memory_users(v)]
    return all(isinstance(user, ops.WgmmaOp | ops.WgmmaWaitOp) for user in users)


def read_together(allocs: list[ops.LocalAllocOp]) -> bool:
    """Whether nothing but MMAs reads buffers, and one of them in each iteration: where it runs, all warps of a group
    have waited for the buffers, so that one may release them for all. MMAs of a branch or an inner loop may not run."""
    users = [user for a in allocs for user in memory_users(a.result)]
    inside = any(
        isinstance(user, ops.WgmmaOp) and user.parent is allocs[0].parent for user in users
    )
    return inside and read_by_mmas([a.result for a in allocs])
