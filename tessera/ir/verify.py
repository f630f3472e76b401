"""Checks a module: dominance, use lists, regions and terminators, result types, and each op's own rules."""

from __future__ import annotations

from tessera.errors import IRError
from tessera.ir.core import Block, Module, Op, Value, require


def verify(module: Module, since: int = 0) -> None:
    """Raise IRError at the first op that breaks a rule. With a time `since` (`fields.clock`), check only ops that
    changed from then on, and everything inside ops that are new or were moved: this suffices for a module that was
    valid before."""
    order = _Order()
    for f in module.body:
        _verify_op(f, order, since)


class _Order:
    """Answers which values an op can use. Blocks are numbered when they are first needed."""

    def __init__(self) -> None:
        self.numbers: dict[Block, dict[Op, int]] = {}

    def sees(self, op: Op, v: Value) -> bool:
        """Whether `v` is defined before `op`, in its block or in one around it."""
        owner = v.owner
        block = owner.parent if isinstance(owner, Op) else owner
        at = op
        while at.parent is not block:
            around = at.parent.parent if at.parent is not None else None
            if around is None:
                return False
            at = around
        if block is owner:
            return True
        if block is None:
            return False
        numbers = self.numbers.get(block)
        if numbers is None:
            numbers = self.numbers[block] = {x: i for i, x in enumerate(block)}
        return numbers.get(v.owner, len(numbers)) < numbers[at]  # type: ignore[arg-type]


def _verify_op(op: Op, order: _Order, since: int) -> None:
    if op.changed >= since:
        _verify_itself(op, order)
        since = 0 if op.placed >= since else since
    elif any(block.last is None or block.last.changed >= since for block in op.regions):
        _verify_itself(op, order)  # what its blocks yield
    for block in op.regions:
        _verify_block(block, order, since)


def _verify_itself(op: Op, order: _Order) -> None:
    _verify_operands(op, order)
    require(len(op.regions) == len(op.region_fields), op, "wrong number of regions")
    for block in op.regions:
        require(block.parent is op, op, "region has another parent")
        require(
            block.last is not None and block.last.terminator,
            op,
            "a region must end in a terminator",
        )
    try:
        op.verify()  # this comes first: it knows why the result types may be wrong
        _verify_results(op)
    except IRError:
        raise
    except Exception as e:  # the op's rule did not expect operands of this kind
        raise IRError(f"{op.opcode}: malformed ({type(e).__name__}: {e})", loc=op.loc) from e


def _verify_operands(op: Op, order: _Order) -> None:
    for i, v in enumerate(op.operands):
        if not order.sees(op, v):
            require(False, op, f"operand {i} is used before its definition or out of its scope")
        if (op, i) not in v.uses:
            require(False, op, f"use list of operand {i} is broken")
    if op.segments is None:
        require(len(op.operands) == len(op.operand_fields), op, "wrong number of operands")
        return
    require(sum(op.segments) == len(op.operands), op, "segments and operands differ in length")
    for f, n in zip(op.operand_fields, op.segments, strict=True):
        ok = f.variadic or n == 1 or (n == 0 and f.optional)
        require(ok, op, lambda f=f: f"operand {f.name!r} is missing")


def _verify_results(op: Op) -> None:
    for r in op.results:
        for user, i in r.uses:
            if i >= len(user.operands) or user.operands[i] is not r:
                require(False, op, "use list of a result is broken")
    if type(op).infer is Op.infer:
        return  # no rule: the builder of the op gave the types
    actual, inferred = [r.type for r in op.results], list(op.infer())
    require(
        inferred == actual,
        op,
        lambda: f"result types {[t.short for t in actual]} should be {[t.short for t in inferred]}",
    )


def _verify_block(block: Block, order: _Order, since: int) -> None:
    for op in block:
        if op.parent is not block:
            require(False, op, "parent link is broken")
        if op.terminator and op is not block.last:
            require(False, op, "a terminator stands inside a block")
        if op.regions or op.changed >= since:
            _verify_op(op, order, since)
