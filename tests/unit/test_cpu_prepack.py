"""Products of all steps of a loop at once on the CPU: what is packed, what stays in place, what becomes of the sum."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tessera.config import knobs
from tests.unit import amx_kit
from tests.unit.cpu_kit import floats, native

BLOCK = {"BM": 64, "BN": 64, "BK": 64}


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-3)


@tessera.jit
def masked(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Extents of any size, an epilogue that uses the sum twice."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        inside = k + ks < K
        left = tl.load(
            a + row[:, None] * K + (k + ks)[None, :],
            mask=(row[:, None] < M) & inside[None, :], other=0.0,
        )  # fmt: skip
        right = tl.load(
            b + (k + ks)[:, None] * N + column[None, :],
            mask=inside[:, None] & (column[None, :] < N), other=0.0,
        )  # fmt: skip
        acc = tl.dot(left, right, acc)
    acc = tl.where(acc > 0, acc, 0.5 * acc)
    tl.store(
        c + row[:, None] * N + column[None, :], acc,
        mask=(row[:, None] < M) & (column[None, :] < N),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("m", "n", "k"), [(128, 128, 128), (100, 90, 150), (70, 130, 1), (1, 65, 64)]
)
def test_extents_of_any_size(m, n, k):
    a, b, c = floats(m, k), floats(k, n, seed=1), np.zeros((m, n), np.float32)
    native(masked, (-(-m // 64), -(-n // 64)), a, b, c, m, n, k, **BLOCK)
    expected = a @ b
    close(c, np.where(expected > 0, expected, expected / 2))


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize(("m", "k"), [(128, 192), (128, 202), (100, 192), (128, 64 * 70 + 5)])
def test_a_is_read_in_place_in_the_steps_for_which_its_mask_holds(
    kind: Any, m: int, k: int, monkeypatch: pytest.MonkeyPatch
):
    """Rows that follow in memory stay out of the step that the mask cuts; a copy of all steps has the same bits."""
    a, b = (floats(*s, seed=k).astype(kind) for s in ((m + 1, k), (k, 64)))
    found = []
    for off in ("", "operands-in-place"):
        monkeypatch.setattr(knobs.compilation, "disable", off)
        c = np.zeros((m, 64), np.float32)
        compiled = native(masked, (2, 1), a, b, c, m, 64, k, **BLOCK)
        assert (", or shared, B" in compiled.asm["llir"]) == (off == "")
        found.append(c)
    expected = a[:m].astype(np.float32) @ b.astype(np.float32)
    close(found[0] / 8, np.where(expected > 0, expected, expected / 2) / 8)
    assert np.array_equal(*found)


def test_tiles_that_are_there_as_a_whole_are_packed_without_masks(monkeypatch: pytest.MonkeyPatch):
    loads = []
    for off in ("", "whole-tiles"):
        monkeypatch.setattr(knobs.compilation, "disable", off)
        kinds = dict.fromkeys("abc", "*fp32") | dict.fromkeys("MNK", "i32")
        source = ASTSource(masked, kinds | dict.fromkeys(BLOCK, "constexpr"), BLOCK)
        text = tessera.compile(source, target=GPUTarget("cpu", "avx2", 1)).asm["llir"]
        loads.append(
            [len(re.findall(x, text)) for x in (r"= load <8 x float>", "@llvm.masked.load")]
        )
    assert loads[0][0] > loads[1][0]
    assert loads[0][1] == loads[1][1]


@pytest.mark.parametrize(("m", "n"), [(3, 9), (64, 1), (41, 40), (0, 0), (64, 64)])
def test_rows_and_columns_that_are_not_stored_are_not_multiplied(
    m: int, n: int, monkeypatch: pytest.MonkeyPatch
):
    found, texts = [], []
    a, b = floats(m, 128), floats(128, n, seed=1)
    for off in ("", "mask-ends"):
        monkeypatch.setattr(knobs.compilation, "disable", off)
        found.append(np.zeros((m, n), np.float32))
        compiled = native(masked, (1, 1), a, b, found[-1], m, n, 128, **BLOCK)
        texts.append(compiled.asm["llir"].count("@llvm.smin.i64"))
    expected = a @ b
    close(found[0], np.where(expected > 0, expected, expected / 2))
    assert np.array_equal(*found) and texts[0] > texts[1]


@tessera.jit
def turned(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A and c are column-major: A is copied, c is no nest of rows; the sum starts at what c holds."""
    row, column, ks = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    out = c + row[:, None] + column[None, :] * BM
    acc = tl.load(out)
    for k in range(0, K, BK):
        left = tl.load(a + row[:, None] + (k + ks)[None, :] * BM)
        right = tl.load(b + (k + ks)[:, None] * BN + column[None, :])
        acc = tl.dot(left, right, acc)
    tl.store(out, acc)


@pytest.mark.parametrize("k", [0, 64, 640])
def test_column_major_operands_and_a_sum_that_does_not_start_at_zero(k):
    a, b, c = floats(640, 64), floats(640, 64, seed=1), floats(64, 64, seed=2)
    expected = c + (a[:k].T @ b[:k]).T
    native(turned, (1,), a, b, c, k, **BLOCK)
    close(c, expected)


@tessera.jit
def gated(a, b, d, c, e, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Two sums of one loop; one is stored twice, the other used by both stores."""
    row, column, ks = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    one, two = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        left = tl.load(a + row[:, None] * K + (k + ks)[None, :])
        one = tl.dot(left, tl.load(b + (k + ks)[:, None] * BN + column[None, :]), one)
        two = tl.dot(left, tl.load(d + (k + ks)[:, None] * BN + column[None, :]), two)
    where = row[:, None] * BN + column[None, :]
    tl.store(c + where, one * two)
    tl.store(e + where, one - two)


def test_two_sums_of_one_loop():
    a, b, d = floats(64, 192), floats(192, 64, seed=1), floats(192, 64, seed=2)
    c, e = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)
    native(gated, (1,), a, b, d, c, e, 192, **BLOCK)
    np.testing.assert_allclose(c, (a @ b) * (a @ d), rtol=1e-3, atol=1e-2)
    close(e, a @ b - a @ d)


@tessera.jit
def either(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Each program stores one of two sums, whose tiles take as many bytes."""
    row, column, ks = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    if tl.program_id(0) == 0:
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            left = tl.load(a + row[:, None] * K + (k + ks)[None, :])
            acc += tl.dot(left, tl.load(b + (k + ks)[:, None] * BN + column[None, :]))
        tl.store(c + row[:, None] * BN + column[None, :], acc)
    else:
        other = tl.zeros((BN, BM), tl.float32)
        for k in range(0, K, BK):
            left = tl.load(b + column[:, None] + (k + ks)[None, :] * BN)
            other += tl.dot(left, tl.load(a + (k + ks)[:, None] + row[None, :] * K))
        tl.store(c + BM * BN + column[:, None] * BM + row[None, :], other)


@pytest.mark.parametrize("k", [64, 64 * 100])
def test_memory_of_a_sum_is_used_again_in_another_branch(k: int):
    a, b, c = floats(64, k), floats(k, 32, seed=1), np.zeros((2, 64 * 32), np.float32)
    native(either, (2,), a, b, c, k, **{**BLOCK, "BN": 32})
    np.testing.assert_allclose(c[0].reshape(64, 32), a @ b, rtol=1e-3, atol=2e-2)
    np.testing.assert_allclose(c[1].reshape(32, 64), (a @ b).T, rtol=1e-3, atol=2e-2)


@tessera.jit
def sum_and_scans(a, b, c, d, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, column, ks = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    where = row[:, None] * BN + column[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        left = tl.load(a + row[:, None] * K + (k + ks)[None, :])
        acc = tl.dot(left, tl.load(b + (k + ks)[:, None] * BN + column[None, :]), acc)
    tl.store(c + where, acc)
    x = tl.load(d + where)
    once = tl.cumsum(x, 0)
    twice = tl.cumsum(once * 0.5, 0)
    tl.store(d + where, tl.cumsum(once - twice, 0) + once * twice)


def test_memory_of_a_sum_is_used_again_behind_its_store():
    a, b, d = floats(64, 128), floats(128, 64, seed=1), floats(64, 64, seed=2)
    c, once = np.zeros((64, 64), np.float32), d.cumsum(0)
    twice = (once * 0.5).cumsum(0)
    expected = (once - twice).cumsum(0) + once * twice
    native(sum_and_scans, (1,), a, b, c, d, 128, **BLOCK)
    close(c, a @ b)
    np.testing.assert_allclose(d, expected, rtol=1e-3, atol=1e-2)


@tessera.jit
def product(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column, ks = tl.arange(0, BN), tl.arange(0, BK)
    left, right = a + row[:, None] * K + ks[None, :], b + ks[:, None] * BN + column[None, :]
    acc = tl.zeros((BM, BN), c.dtype.element_ty)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(left), tl.load(right), acc)
        left += BK
        right += BK * BN
    tl.store(c + row[:, None] * BN + column[None, :], acc)


def test_a_loop_longer_than_the_memory_for_panels_is_cut():
    """64 steps at most are kept: two cuts, and a rest."""
    k = 64 * 130
    a, b, c = floats(128, k) / 8, floats(k, 64, seed=1), np.zeros((128, 64), np.float32)
    native(product, (2,), a, b, c, k, **BLOCK)
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("k", [0, 192, 64 * 70])
def test_rows_of_a_are_converted(k):
    a, b = ((floats(*s, seed=k) / 8).astype(np.float16) for s in ((128, k), (k, 64)))
    c = np.full((128, 64), 7, np.float32)
    native(product, (2,), a, b, c, k, **BLOCK)
    close(c, a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("k", [0, 64, 192, 64 * 70])
def test_column_sums_are_kept_with_the_panels(k):
    """Dots of bytes take off a multiple of B's column sums: those of all steps, also for programs that packed none."""
    numbers = np.random.default_rng(k)
    a, b = (numbers.integers(-128, 128, s, dtype=np.int8) for s in ((128, k), (k, 128)))
    c = np.full((128, 128), 7, np.int32)
    native(product, (8,), a, b, c, k, BM=16, BN=128, BK=64)
    assert np.array_equal(c, a.astype(np.int32) @ b.astype(np.int32))


@tessera.jit
def far(a, b, c, low, high, STEP: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    acc, x = tl.zeros((N, N), tl.float32), tl.load(a + at)
    for k in range(low, high, STEP):
        acc = tl.dot(x * tl.cast(k % 3 + 1, tl.float32), tl.load(b + at), acc)
    tl.store(c + at, acc)


TOP = 2**63 - 1
FAR = [
    (5, -1, -1), (300, -4, -3), (5, 5, -1), (TOP - 5, TOP, 1), (TOP - 300, TOP, 2), (-TOP + 300, -TOP - 1, -2),
    (2**40, TOP, 2**61), (-TOP - 1, TOP, 2**60), (TOP - 1, TOP, TOP), (TOP, TOP - 200, -1),
]  # fmt: skip


@pytest.mark.parametrize(("low", "high", "step"), FAR)
def test_loops_that_count_down_and_near_the_largest_numbers(low: int, high: int, step: int):
    a, b, c = np.eye(64, dtype=np.float32), floats(64, 64), np.zeros((64, 64), np.float32)
    native(far, (1,), a, b, c, np.int64(low), np.int64(high), STEP=step, N=64)
    factors = [int(np.fmod(k, 3)) + 1 for k in range(low, high, step)]
    close(c, b * sum(factors))


@tessera.jit
def far_by_arguments(a, b, c, low, high, step, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    acc, x = tl.zeros((N, N), tl.float32), tl.load(a + at)
    for k in range(low, high, step):
        acc = tl.dot(x * tl.cast(k % 3 + 1, tl.float32), tl.load(b + at), acc)
    tl.store(c + at, acc)


@pytest.mark.parametrize(("low", "high", "step"), [x for x in FAR if x[2] > 0])
def test_steps_of_arguments_near_the_largest_numbers(low: int, high: int, step: int):
    a, b, c = np.eye(64, dtype=np.float32), floats(64, 64), np.zeros((64, 64), np.float32)
    native(far_by_arguments, (1,), a, b, c, np.int64(low), np.int64(high), np.int64(step), N=64)
    factors = [int(np.fmod(k, 3)) + 1 for k in range(low, high, step)]
    close(c, b * sum(factors))


def test_a_step_of_zero_does_not_end_the_process():
    """It is not allowed and its result is unspecified, but a division by it would be a signal."""
    a, b, c = np.eye(64, dtype=np.float32), floats(64, 64), np.zeros((64, 64), np.float32)
    native(far_by_arguments, (1,), a, b, c, np.int64(0), np.int64(2), np.int64(0), N=64)


@tessera.jit
def strided(a, b, c, K, step, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The columns of A that one step multiplies begin `step` columns behind those of the step before."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column, ks = tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, step):
        left = tl.load(a + row[:, None] * 512 + (k + ks)[None, :])
        acc = tl.dot(left, tl.load(b + (k + ks)[:, None] * BN + column[None, :]), acc)
    tl.store(c + row[:, None] * BN + column[None, :], acc)


def strided_reference(a: Any, b: Any, k: int, step: int) -> Any:
    wide = [slice(at, at + 64) for at in range(0, k, step)]
    return sum((a[:, s] @ b[s] for s in wide), np.zeros((a.shape[0], b.shape[1]), np.float32))


@pytest.mark.parametrize("step", [64, 32, 96, 448])
@pytest.mark.parametrize("k", [448, 64, 0])
def test_steps_that_the_launch_knows(k: int, step: int):
    """A is read in place where its steps turn out to be one matrix."""
    a, b, c = floats(128, 512) / 8, floats(512, 64, seed=1), np.zeros((128, 64), np.float32)
    native(strided, (2,), a, b, c, k, step, **BLOCK)
    close(c, strided_reference(a, b, k, step))
    kinds = dict.fromkeys("abc", "*fp32") | {"K": "i32", "step": "i32"}
    source = ASTSource(strided, kinds | dict.fromkeys(BLOCK, "constexpr"), BLOCK)
    text = tessera.compile(source, target=GPUTarget("cpu", "avx2", 1)).asm["llir"]
    assert "64x64x64: prepack-k, fma" in text.splitlines()[0]
    assert "A in place, or shared, B shared" in text.splitlines()[0]


def test_buffers_beyond_the_stack(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tessera.backends.cpu.lowering.STACK_LIMIT", 0)
    a, b = ((floats(*s) / 8).astype(np.float16) for s in ((128, 192), (192, 64)))
    c = np.zeros((128, 64), np.float32)
    native(product, (2,), a, b, c, 192, BM=64, BN=64, BK=32)
    close(c, a.astype(np.float32) @ b.astype(np.float32))


def test_panels_of_many_small_launches():
    """What a thread kept of one launch must not serve the next: 40 chunks, panels found again between them."""
    a, b, c = floats(64 * 40, 64), floats(64, 64, seed=1), np.zeros((64 * 40, 64), np.float32)
    for i in range(30):
        b[i] += 1.0
        native(product, (40,), a, b, c, 64, **BLOCK)
        close(c, a @ b)


def test_a_that_c_overwrites_is_copied():
    """Every program writes its rows of c over its rows of A: blocks of rows that are still to come need them."""
    a, b = floats(128, 64) / 8, floats(64, 64, seed=1)
    expected = a @ b
    native(product, (2,), a, b, a, 64, **BLOCK)
    close(a, expected)


@tessera.jit
def around(a, b, c, K, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Columns modulo N: where program 1 begins, b has the address that it has for program 0."""
    pid, row, ks = tl.program_id(0), tl.arange(0, BM), tl.arange(0, BK)
    column = (8 * pid + tl.arange(0, BN)) % N
    first = b + 8 * (1 - pid)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        left = tl.load(a + row[:, None] * K + (k + ks)[None, :])
        right = tl.load(first + (k + ks)[:, None] * (N + 8) + column[None, :])
        acc = tl.dot(left, right, acc)
    tl.store(c + pid * BM * BN + row[:, None] * BN + tl.arange(0, BN)[None, :], acc)


def test_columns_modulo_an_extent_are_packed_once_for_all_programs_that_need_them():
    n, a, b = 40, floats(64, 128), floats(128, 48, seed=1)
    c = np.zeros((2, 64, 64), np.float32)
    compiled = native(around, (2,), a, b, c, 128, n, **BLOCK)
    assert "B shared" in compiled.asm["llir"].splitlines()[0]
    for pid in range(2):
        columns = 8 * (1 - pid) + (8 * pid + np.arange(64)) % n
        close(c[pid], (a @ b)[:, columns])


@pytest.mark.parametrize("n", [40, 64, 72, 73])
def test_tiles_that_do_not_reach_the_divisor_are_packed_as_they_lie(
    n: int, monkeypatch: pytest.MonkeyPatch
):
    """Of the two programs both go around at 40, the second at 64, none at 72 and 73."""
    a, b = floats(64, 128), floats(128, n + 8, seed=n)
    loads = []
    for off in ("", "whole-tiles"):
        monkeypatch.setattr(knobs.compilation, "disable", off)
        c = np.zeros((2, 64, 64), np.float32)
        native(around, (2,), a, b, c, 128, n, **BLOCK)
        for pid in range(2):
            columns = 8 * (1 - pid) + (8 * pid + np.arange(64)) % n
            close(c[pid], (a @ b)[:, columns])
        kinds = dict.fromkeys("abc", "*fp32") | dict.fromkeys("KN", "i32")
        source = ASTSource(around, kinds | dict.fromkeys(BLOCK, "constexpr"), BLOCK)
        text = tessera.compile(source, target=GPUTarget("cpu", "avx2", 1)).asm["llir"]
        loads.append(len(re.findall("= load <8 x float>", text)))
    assert loads[0] > loads[1]


@tessera.jit
def shifted_around(a, b, c, K, N, start, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Dividends may be negative, so that remainders are, too."""
    row, ks = tl.arange(0, BM), tl.arange(0, BK)
    column = (start + tl.arange(0, BN)) % N
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        left = tl.load(a + row[:, None] * K + (k + ks)[None, :])
        right = tl.load(b + 64 + (k + ks)[:, None] * 256 + column[None, :])
        acc = tl.dot(left, right, acc)
    tl.store(c + row[:, None] * BN + tl.arange(0, BN)[None, :], acc)


@pytest.mark.parametrize(
    ("start", "n"),
    [(-3, 100), (-64, 100), (0, -100), (-70, 64), (0, 0), (36, 100), (37, 100)],
)
def test_remainders_of_any_sign(start: int, n: int):
    a, b, c = floats(64, 64), floats(64, 256, seed=1), np.zeros((64, 64), np.float32)
    columns = np.fmod(start + np.arange(64), n) if n else np.arange(64)
    native(shifted_around, (1,), a, b, c, 64, n, start, **BLOCK)
    close(c, (a @ b)[:, 64 + columns])


@tessera.jit
def hidden(
    a, b, c, K, N, shown, other, HOW: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """All programs need the same tile of B. Each hides another part, or has another number there."""
    pid, row, column = tl.program_id(0), tl.arange(0, BM), tl.arange(0, BN)
    ks, turn = tl.arange(0, BK), pid % 3
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        left = tl.load(a + row[:, None] * K + (k + ks)[None, :])
        if HOW == "columns":
            mask = (column < N - 9 * turn)[None, :]
        elif HOW == "number":
            mask = (column < 40)[None, :]
        elif HOW == "every third":
            mask = (column % 3 == turn)[None, :]
        else:
            mask = (tl.load(shown + turn * BN + column) > 0)[None, :]
        value = other * turn if HOW == "number" else 0.0
        right = tl.load(b + (k + ks)[:, None] * BN + column[None, :], mask=mask, other=value)
        acc = tl.dot(left, right, acc)
    tl.store(c + pid * BM * BN + row[:, None] * BN + column[None, :], acc)


@pytest.mark.parametrize("how", ["columns", "every third", "loaded", "number"])
def test_programs_that_hide_different_parts_share_no_panels(how: str):
    a, b = floats(64, 128), floats(128, 64, seed=1)
    c, shown = np.zeros((7, 64, 64), np.float32), np.zeros((3, 64), np.int32)
    columns, turns = np.arange(64), np.arange(3)[:, None]
    shown[:] = columns % 3 == turns
    if how in ("columns", "number"):
        shown[:] = columns < (40 if how == "number" else 70 - 9 * turns)
    compiled = native(hidden, (7,), a, b, c, 128, 70, shown, 2.0, HOW=how, **BLOCK)
    assert ("B shared" in compiled.asm["llir"].splitlines()[0]) == (how != "loaded")
    for pid in range(7):
        other = np.float32(2 * (pid % 3) if how == "number" else 0)
        close(c[pid], a @ np.where(shown[pid % 3] != 0, b, other))


emulated = pytest.mark.skipif(
    amx_kit.lacking() != "", reason=f"the code around tiles cannot run here: no {amx_kit.lacking()}"
)


def on_tiles(kernel: Any, grid: tuple[int, int, int], *args: Any, **constants: int) -> None:
    names: list[str] = list(kernel.arg_names)
    kinds = {
        n: "*bf16" if n in "ab" else "*fp32" if n in "cde" else "i32"
        for n in names if n not in constants
    }  # fmt: skip
    attrs = {
        (i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n in kinds and n in "abc"
    }
    source = ASTSource(kernel, kinds | dict.fromkeys(constants, "constexpr"), constants, attrs)
    compiled = tessera.compile(source, target=GPUTarget("cpu", "amx", 1))
    amx_kit.run(compiled, grid, *args)


@emulated
@pytest.mark.parametrize(("m", "n", "k"), [(128, 128, 128), (100, 90, 150)])
def test_tiles_with_masks(m, n, k):
    a, b = (x.astype(ml_dtypes.bfloat16) for x in (floats(m, k), floats(k, n, seed=1)))
    c = np.zeros((m, n), np.float32)
    on_tiles(masked, (2, 2, 1), a, b, c, m, n, k, **BLOCK)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    close(c, np.where(expected > 0, expected, expected / 2))


@emulated
def test_tiles_of_programs_that_share_a():
    """A column-major A is copied once for all programs of a row, B for each column."""
    a, b = (x.astype(ml_dtypes.bfloat16) for x in (floats(192, 64), floats(192, 64, seed=1)))
    c = floats(64, 64, seed=2)
    expected = c + (a.astype(np.float32).T @ b.astype(np.float32)).T
    on_tiles(turned, (1, 1, 1), a, b, c, 192, **BLOCK)
    close(c, expected)


@emulated
@pytest.mark.parametrize("step", [64, 32])
def test_tiles_with_steps_that_the_launch_knows(step: int):
    a, b = (floats(*s).astype(ml_dtypes.bfloat16) for s in ((128, 512), (512, 64)))
    c = np.zeros((128, 64), np.float32)
    on_tiles(strided, (2, 1, 1), a, b, c, 448, step, **BLOCK)
    expected = strided_reference(a.astype(np.float32), b.astype(np.float32), 448, step)
    np.testing.assert_allclose(c, expected, rtol=1e-2, atol=1e-1)
