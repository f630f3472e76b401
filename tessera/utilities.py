"""Contains small helpers of the host API: sizes of grids and blocks, also of compile-time values; numbers of other
libraries.
"""

from __future__ import annotations

import os
import sys
from operator import index
from pathlib import Path
from types import FrameType
from typing import Any

from tessera.language.values import unwrap

PACKAGE = Path(__file__).parent  # the folder of tessera's own sources, as the code objects name it
_OWN = os.path.join(
    PACKAGE, ""
)  # with a separator: beside `tessera` there may be `tessera_kernels`


def cdiv(x: int, y: int) -> int:
    """`x / y` rounded up: the smallest number of blocks of `y` that cover `x`.

    It raises ZeroDivisionError for `y` = 0.

    Example:
        >>> tessera.cdiv(1000, 256)
        4
    """
    try:
        blocks = (x + y - 1) // y
    except ZeroDivisionError as error:
        error.add_note("  = help: the second argument is the size of a block, which is 1 or more")
        raise
    return blocks if blocks.__class__ is int else unwrap(blocks)  # a plain int needs no call


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is not below the integer `n`; 0 for 0 and below. It raises TypeError for others.

    Example:
        >>> [tessera.next_power_of_2(n) for n in (0, 1, 17, 32)]
        [0, 1, 32, 32]
    """
    try:
        n = n if type(n) is int else index(unwrap(n))
    except TypeError as error:
        error.add_note("  = help: divide with `//`, or round with `math.ceil(n)`")
        raise
    return 1 << (n - 1).bit_length() if n > 0 else 0


def number(x: Any) -> Any:
    """Return a NumPy scalar as a Python number of its value, anything else unchanged. Does not import NumPy."""
    np = sys.modules.get("numpy")
    if np is None or not isinstance(x, np.generic):
        return x
    kind = x.dtype.kind
    if kind == "b":
        return bool(x)
    if kind in "iu":
        return int(x)
    if kind == "f":
        return float(x)
    # Numbers of other packages (ml_dtypes: bfloat16, int4) are of kind V, like bytes.
    for convert in (index, float) if kind == "V" and x.dtype.names is None else ():
        try:
            return convert(x)
        except (TypeError, ValueError):
            continue
    return x


def is_own(frame: FrameType) -> bool:
    """Whether a frame runs tessera's own code, not that of a kernel or program, even in a folder next to tessera's."""
    return frame.f_code.co_filename.startswith(_OWN)


def stacklevel_of_caller() -> int:
    """Return the `stacklevel` with which `warnings.warn`, called here, names the first line outside tessera."""
    level, frame = 1, sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and is_own(frame):
        level, frame = level + 1, frame.f_back
    return level
