"""Defines fragments of tensor-core instructions: which lane and register hold which element of A, B and accumulator.

In the m16n8kK instructions of mma.sync a group of 4 lanes (t = lane & 3) works on one row (g = lane >> 2).  A register
of 32 bits holds W = 32/bits elements that are consecutive along K:

    A  [16 x K]: k = W*t + i, row g;  then +8 rows;  then +4W along K   (a0.. in the order of the PTX ISA)
    B  [K x 8]:  k = W*t + i, column g;  then +4W along K
    C  [16 x 8]: row g, columns 2t and 2t+1;  then +8 rows

so that K is 16 for 16-bit, 32 for 8-bit and 8 for 32-bit (tf32) elements.  f64 has m8n8k4: A row g, k = t; B k = t,
column g; C row g, columns 2t, 2t+1.  wgmma's m64 is four such warps stacked along M, C with n/8 column groups.

A tile is cut into warps_m x warps_n parts: of neighbouring columns, and of rows dealt out to warps by instructions.
Within its part a warp repeats the instruction in registers: for operands along K first, then along M or N; for
accumulators along N, then M.  The rows of a warp's repetitions are far apart: for some of them a triangular mask is
known.  Warps that differ only in the other dim hold the same operand elements (zero bases).  A batched tile has one
more leading dim with `warps_b` parts.

The mapping of the tile's rows to the instruction's is free if A comes from registers: `rows` of the wgmma
layouts lists, for each bit of the row (g, +8, warp, then repetitions, then warpgroups), the bit of the tile's row that
it stands for. `operand_rows` chooses it so that an operand contiguous along M is read from shared memory without bank
conflicts: e.g. fp32 in a swizzle of 128 bytes, where +8 is column bit 0 (one 8-byte read serves both rows) and g the
bits 1, 4 and 2, which with the bits of t are all banks; and so that ldmatrix.trans can read 8-bit elements, whose pairs
are then rows g and g + 8.

The order of K is also free if threads read both operands: `depth` lists for each bit of the instruction's K the
bit of the tile's (`operand_depth`). So are the `columns` of a B that threads write: its rows in shared memory then have
the order in which registers hold them. E.g. 8-bit elements contiguous along M: a register of 4 takes k = 0, 1, 8 and 9,
and the bits of t are 1 and 2 of k, so that ldmatrix.trans finds the eight rows of a matrix in eight different banks.
"""

from __future__ import annotations

from functools import lru_cache

from .coords import unit_columns
from .encodings import BasisBuilder
from .linear import LinearLayout, inverse_columns
from .matrix_ops import Echelon, LayoutError, compose, log2
from .shared import LINE_BITS, ROW_BITS

__all__ = [
    "back", "instruction_depth", "mma_acc", "mma_operand", "operand_depth", "operand_rows", "reordered", "wgmma_acc",
    "wgmma_operand_a",
]  # fmt: skip


def _split(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (row dim, column dim) of a [M, N] or [B, M, N] shape."""
    if len(shape) not in (2, 3):
        raise LayoutError(f"a matrix fragment needs rank 2 or 3, not shape {list(shape)}")
    return len(shape) - 2, len(shape) - 1


def _place_warps(
    builder: BasisBuilder, steps: list[tuple[str, int]], warps: dict[int, int], order: list[int]
) -> None:
    """Repeat in registers along the dims of `steps`, keeping room for the warps; then place the warps in `order`.

    A dim of -1 in `order` stands for warps that do not index this tile.
    """
    for in_dim, dim in steps:
        builder.take_left(in_dim, dim, log2(warps.get(dim, 1)))
    for dim in order:
        count = log2(warps.get(dim, 1))
        if dim < 0:
            builder.bases["warp"] += [0] * count
        else:
            builder.take("warp", dim, count)
    for dim in range(len(builder.shape)):
        builder.take_left("register", dim)


@lru_cache(maxsize=512)
def mma_acc(
    shape: tuple[int, ...], warps_m: int, warps_n: int, *, instr_m: int = 16, warps_b: int = 1
) -> LinearLayout:
    """Return accumulators [M, N] or [B, M, N] of mma.sync m16n8 (`instr_m=8`: f64's m8n8); warp = (b, n, m), m
    fastest."""
    rows, cols = _split(shape)
    builder = BasisBuilder(shape)
    builder.take("register", cols, 1)
    builder.take("lane", cols, 2)
    builder.take("lane", rows, 3)
    if instr_m == 16:
        builder.take("register", rows, 1)
    builder.take("warp", rows, log2(warps_m))
    return _finish(builder, [cols, rows], {cols: warps_n}, [cols], warps_b)


def _finish(
    builder: BasisBuilder, steps: list[int], warps: dict[int, int], order: list[int], warps_b: int
) -> LinearLayout:
    """Place repetitions along `steps`, then along the batch dim if there is one, then the warps."""
    registers = [("register", dim) for dim in steps]
    if len(builder.shape) == 3:
        registers.append(("register", 0))
        warps = {**warps, 0: warps_b}
        order = [*order, 0]
    elif warps_b != 1:
        raise LayoutError("warps along a batch dim need a tile of rank 3")
    _place_warps(builder, registers, warps, order)
    return builder.build()


@lru_cache(maxsize=512)
def mma_operand(
    shape: tuple[int, ...],
    operand_index: int,
    elem_bits: int,
    warps_m: int,
    warps_n: int,
    *,
    warps_b: int = 1,
) -> LinearLayout:
    """Return operand 0 (A, [..., M, K]) or 1 (B, [..., K, N]) of mma.sync for 8-, 16-, 32- (tf32) or 64-bit elements.

    Registers are in the instruction's order, so that consecutive 32-bit groups are its operands.
    Raises LayoutError if K is smaller than the instruction's.
    """
    first, second = _split(shape)
    outer, k = (first, second) if operand_index == 0 else (second, first)
    depth = instruction_depth(elem_bits)
    if shape[k] < depth:
        raise LayoutError(
            f"K = {shape[k]} is below the {depth} of mma.sync with {elem_bits}-bit elements"
        )
    builder = BasisBuilder(shape)
    builder.take("register", k, log2(max(32 // elem_bits, 1)))
    builder.take("lane", k, 2)
    builder.take("lane", outer, 3)
    if elem_bits < 64:
        if operand_index == 0:
            builder.take("register", outer, 1)
        builder.take("register", k, 1)
    if operand_index == 0:
        builder.take("warp", outer, log2(warps_m))
        return _finish(builder, [k, outer], {-1: warps_n}, [-1], warps_b)
    return _finish(builder, [k, outer], {-1: warps_m, outer: warps_n}, [-1, outer], warps_b)


def instruction_depth(elem_bits: int) -> int:
    """Return K of one mma.sync (or wgmma): 32 for 8-bit, 16 for 16-bit, 8 for tf32, 4 for f64 elements."""
    depth = {8: 32, 16: 16, 32: 8, 64: 4}.get(elem_bits)
    if depth is None:
        raise LayoutError(f"no mma fragment for elements of {elem_bits} bits")
    return depth


def _warpgroup(builder: BasisBuilder, rows: int) -> None:
    """Place the four warps of a warpgroup, with 16 rows each."""
    if builder.shape[rows] < 64:
        raise LayoutError(f"wgmma needs at least 64 rows, not {builder.shape[rows]}")
    builder.take("warp", rows, 2)


Rows = tuple[int, ...]


@lru_cache(maxsize=512)
def wgmma_acc(
    shape: tuple[int, int],
    warpgroups_m: int,
    n_instr: int,
    *,
    warpgroups_n: int = 1,
    rows: Rows = (),
    columns: Rows = (),
) -> LinearLayout:
    """Return accumulators [M, N] of wgmma m64nN: warp w of a group has rows 16w.., warpgroup = (n, m), m fastest.

    The registers of one m64 x n_instr instruction are consecutive; they repeat along N, then along M.
    """
    if n_instr < 8 or shape[1] % (n_instr * warpgroups_n):
        raise LayoutError(
            f"N = {shape[1]} over {warpgroups_n} warpgroups is no multiple of the instruction's {n_instr}"
        )
    builder = BasisBuilder(shape)
    builder.take("register", 1, 1)
    builder.take("lane", 1, 2)
    builder.take("lane", 0, 3)
    builder.take("register", 0, 1)
    _warpgroup(builder, 0)
    found = _finish(builder, [1, 0], {0: warpgroups_m, 1: warpgroups_n}, [0, 1], 1)
    return reordered(found, (rows, columns))


@lru_cache(maxsize=512)
def wgmma_operand_a(
    shape: tuple[int, int],
    warpgroups_m: int,
    elem_bits: int,
    *,
    warpgroups_n: int = 1,
    rows: Rows = (),
    depth: Rows = (),
) -> LinearLayout:
    """Return A [M, K] of wgmma in registers; accumulators of an earlier wgmma are in this layout without an
    exchange."""
    if shape[1] < instruction_depth(elem_bits) or elem_bits > 32:
        raise LayoutError(f"K = {shape[1]} with {elem_bits}-bit elements does not fit wgmma")
    builder = BasisBuilder(shape)
    builder.take("register", 1, log2(32 // elem_bits))
    builder.take("lane", 1, 2)
    builder.take("lane", 0, 3)
    builder.take("register", 0, 1)
    builder.take("register", 1, 1)
    _warpgroup(builder, 0)
    found = _finish(builder, [1, 0], {0: warpgroups_m, -1: warpgroups_n}, [0, -1], 1)
    return reordered(found, (rows, depth))


def reordered(layout: LinearLayout, orders: tuple[Rows, ...]) -> LinearLayout:
    """Return the layout with bit i of dimension d moved to bit orders[d][i]; an empty order keeps a dimension."""
    if not any(orders):
        return layout
    table: list[int] = []
    for units, order in reversed(list(zip(unit_columns(layout.shape), orders, strict=True))):
        table += [units[bit] for bit in order] or units
    return LinearLayout.packed(
        layout.shape, {name: compose(table, layout.columns(name)) for name in layout.in_dims}
    )


def back(order: Rows) -> Rows:
    """Return the inverse of an order."""
    return tuple([order.index(i) for i in range(len(order))])


@lru_cache(maxsize=256)
def operand_rows(shared: LinearLayout, elem_bits: int) -> Rows:
    """Return `rows` for an operand [M, K] that threads read from shared memory, where it is contiguous along M."""
    row, depth = (compose(inverse_columns(shared), unit) for unit in unit_columns(shared.shape))
    free = list(range(len(row)))
    if elem_bits < 32:  # ldmatrix: pairs of neighbours, eight of which are a row of a matrix
        return (*free[1:4], 0, *free[4:])
    pair = next((i for i in free if row[i] == 1), free[0])
    free.remove(pair)
    line = LINE_BITS // elem_bits - 1
    banks = Echelon([c & line for c in (row[pair], *depth[:2])])
    lanes: list[int] = []
    for _ in range(3):
        found = next((i for i in free if banks.add(row[i] & line)), free[0])
        free.remove(found)
        lanes.append(found)
    return (*lanes, pair, *free)


@lru_cache(maxsize=256)
def operand_depth(shared: LinearLayout, elem_bits: int) -> Rows:
    """Return `depth` for an operand [M, K] contiguous along M that ldmatrix.trans reads with `operand_rows`: the bits
    of K that pick a row of a matrix, the lowest of a packed register and those of t, are rows in different banks. Empty
    for 32-bit elements."""
    if elem_bits >= 32:
        return ()
    depth = compose(inverse_columns(shared), unit_columns(shared.shape)[1])
    places = (LINE_BITS - ROW_BITS) // elem_bits
    narrow = log2(32 // elem_bits)
    free, banks = list(range(len(depth))), Echelon()
    chosen: dict[int, int] = {}
    for bit in (0, narrow, narrow + 1):
        chosen[bit] = next((i for i in free if banks.add(depth[i] & places)), free[0])
        free.remove(chosen[bit])
    return tuple([chosen[i] if i in chosen else free.pop(0) for i in range(len(depth))])
