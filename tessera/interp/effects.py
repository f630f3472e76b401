"""Defines the meaning of ops that access memory, print or assert, and of the GPU level's data movement, in NumPy."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tessera.dtypes import dtype
from tessera.errors import DeviceAssertionError, InterpreterError
from tessera.interp.machine import Machine, evaluate
from tessera.interp.numerics import bits_type, carrier, from_storage, settle, storage, to_storage
from tessera.interp.reports import failure
from tessera.ir import ElementType, Op, elem_of
from tessera.ops import gpu, memory, special


@evaluate(memory.LoadOp)
def load_(m: Machine, op: memory.LoadOp, ptr: np.ndarray, *_: object) -> np.ndarray:
    elem = elem_of(op.ptr.type).element_ty
    return np.asarray(
        m.memory.load(ptr, elem, m.optional(op, "mask"), m.optional(op, "other")), carrier(elem)
    )


@evaluate(memory.StoreOp)
def store_(
    m: Machine, op: memory.StoreOp, ptr: np.ndarray, value: np.ndarray, *_: object
) -> tuple[()]:
    m.memory.store(ptr, value, elem_of(op.ptr.type).element_ty, m.optional(op, "mask"))
    return ()


def _and(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    return old & new


def _or(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    return old | new


def _xor(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    return old ^ new


def _exchange(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    return new


_ATOMIC: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add, "and": _and, "or": _or, "xor": _xor, "xchg": _exchange,
    "max": np.fmax, "min": np.fmin,
}  # fmt: skip


@evaluate(memory.AtomicRmwOp)
def atomic_rmw_(
    m: Machine, op: memory.AtomicRmwOp, ptr: np.ndarray, value: np.ndarray, *_: object
) -> np.ndarray:
    """Update element by element in row-major order: duplicate addresses see one another's updates."""
    elem, mask = elem_of(op.ptr.type).element_ty, m.optional(op, "mask")
    old = np.zeros(np.shape(ptr), carrier(elem))
    combine = _ATOMIC[op.kind]
    for i in np.ndindex(np.shape(ptr)):
        if mask is None or mask[i]:
            old[i] = m.memory.load(ptr[i], elem, None, None)
            new = settle(combine(old[i], value[i]), elem)
            m.memory.store(ptr[i], new, elem, None)
    return old


@evaluate(memory.AtomicCasOp)
def atomic_cas_(
    m: Machine, op: memory.AtomicCasOp, ptr: np.ndarray, expected: np.ndarray, value: np.ndarray
) -> np.ndarray:
    elem = elem_of(op.ptr.type).element_ty
    old = np.zeros(np.shape(ptr), carrier(elem))
    for i in np.ndindex(np.shape(ptr)):
        old[i] = m.memory.load(ptr[i], elem, None, None)
        if to_storage(old[i], elem).tobytes() == to_storage(expected[i], elem).tobytes():
            m.memory.store(ptr[i], value[i], elem, None)
    return old


@dataclass(frozen=True, slots=True)
class Descriptor:
    """The run-time value of a tensor descriptor: address, extents and strides in elements, and the block's extents."""

    base: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]
    elem: ElementType
    padding: str


@evaluate(memory.MakeDescriptorOp)
def make_descriptor_(
    m: Machine, op: memory.MakeDescriptorOp, base: np.ndarray, *_: object
) -> Descriptor:
    shape, strides = (tuple(int(x) for x in m.many(v)) for v in (op.shape, op.strides))
    return Descriptor(int(base), shape, strides, op.block_shape, op.result.type.elem, op.padding)


def block_of(d: Descriptor, offsets: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the addresses of a descriptor's block, and the mask of those inside the array."""
    address, mask = np.asarray(d.base, np.int64), np.asarray(True)
    for axis, (start, extent) in enumerate(zip(offsets, d.block, strict=True)):
        index = int(start) + np.arange(extent, dtype=np.int64)
        index = index.reshape([-1 if i == axis else 1 for i in range(len(d.block))])
        address = address + index * d.strides[axis] * d.elem.storage_bytes
        mask = mask & (index >= 0) & (index < d.shape[axis])
    return np.broadcast_to(address, d.block), np.broadcast_to(mask, d.block)


@evaluate(memory.DescriptorLoadOp)
def descriptor_load_(
    m: Machine, op: memory.DescriptorLoadOp, desc: Descriptor, *offsets: np.ndarray
) -> np.ndarray:
    address, mask = block_of(desc, list(offsets))
    other = np.asarray(np.nan if desc.padding == "nan" else 0).astype(carrier(desc.elem))
    block = np.asarray(m.memory.load(address, desc.elem, mask, other), carrier(desc.elem))
    return block.reshape(block.shape[op.dropped :])


@evaluate(memory.DescriptorStoreOp)
def descriptor_store_(
    m: Machine, op: memory.DescriptorStoreOp, desc: Descriptor, *rest: Any
) -> tuple[()]:
    *offsets, value = rest
    address, mask = block_of(desc, offsets)
    if op.kind != "store":
        old = m.memory.load(address, desc.elem, mask, None)
        value = settle(_ATOMIC[op.kind](old, value), desc.elem)
    m.memory.store(address, value, desc.elem, mask)
    return ()


def rows_of(d: Descriptor, rows: np.ndarray, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the addresses of rows of a 2-D array from a column on, and the mask of those inside it."""
    i = np.asarray(rows, np.int64)[:, None]
    j = int(column) + np.arange(d.block[1], dtype=np.int64)[None, :]
    address = d.base + (i * d.strides[0] + j * d.strides[1]) * d.elem.storage_bytes
    return address, (i >= 0) & (i < d.shape[0]) & (j >= 0) & (j < d.shape[1])


@evaluate(memory.DescriptorGatherOp)
def descriptor_gather_(
    m: Machine, op: Op, desc: Descriptor, rows: np.ndarray, column: np.ndarray
) -> np.ndarray:
    address, mask = rows_of(desc, rows, column)
    other = np.asarray(np.nan if desc.padding == "nan" else 0).astype(carrier(desc.elem))
    return np.asarray(m.memory.load(address, desc.elem, mask, other), carrier(desc.elem))


@evaluate(memory.DescriptorScatterOp)
def descriptor_scatter_(
    m: Machine, op: Op, desc: Descriptor, rows: np.ndarray, column: np.ndarray, value: np.ndarray
) -> tuple[()]:
    address, mask = rows_of(desc, rows, column)
    m.memory.store(address, value, desc.elem, mask)
    return ()


@evaluate(special.SpecialRegisterOp)
def special_register_(m: Machine, op: special.SpecialRegisterOp) -> np.ndarray:
    if op.name == "clock":  # counts the records of a trace
        m.clock += 1
        return np.asarray(m.clock, np.int32)
    return np.asarray(
        time.perf_counter_ns() if op.name == "globaltimer" else 0, carrier(op.result.type)
    )


@evaluate(special.GridDependencyOp)
def grid_dependency_(m: Machine, op: Op) -> tuple[()]:
    return ()


@evaluate(special.InlineAsmOp, special.VolatileAsmOp)
def inline_asm_(m: Machine, op: Op, *_: object) -> np.ndarray:
    raise InterpreterError("assembly has no NumPy meaning", loc=op.loc)


@evaluate(memory.AssertOp)
def assert_(m: Machine, op: memory.AssertOp, condition: np.ndarray) -> tuple[()]:
    if not np.all(condition):
        where = (
            np.unravel_index(int(np.argmin(condition)), np.shape(condition))
            if np.ndim(condition)
            else ()
        )
        at = f" at element {tuple(int(i) for i in where)}" if where else ""
        raise DeviceAssertionError(f"assertion failed{at}: {op.message}")
    return ()


@evaluate(memory.CheckOp)
def check_(m: Machine, op: memory.CheckOp, bad: np.ndarray, *values: np.ndarray) -> tuple[()]:
    if not np.any(bad):
        return ()
    index = int(np.argmax(bad))
    found: list[list[Any]] = []
    for v, x in zip(op.values, values, strict=True):
        samples = op.samples(v)
        at = (index if np.ndim(x) else 0,) if samples is None else samples
        found.append([np.reshape(x, -1)[i] for i in at])
    flags = np.reshape(bad, -1)[: op.mapped].astype(np.uint8).tobytes()
    sites = [x.row() for x in m.module.walk() if isinstance(x, memory.CheckOp) and x.site >= 0]
    raise failure(op.row(), m.program, index, found, flags, sites)


@evaluate(memory.PrintOp)
def print_(m: Machine, op: memory.PrintOp, *args: np.ndarray) -> tuple[()]:
    pid = f"pid ({', '.join(map(str, m.program))})"
    if not args:
        print(f"{pid}{op.prefix}", file=sys.stdout)
    for number, (x, v) in enumerate(zip(args, op.args, strict=True)):
        label, widths = op.label(number), op.widths(number)
        shown = np.asarray(x)
        for i in np.ndindex(shown.shape):
            index = ", ".join(f"{n:{w or ''}}" for n, w in zip(i, widths, strict=True))
            print(f"{pid} idx ({index}){label}{_printed(shown[i], elem_of(v.type), op.hex)}")
    return ()


def _printed(x: np.ndarray, elem: ElementType, hexadecimal: bool) -> str:
    """Return a number as C's printf writes it, its bits in hexadecimal, or a pointer."""
    if not isinstance(elem, dtype):
        return f"0x{int(x):x}"
    if hexadecimal and not elem.is_bool():
        bits = int(np.ascontiguousarray(to_storage(x, elem)).view(bits_type(elem)).item())
        return f"0x{bits:0{elem.bits // 4}x}"
    return f"{float(x):f}" if elem.is_floating() else str(int(x))


@evaluate(memory.BreakpointOp)
def breakpoint_(m: Machine, op: memory.BreakpointOp, *values: np.ndarray) -> tuple[()]:
    """Show the line and the variables to a debugger."""
    if m.stepper is not None:
        names = dict(op.constants) | dict(zip(op.labels, values, strict=True))
        m.stepper.at(op, names | {"program_id": m.program, "num_programs": m.grid})
    return ()


@evaluate(memory.BarrierOp, gpu.WarpBarrierOp, memory.AssumeOp)
def nothing_(m: Machine, op: Op, *_: object) -> tuple[()]:
    return ()


# --- GPU level --------------------------------------------------------------------------------------------
@evaluate(gpu.ConvertLayoutOp)
def convert_layout_(m: Machine, op: Op, x: np.ndarray) -> np.ndarray:
    return x


@evaluate(gpu.LocalAllocOp)
def local_alloc_(m: Machine, op: gpu.LocalAllocOp, init: np.ndarray | None = None) -> np.ndarray:
    t = op.result.type
    if init is not None:
        return np.array(np.broadcast_to(init, t.shape))
    elem: ElementType = t.elem
    unwritten = b"\xff" * (prod(t.shape) * elem.storage_bytes)
    raw: np.ndarray = np.frombuffer(unwritten, storage(elem)).reshape(t.shape)
    return np.array(from_storage(raw, elem), carrier(elem))  # poison: NaN, -1, True


@evaluate(gpu.LocalIndexOp)
def local_index_(m: Machine, op: Op, ring: np.ndarray, index: np.ndarray) -> np.ndarray:
    i = int(index)
    if not 0 <= i < ring.shape[0]:
        raise InterpreterError(f"buffer {i} of a ring of {ring.shape[0]}")
    return ring[i]


@evaluate(gpu.LocalTransOp)
def local_trans_(m: Machine, op: gpu.LocalTransOp, x: np.ndarray) -> np.ndarray:
    return np.transpose(x, op.order)


@evaluate(gpu.LocalLoadOp)
def local_load_(m: Machine, op: gpu.LocalLoadOp, shared: np.ndarray, *_: object) -> np.ndarray:
    return np.array(shared)


@evaluate(gpu.LocalStoreOp)
def local_store_(m: Machine, op: Op, value: np.ndarray, shared: np.ndarray) -> tuple[()]:
    shared[...] = value
    return ()


@evaluate(gpu.AsyncCopyOp)
def async_copy_(
    m: Machine, op: gpu.AsyncCopyOp, ptr: np.ndarray, shared: np.ndarray, *_: object
) -> None:
    """Read memory now, but change shared memory only at the wait, so that a missing wait shows."""
    if op.runs is not None and not m.optional(op, "runs"):
        return
    elem = elem_of(op.ptr.type).element_ty
    value = m.memory.load(ptr, elem, m.optional(op, "mask"), m.optional(op, "other"))

    def land() -> None:
        shared[...] = value

    m.open_group.append(land)


@evaluate(gpu.AsyncCommitOp)
def async_commit_(m: Machine, op: gpu.AsyncCommitOp, *_: object) -> None:
    m.groups.append(m.open_group)
    m.open_group = []


@evaluate(gpu.PingPongOp)
def ping_pong_(m: Machine, op: gpu.PingPongOp) -> tuple[()]:
    return ()


def land_group(group: list[Callable[[], None]]) -> None:
    """Let the copies of a group land, each once."""
    while group:
        group.pop(0)()


@evaluate(gpu.AsyncWaitOp)
def async_wait_(m: Machine, op: gpu.AsyncWaitOp, *_: object) -> None:
    while len(m.groups) > op.pending:
        land_group(m.groups.pop(0))
