"""Simplifies index expressions by the ranges of their atoms: every step is a proof that a remainder stays below its
divisor.

    ranges = Ranges.of_extents((sym("s0"), 128))          # 0 <= d0 < s0, 0 <= d1 < 128
    simplify((dim(0) * 128 + dim(1)) // 128, ranges)      →  d0
    is_nonnegative(sym("s0") - 1 - dim(0), ranges)        →  True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.graph.index.atoms import Atom, Compound, Dim, FloorDiv, Max, Min, Mod, Sym
from tessera.graph.index.expr import (
    Expr,
    atom_expr,
    common_factor,
    expr,
    floor_div,
    maximum,
    minimum,
    mod,
    split_multiples,
)

Bound = int | Expr
Range = tuple[Bound, Bound | None]
Found = tuple[Bound | None, Bound | None]


class Ranges:
    """The smallest and the largest value of atoms, both included; no largest: None. Bounds of dimensions may contain
    symbols. A symbol without a range is positive, a dimension without one is not negative."""

    def __init__(self, of: Mapping[Atom, Range] | None = None):
        self.of: dict[Atom, Found] = dict(of or {})
        self.simplified: dict[Expr, Expr] = {}
        self.signs: dict[Expr, bool] = {}

    @classmethod
    def of_extents(
        cls, extents: Sequence[Bound], symbols: Mapping[str, Range] | None = None
    ) -> Ranges:
        """Dimension k counts from 0 up to extents[k]; `symbols`: ranges by name."""
        found: dict[Atom, Range] = {Dim(k): (0, n - 1) for k, n in enumerate(extents)}
        found |= {Sym(name): r for name, r in (symbols or {}).items()}
        return cls(found)

    def range_of(self, atom: Atom) -> Found:
        """The bounds of an atom; None where nothing is known."""
        known = self.of.get(atom)
        if known is not None:
            return known
        if isinstance(atom, Compound):
            self.of[atom] = None, None  # a question that comes up while it is answered
            self.of[atom] = _compound_range(atom, self)
            return self.of[atom]
        return (1 if isinstance(atom, Sym) else 0), None


def _compound_range(atom: Compound, ranges: Ranges) -> Found:
    low_a, high_a = _extreme(atom.lhs, ranges, False), _extreme(atom.lhs, ranges, True)
    if isinstance(atom, FloorDiv | Mod):
        if not is_nonnegative(atom.rhs - 1, ranges):
            return None, None
        if isinstance(atom, Mod):
            return 0, _extreme(atom.rhs - 1, ranges, True)
        if not isinstance(atom.rhs.atom, Sym) and atom.rhs.value is None:
            return (0 if is_nonnegative(atom.lhs, ranges) else None), None
        low = None if low_a is None else low_a // atom.rhs
        return low, None if high_a is None else high_a // atom.rhs
    low_b, high_b = _extreme(atom.rhs, ranges, False), _extreme(atom.rhs, ranges, True)
    pick = minimum if isinstance(atom, Min) else maximum
    low = None if low_a is None or low_b is None else pick(low_a, low_b)
    high = None if high_a is None or high_b is None else pick(high_a, high_b)
    if isinstance(atom, Min):
        return low, high or high_a or high_b
    return low or low_a or low_b, high


def _extreme(e: Expr, ranges: Ranges, largest: bool) -> Expr | None:
    """A bound of `e` in terms of symbols alone: never below its largest (or above its smallest) value."""
    while True:
        atom = _next_atom(e)
        if atom is None:
            return e
        k = e.coefficient(atom)
        if k is None:
            return None
        up = is_nonnegative(k, ranges)
        if not up and not is_nonnegative(-k, ranges):
            return None
        bound = ranges.range_of(atom)[up == largest]
        if bound is None:
            return None
        e = _without(e, atom) + k * bound


def _without(e: Expr, atom: Atom) -> Expr:
    """The terms in which an atom is no factor."""
    return Expr({m: c for m, c in e.terms if all(a != atom for a, _ in m)})


def _next_atom(e: Expr) -> Atom | None:
    """The atom to be replaced by its bounds next: those of others may contain it."""
    dims: list[Atom] = []
    for atom in e.atoms():
        if isinstance(atom, Compound) and any(isinstance(a, Dim) for a in _leaves(atom)):
            return atom
        if isinstance(atom, Dim):
            dims.append(atom)
    return dims[0] if dims else None


def _leaves(atom: Compound) -> list[Dim | Sym]:
    return [*atom.lhs.leaves(), *atom.rhs.leaves()]


def is_nonnegative(e: Expr, ranges: Ranges) -> bool:
    """Whether `e >= 0` can be proved for all values within the ranges."""
    known = ranges.signs.get(e)
    if known is None:
        ranges.signs[e] = False  # a question that comes up while it is answered
        value = e.value
        known = value >= 0 if value is not None else _proved(e, ranges)
        ranges.signs[e] = known
    return known


def is_less(a: Expr | int, b: Expr | int, ranges: Ranges) -> bool:
    """Whether `a < b` can be proved."""
    return is_nonnegative(expr(b) - expr(a) - 1, ranges)


def _proved(e: Expr, ranges: Ranges) -> bool:
    low = _extreme(e, ranges, False)
    if low is None:
        return False
    # With each symbol as its smallest value plus something: no negative term may be left.
    shifted = low
    for atom in list(low.atoms()):
        smallest, largest = ranges.range_of(atom)
        k = shifted.coefficient(atom)
        falls = k is not None and all(c < 0 for _, c in k.terms) and k.terms
        if falls and k is not None and largest is not None and not expr(largest).syms:
            shifted = _without(shifted, atom) + k * largest
            continue
        if smallest is None or expr(smallest).value is None:
            return False
        shifted = _moved(shifted, atom, expr(smallest))
    return all(c >= 0 for _, c in shifted.terms)


def _moved(e: Expr, atom: Atom, by: Expr) -> Expr:
    """`e` with `atom + by` in place of a factor `atom`."""
    total = expr(0)
    for m, c in e.terms:
        term = Expr({tuple(f for f in m if f[0] != atom): c})
        for a, power in m:
            if a == atom:
                for _ in range(power):
                    term = term * (atom_expr(atom) + by)
        total = total + term
    return total


# --- simplification ---------------------------------------------------------------------------------------------
def simplify(e: Expr, ranges: Ranges) -> Expr:
    """An expression that is equal to `e` for all values within the ranges, with fewer divisions."""
    known = ranges.simplified.get(e)
    if known is None:
        known = e
        for _ in range(8):  # each step makes it smaller; this is a bound, not a goal
            new = _step(known, ranges)
            if new == known:
                break
            known = new
        ranges.simplified[e] = known
    return known


def _step(e: Expr, ranges: Ranges) -> Expr:
    if not e.has_compound:
        return e
    total = expr(0)
    for m, c in e.terms:
        term = expr(c)
        for atom, power in m:
            new = _simplify_atom(atom, ranges) if isinstance(atom, Compound) else atom_expr(atom)
            for _ in range(power):
                term = term * new
        total = total + term
    return total


def _simplify_atom(atom: Compound, ranges: Ranges) -> Expr:
    a, b = simplify(atom.lhs, ranges), simplify(atom.rhs, ranges)
    if isinstance(atom, Min | Max):
        first = is_nonnegative(b - a, ranges)
        if first or is_nonnegative(a - b, ranges):
            return a if first == isinstance(atom, Min) else b
        return minimum(a, b) if isinstance(atom, Min) else maximum(a, b)
    if not is_nonnegative(b - 1, ranges):
        return floor_div(a, b) if isinstance(atom, FloorDiv) else mod(a, b)
    inner = a.atom
    if isinstance(inner, FloorDiv) and isinstance(atom, FloorDiv):
        return floor_div(inner.lhs, inner.rhs * b)
    whole, rest = _quotient(a, b, ranges)
    for scale in _scales(rest, b):
        high, low = split_multiples(rest, scale)
        if _within(low, scale, ranges):
            over = split_multiples(b, scale)[0]
            if isinstance(atom, FloorDiv):
                return whole + floor_div(high, over)
            return scale * mod(high, over) + low
    if _within(rest, b, ranges):
        return whole if isinstance(atom, FloorDiv) else rest
    return whole + floor_div(rest, b) if isinstance(atom, FloorDiv) else mod(rest, b)


def _quotient(n: Expr, d: Expr, ranges: Ranges) -> tuple[Expr, Expr]:
    """(q, r) with n = d·q + r: division by the first term of a divisor that has several."""
    if len(d.terms) == 1:
        return split_multiples(n, d)
    lead = Expr(dict(d.terms[:1]))
    q, _ = split_multiples(n, lead)
    return q, n - d * q


def _within(e: Expr, bound: Expr, ranges: Ranges) -> bool:
    return is_nonnegative(e, ranges) and is_less(e, bound, ranges)


def _scales(n: Expr, d: Expr) -> list[Expr]:
    """Monomials that divide d and some term of n: the other terms may be small beside them. Larger ones first."""
    if len(d.terms) != 1:
        return []
    found = {common_factor(Expr({m: c}), d) for m, c in n.terms if m}
    return sorted((s for s in found if s != 1), key=lambda s: (-abs(s.terms[0][1]), str(s)))
