"""What is said of neighbouring elements holds for most of them."""

from __future__ import annotations

import pytest

from tessera.analysis.axis import AxisAnalysis
from tessera.analysis.steps import NeighbourSteps
from tessera.ir import parse_module
from tessera.ops import FuncOp, PrintOp

HEAD = """module {} {
  func {name='f', arg_attrs=[[], [['divisibility', 16]]]} (%n: i32, %m: i32) {
    %i: tile<64xi32> = arange {start=0, end=64}
    %ns: tile<64xi32> = splat %n
    %ms: tile<64xi32> = splat %m
    %three: tile<64xi32> = const {value=3}
    %hundred: tile<64xi32> = const {value=100}
"""
CASES = {
    "an arange": ("%x: tile<64xi32> = add %i, %ns", (1,)),
    "a uniform value": ("%x: tile<64xi32> = add %ns, %ms", (0,)),
    "a known factor": ("%x: tile<64xi32> = mul %i, %three", (3,)),
    "an unknown factor": ("%x: tile<64xi32> = mul %ns, %i", (2,)),
    "a factor of which a multiple is known": ("%x: tile<64xi32> = mul %i, %ms", (16,)),
    "a square": ("%x: tile<64xi32> = mul %i, %i", (None,)),
    "rows of unknown length": ("%x: tile<64xi32> = rem %i, %ns", (1,)),
    "the numbers of rows": ("%x: tile<64xi32> = div %i, %ns", (0,)),
    "long rows": ("%x: tile<64xi32> = rem %i, %hundred", (1,)),
    "short rows": ("%x: tile<64xi32> = rem %i, %three", (None,)),
    "the numbers of short rows": ("%x: tile<64xi32> = div %i, %three", (None,)),
    "a divisor that changes": ("%x: tile<64xi32> = rem %ns, %i", (None,)),
    "the greater of two steps": (
        "%y: tile<64xi32> = mul %i, %ms  %z: tile<64xi32> = div %i, %ns  %x: tile<64xi32> = add %y, %z", (16,),
    ),
    "an unknown step": ("%y: tile<64xi32> = mul %i, %i  %x: tile<64xi32> = sub %i, %y", (None,)),
    "a new dimension": (
        "%y: tile<1x64xi32> = expand_dims %i {axis=0}  %x: tile<8x64xi32> = broadcast %y", (0, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_most_neighbours(case: str) -> None:
    lines, wanted = CASES[case]
    text = HEAD + lines.replace("  %", "\n    %") + "\n    print [%x]\n    return []\n  }\n}\n"
    (func,) = parse_module(text).body
    assert isinstance(func, FuncOp)
    (shown,) = [op for op in func.walk() if isinstance(op, PrintOp)]
    assert NeighbourSteps(func, AxisAnalysis(func)).of(shown.operands[0]) == wanted
