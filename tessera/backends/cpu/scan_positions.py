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
from tessera.backends.cpu.bounds import slope
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
                if found[0] > -(1 << WIDTH - 1) and found[1] < 1 << WIDTH - 1:
                    _narrow(op, k)


def _is_position(op: ScanOp, k: int, ranges: IntegerRanges) -> bool:
    """Whether operand `k` grows by one along the axis, without wrapping, and the region yields one of the two."""
    e = elem_of(op.inputs[k].type)
    if not isinstance(e, dtype) or not e.is_int() or e.bits < WIDTH:
        return False
    found = ranges.of(op.inputs[k])
    if found is None or slope(op.inputs[k], op.axis) != 1:
        return False
    # Numbers without a sign, and the least one, have no negative.
    if any(isinstance(x, arith.NegOp) for x in op.combine) and (
        not e.signed or found[0] == -(1 << e.bits - 1)
    ):
        return False
    return _choices(op, k).get(op.combine.terminator.operands[k]) == 1


def _choices(op: ScanOp, k: int) -> dict[Value, int]:
    """Return the values of the region that are one of the two positions (1), or the negative of one (-1)."""
    found = dict.fromkeys(_pair(op, k), 1)
    for x in op.combine:
        if isinstance(x, arith.SelectOp):
            a, b = found.get(x.on_true), found.get(x.on_false)
            if a is not None and a == b:
                found[x.result] = a
        elif isinstance(x, arith.NegOp) and x.x in found:
            found[x.result] = -found[x.x]
    return found


def _pair(op: ScanOp, k: int) -> tuple[Value, Value]:
    args = op.combine.args
    return args[k], args[len(op.inputs) + k]


def _fold(op: ScanOp, k: int) -> None:
    """Replace the comparisons of the two positions, or of their negatives, by what they give."""
    first, second = _pair(op, k)
    number = {first: 1 + op.reverse, second: 2 - op.reverse}
    for x in op.combine:
        if isinstance(x, arith.NegOp) and x.x in (first, second):
            number[x.result] = -number[x.x]
    for user in list(op.combine):
        if not isinstance(user, arith.CmpOp) or user.lhs not in number or user.rhs not in number:
            continue
        a, b = number[user.lhs], number[user.rhs]
        if a * b == 2:  # with the same sign
            holds = compared(user.predicate, (a, a), (b, b))
            assert holds is not None
            new = arith.ConstOp(value=holds, results=[user.result.type])
            user.replace_by([Builder.before_op(user).emit(new)])


def _narrow(op: ScanOp, k: int) -> None:
    """Carry the positions in 32 bits, if nothing but the choice needs them in the region."""
    chosen, end, wide = _choices(op, k), op.combine.terminator, elem_of(op.inputs[k].type)
    users = {user for v in chosen for user, _ in v.uses if user is not end}
    others = [v for i, v in enumerate(end.operands) if i != k]
    if wide is int32 or not set(others).isdisjoint(chosen):
        return
    if not all(isinstance(x, arith.SelectOp | arith.NegOp) and x.result in chosen for x in users):
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
