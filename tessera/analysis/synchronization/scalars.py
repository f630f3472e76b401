"""Computes the scalars of one run that decide which path a program takes and which buffer it uses, but not its data.

Arguments, program ids and loaded values are small numbers that a seed chooses. Two roles that compute a scalar in the
same way get the same number: a load's depends on its address, that of an op not modelled here on its operands. A
scalar made from a tile (a sum, an old value of an atomic) is chosen anew each time."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from tessera import ops
from tessera.dtypes import dtype, pointer_type
from tessera.ir import Effect, Op, TileType, Type, Value

ADDRESSES = 1 << 40  # between the arrays that arguments point to
POINTER_MASK = (1 << 64) - 1  # pointers wrap as 64-bit integers do
SIZES = (0, 1, 2, 3, 5, 8, 16, 33, 64, 100, 128, 192, 256, 300, 384, 512)
COUNTS = (1, 2, 3, 4, 5, 8)
Scalar = int | float


def wrapped(value: Scalar, t: Type) -> Scalar:
    """Return a number wrapped to the range of its type."""
    if isinstance(t, pointer_type):
        return int(value) & POINTER_MASK
    if not isinstance(t, dtype) or t.is_floating():
        return float(value)
    value = int(value) & ((1 << t.bits) - 1)
    return value - (1 << t.bits) if t.signed and t.bits > 1 and value >> (t.bits - 1) else value


def _div(a: Scalar, b: Scalar) -> Scalar:
    if not b:
        return 0
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _rem(a: Scalar, b: Scalar) -> Scalar:
    return a - _div(a, b) * b if b and not isinstance(a, float) else 0


def _shift(how: Callable[[int, int], int]) -> Callable[[Scalar, Scalar], Scalar]:
    return lambda a, b: how(int(a), int(b) & 63)


BINARY: dict[type[Op], Callable[[Any, Any], Any]] = {
    ops.AddOp: operator.add, ops.SubOp: operator.sub, ops.MulOp: operator.mul, ops.DivOp: _div, ops.RemOp: _rem,
    ops.AndOp: lambda a, b: int(a) & int(b), ops.OrOp: lambda a, b: int(a) | int(b),
    ops.XorOp: lambda a, b: int(a) ^ int(b), ops.ShlOp: _shift(lambda a, b: a << b),
    ops.ShrOp: _shift(lambda a, b: a >> b), ops.MinOp: min, ops.MaxOp: max,
}  # fmt: skip
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
SAME = (ops.HintOp, ops.CastOp, ops.BitcastOp)


@dataclass(slots=True)
class World:
    """What a run gets from outside: `size` is the value of integer arguments where `seed` does not choose others."""

    seed: int
    size: int
    programs: int = 3
    ctas: int = 2
    visits: dict[Op, int] = field(default_factory=lambda: {})

    def chance(self, *what: object) -> int:
        """Return a number that depends on the seed and `what` only."""
        return crc32(repr((self.seed, *what)).encode())

    def argument(self, number: int, t: Type) -> Scalar:
        if isinstance(t, pointer_type):
            return (number + 1) * ADDRESSES
        if isinstance(t, dtype) and not t.is_floating():
            if t.bits == 1:
                return self.chance("flag", number) & 1
            kind, which = self.chance("kind", number) % 4, self.chance("size", number)
            if self.seed and kind < 2:
                few = COUNTS if kind else SIZES
                return wrapped(few[which % len(few)], t)
            return wrapped(self.size, t)
        return 0.5

    def found(self, t: Type, *what: object) -> Scalar:
        """Return something of type `t` that is read or computed elsewhere."""
        x = self.chance(*what)
        if isinstance(t, pointer_type):
            return ADDRESSES * (100 + x % 50)
        if isinstance(t, dtype) and not t.is_floating():
            return x & 1 if t.bits == 1 else wrapped(SIZES[x % len(SIZES)], t)
        return float(x % 5 - 1)

    def anew(self, op: Op, t: Type) -> Scalar:
        """Return a fresh value each time an op runs."""
        self.visits[op] = self.visits.get(op, 0) + 1
        return self.found(t, op.opcode, str(op.loc), self.visits[op])


def evaluate(op: Op, env: dict[Value, Any], world: World) -> list[Scalar]:
    """Return the scalar results of an op whose scalar operands are in `env`."""
    kind = type(op)
    t = op.results[0].type
    if isinstance(op, ops.ConstOp):
        return [op.value]
    if kind in BINARY:
        a, b = op.operands
        return [wrapped(BINARY[kind](env[a], env[b]), t)]
    if isinstance(op, ops.CmpOp):
        return [int(COMPARE[op.predicate](env[op.lhs], env[op.rhs]))]
    if isinstance(op, ops.SelectOp):
        return [env[op.on_true] if env[op.condition] else env[op.on_false]]
    if isinstance(op, ops.AddPtrOp):
        return [wrapped(env[op.ptr] + env[op.offset] * _size(op.ptr.type), t)]
    if isinstance(op, SAME):
        return [_cast(env[op.operands[0]], t)]
    if isinstance(op, ops.NegOp | ops.AbsOp):
        x = env[op.x]
        return [wrapped(-x if isinstance(op, ops.NegOp) else abs(x), t)]
    return _outside(op, env, world)


def _cast(x: Scalar, t: Type) -> Scalar:
    if isinstance(t, dtype) and t.bits == 1:
        return int(x != 0)
    return wrapped(0 if x != x or x in (float("inf"), float("-inf")) else x, t)


def _size(t: pointer_type) -> int:
    return max(1, getattr(t.element_ty, "storage_bytes", 8))


def _outside(op: Op, env: dict[Value, Any], world: World) -> list[Scalar]:
    t = op.results[0].type
    if isinstance(op, ops.ProgramIdOp):
        return [world.chance("program", op.axis) % world.programs]
    if isinstance(op, ops.NumProgramsOp):
        return [world.programs]
    if isinstance(op, ops.CtaIdOp):
        return [world.chance("block") % world.ctas]
    if isinstance(op, ops.NumCtasOp):
        return [world.ctas]
    if isinstance(op, ops.CtaRankOp):
        return [0]
    tiles = any(isinstance(v.type, TileType) for v in op.operands)
    if isinstance(op, ops.LoadOp) and not op.volatile and not tiles:
        return [world.found(t, "load", env[op.ptr])]
    if tiles or op.effects is not Effect.NONE or op.regions:
        return [world.anew(op, r.type) for r in op.results]
    given = [env.get(v) for v in op.operands]
    return [world.found(r.type, op.opcode, i, given) for i, r in enumerate(op.results)]
