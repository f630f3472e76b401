"""Tensor copies (TMA), barriers that count their bytes, and programs of two teams.

One thread starts the copies of all boxes of a block; their arrival counts on an mbarrier in shared memory. A tile
that is stored goes box by box through a few buffers in shared memory: while the engine reads one, the next is written.
Threads write through another path than the engine reads, so a fence stands between."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from tessera.analysis.scratch import Staging, staging
from tessera.backends.gpu.access import Reader, access_for, fixed_place, write
from tessera.backends.gpu.local import warp_owner
from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.memory import copies
from tessera.backends.gpu.types import llvm_type, memory_bits
from tessera.backends.nvidia import primitives as p
from tessera.ir import TileType, Value
from tessera.layout import Boxes, LinearLayout, MatrixAccess, box_layout, turned_lanes
from tessera.ops import (
    ByteBarrierArriveOp,
    ByteBarrierExpectOp,
    ByteBarrierInitOp,
    ByteBarrierWaitOp,
    DescriptorLoadOp,
    DescriptorStoreOp,
    MakeDescriptorOp,
    TensorCopyOp,
    WarpSpecializeOp,
)  # fmt: skip
from tessera.passes.tensor_maps import access_boxes

BARRIER_BYTES = 8
TEAM_BARRIER = 8  # hardware barrier of the consumers, who do not wait for the producer
GROUP_BARRIER = 9  # and following: of groups of four warps
START_BARRIER = 13  # where consumers wait for the producer's barriers
GROUP_THREADS = 128


def _plain(fl: FunctionLowering, name: str, *args: str) -> str:
    return p.PRIMITIVES[name].emit(fl.w, args)


def _first_thread(fl: FunctionLowering) -> str:
    thread = fl.thread
    with fl.w.hoist():
        return fl.w.pure(f"icmp eq i32 {thread}, 0")


def _is_producer(fl: FunctionLowering) -> str:
    """Whether this thread copies. Its warps come last, so that the consumers' threads keep their numbers."""
    thread = fl.thread
    with fl.w.hoist():
        return fl.w.pure(f"icmp eq i32 {thread}, {32 * fl.num_warps}")


def _alone(fl: FunctionLowering) -> Any:
    """Code that one thread runs."""
    return nullcontext() if fl.single else fl.w.when(_first_thread(fl))


def _barrier_address(fl: FunctionLowering, bars: Value, index: Value) -> str:
    w = fl.w
    return w.add("i32", fl.scalar(bars), w.mul("i32", fl.scalar(index), str(BARRIER_BYTES)))


def _wait_for(fl: FunctionLowering, address: str, phase: str) -> None:
    """Spin; the hardware suspends the thread for a while in each try."""
    w = fl.w
    again, done = w.label("wait"), w.label("arrived")
    w.branch(again)
    w.start(again)
    ended = w.emit(f"icmp ne i32 {_plain(fl, 'mbarrier_try', address, phase)}, 0")
    w.branch_if(ended, done, again)
    w.start(done)


# --- descriptors --------------------------------------------------------------------------------------------
@lowers(MakeDescriptorOp)
def _descriptor(fl: FunctionLowering, op: MakeDescriptorOp) -> None:
    fl.set(op.result, [""])  # its accesses name their maps


def _coordinates(fl: FunctionLowering, offsets: Sequence[Value], start: Sequence[int]) -> list[str]:
    """Coordinates of a box, from the contiguous dimension."""
    w = fl.w
    found = [w.add("i32", _as_i32(fl, v), str(at)) for v, at in zip(offsets, start, strict=True)]
    return found[::-1]


def _as_i32(fl: FunctionLowering, v: Value) -> str:
    bits = v.type.bits
    name = fl.scalar(v)
    if bits == 32 or name.lstrip("-").isdigit():
        return name
    how = "trunc" if bits > 32 else "sext" if v.type.signed else "zext"
    return fl.w.pure(f"{how} i{bits} {name} to i32")


def _load_boxes(
    fl: FunctionLowering, op: DescriptorLoadOp | TensorCopyOp, address: str, bar: str, blocks: int
) -> None:
    """All boxes, or with several `blocks` those of this one, which go to all."""
    boxes = access_boxes(op, fl.num_warps)
    w, size = fl.w, boxes.elements * op.desc.type.elem.storage_bytes
    row = p.tensor_load(len(boxes.box), blocks)
    mine = len(boxes.starts) // blocks
    first = ["0"] * len(boxes.box)
    mask: list[str] = []
    if blocks > 1:
        first = _first_of_share(fl, boxes, blocks)
        with w.hoist():
            rank = fl.target.block_rank(w)
            offset = w.pure(f"mul i32 {rank}, {mine * size}")
        address = w.add("i32", address, offset)
        mask = [str((1 << blocks) - 1)]
    for i, start in enumerate(boxes.starts[:mine]):
        to = w.add("i32", address, str(i * size))
        at = _coordinates(fl, op.offsets, start)
        at = [w.add("i32", x, by) for x, by in zip(at, reversed(first), strict=True)]
        row.emit(w, [to, f"%map{op.attrs['map']}", bar, *at, *mask])


def _first_of_share(fl: FunctionLowering, boxes: Boxes, blocks: int) -> list[str]:
    """Coordinates of the first box of this block's share: a sum over the bits of the block's number."""
    w, mine = fl.w, len(boxes.starts) // blocks
    with w.hoist():
        rank, first = fl.target.block_rank(w), ["0"] * len(boxes.box)
        for bit in range(blocks.bit_length() - 1):
            one = w.pure(f"and i32 {w.pure(f'lshr i32 {rank}, {bit}')}, 1")
            for d, by in enumerate(boxes.starts[mine << bit]):
                if by:
                    first[d] = w.add("i32", first[d], w.pure(f"mul i32 {one}, {by}"))
    return first


@lowers(DescriptorLoadOp)
def _load(fl: FunctionLowering, op: DescriptorLoadOp) -> None:
    """Through scratch, with a barrier of its own: nobody else runs meanwhile."""
    t: Any = op.result.type
    bits = memory_bits(t.elem)
    shared = box_layout(t.shape, bits)
    assert shared is not None
    size = t.numel * bits // 8
    start: int = op.attrs["scratch"]
    place, bar = fixed_place(fl, start), fixed_place(fl, start + size).address
    with _alone(fl):
        p.mbarrier_init(1).emit(fl.w, [bar])
        _plain(fl, "mbarrier_fence")
        _plain(fl, "proxy_fence_all")
        p.mbarrier_expect(size).emit(fl.w, [bar])
        _load_boxes(fl, op, place.address, bar, 1)
    fl.target.barrier(fl.w)
    _wait_for(fl, bar, "0")
    access = access_for(t.layout, shared, bits, fl.target.facts().has_ldmatrix)
    reader = Reader(fl, t.elem, access, place)
    out = [""] * t.layout.size("register")
    for i in range(len(access.groups)):
        reader.group(i, out)
    fl.target.barrier(fl.w)
    with _alone(fl):
        _plain(fl, "mbarrier_inval", bar)
    fl.set(op.result, copies(t.layout, out))


@lowers(DescriptorStoreOp)
def _store(fl: FunctionLowering, op: DescriptorStoreOp) -> None:
    t: Any = op.value.type
    w, bits = fl.w, memory_bits(t.elem)
    how = staging(op, fl.num_warps)
    boxes, buffers, count = how.boxes, how.buffers, how.count
    layout, names = _apart(fl, t, how, list(fl.get(op.value)))
    access = access_for(layout, how.layout, bits, fl.target.facts().has_stmatrix)
    owner = warp_owner(fl, t.layout)
    row = p.tensor_store(len(boxes.box), "" if op.kind == "store" else op.kind)
    start: int = op.attrs["scratch"]
    size, group = how.elements * bits // 8, _group(fl) if how.groups else "0"
    moved = w.mul("i32", group, str(t.shape[-2] // how.groups if how.groups else 0))
    step = count if access.thread_mask >= how.elements else max(1, buffers // 2)
    for first in range(0, count, step):
        members = range(first, first + step)
        with _elected(fl, how.groups):
            p.bulk_wait(max(0, buffers // step - 1), read=True).emit(w, [])
        _meet(fl, how.groups, group)
        part = access if step == count else _part(access, how.elements, members, buffers)
        write(fl, t.elem, part, fixed_place(fl, start), names, owner)
        fl.target.proxy_fence(w)
        _meet(fl, how.groups, group)
        with _elected(fl, how.groups):
            for i in members:
                at = fixed_place(fl, start + i % buffers * size).address
                at = w.add("i32", at, w.mul("i32", group, str(size // max(1, how.groups))))
                for j in range(how.parts):
                    place = _coordinates(fl, op.offsets, boxes.starts[i * how.parts + j])
                    if how.groups:
                        place[1] = w.add("i32", place[1], moved)
                    to = w.add("i32", at, str(j * boxes.elements * bits // 8))
                    row.emit(w, [f"%map{op.attrs['map']}", to, *place])
            _plain(fl, "bulk_commit")
    _settle(fl, bool(op.attrs.get("synchronous")))


def _group(fl: FunctionLowering) -> str:
    """Number of this thread's group of four warps."""
    warp = fl.warp
    with fl.w.hoist():
        return fl.target.shuffle_index(fl.w, fl.w.pure(f"lshr i32 {warp}, 2"), "0")


def _elected(fl: FunctionLowering, groups: int) -> Any:
    """Code that one thread of each group runs, or one of all."""
    return fl.w.when(_first_of_group(fl)) if groups else _alone(fl)


def _first_of_group(fl: FunctionLowering) -> str:
    thread = fl.thread
    with fl.w.hoist():
        return fl.w.pure(f"icmp eq i32 {fl.w.pure(f'and i32 {thread}, {GROUP_THREADS - 1}')}, 0")


def _meet(fl: FunctionLowering, groups: int, group: str) -> None:
    if not groups:
        fl.target.barrier(fl.w)
        return
    number = fl.w.add("i32", group, str(GROUP_BARRIER))
    p.group_barrier(GROUP_THREADS).emit(fl.w, [number])


def _apart(
    fl: FunctionLowering, t: TileType, how: Staging, names: list[str]
) -> tuple[LinearLayout, list[str]]:
    """A tile in registers such that its lanes write to banks of their own."""
    bits, type = memory_bits(t.elem), llvm_type(t.elem)
    access = access_for(t.layout, how.layout, bits, fl.target.facts().has_stmatrix)
    if isinstance(access, MatrixAccess):
        return t.layout, names
    layout, turns = turned_lanes(t.layout, how.layout, bits, how.elements)
    for b, r in turns:
        lane = fl.lane
        with fl.w.hoist():
            bit = fl.w.pure(f"icmp ne i32 {fl.w.pure(f'and i32 {lane}, {1 << b}')}, 0")
        others = [names[i ^ 1 << r] for i in range(len(names))]
        names = [
            fl.w.pure(f"select i1 {bit}, {type} {other}, {type} {own}")
            for own, other in zip(names, others, strict=True)
        ]
    return layout, names


def _part(access: Any, elements: int, members: range, buffers: int) -> Any:
    """The groups of an access that write certain boxes, into a ring of buffers."""
    chosen = [g for g in access.groups if g.offset // elements in members]
    moved = [
        replace(g, offset=g.offset % elements + g.offset // elements % buffers * elements)
        for g in chosen
    ]
    return replace(access, groups=tuple(moved))


def _settle(fl: FunctionLowering, now: bool) -> None:
    """Shared memory must stay until the engine has read it; with `now` the data are in global memory."""
    if now:
        with fl.w.when(_first_of_group(fl)):
            p.bulk_wait(0, read=False).emit(fl.w, [])
            _plain(fl, "proxy_fence_all")
        fl.target.barrier(fl.w)
        return

    def finish() -> None:
        with fl.w.when(_first_of_group(fl)):
            p.bulk_wait(0, read=True).emit(fl.w, [])

    fl.at_end["tensor stores"] = finish


# --- barriers -----------------------------------------------------------------------------------------------
@lowers(ByteBarrierInitOp)
def _init(fl: FunctionLowering, op: ByteBarrierInitOp) -> None:
    """By the producer, who goes on with its copies at once."""
    w = fl.w
    with w.when(_is_producer(fl)):
        for number in range(fl.tensor_maps):  # the first copies will find them near
            _plain(fl, "prefetch_map", f"%map{number}")
        for bars, count in zip(op.bars, op.counts, strict=True):
            row = p.mbarrier_init(count)
            for i in range(bars.type.shape[0]):
                row.emit(w, [w.add("i32", fl.scalar(bars), str(BARRIER_BYTES * i))])
        _plain(fl, "mbarrier_fence")


@lowers(ByteBarrierExpectOp)
def _expect(fl: FunctionLowering, op: ByteBarrierExpectOp) -> None:
    with _alone(fl):
        p.mbarrier_expect(op.bytes).emit(fl.w, [_barrier_address(fl, op.bars, op.index)])


@lowers(ByteBarrierWaitOp)
def _wait(fl: FunctionLowering, op: ByteBarrierWaitOp) -> None:
    _wait_for(fl, _barrier_address(fl, op.bars, op.index), fl.scalar(op.phase))
    if op.fence:
        _plain(fl, "proxy_fence_all")


@lowers(ByteBarrierArriveOp)
def _arrive(fl: FunctionLowering, op: ByteBarrierArriveOp) -> None:
    w, thread = fl.w, fl.thread
    _await_reads(fl, op)
    if op.fence:
        _plain(fl, "proxy_fence_all")
    elif op.proxy:
        fl.target.proxy_fence(w)
    with w.hoist():  # one thread for each block that is to know
        lanes = (GROUP_THREADS if op.groups else 32) - 1
        number = w.pure(f"and i32 {thread}, {lanes}")
        chosen = w.pure(f"icmp ult i32 {number}, {op.blocks}")
    if not op.groups:
        _plain(fl, "warp_sync")  # lanes that read by themselves are done too
    with w.when(w.and_("i1", chosen, fl.scalar(op.condition))):
        address = _barrier_address(fl, op.bars, op.index)
        if op.blocks > 1:
            _plain(fl, "mbarrier_arrive_in", address, number)
        else:
            _plain(fl, "mbarrier_arrive", address)


def _await_reads(fl: FunctionLowering, op: ByteBarrierArriveOp) -> None:
    """Go on when tiles that were read from shared memory have come."""
    w = fl.w
    words = [_low_word(fl, *came) for v in op.after for came in fl.readers[v].came]
    if words:
        met = words[0]
        for word in words[1:]:
            met = w.pure(f"xor i32 {met}, {word}")
        _plain(fl, "await_word", met, fl.scalar(op.bars))


def _low_word(fl: FunctionLowering, type: str, name: str) -> str:
    """32 bits that depend on a word."""
    w = fl.w
    if type in ("float", "double"):
        bits = 32 if type == "float" else 64
        type, name = f"i{bits}", w.pure(f"bitcast {type} {name} to i{bits}")
    if type == "i32":
        return name
    return w.pure(f"{'trunc' if type == 'i64' else 'zext'} {type} {name} to i32")


@lowers(TensorCopyOp)
def _copy(fl: FunctionLowering, op: TensorCopyOp) -> None:
    with _alone(fl):
        bar = _barrier_address(fl, op.bars, op.index)
        _load_boxes(fl, op, fl.scalar(op.shared), bar, op.blocks)


# --- teams --------------------------------------------------------------------------------------------------
@lowers(WarpSpecializeOp)
def _teams(fl: FunctionLowering, op: WarpSpecializeOp) -> None:
    """The other teams' warps come last, so that the consumers' threads keep their numbers. The producer has made the
    barriers ready, for which the others wait."""
    w, target = fl.w, fl.target
    threads = 32 * fl.num_warps
    everybody = threads + 32 * (op.warps + op.turning)
    thread = fl.thread
    group = target.shuffle_index(w, w.pure(f"lshr i32 {thread}, 5"), "0")  # the same in a warp
    producer, consumers, after = w.label("producer"), w.label("consumers"), w.label("together")
    if op.blocks > 1:  # others copy to our memory
        _plain(fl, "cluster_barrier")
    w.branch_if(w.pure(f"icmp uge i32 {group}, {fl.num_warps}"), producer, consumers)
    # The block's registers are those at its start: with a limit, or less than all, a request for more never ends.
    given = fl.products and not fl.extra_attributes
    small, large, turning = op.registers if given else (0, 0, 0)
    with w.scope():
        w.start(consumers)
        if op.blocks == 1:
            p.team_barrier(START_BARRIER, everybody).emit(w, [])
        if large:
            p.set_registers(True, large).emit(w, [])
        target.team = (TEAM_BARRIER, threads)  # type: ignore[attr-defined]
        fl.lower_block(op.consumers)
        target.team = None  # type: ignore[attr-defined]
        w.branch(after)
    if op.turning:
        turners, others = w.label("turners"), w.label("others")
        w.start(producer)
        w.branch_if(w.pure(f"icmp uge i32 {group}, {fl.num_warps + op.warps}"), turners, others)
        with w.scope():
            w.start(turners)
            if op.blocks == 1:
                p.team_barrier(START_BARRIER, everybody).emit(w, [])
            if turning:
                p.set_registers(False, turning).emit(w, [])
            with fl.smaller_team(op.turning):
                fl.lower_block(op.turners)
            w.branch(after)
        producer = others
    with w.scope():
        w.start(producer)
        if op.blocks == 1:
            p.team_arrive(START_BARRIER, everybody).emit(w, [])
        if small:
            p.set_registers(False, small).emit(w, [])
        first = w.pure(f"icmp eq i32 {group}, {fl.num_warps}")
        # Of an elected thread ptxas knows that it is one: else it makes a loop over threads of each copy.
        with w.when(first), w.when(w.pure(f"icmp ne i32 {_plain(fl, 'elect')}, 0")):
            fl.single = True
            fl.lower_block(op.producer)
            fl.single = False
        w.branch(after)
    w.start(after)
