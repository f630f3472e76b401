"""Implements `dot`: the rules of operand dtypes, result dtype and precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.dtypes import (
    bfloat16,
    dtype,
    float8e4b15,
    float16,
    float32,
    float64,
    int8,
    int32,
    pointer_type,
)  # fmt: skip
from tessera.errors import InvalidArgument, NotConstexpr, ShapeMismatch, TypeMismatch, suggestion
from tessera.frontend.semantics.elementwise import as_dtype
from tessera.frontend.semantics.registry import impl
from tessera.frontend.semantics.shape import reshape
from tessera.frontend.semantics.values import (
    cast_raw,
    const_raw,
    describe,
    elem,
    operand_of,
    shape,
    spelled,
    static,
    to_value,
    wrap,
)  # fmt: skip
from tessera.ir import TileType, Value
from tessera.language import combine as tl
from tessera.language.values import tensor
from tessera.ops import DotOp

if TYPE_CHECKING:
    from tessera.frontend.frontend import FrontEnd

_OPERANDS = (int8, float16, bfloat16, float32, float64)
_MIN_K = {8: 32, 16: 16, 32: 8, 64: 4}  # element bits → smallest K


@impl(tl.dot)
def dot_impl(
    fe: FrontEnd,
    input: object,
    other: object,
    acc: object = None,
    input_precision: object = None,
    allow_tf32: object = None,
    max_num_imprecise_acc: object = None,
    out_dtype: object = None,
) -> tensor:
    a, b = (to_value(fe, operand_of(x)) for x in (input, other))
    c = None if acc is None else to_value(fe, operand_of(acc))
    if isinstance(c, Value) and not shape(c):
        raise ShapeMismatch(
            f"the accumulator of dot() must be a tile, got {acc}",
            help="begin with `tl.zeros((M, N), tl.float32)`",
        )
    precision = _precision(
        fe, static(input_precision, "input_precision"), static(allow_tf32, "allow_tf32")
    )
    to = None if static(out_dtype, "out_dtype") is None else as_dtype(out_dtype, "dot")
    if isinstance(to, pointer_type):
        raise InvalidArgument(
            argument="out_dtype",
            function="dot",
            problem=f"expected a type of numbers, got {to}",
            help="write `tl.float32`",
        )
    limit = static(max_num_imprecise_acc, "max_num_imprecise_acc")
    return wrap(dot(fe, a, b, c, precision, limit, to))


def dot(
    fe: FrontEnd,
    a: Value,
    b: Value,
    acc: Value | None,
    precision: str,
    max_imprecise: int | None = None,
    out_dtype: dtype | None = None,
) -> Value:
    """Return a[.., M, K] @ b[.., K, N] + acc[.., M, N]; several leading dimensions become one batch dimension."""
    _check_numbers(a, b)
    _check_shapes(fe, a, b)
    _check_operands(a, b)
    if float8e4b15 in (elem(a), elem(b)):
        a, b = cast_raw(fe, a, float16), cast_raw(fe, b, float16)
    result = _result_dtype(elem(a), None if acc is None else elem(acc), out_dtype)
    dims = (*shape(a)[:-1], shape(b)[-1])
    if acc is None:
        acc = const_raw(fe, 0, TileType(dims, result))
    elif shape(acc) != dims:
        raise ShapeMismatch(
            f"accumulator shape is incompatible: {list(shape(acc))}, expected {list(dims)}",
            argument="acc", help=f"begin with `tl.zeros({dims}, tl.float32)`",
        )  # fmt: skip
    elif elem(acc) != result:
        raise TypeMismatch(
            f"expected accumulator dtype {result}, got {elem(acc)}; pass out_dtype={elem(acc)}",
            argument="acc", help=f"begin with `tl.zeros(shape, {spelled(result)})`, and cast the sum at the end",
        )  # fmt: skip
    k = shape(a)[-1]
    if max_imprecise is not None and elem(a).is_fp8() and max_imprecise > k:
        raise InvalidArgument(
            f"max_num_imprecise_acc ({max_imprecise}) must be <= K ({k})",
            argument="max_num_imprecise_acc", help="leave it out: the default is right",
        )  # fmt: skip
    if len(dims) > 3:
        return _batched(fe, a, b, acc, dims, precision, max_imprecise or 0)
    op = DotOp(a, b, acc, precision=precision, max_imprecise=max_imprecise or 0)
    return fe.builder.emit(op)


def _batched(
    fe: FrontEnd, a: Value, b: Value, acc: Value, dims: tuple[int, ...], precision: str, limit: int
) -> Value:
    n = 1
    for s in dims[:-2]:
        n *= s
    flat = [reshape(fe, v, (n, *shape(v)[-2:])) for v in (a, b, acc)]
    product = fe.builder.emit(DotOp(*flat, precision=precision, max_imprecise=limit))
    return reshape(fe, product, dims)


def _check_shapes(fe: FrontEnd, a: Value, b: Value) -> None:
    x, y = shape(a), shape(b)
    facts = f"{list(x)} and {list(y)}"
    if len(x) != len(y) or len(x) < 2:
        raise ShapeMismatch(
            f"input and other must have equal ranks >= 2, got {facts}",
            help="dot multiplies [M, K] by [K, N]: `x[:, None]` adds a dimension, and `tl.sum(x * y)` "
            "is the product of vectors",
        )
    if x[:-2] != y[:-2]:
        raise ShapeMismatch(
            f"input and other must have equal batch shapes, got {facts}",
            help="broadcast one operand first, as `tl.broadcast_to(x, shape)`",
        )
    if x[-1] != y[-2]:
        raise ShapeMismatch(
            f"input and other must have equal reduction dimensions, got {facts}",
            help="dot multiplies [M, K] by [K, N]; transpose an operand with tl.trans if it lies the other way",
        )
    k = _MIN_K.get(elem(a).bits, 1)
    if x[-1] < k and fe.options.backend_name == "cuda":
        raise ShapeMismatch(
            f"Input shapes should have M >= 1, N >= 1 and K >= {k}, got {facts}",
            help=f"make K at least {k}, masking what is beyond the end, or use `tl.sum(x[:, :, None] * "
            f"y[None, :, :], 1)`",
        )


def _check_numbers(a: Value, b: Value) -> None:
    x, y = elem(a), elem(b)
    if not (isinstance(x, dtype) and isinstance(y, dtype)):
        raise TypeMismatch(
            f"dot() multiplies numbers, got {x} and {y}",
            help="load the values first: `tl.load(p + offsets)`",
        )


def _check_operands(a: Value, b: Value) -> None:
    x, y = elem(a), elem(b)
    if x.is_fp8() and y.is_fp8():
        return
    if x.name == "uint8" or y.name == "uint8":
        raise TypeMismatch("only int8 supported!", help="cast the operands to int8")
    for side, t in (("lhs", x), ("rhs", y)):
        if t not in _OPERANDS and not t.is_fp8():
            raise TypeMismatch(
                f"Unsupported {side} dtype {t}",
                help="operands are fp8, int8, fp16, bf16, fp32 or fp64",
            )
    if x != y:
        raise TypeMismatch(
            f"Both operands must be same dtype. Got {x} and {y}", help="cast one with `.to(...)`"
        )


# whatever `out_dtype` is
_RESULTS = {int8: int32, float64: float64, bfloat16: float32, float32: float32}


def _result_dtype(operand: dtype, acc: dtype | None, out: dtype | None) -> dtype:
    result = _RESULTS.get(operand) or out or acc or float32
    if out is bfloat16 or (operand not in _RESULTS and result not in (float16, float32)):
        name = repr(out or acc).rpartition(".")[2]
        raise TypeMismatch(
            f"out_dtype={name} is unsupported. Please use out_dtype=float32/float16 and cast with `.to(tl.{name})`",
            argument="out_dtype", help=f"write `tl.dot(a, b).to(tl.{name})`",
        )  # fmt: skip
    return result


def _precision(fe: FrontEnd, given: object, allow_tf32: object) -> str:
    allowed = fe.options.allowed_dot_input_precisions
    if given is not None and allow_tf32 is not None:
        raise InvalidArgument(
            "Only one of input_precision and allow_tf32 can be specified",
            argument="allow_tf32", help="leave out `allow_tf32`: `input_precision` says it all",
        )  # fmt: skip
    if given is None:
        default = fe.options.default_dot_input_precision
        usable = "tf32" in allowed and allow_tf32 is not False
        return default if default != "tf32" or usable else "ieee"
    if not isinstance(given, str):
        raise NotConstexpr(what="input_precision", got=describe(given))
    if given.lower() not in allowed:
        raise InvalidArgument(
            argument="input_precision", function="dot",
            problem=f"{given!r} is not one of {tuple(allowed)}",
            help=suggestion(given, allowed) or f"give one of {', '.join(map(repr, allowed))}",
        )  # fmt: skip
    return given.lower()
