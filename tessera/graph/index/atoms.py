"""Atoms of index expressions, and monomials of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tessera.graph.index.expr import Expr


@dataclass(frozen=True, slots=True)
class Dim:
    """The k-th operand of an index map, printed `d0`."""

    position: int

    def __str__(self) -> str:
        return f"d{self.position}"

    @property
    def key(self) -> tuple[int, int, str]:
        return (0, self.position, "")


@dataclass(frozen=True, slots=True)
class Sym:
    """A size that is an argument of the graph, printed by its name; positive unless its range says otherwise."""

    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def key(self) -> tuple[int, int, str]:
        return (1, 0, self.name)


@dataclass(frozen=True)
class Compound:
    """A function of two expressions that is no polynomial."""

    lhs: Expr
    rhs: Expr

    @cached_property
    def key(self) -> tuple[int, int, str]:
        return (2, 0, str(self))

    @cached_property
    def _hash(self) -> int:
        return hash((type(self), self.lhs, self.rhs))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class FloorDiv(Compound):
    """lhs // rhs, rounded down."""

    __hash__ = Compound.__hash__

    def __str__(self) -> str:
        return f"{self.lhs.operand_text()} // {self.rhs.operand_text()}"


@dataclass(frozen=True)
class Mod(Compound):
    """lhs % rhs, of the sign of rhs."""

    __hash__ = Compound.__hash__

    def __str__(self) -> str:
        return f"{self.lhs.operand_text()} % {self.rhs.operand_text()}"


@dataclass(frozen=True)
class Min(Compound):
    """The smaller of two."""

    __hash__ = Compound.__hash__

    def __str__(self) -> str:
        return f"min({self.lhs}, {self.rhs})"


@dataclass(frozen=True)
class Max(Compound):
    """The larger of two."""

    __hash__ = Compound.__hash__

    def __str__(self) -> str:
        return f"max({self.lhs}, {self.rhs})"


Atom = Dim | Sym | Compound
Monomial = tuple[tuple[Atom, int], ...]  # atoms with their powers, in the order of their keys


def order(term: tuple[Monomial, int]) -> tuple[Any, ...]:
    """Dimensions first, in their order, the constant last."""
    m = term[0]
    return (not m, [(a.key, p) for a, p in m])


def times(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda f: f[0].key))


def quotient(a: Monomial, b: Monomial) -> Monomial | None:
    """a / b, None where b does not divide it."""
    powers = dict(a)
    for atom, power in b:
        left = powers.pop(atom, 0) - power
        if left < 0:
            return None
        if left:
            powers[atom] = left
    return tuple(sorted(powers.items(), key=lambda f: f[0].key))


def greatest(terms: Iterable[tuple[Monomial, int]]) -> tuple[Monomial, int]:
    """The largest monomial that divides all terms, and the largest factor of their coefficients."""
    factor = 0
    powers: dict[Atom, int] | None = None
    for m, c in terms:
        factor = gcd(factor, c)
        here = dict(m)
        if powers is None:
            powers = here
        powers = {a: min(p, here[a]) for a, p in powers.items() if a in here}
    return tuple(sorted((powers or {}).items(), key=lambda f: f[0].key)), factor


def term_text(m: Monomial, coefficient: int, negated: bool) -> str:
    """A monomial with its positive coefficient, behind a sign perhaps."""
    factors = [a for a, power in m for _ in range(power)]
    if len(factors) == 1 and coefficient == 1 and not negated:
        return str(factors[0])
    parts = [f"({a})" if isinstance(a, FloorDiv | Mod) else str(a) for a in factors]
    if coefficient != 1 or not parts:
        parts.append(str(coefficient))
    return " * ".join(parts)
