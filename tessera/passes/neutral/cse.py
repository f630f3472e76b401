"""Merges common subexpressions: a pure op is replaced by an equal one in its block or in a block around it."""

from __future__ import annotations

from typing import Any

from tessera.ir import Block, Effect, Module, Op, Value, pass_
from tessera.ir.applications import apply

Key = tuple[Any, ...]


def _comparable(value: object) -> Any:
    """Return a key of an attribute, equal only for identical values: 1, 1.0 and True differ, as do 0.0 and -0.0."""
    return (float, value.hex()) if isinstance(value, float) else (type(value), value)


def _key(op: Op) -> Key:
    attrs = tuple([(name, _comparable(x)) for name, x in sorted(op.attrs.items())])
    return (type(op), tuple(op.operands), op.segments, attrs, tuple([r.type for r in op.results]))


def _block(block: Block, known: dict[Key, list[Value]]) -> None:
    for op in block:
        if op.regions:
            for inner in op.regions:
                _block(inner, dict(known))
            continue
        if op.effects is not Effect.NONE or op.terminator or not op.results:
            continue
        key = _key(op)
        seen = known.get(key)
        if seen is None:
            known[key] = op.results
        elif apply("cse", op):
            op.replace_by(seen)


@pass_("cse", optimization="cse", counts=True)
def cse(module: Module) -> None:
    """Merge pure ops without regions that have equal operands, attributes and types.

    Takes: valid IR of any level.
    Gives: the first of equal ops, for all their users in its block and in blocks inside it. Loads are left alone.
    Needs: nothing of a target.
    Raises: nothing.
    Example: `equal` of tests/filecheck/cse.tir
        %a = add %x, %y; %b = add %x, %y; print [%a, %b] → %a = add %x, %y; print [%a, %a]
    Compare: MLIR `cse`, LLVM EarlyCSE.
    """
    for f in module.body:
        for block in f.regions:
            _block(block, {})
