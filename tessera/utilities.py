"""Small integer helpers of the host API, usable on plain ints."""

from __future__ import annotations


def cdiv(x: int, y: int) -> int:
    """The smallest number of blocks of `y` that cover `x`."""
    return (x + y - 1) // y


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is not below `n`; 0 for 0.

    >>> [next_power_of_2(n) for n in (0, 1, 17, 32)]
    [0, 1, 32, 32]
    """
    n -= 1
    for shift in (1, 2, 4, 8, 16, 32):  # copy the top bit into every lower one
        n |= n >> shift
    return n + 1
