"""Small integer helpers of the host API: plain ints, also of compile-time values."""

from __future__ import annotations

from tessera.language.values import unwrap


def cdiv(x: int, y: int) -> int:
    """The smallest number of blocks of `y` that cover `x`."""
    x, y = unwrap(x), unwrap(y)
    return (x + y - 1) // y


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is not below `n`; 0 for 0.

    >>> [next_power_of_2(n) for n in (0, 1, 17, 32)]
    [0, 1, 32, 32]
    """
    n = unwrap(n) - 1
    for shift in (1, 2, 4, 8, 16, 32):  # copy the top bit into every lower one
        n |= n >> shift
    return n + 1
