"""Expresses scatters that machines have no atomic operation for by others, on elements of another type.

graph.scatter max into x: bf16
    →   k = graph.loop { x's element as an integer of the same order }
        m = graph.scatter max into k: int32
        graph.loop { m's element as a number }

Machines add floats, and add and compare integers of 32 and 64 bits. So maxima and minima of floats, which hand on a
NaN, are those of integers; small types are carried in 32 bits, where floats are rounded once, at the end. Machines that
add half types do it slowly where many elements meet in one place, and round each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tessera.dtypes import dtype, float32, int1, int32, int64
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.ops import ScatterOp
from tessera.graph.ir.scalars import Scalar, is_nan, where
from tessera.graph.ir.types import TensorType
from tessera.ir import Block, Module, Value, pass_
from tessera.ops import arith


@dataclass(frozen=True)
class Carrier:
    """How elements are carried: `mode` of the scatter, functions to their type and back."""

    mode: str
    to: Callable[[Scalar], Scalar]
    back: Callable[[Scalar], Scalar]


@pass_("graph-expand-scatters")
def expand_scatters(module: Module) -> None:
    """Express scatters of all functions by those that have atomic operations."""
    for function in module.functions:
        expand_scatters_of(function.regions[0])


def expand_scatters_of(body: Block) -> None:
    for op in list(body):
        if isinstance(op, ScatterOp):
            carrier = carrier_of(op.mode, op.base.type.elem)
            if carrier is not None:
                _carry(op, carrier)


def carrier_of(mode: str, elem: dtype) -> Carrier | None:
    """How a scatter's elements are carried; None for as they are."""
    if mode == "set":
        return None
    if elem == int1:
        mode = {"add": "max", "mul": "min"}.get(mode, mode)
        return Carrier(mode, lambda x: x.to(int32), lambda x: x.ne(0))
    if elem.is_floating():
        if mode in ("max", "min"):
            return _by_order(mode, elem)
        if elem.bits >= 32:
            return None
        return Carrier(mode, lambda x: x.to(float32), lambda x: x.to(elem))
    if elem.bits < 32:
        return Carrier(mode, lambda x: x.to(int32), lambda x: x.to(elem))
    return None


def _by_order(mode: str, elem: dtype) -> Carrier:
    """Floats as integers in the same order; a NaN wins."""
    kind = int64 if elem.bits == 64 else int32
    wide = elem if elem.bits >= 32 else float32
    most = (1 << (kind.bits - 1)) - 1
    winner = most if mode == "max" else -most - 1

    def turned(bits: Scalar) -> Scalar:
        return where(bits < 0, bits ^ most, bits)

    def to(x: Scalar) -> Scalar:
        x = x.to(wide)
        bits = x.emit(arith.BitcastOp(x.value, results=[kind]))
        return where(is_nan(x), winner, turned(bits))

    def back(x: Scalar) -> Scalar:
        number = x.emit(arith.BitcastOp(turned(x).value, results=[wide]))
        return where(x.eq(winner), float("nan"), number).to(elem)

    return Carrier(mode, to, back)


def _carry(op: ScatterOp, carrier: Carrier) -> None:
    t: TensorType = op.result.type
    g = GraphBuilder.before(op, t.device)

    def scalar(v: Value) -> Scalar:
        return Scalar(v, g.b)

    base = g.loop(t.shape, lambda *i: carrier.to(scalar(g.load(op.base, *i))).value)
    base.type = base.type.with_place(t)

    def body(*indices: Value) -> list[Value]:
        found = g.inlined(op.body, dict(zip(op.body.args, indices, strict=True)))
        found[t.rank] = carrier.to(scalar(found[t.rank])).value
        return found

    made = g.scatter(base, op.extents, body, carrier.mode)
    made.type = base.type
    found = g.loop(t.shape, lambda *i: carrier.back(scalar(g.load(made, *i))).value)
    found.type = t
    op.replace_by([found])
