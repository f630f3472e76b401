"""Lowers `for` and `while`: unrolled if the range is static, else to loop ops that carry the variables assigned inside.

Syntax gives the names that a body assigns; those that exist before the loop become block arguments, and
each iteration must keep their types. A variable that the body only seems to change is carried,
too: the canonicaliser removes values that come back unchanged.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from tessera.dtypes import int1, parse_scalar_type
from tessera.errors import NotConstexpr, TypeMismatch, UnsupportedLanguageConstruct
from tessera.frontend.branches import MISSING
from tessera.frontend.calls import arguments
from tessera.frontend.carried import Carried, Loop, forget, inside_loop, leave, run_body
from tessera.frontend.flatten import is_number, rebuild, type_text
from tessera.frontend.frontend import FrontEnd, handles
from tessera.frontend.jumps import (
    FALSE,
    GOING,
    LIVE,
    RETURNED,
    TRUE,
    VALUE,
    Leaving,
    guarded,
    is_static,
)
from tessera.frontend.markers import mark_line
from tessera.frontend.semantics.type_promotion import promote_ints
from tessera.frontend.semantics.values import cast, condition, const_raw, to_tensor
from tessera.frontend.source import walrus_names
from tessera.frontend.statements import assign
from tessera.ir import Block, Value
from tessera.language import hints
from tessera.language.values import constexpr, tensor, unwrap
from tessera.ops import (
    AddOp,
    AndOp,
    AssertOp,
    CmpOp,
    ConditionOp,
    ConstOp,
    ForOp,
    WhileOp,
    YieldOp,
)

NO_STEP = "the step of a range must not be 0"
UP_ONLY = "the step of a range must be positive unless it is known at compile time"
STEPS = "the step is what is added to the variable each time, such as 1, -1 or BLOCK"
NO_ELSE = "write its statements behind the loop, under an `if` where they do not always run"
_BUILTINS: Any = hints
_RANGE, _STATIC_RANGE = _BUILTINS.range, _BUILTINS.static_range
_CONDITION = _BUILTINS.condition
_ITERATORS = (builtins.range, hints.range, hints.static_range)


# --- for ------------------------------------------------------------------------------------------------
@handles(ast.For)
def visit_for(fe: FrontEnd, node: ast.For) -> None:
    """A `for` over `range`, `tl.range` (a ForOp) or `tl.static_range` (its body once for each number)."""
    if node.orelse:
        raise UnsupportedLanguageConstruct(
            what="`else` of a loop", loc=fe.loc(node.orelse[0]), help=NO_ELSE
        )
    func = fe.visit(node.iter.func) if isinstance(node.iter, ast.Call) else None
    if not isinstance(node.iter, ast.Call) or func not in _ITERATORS:
        raise UnsupportedLanguageConstruct(
            "Only `range`, `tl.range` and `tl.static_range` iterators are currently supported",
            loc=fe.loc(node.iter), help=_instead_of(fe, node.iter),
        )  # fmt: skip
    args, kwargs = arguments(fe, node.iter)
    with fe.loc(node.iter):
        if func is builtins.range or func is hints.range:
            bound, _, _ = _RANGE.binder.bind(args, kwargs)
            if func is builtins.range and (len(args) > 3 or kwargs):
                raise TypeMismatch(
                    "range() takes up to three positional arguments",
                    help="write `range(start, stop, step)`; options are those of `tl.range`",
                )
            return _for_range(fe, node, bound)
        bound, _, _ = _STATIC_RANGE.binder.bind(args, kwargs)
        return _unroll(fe, node, _static_range(bound))


def _instead_of(fe: FrontEnd, node: ast.expr) -> str:
    """Return how to visit what is no range."""
    x = fe.visit(node) if not isinstance(node, ast.Call) else None
    if isinstance(x, tensor) and (x.dims or not x.dtype.is_int()):
        return (
            "a tile is computed with as a whole: `tl.sum(x)` and `tl.where` visit all elements; "
            "`tl.load(p + i)` reads one"
        )
    if isinstance(x, tensor):
        return "count with `range(n)`"
    return "write `for i in tl.static_range(len(xs))` and `xs[i]`"


def _static_range(bound: Sequence[object]) -> list[constexpr]:
    start, end, step = (unwrap(x) for x in bound)
    if end is None:
        start, end = 0, start
    for what, x in (("start", start), ("end", end), ("step", step)):
        if not isinstance(x, int) and not (x is None and what == "step"):
            raise NotConstexpr(
                what=f"the {what} of tl.static_range", got=type_text(x),
                help="`range` counts to run-time bounds; annotate a parameter `: tl.constexpr` to unroll",
            )  # fmt: skip
    if step == 0:
        raise TypeMismatch(NO_STEP, help=STEPS)
    return [constexpr(i) for i in range(start, end, 1 if step is None else step)]


def _unroll(fe: FrontEnd, node: ast.For, items: Sequence[object]) -> None:
    frame = fe.frame
    outer = {name: frame.names.get(name, MISSING) for name in (LIVE, GOING)}

    def iteration(item: object) -> None:
        assign(fe, node.target, item)
        fe.run(node.body)
        mark_line(fe, node)

    with inside_loop(fe, node):
        if not fe.facts(node).inner:
            for item in items:
                iteration(item)
            return
        for item in items:
            going = frame.names[GOING]
            if is_static(going, False):
                break
            if isinstance(going, tensor):
                fe.builder.loc = fe.loc(node)
                assigned = fe.facts(node).assigned
                guarded(fe, going, partial(iteration, item), assigned, skipped_ends=False)
            else:
                frame.names[LIVE] = TRUE
                iteration(item)
            if not all(isinstance(frame.names[flag], constexpr) for flag in (LIVE, GOING)):
                forget(fe, node, frame.kept)
    for name, flag in outer.items():
        frame.names.pop(name)
        if flag is not MISSING:
            frame.names[name] = flag


def _for_range(fe: FrontEnd, node: ast.For, bound: Sequence[object]) -> None:
    if not isinstance(node.target, ast.Name):
        raise UnsupportedLanguageConstruct(
            what="unpacking the variable of a range",
            help="a range has one variable, which is an int",
        )
    fe.builder.loc = loc = fe.loc(node)
    lb, ub, step = _bounds(fe, bound[:3])
    if fe.facts(node).leaves:
        _loop_to_leave(fe, node, _Counter(node.target.id, lb, ub, step))
        return
    target = node.target.id
    before = fe.frame.names
    carried = Carried(fe, fe.facts(node).assigned, but=(target,))
    types = [lb.type, *(v.type for v in carried.values)]
    body = Block(types, names=[target, *carried.labels])
    fe.frame.names = dict(before)
    fe.frame.names[target] = fe.tensor(body.args[0])
    carried.bind(fe, body.args[1:])
    run_body(fe, body, node)
    fe.builder.loc = loc
    with fe.builder.at(body):
        fe.builder.insert(YieldOp(carried.after_body(fe, node)))
    leave(fe, node, before)
    op = ForOp(
        lb, ub, step, carried.values, regions=(body,), names=carried.labels, **_hints(bound[3:])
    )  # fmt: skip
    carried.bind(fe, fe.builder.insert(op).results)


def _bounds(fe: FrontEnd, bound: Sequence[object]) -> list[Value]:
    """Return start, end and step as scalars of their common integer type."""
    lb, ub, step = bound
    if unwrap(ub) is None:
        lb, ub = constexpr(0), lb
    if unwrap(step) is None:
        step = constexpr(1)
    if isinstance(step, constexpr) and step.value == 0:
        raise TypeMismatch(NO_STEP, help=STEPS)
    tensors: list[tensor] = []
    for x in (lb, ub, step):
        if isinstance(x, int):  # the default of a parameter
            x = constexpr(x)
        t = to_tensor(fe, x) if is_number(x) else x
        if not isinstance(t, tensor) or t.dims or not t.dtype.is_int():
            shown = ", ".join(type_text(b) for b in (lb, ub, step))
            raise TypeMismatch(
                f"For loop bounds and step must all be ints, are ({shown})",
                help="bounds are integer scalars: cast with `.to(tl.int32)`; those of a tile are "
                "reduced first, as `tl.max(x)`",
            )
        tensors.append(t)
    common = tensors[0].dtype
    for t in tensors[1:]:
        common = promote_ints(common, t.dtype)
    values = [cast(fe, t.handle, common) for t in tensors]
    if not isinstance(step, constexpr):
        _assert_upwards(fe, values[2])
    return values


def _assert_upwards(fe: FrontEnd, step: Value) -> None:
    """Let builds that look for mistakes find a run-time step that counts down: the loop would count up to its end."""
    if fe.options.debug or fe.options.backend_name == "interpreter":
        up = fe.builder.emit(CmpOp(step, const_raw(fe, 0, step.type), predicate="gt"))
        fe.builder.insert(AssertOp(up, message=UP_ONLY))


def _hints(options: Sequence[object]) -> dict[str, Any]:
    """Return attributes of the loop op from the trailing arguments of `tl.range`."""
    stages, unroll, no_multi_buffer, flatten_, specialize, no_licm = values = list(
        map(unwrap, options)
    )
    for name, x in zip(_RANGE.binder.names[3:], values, strict=True):
        if not isinstance(x, int | None):
            raise NotConstexpr(
                what=f"the argument {name} of tl.range",
                got=type_text(x),
                help="give an int, or a `tl.constexpr`",
            )
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
    """Emit a WhileOp that carries every variable that its body assigns and that has a value before."""
    if node.orelse:
        raise UnsupportedLanguageConstruct(
            what="`else` of a loop", loc=fe.loc(node.orelse[0]), help=NO_ELSE
        )
    if fe.facts(node).leaves:
        _loop_to_leave(fe, node, None)
        return
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
    run_body(fe, body, node)
    fe.builder.loc = loc
    with fe.builder.at(body):
        fe.builder.insert(YieldOp(carried.after_body(fe, node)))
    leave(fe, node, before)
    op = WhileOp(
        carried.values, regions=(test, body), names=carried.labels, disable_licm=disable_licm
    )
    carried.bind(fe, fe.builder.insert(op).results)


def _while_test(fe: FrontEnd, node: ast.While) -> tuple[Value, bool]:
    """Return the condition as an int1 scalar, and whether `tl.condition` disables LICM."""
    test: object = node.test
    disable_licm = False
    if isinstance(test, ast.Call) and fe.visit(test.func) is hints.condition:
        args, kwargs = arguments(fe, test)
        (x, licm), _, _ = _CONDITION.binder.bind(args, kwargs)
        disable_licm = bool(unwrap(licm))
    else:
        x = fe.visit(test)
    loc = fe.builder.loc = fe.loc(test)
    with loc:
        if isinstance(x, constexpr) and isinstance(x.value, bool):
            x = to_tensor(fe, x) if fe.facts(node).leaves or not x.value else x
        if not isinstance(x, tensor):
            raise NotConstexpr(
                f"the condition of a `while` must be a run-time value, got {type_text(x)}",
                help="a loop that is known at compile time is written with `tl.static_range`; "
                "one that only `break` ends may have the condition `True`",
            )
        return condition(fe, x).handle, disable_licm


# --- loops with a way out ---------------------------------------------------------------------------------
class _Counter(NamedTuple):
    """The variable and the range of a `for` that becomes a `while`."""

    name: str
    start: Value
    end: Value
    step: Value

    def goes_on(self, fe: FrontEnd, i: Value) -> Value:
        down = isinstance(self.step.owner, ConstOp) and self.step.owner.value < 0
        end, counter = self.end, i
        if not i.type.signed:  # a range is compared as signed numbers
            signed = parse_scalar_type(i.type.short.replace("u", "i"))
            counter, end = cast(fe, i, signed), cast(fe, end, signed)
        return fe.builder.emit(CmpOp(counter, end, predicate="gt" if down else "lt"))


def _loop_to_leave(fe: FrontEnd, node: Loop, counter: _Counter | None) -> None:
    """Emit a loop that `break` or `return` can end: a while loop that also carries whether it continues."""
    frame, builder = fe.frame, fe.builder
    builder.loc = loc = fe.loc(node.test if isinstance(node, ast.While) else node)
    before = frame.names
    names = (counter.name,) if counter is not None else ()
    carried = Carried(fe, fe.facts(node).assigned, but=names)
    heads = [counter.start] if counter is not None else []
    n = len(heads) + 1
    types = [*(h.type for h in heads), int1, *(v.type for v in carried.values)]
    labels = [*names, "going", *carried.labels]
    test, body = Block(types, names=labels), Block(types, names=labels)
    frame.names = dict(before)
    carried.bind(fe, test.args[n:])
    with builder.at(test):
        go_on, disable_licm = _test_to_leave(fe, node, counter, test.args)
        passed = [*test.args[:n], *carried.after_body(fe, node)]
    if counter is not None:
        frame.names[counter.name] = fe.tensor(body.args[0])
    carried.bind(fe, body.args[n:])
    run_body(fe, body, node)
    builder.loc = loc
    with builder.at(body):
        leaving = Leaving(fe, body)
        following = [builder.emit(AddOp(body.args[0], counter.step))] if counter is not None else []
        yields = [*following, leaving.going, *carried.after_body(fe, node), *leaving.yields]
        builder.insert(YieldOp(yields))
    for v in leaving.yields:
        passed.append(test.add_arg(v.type))
        body.add_arg(v.type)
    with builder.at(test):
        builder.insert(ConditionOp(go_on, passed))
    leave(fe, node, before)
    leaving.make_inits(fe)
    inits = [*heads, to_tensor(fe, TRUE).handle, *carried.values, *leaving.inits]
    op = WhileOp(inits, regions=(test, body), disable_licm=disable_licm)
    results = builder.insert(op).results
    carried.bind(fe, results[n : n + len(carried.values)])
    returned = results[n + len(carried.values) :]
    frame.names[RETURNED] = fe.tensor(returned[0]) if returned else FALSE
    frame.names[VALUE] = rebuild(leaving.value, iter(returned[1:]))


_TEST = "<test>"


def _test_to_leave(
    fe: FrontEnd, node: Loop, counter: _Counter | None, args: Sequence[Value]
) -> tuple[Value, bool]:
    """Return whether the loop continues; the source's condition is evaluated only if nothing has ended the loop."""
    builder, names = fe.builder, fe.frame.names
    if counter is not None:
        return builder.emit(AndOp(args[1], counter.goes_on(fe, args[0]))), False
    assert isinstance(node, ast.While)
    going = fe.tensor(args[0])
    names.update({LIVE: TRUE, GOING: TRUE, RETURNED: FALSE, _TEST: FALSE})
    disable_licm = False

    def visit() -> None:
        nonlocal disable_licm
        go_on, disable_licm = _while_test(fe, node)
        fe.frame.names[_TEST] = fe.tensor(go_on)

    assigned = [*walrus_names(node.test), _TEST]
    guarded(fe, going, visit, assigned, skipped_ends=True)
    return to_tensor(fe, fe.frame.names.pop(_TEST)).handle, disable_licm
