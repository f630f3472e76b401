"""Writes element-wise ops as expressions of the language.

    add(mul(splat(1024), %0), %2)      →  1024 * pid + i            numbers and splats need no text of their own

Operands that the language itself broadcasts stay small: `Text.shape` is the shape of an expression in the source,
which broadcasts to that of the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tessera.dtypes import bfloat16, dtype, float32, float64, int1, pointer_type
from tessera.errors import CompilationError, TesseraError
from tessera.frontend.semantics.type_promotion import (
    Number,
    check_fits,
    common_shape,
    dtype_of_number,
    promote_number,
    promote_types,
)
from tessera.ir import ElementType, Op, elem_of
from tessera.ops import arith
from tessera.ops.math import MATH_OPS

COMPARED, OR, XOR, AND, SHIFTED, SUM, PRODUCT, SIGNED, ATOM = range(9)  # precedence of operators
INFIX: dict[str, tuple[str, int]] = {
    "add": ("+", SUM), "sub": ("-", SUM), "mul": ("*", PRODUCT), "and": ("&", AND), "or": ("|", OR),
    "xor": ("^", XOR), "shl": ("<<", SHIFTED), "shr": (">>", SHIFTED),
}  # fmt: skip
PREDICATES = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
OF_TL = frozenset((
    "exp", "exp2", "log", "log2", "sin", "cos", "sqrt", "rsqrt", "erf", "floor", "ceil", "sqrt_rn",
))  # fmt: skip
LIBDEVICE_NAMES = {name: f"{name}f" for name in ("fast_log2", "fast_sin", "fast_cos")}
WIDE_FLOATS = (float32, float64)


class NoSource(CompilationError):
    """An op has no form in the language."""


@dataclass(frozen=True, slots=True)
class Text:
    """An expression. `binds`: the precedence of its outermost operator; `number`: the value of a literal."""

    text: str
    binds: int = ATOM
    shape: tuple[int, ...] = ()
    number: bool | int | float | None = None

    def within(self, binds: int) -> str:
        """Return the expression as an operand of an operator with that precedence."""
        return self.text if self.binds >= binds else f"({self.text})"


Writer = Callable[[Any, Sequence[Text]], Text]  # takes an op of its class, and the op's operands


def type_text(e: ElementType) -> str:
    """Return `tl.float32`; for pointers `tl.pointer_type(tl.float32)`."""
    if isinstance(e, pointer_type):
        return f"tl.pointer_type({type_text(e.element_ty)})"
    return repr(e).replace("tessera.language", "tl")


def literal(value: bool | int | float, e: ElementType) -> Text:
    """Return a number of type `e`."""
    if isinstance(e, dtype) and e.is_floating():
        value = float(value)
    elif e is int1:
        value = bool(value)
    if isinstance(value, float) and not math.isfinite(value):
        return Text(f'float("{value}")', ATOM, (), value)
    text = repr(value)
    return Text(text, SIGNED if text.startswith("-") else ATOM, (), value)


def typed(t: Text, e: ElementType) -> Text:
    """Return the expression with an explicit type if a literal would leave it open."""
    if t.number is None:
        return t
    return Text(f"tl.full([], {t.text}, {type_text(e)})")


def joint(texts: Sequence[Text]) -> tuple[int, ...]:
    shape: tuple[int, ...] = ()
    for t in texts:
        shape = common_shape(shape, t.shape)
    return shape


def called(function: str, texts: Sequence[Text], *more: str) -> Text:
    """Return a call whose result has the joint shape of its operands."""
    return Text(f"{function}({', '.join([*(t.text for t in texts), *more])})", ATOM, joint(texts))


def _weak(number: Number, e: ElementType) -> bool:
    """Whether an operator on the number and a tensor of type `e` computes in `e`."""
    if isinstance(e, pointer_type):
        return False
    try:
        check_fits(number, e)
    except TesseraError:
        return False
    return promote_number(e, number) == e


def _strong(number: Number, e: ElementType) -> bool:
    """Whether a function that first gives numbers their own type computes in `e` for the number and a tensor of type
    `e`."""
    if isinstance(e, pointer_type):
        return False
    try:
        return _weak(number, e) and promote_types(e, dtype_of_number(number)) == e
    except TesseraError:
        return False


def operands(op: Op, texts: Sequence[Text], strong: bool = False) -> list[Text]:
    """Return the operands of one type, at least one of which states it."""
    found: list[Text] = []
    fits = _strong if strong else _weak
    some = any(t.number is None for t in texts)
    for t, v in zip(texts, op.operands, strict=True):
        e = elem_of(v.type)
        keep = t.number is None or (some and fits(t.number, e))
        found.append(t if keep else typed(t, e))
    return found


def infix(sign: str, binds: int, a: Text, b: Text) -> Text:
    left = a.within(binds + 1 if binds == COMPARED else binds)
    return Text(f"{left} {sign} {b.within(binds + 1)}", binds, joint((a, b)))


# --- one writer for each kind of op ---------------------------------------------------------------------------
def _infix(op: Op, texts: Sequence[Text]) -> Text:
    sign, binds = INFIX[op.opcode]
    e = elem_of(op.result.type)
    if binds == SHIFTED and e is int1:
        raise NoSource("the language does not shift bits of type int1")
    return infix(sign, binds, *operands(op, texts))


def _division(op: arith.DivOp, texts: Sequence[Text]) -> Text:
    e = elem_of(op.result.type)
    if e is int1:
        raise NoSource("the language does not divide truth values")
    if e.is_int():
        return infix("//", PRODUCT, *operands(op, texts))
    if (e is float32 and not op.exact) or (e is float64 and op.exact):
        return infix("/", PRODUCT, *operands(op, texts))
    both = [typed(t, e) for t in texts]
    return called("tl.fdiv", both, *(["ieee_rounding=True"] if op.exact else []))


def _remainder(op: Op, texts: Sequence[Text]) -> Text:
    e = elem_of(op.result.type)
    if e is int1 or (e.is_floating() and e not in WIDE_FLOATS):
        raise NoSource(f"the language has no remainder of {e}")
    return infix("%", PRODUCT, *operands(op, texts))


def _extremum(op: arith.MinOp | arith.MaxOp, texts: Sequence[Text]) -> Text:
    name = "tl.minimum" if isinstance(op, arith.MinOp) else "tl.maximum"
    e = elem_of(op.result.type)
    nan = ["propagate_nan=tl.PropagateNan.ALL"] if op.propagate_nan else []
    found = called(name, operands(op, texts, strong=True), *nan)
    if e is bfloat16:  # the language computes fp32
        return Text(f"{found.text}.to(tl.bfloat16)", ATOM, found.shape)
    return found


def _compare(op: arith.CmpOp, texts: Sequence[Text]) -> Text:
    return infix(PREDICATES[op.predicate], COMPARED, *operands(op, texts, strong=True))


def _select(op: arith.SelectOp, texts: Sequence[Text]) -> Text:
    condition, x, y = texts
    e = elem_of(op.result.type)
    if x.number is not None and (y.number is not None or not _weak(x.number, e)):
        x = typed(x, e)
    if y.number is not None and not _weak(y.number, e):
        y = typed(y, e)
    return called("tl.where", (typed(condition, int1), x, y))


def _cast(op: arith.CastOp, texts: Sequence[Text]) -> Text:
    have, to = elem_of(op.x.type), elem_of(op.result.type)
    narrows = op.rounding != "rtne" and have.is_floating() and to.is_floating()
    more = f', fp_downcast_rounding="{op.rounding}"' if narrows else ""
    return _converted(texts[0], have, f"{type_text(to)}{more}")


def _bitcast(op: arith.BitcastOp, texts: Sequence[Text]) -> Text:
    to = type_text(elem_of(op.result.type))
    return _converted(texts[0], elem_of(op.x.type), f"{to}, bitcast=True")


def _converted(x: Text, have: ElementType, to: str) -> Text:
    x = typed(x, have)
    return Text(f"{x.within(ATOM)}.to({to})", ATOM, x.shape)


def _offset(op: arith.AddPtrOp, texts: Sequence[Text]) -> Text:
    pointer, offset = texts
    e = elem_of(op.offset.type)
    if offset.number is not None and (e is int1 or not -(2**31) <= offset.number < 2**31):
        offset = typed(offset, e)
    return infix("+", SUM, pointer, offset)


def _negate(op: Op, texts: Sequence[Text]) -> Text:
    x = typed(texts[0], elem_of(op.result.type))
    return Text(f"-{x.within(SIGNED)}", SIGNED, x.shape)


def _math(op: Op, texts: Sequence[Text]) -> Text:
    e = elem_of(op.operands[0].type)
    if e not in WIDE_FLOATS or (op.opcode == "sqrt_rn" and e is float64):
        raise NoSource(f"the language has no {op.opcode} of {e}")
    room = "tl" if op.opcode in OF_TL else "libdevice"
    name = LIBDEVICE_NAMES.get(op.opcode, op.opcode)
    return called(f"{room}.{name}", [typed(t, e) for t in texts])


def _is_nan(op: arith.IsNanOp, texts: Sequence[Text]) -> Text:
    e = elem_of(op.x.type)
    x = typed(texts[0], e)
    if e in WIDE_FLOATS:
        return called("libdevice.isnan", [x])
    return infix("!=", COMPARED, x, x)


def _of_library(name: str, *types: dtype) -> Writer:
    """Return the writer of a libdevice function for operands of some types."""

    def write(op: Op, texts: Sequence[Text]) -> Text:
        e = elem_of(op.operands[0].type)
        if types and e not in types:
            raise NoSource(f"the language has no {name} of {e}")
        both = zip(texts, op.operands, strict=True)
        return called(name, [typed(t, elem_of(v.type)) for t, v in both])

    return write


def _directed(op: arith.DirectedOp, texts: Sequence[Text]) -> Text:
    return _of_library(f"libdevice.{op.function}_{op.direction}")(op, texts)


def _hint(op: arith.HintOp, texts: Sequence[Text]) -> Text:
    found = texts[0]
    for fact, numbers in (
        ("multiple_of", op.divisibility),
        ("max_contiguous", op.contiguity),
        ("max_constancy", op.constancy),
    ):
        if numbers:
            shown = f"[{', '.join(map(str, numbers))}]"
            found = Text(f"tl.{fact}({found.text}, {shown})", ATOM, found.shape)
    return found


def _sure(op: Op) -> Writer:
    return WRITERS.get(type(op)) or (_math if type(op) in MATH_OPS.values() else _missing)


def _missing(op: Op, texts: Sequence[Text]) -> Text:
    raise NoSource(f"the op {op.opcode} has no form in the language")


WRITERS: dict[type[Op], Writer] = {
    **dict.fromkeys(
        (
            arith.AddOp, arith.SubOp, arith.MulOp, arith.AndOp, arith.OrOp, arith.XorOp,
            arith.ShlOp, arith.ShrOp,
        ),
        _infix,
    ),
    arith.DivOp: _division, arith.RemOp: _remainder, arith.MinOp: _extremum, arith.MaxOp: _extremum,
    arith.CmpOp: _compare, arith.SelectOp: _select, arith.CastOp: _cast, arith.BitcastOp: _bitcast,
    arith.AddPtrOp: _offset, arith.NegOp: _negate, arith.AbsOp: _of_library("tl.abs"),
    arith.IsNanOp: _is_nan, arith.HintOp: _hint, arith.FmaOp: _of_library("tl.fma"),
    arith.PowOp: _of_library("libdevice.pow", *WIDE_FLOATS),
    arith.Atan2Op: _of_library("libdevice.atan2", *WIDE_FLOATS),
    arith.RemainderOp: _of_library("libdevice.remainder", *WIDE_FLOATS),
    arith.CopySignOp: _of_library("libdevice.copysign", *WIDE_FLOATS),
    arith.MulHiOp: _of_library("libdevice.mulhi"), arith.PopcOp: _of_library("libdevice.popc"),
    arith.ClzOp: _of_library("libdevice.clz"), arith.DirectedOp: _directed,
}  # fmt: skip


def expression(op: Op, texts: Sequence[Text]) -> Text:
    """Return an element-wise op on operands already written. Raises NoSource if the language has no such form."""
    return _sure(op)(op, texts)
