"""Lowers `break`, `continue` and `return` to flags that are carried like variables, and an `if` around skipped code.

Inside a loop three hidden variables describe control flow: LIVE (the rest of the body runs), GOING (the loop continues
after this iteration) and RETURNED (the function is left, with VALUE). They start as compile-time constants, so that
jumps under compile-time conditions cost nothing; where a run-time `if` joins its branches they become int1 values like
any variable. If one branch of an `if` jumps, the statements after it are visited as the end of the other branch; after
an `if` with a nested jump they are put under `if live`. Each statement is visited once.

    for i in range(n):                     i, going, s = 0, True, 0
        x = load(p + i)                    while going and i < n:
        if x < 0:                              x = load(p + i)
            break                 →            if x < 0: going = False
        s += x                                 else: s = s + x
                                               i += 1
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from tessera.errors import BranchMismatch, ReturnMismatch
from tessera.frontend.branches import (
    MISSING,
    branch_mismatch,
    decide,
    emit_if,
    join_returns,
    joined_text,
    visit_returning_if,
)
from tessera.frontend.flatten import flatten
from tessera.frontend.frontend import FrontEnd, Jumping, Returned, handles
from tessera.frontend.joining import anything_like, decay_in, unify, zero
from tessera.frontend.semantics.values import to_tensor
from tessera.ir import Block, Value
from tessera.language.values import constexpr, tensor
from tessera.ops import XorOp

LIVE, GOING, RETURNED, VALUE = "<live>", "<going>", "<returned>", "<value>"
HIDDEN = (LIVE, GOING, RETURNED, VALUE)
TRUE, FALSE = constexpr(True), constexpr(False)
_JUMPED = Returned(None)

Names = dict[str, Any]


def is_static(flag: object, value: bool) -> bool:
    """Whether a flag is known to have this value."""
    return isinstance(flag, constexpr) and flag.value is value


def enter_iteration(fe: FrontEnd) -> None:
    """Set the flags for the beginning of a loop's body."""
    names = fe.frame.names
    names[LIVE], names[GOING], names[RETURNED] = TRUE, TRUE, FALSE
    names.pop(VALUE, None)


# --- the jumps ------------------------------------------------------------------------------------------
@handles(ast.Break, ast.Continue)
def visit_jump(fe: FrontEnd, node: ast.stmt) -> Returned:
    names = fe.frame.names
    names[LIVE] = FALSE
    if isinstance(node, ast.Break):
        names[GOING] = FALSE
    return _JUMPED


@handles(ast.Return)
def visit_return(fe: FrontEnd, node: ast.Return) -> Returned:
    value = fe.visit(node.value) if node.value is not None else None
    frame = fe.frame
    if frame.is_kernel and value is not None:
        fe.builder.loc = fe.loc(node)
        fe.warn("the value that a kernel returns is lost: write it to memory with `tl.store`")
    if not frame.in_loop:
        return Returned(value)
    names = frame.names
    names[LIVE], names[GOING], names[RETURNED] = FALSE, FALSE, TRUE
    names[VALUE] = None if frame.is_kernel else value
    return _JUMPED


@handles(Jumping)
def visit_jumping(fe: FrontEnd, form: Jumping) -> Returned | None:
    """Visit an `if` or a loop that may return or leave a loop: what follows it runs on the paths that did not."""
    node, rest = form
    frame = fe.frame
    if isinstance(node, ast.If):
        if frame.in_loop:
            return _if_in_loop(fe, node, rest)
        if rest and goes_on(node.body) and goes_on(node.orelse):
            return _if_that_may_return(fe, node, rest)
        return visit_returning_if(fe, node, rest)
    fe.visit(node)
    returned = frame.names[RETURNED]
    if is_static(returned, False):
        return fe.run(rest)
    if not frame.in_loop:
        return _after_returning_loop(fe, node, returned, rest)
    if is_static(returned, True):
        frame.names[LIVE] = frame.names[GOING] = FALSE
        return _JUMPED
    fe.builder.loc = fe.loc(node)
    frame.names[LIVE] = frame.names[GOING] = negated(fe, returned)
    return run_if_live(fe, rest)


def goes_on(body: Sequence[ast.stmt]) -> bool:
    """Whether control may reach the end of some statements, as far as syntax tells."""
    last = body[-1] if body else None
    if isinstance(last, ast.If):
        return goes_on(last.body) or goes_on(last.orelse)
    return not isinstance(last, ast.Return)


def _if_that_may_return(fe: FrontEnd, node: ast.If, rest: Sequence[ast.stmt]) -> Returned | None:
    """Visit an `if` at function level of which both sides may continue and both may return. What follows is visited
    once, under `if not returned`, as after a loop."""
    frame = fe.frame
    frame.in_loop = True
    enter_iteration(fe)
    try:
        _if_in_loop(fe, node, [])
    finally:
        frame.in_loop = False
    returned = frame.names[RETURNED]
    if is_static(returned, False):
        return fe.run(rest)
    return _after_returning_loop(fe, node, returned, rest)


def negated(fe: FrontEnd, flag: tensor) -> tensor:
    return fe.tensor(fe.builder.emit(XorOp(flag.handle, to_tensor(fe, TRUE).handle)))


def _after_returning_loop(
    fe: FrontEnd, node: ast.If | ast.For | ast.While, returned: Any, rest: Sequence[ast.stmt]
) -> Returned:
    frame = fe.frame
    value = frame.names[VALUE]
    if is_static(returned, True):
        return Returned(value)
    blocks = Block(), Block()
    before, frame.names = frame.names, dict(frame.names)
    outcome = fe.run_in(blocks[1], rest)
    frame.names = before
    fe.builder.loc = fe.loc(node)
    return join_returns(fe, returned.handle, blocks, [Returned(value), outcome])


# --- what a jump skips ----------------------------------------------------------------------------------
def run_if_live(fe: FrontEnd, rest: Sequence[ast.stmt]) -> Returned | None:
    """Visit what follows a statement that may have jumped."""
    live = fe.frame.names[LIVE]
    if isinstance(live, constexpr):
        return fe.run(rest) if live.value else _JUMPED
    if rest:
        guarded(
            fe, live, lambda: fe.run(rest), fe.frame.source.assigned_in(rest), skipped_ends=True
        )
    return None


def guarded(
    fe: FrontEnd,
    flag: tensor,
    visit: Callable[[], object],
    assigned: Sequence[str],
    skipped_ends: bool,
) -> None:
    """Emit `if flag:` around what `visit` emits. `skipped_ends`: everything up to the loop's end is skipped, too."""
    frame = fe.frame
    loc = fe.builder.loc
    before, inside = frame.names, dict(frame.names)
    frame.names = inside
    enter_iteration(fe)
    blocks = Block(), Block()
    with fe.builder.at(blocks[0]):
        visit()
    inside, frame.names = frame.names, before
    fe.builder.loc = loc
    for name, untouched in ((LIVE, TRUE), (GOING, TRUE), (RETURNED, FALSE)):
        if inside[name] is untouched:  # then the flag keeps its value
            inside[name] = before[name]
    outside = dict(before)
    if inside[LIVE] is not before[LIVE]:
        outside[LIVE] = FALSE
    _join(fe, None, flag.handle, blocks, (inside, outside), assigned, (False, skipped_ends))


def _if_in_loop(fe: FrontEnd, node: ast.If, rest: Sequence[ast.stmt]) -> Returned | None:
    test = decide(fe, node.test)
    if isinstance(test, bool):
        return fe.run([*(node.body if test else node.orelse), *rest])
    frame = fe.frame
    before = frame.names
    blocks = Block(), Block()
    after: list[Names] = []
    for block, body in zip(blocks, (node.body, node.orelse), strict=True):
        frame.names = dict(before)
        fe.run_in(block, body)
        after.append(frame.names)
    ended = [is_static(names[LIVE], False) for names in after]
    assigned = list(fe.facts(node).assigned)
    goes_on = ended.index(False) if ended[0] != ended[1] else None
    if goes_on is not None and rest:
        frame.names = after[goes_on]
        with fe.builder.at(blocks[goes_on]):
            run_if_live(fe, rest)
        after[goes_on] = frame.names
        assigned += fe.frame.source.assigned_in(rest)
    frame.names = before
    fe.builder.loc = fe.loc(node.test)
    _join(fe, node, test, blocks, (after[0], after[1]), assigned, (ended[0], ended[1]))
    if goes_on is not None or all(ended):
        return None
    return run_if_live(fe, rest)


# --- joining --------------------------------------------------------------------------------------------
def _join(
    fe: FrontEnd,
    node: ast.If | None,
    test: Value,
    blocks: tuple[Block, Block],
    after: tuple[Names, Names],
    assigned: Sequence[str],
    ended: tuple[bool, bool],
) -> None:
    """Close an `if` and bind the names to its results. A side that `ended` runs nothing more of this iteration, so
    names that are only used there need no value on it."""
    names: list[str] = []
    pairs: list[tuple[Any, Any]] = []
    kept = fe.frame.names
    for name in dict.fromkeys([*assigned, *HIDDEN]):
        a, b = after[0].get(name, MISSING), after[1].get(name, MISSING)
        if a is b:
            if a is not MISSING:
                kept[name] = a
            continue
        pair = None
        if a is not MISSING and b is not MISSING:
            pair = unify(fe, a, b, blocks)
        if pair is None:
            pair = _filled(fe, node, name, (a, b), blocks, ended)
        if pair is None:
            kept.pop(name, None)
            fe.frame.lost[name] = "it is assigned on some of the paths only that lead here"
            continue
        names.append(name)
        pairs.append(pair)
    labels = [n.strip("<>") for n in names]
    kept.update(zip(names, emit_if(fe, test, blocks, pairs, labels), strict=True))


def _filled(
    fe: FrontEnd,
    node: ast.If | None,
    name: str,
    values: tuple[object, object],
    blocks: tuple[Block, Block],
    ended: tuple[bool, bool],
) -> tuple[Any, Any] | None:
    """Return both sides of a name without a common type: the side that does not matter gets zeros of the other type."""
    a, b = values
    both = a is not MISSING and b is not MISSING
    if both and name == VALUE:
        raise ReturnMismatch(
            first=joined_text(a), second=joined_text(b),
            help="every `return` of a function must give the same types: cast with `.to(...)`",
        )  # fmt: skip
    if both and (name in fe.frame.kept or not any(ended)):
        if node is not None:
            raise branch_mismatch(fe, node, name, a, b)
        raise BranchMismatch(name=name, then=joined_text(a), orelse=joined_text(b))
    if all(ended) and name != VALUE:
        return None
    fill = 1 if b is MISSING or (a is not MISSING and ended[1]) else 0
    if values[fill] is MISSING and not ended[fill] and name != VALUE:
        return None
    other = values[1 - fill]
    if name == VALUE:
        other = decay_in(fe, other, blocks[1 - fill])
    zero = anything_like(fe, other, blocks[fill])
    return (other, zero) if fill else (zero, other)


# --- run-time loops that can be left ----------------------------------------------------------------------
class Leaving:
    """The additional values that such a loop carries: whether it continues, whether it returned, and what."""

    __slots__ = ("going", "inits", "returned", "value", "yields")

    def __init__(self, fe: FrontEnd, body: Block):
        """Read the flags at the end of the body; the builder must be there."""
        names = fe.frame.names
        self.going: Value = to_tensor(fe, names[GOING]).handle
        self.returned = names[RETURNED]
        self.value = None
        self.yields: list[Value] = []
        if not is_static(self.returned, False):
            self.value = fe.decay(names[VALUE])
            self.yields = [to_tensor(fe, self.returned).handle, *flatten(self.value)]
        self.inits: list[Value] = []

    def make_inits(self, fe: FrontEnd) -> None:
        """Emit the values before the first iteration, in front of the loop."""
        self.inits = [zero(fe, v.type) for v in self.yields]
