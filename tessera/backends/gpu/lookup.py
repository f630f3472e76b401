"""Lowers gather and histogram: both use shared memory at addresses that depend on data."""

from __future__ import annotations

from typing import Any

from tessera.backends.elements.casts import cast
from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.memory import copies, groups, registers
from tessera.backends.gpu.shared import load_elements, store_elements
from tessera.backends.gpu.types import llvm_type
from tessera.dtypes import int32, int64
from tessera.ir import elem_of
from tessera.layout.linear import LinearLayout
from tessera.ops import GatherOp, HistogramOp

HOLDERS = ("register", "lane", "warp")


@lowers(GatherOp)
def _gather(fl: FunctionLowering, op: GatherOp) -> None:
    """Write the tile to shared memory in row-major order, then read each element at its own address."""
    w, elem, start = fl.w, elem_of(op.x.type), op.attrs["scratch"]
    size, source = elem.storage_bytes, op.x.type.layout
    columns = [[c * size for c in source.columns(d)] for d in HOLDERS]
    names, owner = fl.get(op.x), fl.owner_mask(source)
    addresses = fl.shared_addresses(start, *columns)
    for i in groups(source, len(names), 1):
        store_elements(fl, elem, addresses[i], [names[i]], owner)
    fl.target.barrier(w)
    wanted = op.result.type.layout
    strides = _strides(op.x.type.shape, size)
    rest = [[_dot(c, strides, op.axis) for c in wanted.bases(d)] for d in HOLDERS]
    places = fl.shared_addresses(start, *rest)
    kind, index = elem_of(op.index.type), fl.get(op.index)
    result = [""] * len(places)
    for i in groups(wanted, len(places), 1):
        at = cast(fl.scalars, index[i], kind, int32) if kind.bits != 32 else index[i]
        address = w.add("i32", places[i], w.mul("i32", at, str(strides[op.axis])))
        (result[i],) = load_elements(fl, elem, address, 1)
    fl.set(op.result, copies(wanted, result))


def _strides(shape: tuple[int, ...], size: int) -> list[int]:
    strides: list[int] = []
    for extent in reversed(shape):
        strides.append(size)
        size *= extent
    return strides[::-1]


def _dot(coords: tuple[int, ...], strides: list[int], skip: int) -> int:
    return sum(c * s for d, (c, s) in enumerate(zip(coords, strides)) if d != skip)


@lowers(HistogramOp)
def _histogram(fl: FunctionLowering, op: HistogramOp) -> None:
    """Keep counters in shared memory: clear them, let all threads count, read them."""
    w, start = fl.w, op.attrs["scratch"]
    base = w.add("i32", fl.shared_base(), str(start))
    _clear(fl, base, op.bins)
    fl.target.barrier(w)
    layout: LinearLayout = op.x.type.layout
    kind, names = elem_of(op.x.type), fl.get(op.x)
    masks, owner = registers(fl, op.mask, len(names)), fl.owner_mask(layout)
    for i in groups(layout, len(names), 1):
        wide = int32 if kind.bits <= 32 else int64
        value = cast(fl.scalars, names[i], kind, wide) if kind.bits < wide.bits else names[i]
        inside = w.pure(f"icmp ult {llvm_type(wide)} {value}, {op.bins}")
        mask = w.and_("i1", w.and_("i1", inside, masks[i]), owner)
        bin_ = cast(fl.scalars, value, int64, int32) if wide is int64 else value
        fl.target.atomic_shared_add(w, w.add("i32", base, w.mul("i32", bin_, "4")), "1", mask)
    fl.target.barrier(w)
    wanted: Any = op.result.type.layout
    addresses = fl.shared_addresses(start, *[[4 * c for c in wanted.columns(d)] for d in HOLDERS])
    result = [""] * len(addresses)
    for i in groups(wanted, len(addresses), 1):
        (result[i],) = load_elements(fl, int32, addresses[i], 1)
    fl.set(op.result, copies(wanted, result))


def _clear(fl: FunctionLowering, base: str, bins: int) -> None:
    w, threads = fl.w, 32 * fl.num_warps
    mine = w.add("i32", base, w.mul("i32", fl.thread, "4"))
    for first in range(0, bins, threads):
        mask = "true"
        if first + threads > bins:
            mask = w.pure(f"icmp ult i32 {fl.thread}, {bins - first}")
        store_elements(fl, int32, w.add("i32", mine, str(4 * first)), ["0"], mask)
