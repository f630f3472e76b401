"""Computes which bytes of a buffer each thread accesses, by the layouts of the op and of the buffer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tessera.layout import LinearLayout, offset_map


def _without(x: int, basis: Sequence[int]) -> int:
    """Return `x` reduced over GF(2) by the members of a basis, highest first."""
    for b in basis:
        if x >> (b.bit_length() - 1) & 1:
            x ^= b
    return x


def _basis(columns: Sequence[int]) -> list[int]:
    """Return the reduced basis over GF(2) of the columns' span: no member has another one's highest bit."""
    found: list[int] = []
    for c in columns:
        c = _without(c, sorted(found, reverse=True))
        if c:
            top = c.bit_length() - 1
            found = [b ^ c if b >> top & 1 else b for b in found] + [c]
    return sorted(found, reverse=True)


@lru_cache(maxsize=256)
def bytes_of_threads(held: LinearLayout, shared: LinearLayout) -> Any:
    """Return the offsets that each thread accesses, in a form that is equal for equal sets: the span of the registers,
    and the offsets at which lanes and warps begin, reduced by that span."""
    at = offset_map(held, shared)
    span = _basis(at.register)
    return span, [_without(c, span) for c in at.lane], [_without(c, span) for c in at.warp]
