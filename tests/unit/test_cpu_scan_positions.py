"""Scans of pairs of a value and its position: `cummax` and `cummin` with indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.config import knobs
from tests.unit.cpu_kit import agree, floats, native


@tessera.jit
def last_largest(a, i, b, j):
    """Of equal values the later position; NaN is larger than any number."""
    first, equal = a > b, a == b
    a_nan, b_nan = a != a, b != b
    first |= a_nan & (not b_nan)
    equal |= a_nan & b_nan
    first |= equal & (i > j)
    return tl.where(first, a, b), tl.where(first, i, j)


@tessera.jit
def first_least(a, i, b, j):
    """Of equal values the lesser position, wherever it stands."""
    first = (a < b) | ((a == b) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


@tessera.jit
def by_negatives(a, i, b, j):
    """As `last_largest`, by the least of the negatives."""
    first = (a > b) | ((a == b) & (-i < -j)) | ((a != a) & ((b == b) | (-i < -j)))
    return tl.where(first, a, b), -tl.where(first, -i, -j)


@tessera.jit
def farthest(a, i, b, j):
    """Chooses by the positions alone, and has a third value that is no position."""
    return tl.where(i >= j, a, b), tl.where(i >= j, i, j)


@tessera.jit
def rows(
    x, values, places, n, F: tl.constexpr, START: tl.constexpr, REVERSE: tl.constexpr, B: tl.constexpr
):  # fmt: skip
    at = tl.arange(0, B)
    here = tl.program_id(0) * n + at
    v = tl.load(x + here, mask=at < n, other=0)
    start = tl.full([], START, tl.int64)
    place = (at + start).to(places.dtype.element_ty)
    most, place = tl.associative_scan((v, place), 0, F, reverse=REVERSE)
    tl.store(values + here, most, mask=at < n)
    tl.store(places + here, place, mask=at < n)


@tessera.jit
def tile(
    x, values, places, M, N,
    F: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    i, j = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    inside = (i < M) & (j < N)
    v = tl.load(x + i * N + j, mask=inside, other=0)
    place = tl.broadcast_to((i if AXIS == 0 else j).to(tl.int64), v.shape)
    most, place = tl.associative_scan((v, place), AXIS, F, reverse=REVERSE)
    tl.store(values + i * N + j, most, mask=inside)
    tl.store(places + i * N + j, place, mask=inside)


REGIONS = [last_largest, first_least, by_negatives, farthest]
KINDS = [np.float32, np.float64, np.float16, np.int8, np.int64]


def ties(kind: Any, *shape: int) -> np.ndarray:
    x = np.random.default_rng(5).integers(0, 4, shape).astype(kind)
    if np.issubdtype(kind, np.floating):
        x.flat[3::17] = -0.0
        x.flat[5::29] = np.nan
    return x


@pytest.mark.parametrize("isa", ["", "generic"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_rows(
    kind: Any, region: Any, reverse: bool, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knobs.cpu, "isa", isa or None)
    for n in (1, 100, 256):
        x = ties(kind, 2, n)
        if region in (first_least, farthest) and x.dtype.kind == "f":
            x = np.nan_to_num(x)
        for places in (np.int64, np.int32):
            out = x.copy(), np.full((2, n), 9, places)
            agree(rows, (2,), x, *out, n, F=region, START=0, REVERSE=reverse, B=256)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("start", [-300, 5, 2**31 - 257, 2**31 - 3])
@pytest.mark.parametrize("kind", [np.int16, np.int32, np.uint32, np.int64, np.uint64])
def test_positions_that_begin_elsewhere(kind: Any, start: int, reverse: bool) -> None:
    """Some of them wrap, are negative, or do not fit into 32 bits."""
    x = ties(np.float32, 2, 250)
    x = np.nan_to_num(x)
    for region in REGIONS:
        out = x.copy(), np.zeros((2, 250), kind)
        agree(rows, (2,), x, *out, 250, F=region, START=start, REVERSE=reverse, B=256)


@pytest.mark.parametrize("isa", ["", "generic"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(16, 64), (13, 50), (5, 1), (1, 60)])
def test_tiles(
    shape: tuple[int, int], reverse: bool, axis: int, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knobs.cpu, "isa", isa or None)
    x = ties(np.float32, *shape)
    for region in (last_largest, farthest):
        out = x.copy(), np.full(shape, 9, np.int64)
        agree(tile, (1,), x, *out, *shape, F=region, AXIS=axis, REVERSE=reverse, BM=16, BN=64)


@pytest.mark.parametrize("region", [last_largest, by_negatives])
def test_what_is_carried(region: Any) -> None:
    """Positions of 64 bits are carried in 32, and nothing compares them; without the optimisation they are not."""
    x, n = floats(3, 200), 200
    arguments = x, x.copy(), np.zeros((3, 200), np.int64), n
    how = {"F": region, "START": 0, "REVERSE": False, "B": 256}
    text = _region(native(rows, (3,), *arguments, **how))
    before = text.count("predicate=")
    assert "i64" not in text
    with knobs.scope():
        knobs.compilation.disable = "scan-positions"
        text = _region(agree(rows, (3,), *arguments, **how))
    assert "i64" in text and text.count("predicate=") == before + 2


def _region(compiled: Any) -> str:
    text = compiled.asm["tir"]
    return text[text.index(" scan [") :].split("yield", 1)[0]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 2, 4, 8, 16, 48, 64])
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int32, np.int64, np.float16])
def test_the_order_of_what_is_combined(kind: Any, length: int, reverse: bool) -> None:
    """Composition of affine functions is associative and not commutative."""
    rng = np.random.default_rng(length)
    a, b = (rng.integers(-1, 2, (4, 64)).astype(kind) for _ in range(2))
    agree(recurrence, (1,), a, b, np.zeros((4, 64), kind), L=length, REVERSE=reverse)


@tessera.jit
def after(a, b, c, d):
    return a * c, b * c + d


@tessera.jit
def recurrence(a, b, out, L: tl.constexpr, REVERSE: tl.constexpr):
    i, j = tl.arange(0, 4)[:, None], tl.arange(0, 64)[None, :]
    inside = j < L
    x, y = tl.load(a + i * 64 + j, inside, 1), tl.load(b + i * 64 + j, inside, 0)
    _, s = tl.associative_scan((x, y), 1, after, reverse=REVERSE)
    tl.store(out + i * 64 + j, s, mask=inside)
