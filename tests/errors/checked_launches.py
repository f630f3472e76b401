"""Kernels that a checked launch refuses, and the full text of each report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera import errors

CASES: list[Any] = []


def case(name: str, kind: type, body: str, args: Any, text: str) -> None:
    """`body` is a kernel `k(p, q, n)`, launched with two programs."""
    CASES.append(pytest.param(kind, body, args, text, id=name))


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


case(
    "load past the end of its array, in another one",
    errors.OutOfBounds,
    """
    def k(p, q, n):
        i = tl.program_id(0) * 4 + tl.arange(0, 4)
        x = tl.load(p + i * 3, mask=i < n)
        tl.store(q + i, x)
    """,
    lambda: (np.arange(16, dtype=np.float32), np.zeros(8, np.float32), 7),
    """
    error[out-of-bounds]: load out of bounds: reads element 18 of argument `p`, whose storage ends after element 15
      --> kernel.py:7:9 in k (at 3:8:)
       |
     7 |     x = tl.load(p + i * 3, mask=i < n)
       |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      = note: program (1, 0, 0), element (2)
      = note: `i` = 6
      = note: `n` = 7
      = help: guard the access with a mask, or check the strides and the grid of the launch
    """,
)

case(
    "store before the start",
    errors.OutOfBounds,
    """
    def k(p, q, n):
        ptr = q
        for step in range(3):
            tl.store(ptr, 1.0)
            ptr -= n
    """,
    lambda: (floats(0), np.zeros(4, np.float32)[2:], 2),
    """
    error[out-of-bounds]: store out of bounds: writes element -4 of argument `q`, before its storage
      --> kernel.py:8:9 in k (at 4:8:)
       |
     8 |         tl.store(ptr, 1.0)
       |         ^^^^^^^^^^^^^^^^^^
      = note: program (0, 0, 0)
      = help: guard the access with a mask, or check the strides and the grid of the launch
    """,
)

case(
    "division makes infinity",
    errors.NotFinite,
    """
    def k(p, q, n):
        i = tl.arange(0, 2)[:, None] * 2 + tl.arange(0, 2)[None, :]
        x = tl.load(p + i)
        y = 6.0 / (x - n)
        tl.store(q + i, y)
    """,
    lambda: (floats(1, 2, 3, 4), np.zeros(4, np.float32), 3),
    """
    error[not-finite]: `y` becomes infinity: `div` of finite numbers
      --> kernel.py:8:9 in k (at 4:8:)
       |
     8 |     y = 6.0 / (x - n)
       |         ^^^^^^^^^^^^^
      = note: program (0, 0, 0), element (1, 0)
      = note: a constant = 6.0
      = note: the operand from `sub` = 0.0
      = help: reported in checked mode only: mask the element, or change the computation
    """,
)

case(
    "NaN of infinities",
    errors.NotFinite,
    """
    def k(p, q, n):
        x = tl.load(p + tl.arange(0, 4))
        low = tl.min(x, 0)
        y = x - low
        tl.store(q + tl.arange(0, 4), y)
    """,
    lambda: (floats(1, -np.inf, 3, 4), np.zeros(4, np.float32), 3),
    """
    error[not-finite]: `y` becomes NaN: `sub` of infinities
      --> kernel.py:8:9 in k (at 4:8:)
       |
     8 |     y = x - low
       |         ^^^^^^^
      = note: program (0, 0, 0), element (1)
      = note: `x` = -inf
      = note: `low` = -inf
      = help: reported in checked mode only: mask the element, or change the computation
    """,
)

case(
    "integer overflow",
    errors.IntegerOverflow,
    """
    def k(p, q, n):
        i = tl.arange(0, 4)
        wide = i * n + 5
        tl.store(q + i, wide)
    """,
    lambda: (floats(1), np.zeros(4, np.float32), 1 << 30),
    """
    error[integer-overflow]: the result of `mul` does not fit int32: overflow in `mul`
      --> kernel.py:7:12 in k (at 3:11:)
       |
     7 |     wide = i * n + 5
       |            ^^^^^
      = note: program (0, 0, 0), element (2)
      = note: `i` = 2
      = note: `n` = 1073741824
      = help: cast an operand to a wider type with `.to(...)`
    """,
)

case(
    "64-bit overflow",
    errors.IntegerOverflow,
    """
    def k(p, q, n):
        big = n.to(tl.int64)
        big = big * big
        far = big * 8
        tl.store(p, far)
    """,
    lambda: (floats(1), floats(1), 1 << 30),
    """
    error[integer-overflow]: `far` does not fit int64: overflow in `mul`
      --> kernel.py:8:11 in k (at 4:10:)
       |
     8 |     far = big * 8
       |           ^^^^^^^
      = note: program (0, 0, 0)
      = note: `big` = 1152921504606846976
      = note: a constant = 8
      = help: cast an operand to a wider type with `.to(...)`
    """,
)

case(
    "division by zero",
    errors.IntegerOverflow,
    """
    def k(p, q, n):
        part = 12 // (n - tl.program_id(0))
        tl.store(p, part)
    """,
    lambda: (floats(1), floats(1), 1),
    """
    error[integer-overflow]: `part`: division by zero
      --> kernel.py:6:12 in k (at 2:11:)
       |
     6 |     part = 12 // (n - tl.program_id(0))
       |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      = note: program (1, 0, 0)
      = note: a constant = 12
      = note: the operand from `sub` = 0
      = help: divide where the divisor is not 0
    """,
)

case(
    "failed assertion",
    errors.DeviceAssertionError,
    """
    def k(p, q, n):
        i = tl.arange(0, 4)
        x = tl.load(p + i)
        assert x < n, "too large"
        tl.store(q + i, x)
    """,
    lambda: (floats(1, 2, 9, 4), np.zeros(4, np.float32), 5),
    """
    error[device-assert]: assertion failed: too large
      --> kernel.py:8:5 in k (at 4:4:)
       |
     8 |     assert x < n, "too large"
       |     ^^^^^^^^^^^^^^^^^^^^^^^^^
      = note: program (0, 0, 0), element (2)
      = note: `x` = 9.0
      = note: `n` = 5.0
    """,
)
