"""Computes a shared layout for one exchange that lets both sides vectorise, without bank conflicts where possible.

Offsets are cut in three: the low bits V are one vector (or one 16-byte row of ldmatrix), the next bits fill a line over
all 32 banks, and the rest H picks the line.  Two holders access one bank if their elements differ by a vector of
span(H).  With U = span(V and the lane bits that are served in one pass) for the writer and U' for the reader, span(H)
should intersect neither:

    H = (vectors outside of U + U')  +  (sums a_i ^ b_i with a_i only in U, b_i only in U')

The sums are the swizzle.  E.g. a 32x32 fp32 transpose: V = {}, U = the columns, U' = the rows, H = {col_i ^ row_i}: the
line is row ^ column, every row and every column touches each bank once.  The columns of the shared layout are V,
the rest, and H.  V must avoid the span of lane and warp bits, or the vectors
would not be aligned.  Several choices of V compete: both sides' registers, one side's, or rows for ldmatrix/stmatrix;
the exact count of passes decides.  The construction follows "Linear Layouts: Robust Code Generation of Efficient Tensor
Computation Using F2" (2025).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .access import Access, access_cost, best_access
from .linear import LinearLayout
from .matrix_ops import Columns, Echelon, apply, extend, intersection, log2
from .shared import LINE_BITS, MAX_VECTOR_BITS, offset_map

__all__ = ["Exchange", "find_exchange", "swizzle_for"]


@dataclass(frozen=True, slots=True)
class _Side:
    """The packed bases of the writer or the reader."""

    register: Columns
    lane: Columns
    warp: Columns

    @property
    def threads(self) -> Columns:
        return self.lane + self.warp


@dataclass(frozen=True, slots=True)
class _Choice:
    """Low offset bits, and the bits that each side wants spread over the banks in one pass."""

    vector: list[int]
    writer: Sequence[int]
    reader: Sequence[int]
    flips: tuple[tuple[int, int], ...] = ()
    """(vector bit, partner) pairs: the partner reorders the elements within a vector, see `_flips`."""


def _lanes_per_pass(side: _Side, vector: Sequence[int], elem_bits: int) -> Columns:
    """Lane bits served in one pass when the side moves the part of `vector` that its registers cover."""
    registers = Echelon(side.register)
    bits = 0
    while bits < len(vector) and registers.contains(vector[bits]):
        bits += 1
    extra = max(0, log2(elem_bits << bits) - 5)
    return side.lane[: max(0, len(side.lane) - extra)]


def _vectors(candidates: Sequence[int], avoid: Sequence[int], elem_bits: int) -> list[int]:
    """Return as many of the candidates as fit 16 bytes and avoid the thread bits."""
    room = log2(MAX_VECTOR_BITS // elem_bits)
    return extend(avoid, candidates)[:room]


def _matrix_rows(side: _Side, elem_bits: int) -> Iterator[tuple[list[int], list[int]]]:
    """Return (16-byte row, row bits) for ldmatrix of this side, plain and transposed."""
    word = log2(32 // elem_bits) if elem_bits <= 32 else 0
    live = [c for c in side.register if c]
    if len(side.lane) != 5 or elem_bits > 32 or len(live) < word:
        return
    yield [*live[:word], *side.lane[:2]], list(side.lane[2:])
    if elem_bits == 16:
        yield list(side.lane[2:]), [live[0], *side.lane[:2]]


def _flips(
    owner: _Side, other: _Side, vector: Sequence[int], lanes: Sequence[int], elem_bits: int
) -> tuple[tuple[int, int], ...]:
    """Return vector bits that scalar lanes of the other side do not distinguish, paired with lanes that would collide.

    In a row-major vector of 4 words a column-wise reader uses only one word of each.  If its lane bit is a register bit
    of the owner, the owner can reorder the words of a vector by that register, at no cost: the lanes then spread.
    """
    covered = Echelon(other.register)
    prefix = next((i for i, v in enumerate(vector) if not covered.contains(v)), len(vector))
    reach = [*vector[:prefix], *lanes]
    # Elements below 4 bytes share a word of a bank, so moving them within it frees no bank.
    idle = extend(reach, [v for i, v in enumerate(vector) if elem_bits << i >= 32])
    apart = extend([*owner.threads, *vector], [c for c in lanes if c in owner.register])
    return tuple(zip(idle, apart, strict=False))


def _choices(
    src: _Side, dst: _Side, elem_bits: int, store_matrix: bool, load_matrix: bool
) -> Iterator[_Choice]:
    def spread(vector: list[int]) -> _Choice:
        return _Choice(
            vector, _lanes_per_pass(src, vector, elem_bits), _lanes_per_pass(dst, vector, elem_bits)
        )

    shared = intersection(src.register, dst.register)
    both = _vectors(shared, src.threads + dst.threads, elem_bits)
    yield spread(both)
    if load_matrix:
        for row, rows in _matrix_rows(dst, elem_bits):
            yield _Choice(row, _lanes_per_pass(src, row, elem_bits), rows)
    if store_matrix:
        for row, rows in _matrix_rows(src, elem_bits):
            yield _Choice(row, rows, _lanes_per_pass(dst, row, elem_bits))
    for side, other in ((src, dst), (dst, src)):
        choice = spread(_vectors([*both, *side.register], side.threads, elem_bits))
        yield choice
        lanes = choice.reader if side is src else choice.writer
        flips = _flips(side, other, choice.vector, lanes, elem_bits)
        if flips:
            kept = [c for c in lanes if c not in {partner for _, partner in flips}]
            sides = (choice.writer, kept) if side is src else (kept, choice.reader)
            yield _Choice(choice.vector, *sides, flips)


def _arrange(choice: _Choice, rest: Sequence[int], line_bits: int, total: int) -> list[int] | None:
    """Return offset columns for a choice: vector, banks, lines; `rest` spans the space.  None for a degenerate
    vector."""
    vector = extend((), choice.vector)
    if len(vector) != len(choice.vector):
        return None
    first, second = list(choice.writer), list(choice.reader)
    reach = [*vector, *second]
    common = extend(vector, [v for v in first if Echelon(reach).contains(v)])
    mask = (1 << len(first)) - 1
    for combination in Echelon([*first, *reach]).kernel():
        common += extend([*vector, *common], [apply(first, combination & mask)])
    only_first = extend([*vector, *common], first)
    only_second = extend([*vector, *common, *only_first], second)
    flips = [bit ^ partner for bit, partner in choice.flips]
    outside = extend([*vector, *common, *only_first, *only_second, *flips], rest)
    pairs = [a ^ b for a, b in zip(only_first, only_second, strict=False)]
    unpaired = only_first[len(pairs) :] + only_second[len(pairs) :]
    wanted = max(0, total - line_bits)
    # Outside vectors last come last: warps and outer registers select the line.
    lines = (flips + outside[::-1] + pairs + unpaired + only_first + common)[:wanted]
    lines = extend(vector, lines)
    banks = extend([*vector, *lines], [*common, *only_first, *only_second, *outside, *flips])
    return [*vector, *banks, *lines]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A shared layout with the best access on each side; its top `halvings` offset bits number the rounds."""

    shared: LinearLayout
    store: Access
    load: Access
    cost: float
    halvings: int


def _split_functionals(src: _Side, dst: _Side, size: int) -> list[int]:
    """Return masks f (parity(f & element)) that are 0 on all lane and warp bits of both sides: each can halve the
    tile."""
    columns = src.threads + dst.threads
    rows = [sum(((c >> i) & 1) << j for j, c in enumerate(columns)) for i in range(size)]
    return Echelon(rows).kernel()


def _halve(side: _Side, masks: Sequence[int]) -> Columns:
    """Find a basis of the part of the registers' span on which all masks are 0; single registers come first."""
    columns = list(side.register)
    for mask in masks:
        odd = [c for c in columns if (c & mask).bit_count() & 1]
        columns = (
            [c ^ odd[0] if c in odd else c for c in columns if c != odd[0]] if odd else columns
        )
    return tuple(columns)


def _natural(shape: tuple[int, ...]) -> list[int]:
    size = 1
    for extent in shape:
        size *= extent
    return [1 << i for i in range(log2(size))]


def _least_cost(layout: LinearLayout, elem_bits: int) -> float:
    """Return a lower bound of a whole tile's access cost: a pass per 32-bit word of a lane, an instruction per four."""
    words = (elem_bits << Echelon(layout.columns("register")).rank) / 32
    return 1.25 * words


def find_exchange(
    src: LinearLayout,
    dst: LinearLayout,
    elem_bits: int,
    *,
    store_matrix: bool = False,
    load_matrix: bool = False,
    halvings: int = 0,
) -> Exchange:
    """Return the cheapest of the constructed shared layouts for src -> dst.

    With `halvings` = q the top q offset bits (at most as many as lanes and warps allow) number the rounds of an
    exchange through 1/2**q of the memory.
    """
    names = ("register", "lane", "warp")
    writer, reader = (_Side(*[side.columns(name) for name in names]) for side in (src, dst))
    total = src.out_bits
    masks = _split_functionals(writer, reader, total)[::-1][:halvings] if halvings else []
    if masks:
        writer = _Side(_halve(writer, masks), writer.lane, writer.warp)
        reader = _Side(_halve(reader, masks), reader.lane, reader.warp)
    within = total - len(masks)
    units = _natural(src.shape)
    outer = extend(writer.register + writer.threads, units) if masks else []
    rest = [*reader.threads, *writer.threads, *writer.register, *reader.register]
    rest += [] if masks else units
    enough = 1.02 * (_least_cost(src, elem_bits) + _least_cost(dst, elem_bits)) + 4.0
    best: Exchange | None = None
    for choice in _choices(writer, reader, elem_bits, store_matrix, load_matrix):
        columns = _arrange(choice, rest, log2(LINE_BITS // elem_bits), within)
        if columns is None:
            continue
        shared = LinearLayout.packed(src.shape, {"offset": columns + outer})
        store = best_access(offset_map(src, shared), elem_bits, store_matrix, within)
        load = best_access(offset_map(dst, shared), elem_bits, load_matrix, within)
        cost = access_cost(store, elem_bits) + access_cost(load, elem_bits)
        if best is None or cost < best.cost:
            best = Exchange(shared, store, load, cost, len(masks))
        if best.cost <= enough:
            break
    assert best is not None
    return best


def swizzle_for(
    src: LinearLayout,
    dst: LinearLayout,
    elem_bits: int,
    *,
    store_matrix: bool = False,
    load_matrix: bool = False,
) -> LinearLayout:
    """Return the shared layout through which writing `src` and reading `dst` is cheapest (see `find_exchange`)."""
    return find_exchange(
        src, dst, elem_bits, store_matrix=store_matrix, load_matrix=load_matrix
    ).shared
