"""Implements arithmetic on operands: promotion, operators, comparisons, selection.

    binary(fe, "add", x, 0.5)      # language values in, a tensor out; `binary_op` is the same on operands

A number next to a tensor is weak for operators and `where`; comparisons, `maximum`, `fma`… first give it its default
dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.dtypes import (
    SIGNED_INTS,
    UNSIGNED_INTS,
    bfloat16,
    dtype,
    float32,
    float64,
    int1,
    int32,
    int64,
    pointer_type,
)
from tessera.errors import TypeMismatch
from tessera.frontend.semantics.type_promotion import (
    check_fits,
    common_shape,
    promote_number,
    promote_types,
)
from tessera.frontend.semantics.values import (
    Operand,
    bitcast_raw,
    broadcast_raw,
    broadcast_values,
    cast,
    cast_raw,
    const_raw,
    elem,
    elem_of_operand,
    fit,
    operand_of,
    shape,
    shape_of_operand,
    to_bool,
    to_value,
    wrap,
)  # fmt: skip
from tessera.ir import Op, Value
from tessera.language.values import tensor
from tessera.ops import (
    AddOp,
    AddPtrOp,
    AndOp,
    AssertOp,
    CmpOp,
    DivOp,
    MaxOp,
    MinOp,
    MulOp,
    NegOp,
    OrOp,
    RemOp,
    SelectOp,
    ShlOp,
    ShrOp,
    SubOp,
    XorOp,
)  # fmt: skip

if TYPE_CHECKING:
    from tessera.frontend.frontend import FrontEnd

SYMBOLS = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "&": "and", "|": "or",
    "^": "xor", "<<": "lshift", ">>": "rshift", "==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge",
}  # fmt: skip
_ARITHMETIC: dict[str, type[Op]] = {"add": AddOp, "sub": SubOp, "mul": MulOp}
_BITWISE: dict[str, type[Op]] = {
    "and": AndOp,
    "or": OrOp,
    "xor": XorOp,
    "lshift": ShlOp,
    "rshift": ShrOp,
}
# int1 wraps: + and - are exclusive or, * is and. Shifting a bit by anything but 0 is undefined.
_ON_BITS: dict[str, type[Op]] = {"add": XorOp, "sub": XorOp, "mul": AndOp}

_SIGNED = {d.bits: d for d in SIGNED_INTS}
_UNSIGNED = {d.bits: d for d in UNSIGNED_INTS}


# --- entry points on language values ----------------------------------------------------------------------
def binary(
    fe: FrontEnd, op: str, lhs: object, rhs: object, sanitize_overflow: bool = True
) -> tensor:
    """Return `lhs op rhs`; `op` is a Python operator or its name: "add", "truediv", "lshift", …"""
    name = SYMBOLS.get(op, op)
    return wrap(binary_op(fe, name, operand_of(lhs), operand_of(rhs), sanitize_overflow))


def compare(fe: FrontEnd, op: str, lhs: object, rhs: object) -> tensor:
    """Return `lhs op rhs` as int1; `op` is a comparison operator or one of eq, ne, lt, le, gt, ge."""
    return wrap(compare_op(fe, SYMBOLS.get(op, op), operand_of(lhs), operand_of(rhs)))


def unary(fe: FrontEnd, op: str, x: object) -> tensor:
    """Apply the operator `op`: "neg" ("-"), "invert" ("~") or "not"."""
    v = to_value(fe, operand_of(x))
    if op in ("neg", "-"):
        return wrap(negate(fe, v))
    if op in ("invert", "~"):
        return wrap(invert(fe, v))
    if op == "not":
        return wrap(logical_not(fe, v))
    raise TypeMismatch(
        f"bad operand type for unary {op}: {elem(v)}", help="cast the operand with `.to(...)`"
    )


def logical(fe: FrontEnd, op: str, lhs: object, rhs: object) -> tensor:
    """Return `lhs and rhs` or `lhs or rhs` (op "and", "or") of int1 operands."""
    a, b = (_as_bit(to_value(fe, operand_of(x))) for x in (lhs, rhs))
    if shape(a) or shape(b):
        fe.warn(
            f"logical `{op}` of tensors that are no scalars is deprecated: use `{'&' if op == 'and' else '|'}`",
            UserWarning,
        )
    return wrap(binary_op(fe, op, a, b))


# --- promotion ---------------------------------------------------------------------------------------------
def promote(
    fe: FrontEnd, lhs: Operand, rhs: Operand, weak: bool = True, division: bool = False
) -> tuple[Value, Value]:
    """Return both operands in their common dtype and shape. `weak`: numbers take the other's dtype if they may."""
    left_number, right_number = not isinstance(lhs, Value), not isinstance(rhs, Value)
    if not (left_number or right_number or division) and lhs.type == rhs.type:  # type: ignore[union-attr]
        _arithmetic_elem(lhs)
        return lhs, rhs  # type: ignore[return-value]
    if weak and left_number != right_number:
        v, number = (rhs, lhs) if left_number else (lhs, rhs)
        e = _arithmetic_elem(v)
        to = promote_number(e, number, division)  # type: ignore[arg-type]
        check_fits(number, to)  # type: ignore[arg-type]
    else:
        to = promote_types(_arithmetic_elem(lhs), _arithmetic_elem(rhs), division)
    dims = common_shape(shape_of_operand(lhs), shape_of_operand(rhs))
    return fit(fe, lhs, to, dims), fit(fe, rhs, to, dims)


def _arithmetic_elem(x: Operand) -> dtype:
    e = elem_of_operand(x)
    if isinstance(e, pointer_type):
        raise TypeMismatch(
            f"invalid operands of type {e}", help="pointers can only be added to integers: compute with the value, "
            "`tl.load(p)`; an address is `p.to(tl.int64)`, and an array of one number is passed as `int(x)`"
        )  # fmt: skip
    return e


def _invalid(a: object, b: object, help: str | None = None) -> TypeMismatch:
    return TypeMismatch(f"invalid operands of type {a!r} and {b!r}", help=help)


# --- operators ---------------------------------------------------------------------------------------------
def binary_op(
    fe: FrontEnd, name: str, lhs: Operand, rhs: Operand, sanitize_overflow: bool = True
) -> Value:
    """Return `lhs op rhs` by Python's name of the operator ("add", "truediv"), after promotion and broadcast."""
    left, right = elem_of_operand(lhs), elem_of_operand(rhs)
    if isinstance(left, pointer_type) or isinstance(right, pointer_type):
        return _pointer_arithmetic(fe, name, lhs, rhs)
    if name in _ARITHMETIC:
        a, b = promote(fe, lhs, rhs)
        if elem(a) is int1:
            return fe.builder.emit(_ON_BITS[name](a, b))
        if sanitize_overflow and fe.options.debug and fe.options.sanitize_overflow:
            _assert_no_overflow(fe, name, a, b)
        return fe.builder.emit(_ARITHMETIC[name](a, b))
    if name == "truediv":
        return _true_division(fe, lhs, rhs)
    if name in ("floordiv", "mod"):
        return _integer_division(fe, name, lhs, rhs)
    return _bitwise(fe, name, lhs, rhs)


def _true_division(fe: FrontEnd, lhs: Operand, rhs: Operand) -> Value:
    a, b = promote(fe, lhs, rhs, division=True)
    if elem(a).is_int():
        a, b = cast_raw(fe, a, float32), cast_raw(fe, b, float32)
    return fe.builder.emit(DivOp(a, b, exact=elem(a) is float64))


def _integer_division(fe: FrontEnd, name: str, lhs: Operand, rhs: Operand) -> Value:
    a, b = promote(fe, lhs, rhs, division=True)
    e = elem(a)
    if e is int1:  # the divisor can only be 1
        return a if name == "floordiv" else const_raw(fe, False, a.type)
    if name == "floordiv":
        if not e.is_int():
            raise TypeMismatch(
                f"unexpected type {e}", help="`//` is for integers; use `tl.floor(x / y)`"
            )
        return fe.builder.emit(DivOp(a, b))
    return fe.builder.emit(RemOp(a, b))


def _bitwise(fe: FrontEnd, name: str, lhs: Operand, rhs: Operand) -> Value:
    left, right = elem_of_operand(lhs), elem_of_operand(rhs)
    if not (left.is_int() and right.is_int()):
        raise _invalid(
            left, right, help="this takes integers: cast with `.to(...)`, or compare first"
        )
    if name in ("lshift", "rshift"):
        return _shift(fe, name, lhs, rhs)
    a, b = promote(fe, lhs, rhs)
    return fe.builder.emit(_BITWISE[name](a, b))


def _shift(fe: FrontEnd, name: str, lhs: Operand, rhs: Operand) -> Value:
    arithmetic = (elem(lhs) if isinstance(lhs, Value) else elem_of_operand(rhs)).signed
    a, b = promote(fe, lhs, rhs)
    e = elem(a)
    if isinstance(rhs, int) and not 0 <= rhs < e.bits:
        fe.warn(f"shift of {e} by {rhs}: the result is undefined", UserWarning)
    if e is int1:
        return a
    if name == "rshift" and arithmetic and not e.signed:
        # Only int_N >> uint_N gets here: shift as the signed type of that width, return the unsigned one.
        signed = _SIGNED[e.bits]
        return bitcast_raw(
            fe, fe.builder.emit(ShrOp(bitcast_raw(fe, a, signed), bitcast_raw(fe, b, signed))), e
        )
    if (
        name == "rshift"
        and not arithmetic
        and e.signed
        and isinstance(lhs, Value)
        and elem(lhs).bits == e.bits
    ):
        unsigned = _UNSIGNED[e.bits]
        return bitcast_raw(
            fe,
            fe.builder.emit(ShrOp(bitcast_raw(fe, a, unsigned), bitcast_raw(fe, b, unsigned))),
            e,
        )
    return fe.builder.emit(_BITWISE[name](a, b))


def _pointer_arithmetic(fe: FrontEnd, name: str, lhs: Operand, rhs: Operand) -> Value:
    left, right = elem_of_operand(lhs), elem_of_operand(rhs)
    if name == "add" and isinstance(left, pointer_type) and isinstance(right, pointer_type):
        raise TypeMismatch(
            "cannot add pointers together", help="add an integer offset, in elements"
        )
    if name == "add" and isinstance(right, pointer_type):
        lhs, rhs, left, right = rhs, lhs, right, left
    usable = (
        isinstance(left, pointer_type) and not isinstance(right, pointer_type) and right.is_int()
    )
    if name not in ("add", "sub") or not usable:
        raise _invalid(
            left,
            right,
            help="only integers are added to a pointer, which moves it: divide with `//`, cast with `.to(tl.int32)`; "
            "the value that it points to is `tl.load(p)`",
        )
    assert isinstance(lhs, Value)
    offset = (
        to_value(fe, rhs)
        if isinstance(rhs, Value) or not isinstance(rhs, bool)
        else const_raw(fe, rhs, int32)
    )
    if right is int1:
        offset = cast_raw(fe, offset, int32)
    if name == "sub":
        if right.bits < 32 or not right.signed:
            offset = cast_raw(fe, offset, int64)  # the negated offset must not wrap
        offset = fe.builder.emit(NegOp(offset))
    ptr, offset = broadcast_values(fe, [lhs, offset])
    return fe.builder.emit(AddPtrOp(ptr, offset))


def _assert_no_overflow(fe: FrontEnd, name: str, a: Value, b: Value) -> None:
    e = elem(a)
    if not e.is_int() or e.bits >= 64 or fe.combining:
        return
    wide = fe.builder.emit(_ARITHMETIC[name](cast_raw(fe, a, int64), cast_raw(fe, b, int64)))
    low = const_raw(fe, e.get_int_min_value(), wide.type)
    high = const_raw(fe, e.get_int_max_value(), wide.type)
    above = fe.builder.emit(CmpOp(wide, low, predicate="ge"))
    below = fe.builder.emit(CmpOp(wide, high, predicate="le"))
    message = f"{e} overflow detected for operation {name}"
    fe.builder.insert(AssertOp(fe.builder.emit(AndOp(above, below)), message=message))


def negate(fe: FrontEnd, v: Value) -> Value:
    e = elem(v)
    if isinstance(e, pointer_type):
        raise TypeMismatch(
            "wrong type argument to unary minus: a pointer",
            help="the value that it points to is `tl.load(p)`",
        )
    return v if e is int1 else fe.builder.emit(NegOp(v))


def invert(fe: FrontEnd, v: Value) -> Value:
    e = elem(v)
    if isinstance(e, pointer_type) or not e.is_int():
        raise TypeMismatch(
            f"wrong type argument to unary invert: {e}",
            help="`~` is for integers and int1: cast with `.to(...)`, or compare first",
        )
    ones = const_raw(fe, -1 if e.signed else e.get_int_max_value(), v.type)
    return fe.builder.emit(XorOp(v, ones))


def logical_not(fe: FrontEnd, v: Value) -> Value:
    return invert(fe, _as_bit(v))


def _as_bit(v: Value) -> Value:
    e = elem(v)
    if e != int1:
        raise TypeMismatch(
            f"Cannot bitcast data-type of size {e.bits} to data-type of size 1",
            help="`and`, `or` and `not` take int1: compare first, as `x != 0` or `x == 0`",
        )
    return v


# --- comparison and selection --------------------------------------------------------------------------------
def compare_op(fe: FrontEnd, predicate: str, lhs: Operand, rhs: Operand) -> Value:
    a, b = promote(fe, lhs, rhs, weak=False)
    return fe.builder.emit(CmpOp(a, b, predicate=predicate))


def where(fe: FrontEnd, cond: Operand, x: Operand, y: Operand) -> Value:
    """Return `x` where `cond`, else `y`: both promoted, all broadcast."""
    c = to_value(fe, cond)
    if elem(c) != int1:
        fe.warn(
            "tl.where with a non-boolean condition is deprecated; it tests `condition != 0`. "
            f"Got {elem(c)}",
            UserWarning,
        )
        c = to_bool(fe, c)
    a, b = _select_operands(fe, x, y)
    if not shape(c) and not shape(a) and not shape(b):
        return fe.builder.emit(SelectOp(c, a, b))
    dims = common_shape(common_shape(shape(c), shape(a)), shape(b))
    return fe.builder.emit(SelectOp(*(broadcast_raw(fe, v, dims) for v in (c, a, b))))


def _select_operands(fe: FrontEnd, x: Operand, y: Operand) -> tuple[Value, Value]:
    left, right = elem_of_operand(x), elem_of_operand(y)
    if not isinstance(left, pointer_type) and not isinstance(right, pointer_type):
        return promote(fe, x, y)
    if left != right:
        raise _invalid(left, right, help="both sides are pointers of one type, or numbers")
    a, b = broadcast_values(fe, [to_value(fe, x), to_value(fe, y)])
    return a, b


def extremum(
    fe: FrontEnd, smaller: bool, x: Operand, y: Operand, propagate_nan: bool = False
) -> Value:
    """Return `minimum` or `maximum`: numbers are strong, and bf16 gives fp32."""
    a, b = promote(fe, x, y, weak=False)
    e = elem(a)
    if e is bfloat16:
        a, b = cast(fe, a, float32), cast(fe, b, float32)
    if e is int1:
        return fe.builder.emit((AndOp if smaller else OrOp)(a, b))
    return fe.builder.emit(
        (MinOp if smaller else MaxOp)(a, b, propagate_nan=propagate_nan and e.is_floating())
    )


def clamp(
    fe: FrontEnd, x: Operand, low: Operand, high: Operand, propagate_nan: bool = False
) -> Value:
    a = extremum(fe, False, x, low, propagate_nan)
    return extremum(fe, True, a, high, propagate_nan)
