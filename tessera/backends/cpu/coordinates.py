"""Computes coordinates in code: loop indices, facts about them, and their division where a tile is reshaped."""

from __future__ import annotations

from typing import Any

from tessera.backends.cpu.emitter import Emitter
from tessera.backends.cpu.values import Coord, Pattern, Val, power_in
from tessera.dtypes import int32


class Coordinates:
    """Emits coordinates to `em`. Two facts are kept for each loop index: `align`, a power of two that divides it, and
    `extent`, an exclusive upper bound."""

    def __init__(self, em: Emitter):
        self.em = em
        self.align: dict[str, int] = {}
        self.extent: dict[str, int] = {}

    def index(self, name: int | str, step: int, extent: int) -> Coord:
        """Return the coordinate of a loop index (or a number)."""
        if isinstance(name, int):
            return Coord(name, (), None, extent)
        self.align[name], self.extent[name] = power_in(step), extent
        return Coord(0, ((name, 1),), None, extent)

    def coord_align(self, c: Coord) -> int:
        """Return a power of two that divides base + terms."""
        return min([power_in(c.base), *(power_in(f) * self.align.get(n, 1) for n, f in c.terms)])

    def term_texts(self, c: Coord) -> tuple[str, ...]:
        return tuple(n if f == 1 else self.em.op(f"mul nsw i64 {n}, {f}") for n, f in c.terms)

    def coord_text(self, c: Coord) -> str:
        """Return base + terms as an i64."""
        text = ""
        for t in self.term_texts(c):
            text = t if not text else self.em.op(f"add nsw i64 {text}, {t}")
        if not text:
            return str(c.base)
        return text if c.base == 0 else self.em.op(f"add nsw i64 {text}, {c.base}")

    def coord_value(self, c: Coord, lanes: int, start: int = 0) -> Val:
        """Return start + coordinate as an int32."""
        base, terms = c.base + start, self.term_texts(c)
        constant = base if not terms and c.pattern is None else None
        if (
            terms and c.base
        ):  # a term, too: addresses of an iteration's vectors differ by this number alone
            base, terms = start, (*terms, str(c.base))
        return Val(int32, lanes if c.pattern is not None else 1, "", True, str(base), terms, c.pattern,
                   align=min(self.coord_align(c), power_in(start)), const=constant)  # fmt: skip

    def divided(self, c: Coord, divisor: int) -> tuple[Coord, Coord] | None:
        """Return (c // divisor, c % divisor); None if the lanes' carries are not known at compile time.

        Each part of the sum (base, each term, the pattern) is divided separately, which is exact if the remainders add
        up to less than the divisor. Otherwise a sum that is the same in all lanes is divided as a whole.
        """
        if divisor == 1:
            return c, Coord()
        if c.extent <= divisor:
            return Coord(), c
        return self._divided_parts(c, divisor) or self._divided_sum(c, divisor)

    def _divided_sum(self, c: Coord, divisor: int) -> tuple[Coord, Coord] | None:
        if c.pattern is not None:
            return None
        text, align = self.coord_text(c), self.coord_align(c)
        q, r = (self.em.op(f"{name} i64 {text}, {divisor}") for name in ("udiv", "urem"))
        high = self.index(q, 1 if align % divisor else align // divisor, -(-c.extent // divisor))
        return high, self.index(r, min(align, power_in(divisor)), divisor)

    def _divided_parts(self, c: Coord, divisor: int) -> tuple[Coord, Coord] | None:
        pattern: Pattern = c.pattern or (0,)
        high_base, low_base = divmod(c.base, divisor)
        highs, lows = tuple(p // divisor for p in pattern), tuple(p % divisor for p in pattern)
        room = divisor - low_base - max(lows)
        high_terms: list[tuple[str, int]] = []
        low_terms: list[tuple[str, int]] = []
        for name, factor in c.terms:
            parts = self._divided_term(name, factor, divisor)
            if parts is None:
                return None
            high, low, most = parts
            high_terms += high
            low_terms += low
            room -= most
        if room <= 0:
            return None
        uniform = c.pattern is None
        return (
            _with_lanes(
                Coord(high_base, tuple(high_terms)), highs, uniform, -(-c.extent // divisor)
            ),
            _with_lanes(Coord(low_base, tuple(low_terms)), lows, uniform, divisor),
        )

    def _divided_term(
        self, name: str, factor: int, divisor: int
    ) -> tuple[list[Any], list[Any], int] | None:
        """Return (terms of the quotient, terms of the remainder, largest remainder) of factor * name."""
        if factor % divisor == 0:
            return [(name, factor // divisor)], [], 0
        extent = self.extent.get(name, 1 << 31)
        top = (extent - 1) & -self.align.get(name, 1)  # the largest multiple of its alignment
        if 0 <= factor * top < divisor:
            return [], [(name, factor)], factor * top
        if factor < 0 or divisor % factor:
            return None
        unit = divisor // factor
        align = self.align.get(name, 1)
        q = self.em.op(f"udiv i64 {name}, {unit}")
        self.align[q] = 1 if align % unit else align // unit
        self.extent[q] = -(-extent // unit)
        if align % unit == 0:
            return [(q, 1)], [], 0
        r = self.em.op(f"urem i64 {name}, {unit}")
        align = min(align, power_in(unit))
        self.align[r], self.extent[r] = align, unit
        return [(q, 1)], [(r, factor)], factor * (unit - align)


def _with_lanes(c: Coord, lanes: Pattern, uniform: bool, extent: int) -> Coord:
    first = lanes[0]
    if uniform:
        return Coord(c.base + first, c.terms, None, extent)
    pattern = tuple(p - first for p in lanes)
    if not any(pattern):
        return Coord(c.base + first, c.terms, None, extent)
    if first and min(pattern) >= 0:
        return Coord(c.base + first, c.terms, pattern, extent)
    return Coord(c.base, c.terms, lanes, extent)
