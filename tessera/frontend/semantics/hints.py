"""Implements hints, barriers, prints, asserts and the compile-time helpers."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from tessera.dtypes import int1
from tessera.errors import (
    CompileTimeAssertionFailure,
    InvalidArgument,
    NotConstexpr,
    ShapeMismatch,
    TypeMismatch,
)  # fmt: skip
from tessera.frontend.semantics.math import invert
from tessera.frontend.semantics.registry import impl
from tessera.frontend.semantics.values import (
    Operand,
    broadcast_values,
    describe,
    operand_of,
    sequence,
    shape,
    static,
    static_int,
    to_bool,
    to_value,
    wrap,
)  # fmt: skip
from tessera.ir import Value
from tessera.language import hints as tl
from tessera.language.values import constexpr, tensor, unwrap
from tessera.ops import AssertOp, AssumeOp, BarrierOp, HintOp, OrOp, PrintOp

if TYPE_CHECKING:
    from tessera.frontend.frontend import FrontEnd


# --- promises about values -------------------------------------------------------------------------------------
def _hint(fact: str, function: str, scalars: bool) -> Any:
    def hint_impl(fe: FrontEnd, input: object, values: object) -> Any:
        numbers = tuple(static_int(v, f"the values of {function}()") for v in sequence(values))
        if not isinstance(input, tensor):
            return input
        v: Value = input.handle
        rank = len(shape(v))
        if rank == 0 and not scalars:
            raise ShapeMismatch(
                f"{function}() takes tiles, got {input}",
                help="write `tl.multiple_of(n, 16)` for a scalar",
            )
        if len(numbers) != max(rank, 1):
            raise ShapeMismatch(
                f"Shape of input to {function} does not match the length of values",
                help=f"give one number a dimension: {max(rank, 1)}, not {len(numbers)}",
            )
        facts: dict[str, Any] = {fact: numbers}
        return wrap(fe.builder.emit(HintOp(v, **facts)))

    return hint_impl


impl(tl.multiple_of)(_hint("divisibility", "multiple_of", True))
impl(tl.max_contiguous)(_hint("contiguity", "max_contiguous", True))
impl(tl.max_constancy)(_hint("constancy", "max_constancy", False))


@impl(tl.assume)
def assume_impl(fe: FrontEnd, cond: object) -> None:
    if isinstance(cond, constexpr):
        if not cond.value:
            raise InvalidArgument(
                "the condition of assume() is false at compile time",
                help="check a condition with `tl.static_assert`",
            )
        return
    v = to_value(fe, operand_of(cond))
    if v.type != int1:
        raise TypeMismatch(
            f"assume() takes an int1 scalar, got {cond}", help="write a comparison of scalars"
        )
    fe.builder.insert(AssumeOp(v))
    return


@impl(tl.debug_barrier)
def debug_barrier_impl(fe: FrontEnd) -> None:
    fe.builder.insert(BarrierOp())
    return


# --- run-time debugging ---------------------------------------------------------------------------------------
@impl(tl.device_print)
def device_print_impl(fe: FrontEnd, prefix: object, *args: object, hex: object = False) -> None:
    if isinstance(prefix, tensor):
        raise NotConstexpr(
            what="the prefix of device_print()", got=describe(prefix), argument="prefix",
            help='begin with a text: `tl.device_print("x", x)`',
        )  # fmt: skip
    text = static(prefix, "the prefix of device_print()")
    if not isinstance(text, str) or not text.isascii():
        raise InvalidArgument(
            argument="prefix", function="device_print", problem=f"expected an ASCII string literal, got {text!r}",
            help='begin with a text: `tl.device_print("x", x)`',
        )  # fmt: skip
    text = _line_prefix(text, bool(args))
    values = [to_value(fe, operand_of(a)) for a in args]
    fe.builder.insert(PrintOp(values, prefix=text, hex=bool(static(hex, "hex"))))
    return


def _line_prefix(text: str, values: bool) -> str:
    """Return the text before a value; it ends in a colon and a space."""
    if values and not text.endswith(" "):
        text += " "
    if values and not text.endswith(": "):
        text = text[:-1] + ": "
    return " " + text if len(text) > 2 and not text.startswith(" ") else text


@impl(tl.device_assert)
def device_assert_impl(fe: FrontEnd, cond: object, msg: object = "", mask: object = None) -> None:
    if not fe.options.debug:
        return
    text = static(msg, "the message of device_assert()")
    limit = None if mask is None else operand_of(mask)
    device_assert(fe, operand_of(cond), str(text or ""), limit)
    return


def device_assert(fe: FrontEnd, cond: Operand, message: str, mask: Operand | None = None) -> None:
    """Stop if an element of `cond` is 0 where `mask` is true. Functions that combine elements check nothing."""
    if fe.combining:
        return
    c = to_bool(fe, to_value(fe, cond))
    if mask is not None:
        outside = invert(fe, to_bool(fe, to_value(fe, mask)))
        a, b = broadcast_values(fe, [c, outside])
        c = fe.builder.emit(OrOp(a, b))
    fe.builder.insert(AssertOp(c, message=message))


# --- compile time ------------------------------------------------------------------------------------------------
@impl(tl.static_print)
def static_print_impl(
    fe: FrontEnd,
    *values: object,
    sep: object = " ",
    end: object = "\n",
    file: object = None,
    flush: object = False,
) -> None:
    shown = [_as_printed(unwrap(v)) for v in values]
    where = {
        k: unwrap(v) for k, v in (("sep", sep), ("end", end), ("file", file), ("flush", flush))
    }
    builtins.print(*shown, **where)
    return


def _as_printed(x: object) -> Any:
    """Show a run-time value as its type and extents, which are compile-time values."""
    if not isinstance(x, tensor):
        return x
    return f"{x.dtype}[{', '.join(map(repr, x.shape))}]"


@impl(tl.static_assert)
def static_assert_impl(fe: FrontEnd, cond: object, msg: object = "") -> None:
    value = unwrap(cond)
    if not isinstance(value, bool):
        raise NotConstexpr(
            "Assertion condition could not be determined at compile-time. Make sure that it depends only on "
            f"`constexpr` values, got {describe(cond)}",
            argument="cond", help="check run-time values with `tl.device_assert(...)`, in launches with `debug=True`",
        )  # fmt: skip
    if not value:
        raise CompileTimeAssertionFailure(str(unwrap(msg)) or "static_assert failed")
    return
