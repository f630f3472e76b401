"""Implements tensor descriptors: their creation, and loads, stores and atomics of blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tessera.dtypes import block_type, dtype, int32, int64, pointer_type
from tessera.errors import (
    InvalidArgument,
    ShapeMismatch,
    TypeMismatch,
)
from tessera.frontend.semantics.registry import impl
from tessera.frontend.semantics.values import (
    NUMBERS,
    broadcast_to,
    const_raw,
    elem_of_operand,
    fit,
    operand_of,
    sequence,
    shape,
    shape_of_operand,
    spelled,
    static,
    static_shape,
    wrap,
)  # fmt: skip
from tessera.ir import Block, Op, Value, with_elem
from tessera.ir.types import ElementType
from tessera.language import memory as tl
from tessera.language import ragged
from tessera.language.descriptor import tensor_descriptor, tensor_descriptor_type
from tessera.language.values import constexpr, tensor
from tessera.ops import (
    AddOp,
    AddPtrOp,
    AndOp,
    BitcastOp,
    CmpOp,
    ConstOp,
    DescriptorGatherOp,
    DescriptorLoadOp,
    DescriptorScatterOp,
    DescriptorStoreOp,
    IfOp,
    MakeDescriptorOp,
    MulOp,
    SelectOp,
    ShrOp,
    YieldOp,
)

if TYPE_CHECKING:
    from tessera.frontend.frontend import FrontEnd

DROPPED_BITS = 13  # of the mantissa of an fp32 number that tf32 lacks
INFINITE = 0x7F800000  # the exponent of infinities and NaNs
_INTS = ("uint32", "int32", "uint64", "int64")
_ATOMICS = {
    "add": ("uint32", "int32", "uint64", "fp32", "fp16", "bf16"),
    **dict.fromkeys(("min", "max"), (*_INTS, "fp16", "bf16")),
    **dict.fromkeys(("and", "or", "xor"), _INTS),
}

_MAKE = "make one with `tl.make_tensor_descriptor(p, shape, strides, block_shape)`"


@impl(tl.make_tensor_descriptor)
def make_tensor_descriptor_impl(
    fe: FrontEnd,
    base: object,
    shape: object,
    strides: object,
    block_shape: object,
    padding_option: object = "zero",
) -> tensor_descriptor:
    if not isinstance(base, tensor) or not isinstance(base.type, pointer_type):
        raise TypeMismatch(
            f"make_tensor_descriptor() takes a scalar pointer, got {base}", argument="base",
            help="give the array argument itself; the offsets of a block are given to `desc.load`",
        )  # fmt: skip
    e, dims = base.type.element_ty, static_shape(fe, block_shape)
    extents, steps = sequence(shape), sequence(strides)
    _check_dims(e, dims, extents, steps)
    padding = static(padding_option, "padding_option")
    if padding not in ("zero", "nan"):
        raise InvalidArgument(
            argument="padding_option", function="make_tensor_descriptor", problem=f"{padding!r} is not 'zero' or 'nan'",
            help="pad with zeros, or choose other values with `tl.where` after the load",
        )  # fmt: skip
    if padding == "nan" and e.is_int():
        raise TypeMismatch(
            "Padding option `nan` is not supported for integer tensor descriptors",
            argument="padding_option", help='write `padding_option="zero"`',
        )  # fmt: skip
    sizes = [_integer(fe, x, int32, "shape") for x in extents]
    strides_ = [_integer(fe, x, int64, "strides") for x in steps]
    op = MakeDescriptorOp(base.handle, sizes, strides_, block_shape=dims, padding=padding)
    made = fe.builder.emit(op)
    kind = tensor_descriptor_type(block_type(e, dims))
    extents, steps = [wrap(v) for v in sizes], [wrap(v) for v in strides_]
    return tensor_descriptor(base, extents, steps, kind, padding == "nan", made)


def _made(fe: FrontEnd, desc: tensor_descriptor, nans: bool) -> Value:
    """Return the IR value of a descriptor whose padding is known; make it here if control flow carries its parts."""
    if desc.handle is not None:
        return desc.handle
    sizes = [n.handle for n in desc.shape.values]
    strides = [*(s.handle for s in desc.strides.values[:-1]), const_raw(fe, 1, int64)]
    op = MakeDescriptorOp(
        desc.base.handle,
        sizes,
        strides,
        block_shape=desc.block_type.shape,
        padding="nan" if nans else "zero",
    )
    return fe.builder.emit(op)


def _written(fe: FrontEnd, desc: tensor_descriptor) -> Value:
    """Return the IR value of a descriptor for an op that needs no padding."""
    return _made(fe, desc, False)


def _read(fe: FrontEnd, desc: tensor_descriptor, read: Callable[[Value], Op]) -> tensor:
    """Return the result of the op that `read` makes, rounded if the descriptor demands it."""
    found = _read_block(fe, desc, read)
    return wrap(_round_to_tf32(fe, found)) if desc.type.rounds else wrap(found)


def _round_to_tf32(fe: FrontEnd, x: Value) -> Value:
    """Round fp32 numbers to 10 bits of mantissa, to nearest even; infinities and NaNs stay."""
    emit, bits_type = fe.builder.emit, with_elem(x.type, int32)

    def number(value: int) -> Value:
        return emit(ConstOp(value=value, results=[bits_type]))

    bits = emit(BitcastOp(x, results=[bits_type]))
    odd = emit(AndOp(emit(ShrOp(bits, number(DROPPED_BITS))), number(1)))
    up = emit(AddOp(emit(AddOp(bits, number((1 << DROPPED_BITS - 1) - 1))), odd))
    rounded = emit(AndOp(up, number(-(1 << DROPPED_BITS))))
    exponent = emit(AndOp(bits, number(INFINITE)))
    finite = emit(CmpOp(exponent, number(INFINITE), predicate="ne"))
    return emit(SelectOp(finite, emit(BitcastOp(rounded, results=[x.type])), x))


def _read_block(fe: FrontEnd, desc: tensor_descriptor, read: Callable[[Value], Op]) -> Value:
    """Return the result of the op that `read` makes, under an `if` when the program decides on the padding."""
    if isinstance(desc.nans, constexpr):
        return fe.builder.emit(read(_made(fe, desc, desc.nans.value)))
    blocks = Block(), Block()
    for block, nans in zip(blocks, (True, False), strict=True):
        with fe.builder.at(block):
            v = fe.builder.emit(read(_made(fe, desc, nans)))
            fe.builder.insert(YieldOp([v]))
    (kind,) = (v.type for v in blocks[0].terminator.operands)
    return fe.builder.emit(IfOp(desc.nans.handle, regions=blocks, results=[kind]))


@impl(ragged.descriptor_slice)
def descriptor_slice_impl(
    fe: FrontEnd, desc: object, dim: object, start: object, size: object
) -> tensor_descriptor:
    if not isinstance(desc, tensor_descriptor):
        raise TypeMismatch(f"expected a tensor descriptor, got {desc}", help=_MAKE)
    at = int(static(dim, "ragged_dim"))
    if not 0 <= at < len(desc.shape):
        raise InvalidArgument(
            argument="ragged_dim", function="load_ragged", problem=f"{at} is no dimension of {desc.type}",
            help="dimensions are counted from 0",
        )  # fmt: skip
    extent = wrap(_integer(fe, size, int32, "slice size"))
    stride = desc.strides.values[at].handle
    skipped = fe.builder.emit(MulOp(_integer(fe, start, int64, "slice offset"), stride))
    base = wrap(fe.builder.emit(AddPtrOp(desc.base.handle, skipped)))
    sizes = [extent if i == at else n for i, n in enumerate(desc.shape)]
    return tensor_descriptor(base, sizes, desc.strides, desc.type, desc.nans)


def _check_dims(
    e: ElementType, dims: tuple[int, ...], extents: Sequence[object], steps: Sequence[object]
) -> None:
    rank = len(extents)
    if not 1 <= rank <= 5:
        raise ShapeMismatch(
            f"Expected 1 <= ndim <= 5 but got {rank} dimensions", argument="shape",
            help="merge dimensions that lie one behind the other, or use pointers",
        )  # fmt: skip
    if len(steps) != rank or len(dims) != rank:
        raise ShapeMismatch(
            f"Expected {rank} strides and block dimensions but got {len(steps)} and {len(dims)}",
            help="`shape`, `strides` and `block_shape` have one number for each dimension",
        )
    last = steps[-1].value if isinstance(steps[-1], constexpr) else steps[-1]
    if isinstance(last, tensor) or last != 1:
        raise ShapeMismatch(
            f"Tensor descriptor last dim must be 1 but got {last}", help="pass the constant 1 as the last stride"
        )  # fmt: skip
    if dims[-1] * e.storage_bytes < 16:
        raise ShapeMismatch(
            f"Descriptor block shape must have at least 16 bytes in the last dimension, "
            f"but got {dims[-1]} * {e.storage_bytes} = {dims[-1] * e.storage_bytes} bytes",
            argument="block_shape",
            help=f"the last extent is at least {16 // e.storage_bytes}: the hardware copies 16 bytes or more",
        )


def _integer(fe: FrontEnd, x: object, to: dtype, what: str) -> Value:
    o = operand_of(x)
    if shape_of_operand(o) or not elem_of_operand(o).is_int():
        raise TypeMismatch(
            f"the {what} of a tensor descriptor are integer scalars, got {x}",
            help="cast with `.to(tl.int32)`, and give one scalar for each dimension",
        )
    return fit(fe, o, to, ())


def _offsets(fe: FrontEnd, desc: object, offsets: object) -> list[Value]:
    if not isinstance(desc, tensor_descriptor):
        raise TypeMismatch(f"expected a tensor descriptor, got {desc}", help=_MAKE)
    places = [operand_of(x) for x in sequence(offsets)]
    rank = len(desc.block_type.shape)
    if len(places) != rank:
        raise ShapeMismatch(
            f"expected {rank} offsets, but got {len(places)}", argument="offsets",
            help="give one offset in elements for each dimension, as `desc.load([i, j])`",
        )  # fmt: skip
    for p in places:
        narrow = elem_of_operand(p).is_int() and (
            isinstance(p, NUMBERS) or elem_of_operand(p).bits <= 32
        )
        if shape_of_operand(p) or not narrow:
            raise TypeMismatch(
                f"descriptor offsets are int32 scalars, got {elem_of_operand(p)}", help="cast with `.to(tl.int32)`"
            )  # fmt: skip
    return [fit(fe, p, int32, ()) for p in places]


@impl(tl.load_tensor_descriptor)
def load_tensor_descriptor_impl(fe: FrontEnd, desc: Any, offsets: object) -> tensor:
    places = _offsets(fe, desc, offsets)
    return _read(fe, desc, lambda d: DescriptorLoadOp(d, places))


def _block(fe: FrontEnd, desc: tensor_descriptor, value: object, exact: bool) -> Value:
    """Return the value to store, in the block's shape and dtype; `exact` forbids a cast."""
    o = operand_of(value)
    dims = desc.block_type.shape
    if isinstance(o, Value) and shape(o) not in ((), dims):
        raise ShapeMismatch(
            f"the value has shape {list(shape(o))}, the descriptor's block {list(dims)}",
            argument="value", help="make the descriptor with this block shape, or reshape the value",
        )  # fmt: skip
    if exact and elem_of_operand(o) != desc.dtype:
        raise TypeMismatch(
            f"the value of a descriptor atomic must be {desc.dtype}, got {elem_of_operand(o)}",
            argument="value", help=f"cast it: `value.to({spelled(desc.dtype)})`",
        )  # fmt: skip
    v = fit(fe, o, desc.dtype, dims)
    return broadcast_to(fe, v, dims)


@impl(tl.store_tensor_descriptor)
def store_tensor_descriptor_impl(fe: FrontEnd, desc: Any, offsets: object, value: Any) -> None:
    places = _offsets(fe, desc, offsets)
    fe.builder.insert(DescriptorStoreOp(_written(fe, desc), places, _block(fe, desc, value, False)))
    return


def _rows(fe: FrontEnd, desc: object, x_offsets: object, y_offset: object) -> tuple[Value, Value]:
    """Return the rows (1-D int32) and the first column of a gather or scatter."""
    if not isinstance(desc, tensor_descriptor):
        raise TypeMismatch(f"expected a tensor descriptor, got {desc}", help=_MAKE)
    dims, bits = desc.block_type.shape, desc.dtype.bits
    if len(dims) != 2 or dims[0] != 1:
        raise ShapeMismatch(
            f"descriptor must be 2D with blocks of one row, but its block is {list(dims)}",
            help="make it with `block_shape=(1, columns)`",
        )
    rows, column = operand_of(x_offsets), operand_of(y_offset)
    e = elem_of_operand(rows)
    if len(shape_of_operand(rows)) != 1 or e.name not in ("int16", "int32"):
        raise TypeMismatch(
            f"x_offsets must be a 1D tile of int16 or int32, got {x_offsets}",
            argument="x_offsets", help="cast it: `x_offsets.to(tl.int32)`",
        )  # fmt: skip
    if shape_of_operand(rows)[0] < 8:
        raise ShapeMismatch(
            f"descriptor gather and scatter need at least 8 rows, but got {shape_of_operand(rows)[0]}"
        )
    if dims[1] < 32 // bits * 8:
        raise ShapeMismatch(
            f"descriptor gather and scatter of {desc.dtype} need blocks of at least {32 // bits * 8} columns,"
            f" but got {dims[1]}"
        )
    if shape_of_operand(column) or not elem_of_operand(column).is_int():
        raise TypeMismatch(f"y_offset must be an integer scalar, got {y_offset}")
    return fit(fe, rows, int32, shape_of_operand(rows)), fit(fe, column, int32, ())


@impl(tl.descriptor_gather)
def descriptor_gather_impl(fe: FrontEnd, desc: Any, x_offsets: object, y_offset: object) -> tensor:
    rows, column = _rows(fe, desc, x_offsets, y_offset)
    return _read(fe, desc, lambda d: DescriptorGatherOp(d, rows, column))


@impl(tl.descriptor_scatter)
def descriptor_scatter_impl(
    fe: FrontEnd, desc: Any, value: Any, x_offsets: object, y_offset: object
) -> None:
    rows, column = _rows(fe, desc, x_offsets, y_offset)
    dims = (*shape(rows), desc.block_type.shape[1])
    o = operand_of(value)
    if shape_of_operand(o) != dims:
        raise ShapeMismatch(
            f"the value has shape {list(shape_of_operand(o))}, the rows to scatter {list(dims)}"
        )
    v = fit(fe, o, desc.dtype, dims)
    fe.builder.insert(DescriptorScatterOp(_written(fe, desc), rows, column, v))
    return


def _atomic(kind: str) -> Any:
    def descriptor_atomic(fe: FrontEnd, desc: Any, offsets: object, value: Any) -> Any:
        places = _offsets(fe, desc, offsets)
        if desc.dtype.name not in _ATOMICS[kind]:
            raise TypeMismatch(
                f"Unsupported dtype {desc.dtype} for a descriptor's atomic_{kind}",
                help=f"it takes {', '.join(_ATOMICS[kind])}",
            )
        v = _block(fe, desc, value, True)
        fe.builder.insert(DescriptorStoreOp(_written(fe, desc), places, v, kind=kind))
        return None

    return descriptor_atomic


for _kind in _ATOMICS:
    impl(getattr(tl, f"descriptor_atomic_{_kind}"))(_atomic(_kind))
