"""Implements reduce, scan, histogram, gather, and the dtype rules of the library's reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tessera.dtypes import (
    SIGNED_INTS,
    bfloat16,
    float32,
    int1,
    int8,
    int32,
    is_power_of_two,
    uint32,
)  # fmt: skip
from tessera.dtypes import (
    dtype as dtype_class,
)
from tessera.errors import (
    CompilationError,
    InvalidArgument,
    NotConstexpr,
    ShapeMismatch,
    TypeMismatch,
)
from tessera.frontend.semantics.elementwise import as_dtype
from tessera.frontend.semantics.registry import impl
from tessera.frontend.semantics.shape import expand_dims, flatten, normal_axis, reshape
from tessera.frontend.semantics.values import (
    bitcast_raw,
    broadcast_to,
    cast,
    cast_raw,
    describe,
    elem,
    operand_of,
    shape,
    static,
    static_int,
    to_value,
    wrap,
)  # fmt: skip
from tessera.ir import Block, Value
from tessera.language import combine as tl
from tessera.language.values import tensor
from tessera.language.values import tuple as tl_tuple
from tessera.ops import GatherOp, HistogramOp, ReduceOp, ScanOp

if TYPE_CHECKING:
    from tessera.frontend.frontend import FrontEnd

_SIGNED = {d.bits: d for d in SIGNED_INTS}


# --- reduce and scan ---------------------------------------------------------------------------------------
def _inputs(fe: FrontEnd, input: object) -> tuple[list[Value], bool]:
    """Return the tiles to combine, and whether the result is a tuple, too."""
    is_tuple = isinstance(input, tl_tuple)
    values = [to_value(fe, operand_of(x)) for x in (input.values if is_tuple else [input])]
    if not values:
        raise InvalidArgument(
            argument="input",
            function="reduce",
            problem="the tuple is empty",
            help="give at least one tile",
        )
    if len({shape(v) for v in values}) != 1:
        raise ShapeMismatch(
            f"all inputs must have the same shape, got {input}", help="broadcast them first"
        )
    return values, is_tuple


def _combine_block(
    fe: FrontEnd, combine_fn: object, values: Sequence[Value], function: str
) -> Block:
    types = [elem(v) for v in values]
    try:
        block = fe.call_block(combine_fn, [*types, *types])
    except CompilationError as error:
        error.facts["argument"] = "combine_fn"
        raise error.note(
            f"{function}() calls its combine_fn with two scalars for each input, as in `def add(a, b): return a + b`"
        ) from error.__cause__
    returned = block.terminator.operands
    if [v.type for v in returned] != types:
        got = ", ".join(str(wrap(v)) if shape(v) else str(v.type) for v in returned)
        raise TypeMismatch(
            f"the combine function of {function}() returns ({got}) "
            f"for elements of type ({', '.join(map(str, types))})",
            help="it must return as many scalars as there are inputs, of the inputs' dtypes: cast with `.to(a.dtype)`",
        )
    return block


def reduce(
    fe: FrontEnd, values: list[Value], axis: int | None, combine_fn: object, keep_dims: bool
) -> list[Value]:
    """Return each of the reduced values; `axis` None combines all elements."""
    rank = len(shape(values[0]))
    if rank == 0:
        raise ShapeMismatch(
            "reduce() takes tiles, got a scalar",
            help="a scalar is its own sum: leave the reduction out",
        )
    if axis is None:
        values, at = [flatten(fe, v, reorder=True) for v in values], 0
    else:
        at = normal_axis(axis, rank)
    block = _combine_block(fe, combine_fn, values, "reduce")
    results = fe.builder.insert(ReduceOp(values, axis=at, regions=[block])).results
    if not keep_dims:
        return list(results)
    if axis is None:
        return [reshape(fe, r, (1,) * rank) for r in results]
    return [expand_dims(fe, r, at) for r in results]


_AXIS = "an axis is one number known at compile time, or None for all; two tiles are compared by `tl.maximum(x, y)`"


@impl(tl.reduce)
def reduce_impl(
    fe: FrontEnd, input: object, axis: object, combine_fn: object, keep_dims: object = False
) -> tl_tuple | tensor:
    values, is_tuple = _inputs(fe, input)
    if isinstance(axis, (tensor, tl_tuple)):
        raise NotConstexpr(
            what="the axis of reduce()", got=describe(axis), argument="axis", help=_AXIS
        )
    at = static(axis, "the axis of reduce()")
    at = None if at is None else static_int(axis, "the axis of reduce()")
    keep = bool(static(keep_dims, "keep_dims"))
    results = [wrap(v) for v in reduce(fe, values, at, static(combine_fn, "combine_fn"), keep)]
    return tl_tuple(results) if is_tuple else results[0]


@impl(tl.associative_scan)
def associative_scan_impl(
    fe: FrontEnd, input: object, axis: object, combine_fn: object, reverse: object = False
) -> tl_tuple | tensor:
    values, is_tuple = _inputs(fe, input)
    rank = len(shape(values[0]))
    if rank == 0:
        raise ShapeMismatch(
            "associative_scan() takes tiles, got a scalar",
            help="a scalar is its own sum: leave the scan out",
        )
    at = normal_axis(static_int(axis, "the axis of associative_scan()"), rank)
    block = _combine_block(fe, static(combine_fn, "combine_fn"), values, "associative_scan")
    backwards = bool(static(reverse, "reverse"))
    op = ScanOp(values, axis=at, reverse=backwards, regions=[block])
    results = [wrap(r) for r in fe.builder.insert(op).results]
    return tl_tuple(results) if is_tuple else results[0]


# --- dtype rules of the library's reductions ------------------------------------------------------------------
@impl(tl.widen_for_sum)
def widen_for_sum_impl(fe: FrontEnd, input: object, dtype: object = None) -> tensor:
    v = to_value(fe, operand_of(input))
    if static(dtype, "dtype") is not None:
        return wrap(cast(fe, v, as_dtype(dtype, "sum")))
    e = elem(v)
    if not isinstance(e, dtype_class):
        raise TypeMismatch(
            f"sum() takes numbers, got {e}", help="load the values first: `tl.sum(tl.load(p))`"
        )
    if e.is_int() and e.bits < 32:
        v = cast_raw(fe, v, int32 if e.signed else uint32)
    return wrap(v)


@impl(tl.widen_for_max)
def widen_for_max_impl(fe: FrontEnd, input: object, return_indices: object = False) -> tensor:
    v = to_value(fe, operand_of(input))
    e = elem(v)
    if not isinstance(e, dtype_class):
        raise TypeMismatch(
            f"max() and min() take numbers, got {e}",
            help="load the values first: `tl.max(tl.load(p))`",
        )
    if static(return_indices, "return_indices"):
        return wrap(cast(fe, v, float32) if e is bfloat16 else v)
    if e.bits < 32:
        v = cast(fe, v, float32 if e.is_floating() else int32)
    return wrap(v)


@impl(tl.promote_bf16)
def promote_bf16_impl(fe: FrontEnd, input: object) -> tensor:
    v = to_value(fe, operand_of(input))
    return wrap(cast_raw(fe, v, float32) if elem(v) is bfloat16 else v)


@impl(tl.bits_of)
def bits_of_impl(fe: FrontEnd, input: object) -> tensor:
    v = to_value(fe, operand_of(input))
    e = elem(v)
    return wrap(cast_raw(fe, v, int8) if e is int1 else bitcast_raw(fe, v, _SIGNED[e.bits]))


@impl(tl.from_bits)
def from_bits_impl(fe: FrontEnd, input: object, dtype: object) -> tensor:
    v, to = to_value(fe, operand_of(input)), as_dtype(dtype, "from_bits")
    return wrap(cast_raw(fe, v, int1) if to is int1 else bitcast_raw(fe, v, to))


# --- histogram and gather ---------------------------------------------------------------------------------------
@impl(tl.histogram)
def histogram_impl(fe: FrontEnd, input: object, num_bins: object, mask: object = None) -> tensor:
    v = to_value(fe, operand_of(input))
    if len(shape(v)) != 1:
        raise ShapeMismatch(
            f"histogram only supports 1D input, got {input}", help="flatten it: `tl.ravel(x)`"
        )
    if not elem(v).is_int():
        raise TypeMismatch(
            f"histogram only supports integer input, got {input}",
            help="the values are numbers of bins: `.to(tl.int32)`",
        )
    bins = static_int(num_bins, "num_bins")
    if not is_power_of_two(bins):
        raise InvalidArgument(
            argument="num_bins",
            function="histogram",
            problem=f"{bins} is not a power of 2",
            help="use `tessera.next_power_of_2(n)`: bins that no value names stay 0",
        )
    if elem(v).bits < 32:
        v = cast_raw(fe, v, int32 if elem(v).signed else uint32)
    m = None
    if mask is not None:
        m = to_value(fe, operand_of(mask))
        if elem(m) != int1:
            raise TypeMismatch(
                f"Mask must have boolean scalar type, got {elem(m)}",
                help="compare, for example `mask != 0`",
            )
        m = broadcast_to(fe, m, shape(v))
    return wrap(fe.builder.emit(HistogramOp(v, m, bins=bins)))


@impl(tl.gather)
def gather_impl(fe: FrontEnd, src: object, index: object, axis: object) -> tensor:
    v, i = to_value(fe, operand_of(src)), to_value(fe, operand_of(index))
    rank = len(shape(v))
    if not elem(i).is_int():
        raise TypeMismatch(
            f"index must be an integer tensor, got {describe(index)}",
            argument="index",
            help="cast it: `index.to(tl.int32)`",
        )
    if len(shape(i)) != rank or rank == 0:
        raise ShapeMismatch(
            f"source and index tensors must have the same rank, got {src} and {index}",
            help="`x[:, None]` adds a dimension",
        )
    at = normal_axis(static_int(axis, "the axis of gather()"), rank)
    for d, (m, n) in enumerate(zip(shape(v), shape(i), strict=True)):
        if d != at and m != n:
            raise ShapeMismatch(
                f"index dim {d} must match the corresponding source dim: {n} and {m}",
                help="the shapes may differ along `axis` only: broadcast the index first",
            )
    return wrap(fe.builder.emit(GatherOp(v, i, axis=at)))
