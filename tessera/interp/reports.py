"""Writes what a checked launch reports about the element at which it stopped.

A report is made from a row of data (`CheckOp.row`), which is in the metadata of compiled code, and the values found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tessera.errors import (
    DeviceAssertionError,
    FailedTile,
    IntegerOverflow,
    NotFinite,
    OutOfBounds,
    ProgramRace,
    TesseraError,
    UninitialisedRead,
)
from tessera.interp.numerics import CARRIERS
from tessera.ir import unpack_location

Row = Mapping[str, Any]  # of a check

KINDS: dict[str, type[TesseraError]] = {
    e.code: e
    for e in (
        DeviceAssertionError, IntegerOverflow, NotFinite, OutOfBounds, ProgramRace, UninitialisedRead
    )
}  # fmt: skip


def failure(
    row: Row, program: Sequence[int], index: int, values: Sequence[Sequence[Any]], bad: bytes = b"",
    rows: Sequence[Row] = (),
) -> TesseraError:  # fmt: skip
    """Return the error of a check: `index` counts elements row by row, `values` has the samples of each value, `bad` a
    byte for each element: whether it fails; `rows` are those of all checks, among them the other one of a race."""
    facts = [v[0] for v in values[: len(values) - len(row["labels"])]]
    kind = KINDS[row["kind"]]
    message = row["message"]
    if kind is OutOfBounds:
        message = _out_of_bounds(message, int(facts[0]), int(facts[1]))
    elif kind is NotFinite:
        nan = bool(np.isnan(facts[0]))
        of = "infinities" if nan and facts[1] else "finite numbers"
        message = message.format("NaN" if nan else "infinity", of)
    if kind in (ProgramRace, UninitialisedRead):
        message = message.format(_ids(program), facts[0], _ids(facts[1:4]))
    by_zero = message.endswith("division by zero")
    error = kind(message, help="divide where the divisor is not 0" if by_zero else None)
    error.loc = unpack_location(row["loc"])
    if row["shape"]:
        error.failed = FailedTile(tuple(row["shape"]), bad, tuple(program), index)
    if kind in (ProgramRace, UninitialisedRead):
        site = next((r["loc"] for r in rows if r["site"] == facts[4]), None)
        other = unpack_location(site) if kind is ProgramRace else None
        return error if other is None else error.note(f"the other access is at {other.short()}")
    where = f"program {_ids(program)}"
    element = [int(i) for i in np.unravel_index(index, row["shape"])] if row["shape"] else []
    error.note(where + (f", element ({', '.join(map(str, element))})" if element else ""))
    shapes = row["shapes"][len(facts) :]
    for label, shape, found in zip(row["labels"], shapes, values[len(facts) :], strict=True):
        error.note(f"{label} = {_shown(found, shape)}")
    return error


def _ids(program: Sequence[object]) -> str:
    return f"({', '.join(map(str, program))})"


def _out_of_bounds(message: str, element: int, holds: int) -> str:
    where = (
        f", whose storage ends after element {holds - 1}"
        if element >= 0
        else ", before its storage"
    )
    return message.format(element) + where


def _shown(found: Sequence[object], shape: Sequence[int]) -> str:
    if not shape:
        return str(found[0])
    texts = [str(x) for x in found]
    if len(texts) < prod(shape):
        texts.insert(len(texts) // 2, "...")
    return f"[{', '.join(texts)}] of shape {'x'.join(map(str, shape))}"


def from_words(row: Row, words: Iterator[int]) -> list[list[Any]]:
    """Decode the values that compiled code stored as 64-bit words, floats as doubles."""
    found: list[list[Any]] = []
    for name, count in zip(row["types"], row["counts"], strict=True):
        kind = np.dtype(CARRIERS.get(name, np.int64))
        raw = np.array([next(words) for _ in range(count)], np.int64)
        found.append(list((raw.view(np.float64) if kind.kind == "f" else raw).astype(kind)))
    return found
