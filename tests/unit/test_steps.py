"""Where the lanes of a warp would find their elements, and how many sectors these are."""

from __future__ import annotations

import pytest

from tessera.analysis.axis import AxisAnalysis
from tessera.analysis.steps import NeighbourPlaces
from tessera.ir import Value, parse_module
from tessera.ops import FuncOp, PrintOp

HEAD = """module {} {
  func {name='f', arg_attrs=[[], [['divisibility', 16]], [['divisibility', 16]]]} (%n: i32, %m: i32, %p: *fp32) {
    %i: tile<64xi32> = arange {start=0, end=64}
    %ns: tile<64xi32> = splat %n
    %ms: tile<64xi32> = splat %m
    %ps: tile<64x*fp32> = splat %p
    %three: tile<64xi32> = const {value=3}
    %hundred: tile<64xi32> = const {value=100}
"""


def steps(*numbers: int) -> tuple[tuple[int, ...], ...]:
    """For each dimension of 32 lanes, multiples of a number."""
    return tuple(tuple(n * i for i in range(32)) for n in numbers)


CASES = {
    "an arange": ("%x: tile<64xi32> = add %i, %ns", steps(1)),
    "a uniform value": ("%x: tile<64xi32> = add %ns, %ms", steps(0)),
    "a known factor": ("%x: tile<64xi32> = mul %i, %three", steps(3)),
    "an unknown factor": ("%x: tile<64xi32> = mul %ns, %i", steps(2)),
    "a factor of which a multiple is known": ("%x: tile<64xi32> = mul %i, %ms", steps(16)),
    "a square": ("%x: tile<64xi32> = mul %i, %i", (None,)),
    "rows of unknown length": ("%x: tile<64xi32> = rem %i, %ns", steps(1)),
    "the numbers of rows": ("%x: tile<64xi32> = div %i, %ns", steps(0)),
    "long rows": ("%x: tile<64xi32> = rem %i, %hundred", steps(1)),
    "short rows": ("%x: tile<64xi32> = rem %i, %three", (tuple(i % 3 for i in range(32)),)),
    "the numbers of short rows": (
        "%x: tile<64xi32> = div %i, %three", (tuple(i // 3 for i in range(32)),),
    ),
    "backwards from a known number": (
        "%x: tile<64xi32> = sub %three, %i", (tuple(3 - i for i in range(32)),),
    ),
    "a divisor that changes": ("%x: tile<64xi32> = rem %ns, %i", (None,)),
    "the greater of two steps": (
        "%y: tile<64xi32> = mul %i, %ms  %z: tile<64xi32> = div %i, %ns  %x: tile<64xi32> = add %y, %z", steps(16),
    ),
    "an unknown step": ("%y: tile<64xi32> = mul %i, %i  %x: tile<64xi32> = sub %i, %y", (None,)),
    "a new dimension": (
        "%y: tile<1x64xi32> = expand_dims %i {axis=0}  %x: tile<8x64xi32> = broadcast %y", ((0,) * 8, *steps(1)),
    ),
}  # fmt: skip
POINTERS = {
    "neighbours fill sectors": ("%o: tile<64xi32> = add %i, %ns", (4, 31)),
    "rows of three elements, far apart": (
        "%r: tile<64xi32> = div %i, %three  %c: tile<64xi32> = rem %i, %three  %s: tile<64xi32> = mul %r, %hundred  "
        "%o: tile<64xi32> = add %s, %c", (11, 1001),
    ),
    "elements in sectors of their own": ("%o: tile<64xi32> = mul %i, %ms", (32, 496)),
    "nothing is known": ("%o: tile<64xi32> = mul %i, %i", None),
    "one element for all": ("%o: tile<64xi32> = add %ns, %ms", None),
}  # fmt: skip


def made(lines: str) -> tuple[NeighbourPlaces, Value]:
    """The analysis of a function with these lines, and what it prints."""
    text = HEAD + lines.replace("  %", "\n    %") + "\n    print [%x]\n    return []\n  }\n}\n"
    (func,) = parse_module(text).body
    assert isinstance(func, FuncOp)
    (shown,) = [op for op in func.walk() if isinstance(op, PrintOp)]
    return NeighbourPlaces(func, AxisAnalysis(func)), shown.operands[0]


@pytest.mark.parametrize("case", CASES)
def test_where_neighbours_lie(case: str) -> None:
    lines, wanted = CASES[case]
    near, value = made(lines)
    assert [at if at is None else tuple(at) for at in near.of(value)] == list(wanted)


@pytest.mark.parametrize("case", POINTERS)
def test_what_lanes_access(case: str) -> None:
    lines, wanted = POINTERS[case]
    near, value = made(f"{lines}  %x: tile<64x*fp32> = addptr %ps, %o")
    assert near.costs(value) == (None if wanted is None else [wanted])
