"""Whether two runs of a kernel left the same: bit for bit, or within a bound derived from the kernel."""

from __future__ import annotations

import numpy as np

from tests.conftest import as_dtype, decode, is_native
from tests.fuzz.case import CANARY, Array, Case


def numbers(bits: np.ndarray, array: Array) -> np.ndarray:
    kind = as_dtype(array.dtype)
    return bits if is_native(kind) else decode(bits, kind)


def difference(
    case: Case,
    got: dict[str, np.ndarray],
    want: dict[str, np.ndarray],
    magnitudes: dict[str, np.ndarray] | None = None,
) -> str:
    """What differs, in words; "" if nothing. `magnitudes` are the results of the case's twin."""
    for array in case.arrays:
        if array.same_as:
            continue
        ours, theirs = got[array.name], want[array.name]
        inside = slice(CANARY + array.offset, CANARY + array.offset + array.size)
        outside = ours.copy()
        outside[inside] = theirs[inside]
        if outside.tobytes() != _with(theirs, inside, theirs).tobytes():
            at = (
                int(np.flatnonzero(outside.view(np.uint8) != theirs.view(np.uint8))[0])
                // ours.itemsize
            )
            return f"{array.name}: written outside of the array, at element {at - inside.start}"
        a, b = numbers(ours[inside], array), numbers(theirs[inside], array)
        wrong = _wrong(a, b)
        if magnitudes is not None and case.bound and array.output and wrong.any():
            scale = np.abs(numbers(magnitudes[array.name][inside], array).astype(np.float64))
            with np.errstate(all="ignore"):
                apart = np.abs(a.astype(np.float64) - b.astype(np.float64))
            wrong &= ~(apart <= case.bound * scale)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            return (
                f"{array.name}: {int(wrong.sum())} of {wrong.size} elements differ; element {at} is {a[at]!r}, "
                f"the interpreter's {b[at]!r}"
            )
    return ""


def _with(memory: np.ndarray, inside: slice, other: np.ndarray) -> np.ndarray:
    made = memory.copy()
    made[inside] = other[inside]
    return made


def _wrong(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Elements that are not equal; a NaN equals a NaN, and zeros of both signs are equal."""
    if a.dtype.kind != "f":
        return a != b
    with np.errstate(all="ignore"):
        return ~((a == b) | (np.isnan(a) & np.isnan(b)))
