"""Lowers block pointers, which the IR does not have, to pointer arithmetic and masks.

A block pointer is an aggregate of scalars, so loops carry it like any other group of values. Extents and strides known
at compile time become run-time values where different block pointers join (`joining.py`). The address of
element (i, j) is base + (offsets[0] + i)·strides[0] + (offsets[1] + j)·strides[1]; a checked dimension adds the mask
0 <= offsets[d] + i < shape[d].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tessera.dtypes import dtype, int64, pointer_type
from tessera.errors import InvalidArgument, ShapeMismatch, TypeMismatch
from tessera.frontend.semantics.math import binary_op, compare_op
from tessera.frontend.semantics.registry import impl
from tessera.frontend.semantics.shape import normal_axis
from tessera.frontend.semantics.type_promotion import common_shape
from tessera.frontend.semantics.values import (
    Operand,
    broadcast_raw,
    broadcast_to,
    cast_raw,
    const_raw,
    elem_of_operand,
    fit,
    operand_of,
    sequence,
    shape,
    shape_of_operand,
    static_int,
    static_shape,
    tile,
    wrap,
)  # fmt: skip
from tessera.ir import Attributes, Value
from tessera.language import memory as tl
from tessera.language.block_pointer import block_pointer
from tessera.language.values import constexpr, tensor
from tessera.language.values import tuple as tl_tuple
from tessera.ops import AndOp, ArangeOp, ExpandDimsOp, LoadOp, StoreOp

if TYPE_CHECKING:
    from tessera.frontend.frontend import FrontEnd


def _scalars(fe: FrontEnd, xs: object, argument: str) -> list[Any]:
    """Return integers of the array's description: run-time ones as int64 tensors, compile-time ones as they are."""
    found: list[object] = []
    for x in sequence(xs):
        o = operand_of(x)
        if shape_of_operand(o) or not elem_of_operand(o).is_int():
            raise InvalidArgument(
                argument=argument, function="a block pointer", problem=f"expected integer scalars, got {x}",
                help="cast with `.to(tl.int32)`; one scalar stands for each dimension",
            )  # fmt: skip
        found.append(wrap(cast_raw(fe, o, int64)) if isinstance(o, Value) else constexpr(int(o)))
    return found


@impl(tl.make_block_ptr)
def make_block_ptr_impl(
    fe: FrontEnd,
    base: object,
    shape: object,
    strides: object,
    offsets: object,
    block_shape: object,
    order: object,
) -> Any:
    fe.warn("make_block_ptr is deprecated, use make_tensor_descriptor", DeprecationWarning)
    if not isinstance(base, tensor) or not isinstance(base.type, pointer_type):
        raise TypeMismatch(
            f"Expected `base` to be a pointer type (but not a block pointer type or others), got {base}",
            argument="base", help="give the array argument itself, a scalar pointer; `offsets` says "
            "where the block begins",
        )  # fmt: skip
    dims = static_shape(fe, block_shape)
    permutation = [static_int(o, "the order of make_block_ptr()") for o in sequence(order)]
    if sorted(permutation) != list(range(len(dims))):
        raise InvalidArgument(
            "Expected a permutation of (0, 1, ..., len(order)-1) in order", argument="order",
            help=f"an array in C order has order={tuple(reversed(range(len(dims))))}",
        )  # fmt: skip
    sizes, steps = _scalars(fe, shape, "shape"), _scalars(fe, strides, "strides")
    places = _tensors(fe, offsets)
    if {len(sizes), len(steps), len(places)} != {len(dims)}:
        raise ShapeMismatch(
            "Expected shape/strides/offsets/block_shape to have the same length",
            help=f"give one number for each of the block's {len(dims)} dimensions",
        )
    return block_pointer(base, tl_tuple(sizes), tl_tuple(steps), tl_tuple(places), constexpr(dims))


def _tensors(fe: FrontEnd, offsets: object) -> list[tensor]:
    """Return offsets as run-time int64 scalars, as they change between iterations."""
    return [wrap(fit(fe, operand_of(x), int64, ())) for x in _scalars(fe, offsets, "offsets")]


@impl(tl.advance)
def advance_impl(fe: FrontEnd, base: Any, offsets: Any) -> Any:
    if not isinstance(base, block_pointer):
        raise TypeMismatch(
            f"advance() moves a block pointer, got {base}", argument="base",
            help="a pointer is moved by `p + offset`",
        )  # fmt: skip
    steps = [operand_of(x) for x in _scalars(fe, offsets, "offsets")]
    places = [p.handle for p in base.offsets.values]
    if len(steps) != len(places):
        raise ShapeMismatch(
            f"advance() needs {len(places)} offsets, got {len(steps)}", argument="offsets",
            help="give one offset for each dimension, 0 where the block does not move",
        )  # fmt: skip
    moved = [
        p if isinstance(s, int) and s == 0 else binary_op(fe, "add", p, s, False)
        for p, s in zip(places, steps, strict=True)
    ]
    return block_pointer(
        base.base,
        base.shape,
        base.strides,
        tl_tuple([wrap(v) for v in moved]),
        base.block_shape,
    )


def _along(fe: FrontEnd, d: int, dims: tuple[int, ...]) -> Value:
    """Return 0, 1, … along dimension d, with extent 1 along the others."""
    v = fe.builder.emit(ArangeOp(start=0, end=dims[d]))
    for axis in range(len(dims)):
        if axis != d:
            v = fe.builder.emit(ExpandDimsOp(v, axis=axis))
    return v


def _addresses(fe: FrontEnd, p: block_pointer, dims: tuple[int, ...]) -> Value:
    ptr: Value = p.base.handle
    strides: list[Operand] = [operand_of(s) for s in p.strides.values]
    for place, stride in zip(p.offsets.values, strides, strict=True):
        ptr = binary_op(fe, "add", ptr, binary_op(fe, "mul", place.handle, stride, False))
    for d, stride in enumerate(strides):
        steps = _along(fe, d, dims)
        if isinstance(stride, Value):
            steps = cast_raw(fe, steps, int64)
        if stride != 1:
            steps = binary_op(fe, "mul", steps, stride, False)
        ptr = binary_op(fe, "add", ptr, steps)
    return broadcast_raw(fe, ptr, dims)


def _bounds(fe: FrontEnd, p: block_pointer, checked: object, dims: tuple[int, ...]) -> Value | None:
    axes = [normal_axis(static_int(c, "boundary_check"), len(dims)) for c in sequence(checked)]
    if len(set(axes)) != len(axes):
        raise InvalidArgument(
            "Duplicate dimension in `boundary_check`",
            argument="boundary_check",
            help="name each dimension once",
        )
    mask: Value | None = None
    for d in axes:
        place = cast_raw(fe, _along(fe, d, dims), int64)
        place = binary_op(fe, "add", place, p.offsets.values[d].handle, False)
        above = compare_op(fe, "ge", place, const_raw(fe, 0, int64))
        below = compare_op(fe, "lt", place, fit(fe, operand_of(p.shape.values[d]), int64, ()))
        inside = fe.builder.emit(AndOp(above, below))
        if mask is not None:
            both = common_shape(shape(mask), shape(inside))
            inside = fe.builder.emit(
                AndOp(broadcast_raw(fe, mask, both), broadcast_raw(fe, inside, both))
            )
        mask = inside
    return None if mask is None else broadcast_raw(fe, mask, dims)


def load_block(
    fe: FrontEnd, p: block_pointer, checked: object, padding: str, how: Attributes
) -> Value:
    """Load the block; outside the checked bounds 0, or NaN for padding "nan"."""
    dims: tuple[int, ...] = p.block_shape.value
    e = p.base.type.element_ty
    mask = _bounds(fe, p, checked, dims)
    fill = None
    if padding == "nan":
        if not (isinstance(e, dtype) and e.is_floating()):
            raise InvalidArgument(
                "Padding option `nan` is not supported for integer block pointers",
                argument="padding_option", help='write `padding_option="zero"`',
            )  # fmt: skip
        if mask is not None:
            fill = const_raw(fe, float("nan"), tile(dims, e))
    return fe.builder.emit(LoadOp(_addresses(fe, p, dims), mask, fill, **how))


def store_block(
    fe: FrontEnd, p: block_pointer, value: Operand, checked: object, how: Attributes
) -> None:
    dims: tuple[int, ...] = p.block_shape.value
    e = p.base.type.element_ty
    if isinstance(value, Value) and shape(value) not in ((), dims):
        v = broadcast_to(fe, value, dims)
    else:
        v = value
    mask = _bounds(fe, p, checked, dims)
    fe.builder.insert(StoreOp(_addresses(fe, p, dims), fit(fe, v, e, dims), mask, **how))
