"""Products on the CPU: which instructions each type takes, B packed once for several programs, tiles."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.backends.cpu.target import LEVELS, facts_of, lacking
from tessera.compiler import ASTSource
from tessera.compiler.compile import make_backend
from tessera.config import knobs
from tessera.errors import NoDeviceError
from tests.unit import amx_kit
from tests.unit.cpu_kit import agree, floats, native


@tessera.jit
def product(
    a, b, c, K, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr
):
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), ACC)
    for k in range(0, K, BK):
        left = tl.load(a + row[:, None] * sa + (k + ks)[None, :])
        right = tl.load(b + (k + ks)[:, None] * sb + column[None, :])
        acc = tl.dot(left, right, acc)
    tl.store(c + row[:, None] * sc + column[None, :], acc)


def compiled(a: str, b: str, acc: Any, arch: str, **sizes: int) -> Any:
    constants = {"BM": 64, "BN": 64, "BK": 64, **sizes, "ACC": acc}
    out = "*i32" if acc is tl.int32 else "*fp32"
    kinds = {"a": a, "b": b, "c": out, **dict.fromkeys(("K", "sa", "sb", "sc"), "i32")}
    kinds |= dict.fromkeys(constants, "constexpr")
    attrs = {(i,): [["tt.divisibility", 16]] for i in range(7)}
    source = ASTSource(product, kinds, constants, attrs)
    return tessera.compile(source, target=GPUTarget("cpu", arch, 1))


@pytest.mark.parametrize(
    ("a", "b", "acc", "instruction"),
    [
        ("*bf16", "*bf16", tl.float32, "tdpbf16ps"),
        ("*fp8e5", "*fp8e4nv", tl.float32, "tdpbf16ps"),
        ("*i8", "*i8", tl.int32, "tdpbssd"),
        ("*fp16", "*fp16", tl.float32, "vfmadd231ps"),
        ("*fp32", "*fp32", tl.float32, "vfmadd231ps"),
    ],
)
def test_instructions_of_the_matrix_unit(a, b, acc, instruction):
    text = compiled(a, b, acc, "amx").asm["asm"]
    assert instruction in text
    uses_tiles = instruction.startswith("tdp")
    assert text.count("ldtilecfg") == text.count("tilerelease") == uses_tiles


@pytest.mark.parametrize("sizes", [{"BM": 8}, {"BN": 8}, {"BK": 16}])
def test_blocks_that_fill_no_tile_use_vectors(sizes):
    assert "tdp" not in compiled("*bf16", "*bf16", tl.float32, "amx", **sizes).asm["asm"]


@pytest.mark.parametrize("rows", [16, 64])
def test_sums_stay_in_tiles_along_k(rows):
    """Blocks of c are written where a long loop is cut, and in the loop of the store."""
    text = compiled("*bf16", "*bf16", tl.float32, "amx", BM=rows).asm["asm"]
    tiles = 2 * min(rows // 16, 2)  # of one block of c
    assert text.count("tdpbf16ps") == text.count("tilestored") == 2 * tiles
    assert text.count("tileloaddt1") == 2 * 2  # of B, which passes by


@pytest.mark.parametrize(
    ("t", "acc", "arch", "sizes", "plan"),
    [
        ("*fp32", tl.float32, "avx512", {},
         "dot fp32 64x64x64: prepack-k, fma; rows 9 x 6 + 2 x 5; panels 1 x 64; A in place, B shared"),
        ("*bf16", tl.float32, "amx", {"BM": 16},
         "dot fp32 16x64x64: prepack-k, amx-bf16; rows 1 x 16; panels 2 x 32; A in place, B shared"),
        ("*bf16", tl.float32, "amx", {"BK": 16},
         "dot fp32 64x64x16: prepack-k, fma; rows 9 x 6 + 2 x 5; panels 1 x 64; A converted by rows, B shared; "
         "no amx-bf16: k is no multiple of 32, no avx512-bf16: the target lacks it"),
        ("*fp32", tl.float32, "avx2", {"BM": 16},
         "dot fp32 16x64x64: in place, fma; rows 4 x 4; panels 2 x 24 + 1 x 16; A in place, B in place; "
         "B is read in place for few rows"),
        ("*i8", tl.int32, "avx2", {},
         "dot int32 64x64x64: prepack-k, pmaddwd; rows 16 x 4; panels 2 x 24 + 1 x 16; A converted by rows, B shared; "
         "no amx-int8: the target lacks it, no avx512-vnni: the target lacks it"),
        ("*i8", tl.int32, "amx", {"BM": 8},
         "dot int32 8x64x64: prepack-k, avx512-vnni; rows 2 x 4; panels 1 x 64; A in place, B shared; "
         "no amx-int8: m is no multiple of 16"),
    ],
)  # fmt: skip
def test_the_plan_of_a_dot_heads_the_code(t, acc, arch, sizes, plan):
    assert compiled(t, t, acc, arch, **sizes).asm["llir"].startswith(f"; {plan}\n")


def test_plans_say_why_dots_are_multiplied_in_each_step():
    constants = {"D": 64, "BM": 32, "BN": 64}
    kinds = {**dict.fromkeys("qkv", "*bf16"), "out": "*fp32", "N": "i32"}
    source = ASTSource(two_products, {**kinds, **dict.fromkeys(constants, "constexpr")}, constants)
    lines = tessera.compile(source, target=GPUTarget("cpu", "avx2", 1)).asm["llir"].splitlines()[:2]
    why = "the accumulator is not carried for this dot alone, no amx-bf16: the target lacks it"
    for line in lines:
        assert ": in place, fma; " in line
        assert f"; A copied, B shared; {why}" in line


def test_compile_time_does_not_grow_with_the_tile():
    """Loops, not copies: large tiles take about as many instructions as small ones."""
    for t, arch in (("*fp32", "avx512"), ("*bf16", "amx")):
        small = len(compiled(t, t, tl.float32, arch, BM=64, BN=64, BK=64).asm["llir"])
        large = len(compiled(t, t, tl.float32, arch, BM=128, BN=256, BK=64).asm["llir"])
        assert large < 1.3 * small
        assert small < 300_000


def test_levels_lack_what_the_machine_has_not():
    arrays = operands(np.float32)
    with knobs.scope():
        knobs.cpu.hide = "avx512,amx"
        assert lacking("native") == "" == lacking("generic")
        assert "amx-tile" in lacking("amx")
        knobs.cpu.isa = "avx512"
        with pytest.raises(NoDeviceError, match=r"lacks .*avx512f"):
            native(product, (1, 1), *arrays, 64, 64, 64, 64, **SIZES, ACC=tl.float32)


def test_tiles_need_the_permission_of_the_system(monkeypatch):
    everything = frozenset(
        [
            "amx-tile",
            "amx-bf16",
            "amx-int8",
            "avx512f",
            "avx512bw",
            "avx512vl",
            "avx512dq",
            "avx512bf16",
            "avx512vnni",
        ]
    )
    monkeypatch.setattr("tessera.backends.cpu.target.permitted", lambda: False)
    facts = facts_of(everything)
    assert not facts.tiles
    assert facts.bytes_dot
    monkeypatch.setattr("tessera.backends.cpu.target.permitted", lambda: True)
    assert facts_of(everything) == LEVELS["amx"]


SIZES = {"BM": 64, "BN": 64, "BK": 64}


def operands(t: Any, m: int = 64, n: int = 64, k: int = 64) -> tuple[Any, Any, Any]:
    if np.dtype(t).kind == "f":
        return floats(m, k).astype(t), floats(k, n, seed=1).astype(t), np.zeros((m, n), np.float32)
    random, info = np.random.default_rng(0), np.iinfo(t)
    a, b = (random.integers(info.min, info.max + 1, s).astype(t) for s in ((m, k), (k, n)))
    return a, b, np.zeros((m, n), np.int32)


@pytest.mark.parametrize("t", [np.float32, np.float16, np.int8])
@pytest.mark.parametrize("block", [(16, 16, 64), (64, 32, 64), (64, 64, 128), (32, 16, 32)])
def test_products_of_programs_that_share_b(t, block):
    bm, bn, bk = block
    a, b, c = operands(t, 4 * bm, 3 * bn, 5 * bk)
    k, n = b.shape
    acc = tl.int32 if c.dtype == np.int32 else tl.float32
    exact = acc is tl.int32
    agree(product, (4, 3), a, b, c, k, k, n, n, BM=bm, BN=bn, BK=bk, ACC=acc,
          rtol=0 if exact else 1e-4, atol=0 if exact else 1e-3)  # fmt: skip


@pytest.mark.parametrize("arch", ["avx2", "avx512"])
@pytest.mark.parametrize("off", ["", "int8-pairs"])
def test_bytes_are_multiplied_in_pairs(arch: str, off: str):
    """Where there are no dots of four. The least bytes have the largest products, whose sum takes 32 bits."""
    if lacking(arch):
        pytest.skip(f"this machine lacks {lacking(arch)}")
    least = [np.full(shape, -128, np.int8) for shape in ((64, 192), (192, 48))]
    with knobs.scope():
        knobs.cpu.isa = arch
        for a, b in (operands(np.int8, 64, 48, 192)[:2], least):
            c = np.zeros((64, 48), np.int32)
            kernel = agree(product, (2, 3), a, b, c, 192, 192, 48, 48, BM=32, BN=16, BK=64, ACC=tl.int32,
                           disable_optimizations=off)  # fmt: skip
            assert ("vpmaddwd" in kernel.asm["asm"]) == (off == "")


@tessera.jit
def accumulate(a, b, c, K, sa, sb, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Each program reads what the one before has written: B and c may be one array."""
    row, column, ks = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        left = tl.load(a + row[:, None] * sa + (k + ks)[None, :])
        right = tl.load(b + (k + ks)[:, None] * sb + column[None, :])
        acc = tl.dot(left, right, acc)
    tl.store(c + row[:, None] * sb + column[None, :], acc)


def test_panels_are_made_anew_where_b_is_written():
    a = (floats(64, 64) / 16).astype(np.float32)
    b = floats(64, 64, seed=1)
    expected = b.astype(np.float64)
    for _ in range(3):
        expected = a.astype(np.float64) @ expected
    with knobs.scope():
        knobs.runtime.num_threads = 1  # programs run one after the other
        k = native(accumulate, (3,), a, b, b, 64, 64, 64, BM=64, BN=64, BK=64)
    np.testing.assert_allclose(b, expected, rtol=1e-3, atol=1e-4)
    assert k.metadata.assumed_disjoint in ([], [(1, 2, 0)], [[1, 2, 0]])


def test_panels_are_made_anew_for_each_launch():
    a, b, c = operands(np.float32, 128, 64, 128)
    for _ in range(2):
        b += 1.0
        native(product, (2, 1), a, b, c, 128, 128, 64, 64, **SIZES, ACC=tl.float32)
        np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-3)


def test_masked_columns_are_not_kept():
    """Programs whose masks differ read the same addresses."""
    a, b, c = floats(64, 64), floats(64, 64, seed=1), np.zeros((4, 64, 64), np.float32)
    native(ragged, (4,), a, b, c, 64, BM=64, BN=64, BK=64)
    for pid in range(4):
        seen = b[: 16 * (pid + 1)]
        np.testing.assert_allclose(c[pid], a[:, : len(seen)] @ seen, rtol=1e-4, atol=1e-3)


@tessera.jit
def ragged(a, b, c, s, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, column, ks = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    left = tl.load(a + row[:, None] * s + ks[None, :])
    seen = ks < 16 * (tl.program_id(0) + 1)
    right = tl.load(b + ks[:, None] * s + column[None, :], mask=seen[:, None], other=0.0)
    out = c + tl.program_id(0) * BM * BN + row[:, None] * BN + column[None, :]
    tl.store(out, tl.dot(left, right))


def test_the_key_of_the_cache_tells_the_levels_apart():
    keys = {
        make_backend(GPUTarget("cpu", arch, 1)).toolchain()
        for arch in ("generic", "avx2", "avx512", "amx")
    }
    assert len(keys) == 4


def test_neon_code_assembles():
    for t, acc in (("*fp32", tl.float32), ("*bf16", tl.float32), ("*i8", tl.int32)):
        kernel = compiled(t, t, acc, "neon")
        assert kernel.asm["object"][:4] == b"\x7fELF"
        assert kernel.asm["object"][18] == 183  # AArch64


@pytest.mark.parametrize("k", [0, 64, 640])
def test_sums_of_no_steps_are_zero(k):
    a, b, c = floats(64, 640), floats(640, 64, seed=1), np.full((64, 64), 7, np.float32)
    native(product, (1, 1), a, b, c, k, 640, 64, 64, **SIZES, ACC=tl.float32)
    np.testing.assert_allclose(c, a[:, :k] @ b[:k], rtol=1e-4, atol=1e-3)


@tessera.jit
def swizzled(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Rows and columns past the edge wrap around, as in the well-known kernel."""
    row = (tl.program_id(0) * BM + tl.arange(0, BM)) % M
    column = (tl.program_id(1) * BN + tl.arange(0, BN)) % N
    ks = tl.arange(0, BK)
    left, right = a + row[:, None] * K + ks[None, :], b + ks[:, None] * N + column[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(left), tl.load(right), acc)
        left += BK
        right += BK * N
    row, column = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (row < M)[:, None] & (column < N)[None, :]
    tl.store(c + row[:, None] * N + column[None, :], acc, mask=inside)


def test_panels_of_large_tiles_are_shared_too():
    """Few tags tell the addresses of a tile whose columns wrap around."""
    kinds = {**dict.fromkeys("abc", "*bf16"), **dict.fromkeys("MNK", "i32")}
    constants = {"BM": 128, "BN": 256, "BK": 64}
    attrs = {(i,): [["tt.divisibility", 16]] for i in range(6)}
    source = ASTSource(
        swizzled, {**kinds, **dict.fromkeys(constants, "constexpr")}, constants, attrs
    )
    text = tessera.compile(source, target=GPUTarget("cpu", "amx", 1)).asm["llir"]
    assert text.count("call void @llvm.memset") == 1  # the ring of B: A stays in place
    a, b, c = floats(160, 640), floats(640, 176, seed=1), np.zeros((160, 176), np.float32)
    native(swizzled, (3, 3), a, b, c, 160, 176, 640, BM=64, BN=64, BK=64)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-3)


emulated = pytest.mark.skipif(
    amx_kit.lacking() != "", reason=f"the code around tiles cannot run here: no {amx_kit.lacking()}"
)


@emulated
@pytest.mark.parametrize("steps", [1, 5, 9, 19])
@pytest.mark.parametrize("block", [(16, 16, 64), (32, 64, 64), (64, 16, 128), (64, 32, 32)])
def test_tiles_of_bf16(block, steps):
    """One tile, blocks of four tiles, single rows and columns of tiles; chains of steps and the rest."""
    bm, bn, bk = block
    m, n, k = 2 * bm, 2 * bn, steps * bk
    a, b = (x.astype(ml_dtypes.bfloat16) for x in (floats(m, k), floats(k, n, seed=1)))
    c = np.full((m, n), 7, np.float32)
    kernel = compiled("*bf16", "*bf16", tl.float32, "amx", BM=bm, BN=bn, BK=bk)
    tiles = amx_kit.run(kernel, (2, 2, 1), a, b, c, k, k, n, n)
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.astype(np.float32), rtol=1e-4, atol=1e-3)
    assert tiles.ran["tdpbf16ps"] == m * n * k // (16 * 16 * 32)
    blocks = (m // 16) * (n // 16)
    assert tiles.ran["tilestored64"] == tiles.ran["tilezero"] == blocks
    assert not tiles.configured


@emulated
@pytest.mark.parametrize("block", [(16, 16, 64), (32, 64, 128), (64, 32, 64)])
def test_tiles_of_bytes(block):
    bm, bn, bk = block
    a, b, c = operands(np.int8, 2 * bm, 2 * bn, 11 * bk)
    k, n = b.shape
    kernel = compiled("*i8", "*i8", tl.int32, "amx", BM=bm, BN=bn, BK=bk)
    amx_kit.run(kernel, (2, 2, 1), a, b, c, k, k, n, n)
    np.testing.assert_array_equal(c, a.astype(np.int32) @ b.astype(np.int32))


@emulated
def test_tiles_with_rows_that_wrap_around():
    """A in place where 16 rows are neighbours; programs past the edge read from the start."""
    constants = {"BM": 64, "BN": 64, "BK": 64}
    kinds = {**dict.fromkeys("ab", "*bf16"), "c": "*fp32", **dict.fromkeys("MNK", "i32")}
    attrs = {(i,): [["tt.divisibility", 16]] for i in range(6)}
    source = ASTSource(
        swizzled, {**kinds, **dict.fromkeys(constants, "constexpr")}, constants, attrs
    )
    kernel = tessera.compile(source, target=GPUTarget("cpu", "amx", 1))
    m, n, k = 160, 176, 640
    a, b = (x.astype(ml_dtypes.bfloat16) for x in (floats(m, k), floats(k, n, seed=1)))
    c = np.zeros((m, n), np.float32)
    tiles = amx_kit.run(kernel, (3, 3, 1), a, b, c, m, n, k)
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.astype(np.float32), rtol=1e-4, atol=1e-3)
    assert tiles.ran["tdpbf16ps"] > 0


@tessera.jit
def two_products(q, k, v, out, N, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """As in attention: K transposed, weights computed, sums scaled between the steps."""
    rows, dims, keys = tl.arange(0, BM) + tl.program_id(0) * BM, tl.arange(0, D), tl.arange(0, BN)
    queries = tl.load(q + rows[:, None] * D + dims[None, :])
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, N, BN):
        columns = tl.load(k + (start + keys)[None, :] * D + dims[:, None])
        weights = tl.dot(queries, columns) * 0.125
        values = tl.load(v + (start + keys)[:, None] * D + dims[None, :])
        acc = tl.dot(weights.to(tl.bfloat16), values, acc * 0.5)
    tl.store(out + rows[:, None] * D + dims[None, :], acc)


@emulated
def test_tiles_of_computed_operands():
    constants = {"D": 64, "BM": 32, "BN": 64}
    kinds = {**dict.fromkeys("qkv", "*bf16"), "out": "*fp32", "N": "i32"}
    source = ASTSource(two_products, {**kinds, **dict.fromkeys(constants, "constexpr")}, constants)
    kernel = tessera.compile(source, target=GPUTarget("cpu", "amx", 1))
    q, k, v = (floats(192, 64, seed=i).astype(ml_dtypes.bfloat16) for i in range(3))
    out = np.zeros((64, 64), np.float32)
    tiles = amx_kit.run(kernel, (2, 1, 1), q[:64].copy(), k, v, out, 192)
    expected = np.zeros((64, 64))
    for start in range(0, 192, 64):
        weights = q[:64].astype(np.float32) @ k[start : start + 64].astype(np.float32).T * 0.125
        rounded = weights.astype(ml_dtypes.bfloat16).astype(np.float32)
        expected = expected * 0.5 + rounded @ v[start : start + 64].astype(np.float32)
    np.testing.assert_allclose(out, expected, rtol=1e-2, atol=5e-2)
    assert tiles.ran["tdpbf16ps"] == 2 * 64 * 192 * 64 // (16 * 16 * 32)


@tessera.jit
def downwards(a, b, c, first, last, BK: tl.constexpr):
    r, ks = tl.arange(0, 16), tl.arange(0, BK)
    acc = tl.zeros((16, 16), tl.float32)
    for k in range(first, last, -BK):
        x = tl.load(a + r[:, None] * 512 + (k - BK + ks)[None, :])
        y = tl.load(b + (k - BK + ks)[:, None] * 16 + r[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(c + r[:, None] * 16 + r[None, :], acc)


@pytest.mark.parametrize("first", [32, 192, 224, 256, 480])
def test_steps_down_along_k(first: int):
    """One step fewer than a multiple of the unrolled loop's, among others."""
    a, b, c = floats(16, 512), floats(512, 16, seed=1), np.zeros((16, 16), np.float32)
    native(downwards, (1,), a, b, c, first, 0, BK=32)
    np.testing.assert_allclose(c, a[:, :first] @ b[:first], rtol=1e-4, atol=1e-3)
