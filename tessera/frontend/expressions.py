"""Lowers expressions: Python computes what is known at compile time, and the semantics emit ops for the rest."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from tessera.errors import (
    CompilationError,
    NotConstexpr,
    TesseraError,
    TypeMismatch,
    UnsupportedLanguageConstruct,
)
from tessera.frontend.flatten import flatten, type_text
from tessera.frontend.frontend import FrontEnd, handles
from tessera.frontend.remedies import warn_of_precedence
from tessera.frontend.semantics import math as sem_math
from tessera.frontend.semantics import shape as sem_shape
from tessera.frontend.semantics.values import ABSENT, NO_EXTENTS
from tessera.language.aggregate import ConstexprFunction, is_aggregate_value
from tessera.language.block_pointer import block_pointer
from tessera.language.builtin import Builtin
from tessera.language.callable import JITCallable
from tessera.language.values import (
    class_of,
    constexpr,
    is_runtime,
    run_time,
    tensor,
    unwrap,
    wrap,
)
from tessera.language.values import (
    slice as tl_slice,
)
from tessera.language.values import (
    tuple as tl_tuple,
)

Operator = tuple[str, Callable[..., object]]
_python: Any = operator

BINARY: dict[type[ast.operator], Operator] = {
    ast.Add: ("+", _python.add), ast.Sub: ("-", _python.sub), ast.Mult: ("*", _python.mul),
    ast.Div: ("/", _python.truediv), ast.FloorDiv: ("//", _python.floordiv), ast.Mod: ("%", _python.mod),
    ast.Pow: ("**", _python.pow), ast.BitAnd: ("&", _python.and_), ast.BitOr: ("|", _python.or_),
    ast.BitXor: ("^", _python.xor), ast.LShift: ("<<", _python.lshift), ast.RShift: (">>", _python.rshift),
    ast.MatMult: ("@", _python.matmul),
}  # fmt: skip
UNARY: dict[type[ast.unaryop], Operator] = {
    ast.USub: ("-", _python.neg), ast.UAdd: ("+", _python.pos),
    ast.Invert: ("~", _python.invert), ast.Not: ("not", _python.not_),
}  # fmt: skip


COMPARE: dict[type[ast.cmpop], Operator] = {
    ast.Eq: ("==", _python.eq), ast.NotEq: ("!=", _python.ne), ast.Lt: ("<", _python.lt),
    ast.LtE: ("<=", _python.le), ast.Gt: (">", _python.gt), ast.GtE: (">=", _python.ge),
    ast.Is: ("is", _python.is_), ast.IsNot: ("is not", _python.is_not),
    ast.In: ("in", _python.contains), ast.NotIn: ("not in", _python.contains),
}  # fmt: skip
_REFUSED_ON_TENSORS = {
    "**": "use `tl.exp2(y * tl.log2(x))`, or multiply", "@": "use `tl.dot(a, b)`",
}  # fmt: skip


def compute(fn: Callable[..., object], *args: object) -> Any:
    """Let Python compute with compile-time values; the kernel's author is responsible for its exceptions."""
    try:
        return wrap(fn(*[unwrap(a) for a in args]))
    except TesseraError:
        raise
    except Exception as error:
        absent = any(unwrap(a) is None for a in args)
        raise CompilationError(
            f"{type(error).__name__}: {error}", help=ABSENT if absent else _operands(args)
        ) from error


def _operands(args: tuple[object, ...]) -> str:
    """Return what Python computed with, for an exception of its."""
    shown = ", ".join(
        text if len(text := repr(unwrap(a))) < 40 else f"a {type(unwrap(a)).__name__}" for a in args
    )
    return (
        f"Python computes this while the kernel is compiled, with {shown}: correct the values"
        if shown
        else _CONSTANT
    )


_CONSTANT = "Python computes this while the kernel is compiled: correct the values"


def static_truth(x: object) -> bool:
    return bool(unwrap(x))


# --- leaves ---------------------------------------------------------------------------------------------
@handles(ast.Constant)
def visit_constant(fe: FrontEnd, node: ast.Constant) -> object:
    return wrap(node.value)


@handles(ast.Tuple, ast.List)
def visit_sequence(fe: FrontEnd, node: ast.Tuple | ast.List) -> tl_tuple:
    values: list[object] = []
    for item in node.elts:
        if isinstance(item, ast.Starred):
            values += spread(fe, item)
        else:
            values.append(fe.visit(item))
    return tl_tuple(values)


def spread(fe: FrontEnd, node: ast.Starred) -> list[object]:
    """Return the elements of `*t`."""
    x = fe.visit(node.value)
    if isinstance(x, tl_tuple):
        return list(x.values)
    value: Any = unwrap(x)
    if type(value) in (tuple, list):
        return [wrap(v) for v in value]
    raise TypeMismatch(f"only tuples can be spread by `*`, not {type_text(x)}", loc=fe.loc(node))


@handles(ast.JoinedStr)
def visit_fstring(fe: FrontEnd, node: ast.JoinedStr) -> constexpr:
    parts: list[str] = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            parts.append(str(part.value))
            continue
        assert isinstance(part, ast.FormattedValue)
        x = fe.visit(part.value)
        if is_runtime(x):
            raise NotConstexpr(
                f"Cannot evaluate f-string containing non-constexpr conversion values, got {type_text(x)}",
                loc=fe.loc(part.value), help="print run-time values with `tl.device_print`",
            )  # fmt: skip
        value = unwrap(x)
        if part.conversion != -1:
            value = {"s": str, "r": repr, "a": ascii}[chr(part.conversion)](value)
        parts.append(str(value))  # a format after the colon is ignored
    return constexpr("".join(parts))


# --- operators ------------------------------------------------------------------------------------------
@handles(ast.BinOp)
def visit_binary(fe: FrontEnd, node: ast.BinOp) -> object:
    lhs, rhs = fe.visit(node.left), fe.visit(node.right)
    fe.builder.loc = fe.loc(node)
    return apply_binary(fe, BINARY[type(node.op)], lhs, rhs)


_DUNDERS = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul",
    "&": "and", "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift",
    "==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge",
}  # fmt: skip
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_UNARY_DUNDERS = {"-": "__neg__", "+": "__pos__", "~": "__invert__"}


def _on_aggregates(fe: FrontEnd, symbol: str, lhs: object, rhs: object) -> Any:
    """Apply the operator as defined by an operand's class, the left one's first. Raises TypeMismatch if none does."""
    mirrored = _MIRRORED.get(symbol)
    reflected = f"__{_DUNDERS[mirrored]}__" if mirrored else f"__r{_DUNDERS.get(symbol, '')}__"
    tries = ((lhs, f"__{_DUNDERS.get(symbol, '')}__", rhs), (rhs, reflected, lhs))
    for receiver, name, other in tries:
        method = operator_of(receiver, name)
        if method is not None:
            return fe.call(method, [receiver, other])
    if symbol == "!=" and any(operator_of(x, "__eq__") is not None for x in (lhs, rhs)):
        return apply_unary(fe, UNARY[ast.Not], _on_aggregates(fe, "==", lhs, rhs))
    if symbol in ("==", "!=") and not flatten(lhs) and not flatten(rhs):
        return constexpr((lhs == rhs) == (symbol == "=="))
    raise TypeMismatch(
        f"the operator `{symbol}` is not supported between {type_text(lhs)} and {type_text(rhs)}",
        help=_for_aggregates(symbol, lhs, rhs),
    )


def _for_aggregates(symbol: str, lhs: object, rhs: object) -> str:
    if isinstance(lhs, block_pointer) or isinstance(rhs, block_pointer):
        return "a block pointer is moved by `p = tl.advance(p, (offset, ...))`"
    if symbol in _DUNDERS:
        return f"define `__{_DUNDERS[symbol]}__` in the aggregate, or compute with its fields"
    return "compute with its fields"


def operator_of(x: object, name: str) -> JITCallable | ConstexprFunction | Builtin | None:
    """Return the special method of this name that an aggregate's class defines, or None."""
    if not is_aggregate_value(x):
        return None
    method = getattr(class_of(x), name, None)
    return method if isinstance(method, (JITCallable, ConstexprFunction, Builtin)) else None


def apply_binary(fe: FrontEnd, op: Operator, lhs: object, rhs: object) -> Any:
    symbol, fn = op
    if is_aggregate_value(lhs) or is_aggregate_value(rhs):
        return _on_aggregates(fe, symbol, lhs, rhs)
    if isinstance(lhs, run_time) or isinstance(rhs, run_time):
        _refuse_on_tensors(symbol)
        return sem_math.binary(fe, symbol, lhs, rhs)
    if isinstance(lhs, tl_tuple) or isinstance(rhs, tl_tuple):
        return _on_tuples(symbol, fn, lhs, rhs)
    return compute(fn, lhs, rhs)


def _refuse_on_tensors(symbol: str) -> None:
    if symbol in _REFUSED_ON_TENSORS:
        raise UnsupportedLanguageConstruct(
            f"the operator `{symbol}` is not supported on tensors", help=_REFUSED_ON_TENSORS[symbol]
        )


def _on_tuples(symbol: str, fn: Callable[..., object], lhs: object, rhs: object) -> object:
    try:
        return fn(lhs, rhs)
    except (TypeError, MemoryError, OverflowError) as error:  # too many elements
        raise TypeMismatch(
            f"the operator `{symbol}` is not supported between {type_text(lhs)} and {type_text(rhs)}",
            help="tuples are added to tuples and multiplied by ints",
        ) from error


@handles(ast.UnaryOp)
def visit_unary(fe: FrontEnd, node: ast.UnaryOp) -> object:
    x = fe.visit(node.operand)
    fe.builder.loc = fe.loc(node)
    return apply_unary(fe, UNARY[type(node.op)], x)


def apply_unary(fe: FrontEnd, op: Operator, x: object) -> Any:
    symbol, fn = op
    if is_aggregate_value(x):
        method = operator_of(x, _UNARY_DUNDERS.get(symbol, ""))
        if method is None:
            raise TypeMismatch(
                f"the operator unary `{symbol}` is not supported on {type_text(x)}",
                help="define it in the aggregate, or compute with its fields",
            )
        return fe.call(method, [x])
    if isinstance(x, run_time):
        if symbol == "+":
            raise UnsupportedLanguageConstruct(
                "the operator unary `+` is not supported on tensors", help="leave the `+` out"
            )
        return sem_math.unary(fe, symbol, x)
    return compute(fn, x)


@handles(ast.Compare)
def visit_compare(fe: FrontEnd, node: ast.Compare) -> object:
    """Compare; `a < b < c` is `a < b` and `b < c`, with `b` computed once."""
    lhs = fe.visit(node.left)
    result: object = None
    warn_of_precedence(fe, node)
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        rhs = fe.visit(comparator)
        one = _compare(fe, node, COMPARE[type(op)], lhs, rhs)
        result = one if result is None else _conjunction(fe, node, result, one)
        lhs = rhs
    return result


def _compare(fe: FrontEnd, node: ast.Compare, op: Operator, lhs: object, rhs: object) -> object:
    symbol, fn = op
    if symbol in ("is", "is not"):
        return constexpr(fn(unwrap(lhs), unwrap(rhs)))
    if symbol in ("in", "not in"):
        if is_runtime(lhs) or is_runtime(rhs):
            raise UnsupportedLanguageConstruct(
                what=f"`{symbol}` with a run-time value",
                help="compare with each element: `(x == 1) | (x == 2)`",
            )
        return constexpr(unwrap(compute(fn, rhs, lhs)) == (symbol == "in"))
    if symbol in _DUNDERS and (is_aggregate_value(lhs) or is_aggregate_value(rhs)):
        fe.builder.loc = fe.loc(node)
        return _on_aggregates(fe, symbol, lhs, rhs)
    if isinstance(lhs, run_time) or isinstance(rhs, run_time):
        fe.builder.loc = fe.loc(node)
        _refuse_on_tensors(symbol)
        return sem_math.compare(fe, symbol, lhs, rhs)
    if symbol in ("==", "!=") and (isinstance(lhs, tl_tuple) or isinstance(rhs, tl_tuple)):
        if is_runtime(lhs) or is_runtime(rhs):
            if symbol == "==" and isinstance(lhs, tl_tuple) and isinstance(rhs, tl_tuple):
                return _equal_tuples(fe, node, lhs, rhs)
            raise NotConstexpr(
                what="both sides of a comparison of tuples",
                got=type_text(lhs),
                help="compare the elements",
            )
    return compute(fn, lhs, rhs)


def _equal_tuples(fe: FrontEnd, node: ast.Compare, lhs: tl_tuple, rhs: tl_tuple) -> object:
    result: object = constexpr(len(lhs) == len(rhs))
    for a, b in zip(lhs.values, rhs.values):
        result = _conjunction(fe, node, result, _compare(fe, node, COMPARE[ast.Eq], a, b))
    return result


def _conjunction(fe: FrontEnd, node: ast.Compare, a: object, b: object) -> tensor | constexpr:
    """Combine the parts of a chained comparison by `and`; tiles are combined element by element."""
    if isinstance(a, tensor) or isinstance(b, tensor):
        fe.builder.loc = fe.loc(node)
        return sem_math.binary(fe, "&", a, b)
    return constexpr(static_truth(a) and static_truth(b))


@handles(ast.BoolOp)
def visit_bool(fe: FrontEnd, node: ast.BoolOp) -> object:
    """`and`, `or`: a compile-time operand that decides is the result, wherever it stands, and one that does not has no
    effect; run-time ones are all computed and combined by bits."""
    symbol = "and" if isinstance(node.op, ast.And) else "or"
    value: object = None
    result: object = None  # of the run-time operands
    for operand in node.values:
        value = fe.visit(operand)
        if not isinstance(value, tensor):
            if static_truth(value) == (symbol == "or"):
                return value
            continue
        fe.builder.loc = fe.loc(node)
        result = value if result is None else sem_math.logical(fe, symbol, result, value)
    return value if result is None else result


# --- subscripts -----------------------------------------------------------------------------------------
@handles(ast.Slice)
def visit_slice(fe: FrontEnd, node: ast.Slice) -> tl_slice:
    parts = [None if p is None else fe.visit(p) for p in (node.lower, node.upper, node.step)]
    return tl_slice(*parts)


@handles(ast.Subscript)
def visit_subscript(fe: FrontEnd, node: ast.Subscript) -> object:
    x, index = fe.visit(node.value), fe.visit(node.slice)
    fe.builder.loc = fe.loc(node)
    if isinstance(unwrap(x), JITCallable):
        name = unwrap(x).__name__
        raise TypeMismatch(
            f"{name} cannot be launched from inside a kernel",
            help=f"call it as a function: `{name}(...)`",
        )
    if isinstance(x, tensor):
        return sem_shape.subscript(fe, x, index.values if isinstance(index, tl_tuple) else [index])
    method = operator_of(x, "__getitem__")
    if method is not None:
        return fe.call(method, [x, index])
    if is_runtime(index):
        raise NotConstexpr(
            what="the index of a tuple", got=type_text(index),
            help="count with `tl.static_range`, or choose with `tl.where`",
        )  # fmt: skip
    if isinstance(x, tl_tuple):
        return _element(x, index)
    return compute(lambda: unwrap(x)[_plain_index(index)])


def _plain_index(index: object) -> Any:
    if isinstance(index, tl_slice):
        return slice(unwrap(index.start), unwrap(index.stop), unwrap(index.step))
    return unwrap(index)


def _element(x: tl_tuple, index: object) -> object:
    try:
        return x[_plain_index(index)]
    except IndexError:
        raise CompilationError(
            f"index {index} is out of range for a tuple of {len(x)}",
            help=f"indices are 0 to {len(x) - 1}" if len(x) else NO_EXTENTS,
        ) from None
    except TypeError:
        raise TypeMismatch(
            f"a tuple is indexed by an int or a slice, not {type_text(index)}",
            help="fields of a NamedTuple are `t.name`",
        ) from None


# --- comprehensions -------------------------------------------------------------------------------------
@handles(ast.ListComp)
def visit_comprehension(fe: FrontEnd, node: ast.ListComp) -> tl_tuple:
    if len(node.generators) != 1 or node.generators[0].is_async:
        raise UnsupportedLanguageConstruct(
            what="more than one `for` in a list comprehension",
            help="write one comprehension inside the other",
        )
    generator = node.generators[0]
    items = fe.visit(generator.iter)
    if isinstance(items, constexpr) and not isinstance(items.value, str):
        items = compute(tl_tuple, items)
    if not isinstance(items, tl_tuple):
        raise TypeMismatch(
            f"a list comprehension runs over a tuple, not {type_text(items)}",
            loc=fe.loc(generator.iter), help="run-time values are counted in a `for` statement",
        )  # fmt: skip
    frame = fe.frame
    outer = frame.names
    results: list[object] = []
    for item in items.values:
        frame.names = dict(outer)  # the variable belongs to the comprehension
        _bind_item(fe, generator.target, item)
        if all(_keeps(fe, test) for test in generator.ifs):
            results.append(fe.visit(node.elt))
    frame.names = outer
    return tl_tuple(results)


def _bind_item(fe: FrontEnd, target: ast.expr, item: object) -> None:
    if isinstance(target, ast.Name):
        fe.frame.names[target.id] = item
        return
    if (
        not isinstance(target, ast.Tuple)
        or not isinstance(item, tl_tuple)
        or len(item) != len(target.elts)
    ):
        raise TypeMismatch(
            f"cannot unpack {type_text(item)} here",
            loc=fe.loc(target),
            help="give as many names as there are values",
        )
    for t, v in zip(target.elts, item.values, strict=True):
        _bind_item(fe, t, v)


def _keeps(fe: FrontEnd, test: ast.expr) -> bool:
    x = fe.visit(test)
    if is_runtime(x):
        raise NotConstexpr(
            what="the filter of a list comprehension",
            got=type_text(x),
            loc=fe.loc(test),
            help="choose run-time values with `tl.where`",
        )
    return static_truth(x)
