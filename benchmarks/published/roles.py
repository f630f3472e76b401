"""What the parameters of a kernel are for, read off its syntax: which are pointers, and which axes of the grid it uses.

A published kernel's arguments are known to its library's host code only. That code mostly asks for a GPU, so the
corpus makes arguments up; to do so it has to tell arrays from numbers.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from tessera.runtime.jit import JITFunction
from tessera.runtime.launching.interface import KernelInterface

ACCESSES = {"load", "store", "make_block_ptr", "make_tensor_descriptor"}
OBJECTS = {
    "load",
    "store",
    "atomic_add",
    "gather",
    "scatter",
}  # methods: a parameter with one is a descriptor


@dataclass
class Roles:
    pointers: set[str] = field(default_factory=set)
    descriptors: set[str] = field(default_factory=set)
    axes: int = 1  # of the grid
    returns: bool = False  # a value: a helper, which no host launches


_KNOWN: dict[int, Roles] = {}  # by identity: a kernel's hash covers all that it reaches


def roles_of(kernel: Any) -> Roles:
    """The roles of the parameters of a `JITFunction`, whose helpers are looked into as well."""
    if id(kernel) not in _KNOWN:
        _KNOWN[id(kernel)] = Roles()  # of a function that calls itself
        _KNOWN[id(kernel)] = _find_roles(kernel)
    return _KNOWN[id(kernel)]


def _find_roles(kernel: Any) -> Roles:
    tree = kernel.parse().body[0]
    params = {a.arg for a in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)}
    found = Roles()
    origin = _origins(tree, params)
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and node.value is not None:
            found.returns = found.returns or not _is_none(node.value)
        if isinstance(node, ast.Call):
            _look_at_call(kernel, node, origin, params, found)
    return found


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _origins(tree: ast.AST, params: set[str]) -> dict[str, str]:
    """For each variable that is an address computed from a parameter, that parameter."""
    origin = {name: name for name in params}
    for _ in range(3):  # loops carry addresses backwards
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target = node.targets[0]
                if isinstance(target, ast.Name) and target.id not in params:
                    if base := _base(node.value, origin):
                        origin[target.id] = base
    return origin


def _base(node: ast.expr, origin: dict[str, str]) -> str | None:
    """The parameter that an address expression starts from."""
    match node:
        case ast.Name(id=name):
            return origin.get(name)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return _base(left, origin) or _base(right, origin)
        case ast.Call(func=ast.Attribute(value=value, attr="to" | "advance")):
            return _base(value, origin)
        case ast.Subscript(value=value):
            return _base(value, origin)
        case ast.IfExp(body=body, orelse=other):
            return _base(body, origin) or _base(other, origin)
    return None


def _look_at_call(
    kernel: Any, node: ast.Call, origin: dict[str, str], params: set[str], found: Roles
) -> None:
    func = node.func
    if isinstance(func, ast.Attribute):
        name = func.attr
        if name == "program_id":
            axis = node.args[0] if node.args else node.keywords[0].value
            found.axes = max(found.axes, _number(axis) + 1)
        elif isinstance(func.value, ast.Name) and func.value.id in params and name in OBJECTS:
            found.descriptors.add(func.value.id)
    else:
        name = getattr(func, "id", "")
    first = node.args[0] if node.args else next((k.value for k in node.keywords), None)
    if (name in ACCESSES or name.startswith("atomic_")) and first is not None:
        if base := _base(first, origin):
            found.pointers.add(base)
        return
    _look_into(kernel, node, origin, found)


def _look_into(kernel: Any, node: ast.Call, origin: dict[str, str], found: Roles) -> None:
    """What a helper does with its parameters, the caller does with its arguments."""
    helper = _resolve(kernel, node.func)
    if helper is None or helper is kernel:
        return
    inner, names = roles_of(helper), [p.name for p in helper.params]
    found.axes = max(found.axes, inner.axes)
    named = [*zip(names, node.args), *((k.arg, k.value) for k in node.keywords)]
    for name, value in named:
        base = _base(value, origin)
        if base and name in inner.pointers:
            found.pointers.add(base)
        if base and name in inner.descriptors:
            found.descriptors.add(base)


def _resolve(kernel: Any, func: ast.expr) -> Any:
    """The `JITFunction` that an expression names, if it does."""
    match func:
        case ast.Name(id=name):
            value = kernel.__globals__.get(name)
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            value = getattr(kernel.__globals__.get(module), name, None)
        case _:
            return None
    while isinstance(value, KernelInterface) and not isinstance(value, JITFunction):
        value = getattr(value, "fn", None)
    return value if isinstance(value, JITFunction) else None


def _number(node: ast.expr) -> int:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else 0
