"""Evaluates integer expressions on the host before a launch. They are given as code whose instructions refer to
earlier ones by number.

    ("arg", n)  ("const", c)             launch argument n; a number
    ("id", axis)  ("count", axis)        a program id; the grid's extent
    ("loop", lb, ub, step)               the induction variable of a loop
    ("hull", a, b)                       a or b
    ("least", a, b)  ("most", a, b)      a, which is at least or at most b
    ("distance", a, b)                   the gap between the intervals of a and b: negative if they overlap
    ("word", bits)                       any signed integer of so many bits
    ("carried", a, bits, name)           a loop-carried value that starts as a; ("again", n, b): n may become b
    (operation, a, b, bits)              add sub mul div rem min max in signed integers of so many bits; "fit" a: a cast

A value that differs between programs or iterations has an interval (lowest, highest); None: unknown. The interval of
a carried value grows to a fixed point; a bound that keeps moving becomes that of the type. Quotients are rounded
toward zero, and remainders have the dividend's sign, as in kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

NEVER = ((0, 1, 0, 1),)  # a check that always fails
PATIENCE = 3  # steps by which the interval of a carried value may grow before it is widened
Known = tuple[int, int]
Interval = Known | None


def evaluate(
    code: Sequence[Any], args: Mapping[int, int], grid: Sequence[int] = (1, 1, 1)
) -> list[Interval]:
    """Return the intervals of all instructions. `args` maps numbers of launch arguments to values; others are
    unknown."""
    found: list[Interval] = []
    # Carried values: their intervals, and how often these have grown.
    grown: dict[int, tuple[Known, int]] = {}
    while len(found) < len(code):
        kind: str = code[len(found)][0]
        numbers: list[int] = list(code[len(found)][1:])
        if kind == "carried":
            first = found[numbers[0]] or _word(numbers[1])
            known = grown.get(len(found))
            found.append(_hull(first, known[0]) if known is not None else first)
        elif kind == "again":
            start = numbers[0]
            now, times = found[start], grown[start][1] + 1 if start in grown else 0
            assert now is not None
            wider = _grown(now, found[numbers[1]], code[start][2], times >= PATIENCE)
            found.append(wider)
            if wider != now:
                grown[start] = wider, times
                del found[start:]
        else:
            found.append(_interval(kind, numbers, found, args, grid))
    return found


def _grown(now: Known, following: Interval, bits: int, jump: bool) -> Known:
    """Widen a carried value's interval by the next iteration's; with `jump`, a bound that moves becomes the type's."""
    low, high = _word(bits)
    if following is None:
        return low, high
    a, b = _hull(now, following)
    return (low if jump and a < now[0] else a), (high if jump and b > now[1] else b)


def _word(bits: int) -> Known:
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _interval(
    kind: str, numbers: list[int], found: list[Interval], args: Mapping[int, int], grid: Sequence[int]
) -> Interval:  # fmt: skip
    if kind == "const":
        return numbers[0], numbers[0]
    if kind == "arg":
        x = args.get(numbers[0])
        return (x, x) if x is not None else None
    if kind == "id":
        return 0, max(0, grid[numbers[0]] - 1)
    if kind == "count":
        return grid[numbers[0]], grid[numbers[0]]
    if kind == "word":
        return _word(numbers[0])
    bits = 0 if kind in ("loop", "hull", "least", "most", "distance") else numbers.pop()
    known: list[Known] = []
    for i in numbers:
        x = found[i]
        if x is None:
            return None
        known.append(x)
    return fit(OPERATIONS[kind](*known), bits) if bits else OPERATIONS[kind](*known)


def fit(x: Interval, bits: int) -> Interval:
    half = 1 << (bits - 1)
    return x if x is not None and -half <= x[0] and x[1] < half else None


def _loop(lb: Known, ub: Known, step: Known) -> Interval:
    if step[0] > 0:
        last = max(lb[0], ub[1] - 1)
        exact = lb[0] == lb[1] and step[0] == step[1]
        return lb[0], last - (last - lb[0]) % step[0] if exact else last
    return (ub[0] + 1, max(lb[1], ub[0] + 1)) if step[1] < 0 else None


def _hull(a: Known, b: Known) -> Known:
    return min(a[0], b[0]), max(a[1], b[1])


def _least(a: Known, b: Known) -> Interval:
    low = max(a[0], b[0])
    return low, max(low, a[1])  # if there is no such value, any interval is right


def _distance(a: Known, b: Known) -> Interval:
    distance = max(a[0] - b[1], b[0] - a[1])
    return distance, distance


def _most(a: Known, b: Known) -> Interval:
    high = min(a[1], b[1])
    return min(a[0], high), high


def quotient(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def _mul(a: Known, b: Known) -> Interval:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _div(a: Known, b: Known) -> Interval:
    if b[0] <= 0 <= b[1]:
        return None
    corners = [quotient(x, y) for x in a for y in b]
    inside = [0] if a[0] <= 0 <= a[1] else []
    return min(corners + inside), max(corners + inside)


def _rem(a: Known, b: Known) -> Interval:
    if b[0] <= 0 <= b[1]:
        return None
    if a[0] == a[1] and b[0] == b[1]:
        value = a[0] - b[0] * quotient(a[0], b[0])
        return value, value
    most = max(abs(b[0]), abs(b[1])) - 1
    return max(-most, min(a[0], 0)), min(most, max(a[1], 0))


def _add(a: Known, b: Known) -> Interval:
    return a[0] + b[0], a[1] + b[1]


def _sub(a: Known, b: Known) -> Interval:
    return a[0] - b[1], a[1] - b[0]


def _min(a: Known, b: Known) -> Interval:
    return min(a[0], b[0]), min(a[1], b[1])


def _max(a: Known, b: Known) -> Interval:
    return max(a[0], b[0]), max(a[1], b[1])


def _same(a: Known) -> Interval:
    return a


OPERATIONS: dict[str, Callable[..., Interval]] = {
    "add": _add, "sub": _sub, "mul": _mul, "div": _div, "rem": _rem, "min": _min, "max": _max, "fit": _same,
    "loop": _loop, "hull": _hull, "least": _least, "most": _most, "distance": _distance,
}  # fmt: skip


def holds(checks: Sequence[Any], values: Sequence[Interval]) -> bool:
    """Whether all checks (number, lowest, highest, divisor) hold; a divisor above 1 must divide a single value."""
    for number, low, high, divisor in checks:
        x = values[int(number)]
        if x is None or x[0] < low or x[1] > high:
            return False
        if divisor > 1 and (x[0] != x[1] or x[0] % divisor):
            return False
    return True


def arguments_of(code: Sequence[Any]) -> list[int]:
    """The launch arguments that the code reads."""
    return sorted({int(x[1]) for x in code if x[0] == "arg"})
