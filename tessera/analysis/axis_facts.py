"""Defines the facts about a value's elements along each dimension (see axis.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from tessera.dtypes import pointer_type
from tessera.ir import Type, elem_of, shape_of

TOP = 1 << 32  # stands for divisible by any number that is asked for, as zero is


def power_of_two_part(n: int) -> int:
    """The largest power of two dividing n; TOP for 0."""
    return min(n & -n, TOP) if n else TOP


@dataclass(frozen=True, slots=True)
class AxisFacts:
    """Facts about one value (see axis.py). `value` is set if every element is the same known integer."""

    contiguity: tuple[int, ...]
    divisibility: tuple[int, ...]
    constancy: tuple[int, ...]
    value: int | None = None

    def join(self, other: AxisFacts, step: int = 1) -> AxisFacts:
        """Return the facts of a value that one of the two describes; `step` is the divisibility's unit per element."""
        contiguity = gcds(self.contiguity, other.contiguity)
        mine, its = self.cut(contiguity, step), other.cut(contiguity, step)
        return AxisFacts(
            contiguity,
            gcds(mine, its),
            gcds(self.constancy, other.constancy),
            self.value if self.value == other.value else None,
        )

    def cut(self, runs: tuple[int, ...], step: int) -> tuple[int, ...]:
        """Return the divisibility after runs are cut to length `runs`: a piece starts a multiple of its length into a
        run. A run that is already shorter stays whole."""
        return tuple(
            d if m <= n else gcd(d, n * step)
            for d, n, m in zip(self.divisibility, runs, self.contiguity, strict=True)
        )


def gcds(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(gcd, a, b))


def dims_of(t: Type) -> tuple[int, ...]:
    return shape_of(t) or (1,)


def nothing_known(t: Type) -> AxisFacts:
    ones = (1,) * len(dims_of(t))
    return AxisFacts(ones, ones, ones)


def uniform(t: Type, divisibility: int, value: int | None = None) -> AxisFacts:
    """Return the facts of a value whose elements are all the same number."""
    dims = dims_of(t)
    return AxisFacts((1,) * len(dims), (divisibility,) * len(dims), dims, value)


def unit_of(t: Type) -> int:
    """Return the distance of neighbouring elements in units of divisibility: bytes for pointers, 1 for integers."""
    e = elem_of(t)
    return e.element_ty.storage_bytes if isinstance(e, pointer_type) else 1
