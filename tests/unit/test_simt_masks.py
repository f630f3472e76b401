"""Masks that are the same for all threads of a register are known when a kernel is compiled."""

# pyright: basic
from __future__ import annotations

import re

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.simt_kit import Compiled

C = "constexpr"


@tessera.jit
def masked_kernel(x, out, END: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i, i < END, other=7.0)
    tl.store(out + i, v + 1)
    tl.store(out + N + i, v, i < END)
    tl.store(out + 2 * N + i, v, i >= END)
    tl.store(out + 3 * N + i, v, (i > END) & (i <= N - 2))


@pytest.mark.parametrize("end", [0, 1, 255, 256, 257, 768, 770, 1023, 1024, 2000])
def test_masks_that_no_thread_passes(end):
    """A register whose elements are all behind the end is neither loaded nor stored."""
    found = Compiled(
        masked_kernel, {"x": "*fp32", "out": "*fp32", "END": C, "N": C}, {"END": end, "N": 1024}, num_warps=2
    )  # fmt: skip
    x = np.arange(1, 1025, dtype=np.float32)
    out = np.zeros(4096, np.float32)
    found.run(x, out)
    i = np.arange(1024)
    v = np.where(i < end, x, 7)
    masks = [i < end, i >= end, (i > end) & (i <= 1022)]
    wanted = [v + 1, *(np.where(m, v, 0) for m in masks)]
    np.testing.assert_array_equal(out.reshape(4, -1), wanted)
    if end % 256 == 0:
        assert found.count(r"ld\.global\.v4") == min(end, 1024) // 256
        assert found.count(r"@%p\d+ ld\.global") == 0


@tessera.jit
def several_rows_kernel(x, out, WIDTH: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, 4)[:, None], tl.arange(0, N)[None, :]
    v = tl.load(x + i * WIDTH + j, j < WIDTH, other=0.0)
    total = tl.sum(v, 1)[:, None]
    tl.store(out + i * WIDTH + j, v - total, j < WIDTH)


@pytest.mark.parametrize("width", [70, 96, 128, 192])
@pytest.mark.parametrize("warps", [1, 4])
def test_masks_of_rows_that_are_padded(width, warps):
    signature = {"x": "*fp32", "out": "*fp32", "WIDTH": C, "N": C}
    found = Compiled(several_rows_kernel, signature, {"WIDTH": width, "N": 256}, num_warps=warps)
    x = np.arange(4 * width, dtype=np.float32).reshape(4, width) % 5
    out = np.zeros_like(x)
    found.run(x, out)
    np.testing.assert_array_equal(out, x - x.sum(1, keepdims=True))


@tessera.jit
def bounds_kernel(x, out, N: tl.constexpr, M: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, M)[None, :]
    v = tl.load(x + i * M + j)
    within = ((v >= 0) & (v < 5)).to(tl.int32)
    within += 2 * ((v >= j) & (v < 5)).to(tl.int32)
    within += 4 * ((v >= 0) & (v < j)).to(tl.int32)
    tl.store(out + i * M + j, within)


@pytest.mark.parametrize("width", [2, 4, 8])
def test_bounds_may_differ_between_registers(width):
    """A thread holds neighbours of a row: the numbers of columns are known for each register, but not all the same."""
    found = Compiled(
        bounds_kernel, {"x": "*i32", "out": "*i32", "N": C, "M": C}, {"N": 512, "M": width}, num_warps=1
    )  # fmt: skip
    x = np.random.default_rng(0).integers(-3, 9, (512, width), dtype=np.int32)
    out, j = np.zeros_like(x), np.arange(width)
    found.run(x, out)
    wanted = [(x >= low) & (x < high) for low, high in ((0, 5), (j, 5), (0, j))]
    np.testing.assert_array_equal(out, wanted[0] + 2 * wanted[1] + 4 * wanted[2])
    assert "icmp ult" in found.ir


@tessera.jit
def wrapping_kernel(out, N: tl.constexpr, START: tl.constexpr):
    i = tl.arange(0, N)
    x = i + START
    tl.store(out + i, x // 7)
    tl.store(out + N + i, x % 7)
    tl.store(out + 2 * N + i, (x >= 3).to(tl.int32) + 2 * (x < START).to(tl.int32))


@pytest.mark.parametrize("start", [0, 1000, 2**31 - 128, 2**31 - 127, 2**31 - 40])
def test_sums_that_wrap_are_negative(start):
    found = Compiled(
        wrapping_kernel, {"out": "*i32", "N": C, "START": C}, {"N": 128, "START": start}, num_warps=1
    )  # fmt: skip
    out = np.zeros((3, 128), np.int32)
    found.run(out.reshape(-1))
    x = np.arange(128, dtype=np.int32) + np.int32(start)
    quotient = np.trunc(x / 7).astype(np.int32)
    wanted = [quotient, x - 7 * quotient, (x >= 3) + 2 * (x < start)]
    np.testing.assert_array_equal(out, wanted)
    # A register of all threads does not wrap.
    assert ("udiv" in found.ir) == (start < 2**31 - 124)


@tessera.jit
def marked(labels, out, n, WIDE: tl.constexpr, EQUAL: tl.constexpr, N: tl.constexpr):
    label = tl.load(labels)
    end = n.to(tl.int64) if WIDE else n
    for start in range(0, end, N):
        columns = start + tl.arange(0, N)
        found = columns == label if EQUAL else label != columns
        tl.store(out + columns, found.to(tl.int8), columns < n)


@pytest.mark.parametrize(("label_bits", "column_bits"), [(32, 32), (64, 64), (64, 32), (32, 64)])
@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("off", ["", "compare-differences"])
def test_a_column_is_found_by_one_difference(
    label_bits: int, column_bits: int, equal: bool, off: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESSERA_DISABLE", off)
    wide = column_bits == 64
    signature = {"labels": f"*i{label_bits}", "out": "*i8", "n": "i32"}
    signature |= dict.fromkeys(("WIDE", "EQUAL", "N"), "constexpr")
    constants = {"WIDE": wide, "EQUAL": equal, "N": 1024}
    kernel = Compiled(marked, signature, constants, num_warps=4)
    far = [1 << 32, (1 << 32) + 700, 700 - (1 << 32), (1 << 63) - 1, -(1 << 63)]
    near = [0, 700, 1023, 1024, 1500, 2000, -1, -(1 << 31), (1 << 31) - 1]
    for label in near + far if label_bits == 64 else near:
        out = np.full(1600, 7, np.int8)
        kernel.run(np.array([label], f"int{label_bits}"), out, 1600)
        assert np.array_equal(out, (np.arange(1600) == label) == equal)
    compared = re.findall(rf"icmp (?:eq|ne) i{max(label_bits, column_bits)}", kernel.ir)
    assert kernel.ir.count("freeze") == (off == "")
    if wide or label_bits == 64:
        assert (len(compared) >= 8) == bool(off)


@tessera.jit
def folded_kernel(x, out, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    column = i % 128
    v = tl.load(x + i)
    v += tl.load(x + i + 3 - 2 * column, (column >= 1) & (column <= 2), other=0.0)
    v += tl.load(x + i + 251 - 2 * column, (column >= 125) & (column < 127), other=0.0)
    tl.store(out + i, v)


@pytest.mark.parametrize("off", ["", "known-registers"])
def test_a_register_holds_numbers_a_vector_apart(off: str, monkeypatch: pytest.MonkeyPatch):
    """Of the four columns that a thread has side by side, the second and third alone may be 1 or 2, or 125 or 126."""
    monkeypatch.setenv("TESSERA_DISABLE", off)
    found = Compiled(folded_kernel, {"x": "*fp32", "out": "*fp32", "N": C}, {"N": 512})
    x = np.arange(1024, dtype=np.float32).reshape(8, 128)
    out, wanted = np.zeros_like(x), x.copy()
    found.run(x, out, grid=(2, 1, 1))
    wanted[:, 1:3] += x[:, 2:0:-1]
    wanted[:, 125:127] += x[:, 126:124:-1]
    np.testing.assert_array_equal(out, wanted)
    assert found.count(r"ld\.global\.b32") == (8 if off else 4)


@tessera.jit
def triangle_kernel(out, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(M, M + 2)[:, None], tl.arange(0, N)[None, :]
    tl.store(out + (i - M) * N + j, 1, i >= j)


@pytest.mark.parametrize("off", ["", "known-registers"])
def test_registers_off_the_diagonal_are_known(off: str, monkeypatch: pytest.MonkeyPatch):
    """Of four blocks of 128 columns two lie below row 256, one has the diagonal, and nothing is stored of one."""
    monkeypatch.setenv("TESSERA_DISABLE", off)
    found = Compiled(
        triangle_kernel, {"out": "*i32", "M": C, "N": C}, {"M": 256, "N": 512}, num_warps=1
    )
    out = np.zeros((2, 512), np.int32)
    found.run(out)
    np.testing.assert_array_equal(out, np.tri(2, 512, 256, dtype=np.int32))
    # Two elements of each register with the diagonal; without it, all elements of all registers.
    assert found.count(r"st\.global") == (32 if off else 18)


@tessera.jit
def wrapped_kernel(x, table, out, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    k = tl.where((v >= -M) & (v < 2 * M), v.to(tl.int64), 0)
    k = tl.where(k < 0, k + M, k)
    tl.device_assert((k >= 0) & (k < M), "out of range")
    tl.store(out + i, tl.load(table + k))


@pytest.mark.parametrize("size", [48, 64])
def test_wrapped_indices_are_asserted_together(size: int):
    """Numbers are below a power of two if all their bits are. NaN is chosen nowhere, and a sign needs no select."""
    signature = {"x": "*fp32", "table": "*i32", "out": "*i32", "M": C, "N": C}
    constants = {"M": size, "N": 256}
    found = Compiled(wrapped_kernel, signature, constants, num_warps=1, debug=True)
    x = np.random.default_rng(0).integers(-size, size, 256).astype(np.float32)
    x[:4] = [np.nan, np.inf, -size, size - 1]
    table, out = np.arange(size, dtype=np.int32) ** 2, np.zeros(256, np.int32)
    found.run(x, table, out)
    index = np.where(np.abs(x) <= size, x, 0).astype(int)
    np.testing.assert_array_equal(out, table[index % size])
    assert found.count(r"or\.b64") == (7 if size == 64 else 0)
    assert found.ir.count("ashr i64") == 8
    assert "fcmp ord" not in found.ir
    x[200] = size
    with pytest.raises(Exception, match="out of range"):
        found.run(x, table, out)
