"""Adds the checks of numbers: integers that do not fit their type, and NaNs and infinities where they first arise."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import inf
from typing import Any

from tessera.dtypes import dtype, int1
from tessera.errors import IntegerOverflow, Loc, NotFinite
from tessera.ir import Op, TileType, Value, elem_of, shape_of
from tessera.language import extra
from tessera.ops import arith, tile
from tessera.passes.checks.check_builder import CheckBuilder, report, result_name

# Element-wise ops that give a NaN or an infinity only where an operand is one, or that reinterpret bits as floats.
_NOT_COMPUTED = (arith.BitcastOp, arith.HintOp, arith.SelectOp, arith.NegOp, arith.AbsOp, arith.CopySignOp,
                 arith.MinOp, arith.MaxOp, arith.ConstOp)  # fmt: skip
_WHOLE = (tile.DotOp, tile.ReduceOp, tile.ScanOp)


def _is_signed(op: Op) -> bool:
    e = elem_of(op.result.type)
    return isinstance(e, dtype) and e.is_int() and e.signed


def _overflow(b: CheckBuilder, op: Op, bad: Value) -> None:
    e = elem_of(op.result.type)
    message = f"{result_name(op)} does not fit {e}: overflow in `{op.opcode}`"
    report(b, IntegerOverflow.code, bad, message, op.operands)


def check_negation(op: arith.NegOp) -> None:
    if _is_signed(op):
        b = CheckBuilder.before_op(op)
        _overflow(b, op, b.compare("eq", op.x, elem_of(op.x.type).get_int_min_value()))


def check_quotient(op: arith.DivOp | arith.RemOp) -> None:
    e = elem_of(op.result.type)
    if not e.is_int() or e is int1:
        return
    b = CheckBuilder.before_op(op)
    message = f"{result_name(op)}: division by zero"
    report(b, IntegerOverflow.code, b.compare("eq", op.rhs, 0), message, op.operands)
    if e.signed:
        lowest = b.compare("eq", op.lhs, e.get_int_min_value())
        _overflow(b, op, b.both(lowest, b.compare("eq", op.rhs, -1)))


def check_wide(op: Any) -> None:
    """Check 64-bit sums, differences and products, unless operands that were narrower leave room for all results."""
    if not _is_signed(op) or elem_of(op.result.type).bits != 64:
        return
    widths = [_width(v) for v in op.operands]
    if (sum(widths) if isinstance(op, arith.MulOp) else max(widths) + 1) <= 64:
        return
    b = CheckBuilder.after_op(op)
    x, y, r = op.lhs, op.rhs, op.result
    if isinstance(op, arith.MulOp):
        sign = b.emit(arith.ShrOp(r, b.constant(63, r.type)))
        _overflow(b, op, b.compare("ne", b.emit(arith.MulHiOp(x, y)), sign))
        return
    # A sum has the sign of its operands where they agree; a difference that of x where they do not.
    other = r if isinstance(op, arith.AddOp) else x
    signs = b.emit(arith.AndOp(b.emit(arith.XorOp(x, r)), b.emit(arith.XorOp(y, other))))
    _overflow(b, op, b.compare("lt", signs, 0))


def _width(v: Value) -> int:
    """Return how many bits hold all values of a signed integer: fewer than its type has if it was cast from another."""
    op = v.op
    if isinstance(op, (tile.SplatOp, tile.BroadcastOp, tile.ExpandDimsOp)):
        return _width(op.x)
    if isinstance(op, arith.CastOp):
        e = elem_of(op.x.type)
        if isinstance(e, dtype) and e.is_int():
            return min(e.bits + (not e.signed), elem_of(v.type).bits)
    return elem_of(v.type).bits


def check_finite(op: Op) -> None:
    """Check for the first NaN or infinity that an operation makes of operands without any."""
    computes = isinstance(op, (arith.Elementwise, *_WHOLE)) and not isinstance(op, _NOT_COMPUTED)
    if computes and len(op.results) == 1 and is_float(op.result) and not _only_widens(op):
        _compare_finite(
            CheckBuilder.after_op(op), op.result, op.operands, op.opcode, isinstance(op, _WHOLE)
        )


def _compare_finite(
    b: CheckBuilder, result: Value, operands: Sequence[Value], function: str, whole: bool
) -> None:
    """Check that the result has no NaN or infinity that the operands lack. With `whole`, each element of the result
    depends on all elements of the operands."""
    t = result.type
    size = b.magnitude(result)
    nan, infinite = b.emit(arith.IsNanOp(size)), b.compare("eq", size, inf)
    sizes = [b.magnitude(v) for v in operands if is_float(v)]
    no_nan = [b.negated(b.emit(arith.IsNanOp(s))) for s in sizes]
    finite = [b.compare("lt", s, inf) for s in sizes]
    infinities = [b.compare("eq", s, inf) for s in sizes]
    if whole:
        no_nan = [b.everywhere(x, arith.AndOp) for x in no_nan]
        finite = [b.everywhere(x, arith.AndOp) for x in finite]
        infinities = [b.everywhere(x, arith.OrOp) for x in infinities]
    no_nan, finite = ([b.spread(x, t) for x in bits] for bits in (no_nan, finite))
    bad = b.either(b.both(nan, *no_nan), b.both(infinite, *finite))
    some = b.constant(False, int1) if not infinities else b.either(
        *(infinities if whole else [b.spread(x, t) for x in infinities])
    )  # fmt: skip
    name = f"`{result.name}`" if result.name else f"the result of `{function}`"
    message = f"{name} becomes {{}}: `{function}` of {{}}"
    report(b, NotFinite.code, bad, message, operands, [result, some])


# --- functions of libdevice ---------------------------------------------------------------------------------
LIBDEVICE = os.path.dirname(extra.__file__)


def called_at(op: Op) -> Loc | None:
    """Return where a kernel calls the libdevice function that contains an op; steps of such a function may overflow."""
    loc = op.loc
    while loc is not None and loc.file.startswith(LIBDEVICE):
        loc = loc.call_site
    return loc if loc is not op.loc else None


def check_results(calls: dict[Loc, list[Op]]) -> None:
    """Check what libdevice functions return, as if each were one operation."""
    for site, ops in calls.items():
        inside = {r for op in ops for r in op.results}
        given = [v for op in ops for v in op.operands if v not in inside and is_float(v)]
        for v in inside:
            leaves = any(user not in ops for user in v.users())
            same = [x for x in dict.fromkeys(given) if shape_of(x.type) in ((), shape_of(v.type))]
            if leaves and is_float(v) and not isinstance(v.op, arith.ConstOp):
                b = CheckBuilder(ops[-1].parent, ops[-1].next, site)
                _compare_finite(b, v, same, _function_called(ops[0], site), whole=False)
    calls.clear()


def _function_called(op: Op, site: Loc) -> str:
    loc = op.loc
    while loc is not None and loc.call_site != site:
        loc = loc.call_site
    return loc.function if loc is not None else op.opcode


def is_float(v: Value) -> bool:
    e = elem_of(v.type) if isinstance(v.type, (dtype, TileType)) else None
    return isinstance(e, dtype) and e.is_floating()


def _only_widens(op: Op) -> bool:
    """Whether a cast maps every finite number to a finite one."""
    return (
        isinstance(op, arith.CastOp)
        and is_float(op.x)
        and elem_of(op.result.type).bits > elem_of(op.x.type).bits
    )
