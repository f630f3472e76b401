"""Implements the element-wise builtins: `where`, `maximum`, casts and the math functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tessera.dtypes import (
    UNSIGNED_INTS,
    block_type,
    by_array_name,
    dtype,
    float32,
    float64,
    int32,
    int64,
    pointer_type,
    uint32,
    uint64,
)  # fmt: skip
from tessera.errors import InvalidArgument, TypeMismatch
from tessera.frontend.semantics.hints import device_assert
from tessera.frontend.semantics.math import (
    binary,
    clamp,
    compare_op,
    extremum,
    logical,
    promote,
    where,
)
from tessera.frontend.semantics.registry import impl
from tessera.frontend.semantics.type_promotion import promote_types
from tessera.frontend.semantics.values import (
    bitcast,
    bitcast_raw,
    broadcast_values,
    cast,
    elem,
    operand_of,
    static,
    to_value,
    wrap,
)  # fmt: skip
from tessera.ir import Value
from tessera.language import arithmetic as tl
from tessera.language import creation as tlc
from tessera.language.values import tensor
from tessera.ops import MATH_OPS, AbsOp, DivOp, FmaOp, MulHiOp

if TYPE_CHECKING:
    from tessera.frontend.frontend import FrontEnd

_UNSIGNED = {d.bits: d for d in UNSIGNED_INTS}


# --- casts ---------------------------------------------------------------------------------------------
def as_dtype(x: object, function: str) -> dtype | pointer_type:
    """Return a dtype or pointer type given as an argument, or that of a block type (`x.to(y.type)`). Raises
    InvalidArgument for anything else, strings included."""
    x = static(x, f"the dtype of {function}()")
    if isinstance(x, block_type):
        x = x.scalar
    if isinstance(x, (dtype, pointer_type)):
        return x
    meant = by_array_name(str(getattr(x, "__name__", x)))
    raise InvalidArgument(
        argument="dtype", function=function, problem=f"expected a dtype such as tl.float32, got {x!r}",
        help=f"write `tl.{repr(meant).rsplit('.', 1)[-1]}`" if meant is not None else "write "
        "`tl.float32`, `tl.int32`, …",
    )  # fmt: skip


@impl(tlc.cast)
def cast_impl(
    fe: FrontEnd,
    input: object,
    dtype: object,
    fp_downcast_rounding: object = None,
    bitcast: object = False,
) -> tensor:
    to = as_dtype(dtype, "cast")
    rounding = static(fp_downcast_rounding, "fp_downcast_rounding")
    v = to_value(fe, operand_of(input))
    if static(bitcast, "bitcast"):
        return wrap(_bitcast(fe, v, to))
    if elem(v) == to:  # kernels ask for a rounding whatever type they are compiled for
        return wrap(v)
    if rounding is not None:
        _check_rounding(rounding, elem(v), to)
    return wrap(cast(fe, v, to, rounding))


_bitcast = bitcast


def _check_rounding(rounding: Any, have: Any, to: Any) -> None:
    if rounding not in ("rtne", "rtz"):
        raise InvalidArgument(
            argument="fp_downcast_rounding", function="cast",
            problem=f"expected 'rtne' or 'rtz', got {rounding!r}",
            help="'rtne' rounds to nearest even and is the default, 'rtz' towards zero",
        )  # fmt: skip
    narrows = have.is_floating() and to.is_floating() and have.bits > to.bits
    if not narrows:
        raise TypeMismatch(
            "fp_downcast_rounding should be set only for truncating fp conversions. "
            f"Source scalar type is {have} and destination type is {to}",
            argument="fp_downcast_rounding", help="leave it out",
        )  # fmt: skip
    if rounding == "rtz" and to.is_fp8() and to.name != "fp8e5":
        raise TypeMismatch(
            f"rounding 'rtz' to {to} is not supported", help="only fp8e5 of the fp8 types has it"
        )


# --- arithmetic ------------------------------------------------------------------------------------------
@impl(tl.add)
def add_impl(fe: FrontEnd, x: object, y: object, sanitize_overflow: object = True) -> tensor:
    return binary(fe, "add", x, y, static(sanitize_overflow, "sanitize_overflow"))


@impl(tl.sub)
def sub_impl(fe: FrontEnd, x: object, y: object, sanitize_overflow: object = True) -> tensor:
    return binary(fe, "sub", x, y, static(sanitize_overflow, "sanitize_overflow"))


@impl(tl.mul)
def mul_impl(fe: FrontEnd, x: object, y: object, sanitize_overflow: object = True) -> tensor:
    return binary(fe, "mul", x, y, static(sanitize_overflow, "sanitize_overflow"))


def _nan_wins(propagate_nan: object) -> bool:
    mode = static(propagate_nan, "propagate_nan")
    if mode not in (tl.PropagateNan.NONE, tl.PropagateNan.ALL):
        raise TypeMismatch(
            f"propagate_nan must be a tl.PropagateNan, got {mode!r}", argument="propagate_nan",
            help="write `tl.PropagateNan.ALL` or `tl.PropagateNan.NONE`",
        )  # fmt: skip
    return mode is tl.PropagateNan.ALL


@impl(tl.minimum)
def minimum_impl(
    fe: FrontEnd, x: object, y: object, propagate_nan: object = tl.PropagateNan.NONE
) -> tensor:
    return wrap(extremum(fe, True, operand_of(x), operand_of(y), _nan_wins(propagate_nan)))


@impl(tl.maximum)
def maximum_impl(
    fe: FrontEnd, x: object, y: object, propagate_nan: object = tl.PropagateNan.NONE
) -> tensor:
    return wrap(extremum(fe, False, operand_of(x), operand_of(y), _nan_wins(propagate_nan)))


@impl(tl.clamp)
def clamp_impl(
    fe: FrontEnd, x: object, min: object, max: object, propagate_nan: object = tl.PropagateNan.NONE
) -> tensor:
    low, high = operand_of(min), operand_of(max)
    return wrap(clamp(fe, operand_of(x), low, high, _nan_wins(propagate_nan)))


@impl(tl.where)
def where_impl(fe: FrontEnd, condition: object, x: object, y: object) -> tensor:
    return wrap(where(fe, operand_of(condition), operand_of(x), operand_of(y)))


@impl(tl.logical_and)
def logical_and_impl(fe: FrontEnd, input: object, other: object) -> tensor:
    return logical(fe, "and", input, other)


@impl(tl.logical_or)
def logical_or_impl(fe: FrontEnd, input: object, other: object) -> tensor:
    return logical(fe, "or", input, other)


# --- math functions ----------------------------------------------------------------------------------------
def float_operand(
    fe: FrontEnd, x: object, allowed: tuple[dtype, ...] = (float32, float64)
) -> Value:
    """Return the operand of a math function: an fp32 or fp64 tensor, or a number."""
    o = operand_of(x)
    v = to_value(fe, float(o) if isinstance(o, int) else o)
    if elem(v) not in allowed:
        names = [d.name for d in allowed]
        raise TypeMismatch(
            f"Expected dtype {names} but got {elem(v)}",
            help="load the values first: `tl.load(p)`" if isinstance(elem(v), pointer_type)
            else "cast the operand first: `x.to(tl.float32)`",
        )  # fmt: skip
    return v


def math_function(opcode: str, allowed: tuple[dtype, ...] = (float32, float64)) -> Any:
    """Return the implementation of a math function of one operand by the op of that name."""
    op = MATH_OPS[opcode]

    def unary_math(fe: FrontEnd, x: object) -> tensor:
        return wrap(fe.builder.emit(op(float_operand(fe, x, allowed))))

    return unary_math


for _name in ("exp", "exp2", "log", "log2", "sin", "cos", "sqrt", "rsqrt", "erf", "floor", "ceil"):
    impl(getattr(tl, _name))(math_function(_name))
impl(tl.sqrt_rn)(math_function("sqrt_rn", (float32,)))


@impl(tl.abs)
def abs_impl(fe: FrontEnd, x: object) -> tensor:
    v = to_value(fe, operand_of(x))
    e = elem(v)
    if isinstance(e, pointer_type):
        raise TypeMismatch(
            f"Unexpected dtype {e}: abs() takes numbers", help="load the values first: `tl.load(p)`"
        )
    return wrap(v if e.is_int_unsigned() else fe.builder.emit(AbsOp(v)))


def _floats(fe: FrontEnd, x: object, y: object, function: str) -> tuple[Value, Value]:
    a, b = operand_of(x), operand_of(y)
    va, vb = to_value(fe, a), to_value(fe, b)
    if not (elem(va).is_floating() and elem(vb).is_floating()):
        raise TypeMismatch(
            f"both operands of {function} must have floating scalar type",
            help="cast with `.to(tl.float32)`; the operator `/` does so for integers",
        )
    return promote(fe, va, vb, weak=False)


@impl(tl.fdiv)
def fdiv_impl(
    fe: FrontEnd, x: object, y: object, ieee_rounding: object = False, approx: object = False
) -> tensor:
    a, b = _floats(fe, x, y, "fdiv")
    exact = bool(static(ieee_rounding, "ieee_rounding"))
    if exact and static(approx, "approx"):
        raise InvalidArgument(
            "fdiv() cannot be both approximate and correctly rounded", help="give one of the two"
        )
    exact = exact or elem(a) is float64
    return wrap(fe.builder.emit(DivOp(a, b, exact=exact)))


@impl(tl.div_rn)
def div_rn_impl(fe: FrontEnd, x: object, y: object) -> tensor:
    a, b = promote(fe, operand_of(x), operand_of(y), weak=False)
    if elem(a) is not float32:
        raise TypeMismatch(
            f"Expected dtype ['fp32'] but got {elem(a)}",
            help="cast the operands first: `x.to(tl.float32)`",
        )
    return wrap(fe.builder.emit(DivOp(a, b, exact=True)))


@impl(tl.fma)
def fma_impl(fe: FrontEnd, x: object, y: object, z: object) -> tensor:
    operands = [to_value(fe, operand_of(a)) for a in (x, y, z)]
    to = promote_types(promote_types(elem(operands[0]), elem(operands[1])), elem(operands[2]))
    if not to.is_floating():
        raise TypeMismatch(f"fma needs floats, got {to}", help="write `x * y + z` for integers")
    a, b, c = broadcast_values(fe, [cast(fe, v, to) for v in operands])
    return wrap(fe.builder.emit(FmaOp(a, b, c)))


@impl(tl.umulhi)
def umulhi_impl(fe: FrontEnd, x: object, y: object) -> tensor:
    a, b = promote(fe, operand_of(x), operand_of(y), weak=False)
    e = elem(a)
    if e not in (int32, int64, uint32, uint64):
        raise TypeMismatch(f"Expected dtype ['int32', 'int64', 'uint32', 'uint64'] but got {e}")
    unsigned = _UNSIGNED[e.bits]
    high = fe.builder.emit(MulHiOp(bitcast_raw(fe, a, unsigned), bitcast_raw(fe, b, unsigned)))
    return wrap(bitcast_raw(fe, high, e))


@impl(tl.expect_zero)
def expect_zero_impl(fe: FrontEnd, x: object, mask: object) -> tensor:
    v = to_value(fe, operand_of(x))
    if fe.options.debug:
        is_zero = compare_op(fe, "eq", v, 0)
        device_assert(fe, is_zero, "expected zero", operand_of(mask))
    return wrap(v)
