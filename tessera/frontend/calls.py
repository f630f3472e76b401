"""Lowers calls: first the arguments, then one handler for each kind of callable that a kernel may call."""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tessera.dtypes import by_array_name, dtype
from tessera.errors import (
    CompilationError,
    KernelOnly,
    NotConstexpr,
    TesseraError,
    TypeMismatch,
    UnsupportedLanguageConstruct,
)
from tessera.frontend.expressions import compute, spread
from tessera.frontend.flatten import type_text
from tessera.frontend.frontend import Application, FrontEnd, handles
from tessera.frontend.markers import mark
from tessera.frontend.names import attribute
from tessera.frontend.remedies import complete, in_tl
from tessera.frontend.semantics.values import NO_EXTENTS, spelled
from tessera.ir import Op
from tessera.language import arithmetic, hints
from tessera.language.aggregate import ConstexprFunction, close, is_aggregate, replace_fields
from tessera.language.builtin import Builtin
from tessera.language.callable import JITCallable, jitted_under
from tessera.language.target_info import compiled_for
from tessera.language.values import BoundMethod, constexpr, is_runtime, tensor, unwrap, wrap
from tessera.language.values import tuple as tl_tuple

Kwargs = dict[str, Any]
Special = Callable[[FrontEnd, Sequence[object], Kwargs], object]


def arguments(fe: FrontEnd, node: ast.Call) -> tuple[list[object], Kwargs]:
    """Return the positional and keyword arguments of a call; `*t` is unpacked."""
    args: list[object] = []
    for a in node.args:
        if isinstance(a, ast.Starred):
            args += spread(fe, a)
        else:
            args.append(fe.visit(a))
    kwargs: Kwargs = {}
    for k in node.keywords:
        if k.arg is None:
            raise TypeMismatch(
                "`**` is not supported in a call inside a kernel", loc=fe.loc(k.value),
                help="give each argument by its name",
            )  # fmt: skip
        kwargs[k.arg] = fe.visit(k.value)
    return args, kwargs


@handles(ast.Call)
def visit_call(fe: FrontEnd, node: ast.Call) -> object:
    func = fe.visit(node.func)
    args, kwargs = arguments(fe, node)
    fe.builder.loc = fe.loc(node)
    try:
        return apply(fe, Application(func, args, kwargs))
    except TesseraError as error:
        if error.loc is None:
            error.loc = fe.loc(_argument_node(node, func, error.facts.get("argument", "")))
            complete(error, node, func, fe.frame)
        raise


def _argument_node(node: ast.Call, func: Op, name: str) -> ast.expr:
    """Return the expression given for the parameter `name`; the whole call if there is none."""
    receiver = isinstance(func, BoundMethod)
    target = func.function if isinstance(func, BoundMethod) else func
    for k in node.keywords:
        if k.arg == name:
            return k.value
    if isinstance(target, (Builtin, JITCallable)) and name in target.binder.names:
        position = target.binder.names.index(name) - receiver
        if 0 <= position < len(node.args):
            return node.args[position]
    return node


@handles(Application)
def apply(fe: FrontEnd, call: Application) -> object:
    """Call a value. Emitted ops get the builder's current location."""
    func, args, kwargs = call
    if isinstance(func, BoundMethod):
        func, args = func.function, [func.receiver, *args]
    if isinstance(func, constexpr):
        func = func.value
    if isinstance(func, Builtin):
        return _call_builtin(fe, func, args, kwargs)
    func = jitted_under(func)
    if isinstance(func, JITCallable):
        return fe.inline(func, args, kwargs)
    if isinstance(func, ConstexprFunction):
        with compiled_for(fe.options.target):
            return _call_constexpr(func.fn, args, kwargs)
    special = _SPECIAL.get(func) if getattr(func, "__hash__", None) is not None else None
    if special is not None:
        return special(fe, args, kwargs)
    if isinstance(func, type):
        return _construct(fe, func, args, kwargs)
    if isinstance(func, dtype) or not callable(func):
        raise TypeMismatch(
            f"a value of type {type_text(func)} cannot be called",
            help=f"convert with `x.to({spelled(func)})`"
            if isinstance(func, dtype)
            else "only functions are called; `[...]` is for tuples, and `tl.load(p + i)` reads elements",
        )
    debuggers = (sys.modules.get(name) for name in ("pdb", "ipdb"))
    if any(func == getattr(d, "set_trace", None) for d in debuggers):
        return _breakpoint(fe, args, kwargs)  # in the kernel, not in its compilation
    if getattr(func, "__triton_builtin__", False):  # another library's: it takes language values
        return wrap(_checked(func, args, kwargs))
    return _call_host(func, args, kwargs)


def _call_builtin(fe: FrontEnd, func: Builtin, args: list[Any], kwargs: Kwargs) -> object:
    impl = func.impl
    if impl is None:
        raise CompilationError(
            f"`tl.{func.__name__}` is not supported here",
            help="`tl.range` and `tl.static_range` are valid only as the iterator of a `for`"
            if "range" in func.__name__
            else None,
        )
    bound, extra, only = func.binder.bind(args, kwargs)
    result = impl(fe, *bound, *extra, **only)
    return wrap(result)


def _call_host(func: Callable[..., object], args: Sequence[object], kwargs: Kwargs) -> object:
    """Run a Python function while compiling: its arguments must be known."""
    name = getattr(func, "__name__", str(func))
    for x in (*args, *kwargs.values()):
        if isinstance(x, tensor):
            own = in_tl(name)
            remedy = f"put `@tessera.jit` on {name} to let it compute with run-time values"
            instead = f"write `{own}(...)`" if own else "use an operation of `tl`"
            kind = by_array_name(name)
            if kind is not None:
                instead = f"convert with `.to(tl.{repr(kind).rsplit('.', 1)[-1]})`"
            raise NotConstexpr(
                what=f"every argument of the Python function {name}()", got=type_text(x),
                help=remedy if inspect.isfunction(func) and not own else instead,
            )  # fmt: skip
    named = {k: unwrap(v) for k, v in kwargs.items()}
    return compute(lambda *values: func(*values, **named), *args)


def _call_constexpr(func: Callable[..., object], args: Sequence[object], kwargs: Kwargs) -> object:
    """Run a compile-time function. It may use the types and shapes of run-time values, but not compute with them."""
    named = {k: unwrap(v) for k, v in kwargs.items()}
    try:
        return compute(lambda *values: func(*values, **named), *args)
    except (CompilationError, KernelOnly) as error:
        x = next((x for x in (*args, *kwargs.values()) if isinstance(x, tensor)), None)
        if x is None:
            raise
        raise NotConstexpr(
            what=f"what the Python function {func.__name__}() computes with", got=type_text(x),
            help=f"put `@tessera.jit` on {func.__name__} to let it compute with run-time values",
        ) from error  # fmt: skip


def unused_result(fe: FrontEnd, node: ast.Call) -> None:
    """Reject a statement that calls a function whose result must be used."""
    func = node.func
    if not isinstance(func, ast.Name | ast.Attribute):
        return
    called = fe.visit(func)
    called = called.function if isinstance(called, BoundMethod) else called
    message = getattr(called, "must_use", None)
    if isinstance(message, str):
        raise CompilationError(
            f"The result of {ast.unparse(func)} is not being used. {message}".rstrip(),
            loc=fe.loc(node), help=f"write `{_target_of(node)} = {ast.unparse(func)}(...)`",
        )  # fmt: skip


def _target_of(node: ast.Call) -> str:
    """Return the variable that a dropped result belongs into: the first argument, or the receiver."""
    named = [*node.args, node.func.value] if isinstance(node.func, ast.Attribute) else node.args
    return next((x.id for x in named if isinstance(x, ast.Name)), "x")


# --- classes ----------------------------------------------------------------------------------------------
def _construct(fe: FrontEnd, cls: Any, args: Sequence[object], kwargs: Kwargs) -> object:
    if is_aggregate(cls):
        return _construct_aggregate(fe, cls, args, kwargs)
    if hasattr(cls, "_fields"):
        made: Any = _checked(cls, args, kwargs)
        return tl_tuple(list(made), cls=cls)
    return _call_host(cls, args, kwargs)


def _construct_aggregate(fe: FrontEnd, cls: Any, args: Sequence[object], kwargs: Kwargs) -> object:
    init = inspect.getattr_static(cls, "__init__")
    if not isinstance(init, (JITCallable, ConstexprFunction)):
        return _checked(cls, args, kwargs)
    instance = object.__new__(cls)
    if isinstance(init, JITCallable):
        fe.inline(init, [instance, *args], kwargs)
    else:
        named = {k: unwrap(v) for k, v in kwargs.items()}
        _checked(init.fn, [instance, *map(unwrap, args)], named)
    _checked(close, [instance], {})
    return instance


def _checked(func: Callable[..., object], args: Sequence[object], kwargs: Kwargs) -> Any:
    """Run a constructor on language values; the kernel's author is responsible for its exceptions."""
    try:
        return func(*args, **kwargs)
    except TesseraError:
        raise
    except Exception as error:
        remedy = "correct the arguments"
        if isinstance(error, AttributeError) and "has no field" in str(error):
            remedy = "declare the field with an annotation in the class, as `name: tl.tensor`"
        elif "leaves the field" in str(error):
            remedy = "give each field of the class a value"
        elif "of aggregate" in str(error):
            remedy = "declare what is known at compile time as `tl.constexpr`; `tl.to_tensor(3)` makes a tensor"
        raise CompilationError(f"{type(error).__name__}: {error}", help=remedy) from error


# --- Python's builtins ------------------------------------------------------------------------------------
def _static(what: str, x: object, remedy: str | None = None) -> Any:
    if is_runtime(x):
        raise NotConstexpr(what=what, got=type_text(x), help=remedy)
    return unwrap(x)


def _len(fe: FrontEnd, args: Sequence[object], kwargs: Kwargs) -> object:
    (x,) = _exactly("len", args, 1)
    if isinstance(x, tl_tuple):
        return constexpr(len(x))
    if isinstance(x, tensor) and x.dims:
        return constexpr(x.dims[0])
    if isinstance(x, tensor):
        raise NotConstexpr(what="the argument of len()", got=type_text(x), help=NO_EXTENTS)
    return compute(len, _static("the argument of len()", x))


def _number(kind: Callable[[Any], Any]) -> Special:
    def convert(fe: FrontEnd, args: Sequence[object], kwargs: Kwargs) -> object:
        name = kind.__name__
        (x,) = _exactly(name, args, 1)
        to = "tl.int32" if kind is int else "tl.float32"
        return compute(kind, _static(f"the argument of {name}()", x, f"convert with `.to({to})`"))

    return convert


def _exactly(name: str, args: Sequence[object], n: int) -> Sequence[object]:
    if len(args) != n:
        raise TypeMismatch(
            f"{name}() takes {n} argument{'s' if n > 1 else ''}, got {len(args)}",
            help=f"in a kernel `{name}` takes the forms of Python with {n}",
        )
    return args


def _isinstance(fe: FrontEnd, args: Sequence[object], kwargs: Kwargs) -> constexpr:
    x, kinds = _exactly("isinstance", args, 2)
    kinds = tuple(kinds.values) if isinstance(kinds, tl_tuple) else unwrap(kinds)
    inner = x.value if isinstance(x, constexpr) else x
    try:
        return constexpr(isinstance(x, kinds) or isinstance(inner, kinds))
    except TypeError as error:
        raise TypeMismatch(str(error), help="give a class, or a tuple of classes") from error


def _getattr(fe: FrontEnd, args: Sequence[object], kwargs: Kwargs) -> object:
    name = _static("the name for getattr()", args[1])
    try:
        return attribute(fe, args[0], name)
    except TesseraError:
        if len(args) < 3:
            raise
        return args[2]


def _hasattr(fe: FrontEnd, args: Sequence[object], kwargs: Kwargs) -> constexpr:
    x, name = _exactly("hasattr", args, 2)
    try:
        attribute(fe, x, _static("the name for hasattr()", name))
    except TesseraError:
        return constexpr(False)
    return constexpr(True)


def _print(fe: FrontEnd, args: Sequence[object], kwargs: Kwargs) -> object:
    if not args or not isinstance(unwrap(args[0]), str):
        raise TypeMismatch(
            "the first argument of print() must be a string literal",
            help='write `print("x = ", x)`; values known at compile time: `tl.static_print(x)`',
        )
    return fe.call(hints.device_print, args, kwargs)


def _breakpoint(fe: FrontEnd, args: Sequence[object], kwargs: Kwargs) -> None:
    """Stop the interpreter here; the debugger sees every variable of the kernel that has a value."""
    if fe.options.backend_name != "interpreter":
        raise UnsupportedLanguageConstruct(
            "`breakpoint()` stops the interpreter only, and this kernel is compiled",
            help="set TESSERA_INTERPRET=1",
        )
    mark(fe, stops=True)


def _ordered(pick: Callable[..., object], values: tuple[object, ...]) -> tuple[object, ...]:
    """Return numbers, if Python orders them as the machine does."""
    for x in values:
        if isinstance(x, float) and (math.isnan(x) or (not x and math.copysign(1, x) < 0)):
            raise TypeMismatch(
                f"{pick.__name__}() of {x} at compile time is not supported",
                help="NaN and -0.0 have no place in the order that Python and the machine share",
            )
    return values


def _extreme(pick: Callable[..., object], op: Any) -> Special:
    def choose(fe: FrontEnd, args: Sequence[object], kwargs: Kwargs) -> object:
        items = list(args[0].values) if len(args) == 1 and isinstance(args[0], tl_tuple) else args
        if not items:
            raise TypeMismatch(f"{pick.__name__}() needs a value", help="give at least one")
        if not any(is_runtime(x) for x in items):
            return compute(lambda *values: pick(_ordered(pick, values)), *items)
        if any(isinstance(x, tensor) and x.dims for x in items):
            fe.warn(
                f"`{pick.__name__}` of tensors that are no scalars is deprecated: use `tl.{op.__name__}`",
                UserWarning,
            )
        result = items[0]
        for x in items[1:]:
            result = fe.call(op, [result, x], kwargs)
        return result

    return choose


def _list(fe: FrontEnd, args: Sequence[object], kwargs: Kwargs) -> tl_tuple:
    return _tuple(fe, args or [tl_tuple()], kwargs)


def _tuple(fe: FrontEnd, args: Sequence[object], kwargs: Kwargs) -> tl_tuple:
    x = args[0] if args else tl_tuple()
    if isinstance(x, tl_tuple):
        return tl_tuple(x.values, cls=kwargs.get("cls"))
    return compute(tl_tuple, x)


def _range(fe: FrontEnd, args: Sequence[object], kwargs: Kwargs) -> tl_tuple:
    """Evaluate a `range` outside a `for`, such as in a comprehension, which takes compile-time ints only."""
    bounds = [_static("a range here", a, "run-time bounds are for `for` statements") for a in args]
    if not 1 <= len(bounds) <= 3 or not all(isinstance(x, int) for x in bounds):
        shown = ", ".join(map(type_text, args))
        raise TypeMismatch(
            f"range() takes one to three ints, got ({shown})",
            help="write `range(start, stop, step)`",
        )
    return compute(lambda: tl_tuple([constexpr(i) for i in range(*bounds)]))


def _constexpr(fe: FrontEnd, args: Sequence[object], kwargs: Kwargs) -> object:
    """Mark a value as known at compile time; one that is not passes unchanged, as in an annotated assignment."""
    (x,) = _exactly("constexpr", args, 1)
    return x if is_runtime(x) else wrap(constexpr(unwrap(x)))


_SPECIAL: dict[object, Special] = {
    builtins.len: _len,
    builtins.int: _number(int),
    builtins.float: _number(float),
    builtins.isinstance: _isinstance,
    builtins.getattr: _getattr,
    builtins.hasattr: _hasattr,
    builtins.print: _print,
    builtins.min: _extreme(min, arithmetic.minimum),
    builtins.max: _extreme(max, arithmetic.maximum),
    builtins.list: _list,
    builtins.breakpoint: _breakpoint,
    builtins.range: _range,
    tl_tuple: _tuple,
    constexpr: _constexpr,
    replace_fields: lambda fe, args, kwargs: _checked(replace_fields, args, kwargs),
}
