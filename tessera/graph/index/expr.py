"""Integer expressions over index dimensions and symbolic sizes, normalised when they are made.

    row, col = dim(0), dim(1)
    (row * 4 + col) // 4                →  d0 + d1 // 4
    row // 4 * 4 + row % 4              →  d0
    sym("s0") * 2 + 1                   →  s0 * 2 + 1

An expression is a polynomial with integer coefficients; its atoms are dimensions, symbols, and the floor division,
remainder, smaller or larger of two expressions. `//` and `%` round down, as Python's do. Equal polynomials are equal
objects: compare with `==`, hash freely. What holds only within ranges of the atoms is the business of `ranges.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from tessera.graph.index.atoms import (
    Atom,
    Compound,
    Dim,
    FloorDiv,
    Max,
    Min,
    Mod,
    Monomial,
    Sym,
    greatest,
    order,
    quotient,
    term_text,
    times,
)


class Expr:
    """A normalised expression. `terms`: each monomial with its coefficient, none of them 0."""

    __slots__ = ("_compound", "_hash", "_text", "terms")

    def __init__(self, terms: Mapping[Monomial, int]):
        kept = [(m, c) for m, c in terms.items() if c]
        if len(kept) > 1:
            kept.sort(key=order)
        self.terms: tuple[tuple[Monomial, int], ...] = tuple(kept)
        value = self.value
        self._hash = hash(self.terms) if value is None else hash(value)
        self._text = ""
        self._compound: bool | None = None

    # --- what it is -----------------------------------------------------------------------------------------
    @property
    def value(self) -> int | None:
        """The number that it is, if it is one."""
        terms = self.terms
        if not terms:
            return 0
        return terms[0][1] if len(terms) == 1 and not terms[0][0] else None

    @property
    def has_compound(self) -> bool:
        """Whether one of its atoms is a function of expressions."""
        if self._compound is None:
            self._compound = any(isinstance(a, Compound) for m, _ in self.terms for a, _ in m)
        return self._compound

    @property
    def atom(self) -> Atom | None:
        """The atom that it is, if it is one."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            ((atom, power),) = self.terms[0][0]
            return atom if power == 1 else None
        return None

    def atoms(self) -> Iterator[Atom]:
        """The atoms of its monomials, each once; not those inside of compound ones."""
        yield from dict.fromkeys(atom for m, _ in self.terms for atom, _ in m)

    def leaves(self) -> Iterator[Dim | Sym]:
        """The dimensions and symbols in it at any depth; some may come twice."""
        for atom in self.atoms():
            if isinstance(atom, Compound):
                yield from atom.lhs.leaves()
                yield from atom.rhs.leaves()
            else:
                yield atom

    @property
    def dims(self) -> frozenset[int]:
        """The positions of the dimensions in it."""
        return frozenset(a.position for a in self.leaves() if isinstance(a, Dim))

    @property
    def syms(self) -> frozenset[str]:
        """The names of the symbols in it."""
        return frozenset(a.name for a in self.leaves() if isinstance(a, Sym))

    def coefficient(self, atom: Atom) -> Expr | None:
        """What a linear occurrence of an atom is multiplied by; 0 where it does not occur, None where it occurs to
        a higher power or inside of another atom."""
        terms: dict[Monomial, int] = {}
        for m, c in self.terms:
            for a, power in m:
                inside = isinstance(a, Compound) and atom in (*a.lhs.leaves(), *a.rhs.leaves())
                if inside or (a == atom and power > 1):
                    return None
            if any(a == atom for a, _ in m):
                terms[tuple((a, p) for a, p in m if a != atom)] = c
        return Expr(terms)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Expr):
            return self is other or (self._hash == other._hash and self.terms == other.terms)
        return isinstance(other, int) and self.value == other

    def __hash__(self) -> int:
        return self._hash

    # --- arithmetic -------------------------------------------------------------------------------------------
    def __add__(self, other: Expr | int) -> Expr:
        other = expr(other)
        terms = dict(self.terms)
        for m, c in other.terms:
            terms[m] = terms.get(m, 0) + c
        return Expr(_recombined(terms) if self.has_compound or other.has_compound else terms)

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return Expr({m: -c for m, c in self.terms})

    def __sub__(self, other: Expr | int) -> Expr:
        return self + -expr(other)

    def __rsub__(self, other: Expr | int) -> Expr:
        return -self + other

    def __mul__(self, other: Expr | int) -> Expr:
        other = expr(other)
        for a, b in ((self, other), (other, self)):
            factor = a.value
            if factor is not None:  # what was recombined stays so
                return b if factor == 1 else Expr({m: c * factor for m, c in b.terms})
        terms: dict[Monomial, int] = {}
        for a, x in self.terms:
            for b, y in other.terms:
                m = times(a, b)
                terms[m] = terms.get(m, 0) + x * y
        return Expr(_recombined(terms) if self.has_compound or other.has_compound else terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Expr | int) -> Expr:
        return floor_div(self, expr(other))

    def __rfloordiv__(self, other: Expr | int) -> Expr:
        return floor_div(expr(other), self)

    def __mod__(self, other: Expr | int) -> Expr:
        return mod(self, expr(other))

    def __rmod__(self, other: Expr | int) -> Expr:
        return mod(expr(other), self)

    # --- values -------------------------------------------------------------------------------------------------
    def compute(self, leaf: Callable[[Dim | Sym], Any]) -> Any:
        """Its value where dimensions and symbols are what `leaf` says: ints, NumPy arrays or expressions."""
        total: Any = None  # what is one number is that very number, as those of jagged sizes, which add up to nothing
        for m, c in self.terms:
            term: Any = c
            for atom, power in m:
                value = _value(atom, leaf)
                for _ in range(power):
                    term = value * term
            total = term if total is None else term + total
        return 0 if total is None else total

    def subs(self, mapping: Mapping[Atom, Expr | int]) -> Expr:
        """With other expressions in place of dimensions and symbols."""
        if not mapping:
            return self
        return expr(self.compute(lambda a: expr(mapping[a]) if a in mapping else atom_expr(a)))

    def evaluate(self, env: Mapping[Any, Any]) -> Any:
        """Its value where `env` gives that of each dimension and symbol (ints or NumPy arrays that broadcast).

        >>> (dim(0) * sym("s0")).evaluate({Dim(0): 3, Sym("s0"): 5})
        15
        """
        return self.compute(env.__getitem__)

    # --- text -------------------------------------------------------------------------------------------------
    def __str__(self) -> str:
        if not self._text:
            text = ""
            for m, c in self.terms:
                sign = ("-" if c < 0 else "") if not text else (" - " if c < 0 else " + ")
                text += sign + term_text(m, abs(c), sign == "-")
            self._text = text or "0"
        return self._text

    def operand_text(self) -> str:
        """As an operand of `*`, `//` and `%`."""
        text = str(self)
        simple = self.value is not None or isinstance(self.atom, Dim | Sym | Min | Max)
        return text if simple and text[0] != "-" else f"({text})"

    def __repr__(self) -> str:
        return f"<{self}>"

    def text(self) -> str:
        """As an attribute of an op."""
        return f"size<{self}>"


# --- how they are made --------------------------------------------------------------------------------------------
@lru_cache(maxsize=4096)
def atom_expr(atom: Atom) -> Expr:
    return Expr({((atom, 1),): 1})


def dim(position: int) -> Expr:
    """The k-th operand of a map."""
    return atom_expr(Dim(position))


def sym(name: str) -> Expr:
    """A symbolic size."""
    return atom_expr(Sym(name))


def expr(x: Expr | int) -> Expr:
    """An integer as an expression; an expression as it is."""
    return x if isinstance(x, Expr) else _constant(int(x))


@lru_cache(maxsize=1024)
def _constant(x: int) -> Expr:
    return Expr({(): x})


def size(x: Expr | int) -> int | Expr:
    """A size as types have it: an int if it is one, else an expression."""
    if not isinstance(x, Expr):
        return int(x)
    value = x.value
    return x if value is None else value


@lru_cache(maxsize=1 << 14)
def floor_div(n: Expr, d: Expr) -> Expr:
    """n // d. Multiples of d come out: floor((d·a + b) / d) is a + floor(b / d)."""
    if d.value == 0:
        raise ZeroDivisionError(f"({n}) // 0")
    if d == 1:
        return n
    if len(d.terms) != 1:
        return expr(1) if n == d else _div_atom(n, d)
    whole, rest = split_multiples(n, d)
    if not rest.terms:
        return whole
    rest, d = _reduced(rest, d)
    return whole + rest if d.value == 1 else whole + _div_atom(rest, d)


@lru_cache(maxsize=1 << 14)
def mod(n: Expr, d: Expr) -> Expr:
    """n % d. Multiples of d go; what divides both comes out: (g·a) % (g·b) is g·(a % b)."""
    if d.value == 0:
        raise ZeroDivisionError(f"({n}) % 0")
    if d == 1 or n == d:
        return expr(0)
    if len(d.terms) != 1:
        return _mod_atom(n, d)
    _, rest = split_multiples(n, d)
    if not rest.terms:
        return rest
    a, b = _reduced(rest, d)
    common = expr(1) if b == d else split_multiples(d, b)[0]
    return common * _mod_atom(a, b)


def minimum(a: Expr | int, b: Expr | int) -> Expr:
    """The smaller of two."""
    return _extremum(Min, min, expr(a), expr(b))


def maximum(a: Expr | int, b: Expr | int) -> Expr:
    """The larger of two."""
    return _extremum(Max, max, expr(a), expr(b))


def _extremum(kind: type[Compound], fn: Callable[[int, int], int], a: Expr, b: Expr) -> Expr:
    difference = (a - b).value
    if difference is not None:
        return a if fn(difference, 0) == difference else b
    a, b = sorted((a, b), key=str)
    return atom_expr(kind(a, b))


def _div_atom(n: Expr, d: Expr) -> Expr:
    """n // d where nothing comes out. floor(floor(x / a) / b) is floor(x / (a·b)) for b > 0."""
    c, value, inner = d.value, n.value, n.atom
    if c is not None and value is not None:
        return expr(value // c)
    if c is not None and c > 0 and isinstance(inner, FloorDiv):
        return floor_div(inner.lhs, inner.rhs * c)
    if c is not None and c > 0 and isinstance(inner, Mod) and (m := inner.rhs.value) is not None:
        if m > 0 and m % c == 0:
            return mod(floor_div(inner.lhs, d), expr(m // c))
        if 0 < m <= c:
            return expr(0)
    return atom_expr(FloorDiv(n, d))


def _mod_atom(n: Expr, d: Expr) -> Expr:
    c, value, inner = d.value, n.value, n.atom
    if c is not None and value is not None:
        return expr(value % c)
    if c is not None and c > 0:
        kept: dict[Monomial, int] = {}
        for m, k in n.terms:  # coefficients only count modulo c
            kept[m] = k % c
        n = Expr(kept)
        if isinstance(inner, Mod) and (m := inner.rhs.value) is not None and m > 0:
            if m % c == 0:
                return mod(inner.lhs, d)
            if m <= c:
                return n
    return expr(n.value % c) if c and n.value is not None else atom_expr(Mod(n, d))


# --- monomials ----------------------------------------------------------------------------------------------------
def split_multiples(n: Expr, d: Expr) -> tuple[Expr, Expr]:
    """(a, b) with n = d·a + b, where a is made of the terms of n that the single monomial d divides."""
    ((m, c),) = d.terms
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for n_m, n_c in n.terms:
        over = quotient(n_m, m) if n_c % c == 0 else None
        if over is None:
            rest[n_m] = n_c
        else:
            whole[over] = n_c // c
    return Expr(whole), Expr(rest)


def common_factor(n: Expr, d: Expr) -> Expr:
    """The largest monomial, with a positive coefficient, that divides all terms of both."""
    return Expr(dict([greatest((*n.terms, *d.terms))]))


def _reduced(n: Expr, d: Expr) -> tuple[Expr, Expr]:
    """n and d without their common factor: symbols are not 0, so quotients stay."""
    common = common_factor(n, d)
    if common == 1:
        return n, d
    return split_multiples(n, common)[0], split_multiples(d, common)[0]


def _recombined(terms: dict[Monomial, int]) -> dict[Monomial, int]:
    """k·c·(x // c) + k·(x % c) is k·x, and k·c·(x // c % b) + k·(x % c) is k·(x % (c·b)); k·x - k·c·(x // c) is
    k·(x % c)."""
    for m, c in list(terms.items()):
        for atom, power in m:
            if isinstance(atom, FloorDiv) and power == 1 and terms.get(m):
                rest = _remainder(terms, atom, m, c)
                if rest is not None:
                    return _recombined(rest)
            if not isinstance(atom, Mod) or power != 1 or not terms.get(m):
                continue
            others = tuple(f for f in m if f[0] != atom)
            found = _partner(terms, atom, others, c)
            if found is None:
                continue
            partner, whole = found
            del terms[m], terms[partner]
            joined = Expr({others: c}) * whole
            for n, k in joined.terms:
                terms[n] = terms.get(n, 0) + k
            return _recombined({n: k for n, k in terms.items() if k})
    return terms


def _remainder(
    terms: dict[Monomial, int], atom: FloorDiv, m: Monomial, c: int
) -> dict[Monomial, int] | None:
    """The terms with k·(x % d) in place of k·x and the term m, c, which is -k·d·(x // d); None where they are not."""
    if len(atom.rhs.terms) != 1:
        return None
    k, rest = split_multiples(Expr({tuple(f for f in m if f[0] != atom): -c}), atom.rhs)
    if rest.terms:
        return None
    whole = k * atom.lhs
    if any(terms.get(n) != factor for n, factor in whole.terms):
        return None
    gone = {m, *(n for n, _ in whole.terms)}
    found = {n: factor for n, factor in terms.items() if n not in gone}
    for n, factor in (k * mod(atom.lhs, atom.rhs)).terms:
        found[n] = found.get(n, 0) + factor
    return {n: factor for n, factor in found.items() if factor}


def _partner(
    terms: dict[Monomial, int], low: Mod, others: Monomial, c: int
) -> tuple[Monomial, Expr] | None:
    """The term that is c·rhs·(x // rhs), perhaps modulo something, and what it makes together with `low`: x % rhs, of
    whose x multiples of rhs may be gone. (5·i + j) // 3 and (2·i + j) % 3 are of 5·i + j."""
    for m, k in terms.items():
        for atom, power in m:
            if not isinstance(atom, FloorDiv | Mod) or power != 1:
                continue
            rest = tuple(f for f in m if f[0] != atom)
            if Expr({rest: k}) != Expr({others: c}) * low.rhs:
                continue
            over = atom.lhs if isinstance(atom, Mod) else atom_expr(atom)
            of, whole = over.atom, low.lhs
            if over != low.lhs // low.rhs:
                if not isinstance(of, FloorDiv) or of.rhs != low.rhs:
                    continue
                if (whole := of.lhs) % low.rhs != atom_expr(low):
                    continue
            if isinstance(atom, FloorDiv):
                return m, whole
            if low.rhs.value is not None and low.rhs.value > 0:
                return m, mod(whole, low.rhs * atom.rhs)
    return None


# --- values and text ----------------------------------------------------------------------------------------------
def _value(atom: Atom, leaf: Callable[[Dim | Sym], Any]) -> Any:
    if not isinstance(atom, Compound):
        return leaf(atom)
    a, b = atom.lhs.compute(leaf), atom.rhs.compute(leaf)
    if isinstance(atom, FloorDiv | Mod):
        return a // b if isinstance(atom, FloorDiv) else a % b
    if isinstance(a, Expr) or isinstance(b, Expr):
        return minimum(a, b) if isinstance(atom, Min) else maximum(a, b)
    if any(isinstance(x, np.ndarray) for x in (a, b)):
        return np.minimum(a, b) if isinstance(atom, Min) else np.maximum(a, b)
    return min(a, b) if isinstance(atom, Min) else max(a, b)
