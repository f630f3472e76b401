"""Differences of quotients in 64 bits, whose operands LLVM narrows to 32 bits and ptxas translates wrongly."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

import re

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.backends.nvidia.ptxas_faults import avoid_faults
from tessera.compiler import ASTSource
from tests.conftest import Device

N = 128
HIGH = "mul.hi.u32 %r3, %r1, 7; "


@tessera.jit
def widths(out, DIVISOR: tl.constexpr, N: tl.constexpr):
    """The widths of windows of adaptive pooling."""
    i = tl.arange(0, N).to(tl.int64)
    first = i * 8 // DIVISOR
    tl.store(out + i, (i * 8 + 10) // DIVISOR - first)


@pytest.mark.parametrize("divisor", [3, 5, 7, 9, 11])
def test_widths_of_windows(device: Device, divisor: int) -> None:
    out = device.zeros(N, "i64")
    widths[(1,)](out, divisor, N)
    i = np.arange(N)
    assert (device.numpy(out) == (i * 8 + 10) // divisor - i * 8 // divisor).all()


def test_differences_start_from_whole_products() -> None:
    """Not from upper halves, which ptxas 13.0 takes for sums with a carry that is lost where 0 is subtracted."""
    signature = {"out": "*i64", "DIVISOR": "constexpr", "N": "constexpr"}
    source = ASTSource(widths, signature, {"DIVISOR": 3, "N": N})
    ptx = tessera.compile(source, GPUTarget("cuda", 90, 32)).asm["ptx"]
    (minuend,) = re.findall(r"sub\.s64 \t%rd\d+, (%rd\d+), ", ptx)
    assert re.search(rf"\tshr\.u64 \t{minuend}, {minuend}, 32;", ptx)


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (HIGH + "cvt.u64.u32 %rd1, %r3; sub.s64 %rd3, %rd1, %rd2;", True),
        (HIGH + "cvt.u64.u32 %rd1, %r3; sub.s64 %rd3, %rd2, %rd1;", False),
        ("mul.hi.s32 %r3, %r1, 7; cvt.u64.u32 %rd1, %r3; sub.s64 %rd3, %rd1, %rd2;", False),
        (HIGH + "mov.b32 %r3, %r4; cvt.u64.u32 %rd1, %r3; sub.s64 %rd3, %rd1, %rd2;", False),
        (HIGH + "@%p1 ld.global.v2.b32 {%r4,%r3}, [%rd9 + 0]; cvt.u64.u32 %rd1, %r3; sub.s64 %rd3, %rd1, %rd2;", False),
        (HIGH + "cvt.u64.u32 %rd1, %r3; @%p1 st.global.b32 [%rd9 + 0], %r3; sub.s64 %rd3, %rd1, %rd2;", True),
        (HIGH + "cvt.u64.u32 %rd1, %r3; add.s64 %rd3, %rd1, %rd2;", False),
    ],
)  # fmt: skip
def test_only_differences_change(text: str, changes: bool) -> None:
    # As LLVM writes instructions; those of inline assembly have no tab.
    lines = [line.strip() for line in text.split(";")[:-1]]
    lines = [line if line[0] == "@" else line.replace(" ", " \t", 1) for line in lines]
    ptx = "".join(f"\t{line};\n" for line in lines)
    found = avoid_faults(ptx)
    assert (found != ptx) == changes
    if changes:
        assert found.splitlines()[1:3] == [
            "\tmul.wide.u32 \t%rd1, %r1, 7;",
            "\tshr.u64 \t%rd1, %rd1, 32;",
        ]
        assert "cvt" not in found
