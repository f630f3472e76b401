"""Lowers element-wise operations by a table of one line each, in the types that eager computes in."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from torch._subclasses.fake_tensor import unset_fake_temporarily

from tessera.dtypes import dtype, float8e4nv, float8e5, float32, float64, int1, int32, int64, uint8
from tessera.graph.index import Expr
from tessera.graph.ir.scalars import (
    Scalar,
    constant,
    floor_divide,
    function,
    is_inf,
    is_nan,
    maximum,
    minimum,
    remainder,
    sign,
    where,
)
from tessera.graph.torch.lowering.base import Float, Lowering, Tensor, broadcast, is_tensor, rule
from tessera.graph.torch.lowering.promotion import common_type, computed_in, rounded_number, rounds
from tessera.graph.torch.types import NotLowered, element_of, torch_type
from tessera.ops import arith

DEFAULT, AS_GIVEN, TO_FLOAT = Kind.DEFAULT, Kind.NO_OPMATH, Kind.INT_TO_FLOAT
TRUTH, TO_LONG = Kind.ALWAYS_BOOL, Kind.BOOL_TO_LONG
ANYWHERE = ("cpu", "cuda")


@dataclass(frozen=True)
class Pointwise:
    """How one operation computes an element from `operands` tensors or numbers; what follows these is constant.

    `kind`: torch's rule for the type that it computes in. The operands at `apart` take no part in it. `exact`: the
    devices on which eager computes with numbers as they are, in the type that it computes in; otherwise it rounds them
    to that of the tensors first, as it does with tensors of other types. `divides`: whether the second operand is a
    divisor, for which eager on CPUs refuses a whole 0."""

    kind: Kind
    compute: Callable[..., Scalar]
    apart: tuple[int, ...] = ()
    exact: tuple[str, ...] = ()
    divides: bool = False


def _add(a: Any, b: Any, alpha: Any = 1) -> Scalar:
    kind = a if isinstance(a, Scalar) else b
    if kind.type == int1:
        return kind.like(a) | kind.like(b) if alpha else kind.like(a)
    return a + (b if alpha == 1 else b * alpha)


def _sub(a: Any, b: Any, alpha: Any = 1) -> Scalar:
    return a - (b if alpha == 1 else b * alpha)


def _mul(a: Any, b: Any) -> Scalar:
    kind = a if isinstance(a, Scalar) else b
    return kind.like(a) & kind.like(b) if kind.type == int1 else a * b


def _scalar(a: Any, b: Any) -> Scalar:
    """a, a number perhaps, as a scalar of b's type."""
    return a if isinstance(a, Scalar) else b.const(a)


def _divide(a: Any, b: Any, rounding_mode: str | None = None) -> Scalar:
    a = _scalar(a, b)
    if rounding_mode == "floor":
        return floor_divide(a, b)
    quotient = a / b
    if rounding_mode == "trunc" and quotient.type.is_floating():
        return function("trunc", quotient)
    return quotient


def _clamp(x: Scalar, low: Any = None, high: Any = None) -> Scalar:
    x = x if low is None else maximum(x, low)
    return x if high is None else minimum(x, high)


def _rounded(name: str) -> Callable[[Scalar], Scalar]:
    return lambda x: function(name, x) if x.type.is_floating() else x


def _sigmoid(x: Scalar) -> Scalar:
    return 1 / (function("exp", -x) + 1)


def _gelu(x: Scalar, approximate: str = "none") -> Scalar:
    if approximate == "tanh":
        inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
        return x * 0.5 * (function("tanh", inner) + 1)
    return x * 0.5 * (function("erf", x * math.sqrt(0.5)) + 1)


def power(x: Any, y: Any) -> Scalar:
    """Small whole exponents multiply, as eager's do; else `pow` of floats."""
    if isinstance(y, (int, float)) and isinstance(x, Scalar):
        if y in (0.5, -0.5) and x.type.is_floating():
            root = function("sqrt_rn", x)
            return root if y > 0 else 1 / root
        if float(y).is_integer() and (0 <= y <= 3 or (x.type.is_int() and 0 <= y <= 64)):
            return _whole_power(x, int(y))
        if y in (-1, -2) and x.type.is_floating():
            return 1 / _whole_power(x, int(-y))
    kind: Any = x if isinstance(x, Scalar) else y
    if not kind.type.is_floating():
        raise NotLowered("a power of integers")
    return kind.like(x).binary(arith.PowOp, y)


def _whole_power(x: Scalar, n: int) -> Scalar:
    found = x.const(1)
    for bit in bin(n)[2:]:
        found = found * found
        if bit == "1":
            found = found * x
    return found


def _shift(op: type[arith.Binary]) -> Callable[[Scalar, Any], Scalar]:
    """A shift; by the width or more gives what eager gives: 0, or the sign in all bits."""

    def shift(x: Any, by: Any) -> Scalar:
        kind = x if isinstance(x, Scalar) else by
        x, by = kind.like(x), kind.like(by)
        within = (by >= 0) & (by < kind.type.bits) if kind.type.signed else by < kind.type.bits
        shifted = x.binary(op, where(within, by, 0))
        if op is arith.ShlOp or not kind.type.signed:
            return where(within, shifted, 0)
        return where(within, shifted, x >> (kind.type.bits - 1))

    return shift


def _asinh(x: Scalar) -> Scalar:
    a = abs(x)
    near = function("log1p", a + a * a / (function("sqrt", a * a + 1) + 1))
    return where(a < 1e9, near, function("log", a) + math.log(2)).binary(arith.CopySignOp, x)


def _acosh(x: Scalar) -> Scalar:
    t = x - 1
    near = function("log1p", t + function("sqrt", t * 2 + t * t))
    return where(x < 1, math.nan, where(x < 1e9, near, function("log", x) + math.log(2)))


def _atanh(x: Scalar) -> Scalar:
    a = abs(x)
    return (function("log1p", a * 2 / (1 - a)) * 0.5).binary(arith.CopySignOp, x)


def _hypot(a: Scalar, b: Any) -> Scalar:
    a, b = abs(a), abs(a.like(b))
    big, small = maximum(a, b), minimum(a, b)
    ratio = small / where(big.eq(0), 1, big)
    plain = big * function("sqrt", ratio * ratio + 1)
    return where(is_inf(a) | is_inf(b), a.const(math.inf), plain)


def _sign_bit(x: Scalar) -> Scalar:
    if not x.type.is_floating():
        return x < 0
    if x.type.bits != 32:
        raise NotLowered("the sign bit of this type")
    return x.bits(int32) < 0


def _math(name: str) -> Pointwise:
    return Pointwise(TO_FLOAT, lambda x: function(name, x))


def _compare(predicate: str) -> Pointwise:
    mirrored = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}.get(predicate, predicate)

    def compare(a: Any, b: Any) -> Scalar:
        return a.compare(predicate, b) if isinstance(a, Scalar) else b.compare(mirrored, a)

    return Pointwise(TRUTH, compare)


def _logical(op: str) -> Pointwise:
    return Pointwise(TRUTH, lambda a, b: getattr(a.truth(), op)(b.truth()))


def _bitwise(op: str) -> Pointwise:
    def bitwise(a: Any, b: Any) -> Scalar:
        return getattr(a, op)(b) if isinstance(a, Scalar) else getattr(b, op)(a)

    return Pointwise(DEFAULT, bitwise)


POINTWISE: dict[str, Pointwise] = {
    # names of math.py, as ATen has them
    **{name: _math(name) for name in (
        "acos", "asin", "atan", "cos", "cosh", "erf", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "sin",
        "sinh", "tan", "tanh",
    )},
    "sqrt": _math("sqrt_rn"),
    "rsqrt": Pointwise(TO_FLOAT, lambda x: 1 / function("sqrt_rn", x)),
    "acosh": Pointwise(TO_FLOAT, _acosh),
    "asinh": Pointwise(TO_FLOAT, _asinh),
    "atanh": Pointwise(TO_FLOAT, _atanh),
    "sigmoid": Pointwise(TO_FLOAT, _sigmoid),
    "angle": Pointwise(TO_FLOAT, lambda x: where(is_nan(x), x, where(x < 0, x.const(math.pi), 0))),
    "reciprocal": Pointwise(TO_FLOAT, lambda x: 1 / x),
    # rounding
    "ceil": Pointwise(DEFAULT, _rounded("ceil")),
    "floor": Pointwise(DEFAULT, _rounded("floor")),
    "round.default": Pointwise(DEFAULT, _rounded("rint")),
    "trunc": Pointwise(DEFAULT, _rounded("trunc")),
    # one operand
    "abs": Pointwise(DEFAULT, lambda x: abs(x)),
    "neg": Pointwise(DEFAULT, lambda x: -x),
    "relu": Pointwise(DEFAULT, lambda x: maximum(x, 0)),
    "sign": Pointwise(DEFAULT, sign),
    "silu": Pointwise(DEFAULT, lambda x: x / (function("exp", -x) + 1)),
    "gelu": Pointwise(DEFAULT, _gelu),
    "square": Pointwise(TO_LONG, lambda x: x * x),
    "bitwise_not": Pointwise(DEFAULT, lambda x: ~x),
    # two operands
    "add": Pointwise(DEFAULT, _add, exact=("cuda",)),
    "sub": Pointwise(DEFAULT, _sub, exact=("cuda",)),
    "rsub": Pointwise(DEFAULT, lambda a, b, alpha=1: b - (a if alpha == 1 else a * alpha), exact=("cuda",)),
    "mul": Pointwise(DEFAULT, _mul, exact=ANYWHERE),
    "div": Pointwise(TO_FLOAT, _divide, exact=ANYWHERE),
    "true_divide": Pointwise(TO_FLOAT, _divide, exact=ANYWHERE),
    "prims.div": Pointwise(DEFAULT, lambda a, b: _scalar(a, b) / b, divides=True),
    "floor_divide": Pointwise(DEFAULT, lambda a, b: floor_divide(_scalar(a, b), b), exact=ANYWHERE, divides=True),
    "remainder": Pointwise(DEFAULT, lambda a, b: remainder(_scalar(a, b), b), divides=True),
    "fmod": Pointwise(DEFAULT, lambda a, b: _scalar(a, b).binary(arith.RemOp, b), divides=True),
    "maximum": Pointwise(DEFAULT, maximum),
    "minimum": Pointwise(DEFAULT, minimum),
    "fmax": Pointwise(DEFAULT, lambda a, b: a.binary(arith.MaxOp, b)),
    "fmin": Pointwise(DEFAULT, lambda a, b: a.binary(arith.MinOp, b)),
    "pow": Pointwise(TO_LONG, power),
    "atan2": Pointwise(TO_FLOAT, lambda a, b: a.binary(arith.Atan2Op, b)),
    "copysign": Pointwise(TO_FLOAT, lambda a, b: a.binary(arith.CopySignOp, b)),
    "hypot": Pointwise(DEFAULT, _hypot),
    "bitwise_and": _bitwise("__and__"),
    "bitwise_or": _bitwise("__or__"),
    "bitwise_xor": _bitwise("__xor__"),
    "bitwise_left_shift": Pointwise(DEFAULT, _shift(arith.ShlOp)),
    "bitwise_right_shift": Pointwise(DEFAULT, _shift(arith.ShrOp)),
    "__lshift__": Pointwise(DEFAULT, _shift(arith.ShlOp)),
    "__rshift__": Pointwise(DEFAULT, _shift(arith.ShrOp)),
    "fma": Pointwise(DEFAULT, lambda a, b, c: a.emit(arith.FmaOp(a.value, a.like(b).value, a.like(c).value))),
    # bounds and choices
    "clamp": Pointwise(DEFAULT, _clamp),
    "clamp_min": Pointwise(DEFAULT, maximum),
    "clamp_max": Pointwise(DEFAULT, minimum),
    "where": Pointwise(AS_GIVEN, where, apart=(0,)),
    "hardtanh": Pointwise(DEFAULT, lambda x, low=-1, high=1: _clamp(x, low, high)),
    # truth values
    **{name: _compare(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "isnan": Pointwise(TRUTH, is_nan),
    "isinf": Pointwise(TRUTH, is_inf),
    "signbit": Pointwise(TRUTH, _sign_bit),
    "logical_not": Pointwise(TRUTH, lambda x: ~x.truth()),
    "logical_and": _logical("__and__"),
    "logical_or": _logical("__or__"),
    "logical_xor": _logical("__xor__"),
}  # fmt: skip

ROUNDED_QUOTIENT = Pointwise(DEFAULT, _divide, exact=ANYWHERE, divides=True)


def accumulator_of(elem: dtype) -> dtype:
    """What eager computes and adds up values of a type in."""
    return float32 if elem.is_floating() and elem.bits < 32 else elem


def _divisor(b: Scalar) -> Scalar:
    """A whole number that something is divided by."""
    known = b.value.op.value if isinstance(b.value.op, arith.ConstOp) else 0
    return b if known else b.checked(b.ne(0), "ZeroDivisionError: a whole number is divided by 0")


# --- how a row is applied -----------------------------------------------------------------------------------------
def apply(row: Pointwise, low: Lowering, *args: Any, **kwargs: Any) -> Tensor:
    """The loop that computes an element-wise operation."""
    operands = [x for k, x in enumerate(args) if k not in row.apart]
    numbers = [x for x in operands if isinstance(x, (Tensor, Expr, Float, int, float))]
    if any(isinstance(x, complex) for x in operands) or not any(map(is_tensor, args)):
        raise NotLowered("complex numbers")
    inside, common = (f(row.kind, numbers) for f in (computed_in, common_type))
    result = low.elem
    exact = torch.device(low.g.device).type in row.exact
    through = common if rounds(common, inside) else None

    def body(indices: list[Expr]) -> Scalar:
        given: list[Any] = []
        for k, x in enumerate(args):
            kept = (exact and not (is_tensor(x) and x.rank)) or (k > 1 and not is_tensor(x))
            if k in row.apart:
                given.append(operand(low, x, indices, None))
            else:
                given.append(operand(low, x, indices, inside, None if kept else through))
        if row.divides and low.g.device == "cpu" and inside.is_int():
            given[1] = _divisor(
                given[0].like(given[1]) if isinstance(given[0], Scalar) else given[1]
            )
        named = {name: operand(low, x, indices, inside) for name, x in kwargs.items()}
        return row.compute(*given, **named).rounded(result)

    return low.map(body)


def operand(
    low: Lowering, x: Any, indices: list[Expr], type: dtype | None, through: dtype | None = None
) -> Any:
    """The element of a tensor, a symbolic size or what is computed of it as a scalar, or what is neither as it is.
    `through`: a type that numbers are rounded to on their way."""
    if isinstance(x, Tensor):
        found = low.load(x, broadcast(x, indices))
        if type is None:
            return found
    elif isinstance(x, Expr):
        found = low.position(x)
        type = type or int64
    elif isinstance(x, Float):
        found = low.scalar(x.value)
        type = type or float64
    else:
        number = isinstance(x, (int, float)) and not isinstance(x, bool)
        return rounded_number(x, through) if number and through else x
    return cast(found if through is None else cast(found, through), type)


def cast(x: Scalar, target: dtype) -> Scalar:
    """A number in another type, as eager's kernels convert: floats reach narrow integers through int32, and wide
    numbers narrow floats through fp32, which rounds twice."""
    narrow = target.is_int() and target != int1 and target.bits < 32
    if x.type.is_floating() and target != int1 and target.is_int():
        x = x.to(float32) if x.type.bits < 32 else x
        return x.to(int32 if narrow else int64).to(target)
    if target.is_floating() and target.bits < 32 and x.type.bits >= 32:
        x = x.to(float32)
    if target not in (float8e5, float8e4nv):
        return x.to(target)
    x = x if x.type.is_floating() else x.to(float32)
    # The language's conversions end at the greatest number. 61440 is the middle of that of e5m2 and 2**16.
    found = x.to(target).bits(uint8)
    if target == float8e5:
        infinity = where(x < 0, constant(x.builder, 0xFC, uint8), 0x7C)
        found = where(abs(x) >= 61440, infinity, found)
    elif e4m3_ends_in_nan():
        found = where(abs(x) > 464, constant(x.builder, 0x7F, uint8), found)
    return found.bits(target)


@cache
def e4m3_ends_in_nan() -> bool:
    """Whether this torch makes NaN of what is beyond the range of e4m3; torch 2.13 gives the greatest number."""
    with unset_fake_temporarily():
        x = torch.full((1,), 1e5, device="cpu")
        return bool(x.to(torch.float8_e4m3fn).float().isnan().item())


for _name, _row in POINTWISE.items():
    rule(_name)(partial(apply, _row))


@rule("div.Tensor_mode", "div.Scalar_mode")
def divided(low: Lowering, a: Any, b: Any, rounding_mode: str | None = None) -> Tensor:
    """A quotient, which of whole numbers is a float unless it is rounded."""
    row = POINTWISE["div"] if rounding_mode is None else ROUNDED_QUOTIENT
    return apply(row, low, a, b, rounding_mode=rounding_mode)


@rule("_to_copy", "clone", "lift_fresh_copy", "convert_element_type", "alias_copy")
def copied(low: Lowering, x: Any, *_: Any, **__: Any) -> Tensor:
    """A copy, perhaps of another type; `vmap` also copies numbers."""
    target = low.elem
    if not isinstance(x, Tensor):
        return low.map(lambda i: low.const(x, target))
    element_of(torch_type(x.elem))
    return low.map(lambda i: cast(low.load(x, i), target))


@rule("view.dtype", "view_copy.dtype")
def same_bits(low: Lowering, x: Tensor, _: Any) -> Tensor:
    """The same memory under another type of the same width."""
    target = low.elem
    if torch_type(x.elem).itemsize != torch_type(target).itemsize or target == int1:
        raise NotLowered("elements of another width")

    def body(i: list[Expr]) -> Scalar:
        element = low.load(x, i)
        return (element.to(uint8) if x.elem == int1 else element).bits(target)

    return low.map(body)


@rule("copy")
def assigned(low: Lowering, _x: Tensor, source: Tensor, *_: Any) -> Tensor:
    """`source` with the shape and type of x."""
    return low.map(lambda i: cast(low.load(source, broadcast(source, i)), low.elem))
