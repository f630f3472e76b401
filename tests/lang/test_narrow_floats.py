"""Conversions to and from narrow floats, exhaustively: every code widened, every half-precision number narrowed.

Narrow numbers travel as bytes that the kernel reinterprets, so that formats no array library has are covered too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import tessera
import tessera.language as tl

BLOCK = 1024


class Format(NamedTuple):
    """An 8-bit float. `largest`: the largest finite number; `nan`: codes (without sign) that are NaN or infinite."""

    dtype: Any
    mantissa: int
    bias: int
    largest: float
    special: tuple[int, ...] = ()
    minus_zero: bool = True


FORMATS = {
    "fp8e5": Format(tl.float8e5, 2, 15, 57344.0, (0x7C, 0x7D, 0x7E, 0x7F)),
    "fp8e4nv": Format(tl.float8e4nv, 3, 7, 448.0, (0x7F,)),
    "fp8e4b15": Format(tl.float8e4b15, 3, 15, 1.75),
    "fp8e4b8": Format(tl.float8e4b8, 3, 8, 240.0, minus_zero=False),
    "fp8e5b16": Format(tl.float8e5b16, 2, 16, 57344.0, minus_zero=False),
}


def value_of(code: int, f: Format) -> float:
    """The number behind a code, from its bits."""
    if code & 0x7F in f.special or (code == 0x80 and not f.minus_zero):
        return float("nan")
    e, m = (code & 0x7F) >> f.mantissa, code & ((1 << f.mantissa) - 1)
    size = m / 2**f.mantissa * 2.0 ** (1 - f.bias)
    if e:
        size = (1 + m / 2**f.mantissa) * 2.0 ** (e - f.bias)
    return -size if code & 0x80 else size


def narrowed(x: np.ndarray, f: Format, toward_zero: bool = False) -> np.ndarray:
    """Codes of the nearest numbers, ties to the even code, or of the next ones toward zero; large ones saturate."""
    sizes = np.array([value_of(c, f) for c in range(128) if c not in f.special])
    sizes = sizes[sizes <= f.largest]
    a = np.minimum(np.abs(x.astype(np.float64)), f.largest)
    high = np.searchsorted(sizes, a)
    low = np.maximum(high - 1, 0)
    up, down = sizes[high] - a, a - sizes[low]
    code = np.where((up < down) | ((up == down) & (high % 2 == 0)) | (up == 0), high, low)
    if toward_zero:
        code = np.where(up == 0, high, low)
    negative = np.signbit(x) & (f.minus_zero | (code != 0))
    return (code | np.where(negative, 0x80, 0)).astype(np.uint8)


@tessera.jit
def widen_kernel(codes, out, N: tl.constexpr, T: tl.constexpr, W: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(codes + i).to(T, bitcast=True).to(W).to(tl.float32))


@tessera.jit
def narrow_kernel(x, codes, N: tl.constexpr, T: tl.constexpr, BITS: tl.constexpr, MODE: tl.constexpr):  # fmt: skip
    i = tl.program_id(0) * N + tl.arange(0, N)
    y = tl.load(x + i).to(T, fp_downcast_rounding=MODE)
    tl.store(codes + i, y.to(BITS, bitcast=True))


@tessera.jit
def narrow_bf16_kernel(bits, codes, N: tl.constexpr, T: tl.constexpr, MODE: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    y = tl.load(bits + i).to(tl.bfloat16, bitcast=True).to(T, fp_downcast_rounding=MODE)
    tl.store(codes + i, y.to(tl.uint8, bitcast=True))


def launched(device: Any, x: np.ndarray, to: Any, bits: str, mode: str) -> np.ndarray:
    """The bits of `x` (padded to whole blocks) narrowed on the device."""
    n = -(-len(x) // BLOCK) * BLOCK
    padded = np.concatenate([x, np.zeros(n - len(x), x.dtype)])
    out = device.zeros(n, bits)
    to_bits = {"u8": tl.uint8, "u16": tl.uint16, "u32": tl.uint32}[bits]
    narrow_kernel[(n // BLOCK,)](device.array(padded), out, BLOCK, to, to_bits, mode)
    return device.numpy(out)[: len(x)]


def every_half() -> np.ndarray:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    return x[~np.isnan(x)]


def many_singles() -> np.ndarray:
    """Every upper half of an fp32 with the lower halves that decide a rounding."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    x = (upper[:, None] | lower).reshape(-1).view(np.float32)
    return x[~np.isnan(x)]


@pytest.mark.parametrize("wide", [tl.float16, tl.bfloat16, tl.float32], ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_every_code_widens_exactly(device: Any, name: str, wide: Any):
    f = FORMATS[name]
    want = np.array([value_of(c, f) for c in range(256)])
    want[[c for c in range(256) if name == "fp8e5" and c & 0x7F == 0x7C]] = np.inf
    want[0xFC] *= -1 if name == "fp8e5" else 1
    out = device.zeros(256, "fp32")
    widen_kernel[(1,)](device.array(np.arange(256, dtype=np.uint8)), out, 256, f.dtype, wide)
    got = device.numpy(out)
    np.testing.assert_array_equal(got, want)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.signbit(got[finite]), np.signbit(want[finite]))


@tessera.jit
def signs_kernel(codes, negated, sizes, N: tl.constexpr, T: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(codes + i).to(T, bitcast=True)
    tl.store(negated + i, (-x).to(tl.float32))
    tl.store(sizes + i, tl.abs(x).to(tl.float32))


@pytest.mark.parametrize("name", FORMATS)
def test_signs_of_every_code(device: Any, name: str):
    """Without a negative zero, the sign of zero is a NaN; what is no finite number saturates as results do."""
    f = FORMATS[name]
    x = np.array([value_of(c, f) for c in range(256)])
    x[[0x7C, 0xFC]] = (np.inf, -np.inf) if name == "fp8e5" else x[[0x7C, 0xFC]]
    x = np.clip(x, -f.largest, f.largest)
    negated, sizes = device.zeros(256, "fp32"), device.zeros(256, "fp32")
    signs_kernel[(1,)](device.array(np.arange(256, dtype=np.uint8)), negated, sizes, 256, f.dtype)
    np.testing.assert_array_equal(device.numpy(negated), -x)
    np.testing.assert_array_equal(device.numpy(sizes), np.abs(x))


@pytest.mark.parametrize("name", FORMATS)
def test_every_half_narrows(device: Any, name: str):
    f, x = FORMATS[name], every_half()
    got = launched(device, x, f.dtype, "u8", "rtne")
    np.testing.assert_array_equal(got, narrowed(x, f))


@pytest.mark.parametrize("name", FORMATS)
def test_every_bfloat_narrows(device: Any, name: str):
    f = FORMATS[name]
    bits = np.arange(1 << 16, dtype=np.uint16)
    x = (bits.astype(np.uint32) << 16).view(np.float32)
    out = device.zeros(1 << 16, "u8")
    narrow_bf16_kernel[(64,)](device.array(bits), out, BLOCK, f.dtype, "rtne")
    numbers = ~np.isnan(x)
    np.testing.assert_array_equal(device.numpy(out)[numbers], narrowed(x[numbers], f))


@pytest.mark.parametrize("name", FORMATS)
def test_singles_narrow(device: Any, name: str):
    f, x = FORMATS[name], many_singles()
    got = launched(device, x, f.dtype, "u8", "rtne")
    np.testing.assert_array_equal(got, narrowed(x, f))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_nan_stays_nan_or_is_the_largest_number(device: Any, name: str, kind: Any):
    f = FORMATS[name]
    x = np.array([np.nan, -np.nan], kind)
    got = launched(device, x, f.dtype, "u8", "rtne")
    if name == "fp8e4b15":  # it has no code for NaN
        assert list(got) == [0x7E, 0x7E]
    else:
        assert all(np.isnan(value_of(int(c), f)) for c in got)


# --- toward zero --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("x", [every_half(), many_singles()], ids=["fp16", "fp32"])
def test_toward_zero_to_fp8e5(device: Any, x: np.ndarray):
    f = FORMATS["fp8e5"]
    got = launched(device, x, f.dtype, "u8", "rtz")
    np.testing.assert_array_equal(got, narrowed(x, f, toward_zero=True))


def test_bfloats_toward_zero_to_fp8e5(device: Any):
    f = FORMATS["fp8e5"]
    bits = np.arange(1 << 16, dtype=np.uint16)
    x = (bits.astype(np.uint32) << 16).view(np.float32)
    out = device.zeros(1 << 16, "u8")
    narrow_bf16_kernel[(64,)](device.array(bits), out, BLOCK, f.dtype, "rtz")
    numbers = ~np.isnan(x)
    want = narrowed(x[numbers], f, toward_zero=True)
    np.testing.assert_array_equal(device.numpy(out)[numbers], want)


def test_singles_toward_zero_to_fp16(device: Any):
    x = many_singles()
    got = launched(device, x, tl.float16, "u16", "rtz").view(np.float16)
    sizes = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    size = np.abs(x.astype(np.float64))
    below = sizes[np.searchsorted(sizes, np.minimum(size, 65504), side="right") - 1]
    want = np.copysign(np.where(np.isinf(x), np.inf, below), x)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(x))


def test_singles_toward_zero_to_bf16(device: Any):
    x = many_singles()
    got = launched(device, x, tl.bfloat16, "u16", "rtz")
    np.testing.assert_array_equal(got, (x.view(np.uint32) >> 16).astype(np.uint16))


@pytest.mark.parametrize("to", ["fp32", "fp16"])
def test_doubles_toward_zero(device: Any, to: str):
    rng = np.random.default_rng(3)
    x = rng.standard_normal(60_000) * 10.0 ** rng.integers(-48, 42, 60_000)
    if to == "fp16":
        x = rng.standard_normal(60_000) * 2.0 ** rng.integers(-27, 18, 60_000)
    edges = [0, -0.0, np.inf, -np.inf, 1 + 2.0**-25, 1 - 2.0**-30, 3.5e38, 65519.9, 2.0**-149]
    x = np.concatenate([x, edges])
    kind, bits = (np.float32, "u32") if to == "fp32" else (np.float16, "u16")
    t = tl.float32 if to == "fp32" else tl.float16
    got = launched(device, x, t, bits, "rtz").view(kind)
    with np.errstate(over="ignore"):
        near = x.astype(kind)
    away = np.abs(near.astype(np.float64)) > np.abs(x)
    want = np.where(away, np.nextafter(near, kind(0)), near)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(x))


def near_halves(step: int) -> np.ndarray:
    """Doubles beside the numbers in the middle of two fp16 or bf16: rounding them to fp32 first would go wrong."""
    if step == 1 << 16:
        upper = np.arange(0x0080, 0x7F7F, 7, dtype=np.uint32) << 16
        low, high = upper.view(np.float32), (upper + step).view(np.float32)
    else:
        codes = np.arange(0, 0x7BFF, 3, dtype=np.uint16)
        low, high = codes.view(np.float16), (codes + 1).view(np.float16)
    middle = (low.astype(np.float64) + high.astype(np.float64)) / 2
    return np.concatenate([middle, middle * (1 + 2.0**-50), middle * (1 - 2.0**-50), -middle])


def test_doubles_round_once_to_fp16(device: Any):
    x = near_halves(1)
    got = launched(device, x, tl.float16, "u16", "rtne").view(np.float16)
    np.testing.assert_array_equal(got, x.astype(np.float16))


def test_doubles_round_once_to_bf16(device: Any):
    x = near_halves(1 << 16)
    got = launched(device, x, tl.bfloat16, "u16", "rtne")
    cut = (np.nextafter(x.astype(np.float32), 0).view(np.uint32) >> 16).astype(np.uint32)
    below = (cut << 16).view(np.float32).astype(np.float64)
    above = ((cut + 1) << 16).view(np.float32).astype(np.float64)
    up, down = np.abs(above - x), np.abs(x - below)
    want = np.where((up < down) | ((up == down) & (cut & 1 == 1)), cut + 1, cut)
    np.testing.assert_array_equal(got, want.astype(np.uint16))
