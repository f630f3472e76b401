"""Shared memory that single ops need while they run, and the plans by which lowering uses it.

An op with scratch finds it free on entry (the barrier pass sees to that), writes it, lets all threads meet at least once,
reads it, and may leave without another barrier. Sizes are in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tessera.ir import Op, TileType, Value, elem_of, shape_of
from tessera.layout import LinearLayout, Plan, SharedExchange, plan_conversion
from tessera.ops import AtomicCasOp, AtomicRmwOp, ConvertLayoutOp, GatherOp, HistogramOp, ReduceOp, ScanOp

MAX_CONVERSION_BYTES = 64 * 1024  # larger tiles go through shared memory in several rounds


def conversion_plan(
    source: LinearLayout, target: LinearLayout, elem: Any, *, ldmatrix: bool = True, stmatrix: bool = False
) -> Plan:
    """How `convert_layout` moves elements of type `elem` (pointers: 64 bits, int1: bytes). The allocation and the
    lowering must call this with the same features."""
    return plan_conversion(
        source, target, elem.storage_bits, ldmatrix=ldmatrix, stmatrix=stmatrix, max_bytes=MAX_CONVERSION_BYTES
    )


@dataclass(frozen=True, slots=True)
class CombinePlan:
    """How a reduction or scan meets across warps. There are `warps` = 2**(bits of `warp_mask`) warps along the axis.

    The partial result of input i for the element with row-major index o of the remaining tile, made by warp number w
    (the masked warp bits, packed from the lowest), lies at byte `offsets[i] + (o * warps + w) * size of its type`.
    """

    warp_mask: int
    warps: int
    offsets: tuple[int, ...]
    bytes: int


def combine_plan(op: ReduceOp | ScanOp) -> CombinePlan:
    """The exchange of a reduce or scan whose inputs have layouts; no bytes when the axis lies inside each warp."""
    layout: LinearLayout = op.inputs[0].type.layout
    mask = layout.axis_bits("warp", op.axis) & ~layout.free_bits("warp")
    if not mask:
        return CombinePlan(0, 1, (0,) * len(op.inputs), 0)
    warps = 1 << mask.bit_count()
    rest = prod(layout.shape) // layout.shape[op.axis]
    offsets: list[int] = []
    end = 0
    for v in op.inputs:
        offsets.append(end)
        end += _aligned(rest * warps * elem_of(v.type).storage_bytes)
    return CombinePlan(mask, warps, tuple(offsets), end)


def _aligned(n: int) -> int:
    return (n + 15) & -16


def broadcasts_result(v: Value) -> bool:
    """Whether the result of an atomic must travel from the thread that acted to others that hold copies."""
    if not v.uses:
        return False
    if not isinstance(v.type, TileType):
        return True
    masks = v.type.layout.free_masks()
    return bool(masks.get("lane", 0) | masks.get("warp", 0))


def _tile_bytes(v: Value) -> int:
    return prod(shape_of(v.type)) * elem_of(v.type).storage_bytes


def scratch_bytes(op: Op, num_warps: int, *, ldmatrix: bool = True, stmatrix: bool = False) -> int:
    """Bytes of scratch of one op on the GPU level; 0 for most."""
    if isinstance(op, ConvertLayoutOp):
        t = op.x.type
        plan = conversion_plan(t.layout, op.result.type.layout, t.elem, ldmatrix=ldmatrix, stmatrix=stmatrix)
        return plan.bytes if isinstance(plan, SharedExchange) else 0
    if isinstance(op, ReduceOp | ScanOp):
        return combine_plan(op).bytes
    if isinstance(op, GatherOp):
        return _tile_bytes(op.x)
    if isinstance(op, HistogramOp):
        return op.bins * 4
    if isinstance(op, AtomicRmwOp | AtomicCasOp) and broadcasts_result(op.result):
        return _aligned(_tile_bytes(op.result))
    return 0
