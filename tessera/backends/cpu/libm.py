"""Calls functions of the C library lane by lane: always, or only for arguments that a vector function does not
cover."""

from __future__ import annotations

from collections.abc import Callable

from tessera.backends.cpu.emitter import Emitter
from tessera.backends.cpu.lanes import Lanes
from tessera.backends.elements.literals import vector_type
from tessera.dtypes import dtype, float64


def lanewise(x: Lanes, function: str, element: str, arity: int) -> str:
    """Name of an internal function that calls a libm function for each lane."""
    name = f"tessera.{function}.v{x.n}"
    if f"@{name}" in x.em.globals:
        return name
    x.em.globals[f"@{name}"] = None
    # Not `em.declare`: the definition stays when the code that asked for it is discarded.
    x.em.declarations[f"declare {element} @{function}({', '.join([element] * arity)})"] = None
    ty = vector_type(element, x.n)
    params = ", ".join(f"{ty} %x{i}" for i in range(arity))
    lines: list[str] = []
    last = "poison"
    for k in range(x.n):
        lanes = [f"%x{i}" for i in range(arity)]
        if x.n > 1:
            lanes = [f"%a{k}.{i}" for i in range(arity)]
            lines += [f"{t} = extractelement {ty} %x{i}, i64 {k}" for i, t in enumerate(lanes)]
        args = ", ".join(f"{element} {t}" for t in lanes)
        lines.append(f"%r{k} = call {element} @{function}({args})")
        if x.n > 1:
            lines.append(f"%v{k} = insertelement {ty} {last}, {element} %r{k}, i64 {k}")
            last = f"%v{k}"
    result = last if x.n > 1 else "%r0"
    body = "\n  ".join([*lines, f"ret {ty} {result}"])
    x.em.globals[f"define internal {ty} @{name}({params}) nounwind {{\n  {body}\n}}"] = None
    return name


def libm(x: Lanes, function: str, t: dtype, *operands: str) -> str:
    """A libm function (its fp64 name) of each lane."""
    element = "double" if t is float64 else "float"
    name = lanewise(x, function if t is float64 else function + "f", element, len(operands))
    ty = vector_type(element, x.n)
    return x.em.op(f"call {ty} @{name}({', '.join(f'{ty} {o}' for o in operands)})")


# Arguments → result, i1s where it does not hold.
Near = Callable[[Lanes, list[str]], tuple[str, str]]


def guarded(x: Lanes, function: str, t: dtype, operands: list[str], near: Near) -> str:
    """`near`, or the library's function (its fp64 name) for all lanes when any is out of its range; in a function that
    all uses share."""
    element, symbol = ("double", function) if t is float64 else ("float", function + "f")
    helper, ty = f"tessera.{symbol}.near.v{x.n}", vector_type(element, x.n)
    if f"@{helper}" not in x.em.globals:
        x.em.globals[f"@{helper}"] = None
        em = Emitter(x.em.declarations, x.em.globals)
        names = [em.parameter(f"%x{i}") for i in range(len(operands))]
        result, far = near(Lanes(em, x.facts, x.n), names)
        if x.n > 1:
            far = em.call("i1", f"llvm.vector.reduce.or.v{x.n}i1", f"<{x.n} x i1> {far}")
        params = ", ".join(f"{ty} {name}" for name in names)
        em.stmt(f"br i1 {far}, label %far, label %near")
        em.stmt("far:")
        slow = em.here(f"call {ty} @{lanewise(x, symbol, element, len(operands))}({params})")
        em.stmt(f"ret {ty} {slow}")
        em.stmt("near:")
        em.stmt(f"ret {ty} {result}")
        text = f"define internal {ty} @{helper}({params}) nounwind {{\n  {em.body()}\n}}"
        x.em.globals[text] = None
    return x.em.op(f"call {ty} @{helper}({', '.join(f'{ty} {o}' for o in operands)})")
