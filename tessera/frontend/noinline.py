"""Lowers calls of `noinline` functions: one function of the module for each combination of argument types and
constants.

Parameters that are known at compile time are part of the specialisation; the run-time scalars inside tuples,
aggregates and descriptors become arguments one by one, results likewise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tessera.errors import (
    CompilationError,
    TesseraError,
    TypeMismatch,
)
from tessera.frontend.flatten import flatten, parts_of, rebuild
from tessera.frontend.frontend import MAX_DEPTH, Frame, FrontEnd, SeparateCall, handles
from tessera.ir import Block, TileType
from tessera.language.callable import JITCallable
from tessera.language.descriptor import tensor_descriptor
from tessera.language.values import constexpr, tensor
from tessera.language.values import tuple as tl_tuple
from tessera.ops import CallOp, FuncOp, ReturnOp


class _Made(NamedTuple):
    """A function of the module, and its result as a language value around its own IR values."""

    name: str
    result: Any


@handles(SeparateCall)
def call_separately(fe: FrontEnd, call: SeparateCall) -> Any:
    """Emit a CallOp of a function that is lowered once for each combination of argument types and constants."""
    fn, names = call
    _check_scalars(fn, names)
    loc = fe.builder.loc
    key = (fn, *(_key(x) for x in names.values()))
    if key not in fe.functions:
        fe.functions[key] = None  # being made
        try:
            fe.functions[key] = _make(fe, fn, names)
        except TesseraError as error:
            if loc is not None and error.loc is not None:
                error.note(f"{fn.__name__}() is called at {loc.short()}")
            raise
        finally:
            fe.builder.loc = loc
    made: _Made | None = fe.functions[key]
    if made is None:
        raise CompilationError(
            f"the noinline function {fn.__name__}() calls itself",
            help="a called function cannot be recursive at run time: write a loop",
        )
    args = [v for x in names.values() for v in flatten(x)]
    types = [v.type for v in flatten(made.result)]
    op = fe.builder.insert(CallOp(args, callee=made.name, results=types))
    return rebuild(made.result, iter(op.results))


def _make(fe: FrontEnd, fn: JITCallable, names: dict[str, Any]) -> _Made:
    block = Block()
    inside: dict[str, object] = {}
    for name, x in names.items():
        inner = flatten(x)
        labels = [name] if len(inner) == 1 else [f"{name}_{i}" for i in range(len(inner))]
        args = [block.add_arg(v.type, label) for v, label in zip(inner, labels, strict=True)]
        inside[name] = rebuild(x, iter(args))
    caller = fe.frame
    if caller.depth >= MAX_DEPTH:
        raise CompilationError(
            f"calls nest more than {MAX_DEPTH} deep in {fn.__name__}()", help="write a loop"
        )
    fe.frame = Frame(fn, inside, caller, None)
    try:
        with fe.builder.at(block):
            outcome = fe.run(fe.frame.source.node.body)
            result = outcome.value if outcome is not None else None
            values = flatten(result)
            fe.builder.insert(ReturnOp(values))
        loc = fe.loc(fe.frame.source.node)
    finally:
        fe.frame = caller
    func = FuncOp(
        name=f"{fn.__name__}__{len(fe.functions)}", kernel=False, arg_attrs=((),) * len(block.args),
        returns=tuple(v.type for v in values), regions=(block,), loc=loc,
    )  # fmt: skip
    fe.module.body.append(func)
    return _Made(func.name, result)


def _key(x: object) -> Any:
    """Return what a specialisation depends on: types of run-time values, and compile-time values themselves."""
    if isinstance(x, tensor):
        return x.type
    parts = parts_of(x)
    if parts is not None:
        named: object = x.cls if isinstance(x, tl_tuple) else None
        return (x.type if isinstance(x, tensor_descriptor) else named or type(x), *map(_key, parts))
    value = x.value if isinstance(x, constexpr) else x
    try:
        hash(value)
    except TypeError:
        value = repr(value)
    return (type(value), repr(value) if isinstance(value, float) else value)


def _check_scalars(fn: JITCallable, names: dict[str, Any]) -> None:
    for name, value in names.items():
        if any(isinstance(v.type, TileType) for v in flatten(value)):
            raise TypeMismatch(
                f"Function {fn.__name__} is marked noinline, but was called with non-scalar argument "
                f"{name}:{value}",
                help="leave `noinline` out, or pass pointers and scalars",
            )
