"""Integer expressions that the host evaluates before a launch, as code: each instruction names earlier ones by number.

    ("arg", n)  ("const", c)             launch argument n; a number
    ("id", axis)  ("count", axis)        a program's place in the grid; the grid's extent
    ("loop", lb, ub, step)               the variable of a loop
    ("hull", a, b)                       one of both
    (operation, a, b, bits)              add sub mul div rem min max in signed integers of so many bits; "fit" a: a cast

What differs between programs or iterations has an interval (lowest, highest) instead of one value; None: unknown.
Quotients are rounded toward zero, remainders have the dividend's sign, as in kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Interval = tuple[int, int] | None


def evaluate(
    code: Sequence[Any], args: Mapping[int, int], grid: Sequence[int] = (1, 1, 1)
) -> list[Interval]:
    """The intervals of all instructions. `args`: launch arguments by number; those that are missing are unknown."""
    found: list[Interval] = []
    for kind, *rest in code:
        if kind == "arg":
            x = args.get(rest[0])
            found.append((x, x) if x is not None else None)
        elif kind == "const":
            found.append((rest[0], rest[0]))
        elif kind == "id":
            found.append((0, max(0, grid[rest[0]] - 1)))
        elif kind == "count":
            found.append((grid[rest[0]], grid[rest[0]]))
        elif kind == "loop":
            found.append(_loop(*[found[i] for i in rest]))
        elif kind == "hull":
            a, b = found[rest[0]], found[rest[1]]
            found.append((min(a[0], b[0]), max(a[1], b[1])) if a and b else None)
        else:
            *operands, bits = rest
            values = [x for i in operands if (x := found[i]) is not None]
            whole = len(values) == len(operands)
            found.append(_fit(_OPERATIONS[kind](*values), bits) if whole else None)
    return found


def _fit(x: Interval, bits: int) -> Interval:
    half = 1 << (bits - 1)
    return x if x is not None and -half <= x[0] and x[1] < half else None


def _loop(lb: Interval, ub: Interval, step: Interval) -> Interval:
    if lb is None or ub is None or step is None or step[0] <= 0:
        return None
    return lb[0], max(lb[1], ub[1] - 1)


def quotient(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def _mul(a: tuple[int, int], b: tuple[int, int]) -> Interval:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _div(a: tuple[int, int], b: tuple[int, int]) -> Interval:
    if b[0] <= 0 <= b[1]:
        return None
    corners = [quotient(x, y) for x in a for y in b]
    inside = [0] if a[0] <= 0 <= a[1] else []
    return min(corners + inside), max(corners + inside)


def _rem(a: tuple[int, int], b: tuple[int, int]) -> Interval:
    if b[0] <= 0 <= b[1]:
        return None
    if a[0] == a[1] and b[0] == b[1]:
        value = a[0] - b[0] * quotient(a[0], b[0])
        return value, value
    most = max(abs(b[0]), abs(b[1])) - 1
    return max(-most, min(a[0], 0)), min(most, max(a[1], 0))


_OPERATIONS: dict[str, Callable[..., Interval]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _mul,
    "div": _div,
    "rem": _rem,
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "fit": lambda a: a,
}


def holds(checks: Sequence[Any], values: Sequence[Interval]) -> bool:
    """Whether all checks hold: (number, lowest, highest, divisor) of an expression; with a divisor it has one value."""
    for number, low, high, divisor in checks:
        x = values[number]
        if x is None or x[0] < low or x[1] > high:
            return False
        if divisor > 1 and (x[0] != x[1] or x[0] % divisor):
            return False
    return True


def arguments_of(code: Sequence[Any]) -> list[int]:
    """The launch arguments that the code reads."""
    return sorted({rest[0] for kind, *rest in code if kind == "arg"})
