"""Lowers copies between arrays and shared memory by the TMA unit.

One thread starts the copies of all boxes of a block; their bytes are counted by an mbarrier in shared memory. A stored
tile goes box by box through a few buffers in shared memory: while the TMA unit reads one, the next is
written. Threads write through the generic proxy and the TMA unit reads through the async one, so a fence is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tessera.analysis.scratch import Staging, staging
from tessera.backends.gpu.access import Reader, access_for, fixed_place, write
from tessera.backends.gpu.local import warp_owner
from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.memory import copies
from tessera.backends.gpu.types import llvm_type, memory_bits
from tessera.backends.nvidia import primitives as p
from tessera.backends.nvidia.mbarrier import (
    WARPGROUP_THREADS,
    mbarrier_address,
    single_thread,
    spin,
)  # fmt: skip
from tessera.ir import TileType, Value
from tessera.layout import Boxes, LinearLayout, MatrixAccess, box_layout, turned_lanes
from tessera.ops import DescriptorLoadOp, DescriptorStoreOp, MakeDescriptorOp, TensorCopyOp
from tessera.passes.gpu_movement.tensor_maps import access_boxes

GROUP_BARRIER = 9  # the first of the named barriers reserved for warpgroups


# --- descriptors --------------------------------------------------------------------------------------------
@lowers(MakeDescriptorOp)
def _descriptor(fl: FunctionLowering, op: MakeDescriptorOp) -> None:
    fl.set(op.result, [""])  # its accesses name their maps


def _coordinates(fl: FunctionLowering, offsets: Sequence[Value], start: Sequence[int]) -> list[str]:
    """Return the coordinates of a box, the contiguous dimension first."""
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
    fl: FunctionLowering, op: DescriptorLoadOp | TensorCopyOp, address: str, bar: str, ctas: int
) -> None:
    """Copy all boxes; with several `ctas`, those of this CTA's share, to all of them."""
    boxes = access_boxes(op, fl.num_warps)
    w, size = fl.w, boxes.elements * op.desc.type.elem.storage_bytes
    row = p.tensor_load(len(boxes.box), ctas)
    mine = len(boxes.starts) // ctas
    first = ["0"] * len(boxes.box)
    mask: list[str] = []
    if ctas > 1:
        first = _first_of_share(fl, boxes, ctas)
        with w.hoist():
            rank = fl.target.cta_rank(w)
            offset = w.pure(f"mul i32 {rank}, {mine * size}")
        address = w.add("i32", address, offset)
        mask = [str((1 << ctas) - 1)]
    for i, start in enumerate(boxes.starts[:mine]):
        to = w.add("i32", address, str(i * size))
        at = _coordinates(fl, op.offsets, start)
        at = [w.add("i32", x, by) for x, by in zip(at, reversed(first), strict=True)]
        row.emit(w, [to, f"%map{op.attrs['map']}", bar, *at, *mask])


def _first_of_share(fl: FunctionLowering, boxes: Boxes, ctas: int) -> list[str]:
    """Return the coordinates of the first box of this CTA's share: a sum over the bits of the CTA's rank."""
    w, mine = fl.w, len(boxes.starts) // ctas
    with w.hoist():
        rank, first = fl.target.cta_rank(w), ["0"] * len(boxes.box)
        for bit in range(ctas.bit_length() - 1):
            one = w.pure(f"and i32 {w.pure(f'lshr i32 {rank}, {bit}')}, 1")
            for d, by in enumerate(boxes.starts[mine << bit]):
                if by:
                    first[d] = w.add("i32", first[d], w.pure(f"mul i32 {one}, {by}"))
    return first


@lowers(DescriptorLoadOp)
def _load(fl: FunctionLowering, op: DescriptorLoadOp) -> None:
    """Load through scratch, with an mbarrier of its own, since nothing else runs meanwhile."""
    t: Any = op.result.type
    bits = memory_bits(t.elem)
    shared = box_layout(t.shape, bits)
    assert shared is not None
    size = t.numel * bits // 8
    start: int = op.attrs["scratch"]
    place, bar = fixed_place(fl, start), fixed_place(fl, start + size).address
    with single_thread(fl):
        p.mbarrier_init(1).emit(fl.w, [bar])
        p.emit_primitive(fl.w, "mbarrier_fence")
        p.emit_primitive(fl.w, "proxy_fence_all")
        p.mbarrier_expect(size).emit(fl.w, [bar])
        _load_boxes(fl, op, place.address, bar, 1)
    fl.target.barrier(fl.w)
    spin(fl, bar, "0")
    access = access_for(t.layout, shared, bits, fl.target.facts().has_ldmatrix)
    reader = Reader(fl, t.elem, access, place)
    out = [""] * t.layout.size("register")
    for i in range(len(access.groups)):
        reader.group(i, out)
    fl.target.barrier(fl.w)
    with single_thread(fl):
        p.emit_primitive(fl.w, "mbarrier_inval", bar)
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
            p.emit_primitive(fl.w, "bulk_commit")
    _settle(fl, bool(op.attrs.get("synchronous")))


def _group(fl: FunctionLowering) -> str:
    """Return the number of this thread's warpgroup."""
    warp = fl.warp
    with fl.w.hoist():
        return fl.target.shuffle_index(fl.w, fl.w.pure(f"lshr i32 {warp}, 2"), "0")


def _elected(fl: FunctionLowering, groups: int) -> Any:
    """Return a context for code that one thread of each group runs, or one of all."""
    return fl.w.when(_first_of_group(fl)) if groups else single_thread(fl)


def _first_of_group(fl: FunctionLowering) -> str:
    thread = fl.thread
    with fl.w.hoist():
        return fl.w.pure(
            f"icmp eq i32 {fl.w.pure(f'and i32 {thread}, {WARPGROUP_THREADS - 1}')}, 0"
        )


def _meet(fl: FunctionLowering, groups: int, group: str) -> None:
    if not groups:
        fl.target.barrier(fl.w)
        return
    number = fl.w.add("i32", group, str(GROUP_BARRIER))
    p.group_barrier(WARPGROUP_THREADS).emit(fl.w, [number])


def _apart(
    fl: FunctionLowering, t: TileType, how: Staging, names: list[str]
) -> tuple[LinearLayout, list[str]]:
    """Return a tile in registers such that its lanes write to different banks."""
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
    """Return the groups of an access that write certain boxes, into a ring of buffers."""
    chosen = [g for g in access.groups if g.offset // elements in members]
    moved = [
        replace(g, offset=g.offset % elements + g.offset // elements % buffers * elements)
        for g in chosen
    ]
    return replace(access, groups=tuple(moved))


def _settle(fl: FunctionLowering, now: bool) -> None:
    """Keep shared memory until the TMA unit has read it; with `now`, wait until the data are in global memory."""
    if now:
        with fl.w.when(_first_of_group(fl)):
            p.bulk_wait(0, read=False).emit(fl.w, [])
            p.emit_primitive(fl.w, "proxy_fence_all")
        fl.target.barrier(fl.w)
        return

    def finish() -> None:
        with fl.w.when(_first_of_group(fl)):
            p.bulk_wait(0, read=True).emit(fl.w, [])

    fl.at_end["tensor stores"] = finish


# --- copies in the background -----------------------------------------------------------------------------------
@lowers(TensorCopyOp)
def _copy(fl: FunctionLowering, op: TensorCopyOp) -> None:
    with single_thread(fl):
        bar = mbarrier_address(fl, op.bars, op.index)
        _load_boxes(fl, op, fl.scalar(op.shared), bar, op.ctas)
