"""Checks a module: dominance, use lists, regions and terminators, result types, and each op's own rules."""

from __future__ import annotations

from tessera.errors import IRError
from tessera.ir.core import Block, Module, Op, Value, require


def verify(module: Module, since: int = 0) -> None:
    """Raise IRError at the first op that breaks a rule. With a time `since` (`fields.clock`) only ops that changed
    from then on are looked at, with all inside them: enough for a module that was right before."""
    visible: set[Value] = set()
    for f in module.body:
        _verify_op(f, visible, since)


def _verify_op(op: Op, visible: set[Value], since: int) -> None:
    if op.changed >= since:
        since = 0
        _verify_itself(op, visible)
    elif any(block.last is None or block.last.changed >= since for block in op.regions):
        _verify_itself(op, visible)  # what its blocks hand on
    for block in op.regions:
        _verify_block(block, visible, since)


def _verify_itself(op: Op, visible: set[Value]) -> None:
    _verify_operands(op, visible)
    require(len(op.regions) == len(op.region_fields), op, "wrong number of regions")
    for block in op.regions:
        require(block.parent is op, op, "region has another parent")
        require(
            block.last is not None and block.last.terminator,
            op,
            "a region must end in a terminator",
        )
    try:
        op.verify()  # first: it knows why the result types may be wrong
        _verify_results(op)
    except IRError:
        raise
    except Exception as e:  # the op's rule met operands of a kind it does not foresee
        raise IRError(f"{op.opcode}: malformed ({type(e).__name__}: {e})", loc=op.loc) from e


def _verify_operands(op: Op, visible: set[Value]) -> None:
    for i, v in enumerate(op.operands):
        require(
            v in visible,
            op,
            lambda i=i: f"operand {i} is used before its definition or out of its scope",
        )
        require((op, i) in v.uses, op, lambda i=i: f"use list of operand {i} is broken")
    if op.segments is None:
        require(len(op.operands) == len(op.operand_fields), op, "wrong number of operands")
        return
    require(sum(op.segments) == len(op.operands), op, "segments and operands differ in length")
    for f, n in zip(op.operand_fields, op.segments, strict=True):
        ok = f.variadic or n == 1 or (n == 0 and f.optional)
        require(ok, op, lambda f=f: f"operand {f.name!r} is missing")


def _verify_results(op: Op) -> None:
    for r in op.results:
        ok = all(i < len(user.operands) and user.operands[i] is r for user, i in r.uses)
        require(ok, op, "use list of a result is broken")
    if type(op).infer is Op.infer:
        return  # no rule: whoever built the op gave the types
    actual, inferred = [r.type for r in op.results], list(op.infer())
    require(
        inferred == actual,
        op,
        lambda: f"result types {[t.short for t in actual]} should be {[t.short for t in inferred]}",
    )


def _verify_block(block: Block, visible: set[Value], since: int) -> None:
    inner = list(block.args)
    visible.update(inner)
    for child in block:
        require(child.parent is block, child, "parent link is broken")
        require(
            not child.terminator or child is block.last,
            child,
            "a terminator stands inside a block",
        )
        _verify_op(child, visible, since)
        visible.update(child.results)
        inner += child.results
    visible.difference_update(inner)
