"""Lowers `if`, conditional expressions and early `return`. Only one branch of a compile-time condition is visited.

At a run-time `if` both branches are visited and the names assigned in either are joined: their types must agree, and
each becomes a result of the `if` op. If a branch has a `return`, the statements after the `if` are visited as the end
of the branch that does not return, so that both branches end the function and its value is what the `if` op yields.

    if n > 0: return a                 if n > 0: result = a
    b = f(a)                   →       else:     result = f(a)
    return b                           return result
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from tessera.errors import (
    BranchMismatch,
    ReturnMismatch,
    TypeMismatch,
    UnsupportedLanguageConstruct,
)
from tessera.frontend.flatten import (
    flatten,
    is_number,
    rebuild,
    same_constant,
    type_text,
)
from tessera.frontend.frontend import FrontEnd, Returned, handles
from tessera.frontend.joining import anything_like, decay_in, unify
from tessera.frontend.semantics.type_promotion import dtype_of_number
from tessera.frontend.semantics.values import condition
from tessera.frontend.source import last_assignment
from tessera.ir import Block, Value
from tessera.language.values import constexpr, tensor
from tessera.ops import IfOp, YieldOp

MISSING: Any = object()
_FELL_OFF: Any = object()  # the "value" of a path that ends without `return`
_STATIC_CONDITIONS = (bool, int, type(None))


def decide(fe: FrontEnd, test: ast.expr) -> bool | Value:
    """Return a condition: a Python bool if it is known at compile time, else an int1 value."""
    x = fe.visit(test)
    if isinstance(x, tensor):
        fe.builder.loc = fe.loc(test)
        with fe.builder.loc:
            return condition(fe, x).handle
    value = x.value if isinstance(x, constexpr) else x
    if type(value) not in _STATIC_CONDITIONS:
        kinds = "{bool, int, NoneType}"
        raise UnsupportedLanguageConstruct(
            f"`if` conditionals can only accept values of type {kinds}, not objects of type "
            f"{type(value).__name__}",
            loc=fe.loc(test),
            help="compare: `x != 0`",
        )
    return bool(value)


@handles(ast.If)
def visit_if(fe: FrontEnd, node: ast.If) -> Returned | None:
    """Visit one side if the condition is known, else emit an IfOp that yields every variable assigned on a side."""
    test = decide(fe, node.test)
    if isinstance(test, bool):
        return fe.run(node.body if test else node.orelse)
    frame = fe.frame
    before = frame.names
    blocks = Block(), Block()
    after: list[dict[str, Any]] = []
    for block, body in zip(blocks, (node.body, node.orelse), strict=True):
        frame.names = dict(before)
        fe.run_in(block, body)
        after.append(frame.names)
    frame.names = before
    fe.builder.loc = loc = fe.loc(node.test)
    names: list[str] = []
    pairs: list[tuple[Any, Any]] = []
    for name in fe.facts(node).assigned:
        a, b = after[0].get(name, MISSING), after[1].get(name, MISSING)
        if a is b:
            if a is not MISSING:
                before[name] = a
            continue
        if a is MISSING or b is MISSING:
            before.pop(name, None)
            frame.lost[name] = f"it is assigned in one branch only of the `if` at {loc.short()}"
            continue
        pair = unify(fe, a, b, blocks)
        if pair is None:
            raise branch_mismatch(fe, node, name, a, b)
        names.append(name)
        pairs.append(pair)
    joined = emit_if(fe, test, blocks, pairs, names)
    before.update(zip(names, joined, strict=True))
    return None


def branch_mismatch(fe: FrontEnd, node: ast.If, name: str, a: object, b: object) -> BranchMismatch:
    """Return the error for a name to which the branches of `node` give different types."""
    error = BranchMismatch(name=name, then=joined_text(a), orelse=joined_text(b))
    places = [last_assignment(body, name) for body in (node.body, node.orelse)]
    place = places[1] or places[0]
    if place is not None:
        error.loc = fe.loc(place)
    if all(places):
        error.note(f"the then block assigns it at {fe.loc(places[0]).short()}")  # type: ignore[arg-type]
    else:
        error.note(f"before the `if` it is {joined_text(b if places[0] else a)}")
    return error


def visit_returning_if(fe: FrontEnd, node: ast.If, rest: Sequence[ast.stmt]) -> Returned | None:
    """Visit an `if` at function level that contains a `return`."""
    test = decide(fe, node.test)
    if isinstance(test, bool):
        return fe.run([*(node.body if test else node.orelse), *rest])
    before = fe.frame.names
    blocks = Block(), Block()
    outcomes: list[Returned | None] = []
    for block, body in zip(blocks, (node.body, node.orelse), strict=True):
        fe.frame.names = dict(before)
        outcomes.append(fe.run_in(block, [*body, *rest]))
    fe.frame.names = before
    fe.builder.loc = fe.loc(node.test)
    return join_returns(fe, test, blocks, outcomes)


def join_returns(
    fe: FrontEnd, test: Value, blocks: tuple[Block, Block], outcomes: Sequence[Returned | None]
) -> Returned:
    """Emit the `if` that yields the function's value, which ends on either side."""
    if fe.frame.is_kernel:  # a kernel's value is not used
        emit_if(fe, test, blocks, [], [])
        return Returned(None)
    values = [outcome.value if outcome is not None else _FELL_OFF for outcome in outcomes]
    pair = _unify_returns(fe, values[0], values[1], blocks)
    return Returned(emit_if(fe, test, blocks, [pair], [""])[0])


def _unify_returns(
    fe: FrontEnd, a: object, b: object, blocks: tuple[Block, Block]
) -> tuple[Any, Any]:
    if a is _FELL_OFF and b is _FELL_OFF:
        return None, None
    if a is _FELL_OFF:
        a = anything_like(fe, decay_in(fe, b, blocks[1]), blocks[0])
    elif b is _FELL_OFF:
        b = anything_like(fe, decay_in(fe, a, blocks[0]), blocks[1])
    pair = unify(fe, a, b, blocks)
    if pair is None:
        raise ReturnMismatch(
            first=joined_text(a), second=joined_text(b),
            help="every `return` of a function must give the same types: cast with `.to(...)`",
        )  # fmt: skip
    return pair


def joined_text(x: Any) -> str:
    """Return the type with which a value joins another: of a number, the dtype that it takes."""
    return str(dtype_of_number(x.value)) if is_number(x) else type_text(x)


def emit_if(
    fe: FrontEnd,
    test: Value,
    blocks: tuple[Block, Block],
    pairs: Sequence[tuple[object, object]],
    names: Sequence[str],
) -> list[Any]:
    """Close both blocks, insert the `if` op, and return the joined value of each pair."""
    yields: tuple[list[Value], list[Value]] = [], []
    labels: list[str] = []
    for (a, b), name in zip(pairs, names, strict=True):
        mine = flatten(a)
        yields[0].extend(mine)
        yields[1].extend(flatten(b))
        labels += [name if len(mine) == 1 else f"{name}_{i}" for i in range(len(mine))]
    builder = fe.builder
    for block, values in zip(blocks, yields, strict=True):
        op = YieldOp(values, loc=builder.loc)
        block.append(op)
    types = [v.type for v in yields[0]]
    made = builder.insert(IfOp(test, regions=blocks, results=types, names=labels))
    results = iter(made.results)
    return [rebuild(a, results) for a, _ in pairs]


@handles(ast.IfExp)
def visit_conditional(fe: FrontEnd, node: ast.IfExp) -> object:
    """`a if c else b`: visit one side if the condition is known, else emit an IfOp; only the side taken is computed."""
    test = decide(fe, node.test)
    if isinstance(test, bool):
        return fe.visit(node.body if test else node.orelse)
    blocks = Block(), Block()
    values: list[object] = []
    for block, side in zip(blocks, (node.body, node.orelse), strict=True):
        with fe.builder.at(block):
            values.append(fe.decay(fe.visit(side)))
    fe.builder.loc = fe.loc(node)
    pair = unify(fe, values[0], values[1], blocks)
    if pair is None or not (flatten(pair[0]) or same_constant(*pair)):
        first, second = map(type_text, values)
        raise TypeMismatch(
            f"Ternary expression with dynamic condition has inconsistent types {first} and {second}",
            help="both sides must have one type and shape: cast with `.to(...)`, or use `tl.where`",
        )
    return emit_if(fe, test, blocks, [pair], [""])[0]
