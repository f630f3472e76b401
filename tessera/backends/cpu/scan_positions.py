"""Uses what is known of the positions that a scan of pairs (value, position) carries along.

    (v, p) = scan [x, arange to i64] (a, i, b, j) {              (v, p) = scan [x, arange] (a, i, b, j) {
        c = a > b or (a == b and i > j)                →             c = a > b
        yield [c ? a : b, c ? i : j]                                 yield [c ? a : b, c ? i : j]
    }                                                            }; cast p to i64

A region that yields one of the two positions that it gets, never another number, gets positions of earlier elements
first: where they grow along the axis, the first one is less than the second. Positions that fit into 32 bits are
carried in 32 bits, as wide as most values.
"""

from __future__ import annotations

from tessera.analysis.ranges import IntegerRanges, compared
from tessera.backends.cpu.loops import slope
from tessera.dtypes import dtype, int32
from tessera.ir import Builder, Module, Value, elem_of, pass_, with_elem
from tessera.ir.applications import apply
from tessera.ops import ScanOp, arith

WIDTH = 32  # bits of int32


@pass_("scan-positions", optimization="scan-positions", counts=True)
def scan_positions(module: Module) -> None:
    """Fold comparisons of positions in scans, and carry the positions in 32 bits.

    Takes: tile IR of any level.
    Gives: the same scans; comparisons that became constants are left to canonicalisation.
    Needs: the CPU, whose vectors have twice as many lanes of 32 bits; a scan that combines the elements in order.
    Raises: nothing.
    Example: `reversed` of tests/filecheck/scan-positions.tir
        scan { cmp; select; select; yield } → scan { const; select; select; yield }
    Compare: LLVM Correlated Value Propagation, InstCombine's narrowing of casts.
    """
    scans = [op for op in module.walk() if isinstance(op, ScanOp) and len(op.inputs) > 1]
    ranges = IntegerRanges(module) if scans else None
    for op in scans:
        assert ranges is not None
        places = [k for k in range(len(op.inputs)) if _is_position(op, k, ranges)]
        if places and apply("scan-positions", op):
            for k in places:
                _fold(op, k)
                found = ranges.of(op.inputs[k])
                assert found is not None
                if found[0] >= -(1 << WIDTH - 1) and found[1] < 1 << WIDTH - 1:
                    _narrow(op, k)


def _is_position(op: ScanOp, k: int, ranges: IntegerRanges) -> bool:
    """Whether operand `k` grows by one along the axis, without wrapping, and the region yields one of the two."""
    e = elem_of(op.inputs[k].type)
    if not isinstance(e, dtype) or not e.is_int() or e.bits < WIDTH:
        return False
    grows = slope(op.inputs[k], op.axis) == 1 and ranges.of(op.inputs[k]) is not None
    return grows and _choices(op, k) is not None


def _choices(op: ScanOp, k: int) -> list[arith.SelectOp] | None:
    """Return the ops by which the region chooses one of its two values of operand `k`; None if it may yield another
    one."""
    pair, found = _pair(op, k), dict[arith.SelectOp, None]()
    waiting = [op.combine.terminator.operands[k]]
    while waiting:
        v = waiting.pop()
        if v in pair:
            continue
        if not isinstance(v.op, arith.SelectOp):
            return None
        if v.op not in found:
            found[v.op] = None
            waiting += [v.op.on_true, v.op.on_false]
    return list(found)


def _pair(op: ScanOp, k: int) -> tuple[Value, Value]:
    args = op.combine.args
    return args[k], args[len(op.inputs) + k]


def _fold(op: ScanOp, k: int) -> None:
    """Replace the comparisons of the two positions by what they give."""
    first, second = _pair(op, k)
    number = {first: int(op.reverse), second: int(not op.reverse)}
    for user, _ in list(first.uses):
        if isinstance(user, arith.CmpOp) and {user.lhs, user.rhs} == {first, second}:
            a, b = number[user.lhs], number[user.rhs]
            holds = compared(user.predicate, (a, a), (b, b))
            assert holds is not None
            new = arith.ConstOp(value=holds, results=[user.result.type])
            user.replace_by([Builder.before_op(user).emit(new)])


def _narrow(op: ScanOp, k: int) -> None:
    """Carry the positions in 32 bits, if nothing but the choice needs them in the region."""
    choices, wide = _choices(op, k), elem_of(op.inputs[k].type)
    assert choices is not None
    chosen = [*_pair(op, k), *(c.result for c in choices)]
    users = {user for v in chosen for user, _ in v.uses} - {*choices, op.combine.terminator}
    others = [v for i, v in enumerate(op.combine.terminator.operands) if i != k]
    if wide is int32 or users or not set(others).isdisjoint(chosen):
        return
    before, after = Builder.before_op(op), Builder.after_op(op)
    narrow = with_elem(op.inputs[k].type, int32)
    op.set_operand(k, before.emit(arith.CastOp(op.inputs[k], results=[narrow], loc=op.loc)))
    for v in chosen:
        v.type = int32
    result = op.results[k]
    uses, t = list(result.uses), result.type
    result.type = narrow
    cast = after.emit(arith.CastOp(result, results=[t], loc=op.loc))
    for user, index in uses:
        user.set_operand(index, cast)
