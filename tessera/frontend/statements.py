"""Lowers statements that bind names or do nothing: assignments, expressions, assertions; rejects the others."""

from __future__ import annotations

import ast
from contextlib import ExitStack
from typing import Any

from tessera.dtypes import dtype
from tessera.errors import CompilationError, TypeMismatch, UnsupportedLanguageConstruct
from tessera.frontend.calls import unused_result
from tessera.frontend.expressions import BINARY, apply_binary
from tessera.frontend.flatten import flatten, is_number, type_text
from tessera.frontend.frontend import FrontEnd, handles
from tessera.language import hints
from tessera.language.aggregate import is_aggregate_value
from tessera.language.values import class_of, constexpr, tensor, unwrap
from tessera.language.values import tuple as tl_tuple


# --- binding names --------------------------------------------------------------------------------------
def bind(fe: FrontEnd, name: str, value: object) -> None:
    """Bind a name, and give it to the IR values for readers of the IR."""
    fe.frame.names[name] = value
    if isinstance(value, tensor):
        if not value.handle.name:
            value.handle.name = name
    elif isinstance(value, tl_tuple):
        for i, v in enumerate(flatten(value)):
            v.name = v.name or f"{name}_{i}"


def assign(fe: FrontEnd, target: ast.expr, value: object) -> None:
    """`target = value`, for a value that is already as it should be bound; tuples are unpacked."""
    if isinstance(target, ast.Name):
        bind(fe, target.id, value)
    elif isinstance(target, ast.Tuple | ast.List):
        _unpack(fe, target, value)
    elif isinstance(target, ast.Attribute):
        _assign_attribute(fe, target, value)
    elif isinstance(target, ast.Subscript):
        raise UnsupportedLanguageConstruct(
            "__setitem__ is not supported in a kernel", loc=fe.loc(target),
            help="values are immutable: choose elements with `tl.where(i == 3, new, x)`; memory is "
            "written with `tl.store(p + i, x)`",
        )  # fmt: skip
    else:
        raise UnsupportedLanguageConstruct(
            what="this target of an assignment", loc=fe.loc(target), help="assign to a variable"
        )


def _unpack(fe: FrontEnd, target: ast.Tuple | ast.List, value: object) -> None:
    for t in target.elts:
        if isinstance(t, ast.Starred):
            raise UnsupportedLanguageConstruct(
                what="a starred target",
                loc=fe.loc(t),
                help="take the rest as a slice: `b = xs[1:]`",
            )
    if isinstance(value, constexpr) and type(value.value) in (tuple, list):
        value = tl_tuple(value.value)
    if not isinstance(value, tl_tuple):
        raise CompilationError(
            f"cannot unpack a value of type {type_text(value)}",
            loc=fe.loc(target),
            help="only tuples are unpacked; `tl.max(x, 0, return_indices=True)` and `tl.split(x)` give two values",
        )
    if len(value) < len(target.elts):
        raise CompilationError(
            f"not enough values to unpack (expected {len(target.elts)}, got {len(value)})",
            loc=fe.loc(target), help=f"give {len(value)} names",
        )  # fmt: skip
    for t, v in zip(target.elts, value.values, strict=False):  # more values are dropped
        assign(fe, t, v)


def _assign_attribute(fe: FrontEnd, target: ast.Attribute, value: object) -> None:
    instance = fe.visit(target.value)
    if not is_aggregate_value(instance):
        raise UnsupportedLanguageConstruct(
            "Attribute assignment is not supported in a kernel", loc=fe.loc(target),
            help="use a variable of its own; only the `__init__` of an aggregate sets fields, those of `self`",
        )  # fmt: skip
    try:
        setattr(instance, target.attr, value)
    except AttributeError as error:
        remedy = "declare the field in the class, as `name: tl.tensor`"
        if "immutable" in str(error):
            remedy = f"make another one with the new value: `{class_of(instance).__name__}(...)`"
        raise CompilationError(str(error), loc=fe.loc(target), help=remedy) from error


def _decayed(fe: FrontEnd, target: ast.expr, value: object, node: ast.stmt | ast.expr) -> Any:
    """Return what an assignment without annotation binds: numbers become tensors, except for declared constexprs."""
    if isinstance(target, ast.Attribute):
        return value
    if isinstance(target, ast.Name) and fe.frame.constant.get(target.id) is _DECLARED:
        return value
    if isinstance(target, ast.Tuple | ast.List) and isinstance(value, tl_tuple):
        if len(target.elts) <= len(value):
            if (dropped := len(value) - len(target.elts)) > 0:  # as in Triton
                fe.builder.loc = fe.loc(node)
                fe.warn(
                    f"{dropped} of {len(value)} values are dropped: give each a name, or take a slice"
                )
            pairs = zip(target.elts, value.values, strict=False)
            return tl_tuple([_decayed(fe, t, v, node) for t, v in pairs])
    if isinstance(value, tensor):
        return value
    fe.builder.loc = fe.loc(node)
    _check_assignable(fe, value, node)
    return fe.decay(value)


def _check_assignable(fe: FrontEnd, value: object, node: ast.stmt | ast.expr) -> None:
    """Reject values other than numbers, language values, dtypes and None, which only a constexpr may hold."""
    if isinstance(value, tl_tuple):
        for v in value.values:
            _check_assignable(fe, v, node)
        return
    x = value.value if isinstance(value, constexpr) else value
    if isinstance(x, str) or (callable(x) and not isinstance(x, (dtype, type))):
        raise TypeMismatch(
            f"cannot convert {getattr(x, '__name__', repr(x))} of type {type(x).__name__} to tensor", loc=fe.loc(node),
            help="annotate the name: `x: tl.constexpr = ...`",
        )  # fmt: skip


@handles(ast.Assign)
def visit_assign(fe: FrontEnd, node: ast.Assign) -> None:
    if len(node.targets) > 1:
        raise UnsupportedLanguageConstruct(
            "simultaneous multiple assignment is not supported in a kernel",
            loc=fe.loc(node.targets[1]), help="write one assignment for each name",
        )  # fmt: skip
    (target,) = node.targets
    assign(fe, target, _decayed(fe, target, fe.visit(node.value), node))


_DECLARED: Any = object()  # of a name declared by a bare `x: tl.constexpr`


def _may_define(former: object, node: ast.AnnAssign) -> bool:
    """Whether `node` may define a name that `former` defined: a bare declaration, or the same statement in an earlier
    iteration of a loop that is unrolled."""
    return former is _DECLARED or former is node


@handles(ast.AnnAssign)
def visit_annotated(fe: FrontEnd, node: ast.AnnAssign) -> None:
    is_constant = "constexpr" in ast.unparse(node.annotation)
    if not isinstance(node.target, ast.Name):
        raise UnsupportedLanguageConstruct(
            what="an annotation of this target", help="only variables are annotated"
        )
    name, frame = node.target.id, fe.frame
    if node.value is None:
        if is_constant:
            frame.constant[name] = _DECLARED
        return
    value = fe.visit(node.value)
    if not is_constant:
        assign(fe, node.target, _decayed(fe, node.target, value, node))
        return
    if name in frame.names and not _may_define(frame.constant.get(name), node):
        raise CompilationError(
            f"{name} is already defined. constexpr cannot be reassigned.", loc=fe.loc(node.target),
            help="give the compile-time value a name of its own",
        )  # fmt: skip
    frame.constant[name] = node
    if not isinstance(value, tensor):
        frame.names[name] = (
            constexpr(value) if isinstance(value, bool | int | float | str) else value
        )
    else:
        bind(fe, name, value)


@handles(ast.AugAssign)
def visit_augmented(fe: FrontEnd, node: ast.AugAssign) -> None:
    target = node.target
    if not isinstance(target, ast.Name):
        return assign(fe, target, None)  # says why it cannot be assigned
    lhs = fe.visit(ast.copy_location(ast.Name(target.id, ast.Load()), target))
    rhs = fe.visit(node.value)
    fe.builder.loc = fe.loc(node)
    value = apply_binary(fe, BINARY[type(node.op)], lhs, rhs)
    assign(fe, target, _decayed(fe, target, value, node))
    return None


@handles(ast.NamedExpr)
def visit_walrus(fe: FrontEnd, node: ast.NamedExpr) -> Any:
    value = _decayed(fe, node.target, fe.visit(node.value), node)
    assign(fe, node.target, value)
    return value


# --- the rest -------------------------------------------------------------------------------------------
@handles(ast.Expr)
def visit_expression(fe: FrontEnd, node: ast.Expr) -> None:
    if isinstance(node.value, ast.Constant):  # a docstring
        return
    fe.visit(node.value)
    if isinstance(node.value, ast.Call):
        unused_result(fe, node.value)


@handles(ast.Pass)
def visit_pass(fe: FrontEnd, node: ast.Pass) -> None:
    return


@handles(ast.Assert)
def visit_assert(fe: FrontEnd, node: ast.Assert) -> None:
    test = fe.visit(node.test)
    message = unwrap(fe.visit(node.msg)) if node.msg is not None else ""
    fe.builder.loc = fe.loc(node)
    test = fe.to_tensor(test) if is_number(test) else test
    fe.call(hints.device_assert, [test, constexpr(message)])


@handles(ast.With)
def visit_with(fe: FrontEnd, node: ast.With) -> None:
    """Enter and leave operations that return a context manager, such as a profiler's scopes, as the body is visited."""
    if fe.facts(node).jumps:
        raise UnsupportedLanguageConstruct(
            "Cannot have `return`, `break` or `continue` statements inside `with` statements in a kernel",
            help="end the `with` block before",
        )
    with ExitStack() as stack:
        for item in node.items:
            manager = unwrap(fe.visit(item.context_expr))
            if not hasattr(manager, "__enter__") or not hasattr(manager, "__exit__"):
                raise UnsupportedLanguageConstruct(
                    f"`with` takes an operation that gives a context manager, not {type_text(manager)}",
                    loc=fe.loc(item.context_expr),
                    help="leave the `with` out; resources are opened outside of kernels",
                )
            value = stack.enter_context(manager)
            if item.optional_vars is not None:
                assign(fe, item.optional_vars, value)
        fe.run(node.body)


_NO_IMPORT = "import at the top of the module; for a debugger `breakpoint()` needs no import"
_REFUSED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lambda: ("`lambda`", "write a function under `@tessera.jit`"),
    ast.FunctionDef: ("a nested function definition", "define it at module level under `@tessera.jit`"),
    ast.AsyncFunctionDef: ("a nested function definition", "define it at module level under `@tessera.jit`"),
    ast.ClassDef: ("a class definition", "define it at module level under `@tessera.aggregate`"),
    ast.Try: ("`try`", "a kernel has no exceptions; test the condition with `if`"),
    ast.Raise: ("`raise`", "use `tl.static_assert` or `tl.device_assert`"),
    ast.Import: ("`import`", _NO_IMPORT),
    ast.ImportFrom: ("`import`", _NO_IMPORT),
    ast.Global: ("`global`", "make the value a parameter and return the result, or store it to memory"),
    ast.Nonlocal: ("`nonlocal`", "pass the value as an argument and return the result"),
    ast.Delete: ("`del`", "remove the statement: the compiler knows when a value is last used"),
    ast.Dict: ("a dict display", "use a tuple, or a NamedTuple"),
    ast.Set: ("a set display", "use a tuple"),
    ast.GeneratorExp: ("a generator expression", "use a list comprehension over a tuple, `[... for x in xs]`"),
    ast.DictComp: ("a dict comprehension", "use a list comprehension over a tuple"),
    ast.SetComp: ("a set comprehension", "use a list comprehension over a tuple"),
    ast.Yield: ("`yield`", "give results with `tl.store`, or `return` them from a function"),
    ast.YieldFrom: ("`yield`", "give results with `tl.store`, or `return` them from a function"),
    ast.Await: ("`await`", "launches are asynchronous for the host only"),
    ast.AsyncFor: ("`async for`", "write `for`; the compiler overlaps loads with the computation"),
    ast.AsyncWith: ("`async with`", "leave it out"),
    ast.Match: ("`match`", "use `if` and `elif`"),
    ast.Starred: ("`*` here", "give the elements one by one"),
}  # fmt: skip


@handles(*_REFUSED)
def refuse(fe: FrontEnd, node: ast.AST) -> None:
    what, remedy = _REFUSED[type(node)]
    raise UnsupportedLanguageConstruct(what=what, help=remedy or None)
