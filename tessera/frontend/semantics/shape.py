"""Implements the program model, tile creation and shape manipulation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tessera.dtypes import dtype as dtype_class
from tessera.dtypes import pointer_type
from tessera.errors import (
    InvalidArgument,
    NotConstexpr,
    ShapeMismatch,
    TypeMismatch,
    UnsupportedLanguageConstruct,
)  # fmt: skip
from tessera.frontend.semantics.elementwise import as_dtype
from tessera.frontend.semantics.registry import impl
from tessera.frontend.semantics.values import (
    broadcast_raw,
    broadcast_to,
    broadcast_values,
    check_shape,
    const_raw,
    describe,
    elem,
    fit,
    is_extent,
    operand_of,
    scalar_of_one,
    sequence,
    shape,
    static,
    static_int,
    static_shape,
    tile,
    to_tensor,
    to_value,
    varargs,
    wrap,
)  # fmt: skip
from tessera.ir import Value
from tessera.ir.types import ElementType
from tessera.language import creation as tl
from tessera.language.values import constexpr, tensor
from tessera.language.values import slice as tl_slice
from tessera.language.values import tuple as tl_tuple
from tessera.ops import (
    ArangeOp,
    ExpandDimsOp,
    JoinOp,
    NumProgramsOp,
    ProgramIdOp,
    ReshapeOp,
    SplitOp,
    TransOp,
)  # fmt: skip

if TYPE_CHECKING:
    from tessera.frontend.frontend import FrontEnd


_COLUMN = "`x[:, None]` makes a column and `x[None, :]` a row; dimensions of 3-D tiles are swapped by `tl.permute`"


# --- program model ---------------------------------------------------------------------------------------
def _grid_axis(axis: object, function: str) -> int:
    i = static(axis, f"the axis of {function}()")
    if i not in (0, 1, 2):
        raise InvalidArgument(
            f"{function} axis must be 0, 1, or 2 but got {i}", argument="axis",
            help="a grid has three dimensions: compute further indices from one of them with `//` and `%`",
        )  # fmt: skip
    return int(i)


@impl(tl.program_id)
def program_id_impl(fe: FrontEnd, axis: object) -> tensor:
    return wrap(fe.builder.emit(ProgramIdOp(axis=_grid_axis(axis, "program_id"))))


@impl(tl.num_programs)
def num_programs_impl(fe: FrontEnd, axis: object) -> tensor:
    return wrap(fe.builder.emit(NumProgramsOp(axis=_grid_axis(axis, "num_programs"))))


# --- creation --------------------------------------------------------------------------------------------
@impl(tl.arange)
def arange_impl(fe: FrontEnd, start: object, end: object) -> tensor:
    bounds: list[int] = []
    for x in (start, end):
        value = x.value if isinstance(x, constexpr) else x
        if not isinstance(value, int):
            raise NotConstexpr(
                f"arange's arguments must be of type tl.constexpr, got {describe(x)}",
                help=None
                if isinstance(x, tensor)
                else "give an int: `//` divides ints, and `int(...)` converts a float on the host",
            )
        if not -(2**31) <= value < 2**31:
            raise InvalidArgument(
                "arange must fit in int32", help="add a larger offset afterwards, as int64"
            )
        bounds.append(int(value))
    low, high = bounds
    if high <= low:
        raise InvalidArgument(
            "arange's end argument must be greater than the start argument", argument="end",
            help="the range is `start` to `end` - 1: `tl.arange(0, n)` has n elements",
        )  # fmt: skip
    if not is_extent(fe, high - low):
        raise InvalidArgument(
            f"arange's range must be a power of 2, got {high - low}",
            argument="end",
            help="use tessera.next_power_of_2(n) and mask the elements from n on",
        )
    check_shape(fe, [high - low])
    return wrap(fe.builder.emit(ArangeOp(start=low, end=high)))


def full(fe: FrontEnd, dims: tuple[int, ...], value: object, e: ElementType) -> Value:
    o = operand_of(value)
    if isinstance(o, Value) and shape(o):
        if any(n != 1 for n in shape(o)):
            raise ShapeMismatch(
                f"full() takes a scalar value, got {value}", argument="value",
                help="a tile takes another shape by `tl.broadcast_to(x, shape)` and `tl.reshape`",
            )  # fmt: skip
        o = scalar_of_one(fe, o)
    return fit(fe, o, e, dims)


@impl(tl.full)
def full_impl(fe: FrontEnd, shape: object, value: object, dtype: object) -> tensor:
    if dtype is None:
        raise InvalidArgument(
            argument="dtype",
            function="full",
            problem="dtype must be specified when value is not a tensor",
        )
    return wrap(full(fe, static_shape(fe, shape), value, as_dtype(dtype, "full")))


@impl(tl.zeros)
def zeros_impl(fe: FrontEnd, shape: object, dtype: object) -> tensor:
    return wrap(const_raw(fe, 0, tile(static_shape(fe, shape), as_dtype(dtype, "zeros"))))


@impl(tl.zeros_like)
def zeros_like_impl(fe: FrontEnd, input: object) -> tensor:
    v = to_value(fe, operand_of(input))
    if not isinstance(elem(v), dtype_class):
        raise TypeMismatch(
            f"zeros_like() takes numbers, got {input}", help="give the tile that `tl.load` reads"
        )
    return wrap(const_raw(fe, 0, v.type))


@impl(tl.to_tensor)
def to_tensor_impl(fe: FrontEnd, x: object) -> tensor:
    return to_tensor(fe, x)


@impl(tl.cat)
def cat_impl(
    fe: FrontEnd, input: object, other: object, can_reorder: object = False, dim: object = 0
) -> tensor:
    a, b = to_value(fe, operand_of(input)), to_value(fe, operand_of(other))
    if a.type != b.type or not shape(a):
        raise ShapeMismatch(
            f"cat() takes two tiles of one type, got {input} and {other}",
            help="cast one with `.to(...)`, and give both the same shape",
        )
    d = normal_axis(static_int(dim, "the dim of cat()"), len(shape(a)))
    # The halves are adjacent in a new last dimension; moved before `d`, it merges with it.
    rank = len(shape(a))
    joined = fe.builder.emit(JoinOp(a, b))
    order = (*range(d), rank, *range(d, rank))
    moved = fe.builder.emit(TransOp(joined, order=order))
    dims = shape(a)
    return wrap(reshape(fe, moved, (*dims[:d], 2 * dims[d], *dims[d + 1 :])))


# --- shape -----------------------------------------------------------------------------------------------
def normal_axis(axis: int, rank: int, what: str = "axis") -> int:
    """Return a possibly negative axis as one in [0, rank)."""
    if not -rank <= axis < rank:
        raise InvalidArgument(
            f"invalid {what} {axis}. Expected {-rank} <= {what} < {rank}", argument=what,
            help=f"the {what} is counted from 0, from the last one backwards as -1",
        )  # fmt: skip
    return axis % rank


def reshape(fe: FrontEnd, v: Value, dims: tuple[int, ...], reorder: bool = False) -> Value:
    have = shape(v)
    if have == dims:
        return v
    a = b = 1
    for n in have:
        a *= n
    for n in dims:
        b *= n
    if a != b:
        raise ShapeMismatch(
            "reshape() cannot change total number of elements in tensor",
            help=f"{list(have)} has {a} elements, {list(dims)} has {b}",
        )
    if not have:
        return broadcast_raw(fe, v, dims)
    return fe.builder.emit(ReshapeOp(v, reorder=reorder, results=(tile(dims, elem(v)),)))


@impl(tl.reshape)
def reshape_impl(
    fe: FrontEnd, input: object, *shape: object, can_reorder: object = False
) -> tensor:
    dims = static_shape(fe, tl_tuple(varargs(shape)))
    return wrap(reshape(fe, _value(fe, input), dims, bool(static(can_reorder, "can_reorder"))))


@impl(tl.view)
def view_impl(fe: FrontEnd, input: object, *shape: object) -> tensor:
    fe.warn("view is deprecated, use reshape with can_reorder=True", DeprecationWarning)
    return wrap(reshape(fe, _value(fe, input), static_shape(fe, tl_tuple(varargs(shape))), True))


@impl(tl.ravel)
def ravel_impl(fe: FrontEnd, x: object, can_reorder: object = False) -> tensor:
    v = _value(fe, x)
    return wrap(flatten(fe, v, bool(static(can_reorder, "can_reorder"))))


def flatten(fe: FrontEnd, v: Value, reorder: bool = False) -> Value:
    numel = 1
    for n in shape(v):
        numel *= n
    return reshape(fe, v, (numel,), reorder)


def _value(fe: FrontEnd, x: object) -> Value:
    return to_value(fe, operand_of(x))


def expand_dims(fe: FrontEnd, v: Value, axis: int) -> Value:
    """Insert one dimension; a scalar becomes a tile of one element."""
    if not shape(v):
        return broadcast_raw(fe, v, (1,))
    return fe.builder.emit(ExpandDimsOp(v, axis=axis))


@impl(tl.expand_dims)
def expand_dims_impl(fe: FrontEnd, input: object, axis: object) -> tensor:
    v = _value(fe, input)
    axes = [static_int(a, "the axis of expand_dims()") for a in sequence(axis)]
    rank = len(shape(v)) + len(axes)
    wanted = sorted(normal_axis(a, rank) for a in axes)
    if len(set(wanted)) != len(wanted):
        raise InvalidArgument(
            f"expand_dims received duplicate axes, normalized axes = {wanted}", argument="axis",
            help="name each new dimension once",
        )  # fmt: skip
    for a in wanted:
        v = expand_dims(fe, v, a)
    return wrap(v)


def subscript(fe: FrontEnd, x: tensor, indices: Sequence[object]) -> tensor:
    """Return `x[indices]`: None inserts a dimension, a full `:` keeps one, if any; other indices are errors."""
    v = x.handle
    for axis, index in enumerate(indices):
        i = index.value if isinstance(index, constexpr) else index
        if i is None:
            v = expand_dims(fe, v, axis)
        elif not _is_full_slice(i):
            elements = (
                "read with `tl.load(p + i)`"
                if isinstance(elem(v), pointer_type)
                else "chosen with `tl.gather` or `tl.sum(tl.where(i == 3, x, 0))`, or read from memory by `tl.load`"
            )
            raise UnsupportedLanguageConstruct(
                f"unsupported tensor index: {index}",
                help=f"only None and `:` index a tensor; elements are {elements}",
            )
    return wrap(v)


def _is_full_slice(i: object) -> bool:
    if isinstance(i, tl_slice):
        return i.is_full()
    return isinstance(i, slice) and i == slice(None)


@impl(tl.squeeze)
def squeeze_impl(fe: FrontEnd, x: object, dim: object) -> tensor:
    v = _value(fe, x)
    d = normal_axis(static_int(dim, "the dim of squeeze()"), len(shape(v)), "dim")
    dims = shape(v)
    if dims[d] != 1:
        raise ShapeMismatch(
            f"squeeze() drops dimensions of extent 1; dimension {d} of {list(dims)} has {dims[d]}",
            help="name a dimension of extent 1, or reduce this one with `tl.sum(x, axis)`",
        )
    return wrap(reshape(fe, v, (*dims[:d], *dims[d + 1 :])))


@impl(tl.unsqueeze)
def unsqueeze_impl(fe: FrontEnd, x: object, dim: object) -> tensor:
    v = _value(fe, x)
    d = normal_axis(static_int(dim, "the dim of unsqueeze()"), len(shape(v)) + 1, "dim")
    return wrap(expand_dims(fe, v, d))


@impl(tl.broadcast)
def broadcast_impl(fe: FrontEnd, input: object, other: object) -> tl_tuple:
    return tl_tuple([wrap(v) for v in broadcast_values(fe, [_value(fe, input), _value(fe, other)])])


def broadcast(fe: FrontEnd, *xs: object) -> list[tensor]:
    """Return tensors and numbers in their common shape."""
    return [wrap(v) for v in broadcast_values(fe, [_value(fe, x) for x in xs])]


@impl(tl.broadcast_to)
def broadcast_to_impl(fe: FrontEnd, input: object, *shape: object) -> tensor:
    return wrap(broadcast_to(fe, _value(fe, input), static_shape(fe, tl_tuple(varargs(shape)))))


def transpose(fe: FrontEnd, v: Value, order: tuple[int, ...]) -> Value:
    if order == tuple(range(len(order))):
        return v
    return fe.builder.emit(TransOp(v, order=order))


def _permutation(dims: Sequence[object], rank: int, function: str) -> tuple[int, ...]:
    given = [static_int(d, f"the dims of {function}()") for d in varargs(dims)]
    order = tuple(d % rank if -rank <= d < rank else d for d in given) if rank else ()
    if sorted(order) != list(range(rank)):
        raise ShapeMismatch(
            f"{function}: permuted dims {given} must be a permutation of 0, …, {rank - 1}",
            help=f"name each dimension once, as in `tl.permute(x, {', '.join(map(str, range(rank)))})`",
        )
    return order


@impl(tl.trans)
def trans_impl(fe: FrontEnd, input: object, *dims: object) -> tensor:
    v = _value(fe, input)
    rank = len(shape(v))
    if dims:
        return wrap(transpose(fe, v, _permutation(dims, rank, "trans")))
    if rank < 2:
        raise ShapeMismatch("tl.trans invoked with a 0- or 1-dimensional tensor", help=_COLUMN)
    return wrap(transpose(fe, v, (*range(rank - 2), rank - 1, rank - 2)))


@impl(tl.permute)
def permute_impl(fe: FrontEnd, input: object, *dims: object) -> tensor:
    v = _value(fe, input)
    return wrap(transpose(fe, v, _permutation(dims, len(shape(v)), "permute")))


# --- join and split ----------------------------------------------------------------------------------------
def join(fe: FrontEnd, a: Value, b: Value) -> Value:
    if elem(a) != elem(b):
        raise TypeMismatch(
            f"join() takes two tensors of one dtype, got {elem(a)} and {elem(b)}",
            help="cast one of them with `.to(...)`",
        )
    a, b = broadcast_values(fe, [a, b])
    check_shape(fe, [*shape(a), 2])
    return fe.builder.emit(JoinOp(a, b))


@impl(tl.join)
def join_impl(fe: FrontEnd, a: object, b: object) -> tensor:
    return wrap(join(fe, _value(fe, a), _value(fe, b)))


@impl(tl.interleave)
def interleave_impl(fe: FrontEnd, a: object, b: object) -> tensor:
    joined = join(fe, _value(fe, a), _value(fe, b))
    dims = shape(joined)
    if len(dims) == 1:
        return wrap(joined)
    return wrap(reshape(fe, joined, (*dims[:-2], 2 * dims[-2])))


@impl(tl.split)
def split_impl(fe: FrontEnd, a: object) -> tl_tuple:
    v = _value(fe, a)
    if shape(v)[-1:] != (2,):
        raise ShapeMismatch(
            f"split() needs a last dimension of extent 2, got {list(shape(v))}",
            help="reshape first, as `tl.split(tl.reshape(x, (n, 2)))`",
        )
    return tl_tuple([wrap(r) for r in fe.builder.insert(SplitOp(v)).results])


@impl(tl.item)
def item_impl(fe: FrontEnd, x: object) -> tensor:
    v = _value(fe, x)
    if any(n != 1 for n in shape(v)):
        raise ShapeMismatch(
            f"item() takes a tensor of one element, got {x}", help="reduce it first, as `tl.sum(x)`"
        )
    return wrap(scalar_of_one(fe, v) if shape(v) else v)
