"""Emits the built-in functions of the native subset (`subset`): memory on the stack, copies, atomic accesses."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from tessera.backends.llvm import subset
from tessera.backends.llvm.subset_types import (
    ANY,
    BOOL,
    I64,
    Constant,
    PointerTo,
    Scalar,
    Type,
    Value,
    evaluate,
    layout,
    llvm_name,
    name_of,
    size_of,
    type_of,
)

if TYPE_CHECKING:
    from tessera.backends.llvm.subset_expressions import Expressions as Body

Args: TypeAlias = list[ast.expr]
I8 = Scalar("i8", "i8", 1)


def _address(body: Body, args: Args) -> Value:
    where = body.place_for(args[0])
    return Value(PointerTo(where.type), where.text)


def _integer(body: Body, args: Args) -> Value:
    return body.op(f"ptrtoint {body.operand(body.expression(args[0]), ANY)} to i64", I64)


def _array(body: Body, args: Args) -> Value:
    kind, count = type_of(args[0], body.names, body.place), body.expression(args[1])
    align = evaluate(args[2], body.names) if len(args) > 2 else 8
    if isinstance(count, Constant):
        return Value(PointerTo(kind), body.slot(f"[{count.value} x {llvm_name(kind)}]", align))
    return body.op(f"alloca {llvm_name(kind)}, {body.index(count)}, align {align}", PointerTo(kind))


def _struct(body: Body, node: ast.expr) -> type[subset.Struct]:
    kind = type_of(node, body.names, body.place)
    return kind if isinstance(kind, type) else body.fail(f"{name_of(kind)} is no structure")


def _local(body: Body, args: Args) -> Value:
    kind = _struct(body, args[0])
    return Value(kind, body.slot(f"[{layout(kind).size} x i8]"))


def _item(body: Body, args: Args) -> Value:
    first = body.value(args[0])
    if not isinstance(first.type, type):
        body.fail(f"{name_of(first.type)} is no structure")
    size = f"[{layout(first.type).size} x i8]"
    index = body.index(body.expression(args[1]))
    return body.op(f"getelementptr {size}, ptr {first.text}, {index}", first.type)


def _memory(name: str, second: Type) -> Callable[[Body, Args], Value]:
    """Return the emitter of memcpy or memset."""
    kinds = ".p0.p0.i64" if second == ANY else ".p0.i64"
    wanted = (ANY, second, I64)

    def emit(body: Body, args: Args) -> Value:
        given = [body.operand(body.expression(a), t) for a, t in zip(args, wanted)]
        body.module.declare(f"void @llvm.{name}{kinds}(ptr, {llvm_name(second)}, i64, i1)")
        body.emit(f"call void @llvm.{name}{kinds}({', '.join(given)}, i1 false)")
        return Value(None, "")

    return emit


def _ordering(body: Body, node: ast.expr) -> str:
    order = node.value if isinstance(node, ast.Constant) else None
    return order if isinstance(order, str) else body.fail("a memory ordering is a literal")


def _target(body: Body, node: ast.expr) -> tuple[str, Type]:
    """Return the address and type of an atomic access."""
    at = body.value(node)
    if not isinstance(at.type, PointerTo) or at.type.elem is None:
        return body.fail(f"an atomic access is to a Pointer, not to {name_of(at.type)}")
    return at.text, at.type.elem


def _atomic_load(body: Body, args: Args) -> Value:
    at, t = _target(body, args[0])
    order = f"{_ordering(body, args[1])}, align {size_of(t)}"
    return body.op(f"load atomic {llvm_name(t)}, ptr {at} {order}", t)


def _atomic_store(body: Body, args: Args) -> Value:
    at, t = _target(body, args[0])
    order = f"{_ordering(body, args[2])}, align {size_of(t)}"
    body.emit(f"store atomic {body.operand(body.expression(args[1]), t)}, ptr {at} {order}")
    return Value(None, "")


def _atomic_add(body: Body, args: Args) -> Value:
    at, t = _target(body, args[0])
    added = body.operand(body.expression(args[1]), t)
    return body.op(f"atomicrmw add ptr {at}, {added} {_ordering(body, args[2])}", t)


def _compare_exchange(body: Body, args: Args) -> Value:
    at, t = _target(body, args[0])
    old, new = (body.operand(body.expression(a), t) for a in args[1:3])
    orders = " ".join(_ordering(body, a) for a in args[3:])
    found = body.op(f"cmpxchg ptr {at}, {old}, {new} {orders}", None)
    return body.op(f"extractvalue {{ {llvm_name(t)}, i1 }} {found.text}, 1", BOOL)


EMITTERS: dict[Any, Callable[[Body, Args], Value]] = {
    subset.address: _address,
    subset.integer: _integer,
    subset.array: _array,
    subset.local: _local,
    subset.item: _item,
    subset.memcpy: _memory("memcpy", ANY),
    subset.memset: _memory("memset", I8),
    subset.atomic_load: _atomic_load,
    subset.atomic_store: _atomic_store,
    subset.atomic_add: _atomic_add,
    subset.compare_exchange: _compare_exchange,
}
