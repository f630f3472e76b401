"""Which values flow into which, and what arguments pointers point into."""

from __future__ import annotations

import pytest

from tessera.analysis.provenance import argument_of, incoming, outgoing
from tessera.ir import Module, Value, parse_module
from tessera.ops import FuncOp, StoreOp

ROUNDS = """
module {num_warps=1} {
  func {name='kernel'} (%p: *fp32, %q: *fp32, %n: i32, %c: i1, %address: i64) {
    %zero: i32 = const {value=0}
    %one: i32 = const {value=1}
    %x: fp32 = const {value=float('0x1.0p+0')}
    BODY
    return []
  }
}
"""

# The pointers that are stored through, and the argument that they point into.
CASES = {
    "offsets and shapes": (
        """%ps: tile<4x*fp32> = splat %p
           %r: tile<4xi32> = arange {start=0, end=4}
           %at: tile<4x*fp32> = addptr %ps, %r
           %a: tile<4x1x*fp32> = expand_dims %at {axis=1}
           %b: tile<1x4x*fp32> = trans %a {order=[1, 0]}
           %v: tile<1x4xfp32> = const {value=float('0x0.0p+0')}
           store %b, %v, _""",
        "p",
    ),
    "carried": (
        """%end: *fp32 = for %zero, %n, %one, [%p] (%i: i32, %at: *fp32) {
             store %at, %x, _
             %next: *fp32 = addptr %at, %one
             yield [%next]
           }
           store %end, %x, _""",
        "p",
    ),
    "swapped": (
        """%e: *fp32, %f: *fp32 = for %zero, %n, %one, [%p, %q] (%i: i32, %at: *fp32, %other: *fp32) {
             store %at, %x, _
             yield [%other, %at]
           }
           store %e, %x, _""",
        None,
    ),
    "one of two": (
        """%at: *fp32 = select %c, %p, %q
           store %at, %x, _""",
        None,
    ),
    "either of one": (
        """%at: *fp32 = if %c () {
             %a: *fp32 = addptr %p, %one
             yield [%a]
           } () {
             yield [%p]
           }
           store %at, %x, _""",
        "p",
    ),
    "while": (
        """%at: *fp32 = while [%p] (%a: *fp32) {
             condition %c, [%a]
           } (%b: *fp32) {
             store %b, %x, _
             %next: *fp32 = addptr %b, %one
             yield [%next]
           }
           store %at, %x, _""",
        "p",
    ),
    "replaced in a while": (
        """%at: *fp32 = while [%p] (%a: *fp32) {
             condition %c, [%a]
           } (%b: *fp32) {
             store %b, %x, _
             yield [%q]
           }""",
        None,
    ),
    "an integer": (
        """%at: *fp32 = cast %address
           store %at, %x, _""",
        None,
    ),
}


def parsed(body: str) -> Module:
    return parse_module(ROUNDS.replace("BODY", body))


@pytest.mark.parametrize("case", CASES)
def test_argument_of(case: str) -> None:
    body, want = CASES[case]
    module = parsed(body)
    found = [argument_of(op.ptr) for op in module.walk() if isinstance(op, StoreOp)]
    assert found
    assert {v.name if v is not None else None for v in found} == {want}


@pytest.mark.parametrize("case", CASES)
def test_both_directions_agree(case: str) -> None:
    func = parsed(CASES[case][0]).functions[0]
    assert isinstance(func, FuncOp)
    blocks = func.all_blocks()
    values = [v for b in blocks for v in (*b.args, *(r for op in b for r in op.results))]
    back = {(id(source), id(v)) for v in values for source in incoming(v)}
    forth: set[tuple[int, int]] = set()
    for op in func.walk():
        for i, source in enumerate(op.operands):
            forth |= {(id(source), id(v)) for v in outgoing(op, i)}
    assert back == forth


def test_induction_variables_come_from_nowhere() -> None:
    module = parsed(CASES["carried"][0])
    loop = next(op for op in module.walk() if op.opcode == "for")
    induction: Value = loop.regions[0].args[0]
    assert incoming(induction) == []
    assert [outgoing(loop, i) for i in range(3)] == [[], [], []]
