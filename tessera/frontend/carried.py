"""Finds the variables that a loop carries from one iteration to the next, and those that its body defines for later
code.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from tessera.errors import LoopCarriedType
from tessera.frontend.flatten import flatten, rebuild, same_type, type_text
from tessera.frontend.frontend import FrontEnd
from tessera.frontend.joining import as_carried, as_variable
from tessera.frontend.jumps import HIDDEN, enter_iteration
from tessera.frontend.markers import mark_line
from tessera.frontend.semantics.values import spelled
from tessera.frontend.source import last_assignment
from tessera.ir import Block, Value
from tessera.language.values import constexpr, tensor
from tessera.language.values import tuple as tl_tuple

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
                # A number passed to a parameter: the body makes it a variable.
                x = as_variable(fe, fe.decay(x))
            self.initial.append(x)
            inside = flatten(x)
            self.values += inside
            self.labels += [name if len(inside) == 1 else f"{name}_{i}" for i in range(len(inside))]

    def bind(self, fe: FrontEnd, values: Sequence[Value]) -> None:
        """Bind the names to other IR values: block arguments or results."""
        source = iter(values)
        fe.frame.names.update(
            (name, rebuild(x, source)) for name, x in zip(self.names, self.initial, strict=True)
        )

    def after_body(self, fe: FrontEnd, node: Loop) -> list[Value]:
        """Return the IR values at the end of an iteration. Raises LoopCarriedType if a type has changed."""
        found: list[Value] = []
        for name, x in zip(self.names, self.initial, strict=True):
            later = as_carried(fe, x, fe.frame.names.get(name))
            if not same_type(x, later):
                raise _changed_type(fe, node, name, x, later)
            found += flatten(later)
        return found


def _changed_type(fe: FrontEnd, node: Loop, name: str, x: object, later: object) -> LoopCarriedType:
    remedy = None
    if isinstance(x, constexpr):
        remedy = f"a constexpr cannot change in a loop: start from a variable, `x = {name}`"
    elif x is None:
        remedy = "begin with a value of the later type, as `tl.zeros(shape, dtype)`"
    elif isinstance(x, tl_tuple):
        remedy = "a loop carries tuples of one length; an unrolled `tl.static_range` loop may make a longer one"
    elif isinstance(x, tensor) and isinstance(later, tensor) and x.dims != later.dims:
        remedy = (
            f"begin with a tile: `{name} = tl.zeros({list(later.dims)}, {spelled(later.dtype)})`"
        )
    elif (
        isinstance(x, tensor)
        and isinstance(later, tensor)
        and x.dtype.is_int()
        and later.dtype.is_floating()
    ):
        remedy = f"begin with a float, as `{name} = 0.0`, or cast the later value with `.to({spelled(x.dtype)})`"
    error = LoopCarriedType(name=name, initial=type_text(x), later=type_text(later), help=remedy)
    place = last_assignment(node.body, name)
    if place is not None:
        error.loc = fe.loc(place)
    before = _assignment_before(fe.frame.source.node.body, node, name)
    if before is not None:
        error.note(f"the initial value is assigned at {fe.loc(before).short()}")
    return error


def _assignment_before(body: Sequence[ast.stmt], loop: Loop, name: str) -> ast.stmt | None:
    """Return the last assignment of `name` above the loop in the text."""
    above = [s for s in body if s.lineno < loop.lineno]
    simple: list[ast.stmt] = []
    for s in above:
        if isinstance(s, ast.If | ast.For | ast.While):
            inner = _assignment_before([*s.body, *s.orelse], loop, name)
            simple += [inner] if inner is not None else []
        elif last_assignment([s], name) is not None:
            simple.append(s)
    return simple[-1] if simple else None


@contextmanager
def inside_loop(fe: FrontEnd, node: Loop) -> Generator[None]:
    """Set the state in which a loop's body is visited."""
    frame = fe.frame
    saved = frame.in_loop, frame.kept
    frame.in_loop, frame.kept = True, frozenset(frame.names)
    if fe.facts(node).inner:
        enter_iteration(fe)
    try:
        yield
    finally:
        frame.in_loop, frame.kept = saved


def run_body(fe: FrontEnd, block: Block, node: Loop) -> None:
    """Visit the body, emitting into `block`."""
    with inside_loop(fe, node):
        fe.run_in(block, node.body)
        with fe.builder.at(block):
            mark_line(fe, node.test if isinstance(node, ast.While) else node)


def leave(fe: FrontEnd, node: Loop, before: dict[str, Any]) -> None:
    """Forget names that only the body defines."""
    frame = fe.frame
    for name in frame.names.keys() - before.keys():
        frame.lost[name] = f"it is assigned only inside the loop at {fe.loc(node).short()}"
        frame.constant.pop(name, None)
    frame.names = before


def forget(fe: FrontEnd, node: Loop, kept: Collection[str]) -> None:
    """Forget names that only some iterations bind."""
    names = fe.frame.names
    for name in [n for n in names if n not in kept and n not in HIDDEN]:
        del names[name]
        fe.frame.lost[name] = f"it is assigned only inside the loop at {fe.loc(node).short()}"
