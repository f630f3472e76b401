"""Counts what one execution of an access touches: on a GPU the requests of its warps and the 32-byte sectors that each
asks for, from the layout of the tile and the addresses; on a CPU the 64-byte lines of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera import ops
from tessera.analysis.axis import AxisAnalysis
from tessera.explain.counting import Count, Measure
from tessera.explain.needed import BLOCKS, GATHERS, POINTERS
from tessera.explain.widths import ACCESSES, elements_at_once
from tessera.ir import Module, Op, TileType, elem_of
from tessera.layout import LinearLayout, images

SECTOR = 32  # bytes, of global memory of a GPU
CPU_LINE = 64  # bytes


def element_bytes(op: Op) -> int:
    """Return the bytes of an element that an op accesses."""
    if isinstance(op, POINTERS):
        return elem_of(op.ptr.type).element_ty.storage_bytes
    return op.operands[0].type.elem.storage_bytes  # of a descriptor


def is_store(op: Op) -> bool:
    return isinstance(op, ops.StoreOp | ops.DescriptorStoreOp | ops.DescriptorScatterOp)


@dataclass(frozen=True, slots=True)
class WarpAccess:
    """Which elements of a tile the lanes of warps access together: `first` has, for each request and lane, the
    row-major index of the first of `width` elements."""

    first: np.ndarray
    width: int


def warp_access(layout: LinearLayout, width: int, once: bool) -> WarpAccess:
    """Return the requests of all warps for a tile of a layout. `once`: each element by one thread, as stores do."""
    same = layout.register_representatives()
    registers = layout.register_images()
    starts = [registers[i] for i in range(0, len(registers), width) if same[i] == i]
    lanes, warps = images(layout.columns("lane")), images(layout.columns("warp"))
    if once:
        free = layout.free_masks()
        warps = [x for i, x in enumerate(warps) if not i & free.get("warp", 0)]
        lanes = [x for i, x in enumerate(lanes) if not i & free.get("lane", 0)]
    first = np.array(starts)[:, None, None] ^ np.array(warps)[None, :, None] ^ np.array(lanes)
    return WarpAccess(first.reshape(-1, len(lanes)), width)


def _distinct(x: np.ndarray) -> np.ndarray:
    """Return how many different numbers, except -1, each row has."""
    x = np.sort(x, axis=1)
    new = x >= 0
    new[:, 1:] &= x[:, 1:] != x[:, :-1]
    return new.sum(1)


def requests_of(
    access: WarpAccess, address: np.ndarray, mask: np.ndarray | None, size: int
) -> Count:
    """Count requests of warps, their sectors, and the fewest that hold the same bytes; `size`: bytes of an element."""
    at = address.reshape(-1)[access.first]
    active = np.ones(at.shape, bool) if mask is None else mask.reshape(-1)[access.first]
    wide = access.width * size
    touched = _distinct(np.where(active, at // SECTOR, -1))
    if wide > SECTOR or SECTOR % wide:  # an access that lies in several sectors
        touched = touched + _distinct(np.where(active, (at + wide - 1) // SECTOR, -1))
    needed = _distinct(np.where(active, at, -1)) * wide
    return Count(
        bytes=float(active.sum()) * wide,
        requests=float((touched > 0).sum()),
        sectors=float(touched.sum()),
        ideal=float((-(-needed // SECTOR)).sum()),
    )


def on_gpu(module: Module) -> Measure:
    """Return the measure of accesses of GPU IR."""
    axes = {f: AxisAnalysis(f) for f in module.body if isinstance(f, ops.FuncOp)}
    known: dict[Op, WarpAccess] = {}

    def measure(op: Op, address: np.ndarray, mask: np.ndarray | None) -> Count:
        size = element_bytes(op)
        if isinstance(op, (*BLOCKS, *GATHERS)):
            moved = float(mask.sum() if mask is not None else address.size) * size
            sectors = -(-moved // SECTOR)
            return Count(bytes=moved, requests=1.0, sectors=sectors, ideal=sectors)
        assert isinstance(op, POINTERS), op.opcode
        if not isinstance(op.ptr.type, TileType):
            active = 1.0 if mask is None or mask else 0.0
            return Count(bytes=size * active, requests=active, sectors=active, ideal=active)
        access = known.get(op)
        if access is None:
            layout: Any = op.ptr.type.layout
            width = elements_at_once(op, axes[_function(op)]) if isinstance(op, ACCESSES) else 1
            access = known[op] = warp_access(layout, width, not isinstance(op, ops.LoadOp))
        return requests_of(access, address, mask, size)

    return measure


def _function(op: Op) -> ops.FuncOp:
    around: Op | None = op
    while not isinstance(around, ops.FuncOp):
        assert around is not None
        around = around.parent_op()
    return around


def on_cpu(_: Module) -> Measure:
    """Return the measure of accesses of a CPU: a request is the access of a whole tile."""

    def measure(op: Op, address: np.ndarray, mask: np.ndarray | None) -> Count:
        size = element_bytes(op)
        address = np.asarray(address)
        active = (
            address.reshape(-1) if mask is None else address[np.broadcast_to(mask, address.shape)]
        )
        if not active.size:
            return Count()
        lines = _lines(active, size)
        fewest = -(-_apart(active) * size // CPU_LINE)
        return Count(
            bytes=float(active.size * size),
            requests=1.0,
            sectors=float(lines),
            ideal=float(max(1, fewest)),
        )

    return measure


def _lines(address: np.ndarray, size: int) -> int:
    first = address // CPU_LINE
    return int(np.count_nonzero(np.diff(np.sort(first)))) + 1


def _apart(address: np.ndarray) -> int:
    ordered = np.sort(address)
    return int(np.count_nonzero(np.diff(ordered))) + 1
