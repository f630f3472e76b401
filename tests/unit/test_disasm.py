"""Machine code as text."""

from __future__ import annotations

from pathlib import Path

import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.backends.nvidia.ptxas import find_tool
from tessera.compiler import ASTSource
from tessera.errors import ToolNotFound
from tessera.tools import disasm


@tessera.jit
def kernel(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), 7.0)


def cubin() -> bytes:
    source = ASTSource(kernel, {"x": "*fp32", "N": "constexpr"}, {"N": 128})
    return tessera.compile(source, GPUTarget("cuda", 90, 32)).asm["cubin"]


def has_tool() -> bool:
    for name in ("nvdisasm", "cuobjdump"):
        try:
            return bool(find_tool(name))
        except ToolNotFound:
            continue
    return False


@pytest.mark.skipif(not has_tool(), reason="needs nvdisasm or cuobjdump")
def test_sass_of_a_function():
    text = disasm.get_sass(cubin(), "kernel")
    assert "STG" in text
    assert len(text) <= len(disasm.get_sass(cubin()))
    with pytest.raises(ValueError, match="there are: kernel"):
        disasm.get_sass(cubin(), "other")


def test_one_function_of_several(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    text = "head\n//----- .text.a -----\nA;\n//----- .text.b -----\nB;\n"
    monkeypatch.setattr(disasm, "disassemble", lambda _: text)
    assert disasm.get_sass(b"", "a").splitlines()[1:] == ["A;"]
    (tmp_path / "x.cubin").write_bytes(b"")
    assert disasm.extract(str(tmp_path / "x.cubin"), "b").splitlines()[1:] == ["B;"]
    assert disasm.get_sass(b"", "b").splitlines()[1:] == ["B;"]
