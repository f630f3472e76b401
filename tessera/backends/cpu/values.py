"""Defines points of an index space (`Point`) and values at them (`Val`), whose affine forms keep addresses scalar.

A point has one coordinate a dimension; the coordinate of lane k is `base + terms + pattern[k]`, where base is a number,
the terms are loop indices times constants and the pattern is known at compile time. A value of integer or pointer type
keeps the same form as long as it is affine in the lanes:

    arange(0, 1024) at index i, pattern (0..15)        → base 0, terms (i,), pattern (0..15)
    pid * 1024 + that                                  → base pid*1024, terms (i,), pattern (0..15)
    addptr(x_ptr, that)                                → base x_ptr + pid*1024, terms (i,), pattern (0..15): one load

so that a vector is only formed where something needs it. Sums of offsets are assumed not to overflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Pattern = tuple[int, ...]
Terms = tuple[tuple[str, int], ...]  # (name of an i64, factor)
ANY_ALIGN = 1 << 20  # the divisibility of zero: more than anything requires


def power_in(n: int) -> int:
    """Return the largest power of two dividing n (0: a large one)."""
    return min(n & -n, ANY_ALIGN) if n else ANY_ALIGN


@dataclass(frozen=True, slots=True)
class Coord:
    """base + Σ factor·name + pattern[lane]; `extent`: all values are in 0 … extent-1."""

    base: int = 0
    terms: Terms = ()
    pattern: Pattern | None = None  # None: the same in all lanes
    extent: int = 1

    def plus(self, other: Coord) -> Coord:
        merged = dict(self.terms)
        for name, factor in other.terms:
            merged[name] = merged.get(name, 0) + factor
        a, b = self.pattern, other.pattern
        if a is not None and b is not None:
            pattern = plain(tuple(x + y for x, y in zip(a, b, strict=True)))
        else:
            pattern = a if b is None else b
        extent = self.extent + other.extent - 1
        return Coord(self.base + other.base, tuple(merged.items()), pattern, extent)

    def times(self, c: int) -> Coord:
        if c == 1:
            return self
        if c == 0:
            return ZERO
        terms = tuple((name, factor * c) for name, factor in self.terms)
        pattern = None if self.pattern is None else tuple(p * c for p in self.pattern)
        return Coord(self.base * c, terms, pattern, (self.extent - 1) * c + 1)

    def shifted(self, n: int) -> Coord:
        return Coord(self.base + n, self.terms, self.pattern, self.extent + n)


ZERO = Coord()


def plain(pattern: Pattern) -> Pattern | None:
    """Return the pattern, or None if it is all zero."""
    return pattern if any(pattern) else None


@dataclass(frozen=True, slots=True)
class Point:
    """One coordinate a dimension, over `lanes` lanes (1 when no coordinate varies)."""

    coords: tuple[Coord, ...]
    lanes: int


def point(coords: tuple[Coord, ...], lanes: int) -> Point:
    """Return a point; one lane if no coordinate varies."""
    if lanes > 1 and all(c.pattern is None for c in coords):
        lanes = 1
    return Point(coords, lanes)


@dataclass(slots=True)
class Val:
    """The value of an expression of scalar type `type` at a point: `text` (one lane: a scalar, else a vector).

    With `affine` the text is formed lazily from base (a scalar's text) + Σ terms (i64s, in elements for pointers)
    + step * pattern[lane]; `step` "" is 1. `align`: a power of two dividing base + Σ terms (integers only);
    `const`: the number of a constant scalar.
    """

    type: Any
    lanes: int
    text: str = ""
    affine: bool = False
    base: str = ""
    terms: tuple[str, ...] = ()
    pattern: Pattern | None = None
    step: str = ""
    align: int = 1
    const: int | float | bool | None = None


def is_unit(pattern: Pattern | None) -> bool:
    """Whether the lanes are 0, 1, 2, …"""
    return pattern is not None and all(p == i for i, p in enumerate(pattern))
