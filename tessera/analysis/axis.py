"""Axis facts: how the elements of a tile run along each dimension.

For every integer or pointer value and each dimension d (a scalar counts as one dimension of extent 1):

- contiguity[d]   n: the tile splits along d into aligned runs of n elements, each run counting up by 1
                  (pointers: by one element);
- divisibility[d] the largest known power of two that divides the first element of each such run (pointers: bytes);
- constancy[d]    n: aligned runs of n elements are all equal.

Example: `offs = pid * 1024 + arange(0, 1024)` has contiguity 1024 and divisibility 1024: a run starts at a multiple
of 1024. `ptr + offs` with a 16-byte-aligned `ptr` to fp32 has contiguity 1024 and divisibility 16 (bytes), so vectors
of 4 elements may be loaded. `offs < n` with n divisible by 16 has constancy 16: a vector of 4 is masked as a whole.

The quotients and remainders of a run are described where its numbers are known not to be negative (see sign.py).
Facts of loop-carried values are found by assuming the initial value's facts and joining until nothing changes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from tessera.analysis.sign import Signs
from tessera.dtypes import dtype, pointer_type
from tessera.ir import Block, Op, Value, elem_of, shape_of
from tessera.ops import arith, control, gpu, memory, tile

TOP = 1 << 32  # "divisible by anything we ask": the divisibility of zero


def power_of_two_part(n: int) -> int:
    """The largest power of two dividing n; TOP for 0."""
    return min(n & -n, TOP) if n else TOP


@dataclass(frozen=True, slots=True)
class AxisFacts:
    """See the module's text. `value` is the number when every element is one known integer."""

    contiguity: tuple[int, ...]
    divisibility: tuple[int, ...]
    constancy: tuple[int, ...]
    value: int | None = None

    def join(self, other: AxisFacts, step: int = 1) -> AxisFacts:
        """What holds whichever of the two describes the value; `step` is the unit of divisibility per element."""
        contiguity = _gcds(self.contiguity, other.contiguity)
        mine, its = self.cut(contiguity, step), other.cut(contiguity, step)
        return AxisFacts(
            contiguity,
            _gcds(mine, its),
            _gcds(self.constancy, other.constancy),
            self.value if self.value == other.value else None,
        )

    def cut(self, runs: tuple[int, ...], step: int) -> tuple[int, ...]:
        """Divisibility once the runs are cut to `runs`: a piece starts a multiple of its length into a run."""
        return tuple(
            d if n == m else gcd(d, n * step)
            for d, n, m in zip(self.divisibility, runs, self.contiguity, strict=True)
        )


def _gcds(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    return tuple(gcd(x, y) for x, y in zip(a, b, strict=True))


def _dims(t: Any) -> tuple[int, ...]:
    return shape_of(t) or (1,)


def _unknown(t: Any) -> AxisFacts:
    ones = (1,) * len(_dims(t))
    return AxisFacts(ones, ones, ones)


def _uniform(t: Any, divisibility: int, value: int | None = None) -> AxisFacts:
    """Every element is the same number."""
    dims = _dims(t)
    return AxisFacts((1,) * len(dims), (divisibility,) * len(dims), dims, value)


Transfer = Callable[["AxisAnalysis", Any], AxisFacts]
_TRANSFER: dict[type[Op], Transfer] = {}


def _transfer(*classes: type[Op]) -> Callable[[Transfer], Transfer]:
    def register(fn: Transfer) -> Transfer:
        for cls in classes:
            _TRANSFER[cls] = fn
        return fn

    return register


def _interesting(t: Any) -> bool:
    e = elem_of(t)
    return isinstance(e, pointer_type) or (isinstance(e, dtype) and e.is_int())


class AxisAnalysis:
    """Facts of all values of a function, computed when it is made."""

    def __init__(self, func: control.FuncOp):
        self.table: dict[Value, AxisFacts] = {}
        self.signs = Signs()
        for value, attrs in zip(
            func.body.args, func.arg_attrs or ((),) * len(func.body.args), strict=True
        ):
            d = dict(attrs).get("divisibility", 1)
            self.table[value] = _uniform(value.type, d)
        self._block(func.body)

    def facts(self, v: Value) -> AxisFacts:
        return self.table.get(v) or _unknown(v.type)

    # --- what consumers ask -------------------------------------------------------------------------------
    def vector_width(self, ptr: Value, axis: int) -> int:
        """Elements along `axis` that one aligned access may cover, by contiguity and alignment of the pointer."""
        f = self.facts(ptr)
        size = elem_of(ptr.type).element_ty.storage_bytes
        return max(1, gcd(f.contiguity[axis], max(f.divisibility[axis] // size, 1)))

    def mask_width(self, mask: Value | None, axis: int) -> int:
        """Elements along `axis` that are all on or all off (aligned runs); a huge number without a mask."""
        return TOP if mask is None else self.facts(mask).constancy[axis]

    # --- propagation ---------------------------------------------------------------------------------------
    def _block(self, block: Block) -> None:
        for op in block:
            self._op(op)

    def _op(self, op: Op) -> None:
        if isinstance(op, control.ForOp):
            self._for(op)
        elif isinstance(op, control.WhileOp):
            self._while(op)
        elif isinstance(op, control.IfOp):
            self._block(op.then)
            self._block(op.orelse)
            for r, a, b in zip(
                op.results, op.then.terminator.operands, op.orelse.terminator.operands, strict=True
            ):
                self.table[r] = self.facts(a).join(self.facts(b), _step(r.type))
        else:
            for block in op.regions:
                self._block(block)
            transfer = _TRANSFER.get(type(op))
            if transfer is not None and op.results and _interesting(op.results[0].type):
                self.table[op.results[0]] = transfer(self, op)

    def _fixpoint(
        self, carried: Sequence[Value], inits: Sequence[Value], body: Callable[[], Sequence[Value]]
    ) -> None:
        current = [self.facts(v) for v in inits]
        while True:
            for arg, f in zip(carried, current, strict=True):
                self.table[arg] = f
            after = [self.facts(v) for v in body()]
            joined = [
                a.join(b, _step(v.type)) for a, b, v in zip(current, after, carried, strict=True)
            ]
            if joined == current:
                return
            current = joined

    def _for(self, op: control.ForOp) -> None:
        lb, step = self.facts(op.lb), self.facts(op.step)
        d = gcd(lb.divisibility[0], step.divisibility[0])
        self.table[op.induction] = _uniform(op.lb.type, d)

        def body() -> Sequence[Value]:
            self._block(op.body)
            return op.body.terminator.operands

        self._fixpoint(op.carried, op.inits, body)
        for r, arg in zip(op.results, op.carried, strict=True):
            self.table[r] = self.facts(arg)

    def _while(self, op: control.WhileOp) -> None:
        def body() -> Sequence[Value]:
            self._block(op.before)
            for arg, passed in zip(op.after.args, op.before.terminator.operands[1:], strict=True):
                self.table[arg] = self.facts(passed)
            self._block(op.after)
            return op.after.terminator.operands

        self._fixpoint(op.before.args, op.inits, body)
        for r, passed in zip(op.results, op.before.terminator.operands[1:], strict=True):
            self.table[r] = self.facts(passed)


# --- rules, one group of ops each ---------------------------------------------------------------------------
@_transfer(arith.ConstOp)
def _const(a: AxisAnalysis, op: arith.ConstOp) -> AxisFacts:
    value = int(op.value)
    return _uniform(op.result.type, power_of_two_part(value), value)


@_transfer(tile.ArangeOp)
def _arange(a: AxisAnalysis, op: tile.ArangeOp) -> AxisFacts:
    return AxisFacts((op.end - op.start,), (power_of_two_part(op.start),), (1,))


@_transfer(tile.SplatOp)
def _splat(a: AxisAnalysis, op: tile.SplatOp) -> AxisFacts:
    f = a.facts(op.x)
    return _uniform(op.result.type, f.divisibility[0], f.value)


@_transfer(gpu.ConvertLayoutOp)
def _convert_layout(a: AxisAnalysis, op: gpu.ConvertLayoutOp) -> AxisFacts:
    return a.facts(op.x)


@_transfer(memory.LoadOp)
def _load(a: AxisAnalysis, op: memory.LoadOp) -> AxisFacts:
    """What is read from one place is one value: indices of rows, say."""
    unknown = _unknown(op.result.type)
    if op.volatile:
        return unknown
    constancy = a.facts(op.ptr).constancy
    for v in (op.mask, op.other):
        if v is not None and shape_of(v.type):
            constancy = _gcds(constancy, a.facts(v).constancy)
    return AxisFacts(unknown.contiguity, unknown.divisibility, constancy)


@_transfer(arith.HintOp)
def _hint(a: AxisAnalysis, op: arith.HintOp) -> AxisFacts:
    f = a.facts(op.x)

    def merge(old: tuple[int, ...], said: tuple[int, ...]) -> tuple[int, ...]:
        if not said:
            return old
        return tuple(
            max(o, power_of_two_part(s)) if s else o for o, s in zip(old, said, strict=True)
        )

    divisibility = tuple(
        d * _step(op.x.type) for d in op.divisibility
    )  # said in elements, kept in bytes
    return AxisFacts(
        merge(f.contiguity, op.contiguity),
        merge(f.divisibility, divisibility),
        merge(f.constancy, op.constancy),
        f.value,
    )


@_transfer(arith.CastOp, arith.BitcastOp)
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
    # A narrowing cast keeps what is equal and what divides; counting up may wrap.
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
    """Divisibility of every element, not only of the first of each run."""
    return tuple(d if c == 1 else 1 for d, c in zip(f.divisibility, f.contiguity, strict=True))


def _sum(x: AxisFacts, y: AxisFacts, value: int | None, both: bool) -> AxisFacts:
    """Facts of x + y, or of x - y when not `both` (then y may not be the running one)."""
    contiguity: list[int] = []
    divisibility: list[int] = []
    for cx, kx, dx, cy, ky, dy in zip(
        x.contiguity,
        x.constancy,
        x.divisibility,
        y.contiguity,
        y.constancy,
        y.divisibility,
        strict=True,
    ):
        run = gcd(cx, ky)
        if both:
            run = max(run, gcd(kx, cy))
        contiguity.append(run)
        # A shorter run may begin inside a longer one: its start is only known modulo the run's length.
        sx = dx if cx <= run else gcd(dx, run)
        sy = dy if cy <= run else gcd(dy, run)
        divisibility.append(min(gcd(sx, sy), TOP))
    constancy = _gcds(x.constancy, y.constancy)
    return AxisFacts(tuple(contiguity), tuple(divisibility), constancy, value)


def _known(
    op: arith.Binary, compute: Callable[[int, int], int], x: AxisFacts, y: AxisFacts
) -> int | None:
    """The number that every element of the result is, when both operands are known and nothing wraps."""
    if x.value is None or y.value is None:
        return None
    value, e = compute(x.value, y.value), elem_of(op.result.type)
    return value if e.get_int_min_value() <= value <= e.get_int_max_value() else None


@_transfer(arith.AddOp)
def _add(a: AxisAnalysis, op: arith.AddOp) -> AxisFacts:
    x, y = a.facts(op.lhs), a.facts(op.rhs)
    value = _known(op, operator.add, x, y)
    return _sum(x, y, value, both=True)


@_transfer(arith.SubOp)
def _sub(a: AxisAnalysis, op: arith.SubOp) -> AxisFacts:
    x, y = a.facts(op.lhs), a.facts(op.rhs)
    value = _known(op, operator.sub, x, y)
    return _sum(x, y, value, both=False)


@_transfer(arith.AddPtrOp)
def _addptr(a: AxisAnalysis, op: arith.AddPtrOp) -> AxisFacts:
    size = elem_of(op.ptr.type).element_ty.storage_bytes
    p, o = a.facts(op.ptr), a.facts(op.offset)
    contiguity: list[int] = []
    divisibility: list[int] = []
    for cp, kp, dp, co, ko, do in zip(
        p.contiguity,
        p.constancy,
        p.divisibility,
        o.contiguity,
        o.constancy,
        o.divisibility,
        strict=True,
    ):
        run = max(gcd(cp, ko), gcd(kp, co))
        contiguity.append(run)
        sp = dp if cp <= run else gcd(dp, run * size)
        so = (do if co <= run else gcd(do, run)) * size
        divisibility.append(min(gcd(sp, power_of_two_part(so)), TOP))
    return AxisFacts(tuple(contiguity), tuple(divisibility), _gcds(p.constancy, o.constancy))


@_transfer(arith.MulOp)
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
    return AxisFacts(contiguity, divisibility, _gcds(x.constancy, y.constancy), value)


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


@_transfer(arith.DivOp)
def _div(a: AxisAnalysis, op: arith.DivOp) -> AxisFacts:
    x, y = a.facts(op.lhs), a.facts(op.rhs)
    if y.value == 1:
        return x
    # A run counting up from a multiple of k gives k equal quotients in a row, for k dividing the divisor, unless it is
    # negative: -4, -3, -2, -1 divided by 4 is -1, 0, 0, 0.
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


@_transfer(arith.RemOp)
def _rem(a: AxisAnalysis, op: arith.RemOp) -> AxisFacts:
    x, y = a.facts(op.lhs), a.facts(op.rhs)
    constancy = _gcds(x.constancy, y.constancy)
    # Runs survive as far as no multiple of the divisor falls inside one; of negative numbers one ends behind each
    # multiple: -4, -3, -2, -1 modulo 4 is 0, -3, -2, -1.
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


@_transfer(arith.ShlOp)
def _shl(a: AxisAnalysis, op: arith.ShlOp) -> AxisFacts:
    x, y = a.facts(op.lhs), a.facts(op.rhs)
    if y.value is None or not 0 <= y.value < 63:
        return AxisFacts((1,) * len(x.contiguity), _starts(x), _gcds(x.constancy, y.constancy))
    divisibility = tuple(min(d << y.value, TOP) for d in _starts(x))
    value = _known(op, lambda n, count: n << count, x, y)
    return AxisFacts((1,) * len(x.contiguity), divisibility, x.constancy, value)


@_transfer(
    arith.AndOp, arith.OrOp, arith.XorOp, arith.ShrOp, arith.AbsOp, arith.NegOp, arith.MulHiOp
)
def _equal_stays_equal(a: AxisAnalysis, op: Op) -> AxisFacts:
    constancy = a.facts(op.operands[0]).constancy
    for v in op.operands[1:]:
        constancy = _gcds(constancy, a.facts(v).constancy)
    ones = (1,) * len(constancy)
    return AxisFacts(ones, ones, constancy)


@_transfer(arith.MinOp, arith.MaxOp)
def _min_max(a: AxisAnalysis, op: arith.MinOp) -> AxisFacts:
    x, y = a.facts(op.lhs), a.facts(op.rhs)
    ones = (1,) * len(x.contiguity)
    return AxisFacts(ones, _gcds(_starts(x), _starts(y)), _gcds(x.constancy, y.constancy))


@_transfer(arith.SelectOp)
def _select(a: AxisAnalysis, op: arith.SelectOp) -> AxisFacts:
    c, x, y = (a.facts(v) for v in op.operands)
    step = _step(op.result.type)
    joined = x.join(y, step)
    if not shape_of(op.condition.type):
        return joined
    contiguity = _gcds(
        joined.contiguity, c.constancy
    )  # a change of the condition inside a run cuts it
    return AxisFacts(contiguity, joined.cut(contiguity, step), _gcds(joined.constancy, c.constancy))


def _step(t: Any) -> int:
    """What divisibility counts for one element further: bytes for pointers, 1 for integers."""
    e = elem_of(t)
    return e.element_ty.storage_bytes if isinstance(e, pointer_type) else 1


@_transfer(arith.CmpOp)
def _cmp(a: AxisAnalysis, op: arith.CmpOp) -> AxisFacts:
    """Runs of x against equal y: with both aligned to n, `x < y` cannot change inside n elements."""
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
@_transfer(tile.ExpandDimsOp)
def _expand(a: AxisAnalysis, op: tile.ExpandDimsOp) -> AxisFacts:
    f, k = a.facts(op.x), op.axis
    new = max(f.divisibility) if f.value is not None else min(_starts(f), default=1)

    def insert(t: tuple[int, ...], x: int) -> tuple[int, ...]:
        return (*t[:k], x, *t[k:])

    return AxisFacts(
        insert(f.contiguity, 1), insert(f.divisibility, new), insert(f.constancy, 1), f.value
    )


@_transfer(tile.BroadcastOp)
def _broadcast(a: AxisAnalysis, op: tile.BroadcastOp) -> AxisFacts:
    f, small, large = a.facts(op.x), shape_of(op.x.type), shape_of(op.result.type)
    constancy = tuple(n if s != n else k for s, n, k in zip(small, large, f.constancy, strict=True))
    return AxisFacts(f.contiguity, f.divisibility, constancy, f.value)


@_transfer(tile.TransOp)
def _trans(a: AxisAnalysis, op: tile.TransOp) -> AxisFacts:
    f = a.facts(op.x)

    def permute(t: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(t[i] for i in op.order)

    return AxisFacts(permute(f.contiguity), permute(f.divisibility), permute(f.constancy), f.value)


@_transfer(tile.ReshapeOp)
def _reshape(a: AxisAnalysis, op: tile.ReshapeOp) -> AxisFacts:
    """Facts along the last dimension survive when it only splits or stays; others are given up."""
    f, old, new = a.facts(op.x), shape_of(op.x.type), shape_of(op.result.type)
    if f.value is not None:
        return _uniform(op.result.type, f.divisibility[0], f.value)
    unknown = _unknown(op.result.type)
    if op.reorder or not new or not old:
        return unknown
    run = gcd(f.contiguity[-1], new[-1])
    cut = (
        f.divisibility[-1]
        if run == f.contiguity[-1]
        else gcd(f.divisibility[-1], run * _step(op.x.type))
    )
    return AxisFacts(
        (*unknown.contiguity[:-1], run),
        (*unknown.divisibility[:-1], cut),
        (*unknown.constancy[:-1], gcd(f.constancy[-1], new[-1])),
    )
