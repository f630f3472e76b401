"""Number formats, rounding and casts of the interpreter, against ml_dtypes and exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera import dtypes as dt
from tessera.interp.arith import _add_to_odd, fma_f64
from tessera.interp.numerics import (
    bitcast,
    carrier,
    convert,
    decode_bf16,
    decode_table,
    encode_bf16,
    encode_fp8,
    from_storage,
    settle,
    to_storage,
)
from tessera.interp.tile import _tf32

THEIRS: dict[dt.dtype, Any] = {
    dt.float8e4nv: ml_dtypes.float8_e4m3fn,
    dt.float8e5: ml_dtypes.float8_e5m2,
    dt.float8e4b8: ml_dtypes.float8_e4m3fnuz,
    dt.float8e5b16: ml_dtypes.float8_e5m2fnuz,
}
INF, NAN = float("inf"), float("nan")
CODES = np.arange(256, dtype=np.uint8)
FP8 = pytest.mark.parametrize("t", THEIRS, ids=str)


def f32(values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bit for bit, all NaNs being one."""
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    nan = np.isnan(a) & np.isnan(b)
    return bool(np.all(nan | (a.view(np.uint32) == b.view(np.uint32))))


@FP8
def test_fp8_codes_mean_what_ml_dtypes_says(t: dt.dtype) -> None:
    assert same(decode_table(t), CODES.view(THEIRS[t]).astype(np.float32))


@FP8
def test_fp8_codes_survive(t: dt.dtype) -> None:
    values = decode_table(t)
    finite = np.isfinite(values)
    assert np.array_equal(encode_fp8(values, t)[finite], CODES[finite])
    assert np.isnan(from_storage(encode_fp8(f32([np.nan, -np.nan]), t), t)).all()


@FP8
def test_fp8_rounds_as_ml_dtypes(t: dt.dtype) -> None:
    """All neighbours and midpoints of all values, and random ones; larger magnitudes saturate."""
    table = np.unique(np.abs(decode_table(t)[np.isfinite(decode_table(t))]).astype(np.float64))
    middles = (table[1:] + table[:-1]) / 2
    x = np.concatenate([table, middles, np.nextafter(middles, 0), np.nextafter(middles, np.inf)])
    rng = np.random.default_rng(0)
    x = np.concatenate([x, rng.uniform(0, table[-1], 4000), np.exp2(rng.uniform(-20, 0, 4000))])
    x = x[x <= table[-1]].astype(np.float32)
    x = np.concatenate([x, -x])
    assert same(settle(x, t), x.astype(THEIRS[t]).astype(np.float32))
    large = f32([table[-1] * 1.5, 1e9, np.inf])
    assert np.array_equal(settle(large, t), np.full(3, np.float32(table[-1])))
    assert np.array_equal(settle(-large, t), np.full(3, -np.float32(table[-1])))


def test_fp8e4b15_has_no_nan_and_stops_at_1_75() -> None:
    t = dt.float8e4b15
    assert np.array_equal(settle(f32([1.75, 1.9, 100, -100]), t), f32([1.75, 1.75, 1.75, -1.75]))
    assert decode_table(t)[0x01] == 2.0**-17 and decode_table(t)[0x78] == 1.0


def test_fp8_toward_zero() -> None:
    x = f32([1.24, -1.24, 1.25, 1.49, 1e9, 2.0**-17])
    assert np.array_equal(settle(x, dt.float8e5, "rtz"), f32([1, -1, 1.25, 1.25, 57344, 0]))


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=64))
def test_bf16_rounds_as_ml_dtypes(words: list[int]) -> None:
    x = np.array(words, np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        assert same(settle(x, dt.bfloat16), x.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_every_bf16_code_survives() -> None:
    """NaNs too: moving data through the carrier must not change it."""
    codes = np.arange(1 << 16, dtype=np.uint16)
    assert np.array_equal(encode_bf16(decode_bf16(codes)), codes)
    assert np.array_equal(encode_bf16(decode_bf16(codes), "rtz"), codes)
    quiet = encode_bf16(np.array([0x7F800001], np.uint32).view(np.float32))
    assert quiet[0] == 0x7FC0  # a payload in the lower half does not become infinity


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1))
def test_tf32_keeps_ten_bits(values: list[float]) -> None:
    x = f32(values)
    y = _tf32(x)
    assert not np.any(y.view(np.uint32) & 0x1FFF)
    bound = np.maximum(np.abs(x.astype(np.float64)), 2.0**-126) * 2.0**-11
    assert np.all(np.abs(x.astype(np.float64) - y) <= bound)


def test_tf32_ties_and_specials() -> None:
    assert np.array_equal(_tf32(f32([1 + 2**-11, 1 + 3 * 2**-11])), f32([1, 1 + 2**-9]))
    assert _tf32(f32([INF, -INF])).tolist() == [INF, -INF]
    every_nan = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(_tf32(every_nan)).all()


def cast(values: Any, source: dt.dtype, target: dt.dtype, rounding: str = "rtne") -> list[Any]:
    x = np.asarray(values, carrier(source))
    with np.errstate(all="ignore"):
        out = convert(x, source, target, rounding)
    assert out.dtype == carrier(target)
    return out.tolist()


@pytest.mark.parametrize(
    ("source", "target", "values", "expected"),
    [
        # integers: truncate or extend by the signedness of the source
        (dt.int32, dt.int8, [300, -129, 128], [44, 127, -128]),
        (dt.int8, dt.uint32, [-1], [2**32 - 1]),
        (dt.uint8, dt.int32, [255], [255]),
        (dt.int1, dt.int16, [True, False], [1, 0]),
        (dt.int32, dt.int1, [0, 2, -1], [False, True, True]),
        # floats to int1: not zero, NaN counts
        (dt.float32, dt.int1, [0.0, -0.0, 0.5, NAN], [False, False, True, True]),
        # floats to integers: toward zero, saturating at the width of the conversion, NaN is 0
        (dt.float32, dt.int32, [1.9, -1.9, 3e9, -3e9, INF, NAN], [1, -1, 2**31 - 1, -(2**31), 2**31 - 1, 0]),
        (dt.float32, dt.uint32, [1.9, -1.9, 3e9, 5e9, -INF], [1, 0, 3000000000, 2**32 - 1, 0]),
        (dt.float64, dt.int64, [1e19, -1e19, 2.0**62], [2**63 - 1, -(2**63), 2**62]),
        (dt.float64, dt.uint64, [1e20, 2.0**63, -1.0], [2**64 - 1, 2**63, 0]),
        (dt.float32, dt.int8, [300.0, 1e9, -1.0], [44, -1, -1]),
        (dt.float32, dt.uint8, [300.0, -5.0, 1e9], [44, 0, 255]),
        (dt.float16, dt.int16, [65504.0, -2.5], [32767, -2]),
        (dt.bfloat16, dt.int32, [2.5, -1.0], [2, -1]),
        # integers to floats: nearest even, unsigned-aware
        (dt.int32, dt.float32, [2**24 + 1, 2**24 + 3], [2.0**24, 2.0**24 + 4]),
        (dt.uint64, dt.float64, [2**64 - 1], [2.0**64]),
        (dt.int32, dt.float16, [2049, 70000], [2048.0, INF]),
        (dt.int1, dt.float32, [True], [1.0]),
        # floats
        (dt.float32, dt.float16, [1 + 2**-11, 1 + 3 * 2**-11, 1e6], [1.0, 1 + 2**-9, INF]),
        (dt.float64, dt.float32, [1 + 2**-24, 1e300], [1.0, INF]),
        (dt.float64, dt.float16, [1 + 2**-11 + 2**-40], [1 + 2**-10]),  # rounded once, not to fp32 before
        (dt.float16, dt.bfloat16, [1 + 2**-9], [1.0]),
        (dt.bfloat16, dt.float64, [1.5], [1.5]),
        (dt.float8e5, dt.float32, [57344.0, INF], [57344.0, INF]),
    ],
)  # fmt: skip
def test_cast_table(source: dt.dtype, target: dt.dtype, values: Any, expected: Any) -> None:
    assert cast(values, source, target) == expected


@pytest.mark.parametrize(
    ("source", "target", "values", "expected"),
    [
        (dt.float32, dt.float16, [1 + 3 * 2**-11, 1e6, INF, 2.0**-25], [1 + 2**-10, 65504.0, INF, 0.0]),
        (dt.float32, dt.bfloat16, [1.999999, -1.999999], [1.9921875, -1.9921875]),
        (dt.float64, dt.float32, [1 + 2**-24 + 2**-25, 1e300], [1.0, float(np.finfo(np.float32).max)]),
        (dt.float64, dt.bfloat16, [2 - 2**-40], [1.9921875]),
        (dt.float64, dt.float16, [2 - 2**-40], [2 - 2**-10]),
    ],
)  # fmt: skip
def test_casts_toward_zero(source: dt.dtype, target: dt.dtype, values: Any, expected: Any) -> None:
    assert cast(values, source, target, "rtz") == expected
    assert np.isnan(cast([NAN], source, target, "rtz")[0])


def test_pointer_casts_keep_the_address() -> None:
    p = dt.pointer_type(dt.float32)
    address = np.array([2**47, 0], np.int64)
    assert convert(address, p, dt.int64).tolist() == [2**47, 0]
    assert convert(address, p, dt.int1).tolist() == [True, False]
    assert convert(np.array([2**32 - 1], np.uint32), dt.uint32, p).tolist() == [2**32 - 1]


def test_bitcasts() -> None:
    assert bitcast(f32([1.0, -0.0]), dt.float32, dt.uint32).tolist() == [
        0x3F800000,
        0x80000000,
    ]
    assert bitcast(np.array([0x3F80], np.int16), dt.int16, dt.bfloat16).tolist() == [1.0]
    assert bitcast(f32(1.0), dt.bfloat16, dt.float16) == np.uint16(0x3F80).view(np.float16)
    assert bitcast(np.array([0x38], np.uint8), dt.uint8, dt.float8e4nv).tolist() == [1.0]
    every = np.arange(1 << 16, dtype=np.int64).astype(np.int16)
    assert np.array_equal(
        bitcast(bitcast(every, dt.int16, dt.bfloat16), dt.bfloat16, dt.int16), every
    )
    assert bitcast(np.array(1.0), dt.float64, dt.int64) == 0x3FF0000000000000


@pytest.mark.parametrize("t", dt.ALL_DTYPES, ids=str)
def test_storage_round_trips(t: dt.dtype) -> None:
    values = settle(np.array([0, 1, 1.5, -0.25 if t.is_floating() else 3]), t)
    raw = to_storage(values, t)
    assert raw.dtype.itemsize == t.storage_bytes
    back = from_storage(raw, t)
    assert np.array_equal(back, values) and back.dtype == carrier(t)


def test_a_stored_int1_is_any_byte_but_zero() -> None:
    assert from_storage(np.array([0, 1, 2, 255], np.uint8), dt.int1).tolist() == [
        False,
        True,
        True,
        True,
    ]


FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(FINITE, FINITE, FINITE)
def test_fma_rounds_once(x: float, y: float, z: float) -> None:
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    with np.errstate(all="ignore"):
        got = np.float32(_add_to_odd(np.asarray(np.float64(x) * np.float64(y)), np.asarray(z)))
        near = [float(np.nextafter(got, np.float32(to))) for to in (-INF, INF)]
    distance = abs(Fraction(float(got)) - exact) if np.isfinite(got) else 0
    assert all(abs(Fraction(n) - exact) >= distance for n in near if np.isfinite(n))
    assert float(fma_f64(*np.asarray([x, y, z]))) == (float(exact) if exact else x * y + z)


def test_fma_where_two_roundings_differ() -> None:
    """1 + 2^-24 plus a little: fp64 would round it to the tie, fp32 the tie to even."""
    x, z, tiny = np.asarray(2.0**-24), np.asarray(1.0), np.asarray(2.0**-80)
    near = np.asarray(z + x)
    assert np.float32(_add_to_odd(near, tiny)) == np.float32(1 + 2**-23)
    assert np.float32(_add_to_odd(near, np.negative(tiny))) == np.float32(1.0)
