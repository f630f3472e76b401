"""Axis facts: how the elements of a tile run along each dimension.

For every integer or pointer value and each dimension d (a scalar counts as one dimension of extent 1):

- contiguity[d]   n: the tile splits along d into aligned runs of n elements, each run counting up by 1
                  (pointers: by one element);
- divisibility[d] the largest known power of two that divides the first element of each such run (pointers: bytes);
- constancy[d]    n: aligned runs of n elements are all equal.

Example: `offs = pid * 1024 + arange(0, 1024)` has contiguity 1024 and divisibility 1024: a run starts at a multiple
of 1024. `ptr + offs` with a 16-byte-aligned `ptr` to fp32 has contiguity 1024 and divisibility 16 (bytes), so vectors
of 4 elements may be loaded. `offs < n` with n divisible by 16 has constancy 16: a vector of 4 is masked as a whole.

Rules for quotients and remainders keep runs only where the dividend is known to be non-negative (see sign.py).
Facts of loop-carried values are found by assuming the initial value's facts and joining until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from tessera.analysis.axis_facts import (
    TOP,
    AxisFacts,
    nothing_known,
    power_of_two_part,
    uniform,
    unit_of,
)
from tessera.analysis.axis_rules import TRANSFER
from tessera.analysis.sign import Signs
from tessera.dtypes import dtype, pointer_type
from tessera.ir import Block, Op, Type, Value, elem_of
from tessera.ops import control

__all__ = ["TOP", "AxisAnalysis", "AxisFacts", "power_of_two_part"]


def _interesting(t: Type) -> bool:
    e = elem_of(t)
    return isinstance(e, pointer_type) or (isinstance(e, dtype) and e.is_int())


class AxisAnalysis:
    """Facts about all values of a function, computed by the constructor."""

    def __init__(self, func: control.FuncOp):
        self.table: dict[Value, AxisFacts] = {}
        self.signs = Signs()
        for value, attrs in zip(
            func.body.args, func.arg_attrs or ((),) * len(func.body.args), strict=True
        ):
            d = dict(attrs).get("divisibility", 1)
            self.table[value] = uniform(value.type, d)
        self._block(func.body)

    def facts(self, v: Value) -> AxisFacts:
        return self.table.get(v) or nothing_known(v.type)

    # --- what consumers ask -------------------------------------------------------------------------------
    def vector_width(self, ptr: Value, axis: int) -> int:
        """Return how many elements along `axis` an aligned access may cover, by the pointer's contiguity and
        alignment."""
        f = self.facts(ptr)
        size = elem_of(ptr.type).element_ty.storage_bytes
        return max(1, gcd(f.contiguity[axis], max(f.divisibility[axis] // size, 1)))

    def mask_width(self, mask: Value | None, axis: int) -> int:
        """Return the length of the aligned runs along `axis` in which the mask is uniform; TOP without a mask."""
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
                self.table[r] = self.facts(a).join(self.facts(b), unit_of(r.type))
        else:
            for block in op.regions:
                self._block(block)
            rule = TRANSFER.get(type(op))
            if rule is not None and op.results and _interesting(op.results[0].type):
                self.table[op.results[0]] = rule(self, op)

    def _fixpoint(
        self, carried: Sequence[Value], inits: Sequence[Value], body: Callable[[], Sequence[Value]]
    ) -> None:
        current = [self.facts(v) for v in inits]
        while True:
            for arg, f in zip(carried, current, strict=True):
                self.table[arg] = f
            after = [self.facts(v) for v in body()]
            joined = [
                a.join(b, unit_of(v.type)) for a, b, v in zip(current, after, carried, strict=True)
            ]
            if joined == current:
                return
            current = joined

    def _for(self, op: control.ForOp) -> None:
        lb, step = self.facts(op.lb), self.facts(op.step)
        d = gcd(lb.divisibility[0], step.divisibility[0])
        self.table[op.induction] = uniform(op.lb.type, d)

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
