"""One instruction reduces words over a warp, and finds where an extremum is (`warp-reductions`)."""

# pyright: basic
from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.simt_kit import Compiled

C = "constexpr"
NUMBERS: dict[str, type] = {
    "fp32": np.float32, "fp16": np.float16, "i32": np.int32, "u32": np.uint32, "i8": np.int8, "u16": np.uint16,
}  # fmt: skip
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-40, -1e-40, 65504.0]


@tessera.jit
def places_kernel(x, values, places, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    most, first = tl.max(v, 0, return_indices=True)
    least, last = tl.min(v, 0, return_indices=True)
    tl.store(values, most)
    tl.store(values + 1, least)
    tl.store(places, first)
    tl.store(places + 1, last)
    tl.store(places + 2, tl.argmax(v, 0))
    tl.store(places + 3, tl.argmin(v, 0))


@tessera.jit
def plain_kernel(x, out, N: tl.constexpr, BITS: tl.constexpr):
    v = tl.load(x + tl.arange(0, N))
    tl.store(out, tl.max(v, 0))
    tl.store(out + 1, tl.min(v, 0))
    if BITS:
        tl.store(out + 2, tl.sum(v, 0))
        tl.store(out + 3, tl.xor_sum(v, 0))
        tl.store(out + 4, tl.reduce_or(v, 0))
        tl.store(out + 5, tl.max((v > 3).to(tl.int1), 0).to(tl.int32))
        tl.store(out + 6, tl.sum((v > 3).to(tl.int32), 0))


def rows(dtype: type, n: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    if issubclass(dtype, np.integer):
        info = np.iinfo(dtype)
        ends = rng.choice(np.array([info.min, info.max, 0, 1], dtype), n)
        return [
            ends,
            rng.integers(info.min, info.max, n, dtype, endpoint=True),
            np.full(n, info.min, dtype),
        ]
    special = np.array(SPECIAL, dtype)
    return [
        rng.standard_normal(n).astype(dtype), rng.choice(special, n), rng.choice(special[:2], n),
        rng.choice(special[3:5], n), np.full(n, -np.inf, dtype), np.full(n, -0.0, dtype),
    ]  # fmt: skip


def place_of(v: np.ndarray, sign: int) -> int:
    """Where the greatest (1) or least (-1) number is; NaN is none."""
    ordered = v.astype(np.float64) * sign
    return int(np.flatnonzero(ordered == np.nanmax(ordered))[0])


@pytest.mark.parametrize("off", ["", "warp-reductions"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "i32", "u32", "i8", "u16"])
def test_places_of_extrema(dtype: str, off: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TESSERA_DISABLE", off)
    number = NUMBERS[dtype]
    signature = {"x": f"*{dtype}", "values": f"*{dtype}", "places": "*i32", "N": C}
    for n, warps in ((32, 1), (128, 2)):
        found = Compiled(places_kernel, signature, {"N": n}, num_warps=warps)
        assert (found.count("redux") > 0) == (not off)
        assert (found.count("shfl") > 0) == bool(off)
        for x in rows(number, n, n):
            values, places = np.zeros(2, number), np.zeros(4, np.int32)
            found.run(x, values, places)
            wanted = [place_of(x, 1), place_of(x, -1)]
            np.testing.assert_array_equal(places, wanted * 2)
            np.testing.assert_array_equal(values, x[wanted])
            np.testing.assert_array_equal(np.signbit(values), np.signbit(x[wanted]))


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "i32", "u32", "i8"])
def test_all_elements(dtype: str):
    number = NUMBERS[dtype]
    bits = dtype in ("i32", "u32")
    signature = {"x": f"*{dtype}", "out": f"*{dtype}", "N": C, "BITS": C}
    for n, warps in ((32, 1), (64, 2)):
        found = Compiled(plain_kernel, signature, {"N": n, "BITS": bits}, num_warps=warps)
        assert found.count("shfl") == 0 and found.count("redux") >= (7 if bits else 2)
        for x in rows(number, n, n + 1):
            out = np.zeros(7, number)
            found.run(x, out)
            np.testing.assert_array_equal(out[:2], [np.nanmax(x), np.nanmin(x)])
            if bits:
                wanted = [
                    x.sum(dtype=number),
                    np.bitwise_xor.reduce(x),
                    np.bitwise_or.reduce(x),
                    (x > 3).any(),
                    (x > 3).sum(),
                ]
                np.testing.assert_array_equal(out[2:], np.array(wanted).astype(number))


def test_a_row_without_numbers_has_none():
    signature = {"x": "*fp32", "out": "*fp32", "N": C, "BITS": C}
    found = Compiled(plain_kernel, signature, {"N": 64, "BITS": False}, num_warps=2)
    out = np.zeros(2, np.float32)
    found.run(np.full(64, np.nan, np.float32), out)
    assert np.isnan(out).all()


@tessera.jit
def where_first(a, i, b, j):
    other = (b > a) | ((b == a) & (j < i)) | (a != a)
    return tl.where(other, b, a), tl.where(other, j, i)


@tessera.jit
def by_cases(a, i, b, j):
    take = tl.where(a == b, i, j) == i
    lower = (a < b) | ((a == b) & (i < j)) | ((b != b) & take)
    return tl.where(lower, a, b), tl.where(lower, i, j)


@tessera.jit
def last_of_equals(a, i, b, j):
    take = (a > b) | ((a == b) & (i > j))
    return tl.where(take, a, b), tl.where(take, i, j)


@tessera.jit
def nan_wins(a, i, b, j):
    take = (a > b) | ((a == b) & (i < j)) | (a != a)
    take = take & ((b == b) | (a != a))
    return tl.where(take, a, b), tl.where(take, i, j)


@tessera.jit
def other_index(a, i, b, j):
    take = (a > b) | ((a == b) & (i < j)) | (b != b)
    return tl.where(take, a, b), tl.where(take, j, i)


@tessera.jit
def number_and_index(a, i, b, j):
    take = (a > b) | ((a == b) & (i < j)) | ((a > j) & (a < b))
    return tl.where(take, a, b), tl.where(take, i, j)


@tessera.jit
def lower_index(a, i, b, j):
    return tl.where(a > b, a, b), tl.minimum(i, j)


@tessera.jit
def own_kernel(x, out, N: tl.constexpr, FN: tl.constexpr):
    i = tl.arange(0, N)
    _, place = tl.reduce((tl.load(x + i), i), 0, FN)
    tl.store(out, place)


@pytest.mark.parametrize(
    ("fn", "known"),
    [(where_first, True), (by_cases, True), (last_of_equals, False), (nan_wins, False), (other_index, False),
     (number_and_index, False), (lower_index, False)],
)  # fmt: skip
def test_regions_are_known_by_what_they_keep(fn, known):
    found = Compiled(
        own_kernel, {"x": "*fp32", "out": "*i32", "N": C, "FN": C}, {"N": 64, "FN": fn}, num_warps=1
    )
    assert (found.count("redux") > 0) == known
    if known:
        x = np.array([5, 7, np.nan, 7] * 16, np.float32)
        out = np.zeros(1, np.int32)
        found.run(x, out)
        assert out[0] == (0 if fn is by_cases else 1)
