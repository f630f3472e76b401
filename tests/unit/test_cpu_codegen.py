"""What the CPU back end emits: vector accesses, hoisting, operands in place, no gathers where memory is contiguous."""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.backends.cpu.target import LEVELS
from tessera.compiler import ASTSource
from tessera.config import knobs
from tests.unit.cpu_kit import agree, floats, native


def llir(
    kernel: Any,
    signature: dict[str, str],
    arch: str = "avx512",
    aligned: tuple[str, ...] = (),
    **constants: Any,
) -> str:
    kinds = {**signature, **dict.fromkeys(constants, "constexpr")}
    attrs = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kinds) if name in aligned}
    source = ASTSource(kernel, kinds, constants, attrs)
    return tessera.compile(source, target=GPUTarget("cpu", arch, 1)).asm["llir"]


@tessera.jit
def add_kernel(x, y, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    m = at < n
    tl.store(out + at, tl.load(x + at, mask=m) + tl.load(y + at, mask=m), mask=m)


ADD = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"}


@pytest.mark.parametrize(("arch", "lanes"), [("avx512", 16), ("avx2", 8), ("generic", 4)])
def test_masks_split_the_loop(arch, lanes):
    text = llir(add_kernel, ADD, arch, B=1024)
    assert (
        text.count(f"call <{lanes} x float> @llvm.masked.load") == 4
    )  # up to a whole line, the rest
    # Four vectors a trip, unmasked; once with stores past the caches, for large launches.
    assert text.count(f"load <{lanes} x float>, ptr") == 16
    assert text.count("!nontemporal") == 4
    assert "gather" not in text
    assert "alloca" not in text


@tessera.jit
def exp_kernel(x, y, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    m = at < n
    tl.store(out + at, tl.exp(tl.load(x + at, mask=m)) + tl.load(y + at, mask=m), mask=m)


def test_loops_that_hardly_compute_may_use_narrower_vectors(monkeypatch):
    halves = replace(LEVELS["avx512"], name="avx512-halves", stream_bits=256)
    monkeypatch.setitem(LEVELS, "avx512", halves)
    assert "<8 x float>" in llir(add_kernel, ADD, "avx512", B=1024)
    assert "<8 x float>" not in llir(exp_kernel, ADD, "avx512", B=1024)


def test_functions_are_computed_two_registers_at_once_where_chains_of_instructions_wait():
    text = llir(exp_kernel, ADD, "avx2", B=1024)
    assert "call <16 x float> @llvm.fma" in text
    assert "<16 x float> @llvm.masked" not in text  # LLVM would lose masks of halves
    assert "<16 x float>" not in llir(add_kernel, ADD, "avx2", B=1024)


@tessera.jit
def turn_kernel(x, out, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(out + i * N + j, tl.trans(tl.load(x + i * N + j)))


def test_transposition_reads_and_writes_vectors():
    agree(turn_kernel, (1,), floats(64, 64), np.zeros((64, 64), np.float32), N=64)
    text = llir(turn_kernel, {"x": "*fp32", "out": "*fp32"}, N=64)
    assert "gather" not in text
    assert "scatter" not in text


@tessera.jit
def matmul_kernel(
    a, b, c, M, N, K, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    i = (tl.program_id(0) * BM + tl.arange(0, BM)) % M
    j = (tl.program_id(1) * BN + tl.arange(0, BN)) % N
    k = tl.arange(0, BK)
    pa = a + i[:, None] * sa + k[None, :]
    pb = b + k[:, None] * sb + j[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for step in range(0, tl.cdiv(K, BK)):
        x = tl.load(pa, mask=k[None, :] < K - step * BK, other=0.0)
        y = tl.load(pb, mask=k[:, None] < K - step * BK, other=0.0)
        acc = tl.dot(x, y, acc, input_precision="ieee")
        pa += BK
        pb += BK * sb
    row, column = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (row < M)[:, None] & (column < N)[None, :]
    tl.store(c + row[:, None] * sc + column[None, :], acc, mask=inside)


MATMUL = {
    "a": "*fp32",
    "b": "*fp32",
    "c": "*fp32",
    **dict.fromkeys(("M", "N", "K", "sa", "sb", "sc"), "i32"),
}


def test_operands_stay_in_place():
    text = llir(matmul_kernel, MATMUL, aligned=tuple(MATMUL), BM=64, BN=64, BK=32)
    assert "gather" not in text
    assert not re.search(r"alloca \[\d+ x ptr\]", text)  # no tile of pointers is carried
    # B is packed once for several programs, in the loop over chains of steps and in that over the rest.
    assert text.count("call void @llvm.memset") == 2


@pytest.mark.parametrize("size", [(64, 64, 64), (70, 50, 33), (128, 96, 160), (16, 16, 7)])
@pytest.mark.parametrize("block", [(32, 32, 16), (64, 64, 32), (16, 128, 16)])
def test_matmul_of_any_size(size, block):
    (m, n, k), (bm, bn, bk) = size, block
    a, b, c = floats(m, k), floats(k, n, seed=1), np.zeros((m, n), np.float32)
    grid = (tessera.cdiv(m, bm), tessera.cdiv(n, bn))
    agree(matmul_kernel, grid, a, b, c, m, n, k, k, n, n, rtol=1e-4, atol=1e-4, BM=bm, BN=bn, BK=bk)


@tessera.jit
def rows_kernel(x, w, out, n, N: tl.constexpr, R: tl.constexpr):
    i, j = tl.arange(0, R)[:, None], tl.arange(0, N)[None, :]
    scale = tl.exp(tl.load(w + tl.arange(0, R)))[:, None]
    tl.store(out + i * n + j, tl.load(x + i * n + j) * scale)


def test_what_depends_on_the_row_is_not_computed_for_each_vector():
    text = llir(rows_kernel, {"x": "*fp32", "w": "*fp32", "out": "*fp32", "n": "i32"}, N=256, R=64)
    # exp runs over a vector of rows in a loop of its own, not for every element
    assert len(re.findall(r"call <16 x float> @llvm\.x86\.avx512\.mask\.scalef", text)) <= 4
    assert "scalef.ps.128" not in text


def test_scratch_memory_takes_large_tiles():
    a, b, c = floats(256, 256), floats(256, 256, seed=1), floats(256, 256, seed=2)
    k = agree(
        chain_kernel, (1,), a, b, c, np.zeros((256, 256), np.float32), rtol=1e-3, atol=1e-2, N=256
    )
    assert k.metadata.scratch_bytes > 0


@tessera.jit
def chain_kernel(a, b, c, out, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    x, y, z = tl.load(a + at), tl.load(b + at), tl.load(c + at)
    p = tl.dot(x, tl.trans(y), input_precision="ieee") * 0.1
    q = tl.dot(p, z, input_precision="ieee")
    tl.store(out + at, tl.dot(q + x, p + y, q, input_precision="ieee"))


@tessera.jit
def rounds_kernel(x, out, n, B: tl.constexpr):
    at = tl.arange(0, B)
    total = tl.zeros([B], tl.float32)
    for i in range(n):
        total += tl.load(x + i * B + at)
    tl.store(out + at, total)


def test_a_loop_that_polls_is_no_nest_of_loops():
    """LLVM's reduction of strength takes twice as long for tiles of an index that begins anew in each block."""
    text = llir(rounds_kernel, {"x": "*fp32", "out": "*fp32", "n": "i32"}, B=16)
    lines = text.splitlines()
    begin = {x.partition(":")[0]: i for i, x in enumerate(lines) if re.match(r" *\w+:", x)}
    begin = {name.strip(): i for name, i in begin.items()}
    back = {
        name
        for i, line in enumerate(lines)
        for name in re.findall(r"label %(\w+)", line)
        if begin[name] < i
    }
    assert "call i32" in text  # the poll of the loop and that of the programs
    assert len(back) == 2, back  # over programs and over n


@tessera.jit
def scale_kernel(x, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    m = at < n
    tl.store(out + at, tl.load(x + at, mask=m) * 2, mask=m)


@pytest.mark.parametrize("offset", [0, 1])
def test_large_streams(offset):
    n = (7 << 20) + 5  # 28 MiB written: past the caches where the output is aligned
    x = np.arange(n, dtype=np.float32)
    store = np.zeros(n + 64, np.float32)
    out = store[offset : offset + n]
    native(scale_kernel, (tessera.cdiv(n, 4096),), x, out, n, B=4096)
    np.testing.assert_array_equal(out, x * 2)
    assert not store[offset + n :].any()


@tessera.jit
def rows_that_wrap(x, out, n, N: tl.constexpr, K: tl.constexpr):
    k, i = tl.arange(0, K), tl.arange(0, N)
    wrapped = tl.max_contiguous(tl.multiple_of(i % n, N), N)
    tl.store(out + k[:, None] * N + i[None, :], tl.load(x + k[:, None] * n + wrapped[None, :]))


@pytest.mark.skipif(sys.platform != "linux", reason="protects a page")
def test_a_promise_that_a_remainder_breaks_reads_no_other_memory():
    """Matmuls promise `cols % n` contiguous although the last block wraps; behind the array there is no memory here."""
    page, n, rows = mmap.PAGESIZE, 5, 16
    memory = mmap.mmap(-1, 2 * page)
    start = np.frombuffer(memory, np.uint8).ctypes.data
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + page), page, 0) == 0
    x = np.frombuffer(memory, np.float32, count=n * rows, offset=page - 4 * n * rows)
    x[:] = np.arange(n * rows)
    out = np.zeros((rows, 64), np.float32)
    rows_that_wrap[(1,)](x, out, n, N=64, K=rows)
    np.testing.assert_array_equal(out, x.reshape(rows, n)[:, np.arange(64) % n])


@tessera.jit
def short_rows(x, out, n, B: tl.constexpr):
    at = tl.arange(0, B)
    row = tl.program_id(0) * n + at
    tl.store(out + row, tl.load(x + row, mask=at < n) + 1, mask=at < n)


@pytest.mark.parametrize(
    ("arch", "branches"), [("avx512", 0), ("avx2", 4), ("generic", 8), ("neon", 8)]
)
@pytest.mark.parametrize("off", ["", "whole-stores"])
def test_full_vectors_are_stored_without_their_mask(arch, branches, off):
    """A store under a mask is slow on machines without mask registers."""
    with knobs.scope():
        knobs.compilation.disable = off
        text = llir(short_rows, {"x": "*fp32", "out": "*fp32", "n": "i32"}, arch, B=32)
    assert text.count("call i1 @llvm.vector.reduce.and.v") == (0 if off else branches)
    assert arch != "neon" or "llvm.x86" not in text


@tessera.jit
def some_lanes(x, places, out, n, B: tl.constexpr):
    at = tl.arange(0, B)
    place = tl.load(places + at)
    tl.store(out + place, tl.load(x + place, mask=at < n, other=-1.0) + 1, mask=at < n)


@pytest.mark.parametrize(
    ("arch", "branchless"), [("avx512", False), ("avx2", True), ("generic", True), ("neon", True)]
)
@pytest.mark.parametrize("off", ["", "branchless-lanes"])
def test_lanes_are_read_and_written_without_branches(arch, branchless, off):
    """Where no instruction reads or writes some lanes, all do, those that a mask leaves out at an address that is
    nobody's."""
    with knobs.scope():
        knobs.compilation.disable = off
        kinds = {"x": "*fp32", "places": "*i32", "out": "*fp32", "n": "i32"}
        text = llir(some_lanes, kinds, arch, B=16)
    moves = re.findall(r"call .*@llvm\.masked\.(?:gather|scatter)\..*", text)
    assert moves
    assert all(("splat (i1 true)" in move) == (branchless and not off) for move in moves)


@pytest.mark.parametrize("off", ["", "branchless-lanes"])
@pytest.mark.parametrize("n", [0, 1, 7, 15, 16])
def test_lanes_that_a_mask_leaves_out(n, off):
    """Their addresses are far outside of the arrays."""
    rng = np.random.default_rng(0)
    places = np.full(16, 2**30, np.int32)
    places[:n] = rng.permutation(32)[:n]
    x, out = rng.standard_normal(32, np.float32), np.full(32, 7, np.float32)
    expected = out.copy()
    expected[places[:n]] = x[places[:n]] + 1
    with knobs.scope():
        knobs.compilation.disable = off
        native(some_lanes, (1,), x, places, out, n, B=16)
    assert (out == expected).all()


@tessera.jit
def long_sums(x, out, n, B: tl.constexpr, R: tl.constexpr):
    at = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for r in tl.static_range(R):
        total += tl.load(x + at + r * B, mask=at < n, other=0.0)
    tl.store(out + at, total, mask=at < n)


@pytest.mark.parametrize(("terms", "bodies"), [(8, 4), (80, 2)])
def test_long_bodies_are_not_repeated_for_few_vectors(terms, bodies):
    """Four vectors without a loop, or one in a loop without masks and one behind it."""
    text = llir(long_sums, {"x": "*fp32", "out": "*fp32", "n": "i32"}, B=64, R=terms)
    loads = re.findall(r"load <16 x float>|call <16 x float> @llvm.masked.load", text)
    assert len(loads) == terms * bodies


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 31, 32])
def test_short_rows(n):
    x, out = np.arange(5 * n, dtype=np.float32), np.full(5 * n + 8, 7, np.float32)
    native(short_rows, (5,), x, out, n, B=32)
    assert (out[: 5 * n] == x + 1).all() and (out[5 * n :] == 7).all()


@tessera.jit
def mix_kernel(x, out, N: tl.constexpr, ROUNDS: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.load(x + at).to(tl.uint32)
    b = tl.load(x + N + at).to(tl.uint32)
    c = tl.load(x + 2 * N + at).to(tl.uint32)
    for _ in tl.static_range(ROUNDS):
        a += b
        c ^= (a << 7) | (a >> 25)
        b += c ^ a
    tl.store(out + at, a)
    tl.store(out + N + at, b)
    tl.store(out + 2 * N + at, c)


@pytest.mark.parametrize("rounds", [3, 30, 120])
def test_results_that_share_a_long_computation_share_its_loop(rounds):
    """What one store computes is kept where the others begin, not at each step, nor computed again for each of them;
    long computations on integers are no addresses, and stay in a loop."""
    text = llir(mix_kernel, {"x": "*u32", "out": "*u32"}, "avx2", N=256, ROUNDS=rounds)
    assert len(re.findall(r"xor <\d+ x i32>", text)) <= 4 * rounds + 240
    assert len(re.findall(r"alloca \[256 x i32\]", text)) <= 12


@pytest.mark.parametrize("rounds", [3, 30, 120])
def test_results_that_share_a_long_computation_are_right(rounds):
    x = np.random.default_rng(0).integers(0, 1 << 32, 3 * 64, dtype=np.uint32)
    agree(mix_kernel, (1,), x, np.zeros_like(x), N=64, ROUNDS=rounds)
