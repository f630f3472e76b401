"""Makes layouts of tiles in shared memory and addresses into them, and counts bank conflicts exactly.

A shared layout maps the bits of an element offset to coordinates.  The hardware swizzle XORs bits 4.. of the byte
address with bits 7.. (3 bits for 128 B, 2 for 64 B, 1 for 32 B), an involution on offsets; composing it with the plain
order of boxes gives exactly what TMA writes and what wgmma and ldmatrix read.

Address of an element: inverse(shared) after distributed, a linear map (register, lane, warp) -> offset.  Lanes and
warps need an XOR of a few masks once; a register adds a constant.  If the constant has no bit in common with any
lane or warp contribution, the XOR is an addition, and becomes the immediate of the load.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .coords import unit_columns
from .linear import LinearLayout, inverse_columns
from .matrix_ops import Columns, Echelon, LayoutError, apply, compose, images, log2, union

__all__ = [
    "OffsetMap", "VectorGroup", "bank_conflicts", "max_vector", "offset_map", "shared_linear", "shared_swizzled",
    "turned_lanes", "vector_groups", "wavefronts", "widest_swizzle",
]  # fmt: skip

BANKS = 32  # of shared memory (CUDA, "Shared Memory")
BANK_BYTES = 4  # served by a bank at a time
LINE_BITS = BANKS * BANK_BYTES * 8
"""Bits of one row over all banks."""
MAX_VECTOR_BITS = 128  # of the widest access of a thread
ROW_BITS = 128
"""Bits of a row of an 8x8 matrix of ldmatrix."""


@lru_cache(maxsize=512)
def shared_linear(shape: tuple[int, ...], order: tuple[int, ...]) -> LinearLayout:
    """Return the plain order in shared memory: dim order[0] fastest, no swizzle."""
    unit = unit_columns(shape)
    return LinearLayout.packed(shape, {"offset": [c for dim in order for c in unit[dim]]})


@lru_cache(maxsize=512)
def shared_swizzled(
    shape: tuple[int, ...], order: tuple[int, ...], elem_bits: int, swizzle_bytes: int
) -> LinearLayout:
    """Boxes of `swizzle_bytes` (128, 64, 32) along dim order[0] times all rows of order[1], with the hardware's XOR.

    16 is wgmma's unswizzled form: boxes of 16 bytes.  0 is plain order in one box.  Boxes are adjacent along
    order[0]; further dims (batch, stage) are slowest.  The tile must start at a multiple of 8 * swizzle_bytes.
    Raises LayoutError if order[0] is narrower than the box.
    """
    if swizzle_bytes == 0:
        return shared_linear(shape, order)
    phases = {128: 3, 64: 2, 32: 1, 16: 0}.get(swizzle_bytes)
    if phases is None:
        raise LayoutError(f"swizzle of {swizzle_bytes} bytes; known: 128, 64, 32, 16 and 0")
    if shape[order[0]] * elem_bits < swizzle_bytes * 8:
        raise LayoutError(
            f"{shape[order[0]]} elements of {elem_bits} bits are narrower than a swizzle of {swizzle_bytes} bytes"
        )
    unit = unit_columns(shape)
    inner = unit[order[0]]
    width = log2(swizzle_bytes * 8 // elem_bits)
    plain = inner[:width] + (unit[order[1]] if len(order) > 1 else []) + inner[width:]
    plain += [c for dim in order[2:] for c in unit[dim]]
    chunk = log2(16 * 8 // elem_bits)
    swizzled = list(plain)
    for i in range(phases):
        if chunk + 3 + i < len(plain):
            swizzled[chunk + 3 + i] ^= plain[chunk + i]
    return LinearLayout.packed(shape, {"offset": swizzled})


def widest_swizzle(shape: tuple[int, ...], order: tuple[int, ...], elem_bits: int) -> int:
    """Return the largest of 128, 64, 32, 16 bytes that dim order[0] fills, 0 if it is narrower than 16 bytes."""
    row_bytes = shape[order[0]] * elem_bits // 8
    return next((w for w in (128, 64, 32, 16) if w <= row_bytes), 0)


@dataclass(frozen=True, slots=True)
class OffsetMap:
    """Element offset of each holder: XOR of the columns of the set bits of register, lane and warp."""

    register: Columns
    lane: Columns
    warp: Columns

    @property
    def thread_mask(self) -> int:
        """Offset bits that lanes or warps may set."""
        return union(self.lane + self.warp)

    def offset(self, register: int, lane: int, warp: int) -> int:
        return apply(self.register, register) ^ apply(self.lane, lane) ^ apply(self.warp, warp)


@lru_cache(maxsize=1024)
def offset_map(dist: LinearLayout, shared: LinearLayout) -> OffsetMap:
    """Return the offsets in `shared` of the elements of `dist`; both have the same shape, `shared` is bijective."""
    if dist.shape != shared.shape:
        raise LayoutError(f"shapes differ: {list(dist.shape)} and {list(shared.shape)}")
    if dist.bits("block"):
        raise LayoutError("a tile spread over the CTAs of a cluster has no single shared memory")
    inverse = inverse_columns(shared)
    return OffsetMap(
        compose(inverse, dist.columns("register")),
        compose(inverse, dist.columns("lane")),
        compose(inverse, dist.columns("warp")),
    )


@dataclass(frozen=True, slots=True)
class VectorGroup:
    """Registers of the elements from b ^ `offset` on, one after the other, where b is the thread's base."""

    registers: tuple[int, ...]
    offset: int


def max_vector(offsets: OffsetMap, elem_bits: int, limit_bits: int = MAX_VECTOR_BITS) -> int:
    """Return the widest vector, in elements, that each thread can access: registers cover it and it is aligned."""
    registers = Echelon(offsets.register)
    threads = offsets.thread_mask
    bits = 0
    while (2 << bits) * elem_bits <= limit_bits and registers.contains(1 << bits):
        if (threads >> bits) & 1:
            break
        bits += 1
    return 1 << bits


def vector_groups(offsets: OffsetMap, vec: int) -> tuple[VectorGroup, ...]:
    """Return the accesses of `vec` elements that cover all registers once, without copies; `vec` from `max_vector`."""
    slots: dict[int, list[int]] = {}
    for register, offset in enumerate(images(offsets.register)):
        group = slots.setdefault(offset & -vec, [-1] * vec)
        if group[offset & (vec - 1)] < 0:
            group[offset & (vec - 1)] = register
    if any(-1 in group for group in slots.values()):
        raise LayoutError(f"the registers do not fill vectors of {vec} elements")
    return tuple([VectorGroup(tuple(group), base) for base, group in slots.items()])


def count_wavefronts(lane_offsets: list[int], elem_bits: int, vec: int) -> int:
    """Return the passes of shared memory for one access: element offset of each lane, `vec` elements each.

    16-byte accesses are served by quarter warps, 8-byte ones by half warps, narrower ones at once; in a pass each bank
    serves one 4-byte word, which any number of lanes may access.
    """
    access_bytes = max(vec * elem_bits // 8, 1)
    per_pass = BANKS * BANK_BYTES // max(access_bytes, BANK_BYTES)
    passes = 0
    for start in range(0, len(lane_offsets), per_pass):
        words: set[int] = set()
        for offset in lane_offsets[start : start + per_pass]:
            first = offset * elem_bits // 8
            words.update(range(first // BANK_BYTES, (first + access_bytes - 1) // BANK_BYTES + 1))
        load = [0] * BANKS
        for word in words:
            load[word % BANKS] += 1
        passes += max(load)
    return passes


def wavefronts(offsets: OffsetMap, elem_bits: int, vec: int) -> int:
    """Count the passes of one vector access of a warp. Other registers and warps XOR the offsets by a constant, which
    permutes the banks, so every access of the plan costs the same."""
    return count_wavefronts(images(offsets.lane), elem_bits, vec)


def bank_conflicts(dist: LinearLayout, shared: LinearLayout, elem_bits: int, vec: int) -> int:
    """Return the extra passes per vector access of a warp, 0 without bank conflicts."""
    offsets = offset_map(dist, shared)
    ideal = max(1, len(images(offsets.lane)) * vec * elem_bits // LINE_BITS)
    return max(0, wavefronts(offsets, elem_bits, vec) - ideal)


def turned_lanes(
    dist: LinearLayout, shared: LinearLayout, elem_bits: int, within: int
) -> tuple[LinearLayout, list[tuple[int, int]]]:
    """Permute registers so that the lanes of a warp use different banks: after the turn (b, r), lanes with bit b set
    hold in register i what they held in register i ^ 2^r. Return the layout afterwards, and the turns. `within`:
    elements of a buffer that a turn must not leave.

    Example: rows of 128 bytes swizzled by 16, an fp32 accumulator: lanes 0-3 and 4-7 write 32 bytes of two rows to the
    same banks, as the swizzle only swaps their halves. If every other row begins with another register, they differ.
    """
    offsets = offset_map(dist, shared)
    vec, turns = max_vector(offsets, elem_bits), list[tuple[int, int]]()
    conflicts = bank_conflicts(dist, shared, elem_bits, vec)
    registers, lanes = dist.columns("register"), len(dist.columns("lane"))
    choices = [
        (b, r)
        for r, offset in enumerate(offsets.register)
        for b in range(lanes)
        if vec <= offset < within
    ]
    while conflicts:
        found: list[tuple[int, tuple[int, int], LinearLayout]] = []
        for b, r in choices:
            columns = list(dist.columns("lane"))
            columns[b] ^= registers[r]
            other = dist.map_columns("lane", columns)
            if max_vector(offset_map(other, shared), elem_bits) == vec:
                found.append((bank_conflicts(other, shared, elem_bits, vec), (b, r), other))
        if not found or (best := min(found, key=lambda x: x[0]))[0] >= conflicts:
            break
        conflicts, turn, dist = best
        turns.append(turn)
    return dist, turns
