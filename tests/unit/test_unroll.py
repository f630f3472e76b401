"""`tl.range(loop_unroll_factor=)`: as many iterations as before, in order, whatever their number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.interp import run
from tessera.ir import parse_module
from tessera.ops import ForOp
from tessera.passes.neutral.loops import can_unroll, unroll_loop
from tests.simt_kit import Compiled


@tessera.jit
def horner(x, out, start, n, FACTOR: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr):
    at = tl.arange(0, 128)
    total = tl.zeros((128,), tl.float32)
    last = start
    for i in tl.range(start, n, STEP, loop_unroll_factor=FACTOR, num_stages=STAGES):
        total = total * 0.5 + tl.load(x + i * 128 + at)
        last = i
    tl.store(out + at, total + last)


@tessera.jit
def triangle(out, n, FACTOR: tl.constexpr):
    total = 0
    for i in tl.range(0, n, loop_unroll_factor=FACTOR):
        for k in range(i):
            total += k
    tl.store(out, total)


def build(fn: Any, **constants: Any) -> Compiled:
    types = {"x": "*fp32", "out": "*fp32", "start": "i32", "n": "i32"}
    if fn is triangle:
        types["out"] = "*i32"
    signature = {n: "constexpr" if n in constants else types[n] for n in fn.arg_names}
    return Compiled(fn, signature, constants, num_warps=1)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 7, 8, 9])
@pytest.mark.parametrize(("factor", "step", "start"), [(2, 1, 0), (4, 1, 1), (4, 2, 0), (3, 3, 2)])
@pytest.mark.parametrize("stages", [1, 3])
def test_iterations(n: int, factor: int, step: int, start: int, stages: int) -> None:
    x = np.random.default_rng(n).standard_normal((16, 128)).astype(np.float32)
    out = np.zeros(128, np.float32)
    build(horner, FACTOR=factor, STEP=step, STAGES=stages).run(x, out, start, n)
    want, last = np.zeros(128, np.float32), start
    for i in range(start, n, step):
        want, last = want * np.float32(0.5) + x[i], i
    assert np.allclose(out, want + last, atol=1e-5)


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_copies_of_the_body(factor: int) -> None:
    kernel = build(horner, FACTOR=factor, STEP=1, STAGES=1)
    assert kernel.count(r"ld\.global") == (factor + 1 if factor > 1 else 1)


@pytest.mark.parametrize("n", [0, 1, 5, 6])
def test_loops_inside(n: int) -> None:
    out = np.zeros(1, np.int32)
    build(triangle, FACTOR=2).run(out, n)
    assert out[0] == sum(k for i in range(n) for k in range(i))


FAR = """
module {num_warps=1} {
  func {name='kernel'} (%p: *i64, %lb: i32, %ub: i32) {
    %step: i32 = const {value=STEP}
    %zero: i64 = const {value=0}
    %one: i64 = const {value=1}
    %n: i64, %last: i64 = for %lb, %ub, %step, [%zero, %zero] {unroll=2} (%i: i32, %m: i64, %l: i64) {
      %k: i64 = add %m, %one
      %w: i64 = cast %i
      yield [%k, %w]
    }
    store %p, %n, _
    %q: *i64 = addptr %p, %one
    store %q, %last, _
    return []
  }
}
"""
TOP = 2**31 - 1


@pytest.mark.parametrize(
    ("lb", "ub", "step"),
    [
        (0, TOP, 2**29), (-TOP - 1, TOP, 2**29), (TOP - 7, TOP, 2), (5, 5, 3), (9, 2, 1), (-TOP - 1, TOP, 2**30 - 1),
        (7, -1, -1), (8, 0, -2), (6, 0, -2), (TOP, -TOP - 1, -(2**29)), (0, 5, -1),
    ],
)  # fmt: skip
def test_ends_near_those_of_the_type(lb: int, ub: int, step: int) -> None:
    """Whole groups of iterations may end behind the largest number; loops may count down."""
    module = parse_module(FAR.replace("STEP", str(step)))
    (loop,) = [op for op in module.walk() if isinstance(op, ForOp)]
    assert can_unroll(loop, 2) and not can_unroll(loop, 5 * 2**30)
    unroll_loop(loop, 2)
    found = np.zeros(2, np.int64)
    run(module, (1,), [found, lb, ub])
    trips = range(lb, ub, step)
    assert found.tolist() == [len(trips), trips[-1] if trips else 0]
