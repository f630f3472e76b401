"""What divides a number divides it with the other sign, and low bits that are zero stay so in logic."""

from __future__ import annotations

from typing import Any

import pytest

import tessera
import tessera.language as tl
from tessera.analysis.axis import AxisAnalysis
from tessera.ir import parse_module
from tessera.ops import FuncOp
from tests.simt_kit import Compiled

BITS = """module {} {
  func {name='k', arg_attrs=[[['divisibility', 16]], []]} (%n: i32, %m: i32) {
    %mask: i32 = const {value=-8}
    %less: i32 = neg %n
    %size: i32 = abs %less
    %cut: i32 = and %m, %mask
    %both: i32 = or %cut, %n
    %other: i32 = xor %both, %n
    %known: i32 = neg %mask
    print [%less, %size, %cut, %both, %other, %known]
    return []
  }
}"""


def test_signs_and_bits_keep_what_divides() -> None:
    (func,) = parse_module(BITS).functions
    assert isinstance(func, FuncOp)
    facts = AxisAnalysis(func)
    found = {r.name: facts.facts(r) for op in func.body for r in op.results}
    want = {"less": 16, "size": 16, "cut": 8, "both": 8, "other": 8, "known": 8}
    assert {n: found[n].divisibility[0] for n in want} == want
    assert found["known"].value == 8


@tessera.jit
def backwards(x, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    p = x + n * N + i
    for _ in range(n):
        p -= N
        tl.store(out + i, tl.load(p) + 1)


@tessera.jit
def rounded(x, out, n, N: tl.constexpr):
    i = (n & -8) + tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) + 1)


@pytest.mark.parametrize("kernel", [backwards, rounded])
def test_such_addresses_are_read_in_vectors(kernel: Any) -> None:
    signature = {"x": "*fp32", "out": "*fp32", "n": "i32", "N": "constexpr"}
    found = Compiled(kernel, signature, {"N": 1024}, num_warps=4)
    assert found.count(r"ld\.global\S*\.v4\.b32") >= 2
    assert not found.count(r"ld\.global\.b32")
