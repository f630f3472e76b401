"""Global memory: loads, stores, atomics, descriptors; and the ops that speak to the outside (print, assert, barrier)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.dtypes import int1, pointer_type
from tessera.ir import (
    DescriptorType,
    Effect,
    Op,
    Value,
    attr,
    elem_of,
    operand,
    require,
    shape_of,
    with_elem,
)
from tessera.ops.tile import result_tile

ATOMIC_OPS = ("add", "max", "min", "and", "or", "xor", "xchg")
CACHE_LOAD = ("", ".ca", ".cg", ".cs", ".cv")
CACHE_STORE = ("", ".wb", ".cg", ".cs", ".wt")
EVICTION = ("", "evict_first", "evict_last")
SEMANTICS = ("acquire", "release", "acq_rel", "relaxed")
SCOPES = ("gpu", "cta", "sys")


def pointee(t: Any) -> Any:
    """The type a pointer (or tile of pointers) points to, in the same shape."""
    return with_elem(t, elem_of(t).element_ty)


def _check_access(op: Op, ptr: Value, *masks: Value | None) -> None:
    require(isinstance(elem_of(ptr.type), pointer_type), op, "the first operand is not a pointer")
    for m in masks:
        if m is not None:
            require(
                m.type == with_elem(ptr.type, int1),
                op,
                "the mask must be int1 in the shape of the pointer",
            )


class LoadOp(Op, opcode="load", effects=Effect.READ):
    """Read `ptr` where `mask`; elsewhere the result is `other` (0 without one). A scalar reads one element."""

    ptr: Value = operand()
    mask: Value | None = operand(optional=True)
    other: Value | None = operand(optional=True)
    cache: str = attr(default="")
    eviction: str = attr(default="")
    volatile: bool = attr(default=False)

    def infer(self) -> Sequence[Any]:
        return (pointee(self.ptr.type),)

    def verify(self) -> None:
        _check_access(self, self.ptr, self.mask)
        if self.other is not None:
            require(
                self.other.type == self.result.type, self, "`other` has not the type of the result"
            )


class StoreOp(Op, opcode="store", effects=Effect.WRITE):
    """Write `value` to `ptr` where `mask`. A scalar is written once per program."""

    ptr: Value = operand()
    value: Value = operand()
    mask: Value | None = operand(optional=True)
    cache: str = attr(default="")
    eviction: str = attr(default="")

    def verify(self) -> None:
        _check_access(self, self.ptr, self.mask)
        require(
            self.value.type == pointee(self.ptr.type),
            self,
            "the value has not the pointer's element type",
        )


class AtomicRmwOp(Op, opcode="atomic_rmw", effects=Effect.READ | Effect.WRITE):
    """*ptr = kind(*ptr, value) atomically where `mask`; gives the old value. Scalars act once per program."""

    ptr: Value = operand()
    value: Value = operand()
    mask: Value | None = operand(optional=True)
    kind: str = attr()
    sem: str = attr(default="acq_rel")
    scope: str = attr(default="gpu")

    def infer(self) -> Sequence[Any]:
        return (self.value.type,)

    def verify(self) -> None:
        _check_access(self, self.ptr, self.mask)
        require(self.kind in ATOMIC_OPS, self, lambda: f"unknown kind {self.kind!r}")
        require(
            self.value.type == pointee(self.ptr.type),
            self,
            "the value has not the pointer's element type",
        )


class AtomicCasOp(Op, opcode="atomic_cas", effects=Effect.READ | Effect.WRITE):
    """If *ptr equals `expected` bit for bit, store `value`; gives the old value."""

    ptr: Value = operand()
    expected: Value = operand()
    value: Value = operand()
    sem: str = attr(default="acq_rel")
    scope: str = attr(default="gpu")

    def infer(self) -> Sequence[Any]:
        return (self.value.type,)

    def verify(self) -> None:
        _check_access(self, self.ptr)
        require(
            self.value.type == self.expected.type == pointee(self.ptr.type),
            self,
            "operand types differ",
        )


class MakeDescriptorOp(Op, opcode="make_descriptor"):
    """A descriptor of a strided array: `shape` int32 and `strides` int64 scalars in elements, last stride 1."""

    base: Value = operand()
    shape: tuple[Value, ...] = operand(variadic=True)
    strides: tuple[Value, ...] = operand(variadic=True)
    block_shape: tuple[int, ...] = attr()
    padding: str = attr(default="zero")

    def infer(self) -> Sequence[Any]:
        return (DescriptorType(self.block_shape, self.base.type.element_ty),)


class DescriptorLoadOp(Op, opcode="descriptor_load", effects=Effect.READ):
    """The block at element `offsets` (int32 scalars); elements outside the array are the padding."""

    desc: Value = operand()
    offsets: tuple[Value, ...] = operand(variadic=True)
    cache: str = attr(default="")
    eviction: str = attr(default="")

    def infer(self) -> Sequence[Any]:
        t = result_tile(self.desc.type.shape, self.desc.type.elem)
        layout = self.results[0].type.layout if getattr(self, "results", ()) else None
        return (t.with_layout(layout),)


class DescriptorStoreOp(Op, opcode="descriptor_store", effects=Effect.WRITE):
    """Write a block at element `offsets`; elements outside the array are dropped. `kind`: "store" or an atomic."""

    desc: Value = operand()
    offsets: tuple[Value, ...] = operand(variadic=True)
    value: Value = operand()
    kind: str = attr(default="store")

    def verify(self) -> None:
        d = self.desc.type
        ok = shape_of(self.value.type) == d.shape and elem_of(self.value.type) == d.elem
        require(ok, self, "the value has not the descriptor's block type")


class AssertOp(Op, opcode="assert", effects=Effect.WRITE):
    """Stop the program with `message` if any element of `condition` (int1) is false."""

    condition: Value = operand()
    message: str = attr(default="")


class PrintOp(Op, opcode="print", effects=Effect.WRITE):
    """Print `prefix` and the operands, one line an element."""

    args: tuple[Value, ...] = operand(variadic=True)
    prefix: str = attr(default="")
    hex: bool = attr(default=False)


class BarrierOp(Op, opcode="barrier", effects=Effect.SYNC):
    """All threads of the program wait for one another; shared memory written before is visible after."""


class AssumeOp(Op, opcode="assume", effects=Effect.WRITE):
    """A promise of the author: `condition` (int1) is true. Read by analyses, dropped by back ends."""

    condition: Value = operand()
