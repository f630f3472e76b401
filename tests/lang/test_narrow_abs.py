"""Absolute values and negatives of narrow integers, whose least number has none: it stays as it is, also for who widens
it then."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.backends.nvidia.ptxas_faults import avoid_faults
from tessera.compiler import ASTSource
from tests.conftest import Device

N = 128


@tessera.jit
def absolute(x, wide, wider, same, negative, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    by_select = tl.where(v > 0, v, -v)
    tl.store(wide + i, tl.abs(v).to(tl.int32))
    tl.store(wider + i, by_select.to(tl.int64))
    tl.store(same + i, tl.abs(v))
    tl.store(negative + i, (-v).to(tl.int64))


@pytest.mark.parametrize("kind", ["i8", "i16", "i32"])
def test_the_least_number(device: Device, kind: str) -> None:
    least = -(1 << (int(kind[1:]) - 1))
    values = np.arange(N) - N // 2
    values[[0, 5, 77, -1]] = least
    narrow = values.astype(f"int{kind[1:]}")
    wanted = np.abs(narrow)
    assert wanted[0] == least
    wide, wider, same, negative = (device.zeros(N, t) for t in ("i32", "i64", kind, "i64"))
    absolute[(1,)](device.array(narrow), wide, wider, same, negative, N)
    for found in (wide, wider, same):
        assert (device.numpy(found) == wanted).all()
    assert (device.numpy(negative) == -narrow).all()


def test_of_16_bits_are_taken_in_32() -> None:
    """ptxas 13.0 widens the operand, but does not narrow the result, where it translates abs.s16, neg.s16."""
    signature = {
        "x": "*i16",
        "wide": "*i32",
        "wider": "*i64",
        "same": "*i16",
        "negative": "*i64",
        "N": "constexpr",
    }
    ptx = tessera.compile(ASTSource(absolute, signature, {"N": N}), GPUTarget("cuda", 90, 32)).asm[
        "ptx"
    ]
    assert "abs.s32" in ptx and "neg.s32" in ptx
    assert "abs.s16" not in ptx and "neg.s16" not in ptx


def test_the_register_may_be_the_same() -> None:
    found = avoid_faults("\tabs.s16 \t%rs2, %rs2;\n\tabs.s32 \t%r2, %r3;\n")
    first, second = found.splitlines()
    assert "cvt.s32.s16 %wide, %rs2; abs.s32 %wide, %wide; cvt.u16.u32 %rs2, %wide;" in first
    assert second == "\tabs.s32 \t%r2, %r3;"
