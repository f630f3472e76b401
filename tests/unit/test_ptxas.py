"""ptxas: finding it, reading its log, errors that can be repeated, no files left."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera.backends.nvidia import ptxas
from tessera.config import knobs
from tessera.errors import PTXASError, ToolNotFound
from tests.unit.ptxas_kit import PTX, has_ptxas

needs_ptxas = pytest.mark.skipif(not has_ptxas(), reason="no ptxas on this machine")


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    with knobs.scope():
        yield


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def empty_world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Nothing of CUDA is to be found; sys.path has only `tmp_path/site`."""
    for name in ("TESSERA_PTXAS", "TRITON_PTXAS_PATH", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(ptxas.sys, "path", [str(tmp_path / "site")])
    monkeypatch.setattr(ptxas.shutil, "which", lambda name, path: None)
    ptxas._search.cache_clear()
    yield tmp_path
    ptxas._search.cache_clear()


@needs_ptxas
def test_assembles_and_reads_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = ptxas.assemble(PTX, "sm_80")
    assert result.cubin[:4] == b"\x7fELF"
    assert 4 <= result.registers <= 32
    assert (result.spill_stores, result.spill_loads, result.stack) == (0, 0, 0)
    assert result.smem == 256
    assert result.warnings == ()
    assert not list(tmp_path.iterdir())  # nothing is left behind


@needs_ptxas
def test_spills_are_seen():
    n = 64
    body = [f"ld.global.f32 %f{i}, [%rd2+{4 * i}];" for i in range(n)]
    body += ["bar.sync 0;"] + [f"st.global.f32 [%rd2+{4 * i}], %f{n - 1 - i};" for i in range(n)]
    text = PTX[: PTX.index("  mov.u32")] + f".reg .f32 %f<{n}>;\n" + "\n".join(body) + "\nret;\n}\n"
    result = ptxas.assemble(text, "sm_80", ["-maxrregcount=24"])
    assert result.spill_stores > 0
    assert result.spill_loads > 0
    assert result.registers <= 24


@needs_ptxas
def test_failure_can_be_repeated():
    with pytest.raises(PTXASError) as caught:
        ptxas.assemble(PTX.replace("bar.sync 0", "bar.snyc 0"), "sm_80")
    text = str(caught.value)
    assert "12 |   bar.snyc 0;" in text
    saved = re.search(r"the PTX is in (\S+)", text)
    assert saved is not None
    assert f"ptxas -v -arch=sm_80 {saved[1]}" in text
    assert "bar.snyc" in Path(saved[1]).read_text()
    os.unlink(saved[1])


@needs_ptxas
def test_options_of_the_knob_are_used():
    knobs.nvidia.ptxas_options = "--no-such-option"
    with pytest.raises(PTXASError, match="no-such-option") as caught:
        ptxas.assemble(PTX, "sm_80")
    saved = re.search(r"the PTX is in (\S+)", str(caught.value))
    assert saved is not None
    os.unlink(saved[1])


@needs_ptxas
def test_version_and_ptx():
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", ptxas.version())
    assert ptxas.newest_ptx(ptxas.version()) >= 80


@pytest.mark.parametrize(
    ("release", "isa"),
    [
        ("12.0.76", 80),
        ("12.4.1", 84),
        ("12.6.3", 85),
        ("12.8.93", 87),
        ("12.9.1", 88),
        ("13.0.88", 90),
    ],
)
def test_newest_ptx(monkeypatch: pytest.MonkeyPatch, release: str, isa: int):
    monkeypatch.setattr(ptxas, "version", lambda path=None: release)
    assert ptxas.newest_ptx(release) == isa


def test_missing(empty_world: Path):
    with pytest.raises(ToolNotFound) as caught:
        ptxas.assemble(PTX, "sm_80")
    assert "pip install nvidia-cuda-nvcc" in str(caught.value)
    assert "TESSERA_PTXAS" in str(caught.value)
    with pytest.raises(ToolNotFound, match="neither nvdisasm nor cuobjdump"):
        ptxas.disassemble(b"")


def test_wrong_knob_is_named(tmp_path: Path):
    knobs.nvidia.ptxas = str(tmp_path / "absent")
    with pytest.raises(
        ToolNotFound, match=r"TESSERA_PTXAS names '.*absent', which is no executable"
    ):
        ptxas.find_tool("ptxas")


@pytest.mark.parametrize("folder", ["nvidia/cu13/bin", "nvidia/cuda_nvcc/bin", "nvidia/cu14/bin"])
def test_wheels_are_searched(empty_world: Path, folder: str):
    path = script(empty_world / "site" / folder / "ptxas", "exit 0\n")
    path.chmod(0o644)
    assert ptxas.find_tool("ptxas") == str(path)
    assert os.access(path, os.X_OK)


def test_order_knob_wheel_home(empty_world: Path, monkeypatch: pytest.MonkeyPatch):
    home = script(empty_world / "cuda" / "bin" / "ptxas", "exit 0\n")
    monkeypatch.setenv("CUDA_HOME", str(empty_world / "cuda"))
    assert ptxas.find_tool("ptxas") == str(home)
    wheel = script(empty_world / "site" / "nvidia" / "cu13" / "bin" / "ptxas", "exit 0\n")
    ptxas._search.cache_clear()
    assert ptxas.find_tool("ptxas") == str(wheel)
    mine = script(empty_world / "mine", "exit 0\n")
    knobs.nvidia.ptxas = str(mine)
    assert ptxas.find_tool("ptxas") == str(mine)


def test_crash_is_told(tmp_path: Path):
    knobs.nvidia.ptxas = str(script(tmp_path / "ptxas", "kill -SEGV $$\n"))
    with pytest.raises(PTXASError, match="was killed by signal 11") as caught:
        ptxas.assemble(PTX, "sm_80")
    saved = re.search(r"the PTX is in (\S+)", str(caught.value))
    assert saved is not None
    os.unlink(saved[1])


def test_log_of_several_functions_takes_the_largest():
    log = """ptxas info    : Compiling entry function 'a' for 'sm_90a'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 20 registers, used 1 barriers, 16 bytes smem
ptxas info    : Compiling entry function 'b' for 'sm_90a'
    24 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 168 registers, used 3 barriers, 24 bytes cumulative stack size
ptxas info    : (C7514) Potential Performance Loss: wgmma.mma_async instructions are serialized"""
    result = ptxas.read_log(b"", log)
    assert (result.registers, result.stack, result.spill_stores, result.spill_loads) == (
        168,
        24,
        8,
        12,
    )
    assert (result.smem, result.barriers) == (16, 3)
    assert len(result.warnings) == 1
    assert "C7514" in result.warnings[0]
