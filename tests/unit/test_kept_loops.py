"""Loops of a known number of products, whose sum arithmetic changes in between: ptxas must not unroll them, as it then
drops products."""

# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

import re
import sys

import pytest

import tessera
import tessera.language as tl
from tessera.backends.nvidia import ptxas
from tests.unit.kept_loops_kit import rescaled
from tests.unit.pointer_tma_kit import compiled

DROPPED = re.compile(r"GMMA[^\n]*RZ, gdesc\[URZ\]")


@tessera.jit
def repeated(a, b, c, T: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """A loop whose condition holds a known number of times."""
    m, n, k = tl.arange(0, 64), tl.arange(0, N), tl.arange(0, K)
    acc = tl.zeros((64, N), tl.float32)
    x = tl.load(a + m[:, None] * K + k[None, :])
    i = 0
    while i < T * T:
        y = tl.load(b + (i * K + k)[:, None] * N + n[None, :])
        acc = tl.dot(x, y, acc * 2)
        i += i + 1
    tl.store(c + m[:, None] * N + n[None, :], acc)


@pytest.mark.skipif(
    sys.platform != "linux", reason="NVIDIA publishes ptxas and nvdisasm for Linux and Windows only"
)
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(("stages", "maps"), [(1, False), (3, False), (3, True)])
def test_no_product_is_dropped(cut: bool, stages: int, maps: bool) -> None:
    constants = {"T": 3, "N": 16, "K": 16, "STAGES": stages, "CUT": cut}
    kernel = compiled(rescaled, constants, elements={"c": "fp32"}, target="cuda", pointer_maps=maps)
    code = ptxas.disassemble(kernel.asm["cubin"])
    assert "GMMA" in code
    assert not DROPPED.search(code)


def test_loops_of_products_say_that_they_stay() -> None:
    constants = {"T": 3, "N": 16, "K": 16}
    kernel = compiled(repeated, constants, elements={"c": "fp32"}, target="cuda")
    assert kernel.asm["llir"].count(", !llvm.loop ") == kernel.asm["ptx"].count("nounroll") == 1
