"""Plans how a warp accesses a distributed tile in shared memory: by vectors, or by ldmatrix/stmatrix and .trans.

ldmatrix (b16) reads 8x8 matrices whose rows are 16 contiguous bytes at an address given by one lane each; lane l
gets piece l & 3 of row l >> 2 in a 32-bit register.  In offsets, with W elements in 32 bits: the register bits within
32 bits are 1..W/2, lane bits 0 and 1 are W and 2W, lane bits 2..4 pick the row and may be any multiple of 16 bytes.
With .trans (16-bit elements) lane l gets elements (2(l&3), l>>2) and (2(l&3)+1, l>>2): lane bits 2..4 are the offsets
1, 2, 4, and the register of a pair together with lane bits 0 and 1 picks the row.  8-bit elements move in pairs of
neighbours: a register bit is offset 1, lane bits 2..4 are 2, 4, 8, another register bit picks the row.  x2 and x4 take
one or two more register bits; lane l then supplies the address of row l & 7 of matrix l >> 3, again a linear map of the
lane.

Rows with the same banks are distributed over the matrices of one instruction: a lane bit that picks a row is added
to a register bit that picks a matrix, so that lanes with that bit find what belongs to matrix j in register j ^ mask
(`flips`), and reorder the registers by selects.  E.g. 8-bit elements [K, M], M contiguous in a swizzle of 128 bytes,
as registers of four along K: lane bits 0 and 1 are rows 4 and 8 of K, the pair's register is row 1, and row 8 has the
banks of row 0; with the register of row 2 added to it, the eight rows are in eight different banks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .linear import LinearLayout
from .matrix_ops import Columns, Echelon, LayoutError, apply, images, log2, union
from .shared import (
    LINE_BITS,
    ROW_BITS,
    OffsetMap,
    VectorGroup,
    count_wavefronts,
    max_vector,
    offset_map,
    vector_groups,
)

__all__ = [
    "Access", "MatrixAccess", "MatrixGroup", "VectorAccess", "ldmatrix_plan", "matrix_access", "stmatrix_plan",
    "vector_access",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class MatrixGroup:
    """One ldmatrix or stmatrix: its constant offset in elements, and for each of its 32-bit registers the tile's
    registers that it holds, lowest first."""

    offset: int
    reg32: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class VectorAccess:
    """Every thread reads or writes `vec` elements at offset(lane, warp) ^ group.offset."""

    vec: int
    lane: Columns
    warp: Columns
    groups: tuple[VectorGroup, ...]
    wavefronts: int
    """Shared-memory passes of one warp for one group."""

    @property
    def thread_mask(self) -> int:
        """Offset bits that lanes or warps may set: other bits of a group's offset are an added immediate."""
        return union(self.lane + self.warp)


@dataclass(frozen=True, slots=True)
class MatrixAccess:
    """ldmatrix or stmatrix .x`count`, `.trans` or not; lane and warp columns give the row address of each lane.
    `flips`: (lane bit, mask); in lanes with that bit register j of a group is at j ^ mask."""

    count: int
    trans: bool
    lane: Columns
    warp: Columns
    groups: tuple[MatrixGroup, ...]
    wavefronts: int
    flips: tuple[tuple[int, int], ...] = ()

    @property
    def thread_mask(self) -> int:
        """Offset bits that lanes or warps may set: other bits of a group's offset are an added immediate."""
        return union(self.lane + self.warp)


Access = VectorAccess | MatrixAccess


def vector_access(offsets: OffsetMap, elem_bits: int, limit_bits: int = 128) -> VectorAccess:
    """Return the widest vector access, at most `limit_bits` wide."""
    vec = max_vector(offsets, elem_bits, limit_bits)
    passes = count_wavefronts(images(offsets.lane), elem_bits, vec)
    return VectorAccess(vec, offsets.lane, offsets.warp, vector_groups(offsets, vec), passes)


def _fits(
    offsets: OffsetMap, elem_bits: int, trans: bool, live: Sequence[int]
) -> tuple[list[int], list[int], int] | None:
    """Return (register bits within 32 bits, offsets of the 3 row bits, lane bit of the first row bit that lanes pick,
    which those of the others follow) if the map has the form that the instruction needs, else None."""
    lane, register = offsets.lane, offsets.register
    if len(lane) != 5 or elem_bits > 32 or elem_bits < 8 or (trans and elem_bits > 16):
        return None
    row = log2(ROW_BITS // elem_bits)
    narrow = log2(32 // elem_bits)
    if trans:
        within = [b for b in live if elem_bits == 8 and register[b] == 1]
        apart = [b for b in live if register[b] >= 1 << row]
        if lane[2:] != tuple([x << len(within) for x in (1, 2, 4)]) or not apart:
            return None
        if len(within) + 1 != narrow:
            return None
        pair = [*within, apart[0]]
        rows, first = [register[apart[0]], lane[0], lane[1]], -1
    else:
        if lane[:2] != (1 << narrow, 2 << narrow):
            return None
        pair = [b for k in range(narrow) for b in live if register[b] == 1 << k]
        if len(pair) != narrow:
            return None
        rows, first = list(lane[2:]), 2
    others = [register[b] for b in live if b not in pair] + rows + list(offsets.warp)
    if any(c & ((1 << row) - 1) for c in others):
        return None
    return pair, rows, first


def _spread(
    rows: list[int], first: int, registers: Columns, rest: Sequence[int], elem_bits: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """Move rows to different banks by adding up to two register bits to lane bits. Return the rows' offsets, and pairs
    of a lane bit and what is added to it."""
    line = LINE_BITS // elem_bits - ROW_BITS // elem_bits
    banks, found, used = Echelon(), list(rows), 0
    added: list[tuple[int, int]] = []
    for i, row in enumerate(rows):
        if banks.add(row & line) or first + i < 0:
            continue
        for mask in (1 << a | 1 << b for a in rest for b in rest):
            both = row ^ apply(registers, mask)
            if (used | mask).bit_count() <= 2 and banks.add(both & line):
                used |= mask
                found[i] = both
                added.append((first + i, mask))
                break
    return found, added


def matrix_access(
    offsets: OffsetMap, elem_bits: int, trans: bool, slot_bits: int = 64
) -> MatrixAccess | None:
    """Return the ldmatrix/stmatrix plan of a map (register, lane, warp) -> offset, or None if it lacks that form.

    Offset bits from `slot_bits` up number the rounds of an exchange: one instruction must stay within a round.
    """
    live = Echelon(offsets.register).independent
    fit = _fits(offsets, elem_bits, trans, live)
    if fit is None:
        return None
    pair, rows, first = fit
    register = offsets.register
    rest = [b for b in live if b not in pair]
    inside = [b for b in rest if not register[b] >> slot_bits]
    rows, added = _spread(rows, first, register, inside, elem_bits)
    inside.sort(key=lambda b: not any(mask >> b & 1 for _, mask in added))
    picked = inside[:2]
    repeated = [b for b in rest if b not in picked]
    address = rows + [register[b] for b in picked] + [0] * (2 - len(picked))
    within = images([1 << b for b in pair])
    groups: list[MatrixGroup] = []
    for base, offset in zip(
        images([1 << b for b in repeated]), images([register[b] for b in repeated]), strict=True
    ):
        matrices = images([1 << b for b in picked])
        reg32 = tuple([tuple([base ^ m ^ w for w in within]) for m in matrices])
        groups.append(MatrixGroup(offset, reg32))
    count = 1 << len(picked)
    passes = count * count_wavefronts(images(rows), elem_bits, ROW_BITS // elem_bits)
    flips = tuple(
        [(bit, sum(1 << i for i, b in enumerate(picked) if mask >> b & 1)) for bit, mask in added]
    )
    return MatrixAccess(count, trans, tuple(address), offsets.warp, tuple(groups), passes, flips)


def ldmatrix_plan(dist: LinearLayout, shared: LinearLayout, elem_bits: int) -> MatrixAccess | None:
    """Return how ldmatrix (plain, else .trans) loads all registers of `dist` from `shared`, or None if it cannot."""
    offsets = offset_map(dist, shared)
    return matrix_access(offsets, elem_bits, False) or matrix_access(offsets, elem_bits, True)


stmatrix_plan = ldmatrix_plan
"""stmatrix has the same lane map: return how it stores all registers of `dist` to `shared`, or None."""


def _gather_cost(access: Access, elem_bits: int) -> float:
    """Return slots that reorder the registers of one group: wide accesses take consecutive machine registers.

    The first group represents all, as the others differ from it by an XOR that keeps aligned runs aligned.
    """
    group = access.groups[0]
    reg32 = group.reg32 if isinstance(group, MatrixGroup) else (group.registers,)
    registers = [r for packed in reg32 for r in packed]
    if registers == list(range(len(registers))):
        return 0.0
    per_reg32 = max(1, 32 // elem_bits)
    packed = all(
        registers[i] % per_reg32 == 0
        and registers[i : i + per_reg32][-1] - registers[i] == per_reg32 - 1
        for i in range(0, len(registers) - per_reg32 + 1, per_reg32)
    )
    return len(registers) * elem_bits / 32 * (0.25 if packed else 1.0)


def access_cost(access: Access, elem_bits: int) -> float:
    """Return the shared-memory passes plus issue slots of one warp for the whole access."""
    each = access.wavefronts + 1.0 + _gather_cost(access, elem_bits)
    if isinstance(access, MatrixAccess):
        each += access.count * len(access.flips)
    mask = access.thread_mask
    bases = len({group.offset & mask for group in access.groups})
    return len(access.groups) * each + 0.5 * bases


def best_access(offsets: OffsetMap, elem_bits: int, matrix: bool, slot_bits: int = 64) -> Access:
    """Return the cheapest way to move all registers; `matrix`: the target has the matrix form of this direction."""
    choices: list[Access] = [vector_access(offsets, elem_bits)]
    for trans in (False, True) if matrix else ():
        found = matrix_access(offsets, elem_bits, trans, slot_bits)
        if found is not None and not (trans and found.lane[0] >> slot_bits):
            choices.append(found)
    return min(choices, key=lambda access: access_cost(access, elem_bits))


def round_groups(access: Access, slot_bits: int, number: int) -> Access:
    """Return the part of an access in round `number`: bits of the offset from `slot_bits` up select the round."""
    low = (1 << slot_bits) - 1
    if any(c & ~low for c in access.lane + access.warp):
        raise LayoutError("lanes or warps would differ in their round")
    if isinstance(access, VectorAccess):
        vectors = tuple(
            [
                VectorGroup(g.registers, g.offset & low)
                for g in access.groups
                if g.offset >> slot_bits == number
            ]
        )
        return VectorAccess(access.vec, access.lane, access.warp, vectors, access.wavefronts)
    matrices = tuple(
        [
            MatrixGroup(g.offset & low, g.reg32)
            for g in access.groups
            if g.offset >> slot_bits == number
        ]
    )
    return MatrixAccess(
        access.count, access.trans, access.lane, access.warp, matrices, access.wavefronts,
        access.flips,
    )  # fmt: skip
