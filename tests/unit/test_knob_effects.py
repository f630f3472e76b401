"""Knobs that reach into compilation: architecture, precision, the PTX printed; nvJitLink beside ptxas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.backends.nvidia import assembler, jitlink, ptxas
from tessera.compiler import ASTSource, compile, make_backend
from tessera.config import knobs
from tessera.errors import PTXASError, ToolNotFound
from tests.unit.cpu_kit import native
from tests.unit.ptxas_kit import PTX, has_ptxas

CUDA = GPUTarget("cuda", 90, 32)


@pytest.fixture(autouse=True)
def restore(tmp_path: Path) -> Iterator[None]:
    with knobs.scope():
        knobs.cache.dir = str(tmp_path)
        yield


def make() -> Any:
    @tessera.jit
    def doubled(x, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(x + i, tl.load(x + i) * 2)

    return doubled


def test_precision_and_architecture():
    backend = make_backend(CUDA)
    assert backend.parse_options({}).default_dot_input_precision == "tf32"
    knobs.language.fp32_default = "ieee"
    knobs.runtime.override_arch = "sm80"
    options = backend.parse_options({})
    assert (options.default_dot_input_precision, options.arch) == ("ieee", "sm80")
    assert backend.parse_options({"arch": "sm86"}).arch == "sm86"


@pytest.mark.parametrize(
    ("target", "name"), [(CUDA, "coalesce"), (GPUTarget("cpu", "native", 1), "licm")]
)
def test_ir_is_printed_after_a_pass(
    target: GPUTarget, name: str, capsys: pytest.CaptureFixture[str]
):
    knobs.compilation.print_after = name
    compile(ASTSource(make(), {"x": "*fp32"}, {"N": 128}), target=target)
    text = capsys.readouterr().err
    assert text.startswith(f"// after {name}\nmodule {{") and text.count("// after") == 1


def test_kernels_that_ran_are_compiled_anew_for_other_knobs():
    kernel, x = make(), np.ones(16, np.float32)
    for isa in ("generic", "native", "generic"):
        knobs.cpu.isa = isa
        for _ in range(3):
            assert native(kernel, (1,), x, 16).metadata.target.arch == isa
    assert (x == 2**9).all()


@pytest.mark.skipif(not has_ptxas(), reason="no ptxas on this machine")
def test_code_for_another_architecture(capsys: pytest.CaptureFixture[str]):
    knobs.runtime.override_arch = "sm80"
    knobs.nvidia.dump_nvptx = True
    kernel = compile(ASTSource(make(), {"x": "*fp32", "N": "constexpr"}, {(1,): 16}), CUDA)
    assert ".target sm_80" in kernel.asm["ptx"]
    assert ".target sm_80" in capsys.readouterr().err


# --- nvJitLink ---
needs_library = pytest.mark.skipif(not jitlink.available(), reason="no nvJitLink on this machine")


def test_the_assembler_is_ptxas_where_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jitlink, "available", lambda: True)
    monkeypatch.setattr(jitlink, "version", lambda: "13.0")
    monkeypatch.setattr(ptxas, "find_tool", lambda name: "/ptxas")
    monkeypatch.setattr(ptxas, "version", lambda path: "12.8.1")
    assert (assembler.identity(), assembler.newest_ptx()) == ("ptxas-12.8.1", 87)
    knobs.nvidia.use_jitlink = True
    assert (assembler.identity(), assembler.newest_ptx()) == ("nvjitlink-13.0", 90)
    knobs.nvidia.use_jitlink = False

    def missing(name: str) -> str:
        raise ToolNotFound("no ptxas")

    monkeypatch.setattr(ptxas, "find_tool", missing)
    assert assembler.identity() == "nvjitlink-13.0"
    knobs.nvidia.ptxas = "/nowhere/ptxas"
    with pytest.raises(ToolNotFound):
        assembler.identity()
    knobs.nvidia.ptxas = None
    monkeypatch.setattr(jitlink, "available", lambda: False)
    with pytest.raises(ToolNotFound):
        assembler.identity()


def test_a_library_that_is_none(tmp_path: Path):
    path = tmp_path / "libnvJitLink.so.13"
    path.write_text("no library")
    knobs.nvidia.jitlink_path = str(path)
    assert not jitlink.available()
    with pytest.raises(ToolNotFound, match="nvJitLink"):
        jitlink.assemble(PTX, "sm_80")


@needs_library
def test_assembling_by_the_library():
    done = jitlink.assemble(PTX, "sm_90")
    assert done.cubin.startswith(b"\x7fELF")
    assert 0 < done.registers < 64
    assert (done.spill_stores, done.stack) == (0, 0)
    with pytest.raises(PTXASError, match=r"(?s)result \d.*  7 \| .*nonsense"):
        jitlink.assemble(PTX.replace(".shared .align 4 .b8 tile[256];", "nonsense;"), "sm_90")
    with pytest.raises(ToolNotFound, match="does not know sm_1"):
        jitlink.assemble(PTX, "sm_1")


@needs_library
def test_a_kernel_by_the_library():
    knobs.nvidia.use_jitlink = True
    kernel = compile(ASTSource(make(), {"x": "*fp32", "N": "constexpr"}, {(1,): 16}), CUDA)
    assert kernel.asm["cubin"].startswith(b"\x7fELF")
    assert kernel.metadata.registers > 0


# --- which ptxas ----------------------------------------------------------------------------------------------
def tool(folder: Path, name: str, release: str) -> str:
    """A ptxas of that release that only tells it."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.7'\n")
    path.chmod(0o755)
    return str(path)


def test_a_ptxas_of_its_own_for_newer_gpus(tmp_path: Path):
    knobs.nvidia.ptxas = tool(tmp_path, "old", "12.4")
    for arch in ("sm_90a", "sm_100"):
        assert ptxas.ptxas_for(arch) == knobs.nvidia.ptxas
    knobs.nvidia.ptxas_blackwell = tool(tmp_path, "new", "13.1")
    assert ptxas.ptxas_for("sm_90a") == knobs.nvidia.ptxas
    assert ptxas.ptxas_for("sm_100") == knobs.nvidia.ptxas_blackwell
    assert (assembler.release("sm_90a"), assembler.release("sm_120")) == ("12.4.7", "13.1.7")
    identities = [
        make_backend(GPUTarget("cuda", cc, 32)).toolchain().split()[1] for cc in (90, 100)
    ]
    assert identities == ["ptxas-12.4.7", "ptxas-13.1.7"]
    knobs.nvidia.ptxas_blackwell = "/nowhere"
    with pytest.raises(ToolNotFound, match="TESSERA_PTXAS_BLACKWELL names '/nowhere'"):
        ptxas.ptxas_for("sm_100")


def test_a_release_that_is_only_said(tmp_path: Path):
    knobs.nvidia.ptxas = tool(tmp_path, "ptxas", "12.4")
    knobs.nvidia.mock_ptx_version = "Cuda compilation tools, release 12.8, V12.8.93"
    assert assembler.identity() == "ptxas-12.8"
    assert assembler.newest_ptx() == 87
    knobs.nvidia.mock_ptx_version = "none"
    with pytest.raises(ValueError, match="mock_ptx_version names no release: 'none'"):
        assembler.identity()


# --- line information of the IR -----------------------------------------------------------------------------------
@pytest.mark.skipif(not has_ptxas(), reason="no ptxas on this machine")
@pytest.mark.parametrize(("asked", "level"), [("ttgir", "gir"), ("tir", "tir")])
def test_lines_of_the_ir(tmp_path: Path, asked: str, level: str):
    knobs.cache.dump_dir = str(tmp_path / "dump")
    source = ASTSource(make(), {"x": "*fp32", "N": "constexpr"}, {(1,): 16})
    plain = compile(source, CUDA)
    assert "test_knob_effects.py" in plain.asm["ptx"]
    knobs.compilation.use_ir_loc = asked
    kernel = compile(source, CUDA)
    assert kernel.hash != plain.hash
    path = tmp_path / "dump" / kernel.hash / f"doubled.{level}"
    text = path.read_text()
    assert text == kernel.asm[level]
    ptx = kernel.asm["ptx"]
    assert f"doubled.{level}" in ptx
    assert "test_knob_effects.py" not in ptx
    lines = {int(line.split()[2]) for line in ptx.splitlines() if line.strip().startswith(".loc")}
    shown = text.splitlines()
    assert any(" = load " in shown[line - 1] for line in lines)
    assert any("store " in shown[line - 1] for line in lines)
