"""Says how much shared memory an op needs for itself while it runs: allocation reserves it, the SIMT lowering uses
it.

Both sides ask here, so that they cannot disagree. All figures are bytes; a scratch area starts at a multiple of 16 (of
128 for layout conversions, whose swizzles count from the start of a row of banks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera.ir import ElementType, Op, TileType, elem_of
from tessera.layout.boxes import Boxes, box_layout, boxes_of
from tessera.layout.convert import Plan, SharedExchange, plan_conversion
from tessera.layout.linear import LinearLayout
from tessera.layout.shared import offset_map
from tessera.ops import (
    Atomic,
    ConvertLayoutOp,
    DescriptorLoadOp,
    DescriptorStoreOp,
    DotOp,
    GatherOp,
    HistogramOp,
    ReduceOp,
    ScanOp,
)  # fmt: skip

ALIGNMENT = 16  # bytes: the widest access of a thread
LINE = 128  # bytes of one row over all banks
GROUP_WARPS = 4  # warps of a warpgroup
STAGING_BYTES = 32 * 1024  # most bytes of staging buffers for the TMA unit
SWIZZLE_ROWS = 8  # rows after which the pattern of a swizzle repeats
VECTOR_PARTS = 8  # parts of warps, at most, that each thread of a reduction reads as vectors
MAX_CONVERSION_BYTES = 64 * 1024  # a larger tile goes through shared memory in several rounds


def scratch_bytes(op: Op, num_warps: int, facts: object = None) -> int:
    """Return the bytes of scratch that `op` needs, 0 for most ops. `facts` (GpuFacts): whether ldmatrix, stmatrix
    exist."""
    if isinstance(op, ConvertLayoutOp):
        plan = conversion_plan(op, facts)
        return plan.bytes if isinstance(plan, SharedExchange) else 0
    if isinstance(op, ReduceOp):
        warps = 1 << len(axis_warp_bits(op.inputs[0].type.layout, op.axis))
        if warps == 1:
            return 0
        count = result_elements(op) * warps
        parts = sum(area(elem_of(v.type), count) for v in op.inputs)
        return parts + (result_area(op) if shares_parts(op) else 0)
    if isinstance(op, ScanOp):
        bits = len(axis_warp_bits(op.inputs[0].type.layout, op.axis))
        parts = sum(area(elem_of(v.type), result_elements(op) << bits) for v in op.inputs)
        return parts * (2 if shares_parts(op) else 1) if bits else 0
    if isinstance(op, Atomic):
        return atomic_scratch(op)
    if isinstance(op, HistogramOp):
        return 4 * op.bins
    if isinstance(op, GatherOp):
        return area(elem_of(op.x.type), op.x.type.numel)
    if isinstance(op, DotOp):
        return 0 if op.in_place else dot_area(op.a.type) + dot_area(op.b.type)
    if isinstance(op, DescriptorLoadOp):
        return area(op.result.type.elem, op.result.type.numel) + ALIGNMENT  # for an mbarrier
    if isinstance(op, DescriptorStoreOp):
        how = staging(op, num_warps)
        return how.buffers * how.elements * op.value.type.elem.storage_bytes
    return 0


def result_area(op: ReduceOp) -> int:
    """Return the bytes of a reduction's results, after its warps' parts."""
    return sum(area(elem_of(v.type), result_elements(op)) for v in op.inputs)


def shares_parts(op: ReduceOp | ScanOp) -> bool:
    """Whether each thread of a reduction or scan over warps had better combine the parts of a few results for all
    threads, who read them after a second barrier, than all parts of its own results: for many results, or a long
    region. The costs are in instructions: 4 of a 16-byte read, 2 of a shuffle, 40 of a barrier; a scan selects what it
    combines."""
    layout: LinearLayout = op.inputs[0].type.layout
    bits = len(axis_warp_bits(layout, op.axis))
    parts, results = 1 << bits, result_elements(op)
    threads = 32 << layout.bits("warp")
    if bits == 0 or parts > 32 or results * parts < 32:
        return False
    rest = layout.drop_dim(op.axis)
    live = len(set(rest.register_representatives()))
    size = sum(elem_of(v.type).storage_bytes for v in op.inputs)
    region, shuffles = 1.5 * (len(list(op.combine)) - 1), 2 * -(-size // 4)
    # Of a scan, nobody combines the last part with others: it is in front of none.
    scans = isinstance(op, ScanOp)
    region += len(op.inputs) if scans else 0
    if not scans and parts > VECTOR_PARTS and sum(c == 0 for c in rest.columns("lane")) >= bits:
        alone = live * (size / 4 + bits * (shuffles + region))
    else:
        alone = live * (size * parts / 4 + (parts - 2 if scans else parts - 1) * region)
    each = max(1, results * parts // threads)
    shared = each * (size / 4 + bits * (shuffles + region)) + live * size / 4 + 40
    return shared < alone


@dataclass(frozen=True, slots=True)
class Staging:
    """How a tile is staged in shared memory, where it has `layout`, for the TMA unit. Each of `groups` groups of warps
    stores boxes of its own rows (0: all warps store together); `boxes` has those of the first group. A buffer holds
    `parts` boxes of a group, and `buffers` of them are in shared memory at a time."""

    layout: LinearLayout
    boxes: Boxes
    groups: int
    buffers: int
    parts: int = 1

    @property
    def elements(self) -> int:
        """Elements of one buffer of all groups."""
        return self.boxes.elements * self.parts * max(1, self.groups)

    @property
    def count(self) -> int:
        """The number of buffers that the whole tile fills."""
        return len(self.boxes.starts) // self.parts


def staging(op: DescriptorStoreOp, num_warps: int) -> Staging:
    """Return the staging of a stored tile. A few buffers suffice if a thread's register index alone gives the box."""
    t: Any = op.value.type
    bits: int = t.elem.storage_bits
    shared = box_layout(t.shape, bits)
    boxes = boxes_of(shared, bits) if shared is not None else None
    assert shared is not None and boxes is not None, "no tile for the TMA unit"
    offsets = offset_map(t.layout, shared)
    size, count = boxes.elements, len(boxes.starts)
    if any(c >= size for c in (*offsets.lane, *offsets.warp)):
        return _bands(t, shared, boxes) or Staging(shared, boxes, 0, count)
    found = _by_groups(t, shared, boxes, num_warps // GROUP_WARPS)
    return found or Staging(shared, boxes, 0, _buffers(count, size * bits // 8))


def _buffers(count: int, size: int) -> int:
    """Return how many of `count` buffers of `size` bytes are in shared memory at a time."""
    while count > 2 and count * size > STAGING_BYTES:
        count //= 2
    return count


def _by_groups(t: Any, shared: LinearLayout, boxes: Boxes, groups: int) -> Staging | None:
    """Stage boxes of few rows, so that two buffers need little room. Each group of warps must hold rows of its own, and
    a thread's register index must still give the box; else return None."""
    found: Staging | None = None
    height = boxes.box[-2] // max(1, groups) if len(boxes.box) > 1 else 0
    while groups > 1 and height >= SWIZZLE_ROWS:
        layout, cut = _lower(shared, boxes, groups, height)
        offsets = offset_map(t.layout, layout)
        size = cut.elements * groups
        apart = [cut.elements << i for i in range(groups.bit_length() - 1)]
        inner = (*offsets.lane, *offsets.warp[:2])
        if list(offsets.warp[2:]) != apart or any(c >= cut.elements for c in inner):
            break
        if any(cut.elements <= c < size for c in offsets.register):
            break
        bytes_of = size * t.elem.storage_bits // 8
        found = Staging(layout, cut, groups, _buffers(len(cut.starts), bytes_of))
        if 2 * bytes_of <= STAGING_BYTES or len(t.shape) != 2:
            break
        height //= 2
    return found


def _lower(
    shared: LinearLayout, boxes: Boxes, groups: int, height: int
) -> tuple[LinearLayout, Boxes]:
    """Cut boxes into lower ones that hold `height` rows of each group; the first box of all groups comes first, then
    the second. Return the layout and the boxes of the first group."""
    own, width = boxes.box[-2] // groups, boxes.box[-1]
    columns = shared.columns("offset")
    low, high, box = ((width * x).bit_length() - 1 for x in (height, own, own * groups))
    order = (*columns[:low], *columns[high:box], *columns[box:], *columns[low:high])
    starts = [(*s[:-2], s[-2] + i, s[-1]) for i in range(0, own, height) for s in boxes.starts]
    cut = Boxes((*boxes.box[:-2], height, width), boxes.swizzle, tuple(starts))
    return shared.map_columns("offset", order), cut


def _bands(t: Any, shared: LinearLayout, boxes: Boxes) -> Staging | None:
    """Stage bands of rows if warps hold columns of the tile. A buffer has all the boxes along one band."""
    if len(t.shape) != 2 or boxes.box[0] != t.shape[0] or not boxes.swizzle:
        return None
    (rows, cols), width = t.shape, boxes.box[1]
    height = rows
    while 2 * height * cols * t.elem.storage_bytes > STAGING_BYTES and height > SWIZZLE_ROWS:
        height //= 2
    columns = shared.columns("offset")
    low, all_rows = ((width * x).bit_length() - 1 for x in (height, rows))
    order = (*columns[:low], *columns[all_rows:], *columns[low:all_rows])
    layout = shared.map_columns("offset", order)
    offsets = offset_map(t.layout, layout)
    if any(c >= height * cols for c in (*offsets.lane, *offsets.warp)):
        return None
    starts = [(i, j) for i in range(0, rows, height) for j in range(0, cols, width)]
    cut = Boxes((height, width), boxes.swizzle, tuple(starts))
    return Staging(layout, cut, 0, min(2, rows // height), cols // width)


def dot_area(t: TileType) -> int:
    """Return the bytes for one operand of a dot by FMAs, rounded up to rows of banks."""
    return -(-area(t.elem, t.numel) // LINE) * LINE


def area(elem: ElementType, count: int) -> int:
    """Return the bytes of `count` elements, rounded up so that another area may follow."""
    return -(-elem.storage_bytes * count // ALIGNMENT) * ALIGNMENT


def conversion_plan(op: ConvertLayoutOp, facts: object) -> Plan:
    """Return how the target converts this layout."""
    elem = elem_of(op.x.type)
    return plan_conversion(
        op.x.type.layout,
        op.result.type.layout,
        elem.bits,
        ldmatrix=getattr(facts, "has_ldmatrix", False),
        stmatrix=getattr(facts, "has_stmatrix", False),
        warp_exchanges=getattr(facts, "warp_exchanges", False),
        max_bytes=MAX_CONVERSION_BYTES,
    )


def axis_warp_bits(layout: LinearLayout, axis: int) -> list[int]:
    """Return the bits of the warp index that move along `axis`."""
    mask = layout.axis_bits("warp", axis)
    return [i for i in range(layout.bits("warp")) if mask >> i & 1]


def result_elements(op: ReduceOp | ScanOp) -> int:
    """Return how many elements of each operand are left by a reduction, or are totals of a scan."""
    t = op.inputs[0].type
    return t.numel // t.shape[op.axis]


def atomic_scratch(op: Atomic) -> int:
    """Return the bytes that pass an atomic's old values to all threads that hold a copy: it acts once per element."""
    t = op.result.type
    if not op.result.uses:
        return 0
    if not isinstance(t, TileType):
        return ALIGNMENT
    free = t.layout.free_masks()
    if free.get("lane", 0) or free.get("warp", 0):
        return area(elem_of(t), t.numel)
    return 0
