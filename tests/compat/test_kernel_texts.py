"""The text of a library's kernel by itself, and the launches that the breadth benchmark notes."""

from __future__ import annotations

from pathlib import Path

from kit import ROOT, needs_torch, python

LIBRARY = """
import triton
import triton.language as tl
from triton.language import exp as quick
from triton.language.extra import libdevice

import shapes

SCALE = tl.constexpr(2.5)


@tl.constexpr
def doubled(n):
    return 2 * n


@triton.jit
def scaled(x, BY: tl.constexpr = SCALE):
    return libdevice.log1p(quick(x)) * BY


@triton.autotune([triton.Config({"B": b}, num_warps=w) for b in (64, 128) for w in (2, 4)], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["B"] == 0})
@triton.jit
def kernel(x, y, n, B: tl.constexpr, EVEN: tl.constexpr, DTYPE: tl.constexpr):
    i = shapes.offsets(tl.program_id(0), B)
    keep = i < n
    value = scaled(tl.load(x + i, mask=keep)) + doubled(B)
    tl.store(y + i, value.to(DTYPE), mask=keep)
"""
SHAPES = """
import triton
import triton.language as tl


@triton.jit
def offsets(pid, B: tl.constexpr):
    return pid * B + tl.arange(0, B)
"""
PROGRAM = f"""
import sys
sys.path[:0] = [{str(ROOT / "benchmarks")!r}, {{folder!r}}]
import tessera.compat
import triton, triton.language as tl
import torch
from generated.launches import noting
import library

def run(kernel, out):
    kernel[lambda args: (triton.cdiv(100, args["B"]),)](x, out, 100, DTYPE=tl.float32)

x, out = torch.randn(100), torch.zeros(100)
with noting() as notes:
    run(library.kernel, out)
(noted,) = notes.kernels.values()
print(out.abs().max().item(), notes.errors, noted.signature["x"], noted.arguments[:3])
print([(c.constants["B"], c.constants["EVEN"], c.constants["DTYPE"], c.warps, c.grid) for c in noted.configs])
alone = {{folder!r}} + "/alone.py"
open(alone, "w").write(noted.text)
del sys.modules["library"], sys.modules["shapes"]
import alone
other = torch.zeros(100)
alone.kernel[(2,)](x, other, 100, B=64, EVEN=False, DTYPE=tl.float32)
print(torch.allclose(other, torch.log1p(x.exp()) * 2.5 + 128), "library" in sys.modules)
"""


@needs_torch
def test_a_noted_launch_can_be_repeated_without_its_library(tmp_path: Path):
    (tmp_path / "library.py").write_text(LIBRARY)
    (tmp_path / "shapes.py").write_text(SHAPES)
    found = python(tmp_path, "-c", PROGRAM.format(folder=str(tmp_path))).splitlines()
    assert found[-3].startswith(
        "0.0 [] *fp32 [['float32', [100], [1]], ['float32', [100], [1]], 100]"
    )
    dtype = {"expression": "tl.float32"}
    configs = [(b, False, dtype, w, [-(-100 // b), 1, 1]) for b in (64, 128) for w in (2, 4)]
    assert found[-2] == str(configs[:3])
    assert found[-1] == "True False"
