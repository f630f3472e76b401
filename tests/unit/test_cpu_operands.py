"""Loops of products whose operands are made in every way, on each instruction set, against the interpreter.

A short sample of what `python -m tests.unit.dot_sweep` runs by the thousand.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.cpu.target import lacking
from tessera.config import knobs
from tests.unit.cpu_kit import agree
from tests.unit.dot_cases import ENDS, SUMS, Case
from tests.unit.dot_operands import CHANGES, LOOPS, ORDERS, SOURCES
from tests.unit.dot_sweep import OFF, Sweep, levels

pytestmark = pytest.mark.filterwarnings("ignore:make_block_ptr is deprecated")

# The shape of the loop that packs the operands of all steps first.
WHOLE = {"m": "32", "n": "32", "k": "16", "sum": "dot acc", "loop": "for", "trips": "2"}


@tessera.jit
def quantised(a_ptr, b_ptr, z_ptr, c_ptr, T, N: tl.constexpr, K: tl.constexpr):
    n, k = tl.arange(0, N), tl.arange(0, K)
    acc = tl.zeros((N, N), tl.float32)
    for i in range(T):
        z = tl.load(z_ptr + i * N + n).to(tl.float32) * 2
        b = tl.load(b_ptr + (i * K + k)[:, None] * N + n[None, :]) * z[None, :]
        a = tl.load(a_ptr + n[:, None] * (T * K) + (i * K + k)[None, :])
        acc += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + n[:, None] * N + n[None, :], acc)


@pytest.mark.parametrize("n", [16, 32, 64])
@pytest.mark.parametrize("trips", [1, 2, 3])
@pytest.mark.parametrize("scale", [np.float32, np.float16, np.int8])
def test_a_row_vector_made_in_the_loop(n, trips, scale):
    """Each step has a row of its own: reads of it must not leave the loop that writes it."""
    numbers = np.random.default_rng(0)

    def whole(*shape: int) -> np.ndarray:
        return numbers.integers(-3, 4, shape)

    a, b = (whole(*s).astype(np.float32) for s in ((n, 16 * trips), (16 * trips, n)))
    z = whole(trips, n).astype(scale)
    agree(quantised, (1,), a, b, z, np.zeros((n, n), np.float32), trips, N=n, K=16)


@tessera.jit
def gated(a, b, d, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, LOOPS: tl.constexpr):
    """Two sums, of one loop or of two, that one store multiplies."""
    row, column, ks = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    one, two = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        left = tl.load(a + row[:, None] * K + (k + ks)[None, :])
        one = tl.dot(left, tl.load(b + (k + ks)[:, None] * BN + column[None, :]), one)
        if LOOPS == 1:
            two = tl.dot(left, tl.load(d + (k + ks)[:, None] * BN + column[None, :]), two)
    if LOOPS == 2:
        for k in range(0, K, BK):
            left = tl.load(a + row[:, None] * K + (k + ks)[None, :]).to(tl.float16)
            right = tl.load(d + (k + ks)[:, None] * BN + column[None, :]).to(tl.float16)
            two = tl.dot(left, right, two)
    tl.store(c + row[:, None] * BN + column[None, :], one * two)


@pytest.mark.parametrize("loops", [1, 2])
@pytest.mark.parametrize("k", [0, 64, 192, 16 * 70])
def test_two_sums_that_one_store_multiplies(loops, k):
    numbers = np.random.default_rng(k)
    a, b, d = (numbers.integers(-1, 2, s).astype(np.float32) for s in ((64, k), (k, 64), (k, 64)))
    c = np.full((64, 64), 7, np.float32)
    agree(gated, (1,), a, b, d, c, k, BM=64, BN=64, BK=16, LOOPS=loops)


def check(folder: Path, seed: int, isas: list[str], off: str = "", **fixed: str) -> None:
    case = Case(seed, fixed)
    assert not Sweep(folder).differences(case, isas, off), case.source


@pytest.mark.parametrize("change", sorted(set(CHANGES)))
def test_each_change_of_an_operand(change, tmp_path):
    check(tmp_path, 1, ["native"], change=change, **WHOLE)


@pytest.mark.parametrize("source", SOURCES)
def test_each_source_of_a_scale(source, tmp_path):
    check(tmp_path, 2, ["native"], change="scale", source=source, **WHOLE)


@pytest.mark.parametrize(
    ("what", "choice"),
    [(what, x) for what, choices in (("order", ORDERS), ("loop", LOOPS), ("sum", SUMS), ("end", ENDS))
     for x in dict.fromkeys(choices)],
)  # fmt: skip
def test_each_choice(what, choice, tmp_path):
    check(tmp_path, 3, ["native"], **{what: choice})


@pytest.mark.parametrize("isa", levels())
def test_sample_of_each_instruction_set(isa, tmp_path):
    types = {"type": "bf16"} if isa == "amx" else {}
    for seed in range(100, 108):
        check(tmp_path, seed, [isa], **types)


@pytest.mark.parametrize("off", [*OFF, "all"])
def test_without_each_optimisation(off, tmp_path):
    """A loop that packs the operands of all steps, and one drawn for each name."""
    check(tmp_path, 5, ["native"], off, **WHOLE)
    check(tmp_path, 200 + (OFF.index(off) if off in OFF else len(OFF)), ["native"], off)


def test_without_prepacking_no_operand_is_packed_first(tmp_path):
    """An off-switch leaves the strategy out: sums are then multiplied in the loop, a few steps at a time."""
    a, b = (np.ones(s, np.float32) for s in ((32, 64), (64, 32)))
    z, texts = np.ones((4, 32), np.float32), []
    for off in ("", "prepack-k"):
        with knobs.scope():
            knobs.compilation.disable = off
            k = agree(quantised, (1,), a, b, z, np.zeros((32, 32), np.float32), 4, N=32, K=16)
            texts.append(k.asm["llir"])
    scratch = "getelementptr i8, ptr %ctx, i64 16"  # where rings of packed operands lie
    assert [scratch in text for text in texts] == [True, False]


@tessera.jit
def strided_weights(
    w, x, c, step, seen, SCALE: tl.constexpr, GROUPS: tl.constexpr, MASK: tl.constexpr, WRITE: tl.constexpr,
):  # fmt: skip
    """A chain of three dots; the rows of A are `SCALE` elements apart along k, those of a group of programs equal."""
    pid, i = tl.program_id(0), tl.arange(0, 32)
    group = pid // GROUPS
    acc = tl.zeros((32, 32), tl.float32)
    for t in tl.static_range(3):
        at = (i[:, None] * 32 + i[None, :]) * SCALE + t + group * step
        if MASK:
            a = tl.load(w + at, mask=i[None, :] < seen + pid, other=0.0)
        else:
            a = tl.load(w + at)
        b = tl.load(x + (pid + t) * 1024 + i[:, None] * 32 + i[None, :])
        acc = tl.dot(a, b, acc, input_precision="ieee")
    tl.store(c + pid * 1024 + i[:, None] * 32 + i[None, :], acc)
    if WRITE:
        tl.store(w + i, tl.load(w + i) + 1)


@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512"])
@pytest.mark.parametrize(
    ("mask", "write", "scale"), [(0, 0, 3), (1, 0, 3), (0, 1, 3), (0, 0, 1), (0, 0, 4)]
)
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_copies_of_a_are_shared_by_programs(isa, mask, write, scale, kind):
    """Unless masks differ, or the kernel writes to A; groups of two programs have weights of their own."""
    if lacking(isa):
        pytest.skip(f"the machine has no {isa}")
    numbers = np.random.default_rng(scale)
    w = numbers.integers(-2, 3, 4 * 1024 + 3 * 40).astype(kind)
    x = numbers.integers(-2, 3, (9, 32, 32)).astype(kind)
    c = np.zeros((7, 32, 32), np.float32)
    with knobs.cpu.scope(), knobs.runtime.scope():
        knobs.cpu.isa = isa
        knobs.runtime.num_threads = 1  # programs see what those before them wrote
        kernel = agree(
            strided_weights, (7,), w, x, c, 40, 5, SCALE=scale, GROUPS=2, MASK=mask, WRITE=write
        )
    line = kernel.asm["llir"].splitlines()[0]
    if scale > 1 and not write:
        assert "A shared" in line
    assert not write or "A shared" not in line
