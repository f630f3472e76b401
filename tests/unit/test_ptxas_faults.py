"""PTX is written around what ptxas translates wrongly, for those releases that do."""

# pyright: basic
from __future__ import annotations

import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.backends.nvidia.ptxas_faults import avoid_faults
from tessera.compiler import ASTSource
from tessera.config import knobs

CONVERT = "\tcvt.rn.satfinite.e4m3x2.f32 %rs{0}, %f1, %f2;\n"
OLD, NEW = "12.8.93", "13.0.88"


def words(to: str, low: int, high: int) -> str:
    both = f"cvt.u32.u16 %low, %rs{low}; cvt.u32.u16 %high, %rs{high};"
    return f"{{ .reg .b32 %low, %high; {both} prmt.b32 {to}, %low, %high, 0x5410; }}"


@pytest.mark.parametrize("kind", ["e4m3x2.f32", "e5m2x2.f32", "e4m3x2.f16x2"])
@pytest.mark.parametrize(("low", "high"), [(1, 1), (1, 2), (2, 1)])
def test_registers_of_pairs_are_made_of_words(kind: str, low: int, high: int) -> None:
    ptx = CONVERT.format(1).replace("e4m3x2.f32", kind)
    ptx += f"\tmov.b32 \t%r1, {{%rs{low}, %rs{high}}};\n"
    *_, last = avoid_faults(ptx, OLD).splitlines()
    assert last.strip() == words("%r1", low, high)
    assert avoid_faults(ptx, NEW) == ptx
    assert avoid_faults(ptx) == avoid_faults(ptx, OLD)


def test_copies_of_pairs_are_pairs() -> None:
    ptx = CONVERT.format(1) + "\tmov.b16 \t%rs3, %rs2;\n\tmov.b16 \t%rs2, %rs1;\n"
    ptx += "\tmov.b32 \t%r1, {%rs3, %rs4};\n"
    assert words("%r1", 3, 4) in avoid_faults(ptx, OLD)


def test_registers_of_four_parts() -> None:
    ptx = CONVERT.format(7) + "\tmov.b64 \t%rd1, {%rs5, %rs6, %rs7, %rs8};\n"
    found = avoid_faults(ptx, OLD)
    assert words("%first", 5, 6) in found and words("%second", 7, 8) in found
    assert "mov.b64 %rd1, {%first, %second}; }" in found


def test_other_numbers_of_16_bits_stay() -> None:
    ptx = CONVERT.format(1) + "\tmov.b32 \t%r1, {%rs2, %rs3};\n"
    assert avoid_faults(ptx, OLD) == ptx


@tessera.jit
def constant(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, (tl.zeros((N,), tl.float32) + tl.load(x)).to(tl.float8e4nv))


@pytest.mark.parametrize(("release", "rewritten"), [("12.8", True), ("13.0", False)])
def test_kernels_are_written_for_the_release_that_is_there(release: str, rewritten: bool) -> None:
    signature = {"x": "*fp32", "out": "*fp8e4nv", "N": "constexpr"}
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(2)}
    source = ASTSource(constant, signature, {"N": 512}, aligned)
    with knobs.scope():
        knobs.nvidia.mock_ptx_version = release
        knobs.compilation.always_compile = True
        ptx = tessera.compile(source, GPUTarget("cuda", 90, 32)).asm["ptx"]
    assert ("0x5410; }" in ptx) == rewritten
