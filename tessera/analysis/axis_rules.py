"""Lists the rules of the axis analysis, which derive facts about a result from those about operands (see axis.py)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING, Any

from tessera.analysis.axis_facts import (
    TOP,
    AxisFacts,
    gcds,
    nothing_known,
    power_of_two_part,
    uniform,
    unit_of,
)  # fmt: skip
from tessera.dtypes import dtype
from tessera.ir import Op, elem_of, shape_of
from tessera.ops import arith, gpu, memory, tile

if TYPE_CHECKING:
    from tessera.analysis.axis import AxisAnalysis


Transfer = Callable[["AxisAnalysis", Any], AxisFacts]
TRANSFER: dict[type[Op], Transfer] = {}


def transfer(*classes: type[Op]) -> Callable[[Transfer], Transfer]:
    """Register the rule for ops of these classes."""

    def register(fn: Transfer) -> Transfer:
        for cls in classes:
            TRANSFER[cls] = fn
        return fn

    return register


@transfer(arith.ConstOp)
def _const(a: AxisAnalysis, op: arith.ConstOp) -> AxisFacts:
    value = int(op.value)
    return uniform(op.result.type, power_of_two_part(value), value)


@transfer(tile.ArangeOp)
def _arange(a: AxisAnalysis, op: tile.ArangeOp) -> AxisFacts:
    return AxisFacts((op.end - op.start,), (power_of_two_part(op.start),), (1,))


@transfer(tile.SplatOp)
def _splat(a: AxisAnalysis, op: tile.SplatOp) -> AxisFacts:
    f = a.facts(op.x)
    return uniform(op.result.type, f.divisibility[0], f.value)


@transfer(gpu.ConvertLayoutOp)
def _convert_layout(a: AxisAnalysis, op: gpu.ConvertLayoutOp) -> AxisFacts:
    return a.facts(op.x)


@transfer(memory.LoadOp)
def _load(a: AxisAnalysis, op: memory.LoadOp) -> AxisFacts:
    """Elements loaded from equal addresses are equal, such as row indices repeated along a dimension."""
    unknown = nothing_known(op.result.type)
    if op.volatile:
        return unknown
    constancy = a.facts(op.ptr).constancy
    for v in (op.mask, op.other):
        if v is not None and shape_of(v.type):
            constancy = gcds(constancy, a.facts(v).constancy)
    return AxisFacts(unknown.contiguity, unknown.divisibility, constancy)


@transfer(arith.HintOp)
def _hint(a: AxisAnalysis, op: arith.HintOp) -> AxisFacts:
    f = a.facts(op.x)

    def merge(old: tuple[int, ...], said: tuple[int, ...]) -> tuple[int, ...]:
        if not said:
            return old
        return tuple(
            max(o, power_of_two_part(s)) if s else o for o, s in zip(old, said, strict=True)
        )

    return AxisFacts(
        merge(f.contiguity, op.contiguity),
        merge(f.divisibility, op.divisibility),
        merge(f.constancy, op.constancy),
        f.value,
    )


@transfer(arith.CastOp, arith.BitcastOp)
def _cast(a: AxisAnalysis, op: arith.CastOp) -> AxisFacts:
    source, target = elem_of(op.x.type), elem_of(op.result.type)
    if (
        isinstance(source, dtype)
        and source.is_int()
        and isinstance(target, dtype)
        and target.bits >= source.bits
    ):
        return a.facts(op.x)
    f = a.facts(op.x)
    # A narrowing cast preserves constancy and divisibility, but not contiguity, as the count may wrap.
    if (
        isinstance(source, dtype)
        and source.is_int()
        and isinstance(target, dtype)
        and target.bits > 1
    ):
        return AxisFacts(
            (1,) * len(f.contiguity),
            tuple(gcd(d, 1 << target.bits) for d in _starts(f)),
            f.constancy,
        )
    return AxisFacts((1,) * len(f.contiguity), (1,) * len(f.contiguity), f.constancy)


def _starts(f: AxisFacts) -> tuple[int, ...]:
    """Return the divisibility of every element, not only of the first of each run."""
    return tuple(d if c == 1 else 1 for d, c in zip(f.divisibility, f.contiguity, strict=True))


def _sum(
    x: AxisFacts, y: AxisFacts, value: int | None, both: bool = True, size: int = 1
) -> AxisFacts:
    """Facts of x + y; or of x - y if not `both`, where only x may be the run. Neighbours in a run are `size` apart."""
    runs = tuple(
        max(gcd(cx, ky), gcd(kx, cy) if both else 1)
        for cx, kx, cy, ky in zip(x.contiguity, x.constancy, y.contiguity, y.constancy, strict=True)
    )
    divisibility = tuple(min(d, TOP) for d in gcds(x.cut(runs, size), y.cut(runs, size)))
    return AxisFacts(runs, divisibility, gcds(x.constancy, y.constancy), value)


def _known(
    op: arith.Binary, compute: Callable[[int, int], int], x: AxisFacts, y: AxisFacts
) -> int | None:
    """Return the value of all elements of the result if both operands are known and nothing wraps."""
    if x.value is None or y.value is None:
        return None
    value, e = compute(x.value, y.value), elem_of(op.result.type)
    return value if e.get_int_min_value() <= value <= e.get_int_max_value() else None


@transfer(arith.AddOp)
def _add(a: AxisAnalysis, op: arith.AddOp) -> AxisFacts:
    x, y = a.facts(op.lhs), a.facts(op.rhs)
    value = _known(op, operator.add, x, y)
    return _sum(x, y, value)


@transfer(arith.SubOp)
def _sub(a: AxisAnalysis, op: arith.SubOp) -> AxisFacts:
    x, y = a.facts(op.lhs), a.facts(op.rhs)
    value = _known(op, operator.sub, x, y)
    return _sum(x, y, value, both=False)


@transfer(arith.AddPtrOp)
def _addptr(a: AxisAnalysis, op: arith.AddPtrOp) -> AxisFacts:
    size = elem_of(op.ptr.type).element_ty.storage_bytes
    offset = a.facts(op.offset)
    in_bytes = tuple(power_of_two_part(d * size) for d in offset.divisibility)
    return _sum(a.facts(op.ptr), replace(offset, divisibility=in_bytes), None, size=size)


@transfer(arith.MulOp)
def _mul(a: AxisAnalysis, op: arith.MulOp) -> AxisFacts:
    x, y = a.facts(op.lhs), a.facts(op.rhs)
    value = _known(op, operator.mul, x, y)
    contiguity = tuple(
        cx if y.value == 1 else cy if x.value == 1 else 1
        for cx, cy in zip(x.contiguity, y.contiguity, strict=True)
    )
    kept_x, kept_y = (
        (x.divisibility, y.divisibility) if max(contiguity) > 1 else (_starts(x), _starts(y))
    )
    divisibility = tuple(min(dx * dy, TOP) for dx, dy in zip(kept_x, kept_y, strict=True))
    return AxisFacts(contiguity, divisibility, gcds(x.constancy, y.constancy), value)


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


@transfer(arith.DivOp)
def _div(a: AxisAnalysis, op: arith.DivOp) -> AxisFacts:
    x, y = a.facts(op.lhs), a.facts(op.rhs)
    if y.value == 1:
        return x
    # A run counting up from a multiple of k gives k equal quotients in a row, for k dividing the divisor, unless the
    # run is negative: -4, -3, -2, -1 divided by 4 is -1, 0, 0, 0.
    runs = a.signs.nonnegative(op.lhs)
    constancy = tuple(
        gcd(kx, ky) if c == 1 or not runs or ky < c else gcd(gcd(c, n), d)
        for c, d, kx, n, ky in zip(
            x.contiguity, x.divisibility, x.constancy, y.divisibility, y.constancy, strict=True
        )
    )
    divisibility, n = (1,) * len(constancy), y.value
    if n is not None and n > 0 and n & (n - 1) == 0:
        divisibility = tuple(
            max(d // n, 1) if c == 1 else 1
            for d, c in zip(x.divisibility, x.contiguity, strict=True)
        )
    value = _known(op, _quotient, x, y) if y.value else None
    return AxisFacts((1,) * len(constancy), divisibility, constancy, value)


@transfer(arith.RemOp)
def _rem(a: AxisAnalysis, op: arith.RemOp) -> AxisFacts:
    x, y = a.facts(op.lhs), a.facts(op.rhs)
    constancy = gcds(x.constancy, y.constancy)
    # A run survives where no multiple of the divisor falls inside it. A negative run ends after each multiple:
    # -4, -3, -2, -1 modulo 4 is 0, -3, -2, -1.
    runs = a.signs.nonnegative(op.lhs)
    contiguity = tuple(
        gcd(cx, gcd(dx, dy)) if runs and (ky >= cx or y.value is not None) else 1
        for cx, dx, dy, ky in zip(
            x.contiguity, x.divisibility, y.divisibility, y.constancy, strict=True
        )
    )
    divisibility = tuple(
        gcd(dx if cx <= c else gcd(dx, c), dy)
        for dx, dy, cx, c in zip(
            x.divisibility, y.divisibility, x.contiguity, contiguity, strict=True
        )
    )
    return AxisFacts(contiguity, divisibility, constancy)


@transfer(arith.ShlOp)
def _shl(a: AxisAnalysis, op: arith.ShlOp) -> AxisFacts:
    x, y = a.facts(op.lhs), a.facts(op.rhs)
    if y.value is None or not 0 <= y.value < 63:
        return AxisFacts((1,) * len(x.contiguity), _starts(x), gcds(x.constancy, y.constancy))
    divisibility = tuple(min(d << y.value, TOP) for d in _starts(x))
    value = _known(op, lambda n, count: n << count, x, y)
    return AxisFacts((1,) * len(x.contiguity), divisibility, x.constancy, value)


@transfer(arith.ShrOp, arith.MulHiOp)
def _equal_stays_equal(a: AxisAnalysis, op: Op) -> AxisFacts:
    constancy = a.facts(op.operands[0]).constancy
    for v in op.operands[1:]:
        constancy = gcds(constancy, a.facts(v).constancy)
    ones = (1,) * len(constancy)
    return AxisFacts(ones, ones, constancy)


@transfer(arith.AndOp, arith.OrOp, arith.XorOp)
def _bitwise(a: AxisAnalysis, op: arith.Binary) -> AxisFacts:
    """The low bits that are zero in both operands stay zero, and `and` keeps those of either."""
    x, y = a.facts(op.lhs), a.facts(op.rhs)
    keep = max if isinstance(op, arith.AndOp) else gcd
    divisibility = tuple(map(keep, _starts(x), _starts(y)))
    ones = (1,) * len(divisibility)
    return AxisFacts(ones, divisibility, gcds(x.constancy, y.constancy))


@transfer(arith.NegOp, arith.AbsOp)
def _other_sign(a: AxisAnalysis, op: arith.Unary) -> AxisFacts:
    """What divides a number divides it with the other sign."""
    f = a.facts(op.x)
    value = f.value
    if value is not None:
        value = -value if isinstance(op, arith.NegOp) else abs(value)
        e = elem_of(op.result.type)
        value = value if e.get_int_min_value() <= value <= e.get_int_max_value() else None
    return AxisFacts((1,) * len(f.contiguity), _starts(f), f.constancy, value)


@transfer(arith.MinOp, arith.MaxOp)
def _min_max(a: AxisAnalysis, op: arith.MinOp) -> AxisFacts:
    x, y = a.facts(op.lhs), a.facts(op.rhs)
    ones = (1,) * len(x.contiguity)
    return AxisFacts(ones, gcds(_starts(x), _starts(y)), gcds(x.constancy, y.constancy))


@transfer(arith.SelectOp)
def _select(a: AxisAnalysis, op: arith.SelectOp) -> AxisFacts:
    c, x, y = (a.facts(v) for v in op.operands)
    step = unit_of(op.result.type)
    joined = x.join(y, step)
    if not shape_of(op.condition.type):
        return joined
    contiguity = gcds(
        joined.contiguity, c.constancy
    )  # a change of the condition inside a run cuts it
    return AxisFacts(contiguity, joined.cut(contiguity, step), gcds(joined.constancy, c.constancy))


@transfer(arith.CmpOp)
def _cmp(a: AxisAnalysis, op: arith.CmpOp) -> AxisFacts:
    """Compare runs of x with a uniform y: if both are multiples of n, `x < y` cannot change within n elements."""
    x, y = a.facts(op.lhs), a.facts(op.rhs)
    constancy: list[int] = []
    for d in range(len(x.constancy)):
        best = gcd(x.constancy[d], y.constancy[d])
        if op.predicate in ("lt", "ge"):
            best = max(best, _aligned_run(x, y, d))
        if op.predicate in ("gt", "le"):
            best = max(best, _aligned_run(y, x, d))
        constancy.append(best)
    ones = (1,) * len(constancy)
    return AxisFacts(ones, ones, tuple(constancy))


def _aligned_run(run: AxisFacts, bound: AxisFacts, d: int) -> int:
    return gcd(
        gcd(run.contiguity[d], bound.constancy[d]), gcd(run.divisibility[d], bound.divisibility[d])
    )


# --- shape ops --------------------------------------------------------------------------------------------------
@transfer(tile.ExpandDimsOp)
def _expand(a: AxisAnalysis, op: tile.ExpandDimsOp) -> AxisFacts:
    f, k = a.facts(op.x), op.axis
    new = max(f.divisibility) if f.value is not None else min(_starts(f), default=1)

    def insert(t: tuple[int, ...], x: int) -> tuple[int, ...]:
        return (*t[:k], x, *t[k:])

    return AxisFacts(
        insert(f.contiguity, 1), insert(f.divisibility, new), insert(f.constancy, 1), f.value
    )


@transfer(tile.BroadcastOp)
def _broadcast(a: AxisAnalysis, op: tile.BroadcastOp) -> AxisFacts:
    f, small, large = a.facts(op.x), shape_of(op.x.type), shape_of(op.result.type)
    constancy = tuple(n if s != n else k for s, n, k in zip(small, large, f.constancy, strict=True))
    return AxisFacts(f.contiguity, f.divisibility, constancy, f.value)


@transfer(tile.TransOp)
def _trans(a: AxisAnalysis, op: tile.TransOp) -> AxisFacts:
    f = a.facts(op.x)

    def permute(t: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(t[i] for i in op.order)

    return AxisFacts(permute(f.contiguity), permute(f.divisibility), permute(f.constancy), f.value)


@transfer(tile.ReshapeOp)
def _reshape(a: AxisAnalysis, op: tile.ReshapeOp) -> AxisFacts:
    """Keep the facts along the last dimension, with runs cut to its new extent; drop those along the others."""
    f, old, new = a.facts(op.x), shape_of(op.x.type), shape_of(op.result.type)
    if f.value is not None:
        return uniform(op.result.type, f.divisibility[0], f.value)
    unknown = nothing_known(op.result.type)
    if op.reorder or not new or not old:
        return unknown
    run = gcd(f.contiguity[-1], new[-1])
    cut = (
        f.divisibility[-1]
        if run == f.contiguity[-1]
        else gcd(f.divisibility[-1], run * unit_of(op.x.type))
    )
    return AxisFacts(
        (*unknown.contiguity[:-1], run),
        (*unknown.divisibility[:-1], cut),
        (*unknown.constancy[:-1], gcd(f.constancy[-1], new[-1])),
    )
