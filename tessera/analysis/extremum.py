"""Recognises regions of reductions that keep the greater or the lesser of two numbers and the index that came with it,
of equal numbers the lower index: argmax and argmin, however they are written.

A region that only compares its arguments, combines the results and selects among the arguments depends on nothing but
the order of the arguments. All orders are tried, so that the answer is a proof."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import product
from math import nan
from typing import Any

from tessera.dtypes import dtype, int1
from tessera.ir import Block, Op, Value, elem_of
from tessera.ops import arith

COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
COMBINED: dict[type[Op], Callable[[bool, bool], bool]] = {
    arith.AndOp: bool.__and__, arith.OrOp: bool.__or__, arith.XorOp: bool.__xor__,
}  # fmt: skip
ORDERS = ((0, 1), (1, 0), (0, 0))  # of two indices


def extremum(block: Block) -> str:
    """Return "max" or "min" if the region of two pairs (number, index) keeps that number and its index; else "".

    NaN must lose to numbers on one side at least: the elements may then come in an order in which it always loses.
    """
    own = {*block.args, *(v for op in block for v in op.results)}
    plain = all(_is_plain(op) and own.issuperset(op.operands) for op in block)
    if len(block.args) != 4 or len(block.terminator.operands) != 2 or not plain:
        return ""
    numbers = list(product((0, 1), repeat=2))
    words = [word for word in ("max", "min") if all(_keeps(block, word, v) for v in numbers)]
    loses = not _is_float(block.args[0]) or any(
        all(_choice(block, pair, order) == kept for order in ORDERS)
        for pair, kept in (((nan, 0), 1), ((0, nan), 0))
    )
    return words[0] if words and loses else ""


def _keeps(block: Block, word: str, numbers: Sequence[int]) -> bool:
    a, b = numbers
    for i, j in ORDERS:
        found = _choice(block, (a, b), (i, j))
        if a != b:
            if found != int((a < b) == (word == "max")):
                return False
        elif found is None or (i != j and found != int(j < i)):
            return False
    return True


def _choice(block: Block, numbers: Sequence[float], indices: Sequence[int]) -> int | None:
    """Return which of the two pairs the region keeps; None if it keeps parts of both, or compares numbers with indices:
    then there are more orders than those that are tried."""
    given = (numbers[0], indices[0], numbers[1], indices[1])
    known: dict[Value, Any] = dict(zip(block.args, enumerate(given)))
    for op in block:
        if not op.terminator:
            found = known[op.results[0]] = _evaluated(op, [known[v] for v in op.operands])
            if found is None:
                return None
    kept: list[Any] = [known[v] for v in block.terminator.operands]
    if not all(isinstance(x, tuple) for x in kept):
        return None
    return {(0, 1): 0, (2, 3): 1}.get((kept[0][0], kept[1][0]))


def _evaluated(op: Op, values: Sequence[Any]) -> Any:
    """Return a truth, or (the argument that is the result: its number, what stands for it)."""
    if isinstance(op, arith.CmpOp):
        (first, a), (second, b) = values
        return COMPARED[op.predicate](a, b) if first % 2 == second % 2 else None
    if isinstance(op, arith.SelectOp):
        return values[1] if values[0] else values[2]
    if isinstance(op, arith.ConstOp):
        return bool(op.value)
    return COMBINED[type(op)](*values)


def _is_plain(op: Op) -> bool:
    """Whether an op compares or selects arguments, or combines what was compared."""
    if op.terminator:
        return True
    if isinstance(op, arith.ConstOp):
        return elem_of(op.result.type) is int1
    if isinstance(op, arith.CmpOp):
        return elem_of(op.lhs.type) is not int1
    if isinstance(op, arith.SelectOp):
        return elem_of(op.result.type) is not int1
    return type(op) in COMBINED and elem_of(op.operands[0].type) is int1


def _is_float(v: Value) -> bool:
    e: object = elem_of(v.type)
    return isinstance(e, dtype) and e.is_floating()
