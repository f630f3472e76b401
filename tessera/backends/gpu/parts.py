"""Places the parts of results that warps exchange in shared memory: those of reductions and of scans.

Which order has no bank conflicts depends on who holds the results. `rest` is the layout of the results.

    one result in a lane            all parts of an element together, so that a thread reads them as one vector
    results in several lanes        all elements of a part together, as lanes and registers hold them
    each thread reads a few parts   neighbouring lanes read the parts of one element, but elements that lanes of a
    for all threads (`spread`)      writing warp hold are in different banks: slots of an element are turned by it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.backends.gpu.lowering import FunctionLowering
from tessera.ir import ElementType
from tessera.layout.linear import LinearLayout

BANK_BITS = 5  # 32 banks of 4 bytes
FEW_LANES = 2  # bits of the lane that may move results while the parts of an element lie together
VECTOR = 4  # parts that are one vector


@dataclass(frozen=True, slots=True)
class Slots:
    """A linear map from bits of an element's packed coordinate, and of a part's number, to its slot.

    `together`: how many elements of a thread are neighbours. `apart`: how far parts of an element are apart, 0 if they
    are neighbours. `turned`: whether the low bits of a slot are the part's number xor bits of the element's.
    """

    element_columns: tuple[int, ...]
    part_columns: tuple[int, ...]
    together: int = 1
    apart: int = 0
    turned: bool = False

    def of(self, coordinate: int) -> int:
        """The slot of an element's part 0."""
        slot = 0
        for bit, column in enumerate(self.element_columns):
            slot ^= column if coordinate >> bit & 1 else 0
        return slot

    def element_at(self, slot: int) -> int:
        """The element of which a part is in a slot."""
        low = len(self.part_columns)
        found = {column >> low: 1 << bit for bit, column in enumerate(self.element_columns)}
        return sum(e for high, e in found.items() if slot >> low & high)


def parts_of(rest: LinearLayout, parts: int, element_major: bool) -> Slots:
    """Parts that each thread reads of all its results."""
    bits, count = parts.bit_length() - 1, rest.num_elements.bit_length() - 1
    moving = sum(c != 0 for c in rest.columns("lane"))
    step = neighbours(rest)
    if parts == 1:
        return Slots(tuple([1 << i for i in range(count)]), ())
    if element_major or moving <= FEW_LANES or (step == 1 and parts <= VECTOR):
        order = _lanes_first(rest, count)
        elements = tuple([1 << (order.index(i) + bits) for i in range(count)])
        return Slots(elements, tuple([1 << i for i in range(bits)]))
    own = tuple([1 << i for i in range(count)])
    return Slots(own, tuple([1 << (i + count) for i in range(bits)]), step, 1 << count)


def spread(rest: LinearLayout, parts: int) -> Slots:
    """Parts that neighbouring lanes read, a few for each thread."""
    bits, count = parts.bit_length() - 1, rest.num_elements.bit_length() - 1
    columns = [0] * count
    for place, bit in enumerate(_lanes_first(rest, count)):
        turn = place - (BANK_BITS - bits)
        columns[bit] = 1 << (place + bits) | (1 << turn if 0 <= turn < bits else 0)
    return Slots(tuple(columns), tuple([1 << i for i in range(bits)]), turned=True)


def _lanes_first(rest: LinearLayout, count: int) -> list[int]:
    """The bits of an element's packed coordinate in the order of a slot's bits: lanes are in different banks."""
    lanes = [c.bit_length() - 1 for c in rest.columns("lane") if c and not c & (c - 1)]
    return list(dict.fromkeys([*lanes, *range(count)]))


def reader_columns(fl: FunctionLowering, count: int) -> tuple[list[int], list[int], list[int]]:
    """Which of `count` slots threads read for all others: columns of registers, lanes and warps. Lanes, then warps read
    slots one after another; a thread reads several if there are fewer threads than slots."""
    places = [1 << b for b in range(count.bit_length() - 1)]
    lane, others = _padded(places[:5], 5), places[5:]
    warp, register = _padded(others[: fl.warp_bits], fl.warp_bits), others[fl.warp_bits :]
    return register, lane, warp


def _padded(columns: list[int], count: int) -> list[int]:
    return [*columns, *[0] * (count - len(columns))]


def neighbours(rest: LinearLayout) -> int:
    """How many elements of a thread lie one after another, beginning at a multiple of their number."""
    columns, step = rest.columns("register"), 1
    while step.bit_length() <= len(columns) and columns[step.bit_length() - 1] == step:
        step *= 2
    others = (*columns[step.bit_length() - 1 :], *rest.columns("lane"), *rest.columns("warp"))
    while any(c & (step - 1) for c in others):
        step //= 2
    return step


def part_addresses(
    fl: FunctionLowering,
    rest: LinearLayout,
    elem: ElementType,
    start: int,
    slots: Slots,
    warps: Sequence[int] = (),
    lanes: Sequence[int] = (),
) -> list[str]:
    """Return the shared address of each register's part 0; with `warps` or `lanes`, that of the part they select."""
    size = elem.storage_bytes
    register, lane, warp = (
        [slots.of(c) * size for c in rest.columns(d)] for d in ("register", "lane", "warp")
    )
    for i, b in enumerate(warps):
        warp[b] ^= slots.part_columns[i] * size
    for i, b in enumerate(lanes):
        lane[b] ^= slots.part_columns[i] * size
    return fl.shared_addresses(start, register, lane, warp)
