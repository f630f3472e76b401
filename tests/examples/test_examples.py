"""Every example: right on the CPU at its real sizes, and assembled for two GPUs without spills to speak of."""

from __future__ import annotations

import importlib.util
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tessera.backends.nvidia import ptxas
from tessera.backends.nvidia.backend import FEW_BYTES, architecture
from tests.unit.specimens import compile_specimen

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import run_all  # noqa: E402

import common  # noqa: E402

FILES = run_all.example_files()
every_example = pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)


def test_all_are_there():
    assert [path.name for path in sorted((EXAMPLES / "checks").glob("*.py"))] == [
        p.name for p in FILES
    ]
    assert [path.name[:2] for path in FILES] == [f"{n:02}" for n in range(1, 17)]


@every_example
def test_an_example_runs_by_itself(path: Path, capsys: pytest.CaptureFixture[str]):
    if path.stem == "16-compiled-model":
        pytest.importorskip("torch")
    runpy.run_path(str(path), run_name="__main__")
    shown = capsys.readouterr().out
    assert all(float(error) < 1e-2 for error in re.findall(r"largest \D*: (\S+)", shown))
    assert shown and "False" not in shown
    assert len(path.read_text("utf-8").partition("__main__")[2].splitlines()) <= 20


@every_example
def test_results_on_the_cpu(path: Path):
    check(run_all.load(path), common.Device("cpu", rep=0.0))


@pytest.mark.gpu
@every_example
def test_results_on_the_gpu(path: Path):
    check(run_all.load(path), common.Device("cuda", rep=0.0))


def check(module: ModuleType, device: common.Device) -> None:
    rows = module.main(device)
    if not rows and importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
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
    if kernel.metadata.spills:  # for a block more on a processor, and not without it
        assert kernel.metadata.spills <= FEW_BYTES
        assert ptxas.assemble(kernel.asm["ptx"], architecture(arch)).spill_stores == 0
