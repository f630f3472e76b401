"""Translates a kernel's integers into expressions that the host evaluates before a launch (analysis/intervals.py)."""

from __future__ import annotations

from typing import Any

from tessera.analysis.polynomials import Along, Poly, Polynomials
from tessera.dtypes import dtype
from tessera.ir import Block, Op, TileType, Value
from tessera.ops import arith, control, tile

_OPERATIONS: dict[type[Op], str] = {
    arith.AddOp: "add", arith.SubOp: "sub", arith.MulOp: "mul", arith.DivOp: "div", arith.RemOp: "rem",
    arith.MinOp: "min", arith.MaxOp: "max",
}  # fmt: skip
WIDEST = 64  # bits of the integers that the host computes with
VARYING = ("id", "loop", "hull", "least", "most", "distance", "word", "carried", "again")
MIRRORED = {"gt": "lt", "lt": "gt", "ge": "le", "le": "ge"}
# A true comparison bounds its left side: it is at least (or at most) the right side plus this number.
_BOUNDS = {"gt": ("least", 1), "ge": ("least", 0), "lt": ("most", -1), "le": ("most", 0)}


def _is_signed(v: Value) -> bool:
    return isinstance(v.type, dtype) and v.type.is_int() and v.type.signed


class HostCode:
    """The code of one function's scalars, with each distinct instruction once."""

    def __init__(self, func: control.FuncOp, code: tuple[Any, ...] = ()):
        self.func, self.code = func, list(code)
        self.numbers: dict[Any, int] = {x: i for i, x in enumerate(code)}
        self.found: dict[Value, int | None] = {}
        self.followed: set[Value] = set()  # values that are being translated, to end at cycles
        self.polynomials = Polynomials()

    def add(self, *instruction: object) -> int:
        if instruction not in self.numbers:
            self.numbers[instruction] = len(self.code)
            self.code.append(instruction)
        return self.numbers[instruction]

    def value(self, v: Value) -> int | None:
        """Return the number of a scalar's instruction; None if the host cannot even give its range."""
        if v not in self.found:
            if v in self.followed:
                return None
            self.followed.add(v)
            self.found[v] = self._of(v)
            self.followed.discard(v)
        return self.found[v]

    def _of(self, v: Value) -> int | None:
        if isinstance(v.type, TileType) or not isinstance(v.type, dtype) or not v.type.is_int():
            return self.add("arg", v.index) if v.owner is self.func.body else None
        op = v.op
        if op is None:
            return self._argument(v)
        if isinstance(op, arith.ConstOp):
            return self.add("const", int(op.value))
        if isinstance(op, tile.ProgramIdOp):
            return self.add("id", op.axis)
        if isinstance(op, tile.NumProgramsOp):
            return self.add("count", op.axis)
        if isinstance(op, tile.CtaRankOp):
            return self.add("hull", self.add("const", 0), self.add("const", op.ctas - 1))
        if isinstance(op, arith.HintOp):
            return self.value(op.x)
        if not v.type.signed or v.type.bits < 32:
            return None
        if isinstance(op, arith.CastOp):
            return self._built("fit", v.type.bits, op.x) if op.x.type.is_int() else None
        if isinstance(op, arith.SelectOp):
            return self._hull(op.on_true, op.on_false)
        if isinstance(op, control.IfOp):
            return self._hull(*[block.terminator.operands[v.index] for block in op.regions])
        if isinstance(op, control.WhileOp):
            return self.value(op.before.terminator.operands[1 + v.index])
        if isinstance(op, arith.AddOp) and (number := self._of_extreme(op)) is not None:
            return number
        if isinstance(op, arith.SubOp) and (number := self._of_remainder(op)) is not None:
            return number
        name = _OPERATIONS.get(type(op))
        return self._built(name, v.type.bits, *op.operands) if name is not None else None

    def _argument(self, v: Value) -> int | None:
        assert isinstance(v.owner, Block)
        loop = v.owner.parent
        if v.owner is self.func.body:
            return self.add("arg", v.index)
        if isinstance(loop, control.WhileOp):
            return self._before(loop, v) if v.owner is loop.before else self._after(loop, v)
        if not isinstance(loop, control.ForOp):
            return None
        if v.index == 0:
            bounds = [self.value(x) for x in (loop.lb, loop.ub, loop.step)]
            return self.add("loop", *bounds) if None not in bounds else None
        p = self.polynomials.of(v)
        return self.poly(p) if p is not None and v not in p.atoms else None

    # --- what a while loop carries --------------------------------------------------------------------------
    def _before(self, loop: control.WhileOp, v: Value) -> int | None:
        """Return the instruction of a loop-carried value at the time the condition is evaluated."""
        t: Any = v.type
        if not t.signed or t.bits < 32:
            return None
        first = self.value(loop.inits[v.index])
        if first is None:
            first = self.add("word", t.bits)
        number = self.add("carried", first, t.bits, len(self.code))
        self.found[v] = number
        followed, self.followed = self.followed, set()  # `found[v]` ends the recursion from here on
        following = self.value(loop.after.terminator.operands[v.index])
        self.followed = followed
        if following is None:
            following = self.add("word", t.bits)
        self.add("again", number, following)
        return number

    def _after(self, loop: control.WhileOp, v: Value) -> int | None:
        """Return the instruction of a value while the condition holds."""
        condition, *handed = loop.before.terminator.operands
        number = self.value(handed[v.index])
        return self._where(condition, handed[v.index], number) if number is not None else None

    def _where(self, condition: Value, v: Value, number: int) -> int:
        """Return the instruction of a value, narrowed by a condition that holds."""
        op = condition.op
        if isinstance(op, arith.AndOp):
            return self._where(op.rhs, v, self._where(op.lhs, v, number))
        if not isinstance(op, arith.CmpOp):
            return number
        pairs = ((op.lhs, op.rhs, op.predicate), (op.rhs, op.lhs, MIRRORED.get(op.predicate, "")))
        for x, y, predicate in pairs:
            kind = _BOUNDS.get(predicate)
            bound = self.value(y) if x is v and kind is not None and _is_signed(y) else None
            if bound is not None and kind is not None:
                name, more = kind
                return self.add(
                    name, number, self.add("add", bound, self.add("const", more), WIDEST)
                )
        return number

    def _of_extreme(self, op: arith.AddOp) -> int | None:
        """Write x + max(a, b) as max(x + a, x + b), if terms of the sums cancel each other."""
        for x, y in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            if isinstance(y.op, arith.MaxOp | arith.MinOp):
                p, *pair = [self.polynomials.of(v) for v in (x, *y.op.operands)]
                sums = [p + q for q in pair if p is not None and q is not None]
                terms = sum(len(q.terms) for q in (p, *pair) if q is not None)
                if p is not None and sum(len(q.terms) for q in sums) < terms + len(p.terms) - 1:
                    numbers = [self.poly(q) for q in sums]
                    if None not in numbers:
                        return self.add(_OPERATIONS[type(y.op)], *numbers, op.result.type.bits)
        return None

    def _of_remainder(self, op: arith.SubOp) -> int | None:
        """Write x - y // z * z as x - y + y % z."""
        product = op.rhs.op
        if not isinstance(product, arith.MulOp):
            return None
        for quotient, z in (product.operands, product.operands[::-1]):
            division = quotient.op
            if isinstance(division, arith.DivOp) and division.rhs is z:
                x, y = self.polynomials.of(op.lhs), self.polynomials.of(division.lhs)
                rest = self._built("rem", op.result.type.bits, division.lhs, z)
                more = self.poly(x - y) if x is not None and y is not None else None
                if rest is not None and more is not None:
                    return self.add("add", rest, more, op.result.type.bits)
        return None

    def _built(self, name: str, bits: int, *operands: Value) -> int | None:
        numbers = [self.value(x) for x in operands]
        return self.add(name, *numbers, bits) if None not in numbers else None

    def _hull(self, a: Value, b: Value) -> int | None:
        numbers = [self.value(a), self.value(b)]
        return self.add("hull", *numbers) if None not in numbers else None

    def poly(self, p: Poly) -> int | None:
        total: int | None = None
        for m, c in p.terms.items():
            term = self.add("const", c)
            for atom, power in sorted(m, key=lambda f: str(self._rank(f[0]))):
                number = self._rank(atom)
                if number is None:
                    return None
                for _ in range(power):
                    term = self.add("mul", term, number, WIDEST)
            total = term if total is None else self.add("add", total, term, WIDEST)
        return total if total is not None else self.add("const", 0)

    def _rank(self, atom: Value | Along) -> int | None:
        return self.value(atom) if isinstance(atom, Value) else None

    def exact(self, number: int) -> bool:
        """Whether the expression has the same value in all programs and iterations."""
        kind, *rest = self.code[number]
        if kind in ("arg", "const", "count"):
            return True
        if kind in VARYING:
            return False
        return all(self.exact(i) for i in rest[:-1])
