"""Compares a tile of indices with a number: `columns == label`. Registers differ by known numbers, so that one
subtraction serves all of them, and each compares 32 bits with a constant."""

from __future__ import annotations

from tessera.backends.gpu.lowering import FunctionLowering
from tessera.backends.gpu.writer import Writer, split, wrap
from tessera.dtypes import dtype, int32, int64
from tessera.ir import Value, elem_of
from tessera.ops import arith

SHARING = 4  # registers for each difference
REG32 = 32  # bits of a register
LEAST = -1 << (REG32 - 1)
NEAR = 1 << (REG32 - 2)  # registers' constants are below, so that no difference of two is LEAST


def shares_difference(fl: FunctionLowering, op: arith.CmpOp) -> bool:
    """Whether the registers of two integers, asked for equality, differ by known numbers for the most part."""
    elem = elem_of(op.lhs.type)
    if op.predicate not in ("eq", "ne") or not isinstance(elem, dtype) or not elem.is_int():
        return False
    names = [fl.get(v) for v in _sides(fl, op)]
    parts = [{split(fl.w.offsets, name) for name in row} for row in names]
    left, right = ({base for base, _ in row} for row in parts)
    few = SHARING * len(left) * len(right) <= max(map(len, names))
    near = all(abs(constant) < NEAR for row in parts for _, constant in row)
    return few and near and all(left) and all(right) and elem.bits in (REG32, 2 * REG32)


def compare_difference(fl: FunctionLowering, op: arith.CmpOp) -> None:
    """Lower a comparison whose registers share differences."""
    sides = _sides(fl, op)
    if elem_of(sides[0].type) is int64:
        sides.reverse()  # equality is symmetric; the narrower one first
    first, second = (fl.get(v) for v in sides)
    narrow = elem_of(sides[0].type) is not elem_of(sides[1].type)
    count = max(len(first), len(second))
    pairs = [(row if len(row) == count else row * count) for row in (first, second)]
    bits = elem_of(sides[1].type).storage_bits
    compare = _compare_narrow if narrow else _compare
    fl.set(
        op.result, [compare(fl.w, op.predicate, a, b, bits) for a, b in zip(*pairs, strict=True)]
    )


def _sides(fl: FunctionLowering, op: arith.CmpOp) -> list[Value]:
    """Return the operands; indices of 32 bits themselves where they were extended for a number of 64."""
    left, right = op.operands
    if len(set(fl.get(right))) == 1:
        return [_narrow(left), right]
    return [left, _narrow(right)] if len(set(fl.get(left))) == 1 else [left, right]


def _narrow(v: Value) -> Value:
    cast = v.op if elem_of(v.type) is int64 else None
    return cast.x if isinstance(cast, arith.CastOp) and elem_of(cast.x.type) is int32 else v


def _compare(w: Writer, predicate: str, a: str, b: str, bits: int) -> str:
    t = f"i{bits}"
    (base, constant), (other, more) = split(w.offsets, a), split(w.offsets, b)
    difference = w.pure(f"sub {t} {other}, {base}")
    if bits > REG32:
        low, fits = _low(w, difference)
        difference = w.pure(f"select i1 {fits}, i{REG32} {low}, i{REG32} {LEAST}")
    return _equals(w, predicate, difference, wrap(constant - more, bits))


def _compare_narrow(w: Writer, predicate: str, a: str, b: str, bits: int) -> str:
    base, constant = split(w.offsets, a)
    low, fits = _low(w, b)
    difference = w.pure(f"sub i{REG32} {low}, {base}")
    difference = w.pure(f"select i1 {fits}, i{REG32} {difference}, i{REG32} {LEAST}")
    return _equals(w, predicate, difference, constant)


def _low(w: Writer, x: str) -> tuple[str, str]:
    """Return the lower half of 64 bits, and whether it is all of the number."""
    low = w.pure(f"trunc i64 {x} to i{REG32}")
    return low, w.pure(f"icmp eq i64 {w.pure(f'sext i{REG32} {low} to i64')}, {x}")


def _equals(w: Writer, predicate: str, difference: str, constant: int) -> str:
    """LLVM does not see through `freeze`: it would take `label - column` for each column out of loops, and hold all
    these numbers."""
    difference = w.pure(f"freeze i{REG32} {difference}")
    return w.pure(f"icmp {predicate} i{REG32} {difference}, {constant}")
