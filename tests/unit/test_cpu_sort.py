"""Long sorts, whose later stages are one loop on CPUs, and what that loop needs: gathered rows, initial values."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.backends.cpu.target import lacking
from tessera.compiler import ASTSource
from tessera.config import knobs
from tests.lang.kit import NUMPY, sample
from tests.unit.cpu_kit import agree, floats, native


@tessera.jit
def sort_kernel(x, out, M: tl.constexpr, N: tl.constexpr, DESCENDING: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, tl.sort(tl.load(x + at), descending=DESCENDING))


@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512"])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    ("dtype", "m", "n"), [("fp32", 4, 2048), ("i8", 1, 4096), ("u64", 2, 2048), ("fp16", 1, 8192)]
)
def test_long_rows(isa, descending, dtype, m, n):
    if lacking(isa):
        pytest.skip(f"the machine has no {isa}")
    x = sample(dtype, (m, n))
    out = np.zeros((m, n), NUMPY[dtype])
    with knobs.cpu.scope():
        knobs.cpu.isa = isa
        native(sort_kernel, (1,), x, out, M=m, N=n, DESCENDING=descending)
    want = np.sort(x, axis=1)
    np.testing.assert_array_equal(out, want[:, ::-1] if descending else want)


def test_long_rows_lose_no_element():
    x = floats(2048)
    x[::5], x[::7], x[::11] = np.nan, 0.0, -0.0
    out = np.zeros_like(x)
    native(sort_kernel, (1,), x, out, M=1, N=2048, DESCENDING=False)
    assert sorted(out.view(np.uint32)) == sorted(x.view(np.uint32))


def code(m: int, n: int) -> str:
    kinds = {"x": "*fp32", "out": "*fp32", **dict.fromkeys(("M", "N", "DESCENDING"), "constexpr")}
    source = ASTSource(sort_kernel, kinds, {"M": m, "N": n, "DESCENDING": False})
    return tessera.compile(source, target=GPUTarget("cpu", "avx2", 1)).asm["llir"]


def test_the_code_of_a_sort_does_not_grow_with_its_length():
    assert len(code(1, 16384)) < 1.1 * len(code(1, 2048)) < 1.1 * len(code(1, 1024))


def test_rows_of_a_tile_are_sorted_as_one():
    """Nothing is computed element by element that a vector of one long row would not need."""
    one, four = code(1, 1024), code(4, 1024)
    assert four.count("insertelement") <= one.count("insertelement")
    assert len(four) < 1.1 * len(one)


@tessera.jit
def gathered_rows(x, rows, out, R: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, R), tl.arange(0, N)
    a = tl.load(x + i[:, None] * N + j[None, :]) + 1
    index = tl.broadcast_to(tl.load(rows + i)[:, None], [R, N])
    tl.store(out + i[:, None] * N + j[None, :], tl.gather(a, index, 0) * 2)


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int8, np.int64])
@pytest.mark.parametrize("n", [1, 4, 16, 64])
def test_rows_that_are_gathered_whole(kind, n):
    """One index for all lanes of a vector: they are loaded from one place."""
    x = np.random.default_rng(n).integers(-9, 9, (8, n)).astype(kind)
    rows = np.array([3, 3, 0, 7, 1, 2, 6, 5], np.int32)
    agree(gathered_rows, (1,), x, rows, np.zeros((8, n), kind), R=8, N=n)


def test_gathered_rows_are_loaded_by_vectors():
    kernel = native(
        gathered_rows, (1,), floats(8, 64), np.arange(8, dtype=np.int32), np.zeros((8, 64), np.float32),
        R=8, N=64,
    )  # fmt: skip
    assert "masked.gather" not in kernel.asm["llir"]


@tessera.jit
def chain_before_loop(x, out, T, N: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.load(x + at)
    b = tl.exp(a) * 3
    c = tl.where(b > a, b * b, a - b)
    y = c + b
    for _ in range(T):
        y = y * 0.5 + tl.sum(y) / N
    tl.store(out + at, y)


def test_what_only_a_loop_starts_from_is_not_kept():
    """One buffer for the carried tile and one for its next value, none for what the first value is computed from."""
    x, out = floats(4096), np.zeros(4096, np.float32)
    kernel = agree(chain_before_loop, (1,), x, out, 3, N=4096, rtol=1e-5, atol=1e-5)
    assert kernel.asm["llir"].count("alloca [4096 x float]") <= 2


def test_steps_of_a_sort_take_turns_in_the_same_memory():
    """A step's result lies where one lay that no later step reads, though the store alone is executed."""
    buffers = re.findall(r"alloca \[1024 x float\]", code(1, 1024))
    assert 1 < len(buffers) <= 4
