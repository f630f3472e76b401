"""Finds buffers of which each thread reads only what it wrote, by the layouts of writer and reader."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tessera.layout import LinearLayout, offset_map


def _without(x: int, basis: Sequence[int]) -> int:
    """`x` less the members of a basis (highest first) whose highest bit it has."""
    for b in basis:
        if x >> (b.bit_length() - 1) & 1:
            x ^= b
    return x


def _basis(columns: Sequence[int]) -> list[int]:
    """A basis of what the columns span, in the one form in which no member has another one's highest bit."""
    found: list[int] = []
    for c in columns:
        c = _without(c, sorted(found, reverse=True))
        if c:
            top = c.bit_length() - 1
            found = [b ^ c if b >> top & 1 else b for b in found] + [c]
    return sorted(found, reverse=True)


@lru_cache(maxsize=256)
def bytes_of_threads(held: LinearLayout, shared: LinearLayout) -> Any:
    """The offsets that each thread has, as something that is equal where they are the same sets: what registers span,
    and where lanes and warps begin, but for that."""
    at = offset_map(held, shared)
    span = _basis(at.register)
    return span, [_without(c, span) for c in at.lane], [_without(c, span) for c in at.warp]
