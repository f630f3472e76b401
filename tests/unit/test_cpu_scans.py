"""Scans whose results are stored in their own loop."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tessera.config import knobs
from tests.unit.cpu_kit import agree, floats, native

B = 512
ARCHES = ["generic", "avx2", "avx512"]


@tessera.jit
def both(a, b, c, d):
    return a + c, tl.maximum(b, d)


@tessera.jit
def last_largest(a, i, b, j):
    """The largest and where it is, the last of equal ones; NaN is larger than any number."""
    later = (b >= a) | (b != b)
    return tl.where(later, b, a), tl.where(later, j, i)


@tessera.jit
def sums(x, out, n, SHIFT: tl.constexpr, REVERSE: tl.constexpr, B: tl.constexpr):
    at = tl.arange(0, B)
    v = tl.load(x + at, mask=at < n, other=0)
    tl.store(out + SHIFT + at, tl.cumsum(v, axis=0, reverse=REVERSE), mask=at < n)


@tessera.jit
def two(x, values, places, n, B: tl.constexpr):
    """Two stores, one of them of what is computed from the results and from what the other one may write."""
    row = tl.program_id(0) * n
    at = tl.arange(0, B)
    v = tl.load(x + row + at, mask=at < n, other=-1.0)
    most, place = tl.associative_scan((v, at), 0, last_largest)
    tl.store(values + row + at, most, mask=at < n)
    tl.store(places + row + at, (place * 2).to(tl.float32) + v, mask=at < n)


@tessera.jit
def of_a_buffer(x, out, total, n, B: tl.constexpr):
    """What a loop gives is scanned, and needed until the last store has been done."""
    at = tl.arange(0, B)
    v = tl.zeros([B], tl.float32)
    for k in range(3):
        v += tl.load(x + at, mask=at < n - k, other=0.0)
    s, t = tl.associative_scan((v, v), 0, both)
    tl.store(out + at, s, mask=at < n)
    tl.store(total + at, t, mask=at < n)


@tessera.jit
def tile(x, out, M, N, AXIS: tl.constexpr, REVERSE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    i, j = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    inside = (i < M) & (j < N)
    v = tl.load(x + i * N + j, mask=inside, other=0.0)
    s = tl.cumsum(v, axis=AXIS, reverse=REVERSE)
    tl.store(out + i * N + j, tl.where(v > 0, s, -s) * 0.5, mask=inside)


@tessera.jit
def needed_again(x, out, total, n, B: tl.constexpr):
    at = tl.arange(0, B)
    s = tl.cumsum(tl.load(x + at, mask=at < n, other=0.0), axis=0)
    tl.store(out + at, s, mask=at < n)
    tl.store(total, tl.max(s, axis=0))


@tessera.jit
def compacted(x, out, n, B: tl.constexpr):
    """The results say where to store."""
    at = tl.arange(0, B)
    v = tl.load(x + at, mask=at < n, other=0.0)
    there = v > 0
    place = tl.cumsum(there.to(tl.int32), axis=0) - 1
    tl.store(out + place, v, mask=there)


@tessera.jit
def read_between(x, out, copy, n, B: tl.constexpr):
    """What the first store writes is read before the second one, which needs the scan, too."""
    at = tl.arange(0, B)
    s = tl.cumsum(tl.load(x + at, mask=at < n, other=0.0), axis=0)
    tl.store(out + at, s, mask=at < n)
    y = tl.load(out + (n - 1 - at), mask=at < n, other=0.0)
    tl.store(copy + at, s + y, mask=at < n)


@tessera.jit
def turned(x, out, N, BM: tl.constexpr, BN: tl.constexpr):
    """Stored with the dimension of the rows next to each other, along which the store would take its vectors."""
    i, j = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    s = tl.cumsum(tl.load(x + i * BN + j), axis=1)
    tl.store(out + i + j * N, s, mask=i < N)


def fills_a_buffer(kernel: Any, arch: str, constants: dict[str, Any]) -> bool:
    """Whether a tile of at least a row is on the stack."""
    kinds = {n: "i32" if len(n) == 1 else "*fp32" for n in kernel.arg_names} | {"x": "*fp32"}
    source = ASTSource(kernel, kinds | dict.fromkeys(constants, "constexpr"), constants)
    text = tessera.compile(source, target=GPUTarget("cpu", arch, 1)).asm["llir"]
    return any(int(n) >= B for n in re.findall(r"alloca \[(\d+) x", text))


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    ("kernel", "constants", "buffers"),
    [
        (sums, {"SHIFT": 0, "REVERSE": False, "B": B}, False),
        (sums, {"SHIFT": 0, "REVERSE": True, "B": B}, False),
        (two, {"B": B}, False),
        (tile, {"AXIS": 0, "REVERSE": False, "BM": 16, "BN": B}, False),
        (tile, {"AXIS": 1, "REVERSE": True, "BM": 16, "BN": B}, False),
        (needed_again, {"B": B}, True),
        (compacted, {"B": B}, True),
        (read_between, {"B": B}, True),
        (turned, {"BM": 64, "BN": B}, True),
    ],
)
def test_which_scans_need_no_buffer(
    kernel: Any, constants: dict[str, Any], buffers: bool, arch: str
) -> None:
    assert fills_a_buffer(kernel, arch, constants) == buffers
    with knobs.scope():
        knobs.compilation.disable = "scan-stores"
        assert fills_a_buffer(kernel, arch, constants)


@tessera.jit
def whole_row(x, out, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out + at, tl.cumsum(tl.load(x + at), axis=0))


@pytest.mark.parametrize(("kind", "fences"), [("fp32", True), ("i32", True), ("fp64", False)])
def test_vectors_do_not_wait_for_the_carry(kind: str, fences: bool) -> None:
    """LLVM may leave nothing in the lanes that come from another 128 bits: it would leave there what the carry's
    register has, and the vector would wait for the one before it."""
    source = ASTSource(whole_row, {"x": f"*{kind}", "out": f"*{kind}", "B": "constexpr"}, {"B": B})
    text = tessera.compile(source, target=GPUTarget("cpu", "avx2", 1)).asm["llir"]
    assert ("@llvm.arithmetic.fence.v8f32" in text) == fences


KINDS = [np.float32, np.float64, np.float16, np.int8, np.int32, np.int64, np.uint8]


@pytest.mark.parametrize("isa", ["", "generic"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_sums(kind: Any, reverse: bool, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs.cpu, "isa", isa or None)
    x = np.random.default_rng(1).integers(0, 4, B).astype(kind)
    for n in (0, 1, 7, 8, 9, 100, 255, 500, B):
        wide = np.int64 if np.issubdtype(kind, np.integer) else kind
        agree(sums, (1,), x, np.full(B, 5, wide), n, SHIFT=0, REVERSE=reverse, B=B)


@pytest.mark.parametrize("shift", [-3, 0, 1, 8, 100])
@pytest.mark.parametrize("n", [100, 255, 400])
def test_results_that_are_stored_over_the_operands(n: int, shift: int) -> None:
    """Elements that are read after others were stored over them: the launch finds that, and the scan is stored late."""
    memory = np.arange(B + 200, dtype=np.float32) % 11
    expected = memory.copy()
    expected[103 + shift :][:n] = np.cumsum(memory[103:][:n])
    native(sums, (1,), memory[103:], memory[103:], n, SHIFT=shift, REVERSE=False, B=B)
    np.testing.assert_array_equal(memory, expected)


@pytest.mark.parametrize("apart", [0, 1, 37, 1000])
def test_two_stores_into_one_array(apart: int) -> None:
    """The second one overwrites what the first one has stored, wherever they overlap."""
    n, x, memory = 300, floats(300), np.zeros(1400, np.float32)
    x[[7, 50, 51]] = x[40], np.nan, np.nan
    native(two, (1,), x, memory, memory[apart:], n, B=B)
    place = np.zeros(n, np.int64)
    for i in range(1, n):
        later = np.isnan(x[i]) or x[i] >= x[place[i - 1]]
        place[i] = i if later else place[i - 1]
    expected = np.zeros(1400, np.float32)
    expected[:n] = x[place]
    expected[apart:][:n] = place * 2 + x
    np.testing.assert_array_equal(memory, expected)


@pytest.mark.parametrize("n", [1, 100, 257, B])
def test_two_results(n: int) -> None:
    x = floats(3, n)
    x[:, n // 2] = -0.0
    x[1, n // 3 :: 5] = np.nan
    x[2, ::7] = x[2, n // 2]
    agree(two, (3,), x, np.full((3, n), 9, np.float32), np.full((3, n), 9, np.float32), n, B=B)


@pytest.mark.parametrize("isa", ["", "generic"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(16, 64), (13, 64), (16, 50), (5, 1), (1, 60)])
def test_tiles(
    shape: tuple[int, int], reverse: bool, axis: int, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knobs.cpu, "isa", isa or None)
    x = np.random.default_rng(2).integers(-3, 4, shape).astype(np.float32)
    out = np.full(shape, 9, np.float32)
    agree(tile, (1,), x, out, *shape, AXIS=axis, REVERSE=reverse, BM=16, BN=64)


def test_what_is_stored_into_the_operands() -> None:
    x = np.arange(16 * 64, dtype=np.float32).reshape(16, 64) % 5 - 2
    for axis in (0, 1):
        s = x.cumsum(axis)
        y = x.copy()
        native(tile, (1,), y, y, 16, 64, AXIS=axis, REVERSE=False, BM=16, BN=64)
        np.testing.assert_array_equal(y, np.where(x > 0, s, -s) * np.float32(0.5))


@pytest.mark.parametrize("kernel", [needed_again, compacted, read_between, of_a_buffer])
def test_scans_that_others_need(kernel: Any) -> None:
    x = np.random.default_rng(3).integers(-2, 3, B).astype(np.float32)
    more = [np.zeros(B, np.float32)] if kernel is not compacted else []
    for n in (1, 100, B):
        agree(kernel, (1,), x, np.zeros(B, np.float32), *more, n, B=B)


def test_rows_that_are_stored_as_columns() -> None:
    x = np.random.default_rng(4).integers(-2, 3, (64, 128)).astype(np.float32)
    agree(turned, (1,), x, np.zeros(128 * 50, np.float32), 50, BM=64, BN=128)
