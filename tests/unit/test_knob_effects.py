"""Knobs that reach into compilation: architecture, precision, the PTX printed; nvJitLink beside ptxas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.backends.nvidia import assembler, jitlink, ptxas
from tessera.compiler import ASTSource, compile, make_backend
from tessera.config import knobs
from tessera.errors import PTXASError, ToolNotFound
from tests.unit.test_ptxas import PTX, has_ptxas

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
    monkeypatch.setattr(ptxas, "version", lambda: "12.8.1")
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
