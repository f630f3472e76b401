"""Builds the combining functions of reductions and scans by name: their regions and identities, as ops of the IR."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from tessera.dtypes import dtype, int1, int64
from tessera.ir import Block, Builder, Op, Value
from tessera.ops import (
    AddOp,
    AndOp,
    CmpOp,
    DivOp,
    IsNanOp,
    MaxOp,
    MinOp,
    MulOp,
    OrOp,
    SelectOp,
    SubOp,
    XorOp,
    YieldOp,
)
from tessera.ops.arith import ConstOp

Combine = Callable[[Builder, Sequence[Value], Sequence[Value]], list[Value]]
LAST_INDEX = (1 << 63) - 1

KINDS = ("sum", "prod", "max", "min", "any", "all", "xor")


def region_of(types: Sequence[Any], combine: Combine) -> Block:
    """The block (a0…, b0…) → yield of what `combine(builder, a, b)` makes."""
    k = len(types)
    names = ["a", "b"] if k == 1 else [f"{n}{i}" for n in "ab" for i in range(k)]
    block = Block([*types, *types], names=names)
    b = Builder(block)
    b.insert(YieldOp(combine(b, block.args[:k], block.args[k:])))
    return block


def simple(kind: str, elem: dtype) -> tuple[Combine, tuple[int | float | bool, ...]]:
    """The function and the identity of one of `KINDS`. "max" and "min" hand on a NaN; "any" and "all" take int1."""
    ops: dict[str, Callable[[Value, Value], Op]] = {
        "sum": AddOp,
        "prod": MulOp,
        "max": lambda a, b: MaxOp(a, b, propagate_nan=elem.is_floating()),
        "min": lambda a, b: MinOp(a, b, propagate_nan=elem.is_floating()),
        "any": OrOp,
        "all": AndOp,
        "xor": XorOp,
    }
    if kind not in ops:
        raise ValueError(f"no reduction is called {kind!r}: there are {', '.join(KINDS)}")
    make = ops[kind]
    return lambda b, x, y: [b.emit(make(x[0], y[0]))], (identity(kind, elem),)


COMMUTATIVE = (AddOp, MulOp, MaxOp, MinOp, AndOp, OrOp, XorOp)


class Functions:
    """Numbers what regions compute, equal functions of equal arguments alike, however their ops are ordered."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}

    def of(self, block: Block, order: Sequence[int]) -> list[int]:
        """What a region yields if its argument k is number `order[k]`."""
        known = {a: self._number(("argument", k)) for a, k in zip(block.args, order, strict=True)}
        for op in block:
            operands = [known[v] for v in op.operands]
            if isinstance(op, YieldOp):
                return operands
            if isinstance(op, COMMUTATIVE):
                operands.sort()
            attrs = tuple((name, repr(op.attrs[name])) for name in sorted(op.attrs))
            for r in op.results:
                known[r] = self._number((type(op), r.index, r.type, attrs, *operands))
        raise AssertionError("a block of a combination ends in a yield")

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def is_commutative(block: Block) -> bool:
    """Whether a region is seen to compute the same of two sets of values in either order."""
    functions, n = Functions(), len(block.args)
    order = range(n)
    return functions.of(block, order) == functions.of(block, [*order[n // 2 :], *order[: n // 2]])


def is_welford(block: Block) -> bool:
    """Whether a region is that of `welford`."""
    types = [a.type for a in block.args[: len(block.args) // 2]]
    if len(types) != 3 or len(set(types)) != 1 or not types[0].is_floating():
        return False
    functions, order = Functions(), range(6)
    return functions.of(block, order) == functions.of(region_of(types, welford), order)


def extremum_of(block: Block) -> tuple[str, bool] | None:
    """The arguments of the `arg_extremum` that a region is; None for any other region."""
    types = [a.type for a in block.args[: len(block.args) // 2]]
    if len(types) != 2 or types[1] is not int64:
        return None
    functions, order = Functions(), range(4)
    given = functions.of(block, order)
    for kind, last_nan in product(("max", "min"), (False, True)):
        if functions.of(region_of(types, arg_extremum(kind, last_nan)), order) == given:
            return kind, last_nan
    return None


def identity(kind: str, elem: dtype) -> int | float | bool:
    """The number that changes nothing."""
    if kind in ("max", "min"):
        return lowest(elem) if kind == "max" else highest(elem)
    value = kind in ("prod", "all")
    return bool(value) if elem is int1 else float(value) if elem.is_floating() else int(value)


def lowest(elem: dtype) -> int | float | bool:
    """The number below which there is none."""
    if elem is int1:
        return False
    return float("-inf") if elem.is_floating() else elem.get_int_min_value()


def highest(elem: dtype) -> int | float | bool:
    """The number above which there is none."""
    if elem is int1:
        return True
    return float("inf") if elem.is_floating() else elem.get_int_max_value()


def arg_extremum(kind: str, last_nan: bool = False) -> Combine:
    """(value, index) of the largest ("max") or smallest ("min") value; of equal ones the first, and a NaN wins, of
    several the first or the last one."""
    predicate = "gt" if kind == "max" else "lt"

    def combine(b: Builder, x: Sequence[Value], y: Sequence[Value]) -> list[Value]:
        better = b.emit(CmpOp(x[0], y[0], predicate=predicate))
        same = b.emit(CmpOp(x[0], y[0], predicate="eq"))
        if x[0].type.is_floating():
            nan_x, nan_y = b.emit(IsNanOp(x[0])), b.emit(IsNanOp(y[0]))
            true = b.emit(ConstOp(value=True, results=[int1]))
            only_x = b.emit(AndOp(nan_x, b.emit(XorOp(nan_y, true))))
            better = b.emit(OrOp(better, only_x))
            both = b.emit(AndOp(nan_x, nan_y))
            if last_nan:
                later = b.emit(CmpOp(x[1], y[1], predicate="gt"))
                better = b.emit(OrOp(better, b.emit(AndOp(both, later))))
            else:
                same = b.emit(OrOp(same, both))
        first = b.emit(CmpOp(x[1], y[1], predicate="lt"))
        keep = b.emit(OrOp(better, b.emit(AndOp(same, first))))
        return [b.emit(SelectOp(keep, p, q)) for p, q in zip(x, y, strict=True)]

    return combine


def next_extremum(kind: str, last_nan: bool) -> Combine:
    """`arg_extremum` of what was found so far and of one behind it, whose index is larger: that wins where it is
    better, or where it is a NaN and the other is none, or no later one."""
    predicate = "gt" if kind == "max" else "lt"

    def combine(b: Builder, x: Sequence[Value], y: Sequence[Value]) -> list[Value]:
        wins = b.emit(CmpOp(y[0], x[0], predicate=predicate))
        if x[0].type.is_floating():
            nan = b.emit(IsNanOp(y[0]))
            if not last_nan:
                true = b.emit(ConstOp(value=True, results=[int1]))
                nan = b.emit(AndOp(nan, b.emit(XorOp(b.emit(IsNanOp(x[0])), true))))
            wins = b.emit(OrOp(wins, nan))
        return [b.emit(SelectOp(wins, q, p)) for p, q in zip(x, y, strict=True)]

    return combine


def in_order(combine: Block) -> Block:
    """What an `arg_extremum` is where its second operands lie behind all that the first ones are of."""
    known = extremum_of(combine)
    assert known is not None
    return region_of([v.type for v in combine.terminator.operands], next_extremum(*known))


def finds_place(body: Block, combine: Block) -> bool:
    """Whether a reduction along one extent gives an extremum, and at which of its indices that is."""
    found = body.terminator.operands
    own = len(body.args) == 1 and len(found) == 2 and found[1] is body.args[0]
    return own and extremum_of(combine) is not None


def arg_identities(kind: str, elem: dtype) -> tuple[int | float | bool, ...]:
    """The identities of `arg_extremum`: no value beats one of them at an earlier index."""
    return (lowest(elem) if kind == "max" else highest(elem), LAST_INDEX)


def welford(b: Builder, x: Sequence[Value], y: Sequence[Value]) -> list[Value]:
    """(mean, sum of squared deviations, count) of two sets together, all of one float type (Chan, Golub, LeVeque)."""
    elem = x[0].type
    count = b.emit(AddOp(x[2], y[2]))
    zero = b.emit(ConstOp(value=0.0, results=[elem]))
    one = b.emit(ConstOp(value=1.0, results=[elem]))
    empty = b.emit(CmpOp(count, zero, predicate="eq"))
    share = b.emit(DivOp(y[2], b.emit(SelectOp(empty, one, count))))
    delta = b.emit(SubOp(y[0], x[0]))
    mean = b.emit(AddOp(x[0], b.emit(MulOp(delta, share))))
    between = b.emit(MulOp(b.emit(MulOp(delta, delta)), b.emit(MulOp(x[2], share))))
    return [mean, b.emit(AddOp(b.emit(AddOp(x[1], y[1])), between)), count]
