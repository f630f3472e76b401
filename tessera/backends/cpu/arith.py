"""Lowers element-wise ops on vectors: the shared rows (elements/arith.py), and what x86 does better.

Small floats are widened to fp32, computed and rounded after every op, as the language defines.
"""

from __future__ import annotations

from typing import Any

from tessera.backends.cpu.lanes import Lanes
from tessera.backends.cpu.llvm_text import lane_type
from tessera.backends.elements import arith as shared
from tessera.dtypes import float32
from tessera.ir import Op
from tessera.ir.types import Type
from tessera.ops import arith

TABLE: dict[type[Op], shared.Lowering] = dict(shared.TABLE)


def lower(x: Lanes, op: Op, texts: list[str]) -> str:
    """Return the result of an element-wise op on `x.n` lanes."""
    return shared.lower(TABLE, x, op, texts)


# Four bits for each class of the product: quiet NaN, signalling NaN, zero, one, -infinity, infinity, negative,
# positive, the lowest bits first. 1: the product is the quotient; 0: the corrected one is.
PRODUCT_AT_EDGES = 0x110101


def divide_by_one(x: Lanes, a: str, b: str) -> str:
    """Divide fp32 lanes by one number, correctly rounded: multiply by its reciprocal and correct (Markstein).

    If the reciprocal would not be a normal number, both operands are scaled first. Infinities, which the correction
    turns into NaN, are taken from the product.
    """
    one, e = Lanes(x.em, x.facts, 1), "float"
    size = one.call("fabs", e, b)
    tiny = one.cmp("fcmp olt", e, size, one.f32(2.0**-126))
    huge = one.cmp("fcmp ogt", e, size, one.f32(2.0**126))
    scale = one.select(e, huge, one.f32(2.0**-64), one.f32(1.0))
    scale = one.select(e, tiny, one.f32(2.0**64), scale)
    b = one.op("fmul", e, b, scale)
    inverse = x.em.splat(e, one.op("fdiv", e, one.f32(1.0), b), x.n)
    a = x.op("fmul", e, a, x.em.splat(e, scale, x.n))
    first = x.op("fmul", e, a, inverse)
    rest = x.call("fma", e, x.op("fneg", e, first), x.em.splat(e, b, x.n), a)
    better = x.call("fma", e, rest, inverse, first)
    if x.has_edges:
        ty, ints = lane_type(float32, x.n), f"<{x.n} x i32>"
        table = f"{ints} splat (i32 {PRODUCT_AT_EDGES})"
        return x.masked("fixupimm", f"{ty} {better}", f"{ty} {first}", table, "i32 0")
    return x.select(e, x.cmp("fcmp uno", e, better, better), first, better)


def _extremum(x: Lanes, op: Any, t: Type, a: str, b: str) -> str:
    if t is float32 and x.has_edges and not op.propagate_nan:
        # The code of `vrange`: 4 takes the lesser operand, 5 the greater one; the sign is that of the result.
        ty, kind = lane_type(t, x.n), 4 if op.opcode == "min" else 5
        return x.masked("range", f"{ty} {a}", f"{ty} {b}", f"i32 {kind}", f"{ty} zeroinitializer")
    return shared.TABLE[type(op)](x, op, t, a, b)


TABLE.update({arith.MinOp: _extremum, arith.MaxOp: _extremum})
