"""Checks what needs no run: where buffers lie, their alignment, and what the TMA unit and MMAs require of them."""

from __future__ import annotations

from typing import Any

from tessera import ops
from tessera.analysis.scratch import staging
from tessera.errors import SynchronizationError
from tessera.ir import ElementType, Module, Op, SharedType, Value
from tessera.layout import Boxes, LinearLayout, box_layout, boxes_of, shared_swizzled

TMA_ALIGNMENT = 128
"""Alignment of what the TMA unit reads or writes in shared memory (cp.async.bulk.tensor)."""
ROW_BYTES = 16  # of which the box's innermost extent is a multiple (CUDA, tensor maps)
EXTENT = 256  # elements of a box along one dimension, at most (CUDA, tensor maps)
RANK = 5  # dimensions of a tensor map, at most (CUDA, tensor maps)
GROUP_BARRIERS = 4
"""Hardware barriers reserved for groups of warps."""
BARRIER_BYTES = 8  # of an mbarrier (PTX)
SWIZZLES = (128, 64, 32)


def check_places(module: Module) -> None:
    """Raise SynchronizationError where a buffer is misplaced or misaligned."""
    total: int = module.attrs.get("shared", 0)
    fences: dict[Op, tuple[bool, Op]] = {}
    for op in module.walk():
        if isinstance(op, ops.LocalAllocOp):
            _inside(op, op.offset, op.bytes, total)
        elif "scratch" in op.attrs:
            _inside(op, op.attrs["scratch"], op.attrs["scratch_bytes"], total)
        if isinstance(op, ops.TensorCopyOp):
            _copy(op)
        elif isinstance(op, ops.DescriptorLoadOp):
            t: Any = op.result.type
            layout = box_layout(t.shape, t.elem.storage_bits)
            _boxes(op, op.attrs["scratch"], 0, boxes_of(layout, t.elem.storage_bits), t.elem)
        elif isinstance(op, ops.DescriptorStoreOp):
            _store(op, module.attrs["num_warps"])
        elif isinstance(op, ops.WgmmaOp):
            for v in (op.a, op.b):
                if isinstance(v.type, SharedType):
                    _operand(op, v)
        elif isinstance(op, ops.MbarrierWaitOp | ops.MbarrierArriveOp):
            _same_fence(op, fences)


def _inside(op: Op, low: int, size: int, total: int) -> None:
    if low < 0 or low + size > total:
        raise SynchronizationError(
            f"{op.opcode} has bytes {low} to {low + size} of {total} in shared memory", loc=op.loc
        )


def place_of(view: Value) -> tuple[int, int]:
    """Return the offset of a view's buffer, and the distance between the buffers if it is a ring, else 0."""
    step = 0
    op = view.op
    while op is not None and not isinstance(op, ops.LocalAllocOp):
        if isinstance(op, ops.LocalIndexOp):
            step = op.result.type.slot_bytes
        op = op.operands[0].op
    assert isinstance(op, ops.LocalAllocOp)
    return op.offset, step


def _aligned(op: Op, low: int, step: int, alignment: int, why: str) -> None:
    if low % alignment or step % alignment:
        places = f"byte {low}" + (f" and every {step} bytes on" if step else "")
        raise SynchronizationError(
            f"{op.opcode}: shared memory at {places}, where {why} asks for multiples of {alignment}",
            loc=op.loc,
        )


def _boxes(op: Op, low: int, step: int, boxes: Boxes | None, elem: ElementType) -> None:
    """Check one copy against the rules of tensor maps (cuTensorMapEncodeTiled) and addresses (cp.async.bulk.tensor)."""
    if boxes is None:
        raise SynchronizationError(f"{op.opcode}: the tile is not made of boxes", loc=op.loc)
    row = boxes.box[-1] * elem.storage_bytes
    if row % ROW_BYTES or any(n > EXTENT for n in boxes.box) or len(boxes.box) > RANK:
        raise SynchronizationError(
            f"{op.opcode}: a box of {'x'.join(map(str, boxes.box))} elements of {elem.storage_bytes} bytes: rows must"
            f" be multiples of {ROW_BYTES} bytes, extents at most {EXTENT}", loc=op.loc,
        )  # fmt: skip
    if boxes.swizzle and row > boxes.swizzle:
        raise SynchronizationError(
            f"{op.opcode}: rows of {row} bytes in a swizzle of {boxes.swizzle}", loc=op.loc
        )
    alignment = max(TMA_ALIGNMENT, 8 * boxes.swizzle)
    _aligned(op, low, step, alignment, "the TMA unit")
    if len(boxes.starts) > 1:
        _aligned(op, low, boxes.elements * elem.storage_bytes, alignment, "the TMA unit")


def _copy(op: ops.TensorCopyOp) -> None:
    t: Any = op.shared.type
    bits = t.elem.storage_bits
    boxes = boxes_of(t.layout, bits)
    boxes = boxes.shares(op.ctas, bits) if boxes is not None else None
    _boxes(op, *place_of(op.shared), boxes, t.elem)
    low, _ = place_of(op.bars)
    _aligned(op, low, 0, BARRIER_BYTES, "a barrier")


def _store(op: ops.DescriptorStoreOp, num_warps: int) -> None:
    how = staging(op, num_warps)
    elem = op.value.type.elem
    size = how.elements * elem.storage_bytes
    step = size if how.buffers > 1 else 0
    _boxes(op, op.attrs["scratch"], step, how.boxes, elem)
    parts = max(1, how.groups) * how.parts
    if parts > 1:
        alignment = max(TMA_ALIGNMENT, 8 * how.boxes.swizzle)
        _aligned(op, op.attrs["scratch"], size // parts, alignment, "the TMA unit")
    if how.groups > GROUP_BARRIERS:
        raise SynchronizationError(
            f"{how.groups} groups of warps meet at {GROUP_BARRIERS} barriers", loc=op.loc
        )


def _operand(op: ops.WgmmaOp, view: Value) -> None:
    """Check that an operand starts at a multiple of eight rows of its swizzle, where the pattern begins."""
    t: Any = view.type
    low, step = place_of(view)
    width = _swizzle(t.layout, t.elem.storage_bits)
    _aligned(op, low, step, max(TMA_ALIGNMENT, 8 * width), "an MMA's descriptor")


def _swizzle(layout: LinearLayout, bits: int) -> int:
    """Return the bytes within which a layout swizzles rows; the widest pattern for a layout that equals none, as its
    order of rows does not show them."""
    for order in ((1, 0), (0, 1)):
        for width in SWIZZLES:
            fits = layout.rank == 2 and layout.shape[order[0]] * bits >= width * 8
            if fits and shared_swizzled(layout.shape, order, bits, width) == layout:
                return width
    return SWIZZLES[0]


def _same_fence(
    op: ops.MbarrierWaitOp | ops.MbarrierArriveOp, fences: dict[Op, tuple[bool, Op]]
) -> None:
    """Check that both sides of a barrier order arrays in global memory for the TMA unit, or neither does."""
    row = op.bars.op
    assert row is not None
    fence, other = fences.setdefault(row, (op.fence, op))
    if fence != op.fence:
        name = row.results[0].name
        raise SynchronizationError(
            f"{op.opcode} and {other.opcode} at `{name}`: one has a fence for global memory, the other has none",
            loc=op.loc,
        )
