"""Calls of `noinline` functions: one function of the module for each combination of argument types and constants.

Parameters that are known at compile time are part of the specialisation; the run-time scalars inside tuples and
aggregates become arguments one by one, results likewise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tessera.errors import (
    CompilationError,
    TesseraError,
    TypeMismatch,
)
from tessera.frontend.flatten import flatten, rebuild
from tessera.frontend.frontend import MAX_DEPTH, Frame, FrontEnd, SeparateCall, handles
from tessera.frontend.sem_descriptor import made_by
from tessera.frontend.sem_values import wrap
from tessera.ir import Block, TileType
from tessera.language.aggregate import field_values, is_aggregate_value
from tessera.language.callable import JITCallable
from tessera.language.values import constexpr, tensor, tensor_descriptor
from tessera.language.values import tuple as tl_tuple
from tessera.ops import CallOp, FuncOp, MakeDescriptorOp, ReturnOp


class _Made(NamedTuple):
    """A function of the module, and its result around its own IR values."""

    name: str
    result: Any


@handles(SeparateCall)
def call_separately(fe: FrontEnd, call: SeparateCall) -> Any:
    """A CallOp of a function that is lowered once for each combination of argument types and constants."""
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
    args = [v for x in names.values() for v in flatten(_exposed(x))]
    types = [v.type for v in flatten(made.result)]
    op = fe.builder.insert(CallOp(args, callee=made.name, results=types))
    return rebuild(made.result, iter(op.results))


def _make(fe: FrontEnd, fn: JITCallable, names: dict[str, Any]) -> _Made:
    block = Block()
    inside: dict[str, Any] = {}
    for name, whole in names.items():
        x = _exposed(whole)
        inner = flatten(x)
        labels = [name] if len(inner) == 1 else [f"{name}_{i}" for i in range(len(inner))]
        args = [block.add_arg(v.type, label) for v, label in zip(inner, labels, strict=True)]
        with fe.builder.at(block):
            inside[name] = _hidden(fe, whole, rebuild(x, iter(args)))
    caller = fe.frame
    if caller.depth >= MAX_DEPTH:
        raise CompilationError(f"calls nest more than {MAX_DEPTH} deep in {fn.__name__}()")
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


def _key(x: Any) -> Any:
    """What a specialisation depends on: types of run-time values, compile-time values themselves."""
    if isinstance(x, tensor):
        return x.type
    if isinstance(x, tensor_descriptor):
        return (x.type, len(x.shape), made_by(x, "a noinline function").padding)
    if isinstance(x, tl_tuple):
        return (x.cls, *(_key(v) for v in x.values))
    if is_aggregate_value(x):
        return (type(x), *(_key(v) for v in field_values(x).values()))
    value = x.value if isinstance(x, constexpr) else x
    try:
        hash(value)
    except TypeError:
        value = repr(value)
    return (type(value), repr(value) if isinstance(value, float) else value)


# --- descriptors ------------------------------------------------------------------------------------------
def _exposed(x: Any) -> Any:
    """`x` with each descriptor as what it is made of, so that only scalars are passed."""
    if isinstance(x, tl_tuple):
        return x.rebuild([_exposed(v) for v in x.values])
    if isinstance(x, tensor_descriptor):
        op = made_by(x, "a noinline function")
        return tl_tuple([wrap(v) for v in (op.base, *op.shape, *op.strides)])
    return x


def _hidden(fe: FrontEnd, x: Any, parts: Any) -> Any:
    """In the function: the descriptors of `x` made again of their parts."""
    if isinstance(x, tl_tuple):
        pairs = zip(x.values, parts.values, strict=True)
        return x.rebuild([_hidden(fe, v, p) for v, p in pairs])
    if not isinstance(x, tensor_descriptor):
        return parts
    op, (base, *rest) = made_by(x, "a noinline function"), flatten(parts)
    n = len(op.shape)
    shape, strides = rest[:n], rest[n:]
    new = MakeDescriptorOp(base, shape, strides, block_shape=op.block_shape, padding=op.padding)
    known = [*zip(x.shape, shape, strict=True), *zip(x.strides, strides, strict=True)]
    values = [v for given, v in known if isinstance(given, tensor)]
    return rebuild(x, iter([fe.builder.emit(new), *values]))


def _check_scalars(fn: JITCallable, names: dict[str, Any]) -> None:
    for name, value in names.items():
        if any(isinstance(v.type, TileType) for v in flatten(value)):
            raise TypeMismatch(
                f"Function {fn.__name__} is marked noinline, but was called with non-scalar argument "
                f"{name}:{value}"
            )
