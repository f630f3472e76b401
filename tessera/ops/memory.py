"""Defines ops on global memory (loads, stores, atomics, descriptors), and print, assert and barrier."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log10, prod
from typing import Any

from tessera.dtypes import dtype, int1, pointer_type
from tessera.ir import (
    DescriptorType,
    Effect,
    Op,
    Type,
    Value,
    attr,
    elem_of,
    operand,
    pack_location,
    require,
    shape_of,
    with_elem,
)
from tessera.ops.tile import result_tile

__all__ = [
    "ATOMIC_OPS", "CACHE_LOAD", "CACHE_STORE", "EVICTION", "PADDING", "RELEASES", "SCOPES", "SEMANTICS",
    "AssertOp", "AssumeOp", "Atomic", "AtomicCasOp", "AtomicRmwOp", "BarrierOp", "BreakpointOp", "CheckOp",
    "DescriptorAccess", "DescriptorGatherOp", "DescriptorLoadOp", "DescriptorScatterOp", "DescriptorStoreOp",
    "DescriptorWrite", "Diagnostic", "LoadOp", "MakeDescriptorOp", "PointerAccess", "PointerWrite", "PrintOp",
    "StoreOp", "TileLoad", "pointee",
]  # fmt: skip

ATOMIC_OPS = ("add", "max", "min", "and", "or", "xor", "xchg")
CACHE_LOAD = ("", ".ca", ".cg", ".cs", ".cv")
CACHE_STORE = ("", ".wb", ".cg", ".cs", ".wt")
EVICTION = ("", "evict_first", "evict_last")
SEMANTICS = ("acquire", "release", "acq_rel", "relaxed")
RELEASES = ("release", "acq_rel")
PADDING = ("zero", "nan")
UNKNOWN_EXTENT = (-(1 << 63), (1 << 63) - 1)  # first and end address of an unknown storage
SHADOW_UNIT = "shadow_unit"  # attribute of checked modules: bytes of an entry of the shadows that their launches keep
SHADOW_SITES = "shadow_sites"  # another: by how many accesses
SCOPES = ("gpu", "cta", "sys")


def pointee(t: Type) -> Any:
    """Return the type that a pointer (or tile of pointers) points to, in the same shape."""
    return with_elem(t, elem_of(t).element_ty)


def _check_names(op: Op, **allowed: Sequence[str]) -> None:
    """Require that attributes have allowed values."""
    for name, names in allowed.items():
        ok = op.attrs[name] in names
        require(ok, op, lambda name=name: f"{name} cannot be {op.attrs[name]!r}")


def _check_access(op: Op, ptr: Value, *masks: Value | None) -> None:
    require(isinstance(elem_of(ptr.type), pointer_type), op, "the first operand is not a pointer")
    for m in masks:
        if m is not None:
            require(
                m.type == with_elem(ptr.type, int1),
                op,
                "the mask must be int1 in the shape of the pointer",
            )


class PointerAccess(Op):
    """Base of ops that access global memory at `ptr`, a pointer or a tile of pointers, where `mask` is true."""

    ptr: Value = operand()
    mask: Value | None


class PointerWrite(PointerAccess):
    """Base of pointer accesses that write `value`."""

    value: Value


class Atomic(PointerWrite):
    """Base of pointer accesses that read and write atomically."""

    sem: str
    scope: str


class DescriptorAccess(Op):
    """Base of ops that access the array that a descriptor describes."""

    desc: Value = operand()


class DescriptorWrite(DescriptorAccess):
    """Base of descriptor accesses that write `value`."""

    value: Value


class TileLoad(Op):
    """Base of ops that load a tile from global memory, at pointers or a block of an array."""


class Diagnostic(Op):
    """Base of ops that do not affect arrays: they print, assert or promise."""


class LoadOp(PointerAccess, TileLoad, opcode="load", effects=Effect.READ):
    """Read `ptr` where `mask`; elsewhere the result is `other` (0 without one). A scalar reads one element."""

    mask: Value | None = operand(optional=True)
    other: Value | None = operand(optional=True)
    cache: str = attr(default="")
    eviction: str = attr(default="")
    volatile: bool = attr(default=False)

    def all_effects(self) -> Effect:
        """A volatile load may be what a loop waits by, and stays even if nobody reads its result."""
        return self.effects | (Effect.SYNC if self.volatile else Effect.NONE)

    def infer(self) -> Sequence[Type]:
        return (pointee(self.ptr.type),)

    def verify(self) -> None:
        _check_access(self, self.ptr, self.mask)
        _check_names(self, cache=CACHE_LOAD, eviction=EVICTION)
        if self.other is not None:
            require(
                self.other.type == self.result.type, self, "`other` has not the type of the result"
            )


class StoreOp(PointerWrite, opcode="store", effects=Effect.WRITE):
    """Write `value` to `ptr` where `mask`. A scalar is written once per program."""

    value: Value = operand()
    mask: Value | None = operand(optional=True)
    cache: str = attr(default="")
    eviction: str = attr(default="")

    def verify(self) -> None:
        _check_access(self, self.ptr, self.mask)
        _check_names(self, cache=CACHE_STORE, eviction=EVICTION)
        require(
            self.value.type == pointee(self.ptr.type),
            self,
            "the value has not the pointer's element type",
        )


class AtomicRmwOp(Atomic, opcode="atomic_rmw", effects=Effect.READ | Effect.WRITE):
    """*ptr = kind(*ptr, value) atomically where `mask`; returns the old value. A scalar acts once per program."""

    value: Value = operand()
    mask: Value | None = operand(optional=True)
    kind: str = attr()
    sem: str = attr(default="acq_rel")
    scope: str = attr(default="gpu")

    def infer(self) -> Sequence[Type]:
        return (self.value.type,)

    def verify(self) -> None:
        _check_access(self, self.ptr, self.mask)
        _check_names(self, kind=ATOMIC_OPS, sem=SEMANTICS, scope=SCOPES)
        require(
            self.value.type == pointee(self.ptr.type),
            self,
            "the value has not the pointer's element type",
        )


class AtomicCasOp(Atomic, opcode="atomic_cas", effects=Effect.READ | Effect.WRITE):
    """If *ptr equals `expected` bit for bit, store `value`; returns the old value."""

    expected: Value = operand()
    value: Value = operand()
    mask = None
    sem: str = attr(default="acq_rel")
    scope: str = attr(default="gpu")

    def infer(self) -> Sequence[Type]:
        return (self.value.type,)

    def verify(self) -> None:
        _check_access(self, self.ptr)
        _check_names(self, sem=SEMANTICS, scope=SCOPES)
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

    def infer(self) -> Sequence[Type]:
        return (DescriptorType(self.block_shape, self.base.type.element_ty),)

    def verify(self) -> None:
        _check_names(self, padding=PADDING)
        require(isinstance(self.base.type, pointer_type), self, "the base is not a pointer")
        n = len(self.block_shape)
        require(
            len(self.shape) == n and len(self.strides) == n,
            self,
            "shape, strides and block differ in rank",
        )
        ok = all(
            isinstance(v.type, dtype) and v.type.is_int() for v in (*self.shape, *self.strides)
        )
        require(ok, self, "shape and strides are not integer scalars")


def _check_descriptor(op: Op, desc: Value) -> None:
    """Require a descriptor made by an op: passes need its parts, which control flow carries instead of descriptors."""
    require(isinstance(desc.type, DescriptorType), op, "the first operand is no descriptor")
    require(isinstance(desc.op, MakeDescriptorOp), op, "the descriptor is not made by an op")


def _check_offsets(op: Op, desc: Value, offsets: Sequence[Value]) -> None:
    _check_descriptor(op, desc)
    require(len(offsets) == len(desc.type.shape), op, "one offset a dimension is needed")
    ok = all(isinstance(v.type, dtype) and v.type.is_int() for v in offsets)
    require(ok, op, "offsets are not integer scalars")


class DescriptorLoadOp(DescriptorAccess, TileLoad, opcode="descriptor_load", effects=Effect.READ):
    """The block at element `offsets` (int32 scalars); elements outside the array are the padding. The result
    lacks the first `dropped` dimensions, of extent 1. `ctas` of the program's cluster load the same block. An `ordered`
    load may see what the program did before the loop around it; other loads may run at any time."""

    offsets: tuple[Value, ...] = operand(variadic=True)
    cache: str = attr(default="")
    eviction: str = attr(default="")
    dropped: int = attr(default=0)
    ctas: int = attr(default=1)
    ordered: bool = attr(default=False)

    def infer(self) -> Sequence[Type]:
        t = result_tile(self.desc.type.shape[self.dropped :], self.desc.type.elem)
        layout = self.results[0].type.layout if getattr(self, "results", ()) else None
        return (t.with_layout(layout),)

    def verify(self) -> None:
        _check_names(self, cache=CACHE_LOAD, eviction=EVICTION)
        _check_offsets(self, self.desc, self.offsets)
        ones = all(n == 1 for n in self.desc.type.shape[: self.dropped])
        require(ones, self, "a dimension is dropped that has several elements")


class DescriptorStoreOp(DescriptorWrite, opcode="descriptor_store", effects=Effect.WRITE):
    """Write a block at element `offsets`; elements outside the array are dropped. `kind`: "store" or an atomic."""

    offsets: tuple[Value, ...] = operand(variadic=True)
    value: Value = operand()
    kind: str = attr(default="store")

    def verify(self) -> None:
        _check_names(self, kind=("store", *ATOMIC_OPS))
        _check_offsets(self, self.desc, self.offsets)
        d = self.desc.type
        ok = shape_of(self.value.type) == d.shape and elem_of(self.value.type) == d.elem
        require(ok, self, "the value has not the descriptor's block type")


class DescriptorGatherOp(DescriptorAccess, opcode="descriptor_gather", effects=Effect.READ):
    """Rows `rows` (1-D int32 tile) of a 2-D array, from `column` (int32) on, as many columns as the block has."""

    rows: Value = operand()
    column: Value = operand()

    def infer(self) -> Sequence[Type]:
        d = self.desc.type
        return (result_tile((*shape_of(self.rows.type), d.shape[1]), d.elem),)

    def verify(self) -> None:
        _check_rows(self, self.desc, self.rows)


class DescriptorScatterOp(DescriptorWrite, opcode="descriptor_scatter", effects=Effect.WRITE):
    """Write a tile to rows `rows` of a 2-D array from `column` on; elements outside the array are dropped."""

    rows: Value = operand()
    column: Value = operand()
    value: Value = operand()

    def verify(self) -> None:
        _check_rows(self, self.desc, self.rows)
        d, want = self.desc.type, (*shape_of(self.rows.type), self.desc.type.shape[1])
        ok = shape_of(self.value.type) == want and elem_of(self.value.type) == d.elem
        require(ok, self, "the value has not the type of the rows")


def _check_rows(op: Op, desc: Value, rows: Value) -> None:
    _check_descriptor(op, desc)
    ok = len(desc.type.shape) == 2 and desc.type.shape[0] == 1
    require(ok, op, "the descriptor has not blocks of one row")
    require(len(shape_of(rows.type)) == 1, op, "the rows are not a 1-D tile")


class AssertOp(Diagnostic, opcode="assert", effects=Effect.WRITE):
    """Stop the program with `message` if any element of `condition` (int1) is false."""

    condition: Value = operand()
    message: str = attr(default="")

    def verify(self) -> None:
        require(elem_of(self.condition.type) == int1, self, "the condition is not int1")


MOST_MAPPED = 1 << 16  # elements of a tile that a report tells about


class CheckOp(Op, opcode="check", effects=Effect.WRITE):
    """Stop the launch where any element of `bad` (int1) is true, with a report of kind `kind` (an error's code).

    The report shows the last `values` under `labels`; its text is made from the values before them. `site`: the number
    of the access in the source that a check of programs that race belongs to, else -1.
    """

    bad: Value = operand()
    values: tuple[Value, ...] = operand(variadic=True)
    kind: str = attr()
    message: str = attr()
    labels: tuple[str, ...] = attr(default=())
    site: int = attr(default=-1)

    def verify(self) -> None:
        require(elem_of(self.bad.type) == int1, self, "`bad` is not int1")
        require(len(self.labels) <= len(self.values), self, "more labels than values")

    def samples(self, v: Value) -> tuple[int, ...] | None:
        """Return the elements of `v`, counted row by row, that a report shows; None: the bad one, or a scalar."""
        shape = shape_of(v.type)
        if shape in ((), shape_of(self.bad.type)):
            return None
        n = prod(shape)
        return tuple(range(n)) if n <= 4 else (0, 1, n - 2, n - 1)

    @property
    def mapped(self) -> int:
        """How many elements of `bad` a report tells, row by row from the first one; 0 of a scalar."""
        shape = shape_of(self.bad.type)
        return min(prod(shape), MOST_MAPPED) if shape else 0

    def row(self) -> dict[str, Any]:
        """Return the part of a report that is known at compile time, as JSON-able data."""
        elems = [elem_of(v.type) for v in self.values]
        samples = [self.samples(v) for v in self.values]
        return {
            "kind": self.kind,
            "message": self.message,
            "site": self.site,
            "labels": list(self.labels),
            "loc": pack_location(self.loc),
            "shape": list(shape_of(self.bad.type)),
            "mapped": self.mapped,
            "types": [e.name if isinstance(e, dtype) else "pointer" for e in elems],
            "counts": [1 if s is None else len(s) for s in samples],
            "shapes": [
                [] if s is None else list(shape_of(v.type))
                for v, s in zip(self.values, samples, strict=True)
            ],
        }


class PrintOp(Diagnostic, opcode="print", effects=Effect.WRITE):
    """Print `prefix` and the operands, one line per element."""

    args: tuple[Value, ...] = operand(variadic=True)
    prefix: str = attr(default="")
    hex: bool = attr(default=False)

    def label(self, number: int) -> str:
        """Return the text before the values of an operand; `number` counts operands."""
        return f"{self.prefix}(operand {number}) " if len(self.args) > 1 else self.prefix

    def widths(self, number: int) -> list[int]:
        """Return the characters for the index along each dimension of an operand; 0: as many as needed."""
        return [ceil(log10(n)) for n in shape_of(self.args[number].type)]


class BreakpointOp(Op, opcode="breakpoint", effects=Effect.WRITE):
    """Tell a debugger of the interpreter that control is here, where variables have `values` under `labels`, or the
    compile-time `constants`; one that `stops` is a call of `breakpoint()`, others mark lines."""

    values: tuple[Value, ...] = operand(variadic=True)
    labels: tuple[str, ...] = attr(default=())
    constants: tuple[tuple[str, Any], ...] = attr(default=())
    stops: bool = attr(default=True)

    def verify(self) -> None:
        require(len(self.labels) == len(self.values), self, "labels are not one a value")


class BarrierOp(Op, opcode="barrier", effects=Effect.SYNC):
    """All threads of the program wait for one another; shared memory written before is visible after."""


class AssumeOp(Diagnostic, opcode="assume", effects=Effect.WRITE):
    """A promise of the author: `condition` (int1) is true. Analyses read it, and back ends drop it."""

    condition: Value = operand()

    def verify(self) -> None:
        require(elem_of(self.condition.type) == int1, self, "the condition is not int1")
