"""Checks a module: dominance, use lists, terminators, result types against each op's rule, each op's own check."""

from __future__ import annotations

from tessera.ir.core import Block, Module, Op, Value, require


def verify(module: Module) -> None:
    """Raise IRError at the first op that breaks a rule."""
    for f in module.body:
        _verify_op(f, set())


def _verify_op(op: Op, visible: set[Value]) -> None:
    for i, v in enumerate(op.operands):
        require(
            v in visible,
            op,
            lambda i=i: f"operand {i} is used before its definition or out of its scope",
        )
        require((op, i) in v.uses, op, lambda i=i: f"use list of operand {i} is broken")
    if op._simple:  # pyright: ignore[reportPrivateUsage]
        require(len(op.operands) == len(op.operand_fields), op, "wrong number of operands")
    require(len(op.regions) == len(op.region_fields), op, "wrong number of regions")
    inferred = list(op.infer())
    if inferred:
        actual = [r.type for r in op.results]
        require(
            inferred == actual,
            op,
            lambda: (
                f"result types {[t.short for t in actual]} should be {[t.short for t in inferred]}"
            ),
        )
    op.verify()
    for block in op.regions:
        _verify_block(op, block, visible)


def _verify_block(op: Op, block: Block, visible: set[Value]) -> None:
    require(block.parent is op, op, "region has another parent")
    require(
        block.last is not None and block.last.terminator, op, "a region must end in a terminator"
    )
    inner = visible | set(block.args)
    for child in block:
        require(child.parent is block, child, "parent link is broken")
        require(
            not child.terminator or child is block.last, child, "a terminator stands inside a block"
        )
        _verify_op(child, inner)
        inner.update(child.results)
