"""Emits index expressions as tile IR: what is the same in a whole program is computed once, as scalars.

    d1 * 128 + d0 + s0      →      add(splat(add(mul(d1, 128), s0)), d0)      where d0 is the only tile

Integers are of one type, int32 or int64, which the kernel's plan has proved to hold all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tessera.dtypes import dtype, int32
from tessera.graph.emit.tiles import Tiles
from tessera.graph.index import Dim, Expr, FloorDiv, Max, Min, Mod, Ranges, Sym, is_nonnegative
from tessera.ir import Block, Value, shape_of
from tessera.ops import arith

Leaf = Dim | Sym


class IndexCode:
    """Emits expressions. `leaf`: the value of an atom, a scalar or a tile; `ranges`: what is known of atoms."""

    def __init__(self, tiles: Tiles, leaf: Callable[[Leaf], Value], ranges: Ranges):
        self.tiles, self.leaf, self.ranges = tiles, leaf, ranges
        self._made: dict[tuple[Block | None, Expr, dtype], Value] = {}

    def value(self, e: Expr, elem: dtype = int32) -> Value:
        """The expression's value, an integer of type `elem`."""
        parts = self.parts(e, elem)
        return self._sum(parts)

    def parts(self, e: Expr, elem: dtype = int32) -> list[Value]:
        """Values whose sum is the expression: those that vary on the same axes are added up, scalars come first."""
        groups: dict[tuple[bool, ...], list[Value]] = {}
        constant = 0
        for monomial, coefficient in e.terms:
            if not monomial:
                constant = coefficient
                continue
            term = self._term(monomial, coefficient, elem)
            axes = tuple(n > 1 for n in shape_of(term.type))
            groups.setdefault(axes, []).append(term)
        if constant or not groups:
            groups.setdefault((), []).append(self.tiles.const(constant, elem))
        return [self._sum(groups[axes]) for axes in sorted(groups, key=lambda a: (sum(a), a))]

    def _sum(self, values: Iterable[Value]) -> Value:
        first, *rest = values
        for v in rest:
            first = self.tiles.add(first, v)
        return first

    def _term(
        self, monomial: tuple[tuple[object, int], ...], coefficient: int, elem: dtype
    ) -> Value:
        """A product: scalars are multiplied first."""
        key = (self.tiles.builder.block, Expr({monomial: coefficient}), elem)  # type: ignore[dict-item]
        found = self._made.get(key)
        if found is not None:
            return found
        factors = [self._atom(atom, elem) for atom, power in monomial for _ in range(power)]
        factors.sort(key=lambda v: len(shape_of(v.type)))
        if coefficient != 1:
            factors.insert(0, self.tiles.const(coefficient, elem))
        product, *rest = factors
        for v in rest:
            product = self.tiles.mul(product, v)
        self._made[key] = product
        return product

    def _atom(self, atom: object, elem: dtype) -> Value:
        if isinstance(atom, Dim | Sym):
            return self.tiles.cast(self.leaf(atom), elem)
        assert isinstance(atom, FloorDiv | Mod | Min | Max)
        a, b = self.value(atom.lhs, elem), self.value(atom.rhs, elem)
        if isinstance(atom, Min | Max):
            return self.tiles.binary(arith.MinOp if isinstance(atom, Min) else arith.MaxOp, a, b)
        exact = is_nonnegative(atom.lhs, self.ranges) and is_nonnegative(atom.rhs, self.ranges)
        if isinstance(atom, FloorDiv):
            return self.tiles.binary(arith.DivOp, a, b) if exact else self._floor(a, b, elem)
        return self.tiles.binary(arith.RemOp, a, b) if exact else self._modulo(a, b, elem)

    def _modulo(self, a: Value, b: Value, elem: dtype) -> Value:
        """The remainder of the sign of `b`; the op's has the sign of `a`."""
        t = self.tiles
        rest, zero = t.binary(arith.RemOp, a, b), t.const(0, elem)
        other = t.compare(t.binary(arith.XorOp, rest, b), "lt", zero)
        wrong = t.both(other, t.compare(rest, "ne", zero))
        assert wrong is not None
        return t.select(wrong, t.add(rest, b), rest)

    def _floor(self, a: Value, b: Value, elem: dtype) -> Value:
        """The quotient rounded down; the op rounds toward zero."""
        t = self.tiles
        return t.binary(arith.DivOp, t.binary(arith.SubOp, a, self._modulo(a, b, elem)), b)
