"""Lowers ops on buffers in shared memory: allocation, views, loads, stores and asynchronous copies.

A buffer or view is one i32 address; its layout is in the type.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial, reduce

from tessera import ops
from tessera.analysis.axis import AxisAnalysis
from tessera.analysis.prefixes import conjuncts, prefix_width
from tessera.backends.gpu.access import Addresses, Reader, access_for, place_of, write
from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.memory import copies, groups, registers, vector_length
from tessera.backends.gpu.packing import pack, packed_shape
from tessera.backends.gpu.target import Access
from tessera.backends.gpu.types import memory_bits
from tessera.backends.gpu.writer import split
from tessera.errors import InternalError
from tessera.ir import Effect, Op, Value
from tessera.layout import LinearLayout, OffsetMap, images, offset_map
from tessera.layout.matrix_ops import union
from tessera.passes.gpu_loops.streams import fastest_dimension
from tessera.passes.neutral.fold import is_zero

ASYNC_BYTES = (16, 8, 4)  # sizes of one asynchronous copy


@lowers(ops.LocalAllocOp)
def _alloc(fl: FunctionLowering, op: ops.LocalAllocOp) -> None:
    if op.offset < 0:
        raise InternalError("local_alloc has no place in shared memory", loc=op.loc)
    base = fl.shared_base()
    with fl.w.hoist():
        fl.set(op.result, [fl.w.add("i32", base, str(op.offset))])
    if op.init is not None:
        _store_tile(fl, op.init, op.result)


@lowers(ops.LocalIndexOp)
def _index(fl: FunctionLowering, op: ops.LocalIndexOp) -> None:
    w = fl.w
    step = w.mul("i32", fl.scalar(op.index), str(op.result.type.slot_bytes))
    fl.set(op.result, [w.add("i32", fl.scalar(op.ring), step)])


@lowers(ops.LocalTransOp)
def _trans(fl: FunctionLowering, op: ops.LocalTransOp) -> None:
    fl.set(op.result, fl.get(op.x))


@lowers(ops.LocalLoadOp)
def _load(fl: FunctionLowering, op: ops.LocalLoadOp) -> None:
    t = op.result.type
    matrix = fl.target.facts().has_ldmatrix
    access = access_for(t.layout, op.shared.type.layout, memory_bits(t.elem), matrix)
    reader = fl.readers[op.result] = Reader(fl, t.elem, access, place_of(fl, op.shared))
    if can_wait(op):
        fl.deferred[op.result] = reader
        return
    out = [""] * t.layout.size("register")
    for i in range(len(access.groups)):
        reader.group(i, out)
    fl.set(op.result, copies(t.layout, out))


def can_wait(op: ops.LocalLoadOp) -> bool:
    """Whether the matrix instruction that uses this tile may read it piece by piece, so that few registers hold it.

    No op in between may touch shared memory, since the buffer may be dead by then.
    """
    users = [u for u in op.result.users() if not isinstance(u, ops.MbarrierArriveOp)]
    if len(users) != 1 or not _reads_pieces(users[0]):
        return False
    following = op.next
    while following is not None and following is not users[0]:
        disturbing = following.effects & (Effect.WRITE | Effect.SYNC) or following.regions
        if disturbing or "scratch" in following.attrs or isinstance(following, ops.LocalAllocOp):
            return False
        following = following.next
    return following is not None


def _reads_pieces(op: Op) -> bool:
    if isinstance(op, ops.DotOp):
        return op.in_place
    return isinstance(op, ops.MmaOp) and op.a is not op.b


@lowers(ops.LocalStoreOp)
def _store(fl: FunctionLowering, op: ops.LocalStoreOp) -> None:
    _store_tile(fl, op.value, op.shared)


def _store_tile(fl: FunctionLowering, value: Value, view: Value) -> None:
    t = value.type
    matrix = fl.target.facts().has_stmatrix
    access = access_for(t.layout, view.type.layout, memory_bits(t.elem), matrix)
    write(fl, t.elem, access, place_of(fl, view), fl.get(value), warp_owner(fl, t.layout))


def warp_owner(fl: FunctionLowering, layout: LinearLayout) -> str:
    """Return an i1: this warp holds the first copies. Copies in other lanes are harmless: they write one word at
    once."""
    free = layout.free_masks().get("warp", 0)
    if not free:
        return "true"
    thread = fl.thread
    with fl.w.hoist():
        bits = fl.w.pure(f"and i32 {thread}, {free << 5}")
        return fl.w.pure(f"icmp eq i32 {bits}, 0")


# --- asynchronous copies -------------------------------------------------------------------------------------
@lowers(ops.AsyncCopyOp)
def _copy(fl: FunctionLowering, op: ops.AsyncCopyOp) -> None:
    elem, layout = op.shared.type.elem, op.ptr.type.layout
    size = memory_bits(elem) // 8
    offsets = offset_map(layout, op.shared.type.layout)
    vec = copy_length(fl.axis, op)
    place = place_of(fl, op.shared)
    addresses = Addresses(fl, place, size, offsets.lane, offsets.warp)
    at = images(offsets.register)
    zeros = op.other is not None and is_zero(op.other)  # what copies write where they do not read
    copy = _copy_partly if op.partial and op.mask is not None else _copy_later
    if op.private and vec * size in ASYNC_BYTES and not zeros:
        copy = _copy_own
    elif (op.other is not None and not zeros) or vec * size not in ASYNC_BYTES:
        copy = _copy_now
    copy(fl, op, vec, addresses, at)
    fl.set(op.result, [])


def copy_length(axis: AxisAnalysis, op: ops.AsyncCopyOp) -> int:
    """Return the elements of one copy: registers that are adjacent in both memories, under one mask or, if the copy is
    `partial`, under masks that end once."""
    elem = op.shared.type.elem
    width = prefix_width if op.partial else AxisAnalysis.mask_width
    run = straight_run(offset_map(op.ptr.type.layout, op.shared.type.layout))
    most = max(ASYNC_BYTES) * 8 // memory_bits(elem)
    return min(vector_length(axis, op.ptr, op.mask, elem, width), run, most)


def _masks(fl: FunctionLowering, op: ops.AsyncCopyOp, count: int) -> tuple[list[str], str]:
    """Return the masks of what is copied, and the condition under which anything is written.

    A branch around the copies would cost registers: rows of 8192 by 16 warps took 72 instead of 64."""
    masks = registers(fl, op.mask, count)
    if op.runs is None:
        return masks, "true"
    runs = fl.get(op.runs)[0]
    return [_both(fl, m, runs) for m in masks], runs


def _both(fl: FunctionLowering, a: str, b: str) -> str:
    if "true" in (a, b):
        return b if a == "true" else a
    return fl.w.pure(f"and i1 {a}, {b}")


def _copy_later(
    fl: FunctionLowering, op: ops.AsyncCopyOp, vec: int, addresses: Addresses, at: list[int]
) -> None:
    w, layout, pointers = fl.w, op.ptr.type.layout, fl.get(op.ptr)
    size = vec * memory_bits(op.shared.type.elem) // 8
    masks, _ = _masks(fl, op, len(pointers))
    access = Access(size * 8, 1, op.cache, op.eviction)
    owner = fl.owner_mask(layout)
    with nullcontext() if owner == "true" else w.when(owner):
        for i in groups(layout, len(pointers), vec):
            source = split(w.offsets, pointers[i])
            fl.target.async_copy(w, addresses.at(at[i]), source, size, masks[i], access)


def _copy_partly(
    fl: FunctionLowering, op: ops.AsyncCopyOp, vec: int, addresses: Addresses, at: list[int]
) -> None:
    """Copy vectors of which the mask may hold for the first elements alone.

    What holds for a whole vector is kept apart: rows then share the number of bytes that their columns give."""
    assert op.mask is not None
    w, layout, pointers = fl.w, op.ptr.type.layout, fl.get(op.ptr)
    elem, dim = op.shared.type.elem, fastest_dimension(layout)
    size = memory_bits(elem) // 8
    whole, ending = list[list[str]](), list[list[str]]()
    for part in conjuncts(op.mask):
        kind = whole if fl.axis.mask_width(part, dim) >= vec else ending
        kind.append(registers(fl, part, len(pointers)))
    owner = fl.owner_mask(layout)
    access = Access(vec * size * 8, 1, op.cache, op.eviction)
    with nullcontext() if owner == "true" else w.when(owner):
        for i in groups(layout, len(pointers), vec):
            held = [
                reduce(partial(_both, fl), (m[k] for m in ending), "true")
                for k in range(i, i + vec)
            ]
            parts = [w.pure(f"select i1 {m}, i32 {size}, i32 0") for m in held]
            read = reduce(lambda x, y: w.pure(f"add i32 {x}, {y}"), parts)
            for mask in whole:
                if mask[i] != "true":
                    read = w.pure(f"select i1 {mask[i]}, i32 {read}, i32 0")
            source = split(w.offsets, pointers[i])
            fl.target.async_copy(
                w, addresses.at(at[i]), source, vec * size, "true", access, read=read
            )


def _copy_own(
    fl: FunctionLowering, op: ops.AsyncCopyOp, vec: int, addresses: Addresses, at: list[int]
) -> None:
    """Copy what only this thread reads: where the mask is false, store the `other` value instead of copying."""
    w, elem, layout, pointers = fl.w, op.shared.type.elem, op.ptr.type.layout, fl.get(op.ptr)
    size = vec * memory_bits(elem) // 8
    wanted = registers(fl, op.mask, len(pointers))
    masks, runs = _masks(fl, op, len(pointers))
    others = registers(fl, op.other, len(pointers)) if op.other is not None else []
    shape = packed_shape(elem, vec)
    access = Access(size * 8, 1, op.cache, op.eviction)
    for i in groups(layout, len(pointers), vec):
        source = split(w.offsets, pointers[i])
        to = addresses.at(at[i])
        if masks[i] != "false":
            fl.target.async_copy(w, to, source, size, masks[i], access, skip=True)
    for i in groups(layout, len(pointers), vec) if others else []:
        if wanted[i] != "true":
            to = addresses.at(at[i])
            off = _both(fl, w.pure(f"xor i1 {wanted[i]}, true"), runs)
            regs = pack(fl, elem, others[i : i + vec], shape)
            fl.target.store_shared(w, to, shape, regs, off)


def straight_run(offsets: OffsetMap) -> int:
    """Return n such that registers i..i+n-1 (n divides i) are adjacent in shared memory, in order and aligned."""
    bits = 0
    while bits < len(offsets.register) and offsets.register[bits] == 1 << bits:
        bits += 1
    others = union((*offsets.register[bits:], *offsets.lane, *offsets.warp))
    while bits and others & ((1 << bits) - 1):
        bits -= 1
        others |= 1 << bits
    return 1 << bits


def _copy_now(
    fl: FunctionLowering, op: ops.AsyncCopyOp, vec: int, addresses: Addresses, at: list[int]
) -> None:
    """Copy through registers: pieces below 4 bytes, and tiles whose masked elements are not zero."""
    w, elem, layout = fl.w, op.shared.type.elem, op.ptr.type.layout
    pointers, owner = fl.get(op.ptr), fl.owner_mask(layout)
    masks, runs = _masks(fl, op, len(pointers))
    owner = _both(fl, owner, runs)
    others = registers(fl, op.other, len(pointers)) if op.other is not None else []
    shape = packed_shape(elem, vec)
    access = Access(shape.bits, shape.count, op.cache, op.eviction)
    for i in groups(layout, len(pointers), vec):
        other = pack(fl, elem, others[i : i + vec], shape) if others else []
        source = split(w.offsets, pointers[i])
        regs = fl.target.load_global(w, source, access, shape.type, masks[i], other)
        fl.target.store_shared(w, addresses.at(at[i]), shape, regs, owner)


@lowers(ops.AsyncCommitOp)
def _commit(fl: FunctionLowering, op: ops.AsyncCommitOp) -> None:
    fl.target.async_commit(fl.w)
    fl.set(op.result, [])


@lowers(ops.AsyncWaitOp)
def _wait(fl: FunctionLowering, op: ops.AsyncWaitOp) -> None:
    fl.target.async_wait(fl.w, op.pending)
    if op.private:
        fl.set(op.result, [])
        return
    if op.attrs.get("proxy"):
        fl.target.proxy_fence(fl.w)
    fl.target.barrier(fl.w)
    fl.set(op.result, [])
