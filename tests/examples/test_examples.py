"""Every example: right on the CPU at its real sizes, and compiled and assembled for two GPUs without spills."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tessera
from tessera.backends.compiler import GPUTarget
from tessera.backends.nvidia import ptxas
from tessera.compiler import ASTSource

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import run_all  # noqa: E402

import common  # noqa: E402

FILES = run_all.example_files()
every_example = pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)


def test_all_are_there():
    assert [path.name[:2] for path in FILES] == [f"{n:02}" for n in (*range(1, 10), 11)]


@every_example
def test_results_on_the_cpu(path: Path):
    check(run_all.load(path), common.Device("cpu", rep=0.0))


@pytest.mark.gpu
@every_example
def test_results_on_the_gpu(path: Path):
    check(run_all.load(path), common.Device("cuda", rep=0.0))


def check(module: ModuleType, device: common.Device) -> None:
    rows = module.main(device)
    assert rows
    for row in rows:
        assert row.ok, f"{row.name} {row.shape}: error {row.error:.1e} > {row.tolerance:.1e}"


def specimen_cases() -> list[Any]:
    return [
        pytest.param(specimen, arch, id=f"{path.stem}-{index}-sm{arch}")
        for path in FILES
        for index, specimen in enumerate(run_all.load(path).specimens())
        for arch in specimen.capabilities
    ]


@pytest.mark.parametrize(("specimen", "arch"), specimen_cases())
def test_compiles_for_gpus_without_spills(specimen: common.Specimen, arch: int):
    kernel = compile_specimen(specimen, arch)
    assert len(kernel.asm["cubin"]) > 0
    assert f".target sm_{arch}" in kernel.asm["ptx"]
    assert kernel.metadata.spills == 0


def compile_specimen(specimen: common.Specimen, arch: int) -> Any:
    """As a launch with 16-byte aligned arrays and sizes divisible by 16 would."""
    names = specimen.kernel.arg_names
    signature = {
        n: "constexpr" if n in specimen.constants else specimen.signature[n] for n in names
    }
    attrs = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if signature[name].startswith("*") or signature[name] == "i32"
    }
    source = ASTSource(specimen.kernel, signature, specimen.constants, attrs)
    return tessera.compile(source, target=GPUTarget("cuda", arch, 32), options=specimen.options)


ATTENTION = run_all.load(next(p for p in FILES if p.name.startswith("06")))


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_attention_flows_on_hopper(index: int, causal: bool, dim: int):
    """ptxas neither serialises products nor spills in the configurations that are chosen first."""
    table = (ATTENTION.FORWARD, ATTENTION.KEYS, ATTENTION.QUERIES)[index]
    block_m, block_n, warps, stages = table[dim > 64][0]
    kernels = (
        ATTENTION.forward_kernel, ATTENTION.key_gradient_kernel, ATTENTION.query_gradient_kernel,
    )  # fmt: skip
    specimen = next(s for s in ATTENTION.specimens() if s.kernel is kernels[index])
    constants = {
        "CAUSAL": causal, "EVEN": True, "BLOCK_M": block_m, "BLOCK_N": block_n, "DIM": dim,
        "GROUP": 16,
    }  # fmt: skip
    options = {"num_warps": warps, "num_stages": stages}
    made = common.Specimen(specimen.kernel, specimen.signature, constants, options)
    assembled = ptxas.assemble(compile_specimen(made, 90).asm["ptx"], "sm_90a")
    assert assembled.spill_stores == 0
    assert assembled.warnings == ()
