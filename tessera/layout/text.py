"""Parses the one-line text of a layout: `ll<[8,8] register=[[0,1]] lane=[[0,2],[0,4]]>`."""

from __future__ import annotations

import re
from functools import lru_cache

from tessera.ir.types import TEXT_PARSERS

from .linear import LinearLayout
from .matrix_ops import LayoutError

__all__ = ["parse_layout"]

_WHOLE = re.compile(r"\s*ll<\s*\[([\d,\s]*)\]((?:\s+\w+\s*=\s*\[[\d,\s\[\]]*\])*)\s*>\s*")
_DIM = re.compile(r"(\w+)\s*=\s*\[((?:\s*\[[\d,\s]*\]\s*,?)*)\s*\]")
_BASIS = re.compile(r"\[([\d,\s]*)\]")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple([int(part) for part in text.split(",") if part.strip()])


@lru_cache(maxsize=1024)
def parse_layout(text: str) -> LinearLayout:
    """The layout written by `LinearLayout.text`; raises LayoutError if the text is none."""
    match = _WHOLE.fullmatch(text)
    if match is None:
        raise LayoutError(f"not a layout: {text!r} (expected ll<[sizes] in_dim=[[...],...] ...>)")
    bases: dict[str, tuple[tuple[int, ...], ...]] = {}
    rest = match[2]
    position = 0
    for dim in _DIM.finditer(rest):
        if rest[position : dim.start()].strip() or dim[1] in bases:
            raise LayoutError(f"not a layout: {text!r} (near {rest[position:]!r})")
        bases[dim[1]] = tuple([_numbers(basis) for basis in _BASIS.findall(dim[2])])
        position = dim.end()
    if rest[position:].strip():
        raise LayoutError(f"not a layout: {text!r} (near {rest[position:]!r})")
    return LinearLayout(_numbers(match[1]), bases)


TEXT_PARSERS["ll"] = parse_layout
