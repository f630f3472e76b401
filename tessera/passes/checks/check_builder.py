"""Builds the conditions and the reports of checks, which refer to values by the names in the kernel's source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.dtypes import dtype, float32, int1, pointer_type
from tessera.ir import Block, Builder, Op, TileType, Value, elem_of, shape_of, with_elem
from tessera.ir.types import Type
from tessera.ops import arith, control, memory, tile

_SHOWN_STEPS = 6  # ops followed back from an address
_SHAPED = (tile.BroadcastOp, tile.ExpandDimsOp, tile.ReshapeOp, tile.TransOp)
_SAME_VALUE = (arith.CastOp, arith.HintOp, tile.SplatOp, *_SHAPED)


def _name(v: Value) -> str:
    while not v.name and isinstance(v.op, _SAME_VALUE):
        v = v.op.operands[0]
    if v.name:
        return f"`{v.name}`"
    if isinstance(v.op, arith.ConstOp):
        return "a constant"
    return f"the operand from `{v.op.opcode}`" if v.op is not None else "an argument"


def named_inputs(b: CheckBuilder, values: Sequence[Value], like: Type) -> list[Value]:
    """Return the named values that `values` are computed from, in the shape of `like`.

    A result without a name is replaced by its operands; constants are left out.
    """
    found: dict[str, Value] = {}

    def visit(v: Value, shaped: tuple[Op, ...], depth: int) -> None:
        while isinstance(v.op, tile.SplatOp):
            v = v.op.operands[0]
        op, label = v.op, _name(v)
        inner = op.operands if isinstance(op, (arith.Elementwise, *_SAME_VALUE)) else []
        if label.startswith("`") or not inner or depth == _SHOWN_STEPS:
            if label not in found and (
                v.name or not isinstance(op, (arith.ConstOp, tile.ProgramIdOp))
            ):
                found[label] = b.shaped(v, shaped, like)
            return
        assert op is not None
        for x in inner:
            visit(x, (op, *shaped) if isinstance(op, _SHAPED) else shaped, depth + 1)

    for v in values:
        visit(v, (), 0)
    return list(found.values())


def result_name(op: Op) -> str:
    name = op.results[0].name if op.results else ""
    return f"`{name}`" if name else f"the result of `{op.opcode}`"


class CheckBuilder(Builder):
    """A builder with the combinations of ops that conditions need."""

    __slots__ = ()

    def constant(self, value: float, like: Type) -> Value:
        return self.emit(arith.ConstOp(value=value, results=[like]))

    def compare(self, predicate: str, a: Value, b: Value | float) -> Value:
        other = b if isinstance(b, Value) else self.constant(b, a.type)
        return self.emit(arith.CmpOp(a, other, predicate=predicate))

    def both(self, a: Value, *others: Value) -> Value:
        for b in others:
            a = self.emit(arith.AndOp(a, b))
        return a

    def either(self, a: Value, *others: Value) -> Value:
        for b in others:
            a = self.emit(arith.OrOp(a, b))
        return a

    def negated(self, bit: Value) -> Value:
        return self.emit(arith.XorOp(bit, self.constant(True, bit.type)))

    def cast(self, v: Value, to: dtype) -> Value:
        if elem_of(v.type) == to:
            return v
        return self.emit(arith.CastOp(v, results=[with_elem(v.type, to)]))

    def spread(self, v: Value, like: Type) -> Value:
        """Return a scalar splatted to the shape of `like`."""
        if not isinstance(like, TileType) or isinstance(v.type, TileType):
            return v
        return self.emit(tile.SplatOp(v, results=[TileType(like.shape, v.type)]))

    def shaped(self, v: Value, ops: Sequence[Op], like: Any) -> Value:
        """Apply changes of shape to a tile, then broadcast it to the shape of `like`; return a scalar as it is."""
        for op in ops if shape_of(v.type) else ():
            new = op.clone({op.operands[0]: v})
            new.result.type = with_elem(op.result.type, elem_of(v.type))
            v = self.insert(new).result
        have, wanted = shape_of(v.type), shape_of(like)
        stretches = len(have) == len(wanted) and all(
            n in (1, m) for n, m in zip(have, wanted, strict=True)
        )
        if have == wanted or not stretches:
            return v
        return self.emit(tile.BroadcastOp(v, results=[TileType(like.shape, elem_of(v.type))]))

    def magnitude(self, v: Value) -> Value:
        narrow = elem_of(v.type).bits < 32
        return self.emit(arith.AbsOp(self.cast(v, float32) if narrow else v))

    def everywhere(self, bits: Value, op: type[arith.Binary]) -> Value:
        """Return all elements of an int1 tile combined by `op` (and, or)."""
        shape = shape_of(bits.type)
        if not shape:
            return bits
        if len(shape) > 1:
            n = 1
            for s in shape:
                n *= s
            bits = self.emit(tile.ReshapeOp(bits, results=[TileType((n,), int1)]))
        combine = Block([int1, int1])
        end = Builder(combine)
        end.insert(control.YieldOp([end.emit(op(*combine.args))]))
        return self.emit(tile.ReduceOp([bits], axis=0, regions=[combine]))


def report(
    b: CheckBuilder, kind: str, bad: Value, message: str, shown: Sequence[Value], facts: Sequence[Value] = ()
) -> None:  # fmt: skip
    numbers = [
        v for v in dict.fromkeys(shown) if isinstance(elem_of(v.type), (dtype, pointer_type))
    ]
    labels = tuple(_name(v) for v in numbers)
    b.insert(memory.CheckOp(bad, [*facts, *numbers], kind=kind, message=message, labels=labels))
