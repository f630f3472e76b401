"""`for` and `while`: unrolled when their range is static, else loop ops that carry the variables assigned inside.

The names that a body assigns are known from syntax; those that exist before the loop become block arguments, and
each iteration must leave them with the type they came with. A variable that the body only seems to change is carried
all the same: the canonicaliser drops what comes back unchanged.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from typing import Any

from tessera.errors import LoopCarriedType, NotConstexpr, TypeMismatch, UnsupportedLanguageConstruct
from tessera.frontend.calls import arguments
from tessera.frontend.flatten import flatten, is_number, rebuild, same_type, type_text
from tessera.frontend.frontend import FrontEnd, handles
from tessera.frontend.promote import meet_ints
from tessera.frontend.sem_values import cast, condition, to_tensor
from tessera.frontend.source import last_assignment
from tessera.frontend.statements import assign
from tessera.ir import Block, Value
from tessera.language import hints
from tessera.language.values import constexpr, tensor, unwrap, wrap
from tessera.language.values import tuple as tl_tuple
from tessera.ops import ConditionOp, ForOp, WhileOp, YieldOp

Loop = ast.For | ast.While


class Carried:
    """The variables that a loop carries: their names, values before the loop and IR values."""

    __slots__ = ("initial", "labels", "names", "values")

    def __init__(self, fe: FrontEnd, assigned: Sequence[str], but: Sequence[str] = ()):
        frame = fe.frame
        self.names = [n for n in assigned if n in frame.names and n not in but]
        self.initial: list[Any] = []
        self.values: list[Value] = []
        self.labels: list[str] = []
        for name in self.names:
            x = frame.names[name]
            if name not in frame.constant:
                x = fe.decay(
                    x
                )  # a number that arrived in a parameter: the body makes it a variable
            self.initial.append(x)
            inside = flatten(x)
            self.values += inside
            self.labels += [name if len(inside) == 1 else f"{name}_{i}" for i in range(len(inside))]

    def bind(self, fe: FrontEnd, values: Sequence[Value]) -> None:
        """Let the names stand for other IR values: block arguments or results."""
        source = iter(values)
        fe.frame.names.update(
            (name, rebuild(x, source)) for name, x in zip(self.names, self.initial, strict=True)
        )

    def after_body(self, fe: FrontEnd, node: Loop) -> list[Value]:
        """The IR values at the end of an iteration. LoopCarriedType when a type has changed."""
        found: list[Value] = []
        for name, x in zip(self.names, self.initial, strict=True):
            later = fe.frame.names.get(name)
            if is_number(later) and not is_number(x):
                later = to_tensor(fe, later)
            if not same_type(x, later):
                raise _changed_type(fe, node, name, x, later)
            found += flatten(later)
        return found


def _changed_type(fe: FrontEnd, node: Loop, name: str, x: Any, later: Any) -> LoopCarriedType:
    remedy = None
    if isinstance(x, constexpr):
        remedy = f"a constexpr cannot change in a loop: start from a variable, `x = {name}`"
    error = LoopCarriedType(name=name, initial=type_text(x), later=type_text(later), help=remedy)
    place = last_assignment(node.body, name)
    if place is not None:
        error.loc = fe.loc(place)
    before = _assignment_before(fe.frame.source.node.body, node, name)
    if before is not None:
        error.note(f"the initial value is assigned at {fe.loc(before).short()}")
    return error


def _assignment_before(body: Sequence[ast.stmt], loop: Loop, name: str) -> ast.stmt | None:
    """The last assignment of `name` that stands above the loop in the text."""
    above = [s for s in body if s.lineno < loop.lineno]
    simple: list[ast.stmt] = []
    for s in above:
        if isinstance(s, ast.If | ast.For | ast.While):
            inner = _assignment_before([*s.body, *s.orelse], loop, name)
            simple += [inner] if inner is not None else []
        elif last_assignment([s], name) is not None:
            simple.append(s)
    return simple[-1] if simple else None


def _run_body(fe: FrontEnd, block: Block, node: Loop) -> None:
    frame = fe.frame
    saved, frame.in_loop = frame.in_loop, True
    try:
        fe.run_in(block, node.body)
    finally:
        frame.in_loop = saved


def _leave(fe: FrontEnd, node: Loop, before: dict[str, Any]) -> None:
    """Forget the names that only the body defines."""
    frame = fe.frame
    for name in frame.names.keys() - before.keys():
        frame.lost[name] = f"it is assigned only inside the loop at {fe.loc(node).short()}"
        frame.constant.pop(name, None)
    frame.names = before


# --- for ------------------------------------------------------------------------------------------------
@handles(ast.For)
def visit_for(fe: FrontEnd, node: ast.For) -> None:
    if node.orelse:
        raise UnsupportedLanguageConstruct(what="`else` of a loop", loc=fe.loc(node.orelse[0]))
    if not isinstance(node.iter, ast.Call):
        return _unroll(fe, node, _static_items(fe, node))
    func = fe.visit(node.iter.func)
    args, kwargs = arguments(fe, node.iter)
    with fe.loc(node.iter):
        if func is builtins.range or func is hints.range:
            bound, _, _ = hints.range.binder.bind(args, kwargs)
            return _for_range(fe, node, bound)
        if func is hints.static_range:
            bound, _, _ = hints.static_range.binder.bind(args, kwargs)
            return _unroll(fe, node, _static_range(bound))
    raise UnsupportedLanguageConstruct(
        "Only `range`, `tl.range` and `tl.static_range` iterators are currently supported",
        loc=fe.loc(node.iter),
    )


def _static_items(fe: FrontEnd, node: ast.For) -> Sequence[Any]:
    items = fe.visit(node.iter)
    if isinstance(items, tl_tuple):
        return items.values
    if isinstance(items, constexpr) and type(items.value) in (list, tuple, range):
        return [wrap(x) for x in items.value]
    raise UnsupportedLanguageConstruct(
        "Only `range`, `tl.range` and `tl.static_range` iterators are currently supported",
        loc=fe.loc(node.iter),
    )


def _static_range(bound: Sequence[Any]) -> list[constexpr]:
    values = [unwrap(x) for x in bound]
    for what, x in zip(("start", "end", "step"), values, strict=True):
        if not isinstance(x, int) and not (x is None and what != "start"):
            raise NotConstexpr(what=f"the {what} of tl.static_range", got=type_text(x))
    start, end, step = values
    if end is None:
        start, end = 0, start
    return [constexpr(i) for i in range(start, end, 1 if step is None else step)]


def _unroll(fe: FrontEnd, node: ast.For, items: Sequence[Any]) -> None:
    frame = fe.frame
    saved, frame.in_loop = frame.in_loop, True
    try:
        for item in items:
            assign(fe, node.target, item)
            fe.run(node.body)
    finally:
        frame.in_loop = saved


def _for_range(fe: FrontEnd, node: ast.For, bound: Sequence[Any]) -> None:
    if not isinstance(node.target, ast.Name):
        raise UnsupportedLanguageConstruct(what="unpacking the variable of a range")
    fe.builder.loc = loc = fe.loc(node)
    lb, ub, step = _bounds(fe, bound[:3])
    target = node.target.id
    before = fe.frame.names
    carried = Carried(fe, fe.facts(node).assigned, but=(target,))
    types = [lb.type, *(v.type for v in carried.values)]
    body = Block(types, names=[target, *carried.labels])
    fe.frame.names = dict(before)
    fe.frame.names[target] = fe.tensor(body.args[0])
    carried.bind(fe, body.args[1:])
    _run_body(fe, body, node)
    fe.builder.loc = loc
    with fe.builder.at(body):
        fe.builder.insert(YieldOp(carried.after_body(fe, node)))
    _leave(fe, node, before)
    op = ForOp(
        lb, ub, step, carried.values, regions=(body,), names=carried.labels, **_hints(bound[3:])
    )  # fmt: skip
    carried.bind(fe, fe.builder.insert(op).results)


def _bounds(fe: FrontEnd, bound: Sequence[Any]) -> list[Value]:
    """Start, end and step as scalars of the integer type in which they meet."""
    lb, ub, step = bound
    if unwrap(ub) is None:
        lb, ub = constexpr(0), lb
    if unwrap(step) is None:
        step = constexpr(1)
    if isinstance(step, constexpr) and step.value == 0:
        raise TypeMismatch("the step of a range must not be 0")
    tensors: list[tensor] = []
    for x in (lb, ub, step):
        if isinstance(x, int):  # the default of a parameter
            x = constexpr(x)
        t = to_tensor(fe, x) if is_number(x) else x
        if not isinstance(t, tensor) or t.dims or not t.dtype.is_int():
            shown = ", ".join(type_text(b) for b in (lb, ub, step))
            raise TypeMismatch(
                f"For loop bounds and step must all be ints, are ({shown})",
                help="bounds are integer scalars: load or cast them first",
            )
        tensors.append(t)
    meet = tensors[0].dtype
    for t in tensors[1:]:
        meet = meet_ints(meet, t.dtype)
    return [cast(fe, t.handle, meet) for t in tensors]


def _hints(options: Sequence[Any]) -> dict[str, Any]:
    """Attributes of the loop op from the trailing arguments of `tl.range`."""
    stages, unroll, no_multi_buffer, flatten_, specialize, no_licm = map(unwrap, options)
    return {
        "num_stages": stages,
        "unroll": unroll if unroll is not None and unroll > 1 else None,
        "flatten": bool(flatten_),
        "warp_specialize": bool(specialize),
        "disallow_acc_multi_buffer": bool(no_multi_buffer),
        "disable_licm": bool(no_licm),
    }


# --- while ----------------------------------------------------------------------------------------------
@handles(ast.While)
def visit_while(fe: FrontEnd, node: ast.While) -> None:
    if node.orelse:
        raise UnsupportedLanguageConstruct(what="`else` of a loop", loc=fe.loc(node.orelse[0]))
    fe.builder.loc = loc = fe.loc(node.test)
    frame = fe.frame
    before = frame.names
    carried = Carried(fe, fe.facts(node).assigned)
    types = [v.type for v in carried.values]
    test, body = Block(types, names=carried.labels), Block(types, names=carried.labels)
    frame.names = dict(before)
    carried.bind(fe, test.args)
    with fe.builder.at(test):
        go_on, disable_licm = _while_test(fe, node)
        fe.builder.insert(ConditionOp(go_on, carried.after_body(fe, node)))
    carried.bind(fe, body.args)
    _run_body(fe, body, node)
    fe.builder.loc = loc
    with fe.builder.at(body):
        fe.builder.insert(YieldOp(carried.after_body(fe, node)))
    _leave(fe, node, before)
    op = WhileOp(
        carried.values, regions=(test, body), names=carried.labels, disable_licm=disable_licm
    )
    carried.bind(fe, fe.builder.insert(op).results)


def _while_test(fe: FrontEnd, node: ast.While) -> tuple[Value, bool]:
    """The condition as an int1 scalar, and whether `tl.condition` asked to leave invariant code alone."""
    test: Any = node.test
    disable_licm = False
    if isinstance(test, ast.Call) and fe.visit(test.func) is hints.condition:
        args, kwargs = arguments(fe, test)
        (x, licm), _, _ = hints.condition.binder.bind(args, kwargs)
        disable_licm = bool(unwrap(licm))
    else:
        x = fe.visit(test)
    loc = fe.builder.loc = fe.loc(test)
    with loc:
        if not isinstance(x, tensor):
            raise NotConstexpr(
                f"the condition of a `while` must be a run-time value, got {type_text(x)}",
                help="a loop that is known at compile time is written with `tl.static_range`",
            )
        return condition(fe, x).handle, disable_licm


@handles(ast.Break, ast.Continue)
def visit_jump(fe: FrontEnd, node: ast.stmt) -> None:
    what = type(node).__name__.lower()
    raise UnsupportedLanguageConstruct(
        what=f"`{what}`",
        help="guard the rest of the body by an `if`, or loop with `while` and a flag in its condition",
    )
