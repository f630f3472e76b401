"""Writes integers and addresses as polynomials in those values that the kernel does not compute by +, - and *.

    rows = pid * 128 + arange(0, 128)          128·pid + i₀
    ptr + rows[:, None] * stride + cols        ptr + 128·pid·stride + i₀·stride + i₁

`iₙ` is the index along dimension n of the tile. A value that a loop carries and changes by the same amount in each
iteration is a polynomial in the induction variable k: with `p += 64 * stride` in `range(0, n, 64)`, p₀ + k·stride.

An index that `% M`, `minimum` or `where` keeps below a bound M is a *limited* index along its dimension: it equals its
polynomial as long as that is less than M. Sums of signed int32 and int64 are assumed not to wrap, as addresses are (see
`wide_index`); unsigned ones are not followed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from tessera.dtypes import int32, int64, pointer_type
from tessera.ir import Block, Op, TileType, Value, elem_of, shape_of
from tessera.ops import arith, control, gpu, tile


@dataclass(frozen=True, slots=True)
class Along:
    """The index along dimension `dim`. `limited` (c, M): the coordinate equals the polynomial c of that index where
    c < M. Elsewhere it is c mod M if it `wraps`, and any number otherwise."""

    dim: int
    limited: tuple[Poly, Poly] | None = None
    wraps: bool = False


Atom = Value | Along


class Monomial(frozenset[tuple[Atom, int]]):
    """Factors with their powers, in insertion order. The order of a plain set depends on object addresses, and so would
    the code that is generated from it."""

    __slots__ = ("factors",)
    factors: tuple[tuple[Atom, int], ...]

    def __new__(cls, factors: Iterable[tuple[Atom, int]] = ()) -> Self:
        ordered = tuple(factors)
        made = super().__new__(cls, ordered)
        made.factors = ordered
        return made

    def __iter__(self) -> Iterator[tuple[Atom, int]]:
        return iter(self.factors)


ONE = Monomial()


class Poly:
    """A sum of monomials with integer coefficients."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[Monomial, int]):
        self.terms = {m: c for m, c in terms.items() if c}

    @classmethod
    def constant(cls, value: int) -> Poly:
        return cls({ONE: value})

    @classmethod
    def atom(cls, atom: Atom) -> Poly:
        return cls({Monomial([(atom, 1)]): 1})

    def __add__(self, other: Poly) -> Poly:
        terms = dict(self.terms)
        for m, c in other.terms.items():
            terms[m] = terms.get(m, 0) + c
        return Poly(terms)

    def __neg__(self) -> Poly:
        return Poly({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: Poly) -> Poly:
        return self + -other

    def __mul__(self, other: Poly) -> Poly:
        terms: dict[Monomial, int] = {}
        for a, x in self.terms.items():
            for b, y in other.terms.items():
                m = product(a, b)
                terms[m] = terms.get(m, 0) + x * y
        return Poly(terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __iter__(self) -> Iterator[Poly]:
        """Iterate over the monomials, each as a polynomial."""
        for m, c in self.terms.items():
            yield Poly({m: c})

    @property
    def atoms(self) -> list[Atom]:
        return list(dict.fromkeys(atom for m in self.terms for atom, _ in m))

    @property
    def value(self) -> int | None:
        """The number that a constant polynomial equals, else None."""
        return self.terms.get(ONE, 0) if self.terms.keys() <= {ONE} else None

    def over(self, divisor: Poly) -> Poly | None:
        """Return the quotient by a single monomial; None if it does not divide every term."""
        ((m, c),) = divisor.terms.items()
        terms: dict[Monomial, int] = {}
        for n, d in self.terms.items():
            rest = _without(n, m)
            if rest is None or d % c:
                return None
            terms[rest] = d // c
        return Poly(terms)

    def replaced(self, atom: Atom, by: Poly) -> Poly:
        """Return the polynomial with `by` in place of a factor."""
        total = Poly({})
        for m, c in self.terms.items():
            term = Poly({Monomial((a, n) for a, n in m if a != atom): c})
            for _ in range(dict(m).get(atom, 0)):
                term = term * by
            total += term
        return total

    def only(self, wanted: Callable[[Atom], bool]) -> Poly:
        """Return the monomials that have a factor for which `wanted` is true."""
        return Poly({m: c for m, c in self.terms.items() if any(wanted(a) for a, _ in m)})


def product(a: Monomial, b: Monomial) -> Monomial:
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    return Monomial(powers.items())


def _without(m: Monomial, factors: Monomial) -> Monomial | None:
    powers = dict(m)
    for atom, power in factors:
        left = powers.pop(atom, 0) - power
        if left < 0:
            return None
        if left:
            powers[atom] = left
    return Monomial(powers.items())


def is_index(atom: Atom) -> bool:
    return isinstance(atom, Along)


def along_one(p: Poly) -> tuple[int, Poly] | None:
    """Return (d, c) if a polynomial is the plain index along d plus a c that is uniform over the tile."""
    tilted = p.only(is_index)
    uniform = p - tilted
    atoms = tilted.atoms
    if len(atoms) != 1 or not isinstance(atoms[0], Along) or atoms[0].limited is not None:
        return None
    return (atoms[0].dim, uniform) if tilted == Poly.atom(atoms[0]) else None


def _followed(v: Value) -> bool:
    e = elem_of(v.type)
    return e is int32 or e is int64 or isinstance(e, pointer_type)


class Polynomials:
    """The polynomials of a function's values. A tile may have none; a scalar is at least an atom of its own."""

    def __init__(self, assumed: Mapping[Value, Poly] | None = None):
        self.known: dict[Value, Poly | None] = dict(assumed or {})
        self.assumed = dict(assumed or {})

    def of(self, v: Value) -> Poly | None:
        if v not in self.known:
            self.known[v] = self._whole(v)
        return self.known[v]

    def _whole(self, v: Value) -> Poly | None:
        found: Poly | None = None
        if _followed(v):
            found = self._of_op(v, v.op) if v.op is not None else self._of_argument(v)
        if found is None and not isinstance(v.type, TileType):
            found = Poly.atom(v)
        return found

    def _of_op(self, v: Value, op: Op) -> Poly | None:
        if isinstance(op, arith.ConstOp):
            return Poly.constant(int(op.value))
        if isinstance(op, arith.CastOp):
            return self.of(op.x) if elem_of(op.x.type) in (int32, int64) else None
        if isinstance(op, tile.SplatOp | tile.BroadcastOp | arith.HintOp | gpu.ConvertLayoutOp):
            return self.of(op.x)
        if isinstance(op, tile.ArangeOp):
            index = Poly.atom(Along(0)) if op.end - op.start > 1 else Poly.constant(0)
            return index + Poly.constant(op.start)
        if isinstance(op, arith.AddOp | arith.SubOp | arith.MulOp | arith.AddPtrOp):
            a, b = (self.of(x) for x in op.operands)
            if a is None or b is None:
                return None
            if isinstance(op, arith.MulOp):
                return a * b
            return a - b if isinstance(op, arith.SubOp) else a + b
        if isinstance(op, arith.NegOp):
            x = self.of(op.x)
            return -x if x is not None else None
        if isinstance(op, arith.ShlOp):
            x, by = self.of(op.lhs), self.of(op.rhs)
            bits = by.value if by is not None else None
            if x is None or bits is None or not 0 <= bits < 32:
                return None
            return x * Poly.constant(1 << bits)
        if isinstance(v.type, TileType):
            return self._of_tile(op)
        return None

    def _of_tile(self, op: Op) -> Poly | None:
        places = new_places(op)
        if places is not None:
            return moved(self.of(op.operands[0]), places)
        if isinstance(op, arith.RemOp):
            return self._limited(op.lhs, self.of(op.rhs), wraps=True)
        if isinstance(op, arith.MinOp):
            last = self.of(op.rhs)
            bound = last + Poly.constant(1) if last is not None else None
            return self._limited(op.lhs, bound, wraps=False)
        if isinstance(op, arith.SelectOp) and isinstance(op.condition.op, arith.CmpOp):
            test = op.condition.op
            if test.predicate == "lt" and self.of(test.lhs) == self.of(op.on_true):
                return self._limited(op.on_true, self.of(test.rhs), wraps=False)
        return None

    def _limited(self, x: Value, bound: Poly | None, wraps: bool) -> Poly | None:
        c = self.of(x)
        one = along_one(c) if c is not None else None
        if c is None or one is None or bound is None or any(map(is_index, bound.atoms)):
            return None
        return Poly.atom(Along(one[0], (c, bound), wraps))

    # --- what loops carry -----------------------------------------------------------------------------------
    def _of_argument(self, v: Value) -> Poly | None:
        loop = v.owner.parent if isinstance(v.owner, Block) else None
        if not isinstance(loop, control.ForOp) or v.index == 0:
            return None
        start, lb, step = (self.of(x) for x in (loop.inits[v.index - 1], loop.lb, loop.step))
        after = Polynomials({**self.assumed, v: Poly.atom(v)}).of(
            loop.body.terminator.operands[v.index - 1]
        )
        if start is None or after is None or lb is None or step is None or not step.value:
            return None
        change = after - Poly.atom(v)
        each = change.over(step)
        if each is None or any(varies(a, loop) for a in change.atoms):
            return None
        return start + (Poly.atom(loop.induction) - lb) * each


def varies(atom: Atom, loop: control.ForOp) -> bool:
    """Whether a factor may differ between iterations of a loop."""
    if isinstance(atom, Along):
        return True
    if atom.op is not None:
        return atom.op.is_inside(loop)
    inside = atom.owner.parent if isinstance(atom.owner, Block) else None
    return inside is loop or (inside is not None and inside.is_inside(loop))


def new_places(op: Op) -> list[int] | None:
    """Return where each dimension of the operand is in the result of an op that only permutes dimensions, or adds or
    drops those of extent 1; None for other ops."""
    if isinstance(op, tile.ExpandDimsOp):
        return [d + (d >= op.axis) for d in range(len(shape_of(op.x.type)))]
    if isinstance(op, tile.TransOp):
        return [op.order.index(d) for d in range(len(op.order))]
    if not isinstance(op, tile.ReshapeOp):
        return None
    old, new = shape_of(op.x.type), shape_of(op.result.type)
    if [n for n in old if n != 1] != [n for n in new if n != 1]:
        return None
    wide = (i for i, n in enumerate(new) if n != 1)
    return [next(wide) if n != 1 else 0 for n in old]


def moved(p: Poly | None, places: Sequence[int]) -> Poly | None:
    """Return the polynomial after dimension d has become dimension `places[d]`."""
    if p is None:
        return None
    terms: dict[Monomial, int] = {}
    for m, c in p.terms.items():
        if any(isinstance(a, Value) and isinstance(a.type, TileType) for a, _ in m):
            return None
        n = Monomial((_moved_atom(a, places), power) for a, power in m)
        terms[n] = terms.get(n, 0) + c
    return Poly(terms)


def _moved_atom(atom: Atom, places: Sequence[int]) -> Atom:
    if isinstance(atom, Value):
        return atom
    if atom.limited is None:
        return Along(places[atom.dim])
    inner = moved(atom.limited[0], places)
    assert inner is not None
    return replace(atom, dim=places[atom.dim], limited=(inner, atom.limited[1]))
