"""Code for machines other than this one: features hidden, processors known by their name only."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.backends.cpu.probes import features_used
from tessera.backends.cpu.target import LEVELS, lacking, resolve
from tessera.backends.llvm.binding import host, host_features, x86
from tessera.compiler import ASTSource
from tessera.config import knobs
from tessera.errors import NoDeviceError
from tests.unit.cpu_kit import agree, native
from tests.unit.dot_sweep import levels

AVX2 = {"avx2", "f16c", "fma"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
needs_x86 = pytest.mark.skipif("sse2" not in host_features(), reason="no x86 machine")


@tessera.jit
def product(a, b, c, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    out = tl.dot(tl.load(a + at), tl.load(b + at))
    tl.store(c + at, out.to(c.dtype.element_ty))


def check(t: Any, out: Any) -> Any:
    """Multiply natively; gives the compiled kernel."""
    a, b = (np.random.default_rng(i).integers(-3, 4, (32, 32)).astype(t) for i in range(2))
    c = np.zeros((32, 32), out)
    kernel = native(product, (1,), a, b, c, 32)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(c.astype(np.float32), expected.astype(out).astype(np.float32))
    return kernel


@pytest.mark.parametrize("hidden", ["avx512,amx", "avx,fma,f16c,amx"])
@pytest.mark.parametrize("t", [np.float32, np.float16, np.int8, ml_dtypes.bfloat16])
def test_a_smaller_machine(hidden, t):
    """Code without the instructions that are hidden, and no launch of code for more."""
    with knobs.scope():
        knobs.cpu.hide, knobs.cpu.isa = hidden, "native"
        kernel = check(t, np.int32 if t is np.int8 else t)
        assert not re.search(r"zmm|\{%k", kernel.asm["asm"])
        assert hidden.startswith("avx512") or "ymm" not in kernel.asm["asm"]
        assert "avx512f" in lacking("avx512")
        assert set(levels()) <= {"native", "generic", *(["avx2"] if "avx512" in hidden else [])}
        knobs.cpu.isa = "avx512"
        with pytest.raises(NoDeviceError, match=r"lacks .*avx512f"):
            check(t, np.float32)
    assert "avx512f" not in lacking("avx512") or "avx512f" not in host_features()


@needs_x86
@pytest.mark.parametrize(
    ("name", "features"),
    [("x86-64", set()), ("nehalem", set()), ("haswell", AVX2), ("znver3", AVX2), ("skylake-avx512", AVX512),
     ("icelake-server", AVX512 | {"avx512vnni"}), ("znver4", AVX512 | {"avx512vnni", "avx512bf16"})],
)  # fmt: skip
def test_features_of_a_processor_known_by_name(name, features):
    assert features_used(x86(name)) == features


@needs_x86
@pytest.mark.parametrize(
    "name", ["x86-64", "nehalem", "haswell", "skylake-avx512", "sapphirerapids", "znver5"]
)
def test_code_for_a_named_processor_runs_here(name):
    """Without what this machine lacks, and without intrinsics that the named one lacks."""
    with knobs.scope():
        knobs.cpu.isa = name
        for t in (np.float32, np.float16, np.int8, ml_dtypes.bfloat16):
            check(t, np.int32 if t is np.int8 else t)
        machine, facts = resolve(name)
        assert machine.cpu == name
        assert not facts.tiles
        off = {f[1:] for f in machine.features.split(",")}
        assert not off & host_features()


def test_nothing_hidden_is_the_machine_itself():
    assert host("native").features.count("+") == len(host_features())


@tessera.jit
def masked_product(a_ptr, v_ptr, out_ptr, rows, R: tl.constexpr, C: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, 32), tl.arange(0, 16), tl.arange(0, 16)
    inside = (m < rows)[:, None] & (k < C)[None, :]
    a = tl.load(a_ptr + m[:, None] * C + k[None, :], mask=inside, other=0)
    v = tl.load(v_ptr + k[:, None] + n[None, :] * R, mask=(k < R)[:, None], other=0)
    tl.store(
        out_ptr + m[:, None] * 16 + n[None, :],
        tl.dot(a, v),
        mask=(m < rows)[:, None] & (n < K)[None, :],
    )


@tessera.jit
def masked_copy(x_ptr, out_ptr, n, ROWS: tl.constexpr, COLS: tl.constexpr, B: tl.constexpr):
    i, j = tl.arange(0, 32)[:, None], tl.arange(0, B)[None, :]
    x = tl.load(x_ptr + i * COLS + j, mask=(i < ROWS) & (j < COLS), other=3)
    tl.store(out_ptr + i * COLS + j, x, mask=(i < n) & (j < COLS))


@pytest.mark.parametrize("isa", [x for x in levels() if x != "amx"])
@pytest.mark.parametrize("t", [np.float64, np.float32, np.int64, np.int16])
@pytest.mark.parametrize("columns", [3, 12, 13, 29])
def test_masks_of_rows_and_columns(isa, t, columns):
    """LLVM 22 dropped masks of constant columns in rows of a variable mask where vectors were wider than AVX2's."""
    x = np.arange(1, 1 + 32 * columns).astype(t)
    with knobs.cpu.scope():
        knobs.cpu.isa = isa
        agree(masked_copy, (1,), x, np.zeros_like(x), 30, 29, columns, 32)
        if t in (np.float64, np.float32) and columns <= 13:
            a, v = (np.random.default_rng(i).integers(-3, 4, 512).astype(t) for i in range(2))
            agree(masked_product, (1,), a, v, np.zeros((32, 16), t), 29, 13, columns, 11)


@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512"])
@pytest.mark.parametrize("t", ["fp64", "i64", "fp32", "i16"])
def test_masked_accesses_fit_a_register(isa, t):
    sizes = {"ROWS": 29, "COLS": 29, "B": 32}
    kinds = {"x_ptr": f"*{t}", "out_ptr": f"*{t}", "n": "i32", **dict.fromkeys(sizes, "constexpr")}
    source = ASTSource(masked_copy, kinds, sizes)
    text = tessera.compile(source, target=GPUTarget("cpu", isa, 1)).asm["llir"]
    widths = re.findall(r"@llvm\.masked\.(?:load|store)\.v(\d+)[fi](\d+)\.", text)
    assert widths
    assert max(int(n) * int(bits) for n, bits in widths) <= LEVELS[isa].vector_bits
