"""Moves the registers of a tile to and from shared memory by the accesses that the layout algebra found.

All groups of one access share a few bases: the thread's offset xor those constant bits that threads set too, computed
once. The rest of a group's constant goes into the instruction as an immediate offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tessera.backends.gpu.lowering import FunctionLowering
from tessera.backends.gpu.packing import PackedShape, pack, packed_shape, unpack
from tessera.backends.gpu.types import memory_bits
from tessera.backends.gpu.writer import split
from tessera.ir import ElementType, Value
from tessera.layout import Access, LinearLayout, MatrixAccess, offset_map
from tessera.layout.access import best_access
from tessera.layout.matrix_ops import union
from tessera.ops import LocalAllocOp, LocalIndexOp, SharedView

BASE_ALIGNMENT = 1024  # of the program's shared memory


class SharedPlace:
    """Where a tile starts in shared memory: an i32 address, `fixed` if it does not depend on a value of the program,
    and a power of two that divides it."""

    __slots__ = ("address", "alignment", "fixed")

    def __init__(self, address: str, fixed: bool, alignment: int):
        self.address, self.fixed, self.alignment = address, fixed, alignment


def fixed_place(fl: FunctionLowering, offset: int) -> SharedPlace:
    """Return the place at a byte offset of the program's shared memory."""
    base = fl.shared_base()
    with fl.w.hoist():
        return SharedPlace(fl.w.add("i32", base, str(offset)), True, _divisor(offset))


def place_of(fl: FunctionLowering, view: Value) -> SharedPlace:
    """Return the place of a buffer or of a view of one."""
    fixed, alignment, op = True, BASE_ALIGNMENT, view.op
    while isinstance(op, SharedView):
        if isinstance(op, LocalIndexOp):
            fixed = False
            alignment = min(alignment, _divisor(op.result.type.slot_bytes))
        op = op.operands[0].op
    if not isinstance(op, LocalAllocOp):
        return SharedPlace(fl.scalar(view), False, 1)
    return SharedPlace(fl.scalar(view), fixed, min(alignment, _divisor(op.offset)))


def _divisor(offset: int) -> int:
    """Return the largest power of two, up to the alignment of all shared memory, that divides an offset."""
    return (offset | BASE_ALIGNMENT) & -(offset | BASE_ALIGNMENT)


class Addresses:
    """Computes (base, immediate) of constant offsets, for thread columns given in elements of `size` bytes."""

    __slots__ = ("_bases", "_columns", "_fl", "_mask", "_place", "_size")

    def __init__(
        self,
        fl: FunctionLowering,
        place: SharedPlace,
        size: int,
        lane: Sequence[int],
        warp: Sequence[int],
    ):
        self._fl, self._place, self._size = fl, place, size
        self._columns = fl.thread_columns([c * size for c in lane], [c * size for c in warp])
        self._mask = union(self._columns)
        self._bases: dict[int, tuple[str, int]] = {}

    def at(self, offset: int) -> tuple[str, int]:
        constant = offset * self._size
        met = constant & self._mask
        found = self._bases.get(met)
        if found is None:
            found = self._bases[met] = self._base(met)
        return found[0], found[1] + (constant ^ met)

    def _base(self, met: int) -> tuple[str, int]:
        w, place = self._fl.w, self._place
        own = self._fl.thread_sum(self._columns)
        if not own:
            return split(w.offsets, place.address)
        if 0 < met < place.alignment:
            # The start has none of these bits: one base serves all, and an xor costs what an addition would.
            base, constant = self._base(0)
            return w.pure(f"xor i32 {base}, {met}"), constant
        with w.hoist():
            if met:
                own = w.pure(f"xor i32 {own}, {met}")
            if place.fixed:
                return split(w.offsets, w.add("i32", place.address, own))
        return split(w.offsets, w.add("i32", place.address, own))


@lru_cache(maxsize=1024)
def access_for(dist: LinearLayout, shared: LinearLayout, bits: int, matrix: bool) -> Access:
    """Return the cheapest access between registers in `dist` and memory in `shared`; `matrix`: ldmatrix/stmatrix
    exist."""
    return best_access(offset_map(dist, shared), bits, matrix)


def _matrix_reg32(elem: ElementType) -> PackedShape:
    return PackedShape("i32", 32, 1, 32 // memory_bits(elem))


def flipped(fl: FunctionLowering, regs: list[str], access: MatrixAccess) -> list[str]:
    """Return the registers of a group in order, where the order depends on the lane."""
    for bit, mask in access.flips:
        lane = fl.lane
        with fl.w.hoist():
            here = fl.w.pure(f"and i32 {lane}, {1 << bit}")
            here = fl.w.pure(f"icmp ne i32 {here}, 0")
        regs = [
            fl.w.pure(f"select i1 {here}, i32 {regs[i ^ mask]}, i32 {x}")
            for i, x in enumerate(regs)
        ]
    return regs


def write(
    fl: FunctionLowering,
    elem: ElementType,
    access: Access,
    place: SharedPlace,
    names: Sequence[str],
    mask: str = "true",
) -> None:
    """Write registers to shared memory; `mask` (the same for all lanes of a warp) leaves out writers of copies."""
    addresses = Addresses(fl, place, memory_bits(elem) // 8, access.lane, access.warp)
    if isinstance(access, MatrixAccess):
        reg = _matrix_reg32(elem)
        for group in access.groups:
            at = addresses.at(group.offset)
            regs = [pack(fl, elem, [names[r] for r in rs], reg)[0] for rs in group.reg32]
            regs = flipped(fl, regs, access)
            fl.target.store_matrix(fl.w, at, regs, access.trans)
        return
    shape = packed_shape(elem, access.vec)
    for vector in access.groups:
        at = addresses.at(vector.offset)
        regs = pack(fl, elem, [names[r] for r in vector.registers], shape)
        fl.target.store_shared(fl.w, at, shape, regs, mask)


def read(
    fl: FunctionLowering, elem: ElementType, access: Access, place: SharedPlace, out: list[str]
) -> None:
    """Read shared memory to registers: fill those entries of `out` that the access covers (copies are left alone)."""
    reader = Reader(fl, elem, access, place)
    for i in range(len(access.groups)):
        reader.group(i, out)


class Reader:
    """Reads the groups of an access one by one. `came`: one register of each instruction, with its type."""

    __slots__ = ("_addresses", "_elem", "_fl", "_shape", "access", "came")

    def __init__(self, fl: FunctionLowering, elem: ElementType, access: Access, place: SharedPlace):
        self._fl, self._elem, self.access = fl, elem, access
        self._addresses = Addresses(fl, place, memory_bits(elem) // 8, access.lane, access.warp)
        matrix = isinstance(access, MatrixAccess)
        self._shape = _matrix_reg32(elem) if matrix else packed_shape(elem, access.vec)
        self.came: list[tuple[str, str]] = []

    def group(self, number: int, out: list[str]) -> None:
        fl, access, shape = self._fl, self.access, self._shape
        at = self._addresses.at(access.groups[number].offset)
        if isinstance(access, MatrixAccess):
            regs = fl.target.load_matrix(fl.w, at, access.count, access.trans)
            self.came.append((shape.type, regs[0]))
            regs = flipped(fl, regs, access)
        else:
            regs = fl.target.load_shared(fl.w, at, shape)
            self.came.append((shape.type, regs[0]))
        for r, name in zip(
            self.registers(number), unpack(fl, self._elem, regs, shape), strict=True
        ):
            out[r] = name

    def registers(self, number: int) -> Sequence[int]:
        """Return the registers that group `number` fills."""
        if isinstance(self.access, MatrixAccess):
            return [r for reg in self.access.groups[number].reg32 for r in reg]
        return self.access.groups[number].registers
