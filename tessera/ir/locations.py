"""Packs a module's source locations and names, which its text lacks, as plain data, and restores them."""

from __future__ import annotations

from typing import Any

from tessera.errors import Loc
from tessera.ir.core import Module

Packed = dict[str, Any]


def pack_locations(module: Module) -> Packed:
    """Return JSON-able tables: `files` and functions as strings, `places` (distinct locations, call sites by index),
    and for each op in order of `walk` its place (-1: none) with the names of its results and block arguments."""
    strings: dict[str, int] = {}
    places: dict[Loc, int] = {}
    rows: list[list[Any]] = []

    def text(s: str) -> int:
        return strings.setdefault(s, len(strings))

    def place(loc: Loc | None) -> int:
        if loc is None:
            return -1
        found = places.get(loc)
        if found is None:
            site = place(loc.call_site)
            found = places[loc] = len(places)
            rows.append([
                text(loc.file), loc.line, loc.col, loc.end_line, loc.end_col, text(loc.function), loc.first_line, site
            ])  # fmt: skip
        return found

    ops = [
        [
            place(op.loc),
            [v.name for v in op.results],
            [[a.name for a in b.args] for b in op.regions],
        ]
        for op in module.walk()
    ]
    return {"strings": list(strings), "places": rows, "ops": ops}


def unpack_locations(module: Module, packed: Packed) -> None:
    """Restore the locations and names of ops and values of a module that was printed and parsed again."""
    strings = packed["strings"]
    places: list[Loc] = []
    rows: list[tuple[int, int, int, int, int, int, int, int]] = packed["places"]
    for file, line, col, end_line, end_col, function, first, site in rows:
        call_site = places[site] if site >= 0 else None
        places.append(
            Loc(strings[file], line, col, end_line, end_col, strings[function], first, call_site)
        )
    for op, (place, names, inner) in zip(module.walk(), packed["ops"], strict=True):
        op.loc = places[place] if place >= 0 else None
        for v, name in zip(op.results, names, strict=True):
            v.name = name
        for block, labels in zip(op.regions, inner, strict=True):
            for v, name in zip(block.args, labels, strict=True):
                v.name = name


def pack_location(loc: Loc | None) -> list[Any] | None:
    """Return one location and its call sites as JSON-able lists."""
    if loc is None:
        return None
    place = [loc.file, loc.line, loc.col, loc.end_line, loc.end_col, loc.function, loc.first_line]
    return [*place, pack_location(loc.call_site)]


def unpack_location(packed: list[Any] | None) -> Loc | None:
    if packed is None:
        return None
    file, line, col, end_line, end_col, function, first, site = packed
    return Loc(file, line, col, end_line, end_col, function, first, unpack_location(site))
