"""Makes one of equal pure ops of a graph, and of loops with equal bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tessera.graph.ir.ops import ScatterOp, ViewOp
from tessera.ir import Block, Module, Op, Value, pass_
from tessera.ir.applications import apply
from tessera.ops import ReturnOp

Key = tuple[Any, ...]


def _comparable(value: Any) -> Any:
    """An attribute such that == means the same: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if isinstance(value, tuple):
        return tuple(map(_comparable, value))  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    return (float, value.hex()) if isinstance(value, float) else (type(value), value)


def key_of(op: Op, local: Mapping[Value, int] | None = None) -> Key:
    """Equal for ops that compute the same from the same values: attributes, types, operands, and those of all ops
    inside, where values are counted. `local`: numbers of the values inside of an op around this one."""
    numbers = dict(local or {})
    return _key(op, numbers)


def _key(op: Op, numbers: dict[Value, int]) -> Key:
    attrs = tuple((name, _comparable(op.attrs[name])) for name in sorted(op.attrs))
    operands = tuple(numbers.get(v, v) for v in op.operands)
    regions = tuple(_block_key(block, numbers) for block in op.regions)
    types = tuple(r.type for r in op.results)
    for r in op.results:
        numbers[r] = len(numbers)
    return (type(op), operands, op.segments, attrs, types, regions)


def _block_key(block: Block, numbers: dict[Value, int]) -> Key:
    for arg in block.args:
        numbers[arg] = len(numbers)
    types = tuple(a.type for a in block.args)
    return (types, *(_key(op, numbers) for op in block))


def _merge(block: Block, known: dict[Key, list[Value]]) -> None:
    for op in block:
        for number, inner in enumerate(op.regions):
            _merge(inner, {} if number else dict(known))  # a combine region sees its arguments only
        if op.terminator or not op.results or op.all_effects() or _is_handed_out(op):
            continue
        key = key_of(op)
        seen = known.get(key)
        if seen is None:
            known[key] = op.results
        elif apply("graph-cse", op):
            op.replace_by(seen)


def _is_handed_out(op: Op) -> bool:
    """Whether the graph returns a tensor of this op's own, or a view of one: no other result may be the same memory. A
    scatter would have to copy a base that is not its own."""
    return any(
        isinstance(user, ReturnOp | ScatterOp)
        or (isinstance(user, ViewOp) and _is_handed_out(user))
        for r in op.results
        for user in r.users()
    )


@pass_("graph-cse", optimization="graph-cse", counts=True)
def merge_equal(module: Module) -> None:
    """Merge pure ops with equal operands, attributes and bodies. Loads are pure: no op writes tensors."""
    for f in module.body:
        for block in f.regions:
            _merge(block, {})
